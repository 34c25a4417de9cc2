"""The engine of Ray clusters: each job a named actor in a placement group of its own, or a Ray Job.

Ray's retries are off. A job survives this process and is found by its name; what it returned is in a file.
"""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from paribus.engines.base import GRACE, Device, EngineSettings, JobState, Need, Reach, Spec, Status
from paribus.engines.options import read_options
from paribus.engines.ray_actors import NAMESPACE, Actors
from paribus.engines.ray_jobs import Away, Jobs
from paribus.engines.ray_keeper import Order
from paribus.engines.ray_options import GIB, RayOptions
from paribus.errors import EngineError, MissingExtra, TooLarge
from paribus.study.resources import Resources

_CONNECT_S = 5.0
_MARGIN_S = 5.0
_CLOSE_S = 5.0
_RETRY_S = 2.0


class Launcher(Protocol):
    """How jobs come to the nodes: as :class:`Actors` or as :class:`Jobs`; the name of a job is Ray's."""

    def start(self, job: str, order: Order, bundle: Mapping[str, float]) -> str:
        """Ask for a job that holds so much; return why Ray does not take it yet, empty if it does.

        Raises:
            EngineError: Ray refuses the job.
        """

    def find(self, job: str) -> bool:
        """Return whether Ray knows the job."""

    def began(self, job: str) -> bool:
        """Return whether the job runs."""

    def ended(self, job: str) -> bool:
        """Return whether the job has ended."""

    def reason(self, job: str) -> str:
        """Return Ray's word for the end of a job that left no exit status."""

    def signal(self, job: str, number: int) -> None:
        """Send a signal to the job's process group."""

    def drop(self, job: str) -> None:
        """End what is left of the job by force, and give its resources back."""


@dataclass(kw_only=True)
class _Job:
    """A job that has not ended: ``unsent`` until Ray has taken it."""

    status: Status
    unsent: tuple[Order, Mapping[str, float]] | None = None
    retry_at: float = 0.0
    kill_at: float | None = None


class RayEngine:
    """Runs jobs on a Ray cluster whose nodes see the home folder and the Python environment under the same paths.

    Raises:
        MissingExtra: Ray is not installed.
        EngineError: the cluster cannot be reached.
        StudyFileError: the options are wrong.
    """

    name = "ray"

    def __init__(self, settings: EngineSettings) -> None:
        self._options = read_options(settings.options, self.name, RayOptions)
        self._folder = settings.folder.resolve() / "ray"
        # two home folders may hold the same runs
        self._suffix = hashlib.sha256(str(self._folder).encode()).hexdigest()[:8]
        self._jobs: dict[str, _Job] = {}
        self._ended: dict[str, Status] = {}
        self._places: dict[Need, int] = {}
        self._ray, dashboard = _connect(self._options.address)
        self._launcher: Launcher = Jobs(dashboard, self._folder) if self._options.launch == "job" else Actors(self._ray)
        self._most = settings.slots or self._options.jobs
        self._slots = self._most or self._fitting(self._options.bundle())
        self.reach: Reach | None = Reach(host=self._options.host or socket.gethostname(), port=self._options.port)
        self.about = f"Ray: {self._options.about()}, up to {self._slots} at a time"

    # ---- the protocol ----------------------------------------------------------------------------

    def need(self, resources: Resources) -> Need:
        """Return what a run holds.

        Raises:
            TooLarge: no node has so much; Ray itself would wait forever without a word.
        """
        need = self._options.need(resources)
        bundle = self._options.bundle(need)
        if not (self._options.jobs or self._fitting(bundle)):
            where = "the Ray cluster has not" if self._options.launch == "job" else "no node of the Ray cluster has"
            held = "; ".join(_shown({k: n.get(k, 0.0) for k in bundle}) for n in self._nodes())
            raise TooLarge(
                _shown(bundle),
                f"{where} that. The nodes have: {held}",
                "Change `resources` of the study or `ray` in engines.yaml; or, if the cluster grows by itself, say "
                "there how many `jobs` it may get.",
            )
        return need

    def devices(self) -> tuple[Device, ...]:
        """Return none: Ray gives them to its jobs."""
        return ()

    def submit(self, spec: Spec, name: str) -> str:
        """Ask for a job; it is pending until Ray has given it what it holds.

        Raises:
            EngineError: Ray refuses the job.
        """
        job, found = self._job(name), None
        with suppress(Away):  # it is asked again before anything is sent
            found = self.find(name)
        if found is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            log, note = (str(self._folder / f"{job}.{kind}") for kind in ("log", "exit"))
            order = Order(
                module=spec.module,
                arguments=spec.arguments,
                environment=self._environment(spec),
                cwd=str(Path.cwd()),
                log=log,
                note=note,
            )
            unsent = order, self._options.bundle(spec.need)
            self._send(name, _Job(status=Status(state=JobState.PENDING), unsent=unsent))
        return job

    def find(self, name: str) -> str | None:
        """Return what Ray calls the job, if it knows it or the job has left its exit status.

        Raises:
            EngineError: the head does not answer, so that nobody can tell.
        """
        job = self._job(name)
        if name not in self._jobs and name not in self._ended:
            code = self._noted(name)
            if code is not None:
                self._ended[name] = Status(state=JobState.ENDED, exit_code=code)
            elif self._launcher.find(job):
                self._jobs[name] = _Job(status=Status(state=JobState.PENDING))
            else:
                return None
        return job

    def poll(self, names: Iterable[str]) -> Mapping[str, Status]:
        """Return the status of each named job."""
        self._pump()
        return {name: self._status(name) for name in names}

    def cancel(self, name: str, grace: float) -> None:
        """Take a waiting job back; send SIGTERM to a running one, and SIGKILL at a later :meth:`poll`.

        A grace above zero is at least that of the options, so that large checkpoints can be written.
        """
        self._pump()
        job = self._jobs.get(name)
        if job is None:
            return
        if job.status.state is JobState.PENDING:
            self._end(name, Status(state=JobState.ENDED))
            return
        grace = max(grace, self._options.grace + _MARGIN_S) if grace > 0 else 0.0
        job.kill_at = time.monotonic() + grace
        self._launcher.signal(self._job(name), int(signal.SIGTERM if grace else signal.SIGKILL))

    def slots(self) -> int:
        """Return how many jobs may be asked for at a time where studies declare nothing."""
        return self._slots

    def capacity(self, need: Need | None = None) -> int:
        """Return how many more jobs may be asked for."""
        self._pump()
        most = self._slots if need is None else self._most or self._places_for(need)
        return max(0, most - len(self._jobs))

    def close(self) -> None:
        """End all jobs by force, and leave the cluster."""
        for name in [*self._jobs]:
            self.cancel(name, 0.0)
        until = time.monotonic() + _CLOSE_S
        while self._jobs and time.monotonic() < until:
            time.sleep(0.05)
            self._pump()
        for name in self._jobs:
            self._launcher.drop(self._job(name))
        self._ray.shutdown()

    # ---- jobs ------------------------------------------------------------------------------------

    def _job(self, name: str) -> str:
        return f"{name}.{self._suffix}"

    def _status(self, name: str) -> Status:
        job = self._jobs.get(name)
        return job.status if job else self._ended.get(name, Status(state=JobState.UNKNOWN))

    def _send(self, name: str, job: _Job) -> None:
        assert job.unsent is not None
        why = self._launcher.start(self._job(name), *job.unsent)
        self._jobs[name] = job
        job.unsent = job.unsent if why else None
        job.retry_at = time.monotonic() + _RETRY_S
        job.status = Status(state=JobState.PENDING, reason=why)

    def _send_again(self, name: str, job: _Job) -> None:
        try:
            self._send(name, job)
        except EngineError as error:  # only this job's: the next attempt is refused when it is submitted
            self._end(name, Status(state=JobState.ENDED, reason=str(error)))

    def _end(self, name: str, status: Status) -> None:
        """Keep no more of a job than what may be asked for: a study may have a hundred thousand."""
        self._launcher.drop(self._job(name))
        del self._jobs[name]
        self._ended[name] = status

    def _noted(self, name: str) -> int | None:
        with suppress(OSError, ValueError):
            return int((self._folder / f"{self._job(name)}.exit").read_text())
        return None

    def _environment(self, spec: Spec) -> dict[str, str]:
        """Return the environment of ``paribus run``, as Slurm passes it; Ray's own variables are the node's."""
        own = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") and k != "CUDA_VISIBLE_DEVICES"}
        # numbers do not depend on the engine: as many threads as the local engine gives
        need = spec.need or self._options.need(Resources())
        threads = {} if need.threads is None else {"OMP_NUM_THREADS": str(need.threads)}
        return {**threads, **own, GRACE: str(self._options.grace)}

    def _pump(self) -> None:
        """Take in what has happened since the last call, and end what had its grace."""
        for name, job in [*self._jobs.items()]:
            known = self._job(name)
            if job.unsent is not None:
                if time.monotonic() >= job.retry_at:
                    self._send_again(name, job)
            elif self._launcher.ended(known):
                code = self._noted(name)
                reason = self._launcher.reason(known) if code is None else ""
                self._end(name, Status(state=JobState.ENDED, exit_code=code, reason=reason))
            elif job.status.state is JobState.PENDING and self._launcher.began(known):
                job.status = Status(state=JobState.RUNNING)
            elif job.kill_at is not None and time.monotonic() >= job.kill_at:
                job.kill_at = None
                self._launcher.signal(known, int(signal.SIGKILL))

    def _places_for(self, need: Need) -> int:
        if need not in self._places:
            self._places[need] = self._fitting(self._options.bundle(need))
        return self._places[need]

    def _fitting(self, bundle: Mapping[str, float]) -> int:
        """Return how many runs fit into the cluster at once, each on one node or, as a Ray program, spread over all."""
        nodes = self._nodes()
        if self._options.launch == "job":
            nodes = [{k: sum(node.get(k, 0.0) for node in nodes) for k in bundle}]
        return sum(int(min(node.get(k, 0.0) / amount for k, amount in bundle.items())) for node in nodes)

    def _nodes(self) -> list[dict[str, float]]:
        return [n["Resources"] for n in self._ray.nodes() if n["Alive"]]


def _shown(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{v / GIB:.1f} GiB" if k == "memory" else f"{v:g} {k}" for k, v in resources.items())


def _connect(address: str) -> tuple[Any, str]:
    """Return Ray, and the address of the head's dashboard; empty where it has none."""
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "The engine `ray`") from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        if address != "auto":
            _knock(address)
        context = ray.init(
            address=address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False, logging_level="ERROR"
        )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        said = " ".join(str(error).split())[:300]
        raise EngineError(
            f"cannot join the Ray cluster `{address}`: {said}. Is it up (`ray status`), is `address` of `ray` in "
            "engines.yaml its head, and do RAY_AUTH_MODE and the token agree with the head's?"
        ) from error
    return ray, context.dashboard_url or ""


def _knock(address: str) -> None:
    """Fail soon where nobody listens: Ray itself tries for minutes.

    Raises:
        OSError: nobody does.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        raise ValueError("the address has the form host:port")
    socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
