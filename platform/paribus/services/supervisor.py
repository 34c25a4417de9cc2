"""Keeps services running: starts them, restarts what ends with growing pauses, and ends all of them together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from paribus.engines.process import adopt_orphans, children, die_with_parent, end_orphans, handled, signal_group
from paribus.errors import ParibusError
from paribus.failures import disk_trouble, last_line
from paribus.masking import mask

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Seconds before the first restart of a service; each further pause is twice as long, up to the longest."""

STEADY_S = 60.0
"""Seconds of work after which the next pause is the first one again."""

_LOOK_S, _CHECK_S, _REAP_S, _STOP_S, _CLEAN_S = 0.1, 0.5, 2.0, 15.0, 10.0
_SHOWN_BYTES = 1 << 14


@dataclass(frozen=True, kw_only=True)
class Service:
    """A service of this machine.

    Attributes:
        name: for users.
        command: what is started.
        environment: its environment.
        address: what to show when it is ready.
        check: raises a :class:`ParibusError` as long as it does not work.
        last: whether it ends after the others, which may still call it.
        patient: whether it gets all the time that it takes to stop, as runs write checkpoints.
        prints: whether what it prints is shown, too.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    address: str
    check: Callable[[], None]
    last: bool = False
    patient: bool = False
    prints: bool = False


@dataclass(kw_only=True)
class _Running:
    """A service and its process."""

    service: Service
    log: Path
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    start_at: float = 0.0
    pause_s: float = 0.0
    check_at: float = 0.0
    ready: bool = False
    shown: int = 0


class Supervisor:
    """Runs services until it gets SIGINT, SIGTERM or SIGHUP. One per process: it adopts whatever its services leave.

    Args:
        services: in the order of their start.
        logs: folder for what they print.
        say: prints one line.
    """

    def __init__(self, services: Sequence[Service], logs: Path, say: Callable[[str], None]) -> None:
        self._logs = logs
        self._say = say
        self._running = [_Running(service=s, log=logs / f"{s.name}.log") for s in services]
        self._signals = 0
        self._reap_at = 0.0

    def run(self, ready: Callable[[], None]) -> None:
        """Start the services, keep them running, and end them after a signal.

        Args:
            ready: called once when all of them work for the first time.

        Raises:
            OSError: a log can't be written.
        """
        adopt_orphans()
        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # nohup
            numbers.append(signal.SIGHUP)
        with handled(numbers, self._note):
            try:
                self._logs.mkdir(parents=True, exist_ok=True)
                announced = False
                while not self._signals:
                    for each in self._running:
                        self._look(each)
                    if not announced and all(each.ready for each in self._running):
                        announced = True
                        ready()
                    self._reap()
                    time.sleep(_LOOK_S)
            finally:
                self._stop()

    # ---- while they run --------------------------------------------------------------------------

    def _look(self, each: _Running) -> None:
        now = time.monotonic()
        if each.process is None:
            if now >= each.start_at:
                self._start_again(each)
            return
        self._show(each)
        if (status := _ended(each.process)) is not None:
            self._restart_later(each, status)
        elif not each.ready and now >= each.check_at:
            each.check_at = now + _CHECK_S
            with suppress(ParibusError):
                each.service.check()
                each.ready = True
                self._say(f"{each.service.name}: works after {now - each.started:.0f} s: {each.service.address}")

    def _start(self, each: _Running) -> None:
        parent = os.getpid()
        if each.log.exists():
            each.log.replace(each.log.with_suffix(".log.1"))
        each.ready, each.shown, each.started = False, 0, time.monotonic()
        with each.log.open("wb") as log:
            each.process = subprocess.Popen(
                list(each.service.command),
                env=dict(each.service.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C in the terminal is for this process
                # if this process is killed, its services stop; only safe because this process has no threads
                preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
            )

    def _start_again(self, each: _Running) -> None:
        try:
            self._start(each)
        except OSError as error:
            if not each.pause_s:  # it has never run
                raise
            each.start_at = time.monotonic() + LONGEST_PAUSE_S
            self._say(f"{each.service.name}: cannot be started: {error}. It is tried again in {LONGEST_PAUSE_S:.0f} s")

    def _restart_later(self, each: _Running, status: int) -> None:
        self._end_group(each)
        lived = time.monotonic() - each.started
        each.pause_s = FIRST_PAUSE_S if lived > STEADY_S else min(each.pause_s * 2 or FIRST_PAUSE_S, LONGEST_PAUSE_S)
        each.start_at = time.monotonic() + each.pause_s
        how = f"was killed by {_signal_name(-status)}" if status < 0 else f"ended with exit status {status}"
        trouble = disk_trouble(self._logs)
        words = trouble.reason if trouble is not None else last_line(each.log).rstrip(".")
        said = f": {words}" if words else ""
        self._say(f"{each.service.name}: {how}{said}. It starts again in {each.pause_s:.0f} s; its log is {each.log}")

    def _show(self, each: _Running) -> None:
        """Print the complete lines that a service has printed since the last call; those that are too long in parts."""
        if not each.service.prints:
            return
        with suppress(OSError), each.log.open("rb") as log:
            log.seek(each.shown)
            text = log.read(_SHOWN_BYTES)
            end = text.rfind(b"\n") + 1
            text = text[:end] if end or len(text) < _SHOWN_BYTES else text
            each.shown += len(text)
            for line in text.decode(errors="replace").splitlines():
                self._say(f"{each.service.name}: {mask(line)}")

    def _reap(self) -> None:
        """Collect the exit statuses of adopted processes that have ended."""
        if (now := time.monotonic()) < self._reap_at:
            return
        self._reap_at = now + _REAP_S
        for pid in children() - {each.process.pid for each in self._running if each.process is not None}:
            with suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)

    # ---- the end ---------------------------------------------------------------------------------

    def _stop(self) -> None:
        """End all services: first those that call others, then the others; at last all that they left."""
        for last in (False, True):
            group = [each for each in self._running if each.service.last is last and each.process is not None]
            asked, begun = 0, time.monotonic()
            while group:
                wanted = max(self._signals, 1)
                for each in group:
                    self._ask_to_end(each, asked, wanted, time.monotonic() - begun)
                asked = wanted
                time.sleep(_LOOK_S)
                group = [each for each in group if not self._has_ended(each)]
        until = time.monotonic() + _CLEAN_S
        while not end_orphans(()) and time.monotonic() < until:
            time.sleep(_LOOK_S)

    def _ask_to_end(self, each: _Running, asked: int, wanted: int, waited_s: float) -> None:
        """Send what is due: SIGTERM once for each of the first two signals, then SIGKILL."""
        assert each.process is not None
        if wanted > 2 or (waited_s > _STOP_S and not each.service.patient):
            signal_group(each.process.pid, signal.SIGKILL)
        elif wanted > asked and _ended(each.process) is None:
            os.kill(each.process.pid, signal.SIGTERM)  # Popen's method would reap it

    def _has_ended(self, each: _Running) -> bool:
        self._show(each)
        if each.process is None or _ended(each.process) is None:
            return each.process is None
        self._end_group(each)
        return True

    def _end_group(self, each: _Running) -> None:
        """Kill what a service has left in its group; its number can't be another group's before ``wait``."""
        assert each.process is not None
        signal_group(each.process.pid, signal.SIGKILL)
        each.process.wait()
        each.process = None

    def _note(self) -> None:
        self._signals += 1
        if self._signals == 1:
            self._say("stopping: the runs write a checkpoint; press Ctrl-C again to kill them")


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Return how a process ended, negative for a signal; ``None`` while it runs. It is not reaped."""
    found = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if found is None:
        return None
    return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
