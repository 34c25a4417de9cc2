"""The engine for Ray clusters: each job is a named actor in its own placement group, or a Ray Job.

Ray's retries are off. A job survives this process, is found by its name, and leaves its exit status in a file.
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
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from paribus.contract import Device, Need, Resources
from paribus.engines.base import GRACE, PATIENCE, EngineSettings, JobState, JobTable, Reach, Spec, Status
from paribus.engines.launch import Order, read_number
from paribus.engines.options import ClusterOptions, read_options
from paribus.engines.ray.actors import NAMESPACE, Actors
from paribus.engines.ray.jobs import Away, Jobs
from paribus.errors import EngineError, MissingExtra, TooLarge

_CONNECT_S = 5.0
_MARGIN_S = 5.0
_CLOSE_S = 5.0
_RETRY_S = 2.0
_NODES_S = 5.0
_GIB = 1 << 30


class RayOptions(ClusterOptions):
    """Options of the engine ``ray``.

    Attributes:
        address: ``host:port`` of the head; ``auto``: the cluster that this machine belongs to.
        gpus: GPUs of a run whose study declares none; with a fraction, such as 0.5, runs share a GPU.
        cpus: CPU cores of a run whose study declares none.
        memory: GiB of main memory that Ray reserves for a run; absent: none.
        resources: custom resources of the cluster that a run needs, by name.
        launch: ``actor``: a run is a process of one node and holds its resources; ``job``: a run is a Ray program,
            started as a Ray Job, that requests its own workers from Ray.
        jobs: jobs at a time, waiting ones included; absent: as many as fit into the cluster.
        grace: seconds that a run gets to write a checkpoint.
        host: name or address under which the nodes reach this machine; absent: its host name.
        port: TCP port that supervisors report to; 0: any free port.
    """

    address: str = "auto"
    launch: Literal["actor", "job"] = "actor"
    gpus: Annotated[float, Field(ge=0, strict=False)] = 0.0
    cpus: Annotated[float, Field(gt=0, strict=False)] = 1.0
    memory: Annotated[float, Field(gt=0, strict=False)] | None = None
    resources: dict[str, Annotated[float, Field(gt=0, strict=False)]] = Field(default_factory=dict)
    jobs: Annotated[int, Field(ge=1)] | None = None
    grace: Annotated[int, Field(ge=1)] = 90
    host: str | None = None
    port: Annotated[int, Field(ge=0, le=65535)] = 0

    @field_validator("gpus")
    @classmethod
    def _whole(cls, gpus: float) -> float:
        if gpus > 1 and gpus != int(gpus):
            raise ValueError(
                f"`gpus: {gpus:g}` is not allowed: write a whole number, or a fraction below 1 such as 0.5"
            )
        return gpus

    def need(self, resources: Resources) -> Need:
        """Return what a run holds; the study's declaration takes precedence over the options."""
        gpus = self.gpus if resources.gpus is None else resources.gpus
        threads = resources.cpus or (None if gpus else 1)
        return Need(gpus=gpus, cpus=float(resources.cpus or self.cpus), threads=threads)

    def bundle(self, need: Need | None = None) -> dict[str, float]:
        """Return what a run holds, under Ray's names."""
        need = need or self.need(Resources())
        asked = {"CPU": need.cpus, "GPU": need.gpus, "memory": (self.memory or 0) * _GIB, **self.resources}
        return {name: amount for name, amount in asked.items() if amount > 0}

    def about(self) -> str:
        """Return what each job requests, in a few words."""
        shown = {name: f"{a / _GIB:g} GiB" if name == "memory" else f"{a:g}" for name, a in self.bundle().items()}
        return ", ".join(f"{amount} {name}" for name, amount in shown.items()) + " per run"


@dataclass(kw_only=True)
class _Job:
    """A job that has not ended; ``unsent`` is set until Ray has taken it."""

    status: Status
    unsent: tuple[Order, Mapping[str, float]] | None = None
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
        self._alive: list[dict[str, float]] = []
        self._look_at = float("-inf")
        self._ray, dashboard = _connect(self._options.address)
        self._launcher: Actors | Jobs = (
            Jobs(dashboard, self._folder) if self._options.launch == "job" else Actors(self._ray)
        )
        self._most = settings.slots or self._options.jobs
        self.reach: Reach | None = Reach(host=self._options.host or socket.gethostname(), port=self._options.port)
        self.about = f"Ray: {self._options.about()}, up to {self.slots()} at a time"

    # ---- the protocol ----------------------------------------------------------------------------

    def need(self, resources: Resources) -> Need:
        """Return what a run holds.

        Raises:
            TooLarge: no node has that much; Ray itself would wait forever without an error.
        """
        need = self._options.need(resources)
        bundle = self._options.bundle(need)
        if not (self._options.jobs or self._fitting(bundle)):
            where = "the Ray cluster has not" if self._options.launch == "job" else "no node of the Ray cluster has"
            held = "; ".join(_shown({k: n.get(k, 0.0) for k in bundle}) for n in self._nodes())
            raise TooLarge(
                _shown(bundle),
                f"{where} that. The nodes have: {held}",
                "Change `resources` in the study or `ray` in engines.yaml; if the cluster scales up by itself, set "
                "`jobs` there.",
            )
        return need

    def devices(self) -> tuple[Device, ...]:
        """Return an empty tuple: Ray assigns devices to its jobs."""
        return ()

    def submit(self, spec: Spec, name: str) -> str:
        """Request a job; it is pending until Ray has given it its resources.

        Raises:
            EngineError: Ray refuses the job.
        """
        job, found = self._job(name), None
        with suppress(Away):  # the launcher looks again before it sends anything
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
        """Return the job's name in Ray if Ray knows it or the job has left its exit status, else ``None``.

        Raises:
            EngineError: the head does not answer, so the job's fate is unknown.
        """
        job = self._job(name)
        if name not in self._jobs:
            code = self._noted(name)
            if code is not None:
                self._jobs.end(name, Status(state=JobState.ENDED, exit_code=code))
            elif self._launcher.find(job):
                self._jobs.live[name] = _Job(status=Status(state=JobState.PENDING))
            else:
                return None
        return job

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
        if job.status.state is JobState.PENDING:
            self._end(name, Status(state=JobState.ENDED))
            return
        grace = max(grace, self._options.grace + _MARGIN_S) if grace > 0 else 0.0
        job.kill_at = time.monotonic() + grace
        self._launcher.signal(self._job(name), int(signal.SIGTERM if grace else signal.SIGKILL))

    def slots(self) -> int:
        """Return how many jobs may be requested at a time if studies declare nothing."""
        return self._most or self._fitting(self._options.bundle())

    def capacity(self, need: Need | None = None) -> int:
        """Return how many more jobs may be requested: as many as fit on the nodes that are there now."""
        self._pump()
        most = self._most or self._fitting(self._options.bundle(need))
        return max(0, most - len(self._jobs.live))

    def close(self) -> None:
        """End all jobs by force, and leave the cluster."""
        for name in [*self._jobs.live]:
            self.cancel(name, 0.0)
        until = time.monotonic() + _CLOSE_S
        while self._jobs.live and time.monotonic() < until:
            time.sleep(0.05)
            self._pump()
        for name in self._jobs.live:
            self._launcher.drop(self._job(name))
        self._ray.shutdown()

    # ---- jobs ------------------------------------------------------------------------------------

    def _job(self, name: str) -> str:
        return f"{name}.{self._suffix}"

    def _send(self, name: str, job: _Job) -> None:
        assert job.unsent is not None
        why = self._launcher.start(self._job(name), *job.unsent)
        self._jobs.live[name] = job
        job.unsent = job.unsent if why else None
        job.retry_at = time.monotonic() + _RETRY_S
        job.status = Status(state=JobState.PENDING, reason=why)

    def _send_again(self, name: str, job: _Job) -> None:
        try:
            self._send(name, job)
        except EngineError as error:  # ends this job only; the next attempt is refused when it is submitted
            self._end(name, Status(state=JobState.ENDED, reason=str(error)))

    def _end(self, name: str, status: Status) -> None:
        self._launcher.drop(self._job(name))
        self._jobs.end(name, status)

    def _noted(self, name: str) -> int | None:
        return read_number(self._folder / f"{self._job(name)}.exit")

    def _environment(self, spec: Spec) -> dict[str, str]:
        """Return the environment of ``paribus run``, as Slurm passes it; the node sets Ray's own variables."""
        own = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") and k != "CUDA_VISIBLE_DEVICES"}
        # the same number of threads as with the local engine, so that numbers do not depend on the engine
        need = spec.need or self._options.need(Resources())
        threads = {} if need.threads is None else {"OMP_NUM_THREADS": str(need.threads)}
        return {**threads, **own, GRACE: str(self._options.grace), PATIENCE: f"{self.patience_s:g}"}

    def _pump(self) -> None:
        """Process what has happened since the last call, and kill jobs whose grace is over."""
        for name, job in [*self._jobs.live.items()]:
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

    def _fitting(self, bundle: Mapping[str, float]) -> int:
        """Return how many runs fit into the cluster at once, each on one node or (Ray programs) spread over all."""
        nodes = self._nodes()
        if self._options.launch == "job":
            nodes = [{k: sum(node.get(k, 0.0) for node in nodes) for k in bundle}]
        return sum(int(min(node.get(k, 0.0) / amount for k, amount in bundle.items())) for node in nodes)

    def _nodes(self) -> list[dict[str, float]]:
        """Return what each node has; nodes come and go, so ask again after a while."""
        if time.monotonic() >= self._look_at:
            self._alive = [n["Resources"] for n in self._ray.nodes() if n["Alive"]]
            self._look_at = time.monotonic() + _NODES_S
        return self._alive


def _shown(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{v / _GIB:.1f} GiB" if k == "memory" else f"{v:g} {k}" for k, v in resources.items())


def _connect(address: str) -> tuple[Any, str]:
    """Return the module ``ray`` and the address of the head's dashboard; the address is empty if there is none."""
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
    """Fail fast if nothing listens at the address: Ray itself retries for minutes.

    Raises:
        OSError: the address cannot be reached.
        ValueError: the address isn't of the form ``host:port``.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        raise ValueError("the address has the form host:port")
    socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
