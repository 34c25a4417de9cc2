"""The engine for one machine: a number of slots; each run has its own processes, forked from a fork server."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from paribus.contract import LEAST, Device, Need, Resources
from paribus.engines.base import PATIENCE_S, EngineSettings, JobState, JobTable, Spec, Status
from paribus.engines.cgroup import Groups
from paribus.engines.fork_server import Channel
from paribus.engines.process import KIN, end_kin, signal_group
from paribus.errors import TooLarge
from paribus.text import plural

_CLOSE_S = 5.0
_GPU_QUERY = ("--query-gpu=index,uuid,memory.total,memory.used", "--format=csv,noheader,nounits")
_GPU_QUERY_S = 30.0
_MIB_PER_GIB = 1024.0


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

    A run that declares nothing holds a GPU if the machine has any, else a CPU core; runs share if there are more slots
    than that. A job uses as many threads as it holds cores, unless ``OMP_NUM_THREADS`` is set. No job survives the
    process that created the engine, even if that process is killed; nor does anything that a job has started, in any
    session. If this user may create control groups, each job has its own.
    """

    name = "local"
    reach = None
    patience_s = PATIENCE_S
    has_gangs = False

    def __init__(self, settings: EngineSettings) -> None:
        self.trouble = ""
        self._settings = settings
        self._gpus = visible_gpus()
        self._cores = _cores()
        self._slots = settings.slots or len(self._gpus) or self._cores
        self._jobs: JobTable[_Job] = JobTable()
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._threads: int | None = None
        self._cold = not hasattr(os, "fork")
        self._mark = str(settings.folder.resolve())
        self._groups = Groups(settings.folder)
        self._begun = False

    # ---- the protocol ----------------------------------------------------------------------------

    def about(self, resources: Resources) -> str:
        """Return nothing: this needs no explanation."""
        return ""

    def need(self, resources: Resources) -> Need:
        """Return what a run holds.

        Raises:
            TooLarge: this machine has less.
        """
        gpus = resources.gpus
        if gpus is None:
            gpus = 1 / -(-self._slots // len(self._gpus)) if self._gpus else 0.0
        share = min(1.0, self._cores / (self._settings.slots or self._cores))
        cpus = float(resources.cpus or (0.0 if gpus else share))
        if gpus > len(self._gpus) or cpus > self._cores:
            count = len(self._gpus)
            there = (
                f"this machine has {plural(count, 'GPU') if count else 'no GPUs'} and {plural(self._cores, 'CPU core')}"
            )
            raise TooLarge(resources.about(), there, "Change `resources`, or choose another engine with --engine.")
        return Need(gpus=gpus, cpus=cpus, threads=resources.cpus or (None if gpus else 1))

    def devices(self) -> tuple[Device, ...]:
        """Return the GPUs, with the memory that is in use now, and the cores."""
        now = {gpu.name: gpu for gpu in (visible_gpus() if self._gpus else ())}
        gpus = [now.get(gpu.name, gpu) for gpu in self._gpus]
        return (*gpus, Device(kind="cpu", name="cpu", amount=float(self._cores)))

    def submit(self, spec: Spec, name: str) -> str:
        """Start a job; it is pending until the fork server is ready.

        While this machine refuses a new process, it is pending too, and each :meth:`poll` tries again.
        """
        self._begin()
        if self.find(name) is None:
            self._jobs.live[name] = _Job(spec=spec, status=Status(state=JobState.PENDING))
            self._start_pending()
        return name

    def find(self, name: str) -> str | None:
        """Return the name if it was submitted to this engine; jobs do not survive it."""
        return name if name in self._jobs else None

    def poll(self, names: Iterable[str]) -> Mapping[str, Status]:
        """Return the status of each named job."""
        self._begin()
        self._pump()
        return {name: self._jobs.status(name) for name in names}

    def cancel(self, name: str, grace: float) -> None:
        """Send SIGTERM, and SIGKILL at the first :meth:`poll` after the grace."""
        self._pump()
        job = self._jobs.live.get(name)
        if job is None:
            return
        if not job.sent and job.process is None:
            self._end(name, -signal.SIGTERM)
            return
        self._signal(name, signal.SIGTERM if grace > 0 else signal.SIGKILL)
        job.kill_at = time.monotonic() + grace

    def slots(self) -> int:
        """Return the number of jobs at a time if studies declare nothing."""
        return self._slots

    def capacity(self, need: Need | None = None) -> int:
        """Return the number of free slots; if no number of slots was given, only devices limit jobs.

        While this machine refuses a new process, it returns 0.
        """
        self._pump()
        most = self._settings.slots or self._cores + round(len(self._gpus) / LEAST)
        return 0 if self.trouble else max(0, most - len(self._jobs.live))

    def close(self) -> None:
        """Kill all jobs and the fork server."""
        for name in self._jobs.live:
            self._signal(name, signal.SIGKILL)
        for job in self._jobs.live.values():
            if job.process is not None:
                with suppress(subprocess.TimeoutExpired):  # it is killed, and ends when the kernel lets it
                    job.process.wait(_CLOSE_S)
        if self._server is not None:
            self._stop_server()
        if self._begun:
            end_kin(self._mark)
            self._groups.close()

    # ---- jobs ------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """End what a previous engine in this folder has left that was killed together with its server.

        This waits for the first job or status request: an engine that only reports its devices may exist beside one
        that works.
        """
        if not self._begun:
            self._begun = True
            end_kin(self._mark)
            self._groups.begin()

    def _end(self, name: str, exit_code: int) -> None:
        self._jobs.end(name, Status(state=JobState.ENDED, exit_code=exit_code))

    def _start_pending(self) -> None:
        """Start the jobs that wait; those that this machine has no process for now go on waiting."""
        try:
            for name, job in self._jobs.live.items():
                if not job.sent and job.process is None:
                    self._start(name, job)
        except OSError as error:
            self._refuse(str(error))
        if all(job.status.state is JobState.RUNNING for job in self._jobs.live.values()):
            self.trouble = ""

    def _refuse(self, why: str) -> None:
        self.trouble = f"This machine starts no process now ({why}). Has it too many processes, or too little memory?"

    def _start(self, name: str, job: _Job) -> None:
        self._threads = self._threads if self._channel is not None else _threads(job.spec)
        group = self._groups.make(name)
        if self._cold or (self._channel is not None and _threads(job.spec) != self._threads):
            self._start_cold(job, group)  # imported libraries have already counted their threads
            return
        start = {"do": "start", "name": name, "module": job.spec.module, "arguments": job.spec.arguments}
        job.sent = self._send({**start, "environment": self._own(job.spec), "group": group})

    def _start_cold(self, job: _Job, group: str) -> None:
        command = [sys.executable, "-m", "paribus.engines.launch", "local", str(os.getpid()), group]
        job.process = self._popen(
            [*command, job.spec.module, *job.spec.arguments], self._own(job.spec), _threads(job.spec)
        )
        job.status = Status(state=JobState.RUNNING)

    def _own(self, spec: Spec) -> dict[str, str]:
        """Return the variables that differ between jobs: a job sees exactly the GPUs that it holds."""
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
        job = self._jobs.live[name]
        if number == signal.SIGKILL:
            self._groups.kill(name)
        if job.exit_code is not None:
            return
        if job.process is not None:
            signal_group(job.process.pid, number)
        elif job.sent:
            self._send({"do": "signal", "name": name, "signal": int(number)})

    # ---- the fork server -------------------------------------------------------------------------

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
        arguments = [self._settings.runner, str(theirs.fileno()), str(os.getpid()), self._groups.root]
        command = [sys.executable, "-m", "paribus.engines.fork_server", *arguments]
        with theirs:
            try:
                self._server = self._popen(command, {}, self._threads, theirs.fileno())
            except OSError:
                ours.close()
                raise
        return Channel(ours)

    def _pump(self) -> None:
        """Process what has happened since the last call."""
        try:
            while self._channel is not None and (messages := self._channel.receive(0)):
                for message in messages:
                    self._take(message)
        except EOFError:
            self._lose_server()
        for name, job in list(self._jobs.live.items()):
            if job.process is not None:
                job.exit_code = job.process.poll()
            if job.exit_code is not None:
                if self._groups.remove(name):
                    self._end(name, job.exit_code)
            elif job.kill_at is not None and not job.sent and job.process is None:
                self._end(name, -signal.SIGTERM)  # it was refused after it was cancelled
            elif job.kill_at is not None and time.monotonic() > job.kill_at:
                self._signal(name, signal.SIGKILL)
        self._start_pending()

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("warm") is False:
            # each job then starts as a plain process and reports the import error itself
            self._cold = True
            for job in self._jobs.live.values():
                job.sent = False
            self._stop_server()
        elif "refused" in message:
            self._jobs.live[message["name"]].sent = False
            self._refuse(message["refused"])
        elif "exit" in message:
            self._jobs.live[message["name"]].exit_code = message["exit"]
        elif "pid" in message:
            self._jobs.live[message["name"]].status = Status(state=JobState.RUNNING)

    def _lose_server(self) -> None:
        """Clean up after a killed server: the kernel has killed its jobs, and the next job starts a new server."""
        for job in self._jobs.live.values():
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


def visible_gpus() -> tuple[Device, ...]:
    """Return the GPUs of this machine; only those in ``CUDA_VISIBLE_DEVICES``, if it is set.

    Numbers in ``CUDA_VISIBLE_DEVICES`` are taken as nvidia-smi's, which need not be CUDA's; hence the UUIDs as names.
    """
    known = _listed_gpus()
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return tuple({gpu.name: gpu for gpu in known.values()}.values())
    names = [name for part in chosen.split(",") if (name := part.strip()) not in ("", "-1")]
    return tuple(known.get(name) or Device(kind="gpu", name=name, amount=1.0) for name in names)


def _listed_gpus() -> dict[str, Device]:
    """Return the GPUs that nvidia-smi lists, both by number and by UUID; empty if it fails or isn't installed."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return {}
    try:
        shown = subprocess.run(
            [program, *_GPU_QUERY],
            capture_output=True,
            text=True,
            errors="replace",
            check=True,
            timeout=_GPU_QUERY_S,
            stdin=subprocess.DEVNULL,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return {}  # `paribus doctor` reports it
    found: dict[str, Device] = {}
    for line in shown.splitlines():
        index, uuid, total, used = ([field.strip() for field in line.split(",")] + [""] * 4)[:4]
        if index.isdecimal():
            name = uuid if uuid.startswith("GPU-") else index
            gpu = Device(kind="gpu", name=name, amount=1.0, memory=_gib(total), used=_gib(used))
            found[index] = found[name] = gpu
    return found


def _gib(mib: str) -> float:
    try:
        return float(mib) / _MIB_PER_GIB
    except ValueError:  # `[N/A]`: a GPU that shares main memory
        return 0.0
