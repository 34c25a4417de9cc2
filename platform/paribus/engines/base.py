"""The engine protocol. Engines are unreliable launchers; retries, leases and results are the scheduler's business."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Generic, Protocol, TypeVar, cast

from paribus.contract import Device, Need, Resources
from paribus.errors import ParibusError, TooLarge, did_you_mean

GROUP = "paribus.engines"


class JobState(StrEnum):
    """What an engine knows about a job. A job that the engine has no record of is UNKNOWN, not failed."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    ENDED = "ENDED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, kw_only=True)
class Status:
    """State of a job.

    Attributes:
        exit_code: set only after the job has ended, and not always; negative for a signal.
        reason: the engine's own explanation why the job waits or has ended; may be empty.
        interrupted: a user, or the rules of the cluster, ended the job: nothing has failed.
    """

    state: JobState
    exit_code: int | None = None
    reason: str = ""
    interrupted: bool = False


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What to start: ``python -m <module> <arguments>``, or the module's ``main(arguments)`` in a forked process.

    Attributes:
        module: dotted name of a module with ``main(arguments: Sequence[str]) -> int``.
        arguments: its arguments. An engine that calls ``main`` in its own process adds :data:`INLINE`.
        need: the resources it holds; ``None``: the engine's default.
        gpus: names of the GPUs it holds, if the engine has :meth:`devices <Engine.devices>`.
    """

    module: str
    arguments: tuple[str, ...]
    need: Need | None = None
    gpus: tuple[str, ...] = ()


INLINE = "--inline"
"""Argument for a module that runs inside the calling process, which must survive it."""


GRACE = "PARIBUS_GRACE_S"
"""Environment variable with the seconds that a job has after a SIGTERM."""


ON_NODE = "PARIBUS_ON_NODE"
"""Environment variable of a job with several nodes: the words, as in a shell, that start a command on one of them.

``{node}`` is its number; 0 is the node of the job itself. What they start gets no input, and their exit status is the
command's. They pass SIGUSR1 and SIGUSR2 on to it; if they are killed, it is killed as well.
"""

PATIENCE = "PARIBUS_PATIENCE_S"
"""Environment variable with the seconds that an attempt may go on without the scheduler; ``inf``: no limit."""

PATIENCE_S = 60.0
"""The same where jobs end with their scheduler: the lease."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """Constructor argument of every engine.

    Attributes:
        runner: name of the runner; an engine may import its heavy parts ahead of time.
        folder: where the engine writes its own logs.
        slots: runs at a time; ``None``: the engine decides.
        options: file with engine options; ``None``: all defaults.
    """

    runner: str
    folder: Path
    slots: int | None = None
    options: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How jobs on other machines reach the scheduler: the name of its machine, and a TCP port (0: any free port)."""

    host: str
    port: int = 0


class Engine(Protocol):
    """What an entry point of the group ``paribus.engines`` names: a class constructed with :class:`EngineSettings`.

    Jobs are known by the unique name under which they were submitted, and all calls are idempotent by that name. An
    engine doesn't need a thread of its own: it may make progress inside its calls, so :meth:`poll` is called often.

    Attributes:
        name: as on the command line.
        reach: set if jobs run on other machines; ``None``: all run on this one.
        patience_s: seconds that an attempt goes on without the scheduler. More than :data:`PATIENCE_S` needs an engine
            whose jobs outlive this process, and which can say later whether a job still runs; ``inf``: no limit.
        has_gangs: whether it can give a job several nodes, all of them or none. Its first process is on the first of
            them, and starts others by :data:`ON_NODE`; when it ends, so do they.
    """

    name: str
    reach: Reach | None
    patience_s: float
    has_gangs: bool

    @property
    def trouble(self) -> str:
        """One sentence for users if what starts the jobs doesn't answer now; else empty.

        Meanwhile calls return soon: :meth:`poll` returns what was known last, and what can't be sent is sent later.
        """

    def about(self, resources: Resources) -> str:
        """Return one line for users: where jobs run, and what each holds whose study declares this; may be empty."""

    def need(self, resources: Resources) -> Need:
        """Return what a run holds if its study declares these resources.

        Raises:
            TooLarge: the engine can never provide that much.
        """

    def devices(self) -> tuple[Device, ...]:
        """Return the devices of this machine that runs can hold, as they are now; empty if others place the jobs."""

    def submit(self, spec: Spec, name: str) -> str:
        """Start a job, unless this name was submitted before; return the engine's own name for it.

        Raises:
            EngineError: the engine refuses the job.
        """

    def find(self, name: str) -> str | None:
        """Return the engine's own name for the job; ``None`` if it knows no such job.

        Raises:
            EngineError: the engine can't find out now.
        """

    def poll(self, names: Iterable[str]) -> Mapping[str, Status]:
        """Return the status of each named job."""

    def cancel(self, name: str, grace: float) -> None:
        """Send SIGTERM to a job, and SIGKILL if it still runs ``grace`` seconds later."""

    def slots(self) -> int:
        """Return how many jobs may run at a time."""

    def capacity(self, need: Need | None = None) -> int:
        """Return how many more jobs of this size may be submitted now, leaving aside which devices are leased."""

    def close(self) -> None:
        """End all jobs by force and release what the engine holds."""


class _Live(Protocol):
    status: Status


J = TypeVar("J", bound=_Live)


class JobTable(Generic[J]):
    """The jobs that an engine has been given: everything about live ones, only the status of ended ones.

    A study may have a hundred thousand jobs, so nothing else of an ended job stays in memory.

    Attributes:
        live: jobs that have not ended, by name.
    """

    def __init__(self) -> None:
        self.live: dict[str, J] = {}
        self._ended: dict[str, Status] = {}

    def __contains__(self, name: str) -> bool:
        return name in self.live or name in self._ended

    def status(self, name: str) -> Status:
        """Return the status of a job; UNKNOWN if the engine has no record of it."""
        if name in self.live:
            return self.live[name].status
        return self._ended.get(name, Status(state=JobState.UNKNOWN))

    def end(self, name: str, status: Status) -> None:
        """Replace whatever is known of a job by its final status."""
        self.live.pop(name, None)
        self._ended[name] = status


def need_of(engine: Engine, resources: Resources) -> Need:
    """Return what a run holds on an engine if its study declares these resources.

    Raises:
        TooLarge: the engine can never provide that much, or gives a run one node.
    """
    if resources.nodes > 1 and not getattr(engine, "has_gangs", False):  # engines of others may not say so
        raise TooLarge(
            resources.about(),
            f"the engine `{engine.name}` gives a run one node",
            "Remove `nodes` from `resources`, or choose the engine `slurm` or `ray`.",
        )
    return engine.need(resources)


def gangs(parts: Sequence[int], nodes: int) -> int:
    """Return how many jobs fit at once whose parts must be on different nodes.

    Args:
        parts: how many parts of a job fit on each node.
        nodes: parts of a job.
    """
    jobs = sum(parts) // nodes
    while sum(min(part, jobs) for part in parts) < jobs * nodes:
        jobs -= 1
    return jobs


def outlives_scheduler(engine: Engine) -> bool:
    """Return whether the jobs of an engine go on without the scheduler; engines of others may not say so."""
    return getattr(engine, "patience_s", PATIENCE_S) > PATIENCE_S


def find_engine(name: str) -> EntryPoint:
    """Return the entry point of the engine ``name``, without importing it.

    Raises:
        ParibusError: no engine has this name; the message lists the installed ones.
    """
    entries = {e.name: e for e in entry_points(group=GROUP)}
    if name not in entries:
        names = sorted(entries)
        raise ParibusError(f"there is no engine `{name}`.{did_you_mean(name, names)} Installed: {', '.join(names)}.")
    return entries[name]


def load_engine(name: str) -> Callable[[EngineSettings], Engine]:
    """Return the engine class ``name``.

    Raises:
        ParibusError: no engine has this name; the message lists the installed ones.
    """
    return cast(Callable[[EngineSettings], Engine], find_engine(name).load())


def refuse_too_large(resources: Resources, name: str, settings: EngineSettings) -> None:
    """Check that an engine can provide the resources that a study declares.

    Raises:
        TooLarge: it can't; the message says what is available.
    """
    engine = load_engine(name)(settings)
    try:
        need_of(engine, resources)
    finally:
        engine.close()


def call_main(module: str, arguments: Sequence[str]) -> int:
    """Import ``module`` and return what its ``main(arguments)`` returns."""
    return int(importlib.import_module(module).main(arguments))
