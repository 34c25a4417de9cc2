"""Copies metrics to TensorBoard event files, for studies with ``mirror: [tensorboard]``.

One file a run, ``tensorboard/STUDY/ARM/seed-N-RUN/`` in the home folder, and one event a step: the unit that is there
or not. The file itself says which steps it has, so after a kill the next process cuts off what is not whole and goes
on where it ends; nothing is lost and nothing doubled. Values are single precision, as TensorBoard keeps them.
"""

from __future__ import annotations

import importlib.util
import io
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.mlflow_sync.copies import Copies, Tails
from paribus.run_folder.attempt_files import read_job
from paribus.run_folder.folder import SHORT, MetricLine, RunFolder
from paribus.store.models import AttemptedRun

FOLDER = "tensorboard"
"""Folder of the event files in the home folder."""

FILE = "events.out.tfevents.0.paribus"

_VERSION = "brain.Event:2"
_HEADER, _FOOTER = 12, 4
"""Bytes around the content of a record: its length and a checksum of it; a checksum of the content."""

_LONGEST = 200
"""Most bytes of the name of an arm's folder: file systems take 255."""


def tensorboard_is_installed() -> bool:
    """Return whether TensorBoard is installed, without importing it."""
    return importlib.util.find_spec("tensorboard") is not None


class EventFiles(Copies):
    """The event files of a home folder."""

    folder = FOLDER
    kind = "event file"

    def open(self, run: AttemptedRun, folders: Mapping[int, RunFolder]) -> _RunFile | None:
        """Return the event file of a run; ``None`` if its study wants none."""
        job = read_job(folders[min(folders)].job)
        if "tensorboard" not in job.mirror:
            return None
        arm = re.sub(r"[^\w .+=-]", "_", job.arm).encode()[:_LONGEST].decode(errors="ignore").strip(". ") or "arm"
        return _RunFile(self.place / job.study / arm / f"seed-{job.seed}-{run.fingerprint[:SHORT]}" / FILE)


class _RunFile:
    """The event file of one run, and how far it has come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch()
        self._steps = _recover(self._path)
        self._tails = Tails(self._path)

    def take(self, folders: Mapping[int, RunFolder], run: AttemptedRun) -> None:
        """Write the lines that were added to metric files."""
        if not self._path.exists():  # it was deleted
            self._begin()
        for token, folder in folders.items():
            while lines := self._tails.read(token, folder):
                try:
                    self._append(lines)
                except OSError:
                    self._tails.rewind(token)  # what is written already is not written again
                    raise

    def _append(self, lines: Sequence[MetricLine]) -> None:
        fresh = {line.step: line for line in reversed(lines) if line.step not in self._steps}
        events = [_event(fresh[step]) for step in sorted(fresh)]
        end = self._path.stat().st_size
        if not end:
            events.insert(0, _new_event(wall_time=lines[0].time_ms / 1000, file_version=_VERSION))
        data = _framed(events)
        with self._path.open("ab", buffering=0) as file:
            try:
                while data:
                    data = data[file.write(data) :]
            except OSError:
                file.truncate(end)  # a full disk took a part
                raise
        self._steps |= fresh.keys()


def _new_event(**values: Any) -> Any:
    from tensorboard.compat.proto.event_pb2 import Event

    return Event(**values)


def _event(line: MetricLine) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    values = [Summary.Value(tag=name, simple_value=value) for name, value in line.values.items()]
    return _new_event(wall_time=line.time_ms / 1000, step=line.step, summary=Summary(value=values))


def _framed(events: Sequence[Any]) -> bytes:
    from tensorboard.summary.writer.record_writer import RecordWriter

    out = io.BytesIO()
    writer = RecordWriter(out)
    for event in events:
        writer.write(event.SerializeToString())
    return out.getvalue()


def _recover(path: Path) -> set[int]:
    """Return the steps that a file has; cut off what comes after its last whole record."""
    from google.protobuf.message import DecodeError

    with path.open("r+b") as file:
        records, steps = list(_records(file)), set[int]()
        if records and not records[-1].is_whole():
            records.pop()
        end = 0
        for record in records:
            try:
                step = record.step()
            except DecodeError:  # what follows is written again
                break
            end, steps = record.end, steps if step is None else steps | {step}
        file.truncate(end)
    return steps


@dataclass(frozen=True)
class _Record:
    """A record of a file: its content, the checksum of that, and where it ends."""

    content: bytes
    checksum: int
    end: int

    def is_whole(self) -> bool:
        """Compare the checksum; it takes TensorBoard as long as writing, so only the last record's is."""
        return self.checksum == _checksum(self.content)

    def step(self) -> int | None:
        event = _new_event()
        event.MergeFromString(self.content)
        return int(event.step) if event.HasField("summary") else None


def _records(file: Any) -> Iterator[_Record]:
    """Yield records up to the first that is cut, or whose length is damaged."""
    at = 0
    while len(header := file.read(_HEADER)) == _HEADER:
        length, checksum = struct.unpack("<QI", header)
        if checksum != _checksum(header[:8]):
            return
        content, footer = file.read(length), file.read(_FOOTER)
        if len(footer) < _FOOTER:
            return
        at += _HEADER + length + _FOOTER
        yield _Record(content, struct.unpack("<I", footer)[0], at)


def _checksum(data: bytes) -> int:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    return int(masked_crc32c(data))
