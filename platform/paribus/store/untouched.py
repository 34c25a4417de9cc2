"""A store, opened without writing a byte into its home folder, also while other processes write.

SQLite itself cannot do that: each connection to a file with a write-ahead log makes or changes the two files beside it.
So the file is copied, with its log, into a temporary folder, and the copy is read. A server gets read-only
transactions.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

from paribus.errors import StoreError
from paribus.store.database import FILE, Database, file_url
from paribus.store.migrate import HEAD, is_newer, revision_of
from paribus.store.reader import Reader

TRIES = 20
"""Copies that are begun before one is complete; the log is begun again about every thousand pages."""

_LOG_HEADER = 32
"""Bytes at the beginning of a log that change whenever it is begun again: they hold two salts."""


@contextmanager
def open_untouched(home: Path, server: sa.URL | None = None) -> Iterator[Reader]:
    """Yield the store of a home folder as it is now, for reading.

    Args:
        home: folder with the run folders, and with the SQLite file unless a server is named.
        server: URL of a PostgreSQL database; ``None``: the file.

    Raises:
        StoreError: there is no store, it cannot be read, or another version of Paribus wrote it.
    """
    if server is not None:
        with Reader(Database(server), home, untouched=True) as reader:
            refuse_other_revision(reader.database, reader.database.name, "")
            yield reader
        return
    if not (home / FILE).is_file():
        raise StoreError(f"there is no store in {home}: run a study first, or name the folder with `home`.")
    with tempfile.TemporaryDirectory(prefix="paribus-") as scratch:
        copy_file(home, Path(scratch))
        with Reader(Database(file_url(Path(scratch))), home, untouched=True) as reader:
            refuse_other_revision(reader.database, str(home / FILE), f" --home {home}")
            yield reader


def refuse_other_revision(database: Database, name: str, option: str) -> None:
    """Check that a database has the revision :data:`HEAD`.

    Args:
        database: the database, or a copy of it.
        name: its name for people.
        option: what `paribus db upgrade` needs to find it.

    Raises:
        StoreError: it is empty, or another version wrote it. The message says what to do.
    """
    with database.read() as connection:
        revision = revision_of(connection)
    if revision == HEAD:
        return
    if revision is None:
        raise StoreError(f"the database {name} is empty: run a study first.")
    remedy = f"An older version wrote it. `paribus db upgrade{option}` upgrades it."
    if is_newer(revision):
        remedy = "A newer version wrote it. Update Paribus."
    raise StoreError(f"the database {name} has revision {revision}, this version of Paribus reads {HEAD}. {remedy}")


def copy_file(home: Path, target: Path) -> None:
    """Copy the SQLite file of a home folder with its log, as they are after some commit, into another folder.

    The file is copied first. Pages that a checkpoint writes into it meanwhile come from frames of the log, and the log
    that is copied after it has these frames, as long as it has not been begun again: then both are copied once more. A
    frame at the end that is not complete fails its checksum, so SQLite ignores it. Without a log only the time
    of the file shows that another process wrote meanwhile.

    No connection of this process may be open on the file: to close the copied file gives up the process's locks on it.

    Raises:
        StoreError: the files cannot be read, or the log was begun again during each of :data:`TRIES` copies.
    """
    log = home / f"{FILE}-wal"
    try:
        for _ in range(TRIES):
            before, written = _header(log), _stamp(home / FILE)
            shutil.copyfile(home / FILE, target / FILE)
            (target / log.name).unlink(missing_ok=True)
            if before:
                shutil.copyfile(log, target / log.name)
            if _header(log) == before and (before or _stamp(home / FILE) == written):
                return
    except FileNotFoundError:  # the last process that worked with the file has just removed its log
        if (home / FILE).is_file() and not log.exists():
            copy_file(home, target)
            return
        raise StoreError(f"there is no store in {home} any more.") from None
    except OSError as error:
        raise StoreError(f"cannot read the store in {home}: {error}") from error
    raise StoreError(f"the store in {home} changes too fast to be copied: try again.")


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_size


def _header(log: Path) -> bytes:
    try:
        with log.open("rb") as file:
            return file.read(_LOG_HEADER)
    except FileNotFoundError:
        return b""
