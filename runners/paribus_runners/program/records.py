"""From the outbox of a program to the records of a run: each line, sample and evaluation is checked on its way."""

from __future__ import annotations

import json
import math
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol

from paribus.contract import Job
from paribus.errors import ParibusError, RunnerError, did_you_mean
from paribus.run_folder.folder import MetricLine, RunFolder, parse_metric_line
from paribus.run_folder.metrics import STEP_METRICS, Source, find_metric
from paribus.run_folder.native_names import NamesFile
from paribus.run_folder.samples import parse_sample
from paribus.text import plural
from paribus_runners.evaluation.evaluator import metrics
from paribus_runners.program.evaluations import Evaluations, disagreement
from paribus_runners.program.lines import Lines, as_object
from paribus_runners.program.mapping import OWN, LogMapping, Translator


class Places(Protocol):
    """Where a program finds what, in the folder of an attempt."""

    @property
    def program(self) -> Path:
        """The folder in which it runs."""

    @property
    def out(self) -> Path:
        """Its outbox."""


NATIVE = "native/"
MOST_WAITING = 10_000
"""Most steps of a script's log that wait for an evaluation."""


@dataclass
class Step:
    """The numbers of one step, before they are recorded."""

    step: int
    time_ms: int
    values: dict[str, float] = field(default_factory=dict)
    sources: dict[str, Source] = field(default_factory=dict)


class Records:
    """Reads the outbox of a program and appends to the records of the attempt.

    Args:
        folder: the folder of the attempt, with what was taken over from an earlier one.
        job: its job.
        places: the outbox, and the folder in which the program runs.
        log: the script's own log; ``None``: ``metrics.jsonl`` in the outbox.
        mapping: what that log means.

    Attributes:
        done: the newest step that is recorded; -1: none.
        kept: the newest of which the samples are recorded as well, so that a checkpoint may be published.
    """

    def __init__(
        self, folder: RunFolder, job: Job, places: Places, log: str | None, mapping: LogMapping | None, done: int
    ) -> None:
        self.done = self.kept = done
        self._folder, self._last = folder, job.recipe.schedule.steps
        self._lines = Lines(places.program / log if log else places.out / "metrics.jsonl")
        self._samples = Lines(places.out / "samples.jsonl")
        self._names = NamesFile(folder)
        self._translator = Translator(mapping, self._names.names) if mapping else None
        self._evaluations = Evaluations(folder, job, places.out, places.program, mapping)
        self._waiting: deque[Step] = deque()
        self._goal = (done, 0)
        self._first = done + 1
        self._skipped = {"without a step": 0, "no sample": 0, "of another step": 0}

    @property
    def logged(self) -> int:
        """The newest step that was logged; it is recorded once it is complete. -1: none."""
        return self._waiting[-1].step if self._waiting else self.done

    def look(self, *, drain: bool = False, ended: bool = False) -> bool:
        """Record what has come since the last call; return whether a step was recorded.

        Args:
            drain: whether the program has ended; else one look reads a bounded number of bytes.
            ended: whether the program has ended with success, so that nothing more comes.

        Raises:
            ParibusError: what the program has written can't be recorded.
        """
        before = self.done
        self._evaluations.look(drain=drain, ended=ended)
        if self._translator is None:
            for line in self._lines.read(drain=drain, ended=ended):
                self._take(self._own(line))
        elif drain or not self._evaluations.behind:  # else steps would wait for answers that have long come
            for line in self._lines.read(drain=drain, ended=ended):
                self._merge(line, self._translator)
        self._evaluations.look(drain=drain, ended=ended)  # answers are written before the next step is logged
        self._record_waiting(ended=ended)
        self._read_samples(drain=drain, ended=ended)
        return self.done > before

    def waits(self) -> str:
        """Return what the logged steps wait for, as a sentence; empty if none waits, or for the next line alone."""
        if not self._waiting or not (name := self._evaluations.missing(first := self._waiting[0].step)):
            return ""
        due = f"the evaluation of `{name}` at step {first}"
        return f"step {self.logged} is logged, and waits for {due}, which has not come in full"

    def notes(self) -> list[str]:
        """Return what was left out or renamed, one sentence each."""
        found = []
        if count := self._skipped["without a step"]:
            of = self._lines.path.name
            found.append(plural(count, f"line of {of} has no step, and was", f"lines of {of} have no step, and were"))
        if count := self._skipped["no sample"]:
            none = "line of samples.jsonl is no sample, and was", "lines of samples.jsonl are no samples, and were"
            found.append(plural(count, *none))
        if count := self._skipped["of another step"]:
            steps = f"{self._first} to {self._last}"
            one, more = (f"of samples.jsonl {verb} of no step from {steps}, and" for verb in ("is", "are"))
            found.append(plural(count, f"line {one} was", f"lines {more} were"))
        found = [f"{note} left out" for note in found]
        for key, name in self._names.names.doubles.items():
            found.append(f"`{key[:80]}` is recorded as `{OWN}{name}`: another name is too much like it")
        return found

    # ---- lines of a program that knows Paribus -----------------------------------------------------

    def _own(self, line: bytes) -> Step:
        raw = as_object(line, self._lines, str(self._lines.path))
        if unknown := raw.keys() - {"step", "time_ms", "values", "sources"}:
            raise self._wrong(f'it has no field `{min(unknown)}`: a line is {{"step": 1, "values": {{...}}}}')
        if "time_ms" not in raw:  # a shell has no clock that is fine enough
            line = json.dumps({**raw, "time_ms": _now()}).encode()
        found = parse_metric_line(line, str(self._lines.path), self._lines.number)
        for name in found.values:
            if not name.startswith(NATIVE) and find_metric(name) is None:
                near = did_you_mean(name, [metric.name for metric in STEP_METRICS])
                raise self._wrong(
                    f"`{name[:80]}` is no metric.{near} docs/reference/metrics.md lists all; a number of your own is "
                    f"`native/command/{name.rpartition('/')[2][:40]}`"
                )
        return Step(found.step, found.time_ms, dict(found.values), dict(found.sources))

    def _take(self, step: Step) -> None:
        self._check_step(step.step)
        if name := self._evaluations.missing(step.step):
            raise self._wrong(
                f"the evaluation of `{name}` is due at step {step.step} and is not there: write "
                f"evals/{name}-{step.step:06d}.json before the line of its step"
            )
        self._record(step)

    # ---- lines of a script that does not -----------------------------------------------------------

    def _merge(self, line: bytes, translator: Translator) -> None:
        """Add a line to the step that it belongs to; a script may write several for one step."""
        if not line.lstrip().startswith(b"{"):
            self._skipped["without a step"] += 1
            return
        raw = as_object(line, self._lines, str(self._lines.path))
        try:
            number = translator.step(raw)
            values = [] if number is None else list(translator.values(raw))
        except ParibusError as error:
            raise self._wrong(str(error)) from None
        if number is None:
            self._skipped["without a step"] += 1
            return
        if not self._waiting or number != self._waiting[-1].step:
            before = self._waiting[-1].step if self._waiting else self.done
            if before < 0 and number == 1:  # a script that logs nothing before its first step
                self._waiting.append(Step(0, _now()))
                before = 0
            self._check_step(number, before)
            self._waiting.append(Step(number, _now()))
        if len(self._waiting) > MOST_WAITING:
            raise self._wrong(f"the evaluation at step {self._waiting[0].step} has not come")
        newest = self._waiting[-1]
        for name, value, source in values:
            known = newest.values.get(name, value)
            if known != value and not (math.isnan(known) and math.isnan(value)):
                raise self._wrong(f"`{name}` has two values at step {number}: {known:g} and {value:g}")
            newest.values[name] = value
            newest.sources[name] = source

    def _record_waiting(self, *, ended: bool) -> None:
        """Record the steps that are complete: a later one was logged, and their evaluations are there."""
        while self._waiting and (ended or len(self._waiting) > 1):
            step = self._waiting[0].step
            if name := self._evaluations.missing(step):
                if not ended and not self._evaluations.overtaken(step):
                    return
                raise RunnerError(
                    f"the evaluation of `{name}` is due at step {step}, and the script's answers have none: it "
                    "evaluates before training, at each `evaluate.every`-th step, and after the last"
                )
            self._record(self._waiting.popleft())

    # ---- both --------------------------------------------------------------------------------------

    def _check_step(self, step: int, before: int | None = None) -> None:
        before = self.done if before is None else before
        if step == before + 1 and step <= self._last:
            return
        if step > self._last:
            raise self._wrong(
                f"step {step} is beyond the last, {self._last}: stop after `schedule.steps`, which the program is given"
            )
        if step <= before:
            raise self._wrong(
                f"step {step} comes after step {before}: steps go up by one, from "
                "PARIBUS_FIRST_STEP on; an attempt that continues begins after its checkpoint"
            )
        raise self._wrong(f"step {step} follows step {before}: write a line for each step, from 0 on")

    def _record(self, step: Step) -> None:
        said = {name: value for name, value in step.values.items() if name.startswith("eval/")}
        evaluations = self._evaluations.due_at(step.step)
        counted: dict[str, float] = {}
        for found in evaluations:
            counted |= metrics(found)
        if wrong := disagreement(said, counted):
            raise self._wrong(wrong)
        self._evaluations.record(evaluations)
        sources = {name: source for name, source in step.sources.items() if source != "exact" and name not in counted}
        self._names.save()
        self._folder.append_metrics(
            MetricLine(step=step.step, time_ms=step.time_ms, values={**step.values, **counted}, sources=sources)
        )
        self.done = step.step

    def _read_samples(self, *, drain: bool, ended: bool) -> None:
        """Record samples; those of all recorded steps were written before this call, and may be too many for one."""
        if self.kept == self._goal[0]:
            self._goal = (self.done, self._samples.size())
        with ExitStack() as stack:
            file: BinaryIO | None = None
            for line in self._samples.read(drain=drain, ended=ended):
                sample = parse_sample(line)
                if sample is None or not self._first <= sample.step <= self._last:
                    self._skipped["no sample" if sample is None else "of another step"] += 1
                    continue
                if file is None:
                    file = stack.enter_context(self._folder.samples.open("ab"))
                file.write(line + b"\n")
        if drain:
            self.kept = self.done
        elif self._samples.offset >= self._goal[1]:
            self.kept = self._goal[0]

    def _wrong(self, message: str) -> RunnerError:
        return RunnerError(f"{self._lines.place()}: {message}")


def _now() -> int:
    return time.time_ns() // 1_000_000
