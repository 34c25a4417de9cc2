"""An archive, opened for reading: its rows in a store of their own, its run folders beside it, all temporary."""

from __future__ import annotations

from pathlib import Path

from paribus.archive.restore import unpack
from paribus.archive.tar_file import RUNS, STORE, ArchiveReader
from paribus.errors import ArchiveError
from paribus.store.database import Database, file_url
from paribus.store.migrate import migrate
from paribus.store.reader import Reader
from paribus.store.transfer import insert_rows

_UNREAD = ("checkpoints", "stdout.log", "mirror")
"""Parts of a run folder that no report reads."""


def open_archive(archive: Path, folder: Path) -> Reader:
    """Return the study in an archive as a store.

    Every file of the archive is checked against its SHA-256. The database that the environment names is left alone.

    Args:
        archive: file of `paribus export`.
        folder: empty folder that becomes the home folder of the study, without checkpoints; it must exist
            as long as the study is read.

    Raises:
        ArchiveError: it is not an archive, is damaged, or does not fit on the disk.
    """
    with ArchiveReader(archive) as reader:
        try:
            rows = unpack(reader, folder, wanted=is_read)
        except OSError as error:
            raise ArchiveError(f"cannot unpack {archive} into {folder}: {error}") from error
    database = Database(file_url(folder))
    try:
        migrate(database, folder / "migrate.lock")
        with database.write() as connection:
            insert_rows(connection, rows, "")
    except BaseException:
        database.close()
        raise
    return Reader(database, folder, untouched=True)


def is_read(name: str) -> bool:
    """Whether a report reads a file of the archive."""
    parts = name.split("/")
    return name == STORE or (parts[0] == RUNS and parts[3] not in _UNREAD)
