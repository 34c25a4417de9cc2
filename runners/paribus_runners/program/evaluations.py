"""Evaluations of a program: read, checked against what the study asks for, and compared with those of other runs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from paribus.contract import EvaluationSet, Job
from paribus.errors import ParibusError, RunnerError
from paribus.evaluate import HELDOUT
from paribus.recipe.recipe import fingerprint_of
from paribus.run_folder.folder import Evaluation, RunFolder, read_evaluation, write_json
from paribus.text import plural
from paribus_runners.program.lines import MOST_AT_ONCE, Lines, as_object, is_there
from paribus_runners.program.mapping import Answers, AnswersOf, LogMapping, step_in

MOST_BYTES = 64 << 20
"""Most bytes of an evaluation's file."""


class Evaluations:
    """The evaluations of one attempt, as they come.

    Args:
        folder: the folder of the attempt, which holds those that were taken over.
        job: its job.
        out: the outbox of the program.
        program: the folder in which it runs.
        mapping: what its log means; ``None``: it writes the files of a run folder.
    """

    def __init__(self, folder: RunFolder, job: Job, out: Path, program: Path, mapping: LogMapping | None) -> None:
        self._folder, self._job, self._out = folder, job, RunFolder(out)
        self._problems = {e.set: e.problems for e in folder.read_evaluations()}
        self._mapping = mapping
        self._answers: dict[tuple[int, str], AnswersOf] = {}
        self._newest = -1
        answers = mapping.evaluation if mapping else None
        self._lines = Lines(program / answers.log) if answers else None

    def missing(self, step: int) -> str:
        """Return the set that is due at a step and not there; empty if all are.

        Raises:
            ParibusError: an evaluation is not what the study asks for.
        """
        return next((name for name, chosen in self._due(step).items() if not self._there(step, name, chosen)), "")

    def overtaken(self, step: int) -> bool:
        """Return whether answers of a later step have come, so that those of this step are as many as there will be."""
        return self._newest > step

    @property
    def behind(self) -> bool:
        """Whether the script's answers are so many that one look more does not reach their end."""
        return self._lines is not None and self._lines.size() - self._lines.offset > MOST_AT_ONCE

    def look(self, *, drain: bool = False, ended: bool = False) -> None:
        """Read the script's answers; the arguments are those of :meth:`~paribus_runners.program.lines.Lines.read`.

        Raises:
            ParibusError: a line is no JSON object, or lacks a key.
        """
        keys = self._mapping.evaluation if self._mapping else None
        if self._lines is None or self._mapping is None or keys is None:
            return
        for line in self._lines.read(drain=drain, ended=ended):
            raw = as_object(line, self._lines, str(self._lines.path))
            try:
                self._add(raw, keys, step_in(raw, keys.step or self._mapping.step))
            except RunnerError:
                raise
            except ParibusError as error:
                raise RunnerError(f"{self._lines.place()}: {error}. docs/howto/command.md shows the mapping") from None

    def _add(self, raw: Mapping[str, object], keys: Answers, step: int) -> None:
        name = HELDOUT
        if keys.set is not None:
            name = str(raw.get(keys.set, ""))
        if name not in self._job.evaluate.all_sets:
            raise ParibusError(f"`{keys.set}` is {name!r}, which is no set of this study")
        self._newest = max(self._newest, step)
        if name in self._due(step):
            self._answers.setdefault((step, name), AnswersOf()).add(raw, keys)

    def due_at(self, step: int) -> list[Evaluation]:
        """Return the evaluations that are due at a step; nothing is recorded.

        Raises:
            ParibusError: one is missing, or is not what the study asks for.
        """
        evaluations: list[Evaluation] = []
        for name, chosen in self._due(step).items():
            found = self._read(step, name)
            wrong = fault(found, step, name, chosen) or self._other_problems(found)
            if not wrong and not found.right and self._job.evaluate.primary_metric.startswith(f"eval/{name}/maj_at_"):
                wrong = "has no `right`, from which the primary metric maj@k is computed: add the right answers"
            if wrong:
                raise RunnerError(f"the evaluation of `{name}` at step {step} {wrong}")
            evaluations.append(found)
        return evaluations

    def record(self, evaluations: Iterable[Evaluation]) -> None:
        """Record evaluations of :meth:`due_at`, and forget what they were read from."""
        for found in evaluations:
            self._folder.write_evaluation(found)
            self._out.evaluation(found.set, found.step).unlink(missing_ok=True)
            self._answers.pop((found.step, found.set), None)

    def _due(self, step: int) -> Mapping[str, EvaluationSet]:
        return self._job.evaluate.due(step, self._job.recipe.schedule.steps)

    def _there(self, step: int, name: str, chosen: EvaluationSet) -> bool:
        if self._lines is None:
            return is_there(self._out.evaluation(name, step), MOST_BYTES)
        found = self._answers.get((step, name))
        return found is not None and (found.count() >= chosen.problems * chosen.samples or self.overtaken(step))

    def _read(self, step: int, name: str) -> Evaluation:
        if self._lines is not None:
            if (found := self._answers.get((step, name))) is None:
                raise RunnerError(f"the evaluation of `{name}` at step {step} is missing in {self._lines.path.name}")
            try:
                return found.evaluation(step, name)
            except ParibusError as error:
                raise RunnerError(f"the evaluation of `{name}` at step {step}: {error}") from None
        path = self._out.evaluation(name, step)
        is_there(path, MOST_BYTES)  # else the reader says that it is missing
        return read_evaluation(path)

    def _other_problems(self, found: Evaluation) -> str:
        """Return that the problems are not those of other evaluations; empty if they are.

        The first run of a program leaves their hash in the cache that runs share, so that no two arms are compared on
        different problems.
        """
        if self._problems.setdefault(found.set, found.problems) != found.problems:
            return (
                "has other problems, or another order, than the one before: evaluate the same problems each time, in "
                "the same order"
            )
        hashes = self._job.hashes
        if hashes is None:
            return ""
        chosen = self._job.evaluate.all_sets[found.set].model_dump(mode="json")
        key = fingerprint_of([hashes.code, hashes.data, found.set, chosen])
        record = Path(self._job.cache) / "command" / f"{key[:24]}.json"
        mine = {"problems": fingerprint_of(list(found.problems)), "run": self._job.run[:12]}
        other = _agreed(record, mine)
        if other["problems"] == mine["problems"]:
            return ""
        return (
            f"has other problems, or another order, than that of run {other['run']}: all runs of a study evaluate the "
            "same problems, whatever their seed; name files with problems under `runner.files`"
        )


def _agreed(record: Path, mine: Mapping[str, str]) -> Mapping[str, str]:
    """Return what the first run has recorded; that is ``mine`` if none has."""
    record.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(record.with_suffix(".lock")):
        with suppress(FileNotFoundError, ValueError, KeyError, TypeError):  # one that was cut is no evidence
            found = json.loads(record.read_text())
            return {"problems": str(found["problems"]), "run": str(found["run"])}
        write_json(record, dict(mine))
    return mine


def fault(found: Evaluation, step: int, name: str, chosen: EvaluationSet) -> str:
    """Return what is wrong with an evaluation, as the end of a sentence; empty if it is what the study asks for."""
    k, problems = found.samples, len(found.problems)
    if (found.step, found.set) != (step, name):
        return f"says that it is of `{found.set}` at step {found.step}: its fields and its name must agree"
    if k != chosen.samples:
        return f"has {plural(k, 'response')} to a problem, and the study asks for {chosen.samples}: `evaluate.samples`"
    if problems != chosen.problems:
        return (
            f"has {plural(problems, 'problem')}, and the study asks for {chosen.problems}: set "
            "`evaluate.problems` to the number "
            "that the program has, or let it evaluate as many"
        )
    if len(set(found.problems)) != problems:
        return "has a problem twice: each has an identity of its own"
    for i, problem in enumerate(found.problems):
        correct, cut, tokens = found.correct[i], found.truncated[i], found.tokens[i]
        if not (0 <= correct <= k and 0 <= cut <= k):
            return f"counts {correct} correct and {cut} truncated responses of {k} to problem {problem!r}"
        if not 0 <= found.tokens_correct[i] <= tokens or (correct == 0 and found.tokens_correct[i] > 0):
            return f"counts {found.tokens_correct[i]} tokens of correct responses of {tokens} for problem {problem!r}"
        if sum(found.answers[i].values()) != k:
            return f"counts {sum(found.answers[i].values())} answers to problem {problem!r}, which has {k} responses"
        if found.right and sum(found.answers[i].get(a, 0) for a in found.right[i]) < correct:
            return f"counts {correct} correct responses to problem {problem!r}, more than its right answers"
    return ""


def disagreement(said: Mapping[str, float], counted: Mapping[str, float]) -> str:
    """Return which metric of an evaluation is not what its counts give; empty if all that are said agree."""
    for name, value in said.items():
        if name not in counted:
            return f"`{name}` belongs to no evaluation of this step: leave it out, it is computed from the counts"
        if not math.isclose(value, counted[name], rel_tol=1e-6, abs_tol=1e-9):
            return f"`{name}` is {value:g}, and the counts of the evaluation give {counted[name]:g}: leave it out"
    return ""
