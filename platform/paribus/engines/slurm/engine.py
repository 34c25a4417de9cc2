"""The engine for Slurm clusters: each job is a batch script under a name that no other job of the user has.

Slurm forgets jobs, reuses their ids and leaves processes behind, so it is trusted with starting jobs only. Jobs survive
this process; the next one finds them by name.
"""

from __future__ import annotations

import hashlib
import socket
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from paribus.contract import Device, Need, Resources
from paribus.engines.base import EngineSettings, JobState, JobTable, Reach, Spec, Status
from paribus.engines.controller import RETRY_S, Away, Controller
from paribus.engines.launch import read_number
from paribus.engines.options import read_options
from paribus.engines.slurm.commands import Listed, Node, Refused, Slurm
from paribus.engines.slurm.script import Place, SlurmOptions, batch_script
from paribus.errors import EngineError, TooLarge
from paribus.text import plural

_NOTES_S = 1.0
_MARGIN_S = 5.0


@dataclass(kw_only=True)
class _Job:
    """A job that has not ended.

    Attributes:
        script: set until Slurm has taken the job.
        since: when Slurm took it; an older list of jobs doesn't contain it.
        crowded: whether Slurm has too many jobs to take it now.
        number: the signal that is still to be sent.
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
    """Runs jobs on a Slurm cluster. All nodes must see the home folder and the Python environment under the same paths.

    Raises:
        EngineError: Slurm's commands are missing.
        StudyFileError: the options are invalid.
    """

    name = "slurm"
    has_gangs = True

    def __init__(self, settings: EngineSettings) -> None:
        self._options = read_options(settings.options, self.name, SlurmOptions)
        self._file = settings.options
        self._slurm = Slurm()
        folder = settings.folder.resolve() / "slurm"
        self._place = Place(folder=folder, cwd=Path.cwd(), python=sys.executable)
        # two home folders may contain the same runs
        self._suffix = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
        self._slots = settings.slots or self._options.jobs
        self.patience_s = self._options.patience_s
        self._jobs: JobTable[_Job] = JobTable()
        self._listed: Mapping[str, Listed] | None = None
        self._next_look = self._next_notes = 0.0
        self._controller = Controller(retry_s=RETRY_S)
        self.reach: Reach | None = Reach(host=self._options.host or socket.gethostname(), port=self._options.port)

    # ---- the protocol ----------------------------------------------------------------------------

    @property
    def trouble(self) -> str:
        """Why Slurm doesn't answer now, in a sentence; empty if it does."""
        why = self._controller.trouble
        return f"Slurm does not answer ({why})." if why else ""

    def about(self, resources: Resources) -> str:
        """Return the partition, and what each job requests."""
        return f"Slurm: {self._options.about(self._options.need(resources))}"

    def need(self, resources: Resources) -> Need:
        """Return what a job requests from Slurm; GPUs are whole.

        Raises:
            TooLarge: no node that Slurm lists has that much, or too few have.
        """
        need, o = self._options.need(resources), self._options
        nodes = self._nodes() if resources.declared else ()
        there = sum(n.cpus >= need.a_node.cpus and n.gpus >= need.a_node.gpus for n in nodes)
        if nodes and there < need.nodes:
            raise TooLarge(resources.about(), *_lacking(nodes, need, o, there))
        return need

    def devices(self) -> tuple[Device, ...]:
        """Return an empty tuple: Slurm assigns devices to its jobs."""
        return ()

    def submit(self, spec: Spec, name: str) -> str:
        """Submit a job. While Slurm does not answer, the job is pending and each :meth:`poll` tries again.

        Raises:
            EngineError: Slurm refuses the job; the message is Slurm's own.
        """
        if self._listed is None:
            with suppress(Away):  # Slurm is asked again before the job is sent
                self._look()
        if not self._knows(name):
            self._place.folder.mkdir(parents=True, exist_ok=True)
            script = self._place.folder / f"{self._job(name)}.sh"
            script.write_text(batch_script(spec, self._job(name), self._options, self._place))
            self._jobs.live[name] = _Job(status=Status(state=JobState.PENDING), need=spec.need, script=script)
            with suppress(Away):
                self._send(name)
            if (status := self._jobs.status(name)).state is JobState.ENDED:
                raise EngineError(status.reason)
        return self._job(name)

    def find(self, name: str) -> str | None:
        """Return the job's name in Slurm if Slurm knows it or it has left its exit status, else ``None``.

        Raises:
            EngineError: Slurm does not answer, so the job's fate is unknown.
        """
        if name not in self._jobs:
            self._look_now()
        return self._job(name) if self._knows(name) else None

    def poll(self, names: Iterable[str]) -> Mapping[str, Status]:
        """Return the status of each named job, as Slurm last reported it."""
        self._pump()
        return {name: self._jobs.status(name) for name in names}

    def cancel(self, name: str, grace: float) -> None:
        """Remove a waiting job from the queue; send SIGTERM to a running one, and SIGKILL at a later :meth:`poll`.

        A positive grace is raised to that of the options, so that there is time for large checkpoints.
        """
        job = self._jobs.live.get(name)
        if job is None:
            return
        job.script = None  # not sent again
        grace = max(grace, self._options.grace + _MARGIN_S) if grace > 0 else 0.0
        job.kill_at, job.number = time.monotonic() + grace, "TERM" if grace else "KILL"
        with suppress(Away):
            self._signal(name)

    def slots(self) -> int:
        """Return how many jobs may be in the queue."""
        return self._slots

    def capacity(self, need: Need | None = None) -> int:
        """Return how many more jobs the queue may take; 0 while Slurm does not answer, or refuses such jobs."""
        self._pump()
        waiting = [job for job in self._jobs.live.values() if job.script is not None]
        shut = any(need is None or job.need == need or not job.crowded for job in waiting)
        return 0 if self.trouble or shut else max(0, self._slots - len(self._jobs.live))

    def close(self) -> None:
        """Cancel all jobs by force, as long as Slurm answers."""
        self._controller = Controller(retry_s=RETRY_S)  # asks once more
        with suppress(Away):
            for name, job in self._jobs.live.items():
                job.number = "KILL"
                self._signal(name)

    # ---- jobs ------------------------------------------------------------------------------------

    def _job(self, name: str) -> str:
        return f"{name}.{self._suffix}"

    def _knows(self, name: str) -> bool:
        if name not in self._jobs and (status := self._status(name)).state is not JobState.UNKNOWN:
            self._jobs.live[name] = _Job(status=status)
            self._take(name, status)
        return name in self._jobs

    def _take(self, name: str, status: Status) -> None:
        """Note the status that Slurm reports."""
        self._jobs.live[name].status = status
        if status.state is JobState.ENDED:
            self._jobs.end(name, status)

    def _nodes(self) -> tuple[Node, ...]:
        """Return the nodes on which jobs may run; empty if Slurm doesn't list them now: it refuses what no node has."""
        nodes: list[Node] = []
        with suppress(Away):
            ask = partial(self._slurm.nodes, self._options.partition, self._options.gpu_type)
            self._controller.ask("sinfo", ask, lambda answer: nodes.extend(answer.result()), probe=True)
        return tuple(nodes)

    def _send(self, name: str) -> None:
        """Submit a job's script; a refusal ends the job.

        Raises:
            Away: whether Slurm took it is unknown.
        """
        job = self._jobs.live[name]
        assert job.script is not None
        job.retry_at = time.monotonic() + RETRY_S  # an unanswered submission may arrive late
        self._controller.ask("sbatch", partial(self._slurm.submit, job.script), lambda answer: self._sent(name, answer))

    def _sent(self, name: str, answer: Future[None]) -> None:
        job = self._jobs.live.get(name)
        if job is None or job.script is None:  # found in the list, or cancelled meanwhile
            return
        try:
            answer.result()
        except Refused as error:
            if error.crowded and any(j.script is None for j in self._jobs.live.values()):
                self._put_off(job, str(error), crowded=True)
                return
            where = f"`slurm` in {self._file}" if self._file else "the options of the engine (docs/howto/slurm.md)"
            refused = f"Slurm refuses a job of this study: {error}. Change {where}."
            self._jobs.end(name, Status(state=JobState.ENDED, reason=refused))
            return
        job.script, job.since = None, time.monotonic()
        job.status = Status(state=JobState.PENDING)

    def _put_off(self, job: _Job, reason: str, *, crowded: bool = False) -> None:
        job.retry_at, job.crowded = time.monotonic() + RETRY_S, crowded
        job.status = Status(state=JobState.PENDING, reason=reason)

    def _signal(self, name: str) -> None:
        """Send a job the signal that is due.

        Raises:
            Away: Slurm does not answer.
        """
        job, known = self._jobs.live[name], self._job(name)
        # the queue first: if the job starts in between, the signal still reaches it
        self._controller.ask("scancel", partial(self._slurm.cancel_waiting, known))
        # only once: a second SIGTERM leaves no time for a checkpoint
        number, job.number = job.number, ""
        self._controller.ask("scancel", partial(self._slurm.signal, known, number))
        if number == "KILL":
            self._controller.ask("scancel", partial(self._slurm.cancel, known))
        self._next_look = 0.0

    def _pump(self) -> None:
        """Process what has happened since the last call, send what is still unsent, kill jobs whose grace is over."""
        self._controller.turn()
        if self._jobs.live or self.trouble:
            with suppress(Away):
                self._turn()
        if self.trouble and time.monotonic() >= self._next_notes:
            self._next_notes = time.monotonic() + _NOTES_S
            self._read_notes()

    def _turn(self) -> None:
        now = time.monotonic()
        due = {name for name, job in self._jobs.live.items() if job.script is not None and now >= job.retry_at}
        if due or now >= self._next_look or self.trouble:
            self._next_look = now + self._options.poll
            self._look()
        for name, job in [*self._jobs.live.items()]:
            if job.script is not None and name in due:
                self._send(name)
            elif job.kill_at is not None and now >= job.kill_at:
                job.kill_at, job.number = now + RETRY_S, "KILL"
            if job.number:
                self._signal(name)

    def _look_now(self) -> None:
        try:
            self._look()
        except Away as error:
            raise EngineError(f"Slurm does not answer ({error}). Type the same command again later.") from error

    def _look(self) -> None:
        """Ask Slurm for its jobs.

        Raises:
            Away: Slurm does not answer.
        """
        began = time.monotonic()
        self._controller.ask("squeue", self._slurm.jobs, lambda answer: self._note(answer.result(), began), probe=True)

    def _note(self, listed: Mapping[str, Listed], began: float) -> None:
        """Note which jobs Slurm has listed, and how it went with them."""
        self._listed = listed
        for name, job in [*self._jobs.live.items()]:
            if began <= job.since:
                continue
            status = self._status(name)
            if status.state is not JobState.UNKNOWN:
                job.script = None  # an unanswered sbatch may have succeeded
                self._take(name, status)
            elif job.kill_at is not None:
                self._take(name, Status(state=JobState.ENDED))
            elif job.script is None:
                self._take(name, status)

    def _read_notes(self) -> None:
        """Note which jobs have ended, without Slurm: by the exit statuses that they leave."""
        for name in [*self._jobs.live]:
            code = self._exit_code(name)
            if code is not None:
                self._take(name, Status(state=JobState.ENDED, exit_code=code))

    def _status(self, name: str) -> Status:
        job = self._job(name)
        if self._listed is not None and job in self._listed:
            return self._listed[job].status
        code = self._exit_code(name)
        return Status(state=JobState.UNKNOWN) if code is None else Status(state=JobState.ENDED, exit_code=code)

    def _exit_code(self, name: str) -> int | None:
        return read_number(self._place.folder / f"{self._job(name)}.exit")


def _lacking(nodes: Sequence[Node], need: Need, options: SlurmOptions, enough: int) -> tuple[str, str]:
    """Return what the nodes lack that a run needs, and what the user can do; ``enough`` of them have its part."""
    where = f"of the partition {options.partition}" if options.partition else "of the cluster"
    if need.gpus and not any(n.gpus for n in nodes):
        kind = f" of the type {options.gpu_type}" if options.gpu_type else ""
        chosen = "`partition`, or `gpu_type`, " if options.gpu_type else "`partition` "
        remedy = (
            f"Set {chosen}of `slurm` in engines.yaml to one that `sinfo -o '%P %G'` lists with GPUs, or `gpus: 0` in "
            "the study's `resources`."
        )
        return f"no node {where} has a GPU{kind}", remedy
    if enough:
        there = f"{enough} of the {len(nodes)} nodes {where} {'has' if enough == 1 else 'have'} the part of one"
        return there, "Change `resources`, or `partition` in the engine's options."
    most = sorted({f"{plural(n.gpus, 'GPU') if n.gpus else 'no GPUs'} and {plural(n.cpus, 'CPU core')}" for n in nodes})
    there = f"no node {where} has that: there are nodes with {'; '.join(most[:5])}"
    return there, "Change `resources`, or `partition` in the engine's options."
