"""The problems and responses of a run: counts of its evaluations, and texts, found without reading whole files.

Evaluations count every problem; ``samples.jsonl`` keeps some responses as text. The problem joins both.
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
from paribus.run_folder.folder import Evaluation, RunFolder, read_evaluation
from paribus.run_folder.samples import PIECE, SampleFile, key_of
from paribus_dashboards.data.cache import Cache
from paribus_dashboards.data.groups import Group, counted, grouped

INDEX_S = 0.5
"""Seconds that one request spends on indexing samples; the next request continues there."""

_STEP_BYTES = 8 << 20  # most text of one step that is read
_NAME = re.compile(r"(.+)-([0-9]{6,15})\.json")


@dataclass(frozen=True, kw_only=True, eq=False)
class Problems:
    """Problems of an evaluation. Evaluations of the same problems share one instance.

    Attributes:
        names: their identities.
        keys: their 64-bit keys (:func:`~paribus.run_folder.samples.key_of`).
    """

    names: tuple[str, ...]
    keys: NDArray[np.uint64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Counts:
    """One evaluation in few bytes.

    Attributes:
        problems: its problems.
        k: responses per problem.
        correct: correct responses of each problem.
    """

    problems: Problems
    k: int
    correct: NDArray[np.uint16]


@dataclass(frozen=True, kw_only=True, eq=False)
class KeptGroups:
    """The numbers of all groups of a problem set that are kept as text; arrays of equal length, one entry per group.

    Attributes:
        step: training step.
        key: key of the problem.
        mean: mean reward; NaN if no reward was recorded.
        low: lowest reward.
        high: highest reward.
        n: responses with a reward.
        correct: share of correct responses; NaN if correctness was not recorded.
        judged: responses with a recorded correctness.
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
        """Return the groups from step ``first`` to step ``last``."""
        within = (self.step >= first) & (self.step <= last)
        return KeptGroups(**{name: values[within] for name, values in vars(self).items()})


class SampleIndex:
    """Caches the indexes of sample files and the counts of evaluations; safe for many threads."""

    def __init__(self) -> None:
        self.files: Cache[Path, SampleFile] = Cache(32)
        self._counts: Cache[Path, Counts] = Cache(1024)
        self._problems: Cache[tuple[str, ...], Problems] = Cache(16)

    def run(self, folders: Iterable[RunFolder], at: Callable[[int], RunFolder | None]) -> RunSamples:
        """Return the samples of a run.

        Args:
            folders: folders of its attempts, oldest first.
            at: step to the attempt that counts there (:meth:`paribus.run_folder.series_file.RunSeries.folder_at`).
        """
        return RunSamples(self, tuple(folders), at)

    def counts(self, path: Path) -> Counts:
        """Return the counts of an evaluation.

        Raises:
            RunFolderError: the file is not an evaluation.
        """
        return self._counts.get(path, path.stat().st_mtime_ns, lambda: self._count(_read(path)))

    def _count(self, evaluation: Evaluation) -> Counts:
        names = evaluation.problems

        def made() -> Problems:
            return Problems(names=names, keys=np.fromiter(map(key_of, names), np.uint64, len(names)))

        problems = self._problems.get(names, None, made)
        return Counts(problems=problems, k=evaluation.samples, correct=np.asarray(evaluation.correct, np.uint16))


def _read(path: Path) -> Evaluation:
    """Return an evaluation after checking that its counts are possible."""
    found = read_evaluation(path)
    if not all(0 <= c <= found.samples for c in found.correct):
        raise RunFolderError(f"{path} counts more correct responses than there are")
    return found


class RunSamples:
    """The samples and evaluations of a run at one moment; :meth:`SampleIndex.run` makes one for each request."""

    def __init__(self, index: SampleIndex, folders: Sequence[RunFolder], at: Callable[[int], RunFolder | None]) -> None:
        self._index, self._at = index, at
        self._files: list[tuple[RunFolder, SampleFile]] = []
        end = time.monotonic() + INDEX_S
        for folder in folders:
            if folder.samples.is_file():
                file = index.files.get(folder.samples, None, partial(SampleFile, folder.samples))
                file.refresh(max(0.0, end - time.monotonic()))
                self._files.append((folder, file))
        self._folders = tuple(folders)

    @property
    def behind(self) -> float:
        """Share of the sample files that is not indexed yet."""
        return max((file.behind for _, file in self._files), default=0.0)

    @property
    def damaged(self) -> int:
        """Number of lines of the sample files that hold no sample."""
        return sum(file.damaged for _, file in self._files)

    @property
    def sets(self) -> tuple[str, ...]:
        """Problem sets with evaluations, then those with samples only."""
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
        """The pieces of each file that count."""
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
        """Return the steps with an evaluation of a problem set."""
        return tuple(sorted(step for known, step in self._evaluations if known == name))

    def sampled(self, name: str) -> tuple[int, ...]:
        """Return the steps with responses to a problem set as text."""
        found = [p["step"] for _, p in self._of_set(name)]
        return tuple(np.unique(np.concatenate(found)).tolist()) if found else ()

    def kept_at(self, name: str, key: str) -> tuple[int, ...]:
        """Return the steps with responses to one problem as text; ``key`` is its key in hexadecimal digits."""
        wanted = np.uint64(int(key, 16))
        found = [p["step"][p["problem"] == wanted] for _, p in self._of_set(name)]
        return tuple(np.unique(np.concatenate(found)).tolist()) if found else ()

    def size(self, name: str, step: int) -> int:
        """Return the size in bytes of an evaluation, which must exist."""
        return self._evaluations[name, step].stat().st_size

    def counts(self, name: str, step: int) -> Counts:
        """Return the counts of an evaluation, which must exist.

        Raises:
            RunFolderError: the file is not an evaluation.
        """
        return self._index.counts(self._evaluations[name, step])

    def evaluation(self, name: str, step: int) -> Evaluation | None:
        """Return an evaluation; ``None`` if it is missing or cannot be read."""
        path = self._evaluations.get((name, step))
        try:
            return _read(path) if path else None
        except RunFolderError:
            return None

    def names(self, name: str, keys: Iterable[int]) -> dict[int, str]:
        """Return key to problem for groups that are kept as text."""
        wanted, found = set(keys), dict[int, str]()
        for file, pieces in self._of_set(name):
            known, first = np.unique(pieces["problem"], return_index=True)
            here = pieces[first[np.isin(known, np.fromiter(wanted - set(found), np.uint64))]]
            found |= {key_of(s.problem): s.problem for s in file.read(here)}
        return found

    def groups(self, name: str, step: int, key: str = "") -> tuple[tuple[Group, ...], int]:
        """Return the groups at a step, with the counts of the evaluation there, and the number of all groups.

        Args:
            name: problem set.
            step: the step.
            key: return only this problem, which has a group even if it was only counted.
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
        """Return the numbers of all groups of a problem set that are kept as text."""
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
