"""What a run keeps of its problems and responses: counts of evaluations, and texts, found without reading all of them.

Evaluations count every problem; ``samples.jsonl`` keeps some responses as text. Both are joined by the problem.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paribus.errors import RunFolderError
from paribus.track.folder import Evaluation, RunFolder, read_evaluation
from paribus.track.samples import PIECE, SampleFile, key_of
from paribus_dashboards.cache import Kept
from paribus_dashboards.groups import Group, counted, grouped

INDEX_S = 0.5
"""Seconds that a page spends on indexing samples; the next one goes on where it ended."""

_STEP_BYTES = 8 << 20  # texts of one step that are read
_NAME = re.compile(r"(.+)-([0-9]{6,})\.json")


@dataclass(frozen=True, kw_only=True, eq=False)
class Problems:
    """Problems of an evaluation, shared by all evaluations that have the same.

    Attributes:
        names: their identities.
        keys: the same as 64 bits each (:func:`~paribus.track.samples.key_of`).
    """

    names: tuple[str, ...]
    keys: NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts:
    """One evaluation in few bytes.

    Attributes:
        problems: what was asked.
        k: responses per problem.
        correct: right ones per problem.
    """

    problems: Problems
    k: int
    correct: NDArray[np.uint16]


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptGroups:
    """All groups of a problem set that are kept as text, in numbers; arrays of one length.

    Attributes:
        step: when.
        key: the problem.
        mean: mean reward; NaN where none was recorded.
        low: lowest of the group.
        high: highest.
        n: responses with a reward.
        correct: share of right responses; NaN where none was judged.
        judged: responses that were judged.
    """

    step: NDArray[np.int64]
    key: NDArray[np.uint64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    n: NDArray[np.int64]
    correct: NDArray[np.float64]
    judged: NDArray[np.int64]

    def between(self, first: int, last: int) -> KeptGroups:
        """Return those from one step to another."""
        within = (self.step >= first) & (self.step <= last)
        return KeptGroups(**{name: values[within] for name, values in vars(self).items()})


class Reading:
    """Keeps the indexes of sample files and the counts of evaluations that were asked for last; for many threads."""

    def __init__(self) -> None:
        self.files: Kept[Path, SampleFile] = Kept(32)
        self._counts: Kept[Path, Counts] = Kept(1024)
        self._problems: Kept[tuple[str, ...], Problems] = Kept(16)

    def run(self, folders: Iterable[RunFolder], at: Callable[[int], RunFolder | None]) -> RunReading:
        """Return what a run keeps.

        Args:
            folders: its attempts, the oldest first.
            at: step to the attempt that counts there (:meth:`paribus.track.rollup.RunSeries.folder_at`).
        """
        return RunReading(self, tuple(folders), at)

    def counts(self, path: Path) -> Counts:
        """Return the counts of an evaluation.

        Raises:
            RunFolderError: the file is not one.
        """
        return self._counts.get(path, path.stat().st_mtime_ns, lambda: self._count(_read(path)))

    def _count(self, evaluation: Evaluation) -> Counts:
        names = evaluation.problems

        def made() -> Problems:
            return Problems(names=names, keys=np.fromiter(map(key_of, names), np.uint64, len(names)))

        problems = self._problems.get(names, None, made)
        return Counts(problems=problems, k=evaluation.samples, correct=np.asarray(evaluation.correct, np.uint16))


def _read(path: Path) -> Evaluation:
    """Return an evaluation whose lists are of one length and whose counts can be."""
    found = read_evaluation(path)
    lists = (found.correct, found.truncated, found.tokens, found.answers)
    whole = all(len(x) == len(found.problems) for x in lists) and len(found.right) in (0, len(found.problems))
    if not whole or not all(isinstance(c, int) and 0 <= c <= found.samples for c in found.correct):
        raise RunFolderError(f"{path} does not count all its problems, or more right answers than responses")
    return found


class RunReading:
    """What one run keeps, as it is now; made by :class:`Reading` for one request."""

    def __init__(self, reading: Reading, folders: Sequence[RunFolder], at: Callable[[int], RunFolder | None]) -> None:
        self._reading, self._at = reading, at
        self._files: list[tuple[RunFolder, SampleFile]] = []
        end = time.monotonic() + INDEX_S
        for folder in folders:
            if folder.samples.is_file():
                file = reading.files.get(folder.samples, None, partial(SampleFile, folder.samples))
                file.refresh(max(0.0, end - time.monotonic()))
                self._files.append((folder, file))
        self._folders = tuple(folders)

    @property
    def behind(self) -> float:
        """Share of the samples that is not indexed yet."""
        return max((file.behind for _, file in self._files), default=0.0)

    @property
    def damaged(self) -> int:
        """Lines of the sample files that hold no sample."""
        return sum(file.damaged for _, file in self._files)

    @property
    def sets(self) -> tuple[str, ...]:
        """Problem sets with evaluations or samples, those with evaluations first."""
        sampled = (name for _, file in self._files for name in file.sets)
        return tuple(dict.fromkeys([*sorted({name for name, _ in self._evaluations}), *sampled]))

    @cached_property
    def _evaluations(self) -> dict[tuple[str, int], Path]:
        found = {}
        for folder in self._folders:
            for path in folder.evals.iterdir() if folder.evals.is_dir() else ():
                match = _NAME.fullmatch(path.name)
                if match and self._counts_at(folder, int(match[2])):
                    found[match[1], int(match[2])] = path
        return found

    def _counts_at(self, folder: RunFolder, step: int) -> bool:
        owner = self._at(step)
        return owner is None or owner.path == folder.path

    @cached_property
    def _pieces(self) -> list[tuple[SampleFile, NDArray[np.void]]]:
        """The pieces that count, by file."""
        found = []
        for folder, file in self._files:
            pieces = file.pieces
            steps = np.unique(pieces["step"])
            mine = [step for step in steps.tolist() if self._counts_at(folder, step)]
            found.append((file, pieces if len(mine) == len(steps) else pieces[np.isin(pieces["step"], mine)]))
        return found

    def _of_set(self, name: str) -> list[tuple[SampleFile, NDArray[np.void]]]:
        return [(f, p[p["set"] == f.sets.index(name)]) for f, p in self._pieces if name in f.sets]

    def evaluated(self, name: str) -> tuple[int, ...]:
        """Return the steps with an evaluation on a problem set."""
        return tuple(sorted(step for known, step in self._evaluations if known == name))

    def sampled(self, name: str) -> tuple[int, ...]:
        """Return the steps with responses as text on a problem set."""
        found = [p["step"] for _, p in self._of_set(name)]
        return tuple(np.unique(np.concatenate(found)).tolist()) if found else ()

    def kept_at(self, name: str, key: str) -> tuple[int, ...]:
        """Return the steps with responses as text to one problem, by its key in hexadecimal digits."""
        wanted = np.uint64(int(key, 16))
        found = [p["step"][p["problem"] == wanted] for _, p in self._of_set(name)]
        return tuple(np.unique(np.concatenate(found)).tolist()) if found else ()

    def size(self, name: str, step: int) -> int:
        """Return the bytes of an evaluation, which is there."""
        return self._evaluations[name, step].stat().st_size

    def counts(self, name: str, step: int) -> Counts:
        """Return the counts of an evaluation, which is there.

        Raises:
            RunFolderError: the file is not one.
        """
        return self._reading.counts(self._evaluations[name, step])

    def evaluation(self, name: str, step: int) -> Evaluation | None:
        """Return an evaluation; ``None`` if there is none, or it cannot be read."""
        path = self._evaluations.get((name, step))
        try:
            return _read(path) if path else None
        except RunFolderError:
            return None

    def names(self, name: str, keys: Iterable[int]) -> dict[int, str]:
        """Return the problems behind keys of groups that are kept as text."""
        wanted, found = set(keys), dict[int, str]()
        for file, pieces in self._of_set(name):
            known, first = np.unique(pieces["problem"], return_index=True)
            here = pieces[first[np.isin(known, np.fromiter(wanted - set(found), np.uint64))]]
            found |= {key_of(s.problem): s.problem for s in file.read(here)}
        return found

    def groups(self, name: str, step: int, key: str = "") -> tuple[tuple[Group, ...], int]:
        """Return the groups at a step, with what the evaluation there counted, and how many there are in all.

        Args:
            name: problem set.
            step: the step.
            key: only this problem; it has a group also where it was only counted.
        """
        wanted, total, room = list[tuple[SampleFile, NDArray[np.void]]](), 0, _STEP_BYTES
        for file, pieces in self._of_set(name):
            here = pieces[pieces["step"] == step]
            total += len(np.unique(here["problem"]))
            if key:
                here = here[here["problem"] == int(key, 16)]
            fits = np.cumsum(here["end"] - here["start"]) <= room
            wanted.append((file, here[fits]))
            room -= int((here["end"] - here["start"])[fits].sum())
        found = grouped(s for file, pieces in wanted for s in file.read(pieces) if s.set == name)
        return self._joined(found, self.evaluation(name, step), key), total

    def _joined(self, groups: tuple[Group, ...], evaluation: Evaluation | None, key: str) -> tuple[Group, ...]:
        if evaluation is None:
            return groups
        places = {problem: i for i, problem in enumerate(evaluation.problems)}
        if key and not groups:
            alone = (Group(problem=p, prompt="", samples=()) for p in places)
            groups = tuple(g for g in alone if g.key == key)
        known = (
            replace(g, counted=counted(evaluation, places[g.problem])) if g.problem in places else g for g in groups
        )
        return tuple(known)

    def kept(self, name: str) -> KeptGroups:
        """Return all groups of a problem set that are kept as text, in numbers."""
        every = np.concatenate([np.empty(0, PIECE), *(p for _, p in self._of_set(name))])
        every = every[np.lexsort((every["problem"], every["step"]))]
        new = np.ones(len(every), bool)
        new[1:] = (np.diff(every["step"]) != 0) | (every["problem"][1:] != every["problem"][:-1])
        starts = np.flatnonzero(new)

        def total(column: str, operation: np.ufunc = np.add) -> NDArray[Any]:
            return operation.reduceat(every[column], starts) if len(starts) else every[column]

        n, judged = total("rewards"), total("judged")
        with np.errstate(invalid="ignore"):
            mean, correct = total("reward") / n, total("correct") / judged
        return KeptGroups(
            step=every["step"][starts],
            key=every["problem"][starts],
            mean=mean,
            low=total("low", np.minimum),
            high=total("high", np.maximum),
            n=n,
            correct=correct,
            judged=judged,
        )
