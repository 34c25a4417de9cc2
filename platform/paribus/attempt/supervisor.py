"""The small process beside a runner: renews the lease, watches the progress, reports the end. Imports nothing heavy.

``python -m paribus.attempt.supervisor FOLDER SERVER RUN [--inline]``: an attempt folder with a ``job.json``, the
address of the scheduler's RPC server, and the run's number in the store.

The supervisor stops its runner when the run is lost or its patience with a silent scheduler is over. Its clock can't
be set and keeps running while the machine sleeps. Where jobs end with their scheduler, the patience is the lease, so
that the old copy has ended before a new one starts. On a cluster the attempt goes on alone: it starts without an
answer, tries to report every few seconds (each scheduler writes its address into the same file), and leaves the end in
the folder. It loses its run only to a scheduler that says so, by an answer or by the file ``revoked``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.attempt.runner_process import ForkedRunner, InlineRunner, RunnerProcess, redirect_output
from paribus.attempt.watchdog import Hang, Watchdog
from paribus.contract import PREEMPTED, Job
from paribus.engines.base import GRACE, INLINE, PATIENCE, PATIENCE_S
from paribus.engines.process import Identity
from paribus.errors import RunFolderError
from paribus.failures import STORAGE, describe_exit, failure_in, from_outside, storage_failure
from paribus.health.finding import Finding, plain
from paribus.health.liveness import dead_run, nan
from paribus.home import since_boot
from paribus.rpc.client import call
from paribus.run_folder.attempt_files import read_result
from paribus.run_folder.folder import MetricLine, RunFolder, Tail, write_json

if TYPE_CHECKING:
    from paribus.health.judge import LiveJudge

EXIT_LOST = 79
"""Exit status of a supervisor whose run another attempt has taken over."""

AFTER_S = 2.0
"""Seconds before the first look while a run trains: loading the detectors takes 0.25 s. Its end is always looked at."""

EVERY_S = 1.0
"""Seconds between two looks: a single line costs five milliseconds, a line in a chunk less than one."""

MOST = 500
"""Most lines per look, so that the supervisor can renew its lease in between."""

WATCHED_ALWAYS = frozenset({"nan", "dead_run"})
"""What the supervisor checks itself, without loading the detectors."""

_UNASKED_WAIT_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Times of a supervisor, in seconds; heartbeat and margin are fractions of the lease.

    Attributes:
        grace_s: time for a runner to write a checkpoint.
        patience_s: how long to retry a server that does not answer, before the runner is started.
        alone_s: the same where the runner may be started without an answer.
    """

    tick_s: float = 0.1
    heartbeat_share: float = 1 / 6
    margin_share: float = 1 / 6
    grace_s: float = 20.0
    retry_s: float = 1.0
    patience_s: float = 30.0
    alone_s: float = 5.0


@dataclass(frozen=True, kw_only=True)
class Stop:
    """Why the runner stops.

    ``why`` is ``lost``, ``unreachable``, ``cancelled``, ``interrupted``, ``storage``, ``finding`` or ``hung``.
    """

    why: str
    reason: str
    finding: Finding | None = None
    hang: Hang | None = None


class Supervisor:
    """Supervises the attempt in a folder, at the run with this number in the store.

    ``send`` sends a request to the RPC server and returns its answer; it raises ``OSError`` without an answer. For
    ``patience_s`` seconds the attempt goes on without an answer, if that is longer than the lease.
    """

    def __init__(
        self,
        folder: RunFolder,
        run: int,
        send: Callable[[dict[str, Any]], dict[str, Any]],
        *,
        pace: Pace | None = None,
        patience_s: float = 0.0,
        clock: Callable[[], float] = since_boot,
    ) -> None:
        self._folder = folder
        self._job = Job.model_validate_json(folder.job.read_bytes())
        self._request = {"run": run, "token": self._job.token}
        self._send = send
        self._pace = pace or Pace()
        self._clock = clock
        self._tail = Tail(folder.metrics)
        self._health = HealthMonitor(folder, self._job, clock)
        self._watchdog = Watchdog(folder.path, self._job.timeouts, time.monotonic)
        self._step_seconds: list[float] = []
        self._last_line = self._renewed = self._next_beat = clock()
        self._began = self._ended = clock()
        self._lease_s = PATIENCE_S
        self._patience_s = patience_s
        self._started = False
        self._asked = self._step = 0
        self._stop: Stop | None = None
        self._kill_at: float | None = None
        self._runner: RunnerProcess | None = None

    def ask_to_stop(self, *_: object) -> None:
        """Stop the runner with grace; a second call stops it at once. A handler of SIGTERM."""
        self._asked += 1

    def supervise(self, start: Callable[[str, RunFolder], RunnerProcess]) -> int:
        """Run the attempt to its end.

        Returns:
            The supervisor's exit status: 0 if the end was reported, 1 if it is only in the folder, :data:`EXIT_LOST` if
            the run was lost or another process supervises this attempt.
        """
        if not self._claim_folder():
            return EXIT_LOST
        begun = self._begin()
        if begun is None:
            return 1
        if not begun["ok"]:
            return EXIT_LOST
        runner = self._runner = start(self._job.runner, self._folder)
        here = {"supervisor": Identity.of(os.getpid()).to_json(), "runner": runner.identity.to_json()}
        try:
            write_json(self._folder.attempt, {"token": self._job.token, **here})
        except OSError as error:
            reason = storage_failure(f"OSError: {error}", self._folder.path).reason
            self._halt(Stop(why="storage", reason=reason), grace=False)
        exit_code = runner.run(self._tick, self._pace.tick_s)
        self._ended = self._clock()
        self._look_at_metrics(ended=True)
        try:
            end = self._outcome(exit_code)
        except OSError as error:
            end = _failed("storage", storage_failure(f"OSError: {error}", self._folder.path).reason, STORAGE)
        outcome = {**self._request, **end, "exit_code": exit_code}
        if not self._started:  # a later scheduler must know how long the attempt held its resources
            outcome["seconds"] = self._ended - self._began
        with suppress(OSError):  # the server receives it all the same
            write_json(self._folder.outcome, outcome)
        return self._report(outcome)

    def _claim_folder(self) -> bool:
        """Claim the folder for this supervisor; return false if another one has, e.g. if a job was started twice.

        The store can't detect this: it accepts a repeated start, because the answer to the first may have been lost.
        """
        try:
            with self._folder.attempt.open("x") as file:
                json.dump({"token": self._job.token, "supervisor": Identity.of(os.getpid()).to_json()}, file)
        except FileExistsError:
            return False
        except OSError:
            return True  # a disk that takes no file is reported once the server answers
        return True

    def _begin(self) -> dict[str, Any] | None:
        """Report the start; if the server never answers, begin alone.

        An attempt that may not leaves the reason in the folder, and the result is ``None``.
        """
        alone = self._patience_s > PATIENCE_S
        until = self._clock() + (self._pace.alone_s if alone else self._pace.patience_s)
        while True:
            now = self._clock()
            try:
                answer = self._send({**self._request, "do": "start"})
            except (OSError, ValueError) as error:
                if self._folder.revoked.exists():
                    return {"ok": False}
                if alone and not self._asked and self._clock() >= until:
                    return {"ok": True}
                if self._asked and alone:
                    stopped = {"do": "release", "reason": "asked to stop", "wait_s": 0.0}
                    write_json(self._folder.outcome, {**self._request, **stopped})
                    return None
                if self._asked or self._clock() >= until:
                    reason = f"{socket.gethostname()} could not reach the scheduler: {error}"
                    write_json(self._folder.outcome, {**self._request, **_failed("infrastructure", reason, "")})
                    return None
            else:
                if answer["ok"]:
                    self._started = True
                    self._renew(answer, now)
                return answer
            threading.Event().wait(self._pace.retry_s)

    # ---- while the runner runs -------------------------------------------------------------------

    def _tick(self) -> None:
        now = self._clock()
        if self._asked:
            self._halt(Stop(why="interrupted", reason="asked to stop"), grace=self._asked == 1)
        limit, grace = self._time_alone()
        if now - self._renewed > limit:  # otherwise a heartbeat has time
            self._halt(Stop(why="unreachable", reason="the lease could not be renewed in time"), grace=grace)
        elif now >= self._next_beat:
            self._beat(now)
        self._look_at_metrics()
        self._look_for_hang()
        if self._kill_at is not None and now >= self._kill_at and self._runner is not None:
            self._runner.kill()

    def _time_alone(self) -> tuple[float, bool]:
        """Return for how long the attempt goes on without an answer, and whether there is time for a checkpoint."""
        margin = self._lease_s * self._pace.margin_share
        lease, patience = self._lease_s - margin, self._patience_s - self._pace.grace_s - margin
        return (patience, True) if patience > lease else (lease, False)

    def _beat(self, now: float) -> None:
        try:
            answer = self._send(self._start_or_renew(now))
        except (OSError, ValueError):
            alone = now - self._renewed > self._lease_s
            self._next_beat = now + (self._lease_s * self._pace.heartbeat_share if alone else self._pace.retry_s)
            if self._folder.revoked.exists():
                self._halt(Stop(why="lost", reason="the run was given to another attempt"), grace=False)
            return
        if not answer["ok"]:
            self._halt(Stop(why="lost", reason=answer["error"]), grace=False)
            return
        self._started = True
        self._renew(answer, now)
        if answer["cancel"]:
            self._halt(Stop(why="cancelled", reason="cancelled"), grace=True)

    def _start_or_renew(self, now: float) -> dict[str, Any]:
        if self._started:
            return {**self._request, "do": "renew"}
        return {**self._request, "do": "start", "ago_s": now - self._began}

    def _renew(self, answer: dict[str, Any], asked: float) -> None:
        """Note a lease. It counts from the time of the request, because the answer may have taken a while."""
        self._lease_s = answer["lease_s"]
        self._renewed = asked
        self._next_beat = self._renewed + self._lease_s * self._pace.heartbeat_share

    def _look_at_metrics(self, *, ended: bool = False) -> None:
        now = self._clock()
        try:
            lines = self._tail.read()
            while ended and (more := self._tail.read()):
                lines += more
        except RunFolderError as error:
            self._halt(Stop(why="finding", reason=str(error)), grace=False)
            return
        except OSError:  # a server of files that is away for a moment: the next look reads them
            return
        if lines:
            self._step = max(self._step, lines[-1].step)
            self._step_seconds.append((now - self._last_line) / len(lines))
            self._last_line = now
        found = [nan(lines), dead_run(silent_s=now - self._last_line, step_seconds=self._step_seconds)]
        for finding in (*found, *self._health.look(lines, ended=ended)):
            if finding.state == "critical" and finding.detector in self._job.stop_on:
                reason = f"{finding.detector}: {finding.evidence}"
                if finding.detector == "dead_run" and self._stop is None:
                    reason = "; ".join(filter(None, (reason, self._watchdog.about(), self._write_stacks())))
                self._halt(Stop(why="finding", reason=reason, finding=finding), grace=finding.detector != "dead_run")

    def _look_for_hang(self) -> None:
        """End a run that shows no progress, after its processes have written where they are."""
        if self._stop is not None or not isinstance(self._runner, ForkedRunner):  # inline, a person may debug it
            return
        hang = self._watchdog.look()
        if hang is not None:
            reason = "; ".join(filter(None, (hang.reason, self._write_stacks())))
            self._halt(Stop(why="hung", reason=reason, hang=hang), grace=False)

    def _write_stacks(self) -> str:
        if not isinstance(self._runner, ForkedRunner):
            return ""
        return self._watchdog.write_stacks(self._runner.identity.pid, threading.Event().wait)

    def _halt(self, stop: Stop, *, grace: bool) -> None:
        """Stop the runner. The first reason counts, unless the lease is lost later."""
        first = self._stop is None
        if first or stop.why == "lost":
            self._stop = stop
        if self._runner is None:
            return
        if grace and first:
            self._runner.ask_to_stop()
        if not grace:
            self._runner.kill()
        until = self._clock() + (self._pace.grace_s if grace else 0.0)
        self._kill_at = until if self._kill_at is None else min(self._kill_at, until)

    # ---- when it has ended -----------------------------------------------------------------------

    def _outcome(self, exit_code: int) -> dict[str, Any]:
        """Return the request that reports the end."""
        stop = self._stop
        if stop is not None and stop.why == "lost":
            return {"do": "lost", "reason": stop.reason}
        if stop is not None and stop.finding is not None and stop.finding.detector != "dead_run":
            result = {"status": "stopped_early", "reason": stop.reason, "finding": plain(stop.finding)}
            write_json(self._folder.result, result)
            return {"do": "finish", "payload": result, "stopped_early": True}
        if stop is not None and (failed := _failed_by(stop)):
            return failed
        if exit_code == 0 and self._folder.result.exists():
            return self._finished()
        if stop is not None and stop.why == "cancelled":
            return {"do": "cancelled"}
        if stop is not None:
            reached = {"reached": self._step} if stop.why == "interrupted" else {}
            return {"do": "release", "reason": stop.reason, "wait_s": 0.0, **reached}
        if exit_code == PREEMPTED:
            reason = f"the runner asked to be resumed after step {self._step}"
            return {"do": "release", "reason": reason, "wait_s": _UNASKED_WAIT_S, "step": self._step}
        if exit_code == 0:
            reason = "the runner ended with exit status 0, but wrote no result.json"
            return _failed("program", reason, reason)
        return self._failure(exit_code)

    def _failure(self, exit_code: int) -> dict[str, Any]:
        if from_outside(exit_code):
            return _failed("infrastructure", describe_exit(exit_code, self._folder.log), "")
        failure = failure_in(self._folder.log, exit_code)
        kind = "storage" if failure.signature == STORAGE else "program"
        return _failed(kind, failure.reason, failure.signature)

    def _finished(self) -> dict[str, Any]:
        try:
            payload = read_result(self._folder)
        except RunFolderError as error:
            return _failed("program", f"result.json cannot be used: {error}", "result.json cannot be used")
        return {"do": "finish", "payload": payload, "stopped_early": payload["status"] == "stopped_early"}

    def _report(self, outcome: dict[str, Any]) -> int:
        """Send the outcome until the server takes it; once the lease is over, the scheduler finds it in the folder."""
        if outcome["do"] == "lost":
            return EXIT_LOST
        while True:
            now = self._clock()
            alone = now - self._renewed >= self._lease_s
            try:
                if not self._started:
                    answer = self._send(self._start_or_renew(now))
                    if not answer["ok"]:
                        return EXIT_LOST
                    self._started = True
                answer = self._send({**outcome, **({"ago_s": now - self._ended} if alone else {})})
            except (OSError, ValueError):
                if alone:
                    return 1
                threading.Event().wait(self._pace.retry_s)
                continue
            return 0 if answer["ok"] else EXIT_LOST


class HealthMonitor:
    """The detectors for one attempt, loaded when first needed, after the runner has been forked.

    An error in a detector never reaches the run. A run that a detector may stop is watched from its first line on.
    """

    def __init__(self, folder: RunFolder, job: Job, clock: Callable[[], float]) -> None:
        self._folder = folder
        self._job = job
        self._clock = clock
        self._from = clock() + (0.0 if set(job.stop_on) - WATCHED_ALWAYS else AFTER_S)
        self._next = 0.0
        self._waiting: list[MetricLine] = []
        self._judge: LiveJudge | None = None
        self._broken = False

    def look(self, lines: Sequence[MetricLine], *, ended: bool = False) -> list[Finding]:
        """Run the detectors on new lines.

        Args:
            lines: by step.
            ended: whether the run has ended, so that all waiting lines count now.

        Returns:
            The findings that have become critical.
        """
        self._waiting += lines
        now = self._clock()
        early = now < max(self._from, self._next) and not ended
        if self._broken or not self._waiting or early:
            return []
        count = len(self._waiting) if ended else MOST
        chunk, self._waiting = self._waiting[:count], self._waiting[count:]
        try:
            found = self._take(chunk)
        except Exception:  # the run continues without a status; `paribus health` computes it from its records
            traceback.print_exc()
            self._broken = True
            return []
        self._next = self._clock() + (0.0 if self._waiting else EVERY_S)
        return found

    def _take(self, lines: Sequence[MetricLine]) -> list[Finding]:
        if self._judge is None:
            from paribus.health.judge import LiveJudge

            self._judge = LiveJudge(self._folder, self._job)
        return self._judge.take(lines)


def _failed_by(stop: Stop) -> dict[str, Any]:
    """Return the report of a run that was stopped because something is wrong with it; else an empty one."""
    if stop.hang is not None:
        kind, signature = ("infrastructure", "") if stop.hang.outside else ("program", stop.hang.signature)
        return _failed(kind, stop.reason, signature)
    if stop.why == "storage":
        return _failed("storage", stop.reason, STORAGE)
    if stop.why == "finding":
        return _failed("program", stop.reason, stop.finding.detector if stop.finding else "not a metric line")
    return {}


def _failed(kind: str, reason: str, signature: str) -> dict[str, Any]:
    return {"do": "fail", "kind": kind, "reason": reason, "signature": signature}


def main(arguments: Sequence[str]) -> int:
    """Supervise the attempt in a folder."""
    path, address, run, *flags = arguments
    folder = RunFolder(Path(path))
    inline = INLINE in flags
    pace = Pace(grace_s=float(os.environ.get(GRACE, Pace.grace_s)))
    patience = float(os.environ.get(PATIENCE, "0"))
    send = partial(call, Path(address))
    supervisor = Supervisor(folder, int(run), send, pace=pace, patience_s=patience)
    if inline:
        return supervisor.supervise(InlineRunner)
    signal.signal(signal.SIGTERM, supervisor.ask_to_stop)
    with suppress(OSError):  # if the disk takes no file, output goes to the engine's log
        redirect_output(folder)
    return supervisor.supervise(ForkedRunner)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
