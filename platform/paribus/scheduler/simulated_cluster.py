"""An engine on paper: nodes with devices, a virtual clock, jobs of stated lengths, faults that are drawn."""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from random import Random

from paribus.contract import Device, Need, Resources
from paribus.engines.base import PATIENCE_S, JobState, Reach, Spec, Status, gangs
from paribus.errors import ParibusError, TooLarge
from paribus.run_folder.folder import RunFolder, read_json
from paribus.scheduler import setup_jobs
from paribus.text import plural

MOST_DEVICES = 65_536
"""Most devices of a cluster: more is a typing error."""

_SHAPE = re.compile(r"([1-9]\d{0,5})x([1-9]\d{0,5})x([A-Za-z][\w.+-]{0,31})")
_TINY = 1e-6


@dataclass(frozen=True, kw_only=True)
class ClusterShape:
    """What a cluster has.

    Attributes:
        nodes: its machines.
        devices: GPUs of each, or CPU cores.
        kind: name of the GPU; ``CPU``: the devices are CPU cores.
    """

    nodes: int
    devices: int
    kind: str

    @classmethod
    def read(cls, text: str) -> ClusterShape:
        """Return the cluster that a user has written.

        Raises:
            ParibusError: it is not ``NODESxDEVICESxKIND``, or has more than :data:`MOST_DEVICES` devices.
        """
        found = _SHAPE.fullmatch(text.strip())
        if found is None:
            raise ParibusError(
                f"`{text}` is no cluster: write NODESxGPUSxKIND, for example 64x8xH100, or NODESxCORESxCPU."
            )
        made = cls(nodes=int(found[1]), devices=int(found[2]), kind=found[3])
        if made.total > MOST_DEVICES:
            raise ParibusError(
                f"the cluster {text} has {made.total:,} devices; at most {MOST_DEVICES:,} are simulated."
            )
        return made

    @property
    def total(self) -> int:
        """All devices."""
        return self.nodes * self.devices

    @property
    def has_gpus(self) -> bool:
        """Whether the devices are GPUs."""
        return self.kind.upper() != "CPU"

    def __str__(self) -> str:
        what = f"{self.kind} GPU" if self.has_gpus else "CPU core"
        return f"{_count(self.nodes, 'node')} with {_count(self.devices, what)}{' each' if self.nodes > 1 else ''}"


@dataclass(frozen=True, kw_only=True)
class Rates:
    """How often attempts end before their runs; times between two such ends are exponential.

    Attributes:
        failure_h: device-hours between two failures, which lose what came after the last checkpoint; ``inf``: none.
        preemption_h: hours of an attempt between two preemptions, before which it writes a checkpoint; ``inf``: none.
        seed: of the draws.
    """

    failure_h: float = inf
    preemption_h: float = inf
    seed: int = 0


@dataclass(kw_only=True)
class Work:
    """What is left of a run.

    Attributes:
        seconds: of the whole run, if nothing interrupts it.
        checkpoint_s: seconds of training between two checkpoints.
        done_s: seconds of training that a checkpoint holds.
    """

    seconds: float
    checkpoint_s: float
    done_s: float = 0.0


@dataclass(kw_only=True)
class SimulatedJob:
    """An attempt on a node, or on several.

    Attributes:
        run: number of the run in the store.
        token: its fence token.
        work: what is left of the run.
        nodes: where it runs.
        amount: devices that it holds, an equal part on each.
        placed: when it got them.
        begins: when its supervisor reports.
        ends: when it ends.
        how: ``finish``, ``failure``, ``preemption`` or ``stop`` (the scheduler asked).
    """

    run: int
    token: int
    work: Work
    nodes: tuple[int, ...]
    amount: float
    placed: float
    begins: float
    ends: float
    how: str
    status: Status = field(default_factory=lambda: Status(state=JobState.PENDING))


class SimulatedCluster:
    """Implements :class:`~paribus.engines.base.Engine`; a job gets all its devices when it is submitted.

    Args:
        shape: what it has.
        works: the runs by fingerprint; shared by all clusters.
        rates: how often attempts end early.
        start_s: seconds from a claim to the first report of an attempt.
        clock: the virtual time in seconds.
        dice: draws the faults.

    Attributes:
        events: heap of times, numbers and names of jobs that begin or end then.
        jobs: jobs that have not ended, by name.
        held_s: device-seconds that ended jobs held.
        lost_s: device-seconds of them that trained what a later attempt trains again.
        failures, preemptions: how many jobs ended so.
    """

    name = "simulated"
    reach: Reach | None = None
    patience_s = PATIENCE_S
    has_gangs = True
    trouble = ""

    def __init__(
        self,
        shape: ClusterShape,
        works: Mapping[str, Work],
        *,
        rates: Rates,
        start_s: float,
        clock: Callable[[], float],
        dice: Random,
    ) -> None:
        self.shape = shape
        self.events: list[tuple[float, int, str]] = []
        self.jobs: dict[str, SimulatedJob] = {}
        self.held_s = self.lost_s = 0.0
        self.failures = self.preemptions = 0
        self._works, self._rates, self._start_s, self._clock, self._dice = works, rates, start_s, clock, dice
        self._free = [float(shape.devices)] * shape.nodes
        self._ended: dict[str, Status] = {}
        self._number = 0

    # ---- the protocol ----------------------------------------------------------------------------

    def about(self, resources: Resources) -> str:
        """Return nothing: a simulated cluster has nothing to say."""
        return ""

    def need(self, resources: Resources) -> Need:
        """Return what a run holds: GPUs, or cores.

        Raises:
            TooLarge: no node has so many, or there are fewer nodes.
        """
        wanted = resources.gpus if self.shape.has_gpus else float(resources.cpus or 1)
        if not self.shape.has_gpus and resources.gpus:
            raise TooLarge(resources.about(), f"{self.shape} have no GPU", "Name a cluster with GPUs.")
        nodes = resources.nodes
        amount = float(nodes) if wanted is None else wanted
        if amount / nodes > self.shape.devices:
            raise TooLarge(resources.about(), str(self.shape), "Name larger nodes, or let a run have several: `nodes`.")
        if nodes > self.shape.nodes:
            raise TooLarge(resources.about(), str(self.shape), "Name more nodes.")
        if self.shape.has_gpus and not amount:
            raise TooLarge(resources.about(), str(self.shape), "Runs without a GPU need a cluster of kind CPU.")
        return Need(gpus=amount, nodes=nodes) if self.shape.has_gpus else Need(cpus=amount, nodes=nodes)

    def devices(self) -> tuple[Device, ...]:
        """Return nothing: the cluster places jobs itself."""
        return ()

    def submit(self, spec: Spec, name: str) -> str:
        """Place a job, and draw how it will end. A set-up job ends at once."""
        if spec.module == setup_jobs.__name__:
            self._ended[name] = Status(state=JobState.ENDED, exit_code=0)
            return name
        assert spec.need is not None
        amount, nodes = spec.need.gpus or spec.need.cpus, self._place(spec.need)
        job = read_json(RunFolder(Path(spec.arguments[0])).job)
        work, now = self._works[job["run"]], self._clock()
        begins = now + self._start_s
        left = work.seconds - work.done_s
        ends = {
            "finish": left,
            "failure": self._draw(self._rates.failure_h / amount),
            "preemption": self._draw(self._rates.preemption_h),
        }
        how = min(ends, key=lambda each: ends[each])
        self.jobs[name] = SimulatedJob(
            run=int(spec.arguments[2]),
            token=job["token"],
            work=work,
            nodes=nodes,
            amount=amount,
            placed=now,
            begins=begins,
            ends=begins + ends[how],
            how=how,
        )
        self._expect(begins, name)
        return name

    def find(self, name: str) -> str | None:
        """Return the name if it was submitted."""
        return name if name in self.jobs or name in self._ended else None

    def poll(self, names: Iterable[str]) -> Mapping[str, Status]:
        """Return the status of each job."""
        return {name: self._status(name) for name in names}

    def cancel(self, name: str, grace: float) -> None:
        """Let a job write a checkpoint and end."""
        job = self.jobs.get(name)
        if job is not None and job.how != "stop":
            job.how, job.ends = "stop", max(self._clock(), job.begins)
            self._expect(job.ends, name)

    def slots(self) -> int:
        """Return the number of devices."""
        return self.shape.total

    def capacity(self, need: Need | None = None) -> int:
        """Return how many more jobs of this size fit on the nodes now."""
        need = need or Need(gpus=1.0)
        amount = need.a_node.gpus or need.a_node.cpus
        return gangs([int((free + _TINY) / amount) for free in self._free], need.nodes)

    def close(self) -> None:
        """Do nothing: no process was started."""

    # ---- for the simulation ------------------------------------------------------------------------

    def begin(self, name: str) -> None:
        """Note that a job runs, and expect its end."""
        job = self.jobs[name]
        job.status = Status(state=JobState.RUNNING)
        self._expect(job.ends, name)

    def end(self, name: str) -> SimulatedJob:
        """Free the devices of a job, and keep what its last checkpoint holds; return the job."""
        job, now = self.jobs.pop(name), self._clock()
        failed = job.how == "failure"
        exit_code = -9 if failed else 0
        self._ended[name] = Status(state=JobState.ENDED, exit_code=exit_code, interrupted=job.how == "preemption")
        for node in job.nodes:
            self._free[node] += job.amount / len(job.nodes)
        self.held_s += (now - job.placed) * job.amount
        reached = min(job.work.seconds, job.work.done_s + max(0.0, now - job.begins))
        kept = max(job.work.done_s, reached // job.work.checkpoint_s * job.work.checkpoint_s) if failed else reached
        self.lost_s += (reached - kept) * job.amount
        job.work.done_s = kept
        self.failures += failed
        self.preemptions += job.how == "preemption"
        return job

    def _place(self, need: Need) -> tuple[int, ...]:
        """Take devices of the first node that has enough, or of those that have most, and return which nodes."""
        amount = need.a_node.gpus or need.a_node.cpus
        order = sorted(range(len(self._free)), key=lambda node: -self._free[node] if need.nodes > 1 else 0.0)
        chosen = [node for node in order if self._free[node] >= amount - _TINY][: need.nodes]
        for node in chosen:
            self._free[node] -= amount
        return tuple(chosen)

    def _status(self, name: str) -> Status:
        if name in self.jobs:
            return self.jobs[name].status
        return self._ended.get(name, Status(state=JobState.UNKNOWN))

    def _draw(self, hours: float) -> float:
        return inf if hours == inf else self._dice.expovariate(1.0 / (3600 * hours))

    def _expect(self, when: float, name: str) -> None:
        self._number += 1
        heapq.heappush(self.events, (when, self._number, name))


def _count(number: int, what: str) -> str:
    return plural(number, what)
