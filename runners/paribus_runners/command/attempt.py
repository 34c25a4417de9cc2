"""One attempt of a command: starts the program, records what it writes, and says how it ended."""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from paribus.contract import PREEMPTED, Job
from paribus.errors import ParibusError, RunFolderError, RunnerError
from paribus.failures import KILLED, from_outside
from paribus.run_folder.attempt_files import read_environment, read_job, read_result
from paribus.run_folder.folder import RunFolder, write_json
from paribus.run_folder.resume import find_checkpoint, take_over
from paribus_runners.command.checkpoints import Outbox
from paribus_runners.command.given import (
    MARK,
    Given,
    code_hash,
    command_of,
    environment_of,
    of_attempt,
    settings_of,
)
from paribus_runners.command.lines import is_there
from paribus_runners.command.mapping import logs_of, mapping_of
from paribus_runners.command.options import CommandOptions
from paribus_runners.command.process import Program, new_mark
from paribus_runners.command.records import Records

_LOOK_S = 0.05
_STOPPING_S = 300.0
_MOST_BYTES = 4 << 20  # of the program's result and environment


def run(folder: RunFolder) -> None:
    """Run the program of the job in a folder; see :meth:`~paribus_runners.command.runner.CommandRunner.run`."""
    with _termination() as asked:
        job = read_job(folder.job)
        Attempt(folder, job, CommandOptions.model_validate(job.options.own), asked).run()


class Attempt:
    """One attempt: starts the program, records what it writes, and says how it ended."""

    def __init__(self, folder: RunFolder, job: Job, own: CommandOptions, asked: threading.Event) -> None:
        self._folder, self._job, self._own, self._asked = folder, job, own, asked
        self._last = job.recipe.schedule.steps
        self._name = " ".join(own.argv)[:80]

    def run(self) -> None:
        """Run the program to its end, and write the result."""
        folder, job, own = self._folder, self._job, self._own
        given, mapping = Given.of(folder), mapping_of(own, job.options)
        if job.hashes is not None and code_hash(own, job.options.sources) != job.hashes.code:
            raise ParibusError(
                "the program's files outside the study's folder changed since the study was planned: restore them and "
                f"run `paribus retry {job.study}`, or submit the study again, with its file"
            )
        found = find_checkpoint(folder, job) if own.resumes else None
        first, place = (found[2] + 1, found[1]) if found else (0, None)
        settings = settings_of(job.recipe, job.evaluate, of_attempt(job.seed, given, first, place))
        given.write(job, settings)
        for name in logs_of(own, job.options.sources):  # numbers of an earlier run are none of this one
            (given.program / name).unlink(missing_ok=True)
        if found:
            take_over(folder, found[0], found[2])
        command = command_of(own, settings, job.options.sources)
        environment = {"command": self._name, "program": command[0], "system": sys.platform}
        write_json(folder.environment, environment)
        self._records = Records(folder, job, given, own.log, mapping, first - 1)
        self._outbox = Outbox(folder, job, given.out / "checkpoints")
        if self._asked.is_set():
            raise SystemExit(PREEMPTED)
        program = Program(
            command, given.program, environment_of(own, settings, given, mark := new_mark()) | {MARK: mark}
        )
        try:
            status = self._watch(program)
        finally:
            program.close()
        self._judge(status, program, given, mapping is not None)
        for note in self._records.notes():
            _say(f"paribus: {note}")
        write_json(folder.environment, {**_environment(given), **environment})
        write_json(folder.result, self._result(given, mapping is not None))

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
            if not stopping and silent > self._own.patience:
                raise RunnerError(self._silence())
            program.wait(_LOOK_S)

    def _silence(self) -> str:
        """Return what is wrong with a program of which no step could be recorded for too long."""
        since, left_out = f"for {self._own.patience:g} s", "; ".join(self._records.notes())
        remedy = f"it hangs, or needs a larger `runner.patience`. {left_out}".rstrip()
        if waits := self._records.waits():
            return f"no step of `{self._name}` could be recorded {since}, after {self._reached()}: {waits}; {remedy}"
        return f"`{self._name}` has logged no step {since}, after {self._reached(logged=True)}: {remedy}"

    def _judge(self, status: int, program: Program, given: Given, mapped: bool) -> None:
        """Return if the program has ended with success.

        Raises:
            RunnerError: it has failed.
            SystemExit: it was asked to stop, has asked to be resumed, or was killed.
        """
        succeeded = status == 0 and (_has_result(given) or (mapped and not self._asked.is_set()))
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
            if self._own.resumes and self._outbox.published >= 0:
                raise SystemExit(PREEMPTED)
            lacks = "wrote no checkpoint" if self._own.resumes else "the study does not say `runner.resumes: true`"
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

    def _result(self, given: Given, mapped: bool) -> dict[str, object]:
        """Return the result to record: how the program ended is its own word, the number of steps is counted here.

        Raises:
            RunnerError: the program has not done what its result says.
        """
        known: Mapping[str, object] = {"status": "succeeded"}
        if not mapped or _has_result(given):
            try:
                known = read_result(RunFolder(given.out))
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
        return {"status": "succeeded", "steps": self._last}

    def _reached(self, *, logged: bool = False) -> str:
        step = self._records.logged if logged else self._records.done
        return f"step {step}" if step >= 0 else "no step"


def _has_result(given: Given) -> bool:
    return is_there(RunFolder(given.out).result, _MOST_BYTES)


def _environment(given: Given) -> dict[str, Any]:
    """Return what the program says of its environment; one that can't be used costs no finished run, and is noted."""
    out = RunFolder(given.out)
    try:
        found = read_environment(out) if is_there(out.environment, _MOST_BYTES) else {}
        json.dumps(found, allow_nan=False)
    except (ParibusError, ValueError) as error:
        _say(f"paribus: the program's environment.json is left out: {error}")
        return {}
    return found


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - standard output is the log of the attempt


@contextmanager
def _termination() -> Iterator[threading.Event]:
    """Note SIGTERM for the duration; only the main thread may handle signals."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)
