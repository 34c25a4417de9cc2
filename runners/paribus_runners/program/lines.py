"""Lines that a program appends to a file: read as they come, none longer than a limit, numbered for messages."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from paribus.errors import RunnerError
from paribus.run_folder.json_text import fields, parse_json

MOST_LINE = 1 << 20
"""Most bytes of a line."""

MOST_AT_ONCE = 4 << 20
"""Bytes after which one look ends, so that a fast writer keeps its reader from nothing else."""

_READ = 1 << 18


class Lines:
    """Reads the complete lines that were added since the last call.

    Args:
        path: the file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.number = 0
        self._offset = 0
        self._rest = b""

    @property
    def offset(self) -> int:
        """Number of bytes that were read."""
        return self._offset

    def size(self) -> int:
        """Return the number of bytes that are there; 0 if there is no file."""
        try:
            return self.path.stat().st_size
        except OSError:
            return 0

    def read(self, *, drain: bool = False, ended: bool = False) -> Iterator[bytes]:
        """Yield the lines without their ends, at most about :data:`MOST_AT_ONCE` bytes of them.

        Args:
            drain: whether all are read, since the writer has ended.
            ended: whether the writer has ended, so that a last line without an end counts as well.

        Raises:
            RunnerError: it is no plain file, was cut, or has a line of more than :data:`MOST_LINE` bytes.
        """
        until = math.inf if drain or ended else self._offset + MOST_AT_ONCE
        while self._offset < until and (data := self._next()):
            *complete, self._rest = (self._rest + data).split(b"\n")
            for line in complete:
                self.number += 1
                self._check(line)
                yield line
            self._check(self._rest)
        if ended and self._rest.strip():
            self.number += 1
            line, self._rest = self._rest, b""
            yield line

    def place(self) -> str:
        """Return file and line of the line that was read last."""
        return f"{self.path.name}:{self.number}"

    def _check(self, line: bytes) -> None:
        if len(line) > MOST_LINE:
            number = self.number + (line is self._rest)
            raise RunnerError(
                f"{self.path.name}:{number}: a line of more than {MOST_LINE:,} bytes: write one short JSON object a "
                "step, and text into samples.jsonl or a file of your own"
            )

    def _next(self) -> bytes:
        try:
            number = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK)
        except FileNotFoundError:
            return self._gone()
        except OSError as error:
            raise RunnerError(f"cannot read {self.path}: {error.strerror or error}") from error
        try:
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode):
                raise RunnerError(f"{self.path} is no file: write lines into a plain file of this name")
            if found.st_size < self._offset:
                return self._gone()
            data = os.pread(number, _READ, self._offset)
        finally:
            os.close(number)
        self._offset += len(data)
        return data

    def _gone(self) -> bytes:
        if self._offset:
            raise RunnerError(f"{self.path.name} was cut or replaced after line {self.number}: lines may only be added")
        return b""


def is_there(path: Path, most: int) -> bool:
    """Return whether a program has written a file; one that is there can be opened and fits into memory.

    Args:
        path: the file.
        most: most bytes of it.

    Raises:
        RunnerError: it is no plain file, such as a link or a pipe, on which a reader would wait; or it is too long.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return False
    except OSError as error:
        raise RunnerError(f"cannot read {path}: {error.strerror or error}") from error
    if not stat.S_ISREG(found.st_mode):
        raise RunnerError(f"{path.name} is no plain file: write it as one, since links and pipes are not read")
    if found.st_size > most:
        raise RunnerError(f"{path.name} has {found.st_size:,} bytes, more than {most:,}: keep long texts out of it")
    return True


def as_object(line: bytes, lines: Lines, path: str) -> dict[str, Any]:
    """Return the JSON object in a line.

    Raises:
        RunFolderError: it is not JSON.
        RunnerError: it is no object.
    """
    value = parse_json(line, path, lines.number)
    try:
        return fields(value)
    except ValueError as error:
        raise RunnerError(f'{lines.place()}: {error}: each line is one object, such as {{"step": 1, ...}}') from None


def inside(path: str) -> str:
    """Return the path of a log, which lies in the working folder of the program.

    Raises:
        ValueError: it leads out of that folder, where a log of an earlier run or of another program would be read.
    """
    if path.startswith(("/", "~")) or ".." in path.split("/") or "\0" in path or beside(path) == ".":
        raise ValueError(f"{path!r} must be a path inside the program's working folder, such as `log.jsonl`")
    return path


def beside(word: str) -> str:
    """Return a path as :attr:`Options.sources` has it: without ``./``."""
    return PurePosixPath(word).as_posix()
