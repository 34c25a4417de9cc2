"""The layout of a run folder, and its readers and writers. All files are text or safetensors; none is a pickle.

There is one folder per attempt: ``<home>/runs/<first 12 digits of the fingerprint>/a<token>/``.

======================  =================  ==============================================================
file                    written by         content
======================  =================  ==============================================================
``job.json``            scheduler          the :class:`~paribus.contract.Job`
``attempt.json``        supervisor         pid, process group, start time, boot id, host, fence token
``metrics.jsonl``       runner             one :class:`MetricLine` per step
``series.bin``          sync, readers      the metrics as series (:mod:`~paribus.run_folder.series_file`); derived
``evals/<set>-<step>``  runner             one evaluation: :class:`Evaluation`
``samples.jsonl``       runner             some responses as text: :class:`~paribus.run_folder.samples.Sample`
``checkpoints/``        runner             the newest checkpoints (:mod:`~paribus.run_folder.checkpoints`)
``names.json``          runner             what has become of names in a log (:mod:`~paribus.run_folder.native_names`)
``environment.json``    runner             versions of everything the numbers depend on
``result.json``         runner             written last: ``{"status": "succeeded" | "stopped_early", ...}``
``health.json``         supervisor         findings so far: :mod:`~paribus.health.finding`
``stdout.log``          supervisor         what the runner printed, standard error included
``outcome.json``        supervisor         how the attempt ended, and the kind of failure
``revoked``             scheduler          the attempt lost its run, and must end
======================  =================  ==============================================================

Numbers that are not finite are written as the texts ``"nan"``, ``"inf"``, ``"-inf"``: JSON has no others.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

from paribus.atomic import write_whole
from paribus.errors import RunFolderError
from paribus.evaluate import HELDOUT as HELDOUT  # the problem set of a sample without a `set`
from paribus.run_folder.json_text import LARGEST, field_of, fields, listed, number, parse_json, shown, text, whole
from paribus.run_folder.metrics import SOURCES, Source

_CHUNK = 1 << 22
_MOST_SAMPLES = (1 << 16) - 1  # responses a problem
_LONGEST_NAME = 200  # bytes of a problem set's name, which is part of a file's name
_LAST_MS = 253_402_300_799_999  # the end of the year 9999

STAGE, RESTORE_LOCK = "runs/.restoring", "restore.lock"
"""Where `paribus restore` unpacks an archive, on the disk of the run folders, and the lock that it holds meanwhile."""

SHORT = 12
"""Digits of a fingerprint in folder names and in what users see."""


INITIAL_WEIGHTS = "initial_weights"
"""Key of ``environment.json``: SHA-256 of the weights that a run began with, so that equal runs can be compared."""

TRAIN = "train"
"""Problem set of the samples that were trained on."""


def to_json_number(value: float) -> float | str:
    """Return the number, or ``"nan"``, ``"inf"``, ``"-inf"``."""
    return value if math.isfinite(value) else str(float(value))


def from_json_number(value: float | str) -> float:
    """Undo :func:`to_json_number`."""
    return float(value)


def write_json(path: Path, value: object, *, synced: bool = True) -> None:
    """Write a file atomically: write a temporary file, rename it.

    Args:
        path: the file.
        value: what JSON can hold; numbers are finite.
        synced: whether the file is on the disk before it gets its name: what a power cut must not lose.
    """
    write_whole(path, json.dumps(value, indent=1, allow_nan=False), synced=synced)


def read_json(path: Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        RunFolderError: the file does not exist or is not JSON (:func:`~paribus.run_folder.json_text.parse_json`).
    """
    try:
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise RunFolderError(f"cannot read {path}: {error}") from error
    return parse_json(data, str(path))


@dataclass(frozen=True, kw_only=True)
class MetricLine:
    """The metrics of one step.

    Attributes:
        step: rollout batches trained on so far, from 1; 0 is the evaluation before training.
        time_ms: milliseconds since 1970 at the time of writing.
        values: canonical metric name to value (:mod:`paribus.run_folder.metrics`).
        sources: metric name to source, for values that aren't ``exact``.
    """

    step: int
    time_ms: int
    values: Mapping[str, float]
    sources: Mapping[str, Source] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation, as counts per problem, from which all statistics are computed.

    Attributes:
        step: training steps before it.
        set: name of the problem set, e.g. ``heldout``.
        samples: responses per problem, k.
        problems: identity of each problem, in the order of the fields below; the same in every run of a study.
        correct: correct responses per problem, 0 to k.
        truncated: responses per problem that hit the length limit.
        tokens: generated tokens per problem, summed over its responses.
        tokens_correct: the same, over correct responses only.
        answers: per problem, extracted answer to number of responses; responses without an answer are under ``""``.
        right: per problem, those of ``answers`` that were judged correct; empty if the trainer does not record it.
    """

    step: int
    set: str
    samples: int
    problems: tuple[str, ...]
    correct: tuple[int, ...]
    truncated: tuple[int, ...]
    tokens: tuple[int, ...]
    tokens_correct: tuple[int, ...]
    answers: tuple[Mapping[str, int], ...]
    right: tuple[tuple[str, ...], ...] = ()


class RunFolder:
    """Reads and writes the files of one attempt."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.job = path / "job.json"
        self.attempt = path / "attempt.json"
        self.metrics = path / "metrics.jsonl"
        self.series = path / "series.bin"
        self.evals = path / "evals"
        self.samples = path / "samples.jsonl"
        self.checkpoints = path / "checkpoints"
        self.names = path / "names.json"
        self.environment = path / "environment.json"
        self.result = path / "result.json"
        self.health = path / "health.json"
        self.log = path / "stdout.log"
        self.outcome = path / "outcome.json"
        self.revoked = path / "revoked"

    @classmethod
    def of(cls, home: Path, run: str, token: int) -> RunFolder:
        """Return the folder of attempt ``token`` of the run with fingerprint ``run``."""
        return cls(home / "runs" / run[:SHORT] / f"a{token}")

    def append_metrics(self, line: MetricLine) -> None:
        """Append one line with a single write, so that readers see all of it or nothing."""
        values = {k: to_json_number(v) for k, v in line.values.items()}
        raw: dict[str, Any] = {"step": line.step, "time_ms": line.time_ms, "values": values}
        if line.sources:
            raw["sources"] = dict(line.sources)
        text = json.dumps(raw, allow_nan=False)
        data = text.encode() + b"\n"
        with self.metrics.open("ab", buffering=0) as file:
            if (written := file.write(data)) != len(data):
                file.truncate(file.tell() - written)  # the disk is full: remove the partial line
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.metrics))

    def read_metrics(self) -> Iterator[MetricLine]:
        """Yield the complete lines, without a last line that is still being written.

        Raises:
            RunFolderError: a complete line is not a metric line; the message names file and line.
        """
        tail = Tail(self.metrics)
        while lines := tail.read():
            yield from lines

    def write_evaluation(self, evaluation: Evaluation) -> None:
        """Write ``evals/<set>-<step>.json``."""
        self.evals.mkdir(exist_ok=True)
        write_json(self.evaluation(evaluation.set, evaluation.step), asdict(evaluation))

    def evaluation(self, name: str, step: int) -> Path:
        """Return the path of the evaluation on the problem set ``name`` after ``step`` steps."""
        return self.evals / f"{name}-{step:06d}.json"

    def read_evaluations(self) -> tuple[Evaluation, ...]:
        """Return all evaluations, sorted by set and step.

        Raises:
            RunFolderError: a file is not an evaluation.
        """
        found = map(read_evaluation, self.evals.glob("*.json") if self.evals.is_dir() else ())
        return tuple(sorted(found, key=lambda e: (e.set, e.step)))


def read_evaluation(path: Path) -> Evaluation:
    """Return the evaluation in a file.

    Raises:
        RunFolderError: the file is not an evaluation: a field is missing or has another type, or a list has not one
            entry for each problem.
    """
    raw = read_json(path)
    try:
        return _evaluation(fields(raw))
    except ValueError as error:
        raise RunFolderError(f"{path} is not an evaluation: {error}") from error


def _evaluation(raw: Mapping[str, Any]) -> Evaluation:
    if other := raw.keys() - _EVALUATION:
        raise ValueError(f"it has no field {shown(min(other))}")
    name = text(field_of(raw, "set"), "set")
    if not 0 < len(name.encode()) <= _LONGEST_NAME or "/" in name or not name.isprintable():
        raise ValueError(f"{shown(name)} is no name of a problem set")
    found = Evaluation(
        step=whole(field_of(raw, "step"), "step", 0),
        set=name,
        samples=whole(field_of(raw, "samples"), "samples", 1, _MOST_SAMPLES),
        problems=tuple(text(p, "problems") for p in listed(field_of(raw, "problems"), "problems")),
        answers=tuple(_counts(a) for a in listed(field_of(raw, "answers"), "answers")),
        right=tuple(
            tuple(text(a, "right") for a in listed(each, "right")) for each in listed(raw.get("right", []), "right")
        ),
        **{key: tuple(whole(c, key) for c in listed(field_of(raw, key), key)) for key in _COUNTED},
    )
    for key in (*_COUNTED, "answers", *(["right"] if found.right else [])):
        if (entries := len(getattr(found, key))) != len(found.problems):
            raise ValueError(f"`{key}` has {entries} entries for {len(found.problems)} problems")
    return found


def _counts(value: Any) -> dict[str, int]:
    return {answer: whole(count, "answers", 0) for answer, count in fields(value).items()}


_COUNTED = ("correct", "truncated", "tokens", "tokens_correct")
_EVALUATION = {f.name for f in dataclass_fields(Evaluation)}


def parse_metric_line(data: bytes, place: str, line: int) -> MetricLine:
    """Return the metric line in ``data``, which is line number ``line`` of the file ``place``.

    Raises:
        RunFolderError: it is not a metric line; the message begins with ``place`` and ``line``.
    """
    try:
        raw = fields(parse_json(data, place, line))
        values = {k: number(v, k) for k, v in fields(field_of(raw, "values")).items()}
        return MetricLine(
            step=_rounded(field_of(raw, "step"), "step", 0, LARGEST - 1),
            time_ms=_rounded(field_of(raw, "time_ms"), "time_ms", 0, _LAST_MS),
            values=values,
            sources=_checked_sources(fields(raw["sources"]), values) if "sources" in raw else {},
        )
    except ValueError as error:
        raise RunFolderError(f"{place}:{line}: not a metric line: {error}") from error
    except RunFolderError as error:
        message = str(error).removeprefix(f"{place}:{line}: ")
        raise RunFolderError(f"{place}:{line}: not a metric line: {message}") from error


def _rounded(value: Any, name: str, low: int, high: int) -> int:
    """Return a whole number; trainers also write it as ``7.0``, and times with a fraction."""
    return whole(int(value) if type(value) is float and math.isfinite(value) else value, name, low, high)


def _checked_sources(raw: Mapping[str, Any], values: Mapping[str, float]) -> dict[str, Source]:
    """Return the sources that aren't ``exact``.

    Raises:
        ValueError: a source is unknown, or belongs to no value of the line.
    """
    for name, source in raw.items():
        if source not in SOURCES:
            allowed = ", ".join(SOURCES)
            raise ValueError(f"the source of `{shown(name)[1:-1]}` is {shown(source)}; it must be one of {allowed}")
        if name not in values:
            raise ValueError(f"`sources` has `{shown(name)[1:-1]}`, but `values` does not")
    return {name: source for name, source in raw.items() if source != "exact"}


class Tail:
    """Reads the complete lines that were added since the last call.

    Args:
        path: the file; it need not exist yet.
        offset: bytes that were read before.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self.path = path
        self.offset = offset
        self._numbered: tuple[int, int] = (0, 1)  # an offset, and the number of the line that begins there

    def read(self, limit: int | None = None) -> list[MetricLine]:
        """Return the new complete lines up to a damaged one, at most 4 MB of them; empty if there are no new lines.

        Args:
            limit: read no further than this offset in the file; ``None``: no limit.

        Raises:
            RunFolderError: the next complete line is not a metric line, or is longer than 4 MB; the message names file
                and line, and the offset does not move.
        """
        size = _CHUNK if limit is None else min(_CHUNK, limit - self.offset)
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                data = file.read(size)
        except FileNotFoundError:
            return []
        except (IsADirectoryError, NotADirectoryError, PermissionError) as error:
            raise RunFolderError(f"cannot read {self.path}: {error}") from error
        *complete, rest = data.split(b"\n")
        if not complete and len(rest) == _CHUNK:
            raise RunFolderError(f"{self.path}:{self._number()}: not a metric line: longer than {_CHUNK} bytes")
        lines: list[MetricLine] = []
        for one in complete:
            try:
                lines.append(parse_metric_line(one, str(self.path), 0))
            except RunFolderError:
                if lines:
                    return lines  # the next call reports it
                parse_metric_line(one, str(self.path), self._number())
            self.offset += len(one) + 1
        return lines

    def _number(self) -> int:
        """Return the number of the line that begins at the offset."""
        offset, line = self._numbered if self._numbered[0] <= self.offset else (0, 1)
        with suppress(OSError), self.path.open("rb") as file:
            file.seek(offset)
            while offset < self.offset and (data := file.read(min(_CHUNK, self.offset - offset))):
                offset, line = offset + len(data), line + data.count(b"\n")
            self._numbered = self.offset, line
        return line
