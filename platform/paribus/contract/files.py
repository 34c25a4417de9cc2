"""Files that hashes are made of."""

from __future__ import annotations

import errno
import hashlib
import stat
import time
from functools import lru_cache
from pathlib import Path

from paribus.errors import ParibusError

_SETTLED_NS = 2_000_000_000
"""Age from which the next change gets other times: clocks of file systems tick in up to two seconds (FAT, some NFS)."""


def files_in(folder: Path) -> list[Path]:
    """Return all files in a folder and its folders, sorted; none of what is hidden, such as marks of a download.

    Raises:
        ParibusError: a folder cannot be read.
    """
    try:
        shown = (p for p in folder.rglob("*") if not any(x.startswith(".") for x in p.relative_to(folder).parts))
        return sorted(p for p in shown if p.is_file())
    except OSError as error:
        raise ParibusError(f"cannot read {error.filename or folder}: {error.strerror or error}") from error


def file_hash(path: Path) -> str:
    """Return the SHA-256 of a file, 64 hexadecimal digits.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def input_hash(path: Path) -> str:
    """Return :func:`file_hash`; a file that has not changed since the last call in this process is not read again.

    For data and models, which the arms of a study share. It notices writes, not damage of the disk.

    Raises:
        OSError: it cannot be read, or is a device or a pipe, which may have no end.
    """
    now = path.stat()
    if not (stat.S_ISREG(now.st_mode) or stat.S_ISDIR(now.st_mode)):
        raise OSError(errno.EINVAL, "it is a device or a pipe, not a file")
    if time.time_ns() - max(now.st_mtime_ns, now.st_ctime_ns) < _SETTLED_NS:
        return file_hash(path)
    return _hash_at(path.resolve(), now.st_dev, now.st_ino, now.st_size, now.st_mtime_ns, now.st_ctime_ns)


@lru_cache(maxsize=4096)
def _hash_at(path: Path, *_: int) -> str:
    return file_hash(path)
