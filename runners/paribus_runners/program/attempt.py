"""One attempt of a program: starts it, records what it writes, and says how it ended."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from paribus.contract import PREEMPTED, Job
from paribus.errors import ParibusError, RunFolderError, RunnerError
from paribus.failures import KILLED, from_outside
from paribus.run_folder.attempt_files import read_environment, read_result
from paribus.run_folder.checkpoints import published
from paribus.run_folder.folder import RunFolder, write_json
from paribus_runners.program.checkpoints import Outbox
from paribus_runners.program.lines import is_there
from paribus_runners.program.mapping import LogMapping
from paribus_runners.program.process import MARK, Program, new_mark
from paribus_runners.program.records import Places, Records

_LOOK_S = 0.05
_STOPPING_S = 300.0
_MOST_BYTES = 4 << 20  # of the program's result and environment


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A program that is to be started.

    Attributes:
        name: what messages call it.
        command: the program and its arguments.
        places: its outbox, and the folder in which it runs.
        environment: its environment.
        patience: seconds without a new step after which the run fails.
        resumes: whether it continues from the checkpoints that it writes.
        log: its own log, from the folder in which it runs; ``None``: ``metrics.jsonl`` in the outbox.
        mapping: what that log means.
        model: the folder in a checkpoint that Transformers loads; ``None``: there is none.
        about: what is recorded of it beside what it says itself, for ``environment.json``.
    """

    name: str
    command: Sequence[str]
    places: Places
    environment: Mapping[str, str]
    patience: float
    resumes: bool
    log: str | None = None
    mapping: LogMapping | None = None
    model: str | None = None
    about: Mapping[str, Any] = field(default_factory=dict)


class Attempt:
    """One attempt: starts the program, records what it writes, and says how it ended.

    Args:
        folder: the folder of the attempt, with what was taken over from an earlier one.
        job: its job.
        launch: the program.
        done: the newest step that was taken over; -1: none.
        asked: set once the run must stop.
    """

    def __init__(self, folder: RunFolder, job: Job, launch: Launch, done: int, asked: Asked) -> None:
        self._folder, self._job, self._launch, self._asked = folder, job, launch, asked
        self._last, self._name, out = job.recipe.schedule.steps, launch.name, launch.places.out
        self._out = RunFolder(out)
        self._records = Records(folder, job, launch.places, launch.log, launch.mapping, done)
        self._outbox = Outbox(folder, job, out / "checkpoints")

    def run(self) -> None:
        """Run the program to its end, and write the result.

        Raises:
            ParibusError: it has failed, or what it has written can't be recorded.
            SystemExit: it was asked to stop, has asked to be resumed, or was killed.
        """
        launch = self._launch
        write_json(self._folder.environment, dict(launch.about))
        if self._asked.is_set():
            raise SystemExit(PREEMPTED)
        program = Program(launch.command, launch.places.program, {**launch.environment, MARK: new_mark()})
        try:
            status = self._watch(program)
        finally:
            program.close()
        self._judge(status, program)
        for note in self._records.notes():
            _say(f"paribus: {note}")
        write_json(self._folder.environment, {**self._said_environment(), **launch.about})
        write_json(self._folder.result, self._result())

    def _watch(self, program: Program) -> int:
        """Record what the program writes until it has ended; return its exit status.

        Raises:
            ParibusError: it has written nothing for too long, or what can't be recorded.
        """
        newest, stopping = time.monotonic(), False
        while True:
            status = program.status
            if status is not None:
                return status  # the rest is read once all that it has started has ended
            if self._asked.is_set() and not stopping:
                program.terminate()
                newest, stopping = time.monotonic(), True
            if self._records.look():
                newest = time.monotonic()
            self._outbox.look(self._records.kept)
            silent = time.monotonic() - newest
            if stopping and silent > _STOPPING_S:  # a supervisor has less patience; without one it would hang
                raise RunnerError(f"`{self._name}` did not end within {_STOPPING_S:g} s after SIGTERM, and was killed")
            if not stopping and silent > self._launch.patience:
                raise RunnerError(self._silence())
            program.wait(_LOOK_S)

    def _silence(self) -> str:
        """Return what is wrong with a program of which no step could be recorded for too long."""
        since, left_out = f"for {self._launch.patience:g} s", "; ".join(self._records.notes())
        remedy = f"it hangs, or needs a larger `runner.patience`. {left_out}".rstrip()
        if waits := self._records.waits():
            return f"no step of `{self._name}` could be recorded {since}, after {self._reached()}: {waits}; {remedy}"
        return f"`{self._name}` has logged no step {since}, after {self._reached(logged=True)}: {remedy}"

    def _judge(self, status: int, program: Program) -> None:
        """Return if the program has ended with success.

        Raises:
            RunnerError: it has failed.
            SystemExit: it was asked to stop, has asked to be resumed, or was killed.
        """
        succeeded = status == 0 and (
            self._has_result() or (self._launch.mapping is not None and not self._asked.is_set())
        )
        self._records.look(drain=True, ended=succeeded)
        self._outbox.look(self._records.kept)
        if succeeded:
            return
        if self._asked.is_set():
            if left := self._outbox.waiting():
                _say(f"paribus: the checkpoint of step {left[-1]} is not kept: {self._reached()} is recorded")
            raise SystemExit(PREEMPTED)
        said = program.output.last_line
        if status < 0:
            name = signal.Signals(-status).name if -status in set(signal.Signals) else f"signal {-status}"
            ended = f"`{self._name}` was killed by {name} after {self._reached()}"
            if not from_outside(status):
                raise RunnerError(f"{ended}{f': {said}' if said else ''}")
            _say(ended)
            raise SystemExit(KILLED - status)
        if status == PREEMPTED:
            if self._launch.resumes and self._outbox.published >= 0:
                raise SystemExit(PREEMPTED)
            lacks = "wrote no checkpoint" if self._launch.resumes else "the study does not say `runner.resumes: true`"
            raise RunnerError(
                f"`{self._name}` ended with exit status {PREEMPTED}, which asks to be resumed, and {lacks}"
            )
        if status == 0:
            raise RunnerError(
                f"`{self._name}` ended with exit status 0 after {self._reached()} of {self._last} and left no result: "
                'a program that has finished writes {"status": "succeeded"} into result.json in the folder PARIBUS_OUT,'
                " and does not go on in the background"
            )
        ends = f": {said}" if said else ", and printed nothing"
        raise RunnerError(f"`{self._name}` ended with exit status {status} after {self._reached()}{ends}")

    def _result(self) -> dict[str, object]:
        """Return the result to record: how the program ended is its own word, the number of steps is counted here.

        Raises:
            RunnerError: the program has not done what its result says.
        """
        known: Mapping[str, object] = {"status": "succeeded"}
        if self._launch.mapping is None or self._has_result():
            try:
                known = read_result(self._out)
            except RunFolderError as error:
                raise RunnerError(f"the result of `{self._name}` cannot be used: {error}") from None
        reason = known.get("reason")
        if known["status"] == "stopped_early":
            if not isinstance(reason, str):
                raise RunnerError(f"the result of `{self._name}` is `stopped_early` without a `reason`: add one")
            return {"status": "stopped_early", "reason": reason, "steps": max(self._records.done, 0)}
        if self._records.done < self._last:
            raise RunnerError(
                f"`{self._name}` says that it succeeded after {self._reached()} of {self._last}: a run has a line for "
                "each step from 0 to `schedule.steps`, which the program is given as PARIBUS_STEPS"
            )
        record: dict[str, object] = {"status": "succeeded", "steps": self._last}
        if self._launch.model is not None and (newest := published(self._folder)[:1]):
            record["model"] = (newest[0] / self._launch.model).relative_to(self._folder.path).as_posix()
        return record

    def _reached(self, *, logged: bool = False) -> str:
        step = self._records.logged if logged else self._records.done
        return f"step {step}" if step >= 0 else "no step"

    def _has_result(self) -> bool:
        return is_there(self._out.result, _MOST_BYTES)

    def _said_environment(self) -> dict[str, Any]:
        """Return what the program says of its environment; one that can't be used costs no run, and is noted."""
        try:
            found = read_environment(self._out) if is_there(self._out.environment, _MOST_BYTES) else {}
            json.dumps(found, allow_nan=False)
        except (ParibusError, ValueError) as error:
            _say(f"paribus: the program's environment.json is left out: {error}")
            return {}
        return found


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - standard output is the log of the attempt


class Asked:
    """Whether SIGTERM has come. No ``threading.Event``: its lock blocks where a second signal comes in between."""

    def __init__(self) -> None:
        self._come = False

    def set(self) -> None:
        """Note the signal."""
        self._come = True

    def is_set(self) -> bool:
        """Return whether it has come."""
        return self._come


@contextmanager
def termination() -> Iterator[Asked]:
    """Note SIGTERM for the duration; only the main thread may handle signals."""
    asked = Asked()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)
