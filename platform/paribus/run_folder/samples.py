"""Reads ``samples.jsonl``: an index finds responses by step and problem without keeping their text in memory.

One record per line. ``step`` and ``response`` are required, all other keys are optional (``docs/run_folder.md`` lists
them).
"""

from __future__ import annotations

import math
import os
import struct
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paribus.errors import RunFolderError
from paribus.run_folder.folder import HELDOUT
from paribus.run_folder.json_text import LARGEST, number, parse_json

PIECE = np.dtype(
    [
        ("step", "<i8"),
        ("set", "<i8"),
        ("problem", "<u8"),
        ("start", "<i8"),
        ("end", "<i8"),
        ("responses", "<i8"),
        ("rewards", "<i8"),
        ("reward", "<f8"),
        ("low", "<f8"),
        ("high", "<f8"),
        ("judged", "<i8"),
        ("correct", "<i8"),
    ]
)
"""Consecutive lines of one group: byte range and sums. ``set`` is an index of :attr:`SampleFile.sets`."""

_PIECE = struct.Struct("<qqQqqqqdddqq")
_CHUNK = 1 << 20
_FOREVER = math.inf


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One response. ``None`` means that the trainer did not record a value.

    Attributes:
        step: training steps before it.
        set: name of the problem set; :data:`~paribus.run_folder.folder.TRAIN` for groups that were trained on.
        problem: identity of the problem, as in :class:`~paribus.run_folder.folder.Evaluation`; else the prompt.
        prompt: what the model continued.
        response: what it wrote.
        number: index in its group, from 0.
        finished: whether it ended by itself; False if it hit the length limit.
        correct: what the verifier said.
        reward: what the objective saw.
        parts: the terms that sum to the reward, by name.
        advantage: after baseline and scale.
        tokens: tokens that the model wrote, including the end mark.
        given: parts of the response that an environment wrote: first character, and the one behind the last.
        mismatch: mean absolute difference of the log-probabilities of learner and sampler, nats per token.
    """

    step: int
    set: str
    problem: str
    prompt: str
    response: str
    number: int | None = None
    finished: bool | None = None
    correct: bool | None = None
    reward: float | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    advantage: float | None = None
    tokens: int | None = None
    given: tuple[tuple[int, int], ...] = ()
    mismatch: float | None = None


def key_of(problem: str) -> int:
    """Return a 64-bit hash of a problem; URLs of the dashboard contain it."""
    return int.from_bytes(blake2b(problem.encode(errors="surrogatepass"), digest_size=8).digest(), "little")


def parse_sample(line: bytes) -> Sample | None:
    """Return the sample in a line; ``None`` if the line is not a sample."""
    try:
        raw: Any = parse_json(line, "sample")
    except RunFolderError:
        return None
    if not isinstance(raw, dict) or not isinstance(raw.get("response"), str):
        return None
    step = _whole(raw.get("step"))
    if step is None or step < 0:
        return None
    prompt = _text(raw.get("prompt"), "")
    parts = raw.get("reward_parts")
    known = {str(k): _number(v) for k, v in parts.items()} if isinstance(parts, dict) else {}
    return Sample(
        step=step,
        set=_text(raw.get("set"), HELDOUT),
        problem=_text(raw.get("problem"), prompt),
        prompt=prompt,
        response=raw["response"],
        number=_whole(raw.get("sample")),
        finished=_flag(raw.get("finished")),
        correct=_flag(raw.get("correct")),
        reward=_number(raw.get("reward")),
        parts={k: v for k, v in known.items() if v is not None},
        advantage=_number(raw.get("advantage")),
        tokens=_whole(raw.get("tokens")),
        given=_parts(raw.get("given"), len(raw["response"])),
        mismatch=_number(raw.get("logp_abs_diff_mean")),
    )


def _text(value: object, other: str) -> str:
    return value if isinstance(value, str) else other


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _parts(value: object, size: int) -> tuple[tuple[int, int], ...]:
    """Return parts of a text, ascending; none if they are no such parts."""
    found: list[tuple[int, int]] = []
    for pair in value if isinstance(value, list) else []:
        ends = [_whole(x) for x in pair] if isinstance(pair, list) else []
        before = found[-1][1] if found else 0
        if len(ends) != 2 or ends[0] is None or ends[1] is None or not before <= ends[0] <= ends[1] <= size:
            return ()
        found.append((ends[0], ends[1]))
    return tuple(found)


def _whole(value: object) -> int | None:
    return value if type(value) is int and abs(value) < LARGEST else None


def _number(value: object) -> float | None:
    try:
        return number(value, "number")
    except ValueError:
        return None


class SampleFile:
    """An index of the groups in a file that may still grow; :meth:`refresh` indexes what was added.

    It keeps about a hundred bytes per group, and no text. Thread-safe.

    Args:
        path: the file; it need not exist yet.

    Attributes:
        pieces: :data:`PIECE`, in file order; a group whose lines are not consecutive has several pieces.
        sets: the problem sets.
        damaged: number of lines that are not samples.
        behind: share of the file that is not indexed yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sets: tuple[str, ...] = ()
        self.damaged = 0
        self.pieces: NDArray[np.void] = np.empty(0, PIECE)
        self.behind = 0.0
        self._rows = bytearray()
        self._offset = 0
        self._file: tuple[int, int] | None = None
        self._open: _Open | None = None
        self._lock = threading.Lock()

    def refresh(self, seconds: float = _FOREVER) -> None:
        """Index the complete lines that were added, as far as the time allows; :attr:`behind` is the rest.

        Args:
            seconds: time limit, checked after each megabyte.
        """
        with self._lock:
            try:
                with self.path.open("rb") as file:
                    self._take(file.fileno(), time.monotonic() + seconds)
            except FileNotFoundError:
                self._forget(None)

    def read(self, pieces: Iterable[np.void]) -> list[Sample]:
        """Return the samples in these pieces, in file order."""
        found: list[Sample] = []
        try:
            with self.path.open("rb") as file:
                for piece in sorted(pieces, key=lambda p: int(p["start"])):
                    data = os.pread(file.fileno(), int(piece["end"] - piece["start"]), int(piece["start"]))
                    known = (parse_sample(line) for line in data.split(b"\n") if line)
                    found += [s for s in known if s is not None and s.step == piece["step"]]
        except FileNotFoundError:
            return []
        return found

    def _take(self, descriptor: int, until: float) -> None:
        status = os.fstat(descriptor)
        if self._file != (status.st_dev, status.st_ino) or status.st_size < self._offset:
            self._forget((status.st_dev, status.st_ino))
        size = _CHUNK
        while self._offset < status.st_size:
            data = os.pread(descriptor, size, self._offset)
            end = data.rfind(b"\n") + 1
            if end:
                self._index(data[:end])
                size = _CHUNK
            elif len(data) < size:
                break  # a line that is still being written
            else:
                size *= 2  # a line longer than a chunk
            if time.monotonic() > until:
                break
        rows = self._rows + (self._open.packed() if self._open else b"")
        self.pieces = np.frombuffer(bytes(rows), PIECE)
        self.behind = 1 - self._offset / status.st_size if status.st_size else 0.0

    def _index(self, data: bytes) -> None:
        for line in data.split(b"\n")[:-1]:
            start, self._offset = self._offset, self._offset + len(line) + 1
            sample = parse_sample(line)
            if sample is None:
                self.damaged += bool(line.strip())
                continue
            if sample.set not in self.sets:
                self.sets = (*self.sets, sample.set)
            group = sample.step, self.sets.index(sample.set), key_of(sample.problem)
            if self._open is None or self._open.group != group:
                self._rows += self._open.packed() if self._open else b""
                self._open = _Open(group, start)
            self._open.add(sample, self._offset)

    def _forget(self, file: tuple[int, int] | None) -> None:
        self._file, self._offset, self._open, self._rows = file, 0, None, bytearray()
        self.sets, self.damaged, self.behind, self.pieces = (), 0, 0.0, np.empty(0, PIECE)


class _Open:
    """The piece of the last line, which may still grow."""

    def __init__(self, group: tuple[int, int, int], start: int) -> None:
        self.group, self._start, self._end = group, start, start
        self._responses = self._rewards = self._judged = self._correct = 0
        self._reward, self._low, self._high = 0.0, math.inf, -math.inf

    def add(self, sample: Sample, end: int) -> None:
        self._end = end
        self._responses += 1
        if sample.reward is not None and math.isfinite(sample.reward):
            self._rewards += 1
            self._reward += sample.reward
            self._low, self._high = min(self._low, sample.reward), max(self._high, sample.reward)
        if sample.correct is not None:
            self._judged += 1
            self._correct += sample.correct

    def packed(self) -> bytes:
        sums = (self._responses, self._rewards, self._reward, self._low, self._high, self._judged, self._correct)
        return _PIECE.pack(*self.group, self._start, self._end, *sums)
