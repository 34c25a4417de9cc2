"""Folders for temporary files that go with the process that made them, also if it is killed.

A process holds a lock on each of its folders. One without a lock is left from a process that was killed, and is
deleted by the next that makes such a folder; not where the file system has no locks.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import socket
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple


class Scratch(NamedTuple):
    """A folder of this process. A context manager: leaving it deletes the folder.

    Attributes:
        path: the folder.
        lock: an open file that holds the lock on it; ``None`` where the file system has no locks for folders, as NFS.
    """

    path: Path
    lock: int | None

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def delete(self) -> None:
        """Delete the folder with all that it holds, as far as that is possible, and give up its lock."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.lock is not None:
            os.close(self.lock)


def prefix(kind: str) -> str:
    """Return how the names of this machine's folders for ``kind`` begin.

    Other machines may share the folder for temporary files, and their locks may not be seen here.
    """
    return f"paribus-{kind}-{re.sub(r'[^A-Za-z0-9]', '_', socket.gethostname())}-"


def make(kind: str) -> Scratch:
    """Return a new folder, and delete those for the same ``kind`` that killed processes have left.

    Raises:
        OSError: it cannot be made.
    """
    made = _made(prefix(kind))
    for left in Path(tempfile.gettempdir()).glob(f"{prefix(kind)}*") if made.lock is not None else ():
        with suppress(OSError):  # another user's cannot be opened; one that is held cannot be locked
            Scratch(left, _locked(left, fcntl.LOCK_NB)).delete()
    return made


def _made(prefix: str) -> Scratch:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        try:
            lock = _locked(path)
        except FileNotFoundError:  # another process has found and deleted it before it was locked
            continue
        except OSError:
            return Scratch(path, None)
        if path.exists():
            return Scratch(path, lock)
        os.close(lock)


def _locked(folder: Path, how: int = 0) -> int:
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | how)
    except OSError:
        os.close(lock)
        raise
    return lock
