"""The engine for Ray clusters: each job is a named actor in its own placement group, or a Ray Job.

Ray's retries are off. A job survives this process, is found by its name, and leaves its exit status in a file.
"""

from __future__ import annotations

import hashlib
import importlib.util
import signal
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from paribus.contract import Device, Need, Resources
from paribus.engines.base import (
    GRACE,
    ON_NODE,
    PATIENCE,
    EngineSettings,
    JobState,
    JobTable,
    Reach,
    Spec,
    Status,
    gangs,
)
from paribus.engines.controller import Away, Controller
from paribus.engines.launch import Order, read_number
from paribus.engines.options import read_options
from paribus.engines.ray import on_node
from paribus.engines.ray.actors import passed_on
from paribus.engines.ray.driver import Driver
from paribus.engines.ray.options import RayOptions, shown
from paribus.errors import EngineError, MissingExtra, TooLarge

_LOOK_S = 0.1
_MARGIN_S = 5.0
_CLOSE_S = 5.0
_RETRY_S = 2.0
_NODES_S = 5.0
_NOTES_S = 1.0


@dataclass(kw_only=True)
class _Job:
    """A job that has not ended.

    Attributes:
        unsent: set until Ray has taken it: what to start, and what it holds on each of how many nodes.
        withdrawn: whether it is to be ended without a signal, because it has not begun.
        number: the signal that is still to be sent; 0: none.
    """

    status: Status
    unsent: tuple[Order, Mapping[str, float], int] | None = None
    withdrawn: bool = False
    number: int = 0
    retry_at: float = 0.0
    kill_at: float | None = None


class RayEngine:
    """Runs jobs on a Ray cluster. All nodes must see the home folder and the Python environment under the same paths.

    Raises:
        MissingExtra: Ray is not installed.
        EngineError: the cluster cannot be reached.
        StudyFileError: the options are invalid.
    """

    name = "ray"

    def __init__(self, settings: EngineSettings) -> None:
        self._options = read_options(settings.options, self.name, RayOptions)
        self._folder = settings.folder.resolve() / "ray"
        # two home folders may contain the same runs
        self._suffix = hashlib.sha256(str(self._folder).encode()).hexdigest()[:8]
        self._jobs: JobTable[_Job] = JobTable()
        self.patience_s = self._options.patience_s
        self._ended: set[str] = set()
        if importlib.util.find_spec("ray") is None:
            raise MissingExtra("ray", "The engine `ray`")
        self._driver = Driver(self._options.address, self._options.launch, self._folder)
        self._controller = Controller()
        self.has_gangs = self._options.launch == "actor"
        self._most = settings.slots or self._options.jobs
        self.reach: Reach | None = Reach(host=self._options.host or socket.gethostname(), port=self._options.port)
        self._driver.join()
        self._alive: list[dict[str, float]] = []
        self._look_at = self._nodes_at = self._notes_at = float("-inf")
        with suppress(Away):
            self._look_at_nodes()

    # ---- the protocol ----------------------------------------------------------------------------

    @property
    def trouble(self) -> str:
        """Why the head doesn't answer now, in a sentence; empty if it does."""
        why = self._controller.trouble
        return f"Ray does not answer ({why}). If its head has ended, start the cluster again." if why else ""

    def about(self, resources: Resources) -> str:
        """Return what each run holds, and how many run at a time on the nodes that are there now."""
        need = self._options.need(resources)
        fitting = self._fitting(need)
        most = f"up to {min(self._most or fitting, fitting)} at a time" if fitting else self._missing(need)
        return f"Ray: {self._options.about(need)}, {most}"

    def need(self, resources: Resources) -> Need:
        """Return what a run holds.

        Raises:
            TooLarge: no node has that much; Ray itself would wait forever without an error.
        """
        need = self._options.need(resources)
        bundle = self._options.bundle(need)
        if self._options.jobs or self._fitting(need):
            return need
        grows = "if the cluster scales up by itself, set `jobs` there."
        if need.gpus and not any(node.get("GPU") for node in self._alive):
            raise TooLarge(
                shown(bundle),
                "no node of the Ray cluster has a GPU",
                "Start nodes that have (`ray start --num-gpus N` where Ray finds none by itself), or set `gpus: 0` in "
                f"`resources` of the study or in `ray` in engines.yaml; {grows}",
            )
        if enough := self._fitting(need.a_node):
            raise TooLarge(
                f"{shown(bundle)} on each of {need.nodes} nodes",
                f"{enough} of the Ray cluster's nodes {'has' if enough == 1 else 'have'} that",
                f"Change `resources` in the study, or start more nodes; {grows}",
            )
        where = "the Ray cluster has not" if self._options.launch == "job" else "no node of the Ray cluster has"
        held = "; ".join(shown({k: n.get(k, 0.0) for k in bundle}) for n in self._alive)
        raise TooLarge(
            shown(bundle),
            f"{where} that. The nodes have: {held}",
            f"Change `resources` in the study or `ray` in engines.yaml; {grows}",
        )

    def devices(self) -> tuple[Device, ...]:
        """Return an empty tuple: Ray assigns devices to its jobs."""
        return ()

    def submit(self, spec: Spec, name: str) -> str:
        """Request a job; it is pending until Ray has given it its resources.

        Raises:
            EngineError: Ray refuses the job.
        """
        job = self._job(name)
        with suppress(Away):  # Ray itself looks again before it starts anything
            if self._finds(name):
                return job
        self._folder.mkdir(parents=True, exist_ok=True)
        log, note = (str(self._folder / f"{job}.{kind}") for kind in ("log", "exit"))
        order = Order(
            module=spec.module,
            arguments=spec.arguments,
            environment=self._environment(spec, job),
            cwd=str(Path.cwd()),
            log=log,
            note=note,
        )
        unsent = order, self._options.bundle(spec.need), 1 if spec.need is None else spec.need.nodes
        self._jobs.live[name] = _Job(status=Status(state=JobState.PENDING), unsent=unsent)
        with suppress(Away):
            self._send(name)
        if (status := self._jobs.status(name)).state is JobState.ENDED:
            raise EngineError(status.reason)
        return job

    def find(self, name: str) -> str | None:
        """Return the job's name in Ray if Ray knows it or the job has left its exit status, else ``None``.

        Raises:
            EngineError: the head does not answer, so the job's fate is unknown.
        """
        try:
            return self._job(name) if self._finds(name) else None
        except Away as error:
            raise EngineError(f"Ray does not answer ({error}). Type the same command again later.") from error

    def poll(self, names: Iterable[str]) -> Mapping[str, Status]:
        """Return the status of each named job."""
        self._pump()
        return {name: self._jobs.status(name) for name in names}

    def cancel(self, name: str, grace: float) -> None:
        """Withdraw a waiting job; send SIGTERM to a running one, and SIGKILL at a later :meth:`poll`.

        A positive grace is raised to that of the options, so that there is time for large checkpoints.
        """
        self._pump()
        job = self._jobs.live.get(name)
        if job is None:
            return
        if job.status.state is JobState.RUNNING:
            grace = max(grace, self._options.grace + _MARGIN_S) if grace > 0 else 0.0
            job.kill_at = time.monotonic() + grace
            job.number = signal.SIGTERM if grace else signal.SIGKILL
        else:
            job.withdrawn = True
        with suppress(Away):
            self._carry_out(name, job)

    def slots(self) -> int:
        """Return how many jobs may be requested at a time if studies declare nothing."""
        return self._most or self._fitting()

    def capacity(self, need: Need | None = None) -> int:
        """Return how many more jobs may be requested: as many as fit on the nodes that are there now.

        0 while the head does not answer.
        """
        self._pump()
        most = self._most or self._fitting(need)
        return 0 if self.trouble else max(0, most - len(self._jobs.live))

    def close(self) -> None:
        """End all jobs by force, and leave the cluster."""
        for name in [*self._jobs.live]:
            self.cancel(name, 0.0)
        until = time.monotonic() + _CLOSE_S
        while (self._jobs.live or self._ended) and not self.trouble and time.monotonic() < until:
            time.sleep(0.05)
            self._pump()
        if not self._controller.busy:
            self._controller = Controller()  # asks once more
        with suppress(Away):
            for name in [*self._jobs.live, *self._ended]:
                self._ask("drop", job=self._job(name))
        self._driver.close()

    # ---- jobs ------------------------------------------------------------------------------------

    def _job(self, name: str) -> str:
        return f"{name}.{self._suffix}"

    def _ask(
        self, do: str, then: Callable[[Future[Any]], object] = Future.result, *, probe: bool = False, **values: Any
    ) -> None:
        """Ask Ray's driver.

        Raises:
            Away: the head does not answer.
        """
        self._controller.ask(self._options.address, partial(self._driver.ask, do, **values), then, probe=probe)

    def _finds(self, name: str) -> bool:
        if name not in self._jobs:
            code, found = self._noted(name), list[bool]()
            if code is not None:
                self._jobs.end(name, Status(state=JobState.ENDED, exit_code=code))
                return True
            self._ask("find", lambda answer: found.append(answer.result()), probe=True, job=self._job(name))
            if found[0]:
                self._jobs.live[name] = _Job(status=Status(state=JobState.PENDING))
        return name in self._jobs

    def _send(self, name: str) -> None:
        job = self._jobs.live[name]
        assert job.unsent is not None
        order, bundle, nodes = job.unsent
        job.retry_at = time.monotonic() + _RETRY_S
        values: dict[str, Any] = {"job": self._job(name), "order": asdict(order), "bundle": dict(bundle)}
        self._ask("start", lambda answer: self._sent(name, answer), **values, nodes=nodes)

    def _sent(self, name: str, answer: Future[str]) -> None:
        job = self._jobs.live.get(name)
        if job is None:  # it has ended meanwhile
            return
        try:
            why = answer.result()
        except EngineError as error:  # ends this job only; the next attempt is refused when it is submitted
            self._end(name, Status(state=JobState.ENDED, reason=str(error)))
            return
        job.unsent = job.unsent if why else None
        job.status = Status(state=JobState.PENDING, reason=why)

    def _end(self, name: str, status: Status) -> None:
        self._jobs.end(name, status)
        self._ended.add(name)

    def _noted(self, name: str) -> int | None:
        return read_number(self._folder / f"{self._job(name)}.exit")

    def _environment(self, spec: Spec, job: str) -> dict[str, str]:
        """Return the environment of ``paribus run``, as Slurm passes it."""
        # the same number of threads as with the local engine, so that numbers do not depend on the engine
        need = spec.need or self._options.need(Resources())
        threads = {} if need.threads is None else {"OMP_NUM_THREADS": str(need.threads)}
        others = {ON_NODE: on_node.words(job)} if need.nodes > 1 else {}
        return {**threads, **passed_on(), **others, GRACE: str(self._options.grace), PATIENCE: f"{self.patience_s:g}"}

    def _pump(self) -> None:
        """Process what has happened since the last call, send what is still unsent, kill jobs whose grace is over."""
        self._controller.turn()
        with suppress(Away):
            self._turn()
        if self.trouble and time.monotonic() >= self._notes_at:
            self._notes_at = time.monotonic() + _NOTES_S
            for name in [*self._jobs.live]:  # jobs leave their exit statuses without Ray, too
                if (code := self._noted(name)) is not None:
                    self._end(name, Status(state=JobState.ENDED, exit_code=code))

    def _turn(self) -> None:
        now = time.monotonic()
        if now >= self._nodes_at or self.trouble:
            self._look_at_nodes()
        if now >= self._look_at:
            self._look_at = now + _LOOK_S
            sent = [self._job(name) for name, job in self._jobs.live.items() if job.unsent is None]
            if sent:
                self._ask("look", lambda answer: self._note(answer.result()), jobs=sent)
        for name in [*self._ended]:
            self._ask("drop", job=self._job(name))
            self._ended.discard(name)
        for name, job in [*self._jobs.live.items()]:
            if job.unsent is not None and not job.withdrawn:
                if now >= job.retry_at:
                    self._send(name)
            elif job.kill_at is not None and now >= job.kill_at:
                job.kill_at, job.number = None, signal.SIGKILL
            self._carry_out(name, job)

    def _carry_out(self, name: str, job: _Job) -> None:
        """End a job, or send it the signal that is due.

        Raises:
            Away: the head does not answer.
        """
        if job.withdrawn:
            withdrawn = Status(state=JobState.ENDED)
            self._ask("drop", lambda _: self._jobs.end(name, withdrawn), job=self._job(name))
        elif job.number and not self.trouble:
            # only once: a second SIGTERM leaves no time for a checkpoint
            number, job.number = int(job.number), 0
            self._ask("signal", job=self._job(name), number=number)

    def _note(self, states: Mapping[str, tuple[str, str]]) -> None:
        """Note what Ray knows about jobs."""
        for name, job in [*self._jobs.live.items()]:
            state, reason = states.get(self._job(name), (JobState.PENDING, ""))
            code = self._noted(name) if state in (JobState.ENDED, JobState.UNKNOWN) else None
            if state == JobState.ENDED or code is not None:
                why = reason if code is None else ""
                self._end(name, Status(state=JobState.ENDED, exit_code=code, reason=why))
            elif state != JobState.PENDING:
                job.status = Status(state=JobState(state))

    def _missing(self, need: Need) -> str:
        has_gpu = any(node.get("GPU") for node in self._alive)
        lacks = "no node has a GPU" if need.gpus and not has_gpu else "no node has that"
        return f"but {lacks} now: runs wait for nodes that join later"

    def _fitting(self, need: Need | None = None) -> int:
        """Return how many runs fit into the cluster at once, each on its nodes or (Ray programs) spread over all."""
        nodes, bundle = self._alive, self._options.bundle(need)
        if self._options.launch == "job":
            nodes = [{k: sum(node.get(k, 0.0) for node in nodes) for k in bundle}]
        parts = [int(min(node.get(k, 0.0) / amount for k, amount in bundle.items())) for node in nodes]
        return gangs(parts, 1 if need is None else need.nodes)

    def _look_at_nodes(self) -> None:
        """Ask what the nodes have, from time to time: they come and go, and the head may be away."""
        self._nodes_at = time.monotonic() + _NODES_S
        self._ask("nodes", lambda answer: self._set_nodes(answer.result()), probe=True)

    def _set_nodes(self, nodes: list[dict[str, float]]) -> None:
        self._alive = nodes
