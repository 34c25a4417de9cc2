"""The engine of one machine: a number of slots, each run in processes of its own, forked from a warm server."""

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

from paribus.engines.base import EngineSettings, JobState, Spec, Status
from paribus.engines.process import KIN, end_kin, signal_group
from paribus.engines.warm import Channel

_CLOSE_S = 5.0


@dataclass(kw_only=True)
class _Job:
    spec: Spec
    slot: int
    status: Status
    process: subprocess.Popen[bytes] | None = None
    sent: bool = False
    kill_at: float | None = None


class LocalEngine:
    """Runs jobs on this machine.

    A slot is a GPU where there are some, else a CPU core; a job on a core uses one thread unless ``OMP_NUM_THREADS``
    says otherwise. No job survives the process that made the engine, not even if that is killed; nor does anything that
    a job has started, in whatever session it is.
    """

    name = "local"
    reach = None
    about = ""

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._gpus = _gpus()
        self._slots = settings.slots or len(self._gpus) or _cores()
        self.gpus_per_run = min(1.0, len(self._gpus) / self._slots)
        self._jobs: dict[str, _Job] = {}
        self._server: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._cold = not hasattr(os, "fork")
        self._mark = str(settings.folder.resolve())
        end_kin(self._mark)  # of an engine in this folder that was killed together with its server

    # ---- the protocol ----------------------------------------------------------------------------

    def submit(self, spec: Spec, name: str) -> str:
        """Start a job; it is pending until the warm server is ready."""
        if name not in self._jobs:
            taken = {job.slot for job in self._live().values()}
            slot = next(i for i in range(len(taken) + 1) if i not in taken)
            self._jobs[name] = _Job(spec=spec, slot=slot, status=Status(state=JobState.PENDING))
            self._start_pending()
        return name

    def find(self, name: str) -> str | None:
        """Return the name, if it was submitted to this engine; jobs do not survive it."""
        return name if name in self._jobs else None

    def poll(self, names: Iterable[str]) -> Mapping[str, Status]:
        """Return the status of each named job."""
        self._pump()
        return {n: self._jobs[n].status if n in self._jobs else Status(state=JobState.UNKNOWN) for n in names}

    def cancel(self, name: str, grace: float) -> None:
        """Send SIGTERM, and SIGKILL when the grace is over (at the next :meth:`poll`)."""
        self._pump()
        job = self._live().get(name)
        if job is None:
            return
        if not job.sent and job.process is None:
            job.status = Status(state=JobState.ENDED, exit_code=-signal.SIGTERM)
            return
        self._signal(name, signal.SIGTERM if grace > 0 else signal.SIGKILL)
        job.kill_at = time.monotonic() + grace

    def slots(self) -> int:
        """Return the number of slots."""
        return self._slots

    def capacity(self) -> int:
        """Return the number of free slots."""
        self._pump()
        return max(0, self._slots - len(self._live()))

    def close(self) -> None:
        """Kill all jobs and the warm server."""
        for name in self._live():
            self._signal(name, signal.SIGKILL)
        for job in self._jobs.values():
            if job.process is not None:
                job.process.wait(_CLOSE_S)
        if self._server is not None:
            self._stop_server()
        end_kin(self._mark)

    # ---- jobs ------------------------------------------------------------------------------------

    def _live(self) -> dict[str, _Job]:
        return {name: job for name, job in self._jobs.items() if job.status.state is not JobState.ENDED}

    def _start_pending(self) -> None:
        for name, job in self._live().items():
            if job.sent or job.process is not None:
                continue
            if self._cold:
                self._start_cold(job)
                continue
            start = {"do": "start", "name": name, "module": job.spec.module, "arguments": job.spec.arguments}
            job.sent = self._send({**start, "environment": self._pinned(job.slot)})

    def _start_cold(self, job: _Job) -> None:
        command = [sys.executable, "-m", "paribus.engines.launch", str(os.getpid()), job.spec.module]
        job.process = self._popen([*command, *job.spec.arguments], self._pinned(job.slot))
        job.status = Status(state=JobState.RUNNING)

    def _pinned(self, slot: int) -> dict[str, str]:
        return {"CUDA_VISIBLE_DEVICES": self._gpus[slot % len(self._gpus)]} if self._gpus else {}

    def _popen(self, command: list[str], environment: Mapping[str, str], *fds: int) -> subprocess.Popen[bytes]:
        threads = {} if self._gpus else {"OMP_NUM_THREADS": "1"}
        self._settings.folder.mkdir(parents=True, exist_ok=True)
        with (self._settings.folder / "engine.log").open("ab") as log:
            return subprocess.Popen(
                command,
                env={**threads, **os.environ, **environment, KIN: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal reaches only the scheduler
                pass_fds=fds,
            )

    def _signal(self, name: str, number: int) -> None:
        job = self._jobs[name]
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
        command = [sys.executable, "-m", "paribus.engines.warm", runner, str(descriptor), str(parent)]
        self._server = self._popen(command, {}, descriptor)
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
        for name, job in self._live().items():
            if job.process is not None and (code := job.process.poll()) is not None:
                job.status = Status(state=JobState.ENDED, exit_code=code)
            elif job.kill_at is not None and time.monotonic() > job.kill_at:
                self._signal(name, signal.SIGKILL)
        self._start_pending()

    def _take(self, message: dict[str, Any]) -> None:
        if message.get("warm") is False:
            # the runner cannot be imported ahead of time: each job then starts cold, and says itself what is wrong
            self._cold = True
            for job in self._live().values():
                job.sent = False
            self._stop_server()
        elif "exit" in message:
            self._jobs[message["name"]].status = Status(state=JobState.ENDED, exit_code=message["exit"])
        elif "pid" in message:
            self._jobs[message["name"]].status = Status(state=JobState.RUNNING)

    def _lose_server(self) -> None:
        """The server was killed, and the kernel has killed its jobs with it; the next job starts a new one."""
        for job in self._live().values():
            if job.sent:
                job.status = Status(state=JobState.ENDED, exit_code=-signal.SIGKILL)
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


def _gpus() -> list[str]:
    """Return the identifiers of the GPUs that this process may use."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [g for g in chosen.split(",") if g.strip() not in ("", "-1")]
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    shown = subprocess.run(
        [program, "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True, check=False
    )
    return shown.stdout.split() if shown.returncode == 0 else []
