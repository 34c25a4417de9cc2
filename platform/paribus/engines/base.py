"""Engines: what starts processes. They are unreliable launchers; retries, leases and results are not their business."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal, Protocol, cast

from paribus.errors import ParibusError, did_you_mean
from paribus.study.resources import Resources

GROUP = "paribus.engines"


class JobState(StrEnum):
    """What an engine knows about a job. A job it has never heard of is UNKNOWN, not failed."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    ENDED = "ENDED"
    UNKNOWN = "UNKNOWN"


@dataclass(frozen=True, kw_only=True)
class Status:
    """State of a job.

    Attributes:
        exit_code: known at most once it has ended, negative for a signal.
        reason: the engine's own word for why the job waits or has ended; empty if it has none.
    """

    state: JobState
    exit_code: int | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a run holds on an engine.

    Attributes:
        gpus: GPUs: whole ones, or a part of one; 0: none.
        gpu_memory: GiB of one GPU's memory; where it is not 0 the part is what this is of the GPU that the run gets,
            and ``gpus`` the least that it can be.
        cpus: CPU cores that are counted.
        threads: threads for libraries that are not told otherwise; ``None``: their own choice.
    """

    gpus: float = 0.0
    gpu_memory: float = 0.0
    cpus: float = 0.0
    threads: int | None = None


@dataclass(frozen=True, kw_only=True)
class Device:
    """What an engine gives to runs: a GPU, or the CPU cores of the machine together.

    Attributes:
        name: what ``CUDA_VISIBLE_DEVICES`` calls it; ``cpu``.
        amount: 1 for a GPU, else cores.
        memory: GiB of a GPU; 0: unknown.
        used: GiB of it in use, by whomever.
    """

    kind: Literal["gpu", "cpu"]
    name: str
    amount: float
    memory: float = 0.0
    used: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What to start: ``python -m <module> <arguments>``, or the module's ``main(arguments)`` in a forked process.

    Attributes:
        module: dotted name of a module with ``main(arguments: Sequence[str]) -> int``.
        arguments: its arguments. An engine that calls ``main`` in its own process adds :data:`INLINE`.
        need: what it holds; ``None``: what the engine gives where a study says nothing.
        gpus: names of the GPUs that it holds, where it was given :class:`devices <Device>`.
    """

    module: str
    arguments: tuple[str, ...]
    need: Need | None = None
    gpus: tuple[str, ...] = ()


INLINE = "--inline"
"""Tells a module that it runs inside the calling process, which must survive it."""


GRACE = "PARIBUS_GRACE_S"
"""Environment variable in which an engine tells its jobs the seconds that they have after a SIGTERM."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """What every engine is constructed with.

    Attributes:
        runner: name of the runner; an engine may import its heavy parts ahead of time.
        folder: where the engine writes its own logs.
        slots: runs at a time; ``None``: what the machine suggests.
        options: file with the options of engines; ``None``: all defaults.
    """

    runner: str
    folder: Path
    slots: int | None = None
    options: Path | None = None


@dataclass(frozen=True, kw_only=True)
class Reach:
    """How jobs on other machines reach the scheduler: the name of its machine, and a TCP port; 0: a free one."""

    host: str
    port: int = 0


class Engine(Protocol):
    """What an entry point of the group ``paribus.engines`` names: a class made from :class:`EngineSettings`.

    All calls are idempotent by the unique name under which a job was submitted. An engine need not have a thread of its
    own: it may make progress in its calls only, so :meth:`poll` is called often.

    Attributes:
        name: as on the command line.
        reach: set where jobs run on other machines; ``None``: all run on this one.
        about: one line for people: where jobs run and with what; empty where that goes without saying.
    """

    name: str
    reach: Reach | None
    about: str

    def need(self, resources: Resources) -> Need:
        """Return what a run of a study holds that declares these resources.

        Raises:
            TooLarge: there will never be so much.
        """

    def devices(self) -> tuple[Device, ...]:
        """Return what runs hold of this machine, as it is now; empty where others place the jobs."""

    def submit(self, spec: Spec, name: str) -> str:
        """Start a job, unless one with this name was started before; return what the engine calls it.

        Raises:
            EngineError: the engine will not take the job as it is.
        """

    def find(self, name: str) -> str | None:
        """Return what the engine calls the job with this name; ``None`` if it knows none.

        Raises:
            EngineError: nobody can tell now.
        """

    def poll(self, names: Iterable[str]) -> Mapping[str, Status]:
        """Return the status of each named job."""

    def cancel(self, name: str, grace: float) -> None:
        """Ask a job to end (SIGTERM); end it by force (SIGKILL) if it is still there ``grace`` seconds later."""

    def slots(self) -> int:
        """Return how many jobs may run at a time."""

    def capacity(self, need: Need | None = None) -> int:
        """Return how many more jobs that hold so much may be submitted now; devices that are leased are not counted."""

    def close(self) -> None:
        """End all jobs by force and free what the engine holds."""


def load_engine(name: str) -> Callable[[EngineSettings], Engine]:
    """Return the engine class ``name``.

    Raises:
        ParibusError: no engine has this name; the message lists those that there are.
    """
    entries = {e.name: e for e in entry_points(group=GROUP)}
    if name not in entries:
        names = sorted(entries)
        raise ParibusError(f"there is no engine `{name}`.{did_you_mean(name, names)} Installed: {', '.join(names)}.")
    return cast(Callable[[EngineSettings], Engine], entries[name].load())


def refuse_too_large(resources: Resources, name: str, settings: EngineSettings) -> None:
    """Do nothing if an engine can ever give a run what its study declares.

    Raises:
        TooLarge: it cannot; the message says what there is.
    """
    engine = load_engine(name)(settings)
    try:
        engine.need(resources)
    finally:
        engine.close()


def call_main(module: str, arguments: Sequence[str]) -> int:
    """Import ``module`` and return what its ``main(arguments)`` returns."""
    return int(importlib.import_module(module).main(arguments))
