"""The runner of an attempt, in a forked process or inside this one."""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any, TypeAlias

from paribus.contract import PREEMPTED, load_runner
from paribus.engines.process import (
    Identity,
    adopt_orphans,
    children,
    die_with_parent,
    end_orphans,
    lead_group,
    signal_group,
)
from paribus.run_folder.folder import RunFolder

_DYING_S = 10.0


def _call(runner: str, folder: RunFolder) -> int:
    """Run a runner and return the exit code that its process would have."""
    try:
        load_runner(runner).run(folder.path)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # the traceback goes to the log, the code to the supervisor
        traceback.print_exc()
        return 1
    return 0


def redirect_output(folder: RunFolder) -> None:
    """Redirect this process's standard output and error to ``stdout.log``, and its input to nothing."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = os.open(folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(log)
    os.close(null)
    # text streams of the new files, whatever these names were before; line buffered, and any text can be written
    sys.stdout, sys.stderr = (
        os.fdopen(n, "w", buffering=1, closefd=False, encoding="utf-8", errors="backslashreplace") for n in (1, 2)
    )


class ForkedRunner:
    """A runner in a forked process that leads its own group and dies with its supervisor.

    The supervisor adopts whatever the runner leaves behind, in any group or session, and ends it before it reports.
    """

    def __init__(self, runner: str, folder: RunFolder) -> None:
        parent = os.getpid()
        adopt_orphans()
        self._others = children()
        self._pid = os.fork()
        if self._pid == 0:
            self._become_runner(parent, runner, folder)
        lead_group(self._pid)
        self.identity = Identity.of(self._pid)

    def _become_runner(self, parent: int, runner: str, folder: RunFolder) -> None:
        code = 1
        try:
            lead_group(os.getpid())
            die_with_parent(parent)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            redirect_output(folder)
            faulthandler.enable(sys.stderr)
            code = _call(runner, folder)
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)

    def _ended(self) -> bool:
        # WNOWAIT leaves the process unreaped, so that its id, and thus its group's, can't be reused meanwhile
        return os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def ask_to_stop(self) -> None:
        """Send SIGTERM to the group: the runner writes a checkpoint and ends with :data:`PREEMPTED`."""
        signal_group(self._pid, signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to the group."""
        signal_group(self._pid, signal.SIGKILL)

    def run(self, tick: Callable[[], None], interval: float) -> int:
        """Call ``tick`` every ``interval`` seconds until the runner has ended; return its exit code.

        Then kill what is left of its group, and everything that has left the group.
        """
        pause = threading.Event()
        while not self._ended():
            tick()
            pause.wait(interval)
        self.kill()
        exit_code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        until = time.monotonic() + _DYING_S
        while not end_orphans(self._others) and time.monotonic() < until:
            pause.wait(0.01)
        return exit_code


class InlineRunner:
    """A runner in this process and thread, for debugging; a signal to this process stops it."""

    def __init__(self, runner: str, folder: RunFolder) -> None:
        self._runner = runner
        self._folder = folder
        self.identity = Identity.of(os.getpid())

    def ask_to_stop(self) -> None:
        """Send SIGTERM to this process; while the runner runs, the handler is the runner's."""
        os.kill(self.identity.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Ask again: ending a runner by force would end this process."""
        self.ask_to_stop()

    def run(self, tick: Callable[[], None], interval: float) -> int:
        """Run the runner in this thread and the ticks in another."""
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(interval):
                tick()

        watcher = threading.Thread(target=watch, daemon=True)
        handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}

        def interrupt(number: int, frame: Any) -> None:
            before = handlers[signal.SIGINT]
            if callable(before):
                before(number, frame)
            self.ask_to_stop()

        signal.signal(signal.SIGTERM, _exit_preempted)
        signal.signal(signal.SIGINT, interrupt)
        watcher.start()
        try:
            return _call(self._runner, self._folder)
        finally:
            ended.set()
            watcher.join()
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _exit_preempted(*_: object) -> None:
    sys.exit(PREEMPTED)


RunnerProcess: TypeAlias = ForkedRunner | InlineRunner
"""A runner that has been started."""
