"""The engine of Ray clusters: each job a detached named actor in a placement group of its own.

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
from typing import Annotated, Any

from pydantic import Field, field_validator

from paribus.engines.base import GRACE, Device, EngineSettings, JobState, Need, Reach, Spec, Status
from paribus.engines.options import Options, read_options
from paribus.engines.ray_keeper import Keeper
from paribus.errors import EngineError, MissingExtra, TooLarge
from paribus.study.resources import Resources

_NAMESPACE = "paribus"
_CONNECT_S = 5.0
_MARGIN_S = 5.0
_CLOSE_S = 5.0
_GIB = 1 << 30


class RayOptions(Options):
    """Options of the engine ``ray``.

    Attributes:
        address: ``host:port`` of the head; ``auto``: the cluster that this machine belongs to.
        gpus: GPUs of a run whose study declares none; a part, as 0.5, puts several runs on one.
        cpus: CPU cores of a run whose study declares none.
        memory: GiB of main memory that Ray sets aside for a run; absent: none.
        resources: the cluster's own resources that a run needs, by name.
        jobs: jobs at a time, the waiting ones included; absent: as many as fit into the cluster as it is.
        grace: seconds that a run is given to write a checkpoint.
        host: name or address under which the nodes reach this machine; absent: its host name.
        port: TCP port that supervisors report to; 0: a free one.
    """

    address: str = "auto"
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
            raise ValueError(f"{gpus:g} GPUs cannot be had: allowed are a part of one, as 0.5, or whole ones")
        return gpus

    def need(self, resources: Resources) -> Need:
        """Return what a run holds: what its study declares goes before the options; Ray knows no GPU's memory."""
        declared = 1.0 if resources.gpu_memory_gib else resources.gpus
        gpus = self.gpus if declared is None else declared
        threads = resources.cpus or (None if gpus else 1)
        return Need(gpus=gpus, cpus=float(resources.cpus or self.cpus), threads=threads)

    def bundle(self, need: Need | None = None) -> dict[str, float]:
        """Return what a run holds, as Ray names it."""
        need = need or self.need(Resources())
        asked = {"CPU": need.cpus, "GPU": need.gpus, "memory": (self.memory or 0) * _GIB, **self.resources}
        return {name: amount for name, amount in asked.items() if amount > 0}

    def about(self) -> str:
        """Return what each job asks for, in a few words."""
        shown = {name: f"{a / _GIB:g} GiB" if name == "memory" else f"{a:g}" for name, a in self.bundle().items()}
        return ", ".join(f"{amount} {name}" for name, amount in shown.items()) + " a run"


@dataclass(kw_only=True)
class _Job:
    """A job; ``began`` and ``watch`` are Ray's promises, ``None`` once it has ended."""

    status: Status
    actor: Any = None
    began: Any = None
    watch: Any = None
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
        self._places: dict[Need, int] = {}
        self._ray = _connect(self._options.address)
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
            held = "; ".join(_shown({k: n.get(k, 0.0) for k in bundle}) for n in self._nodes())
            raise TooLarge(
                _shown(bundle),
                f"no node of the Ray cluster has that. The nodes have: {held}",
                "Change `resources` of the study or `ray` in engines.yaml; or, if the cluster grows by itself, say "
                "there how many `jobs` it may get.",
            )
        return need

    def devices(self) -> tuple[Device, ...]:
        """Return none: Ray gives them to its jobs."""
        return ()

    def submit(self, spec: Spec, name: str) -> str:
        """Ask for a job; it is pending until its placement group has its resources."""
        if self.find(name) is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._follow(name, self._actor(spec, self._job(name)))
        return self._job(name)

    def find(self, name: str) -> str | None:
        """Return the actor's name, if Ray knows it or the job has left its exit status."""
        if name not in self._jobs:
            code = self._noted(name)
            if code is not None:
                self._jobs[name] = _Job(status=Status(state=JobState.ENDED, exit_code=code))
                return self._job(name)
            try:
                self._follow(name, self._ray.get_actor(self._job(name), namespace=_NAMESPACE))
            except ValueError:
                self._remove_group(name)  # made by a scheduler that died before it made the actor
                return None
        return self._job(name)

    def poll(self, names: Iterable[str]) -> Mapping[str, Status]:
        """Return the status of each named job."""
        self._pump()
        return {n: self._jobs[n].status if n in self._jobs else Status(state=JobState.UNKNOWN) for n in names}

    def cancel(self, name: str, grace: float) -> None:
        """Take a waiting job back; send SIGTERM to a running one, and SIGKILL at a later :meth:`poll`.

        A grace above zero is at least that of the options, so that large checkpoints can be written.
        """
        self._pump()
        job = self._live().get(name)
        if job is None:
            return
        if job.status.state is JobState.PENDING:
            self._drop(name)
            job.status = Status(state=JobState.ENDED)
            return
        grace = max(grace, self._options.grace + _MARGIN_S) if grace > 0 else 0.0
        job.kill_at = time.monotonic() + grace
        job.actor.signal.remote(int(signal.SIGTERM if grace else signal.SIGKILL))

    def slots(self) -> int:
        """Return how many jobs may be asked for at a time where studies declare nothing."""
        return self._slots

    def capacity(self, need: Need | None = None) -> int:
        """Return how many more jobs may be asked for."""
        self._pump()
        most = self._slots if need is None else self._most or self._places_for(need)
        return max(0, most - len(self._live()))

    def close(self) -> None:
        """End all jobs by force, and leave the cluster."""
        for name in self._live():
            self.cancel(name, 0.0)
        until = time.monotonic() + _CLOSE_S
        while self._live() and time.monotonic() < until:
            time.sleep(0.05)
            self._pump()
        for name in self._live():
            self._drop(name)
        self._ray.shutdown()

    # ---- jobs ------------------------------------------------------------------------------------

    def _job(self, name: str) -> str:
        return f"{name}.{self._suffix}"

    def _live(self) -> dict[str, _Job]:
        return {name: job for name, job in self._jobs.items() if job.status.state is not JobState.ENDED}

    def _noted(self, name: str) -> int | None:
        with suppress(OSError, ValueError):
            return int((self._folder / f"{self._job(name)}.exit").read_text())
        return None

    def _actor(self, spec: Spec, job: str) -> Any:
        from ray.util import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = self._options.bundle(spec.need)
        group = placement_group([bundle], strategy="STRICT_PACK", name=job, lifetime="detached")
        own = {k: v for k, v in bundle.items() if k not in ("CPU", "GPU", "memory")}
        options = {
            "name": job,
            "namespace": _NAMESPACE,
            "get_if_exists": True,
            "lifetime": "detached",
            "max_restarts": 0,
            "max_task_retries": 0,
            "num_cpus": bundle["CPU"],
            "num_gpus": bundle.get("GPU", 0),
            "memory": bundle.get("memory", 0),
            "resources": own,
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, 0),
        }
        log, note = (str(self._folder / f"{job}.{kind}") for kind in ("log", "exit"))
        keeper = self._ray.remote(Keeper).options(**options)
        return keeper.remote(spec.module, spec.arguments, self._environment(spec), str(Path.cwd()), log, note)

    def _environment(self, spec: Spec) -> dict[str, str]:
        """Return the environment of ``paribus run``, as Slurm passes it; Ray's own variables are the node's."""
        own = {k: v for k, v in os.environ.items() if not k.startswith("RAY_") and k != "CUDA_VISIBLE_DEVICES"}
        # numbers do not depend on the engine: as many threads as the local engine gives
        need = spec.need or self._options.need(Resources())
        threads = {} if need.threads is None else {"OMP_NUM_THREADS": str(need.threads)}
        return {**threads, **own, GRACE: str(self._options.grace)}

    def _follow(self, name: str, actor: Any) -> None:
        pending = Status(state=JobState.PENDING)
        self._jobs[name] = _Job(status=pending, actor=actor, began=actor.began.remote(), watch=actor.watch.remote())

    def _pump(self) -> None:
        """Take in what has happened since the last call, and end what had its grace."""
        for name, job in self._live().items():
            if self._ready(job.watch):
                self._end(name, job)
            elif job.status.state is JobState.PENDING and self._ready(job.began):
                job.status = Status(state=JobState.RUNNING)
            elif job.kill_at is not None and time.monotonic() >= job.kill_at:
                job.kill_at = None
                job.actor.signal.remote(int(signal.SIGKILL))

    def _ready(self, promise: Any) -> bool:
        return bool(self._ray.wait([promise], timeout=0)[0])

    def _end(self, name: str, job: _Job) -> None:
        code, reason = self._noted(name), ""
        if code is None:
            try:
                self._ray.get(job.watch)
            except self._ray.exceptions.RayError as error:
                lines = [line.strip() for line in str(error).splitlines() if line.strip()]
                reason = lines[-1][:200] if lines else type(error).__name__
        job.status = Status(state=JobState.ENDED, exit_code=code, reason=reason)
        self._drop(name)

    def _drop(self, name: str) -> None:
        """End the actor, which may be gone, and give its resources back."""
        job = self._jobs[name]
        with suppress(Exception):
            self._ray.kill(job.actor, no_restart=True)
        self._remove_group(name)
        job.actor = job.began = job.watch = None

    def _remove_group(self, name: str) -> None:
        from ray.util import get_placement_group, remove_placement_group

        with suppress(ValueError):  # there is none
            remove_placement_group(get_placement_group(self._job(name)))

    def _places_for(self, need: Need) -> int:
        if need not in self._places:
            self._places[need] = self._fitting(self._options.bundle(need))
        return self._places[need]

    def _fitting(self, bundle: Mapping[str, float]) -> int:
        """Return how many runs fit into the cluster at once."""
        return sum(int(min(node.get(k, 0.0) / amount for k, amount in bundle.items())) for node in self._nodes())

    def _nodes(self) -> list[dict[str, float]]:
        return [n["Resources"] for n in self._ray.nodes() if n["Alive"]]


def _shown(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{v / _GIB:.1f} GiB" if k == "memory" else f"{v:g} {k}" for k, v in resources.items())


def _connect(address: str) -> Any:
    try:
        import ray
    except ImportError:
        raise MissingExtra("ray", "The engine `ray`") from None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        if address != "auto":
            _knock(address)
        ray.init(
            address=address, namespace=_NAMESPACE, log_to_driver=False, configure_logging=False, logging_level="ERROR"
        )
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        said = " ".join(str(error).split())[:300]
        raise EngineError(
            f"cannot join the Ray cluster `{address}`: {said}. Is it up (`ray status`), is `address` of `ray` in "
            "engines.yaml its head, and do RAY_AUTH_MODE and the token agree with the head's?"
        ) from error
    return ray


def _knock(address: str) -> None:
    """Fail soon where nobody listens: Ray itself tries for minutes.

    Raises:
        OSError: nobody does.
    """
    host, _, port = address.rpartition(":")
    if not (host and port.isdigit()):
        raise ValueError("the address has the form host:port")
    socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
