"""A fake engine for tests of schedulers: it starts no process, its clock is virtual, and a test steps its jobs.

engine = FakeEngine(slots=2, gpus=4, start_s=5.0)
engine.submit(spec, "one")     # PENDING
engine.advance(5.0)            # RUNNING
engine.ended["one"] = 0        # ENDED with exit code 0
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from paribus.contract import Device, Need, Resources
from paribus.engines.base import PATIENCE_S, JobState, Reach, Spec, Status
from paribus.errors import EngineError
from paribus.scheduler import setup_jobs

KILLED = -9


class FakeEngine:
    """Implements :class:`paribus.engines.base.Engine` in memory.

    Attributes:
        specs: the jobs, by name, in order of submission; without set-up jobs.
        ended: exit codes by name. Assign to it to end a job.
        statuses: what :meth:`poll` reports instead of a job's real status, by name.
        cancelled: names and graces, in order of the calls of :meth:`cancel`.
        deaf: whether jobs ignore SIGTERM, so that only a grace that is over ends them.
        refusal: raised by :meth:`submit`; ``None``: every job is taken.
        setups: set-up jobs, by name. They take no slot.
        setup_status: status of the set-up jobs that are not in ``statuses``; by default they succeed at once.
        gpus_per_run: GPUs of a run whose study declares none.
        reach: set it to look like an engine of other machines.
        trouble: set it to look like an engine that can't ask its cluster now.
        patience_s: set it to more than the lease to look like an engine whose jobs outlive the scheduler.
        now: the virtual clock in seconds, unless the engine has another clock.
    """

    name = "fake"
    patience_s = PATIENCE_S
    has_gangs = False

    def __init__(
        self,
        *,
        slots: int = 2,
        gpus: int = 0,
        gpus_per_run: float = 0.0,
        start_s: float = 0.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Make an engine.

        Args:
            slots: jobs at a time.
            gpus: GPUs of its machine, named ``GPU-0``, ``GPU-1``, ...
            gpus_per_run: GPUs of a run whose study declares none.
            start_s: seconds for which a job is pending.
            clock: replaces the virtual clock.
        """
        self.reach: Reach | None = None
        self.specs: dict[str, Spec] = {}
        self.ended: dict[str, int] = {}
        self.statuses: dict[str, Status] = {}
        self.cancelled: list[tuple[str, float]] = []
        self.deaf = False
        self.trouble = ""
        self.refusal: EngineError | None = None
        self.setups: dict[str, Spec] = {}
        self.setup_status = Status(state=JobState.ENDED, exit_code=0)
        self.gpus_per_run = gpus_per_run
        self.now = 0.0
        self._slots, self._gpus, self._start_s = slots, gpus, start_s
        self._clock = clock or (lambda: self.now)
        self._submitted: dict[str, float] = {}
        self._kill_at: dict[str, float] = {}

    # ---- for tests ---------------------------------------------------------------------------------

    def advance(self, seconds: float) -> None:
        """Move the virtual clock, and kill cancelled jobs whose grace is over."""
        self.now += seconds
        for name, when in self._kill_at.items():
            if when <= self._clock():
                self.ended.setdefault(name, KILLED)

    def status(self, name: str) -> Status:
        """Return the status of a job; override it to draw statuses."""
        if name in self.statuses:
            return self.statuses[name]
        if name in self.setups:
            return self.setup_status
        if name in self.ended:
            return Status(state=JobState.ENDED, exit_code=self.ended[name])
        if name not in self.specs:
            return Status(state=JobState.UNKNOWN)
        waits = self._clock() < self._submitted[name] + self._start_s
        return Status(state=JobState.PENDING if waits else JobState.RUNNING)

    # ---- the protocol ------------------------------------------------------------------------------

    def about(self, resources: Resources) -> str:
        """Return nothing: this needs no explanation."""
        return ""

    def need(self, resources: Resources) -> Need:
        """Return the GPUs that the study declares, or :attr:`gpus_per_run`."""
        return Need(gpus=self.gpus_per_run if resources.gpus is None else resources.gpus)

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs."""
        return tuple(Device(kind="gpu", name=f"GPU-{i}", amount=1.0) for i in range(self._gpus))

    def submit(self, spec: Spec, name: str) -> str:
        """Take the job, or raise :attr:`refusal`."""
        if spec.module == setup_jobs.__name__:
            self.setups.setdefault(name, spec)
            return name
        if self.refusal:
            raise self.refusal
        self.specs.setdefault(name, spec)
        self._submitted.setdefault(name, self._clock())
        return f"fake-{name}"

    def find(self, name: str) -> str | None:
        """Return the engine's name for the job."""
        return f"fake-{name}" if name in self.specs or name in self.setups else None

    def poll(self, names: Iterable[str]) -> Mapping[str, Status]:
        """Return the status of each job."""
        return {name: self.status(name) for name in names}

    def cancel(self, name: str, grace: float) -> None:
        """End the job at once, or after the grace if jobs are :attr:`deaf`."""
        self.cancelled.append((name, grace))
        if self.deaf and grace > 0:
            self._kill_at[name] = self._clock() + grace
        else:
            self.ended.setdefault(name, KILLED)

    def slots(self) -> int:
        """Return the number of slots."""
        return self._slots

    def capacity(self, need: Need | None = None) -> int:
        """Return the number of free slots."""
        return self._slots - len(set(self.specs) - set(self.ended))

    def close(self) -> None:
        """Kill all jobs."""
        for name in self.specs:
            self.ended.setdefault(name, KILLED)
