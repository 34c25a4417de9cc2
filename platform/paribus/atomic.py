"""Files that appear whole or not at all: a reader sees no half, and a killed writer leaves none under their name."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, content: str | bytes, *, synced: bool = False, private: bool = False) -> None:
    """Write a file beside its place, then give it its name; nothing is left of one that cannot be written.

    Args:
        path: the file; one that is there is replaced.
        content: what it will hold; text is written in UTF-8.
        synced: whether it is on the disk before it gets its name: what a power cut must not lose.
        private: whether only its owner may read it, from its first byte on.

    Raises:
        OSError: the file cannot be written, e.g. because the disk is full; the one of before stays as it was.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.unlink(missing_ok=True)  # of a process with the same number that was killed
        number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o666)
        with os.fdopen(number, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
