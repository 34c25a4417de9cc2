"""The engine of one machine: a number of slots, each run in processes of its own, forked from a warm server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from paribus.engines.base import Device, EngineSettings, JobState, Need, Spec, Status
from paribus.engines.cgroup import Groups
from paribus.engines.gpus import Gpu, visible_gpus
from paribus.engines.process import KIN, end_kin, signal_group
from paribus.engines.warm import Channel
from paribus.errors import TooLarge
from paribus.study.resources import LEAST, Resources

_CLOSE_S = 5.0


@dataclass(kw_only=True)
class _Job:
    spec: Spec
    status: Status
    process: subprocess.Popen[bytes] | None = None
    sent: bool = False
    exit_code: int | None = None
    kill_at: float | None = None


class LocalEngine:
    """Runs jobs on this machine.

    A run that declares nothing holds a GPU where there are some, else a CPU core; where more slots than that are asked
    for, they share. A job on cores uses as many threads unless ``OMP_NUM_THREADS`` says otherwise. No job survives the
    process that made the engine, not even if that is killed; nor does anything that a job has started, in whatever
    session it is. Where this user may make control groups, each job has one of its own.
    """

    name = "local"
    reach = None
    about = ""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._gpus = visible_gpus()
        self._cores = _cores()
        self._slots = settings.slots or len(self._gpus) or self._cores
        self._jobs: dict[str, _Job] = {}
        self._ended: dict[str, int] = {}
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._threads: int | None = None
        self._cold = not hasattr(os, "fork")
        self._mark = str(settings.folder.resolve())
        self._groups = Groups(settings.folder)
        self._begun = False

    # ---- the protocol ----------------------------------------------------------------------------

    def need(self, resources: Resources) -> Need:
        """Return what a run holds.

        Raises:
            TooLarge: this machine has less.
        """
        gpus, memory = resources.gpus, resources.gpu_memory_gib or 0.0
        largest = max((gpu.memory for gpu in self._gpus), default=0.0)
        if memory:  # where nobody knows a GPU's memory, a run gets it whole
            gpus = min(memory / largest, 1.0) if largest else 1.0
        elif gpus is None:
            gpus = 1 / -(-self._slots // len(self._gpus)) if self._gpus else 0.0
        share = min(1.0, self._cores / (self._settings.slots or self._cores))
        cpus = float(resources.cpus or (0.0 if gpus else share))
        if gpus > len(self._gpus) or (largest and memory > largest) or cpus > self._cores:
            there = f"this machine has {_shown(self._gpus)} and {self._cores} CPU cores"
            raise TooLarge(resources.about(), there, "Change `resources`, or choose another engine with --engine.")
        threads = resources.cpus or (None if gpus else 1)
        return Need(gpus=gpus, gpu_memory=memory, cpus=cpus, threads=threads)

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs, with what is used of them now, and the cores."""
        used = {gpu.name: gpu.used for gpu in (visible_gpus() if self._gpus else ())}
        gpus = [
            Device(kind="gpu", name=g.name, amount=1.0, memory=g.memory, used=used.get(g.name, g.used))
            for g in self._gpus
        ]
        return (*gpus, Device(kind="cpu", name="cpu", amount=float(self._cores)))

    def submit(self, spec: Spec, name: str) -> str:
        """Start a job; it is pending until the warm server is ready."""
        self._begin()
        if self.find(name) is None:
            self._jobs[name] = _Job(spec=spec, status=Status(state=JobState.PENDING))
            self._start_pending()
        return name

    def find(self, name: str) -> str | None:
        """Return the name, if it was submitted to this engine; jobs do not survive it."""
        return name if name in self._jobs or name in self._ended else None

    def poll(self, names: Iterable[str]) -> Mapping[str, Status]:
        """Return the status of each named job."""
        self._begin()
        self._pump()
        return {name: self._status(name) for name in names}

    def cancel(self, name: str, grace: float) -> None:
        """Send SIGTERM, and SIGKILL when the grace is over (at the next :meth:`poll`)."""
        self._pump()
        job = self._jobs.get(name)
        if job is None:
            return
        if not job.sent and job.process is None:
            self._end(name, -signal.SIGTERM)
            return
        self._signal(name, signal.SIGTERM if grace > 0 else signal.SIGKILL)
        job.kill_at = time.monotonic() + grace

    def slots(self) -> int:
        """Return the number of jobs at a time where studies declare nothing."""
        return self._slots

    def capacity(self, need: Need | None = None) -> int:
        """Return the number of free slots; where nobody asked for slots, devices are what limits jobs."""
        self._pump()
        most = self._settings.slots or self._cores + round(len(self._gpus) / LEAST)
        return max(0, most - len(self._jobs))

    def close(self) -> None:
        """Kill all jobs and the warm server."""
        for name in self._jobs:
            self._signal(name, signal.SIGKILL)
        for job in self._jobs.values():
            if job.process is not None:
                job.process.wait(_CLOSE_S)
        if self._server is not None:
            self._stop_server()
        if self._begun:
            end_kin(self._mark)
            self._groups.close()

    # ---- jobs ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """End what an engine in this folder has left that was killed together with its server.

        Not before the first job or look at one: who only asks what there is may do so beside an engine that works.
        """
        if not self._begun:
            self._begun = True
            end_kin(self._mark)
            self._groups.begin()

    def _status(self, name: str) -> Status:
        if name in self._ended:
            return Status(state=JobState.ENDED, exit_code=self._ended[name])
        return self._jobs[name].status if name in self._jobs else Status(state=JobState.UNKNOWN)

    def _end(self, name: str, exit_code: int) -> None:
        """Keep no more of a job than what may be asked for: a study may have a hundred thousand."""
        del self._jobs[name]
        self._ended[name] = exit_code

    def _start_pending(self) -> None:
        for name, job in self._jobs.items():
            if job.sent or job.process is not None:
                continue
            self._threads = self._threads if self._channel is not None else _threads(job.spec)
            group = self._groups.make(name)
            if self._cold or (self._channel is not None and _threads(job.spec) != self._threads):
                self._start_cold(job, group)  # what the server has imported counts its threads once
                continue
            start = {"do": "start", "name": name, "module": job.spec.module, "arguments": job.spec.arguments}
            job.sent = self._send({**start, "environment": self._own(job.spec), "group": group})

    def _start_cold(self, job: _Job, group: str) -> None:
        command = [sys.executable, "-m", "paribus.engines.launch", str(os.getpid()), group, job.spec.module]
        job.process = self._popen([*command, *job.spec.arguments], self._own(job.spec), _threads(job.spec))
        job.status = Status(state=JobState.RUNNING)

    def _own(self, spec: Spec) -> dict[str, str]:
        """Return what of a job's environment is its own: the GPUs that it holds; without any it sees none."""
        return {"CUDA_VISIBLE_DEVICES": ",".join(spec.gpus)} if self._gpus else {}

    def _popen(
        self, command: list[str], environment: Mapping[str, str], threads: int | None, *fds: int
    ) -> subprocess.Popen[bytes]:
        default = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
        self._settings.folder.mkdir(parents=True, exist_ok=True)
        with (self._settings.folder / "engine.log").open("ab") as log:
            return subprocess.Popen(
                command,
                env={**default, **os.environ, **environment, KIN: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal reaches only the scheduler
                pass_fds=fds,
            )

    def _signal(self, name: str, number: int) -> None:
        job = self._jobs[name]
        if number == signal.SIGKILL:
            self._groups.kill(name)
        if job.exit_code is not None:
            return
        if job.process is not None:
            signal_group(job.process.pid, number)
        elif job.sent:
            self._send({"do": "signal", "name": name, "signal": int(number)})

    # ---- the warm server -------------------------------------------------------------------------

    def _send(self, message: dict[str, Any]) -> bool:
        if self._channel is None:
            self._channel = self._start_server()
        try:
            self._channel.send(message)
        except OSError:
            self._lose_server()
            return False
        return True

    def _start_server(self) -> Channel:
        ours, theirs = socket.socketpair()
        runner, descriptor, parent = self._settings.runner, theirs.fileno(), os.getpid()
        command = [
            sys.executable,
            "-m",
            "paribus.engines.warm",
            runner,
            str(descriptor),
            str(parent),
            self._groups.root,
        ]
        self._server = self._popen(command, {}, self._threads, descriptor)
        theirs.close()
        return Channel(ours)

    def _pump(self) -> None:
        """Take in what has happened since the last call."""
        try:
            while self._channel is not None and (messages := self._channel.receive(0)):
                for message in messages:
                    self._take(message)
        except EOFError:
            self._lose_server()
        for name, job in list(self._jobs.items()):
            if job.process is not None:
                job.exit_code = job.process.poll()
            if job.exit_code is not None:
                if self._groups.remove(name):
                    self._end(name, job.exit_code)
            elif job.kill_at is not None and time.monotonic() > job.kill_at:
                self._signal(name, signal.SIGKILL)
        self._start_pending()

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("warm") is False:
            # the runner cannot be imported ahead of time: each job then starts cold, and says itself what is wrong
            self._cold = True
            for job in self._jobs.values():
                job.sent = False
            self._stop_server()
        elif "exit" in message:
            self._jobs[message["name"]].exit_code = message["exit"]
        elif "pid" in message:
            self._jobs[message["name"]].status = Status(state=JobState.RUNNING)

    def _lose_server(self) -> None:
        """The server was killed, and the kernel has killed its jobs with it; the next job starts a new one."""
        for job in self._jobs.values():
            if job.sent and job.exit_code is None:
                job.exit_code = -signal.SIGKILL
        self._stop_server()
        end_kin(self._mark)

    def _stop_server(self) -> None:
        if self._channel is not None:
            self._channel.socket.close()
            self._channel = None
        if self._server is not None:
            self._server.kill()
            with suppress(subprocess.TimeoutExpired):
                self._server.wait(_CLOSE_S)
            self._server = None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _threads(spec: Spec) -> int | None:
    return spec.need.threads if spec.need is not None else None if spec.gpus else 1


def _shown(gpus: Sequence[Gpu]) -> str:
    each = sorted({gpu.memory for gpu in gpus})
    memory = f" of {' or '.join(f'{m:.0f}' for m in each)} GiB" if any(each) else ""
    return f"{len(gpus) or 'no'} GPU{'' if len(gpus) == 1 else 's'}{memory}"
