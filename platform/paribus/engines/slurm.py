"""The engine of Slurm clusters: each job a batch script, known by a name that no other job of the user has.

Slurm forgets jobs, gives their ids away again and leaves processes behind: it only starts what it is asked to. Jobs
survive this process; the next one finds them by name.
"""

from __future__ import annotations

import hashlib
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paribus.engines.base import Device, EngineSettings, JobState, Need, Reach, Spec, Status
from paribus.engines.options import read_options
from paribus.engines.slurm_commands import Away, Listed, Refused, Slurm
from paribus.engines.slurm_script import Place, SlurmOptions, batch_script
from paribus.errors import EngineError, TooLarge
from paribus.study.resources import Resources

_RETRY_S = 10.0
_MARGIN_S = 5.0


@dataclass(kw_only=True)
class _Job:
    """A job that has not ended.

    ``script`` until it is taken; ``since`` when that was, so that an older list says nothing of it; ``crowded`` while
    there are too many to take it; ``number`` the signal that is still to be sent.
    """

    status: Status
    need: Need | None = None
    script: Path | None = None
    crowded: bool = False
    number: str = ""
    since: float = 0.0
    retry_at: float = 0.0
    kill_at: float | None = None


class SlurmEngine:
    """Runs jobs on a Slurm cluster whose nodes see the home folder and the Python environment under the same paths.

    Raises:
        EngineError: Slurm's commands are missing.
        StudyFileError: the options are wrong.
    """

    name = "slurm"

    def __init__(self, settings: EngineSettings) -> None:
        self._options = read_options(settings.options, self.name, SlurmOptions)
        self._file = settings.options
        self._slurm = Slurm()
        folder = settings.folder.resolve() / "slurm"
        self._place = Place(folder=folder, cwd=Path.cwd(), python=sys.executable)
        # two home folders may hold the same runs
        self._suffix = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
        self._slots = settings.slots or self._options.jobs
        self._jobs: dict[str, _Job] = {}
        self._ended: dict[str, Status] = {}
        self._listed: Mapping[str, Listed] | None = None
        self._next_look = self._away_until = 0.0
        self._away = ""
        self.reach: Reach | None = Reach(host=self._options.host or socket.gethostname(), port=self._options.port)
        self.about = f"Slurm: {self._options.about()}"

    # ---- the protocol ----------------------------------------------------------------------------

    def need(self, resources: Resources) -> Need:
        """Return what a job asks Slurm for; GPUs are whole.

        Raises:
            TooLarge: no node has so much, as Slurm lists them.
        """
        need, o = self._options.need(resources), self._options
        nodes = self._slurm.nodes(o.partition, o.gpu_type) if resources.declared else ()
        if nodes and not any(n.cpus >= need.cpus and n.gpus >= need.gpus for n in nodes):
            most = sorted({f"{n.gpus} GPUs and {n.cpus} CPU cores" for n in nodes})
            where = f"of the partition {o.partition}" if o.partition else "of the cluster"
            there = f"no node {where} has that: there are nodes with {'; '.join(most[:5])}"
            raise TooLarge(resources.about(), there, "Change `resources`, or `partition` in the engine's options.")
        return need

    def devices(self) -> tuple[Device, ...]:
        """Return none: Slurm gives them to its jobs."""
        return ()

    def submit(self, spec: Spec, name: str) -> str:
        """Submit a job. While Slurm does not answer, the job is pending, and each :meth:`poll` tries again.

        Raises:
            EngineError: Slurm refuses the job; the message is Slurm's own.
        """
        if self._listed is None:
            self._patiently(self._look)  # without an answer it is asked again before the job is sent
        if not self._knows(name):
            self._place.folder.mkdir(parents=True, exist_ok=True)
            script = self._place.folder / f"{self._job(name)}.sh"
            script.write_text(batch_script(spec, self._job(name), self._options, self._place))
            waits = Status(state=JobState.PENDING, reason=self._away)
            self._jobs[name] = _Job(status=waits, need=spec.need, script=script)
            self._patiently(lambda: self._send(name))
        return self._job(name)

    def find(self, name: str) -> str | None:
        """Return the job's name in Slurm, if Slurm knows it or it has left its exit status.

        Raises:
            EngineError: Slurm does not answer, so that nobody can tell.
        """
        if self._is_new(name):
            self._look_now()
        return self._job(name) if self._knows(name) else None

    def poll(self, names: Iterable[str]) -> Mapping[str, Status]:
        """Return the status of each named job, as Slurm told it last."""
        self._pump()
        return {name: self._known(name) for name in names}

    def cancel(self, name: str, grace: float) -> None:
        """Take a waiting job out of the queue; send SIGTERM to a running one, and SIGKILL at a later :meth:`poll`.

        A grace above zero is at least that of the options, so that large checkpoints can be written.
        """
        job = self._jobs.get(name)
        if job is None:
            return
        job.script = None  # not sent again
        grace = max(grace, self._options.grace + _MARGIN_S) if grace > 0 else 0.0
        job.kill_at, job.number = time.monotonic() + grace, "TERM" if grace else "KILL"
        self._patiently(lambda: self._signal(name))

    def slots(self) -> int:
        """Return how many jobs may be in the queue."""
        return self._slots

    def capacity(self, need: Need | None = None) -> int:
        """Return how many more jobs the queue may take; none while Slurm does not answer, or takes no such job."""
        self._pump()
        away = time.monotonic() < self._away_until
        waiting = [job for job in self._jobs.values() if job.script is not None]
        shut = any(need is None or job.need == need or not job.crowded for job in waiting)
        return 0 if away or shut else max(0, self._slots - len(self._jobs))

    def close(self) -> None:
        """Cancel all jobs by force, as long as Slurm answers."""
        with suppress(Away):
            for name, job in self._jobs.items():
                job.number = "KILL"
                self._signal(name)

    # ---- jobs ------------------------------------------------------------------------------------

    def _job(self, name: str) -> str:
        return f"{name}.{self._suffix}"

    def _knows(self, name: str) -> bool:
        if self._is_new(name) and (status := self._status(name)).state is not JobState.UNKNOWN:
            self._jobs[name] = _Job(status=status)
            self._take(name, status)
        return not self._is_new(name)

    def _is_new(self, name: str) -> bool:
        return name not in self._jobs and name not in self._ended

    def _known(self, name: str) -> Status:
        job = self._jobs.get(name)
        return job.status if job else self._ended.get(name, Status(state=JobState.UNKNOWN))

    def _take(self, name: str, status: Status) -> None:
        """Note what Slurm says; keep no more of an ended job, of which a study may have a hundred thousand."""
        self._jobs[name].status = status
        if status.state is JobState.ENDED:
            del self._jobs[name]
            self._ended[name] = status

    def _patiently(self, ask: Callable[[], None]) -> None:
        """Ask Slurm, unless it has just left a question without an answer: each may take as long as a command may."""
        if time.monotonic() < self._away_until:
            return
        try:
            ask()
        except Away as error:
            self._away_until = time.monotonic() + _RETRY_S
            self._away = f"Slurm does not answer: {error}"
            for job in self._jobs.values():
                if job.script is not None:
                    self._put_off(job, self._away)

    def _send(self, name: str) -> None:
        """Submit a job's script.

        Raises:
            Away: nobody can tell whether it was taken.
            EngineError: it was refused.
        """
        job = self._jobs[name]
        assert job.script is not None
        try:
            self._slurm.submit(job.script)
        except Refused as error:
            if error.crowded and any(j.script is None for j in self._jobs.values()):
                self._put_off(job, str(error), crowded=True)
                return
            del self._jobs[name]
            where = f"`slurm` in {self._file}" if self._file else "the options of the engine (docs/howto/slurm.md)"
            raise EngineError(f"Slurm refuses a job of this study: {error}. Change {where}.") from error
        job.script, job.since = None, time.monotonic()
        job.status = Status(state=JobState.PENDING)

    def _send_again(self, name: str) -> None:
        """Submit the script of a job that Slurm does not list."""
        try:
            self._send(name)
        except EngineError as error:  # only this job's: the next attempt is refused when it is submitted
            self._ended[name] = Status(state=JobState.ENDED, reason=str(error))

    def _put_off(self, job: _Job, reason: str, *, crowded: bool = False) -> None:
        job.retry_at, job.crowded = time.monotonic() + _RETRY_S, crowded
        job.status = Status(state=JobState.PENDING, reason=reason)

    def _signal(self, name: str) -> None:
        """Send the signal that is due for a job.

        Raises:
            Away: Slurm does not answer.
        """
        job = self._jobs[name]
        # first the queue: a job that starts in between is then met by the signal
        self._slurm.cancel_waiting(self._job(name))
        # never twice: a second SIGTERM leaves no time for a checkpoint
        number, job.number = job.number, ""
        self._slurm.signal(self._job(name), number)
        if number == "KILL":
            self._slurm.cancel(self._job(name))
        self._next_look = 0.0

    def _pump(self) -> None:
        """Take in what has happened since the last call, send what could not be sent, end what had its grace."""
        if self._jobs:
            self._patiently(self._turn)

    def _turn(self) -> None:
        now = time.monotonic()
        due = {name for name, job in self._jobs.items() if job.script is not None and now >= job.retry_at}
        if due or now >= self._next_look:
            self._next_look = now + self._options.poll
            self._look()
        for name, job in [*self._jobs.items()]:
            if job.script is not None and name in due:
                self._send_again(name)
            elif job.kill_at is not None and now >= job.kill_at:
                job.kill_at, job.number = now + _RETRY_S, "KILL"
            if job.number:
                self._signal(name)

    def _look_now(self) -> None:
        try:
            self._look()
        except Away as error:
            raise EngineError(f"Slurm does not answer: {error}. Type the same command again later.") from error

    def _look(self) -> None:
        began = time.monotonic()
        self._listed = self._slurm.jobs()
        for name, job in [*self._jobs.items()]:
            if began <= job.since:
                continue
            status = self._status(name)
            if status.state is not JobState.UNKNOWN:
                job.script = None  # an sbatch without an answer may have been heard
                self._take(name, status)
            elif job.kill_at is not None:
                self._take(name, Status(state=JobState.ENDED))
            elif job.script is None:
                self._take(name, status)

    def _status(self, name: str) -> Status:
        job = self._job(name)
        if self._listed is not None and job in self._listed:
            return self._listed[job].status
        with suppress(OSError, ValueError):
            code = int((self._place.folder / f"{job}.exit").read_text())
            return Status(state=JobState.ENDED, exit_code=code)
        return Status(state=JobState.UNKNOWN)
