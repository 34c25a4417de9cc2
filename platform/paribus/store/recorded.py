"""Which runs have a result already: asked at plan time, so for a file without SQLAlchemy and without making one."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from paribus.errors import StoreError
from paribus.study.home import DATABASE_URL

_BATCH = 500


def recorded_runs(home: Path, fingerprints: Iterable[str]) -> frozenset[str]:
    """Return those of the fingerprints whose run has a result in the store of ``home``; none if there is no store.

    Raises:
        StoreError: the file is there but cannot be read as a store, or the server cannot be reached.
    """
    if os.environ.get(DATABASE_URL):
        return _on_the_server(home, list(fingerprints))
    file = home / "paribus.db"
    if not file.is_file():
        return frozenset()
    asked = list(fingerprints)
    found: set[str] = set()
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'result'").fetchone():
                return frozenset()
            for start in range(0, len(asked), _BATCH):
                batch = asked[start : start + _BATCH]
                marks = ",".join("?" * len(batch))
                query = (
                    f"SELECT fingerprint FROM run JOIN result ON result.run_id = run.id WHERE fingerprint IN ({marks})"  # noqa: S608 - only marks
                )
                found.update(row[0] for row in connection.execute(query, batch))
    except sqlite3.Error as error:
        raise StoreError(
            f"cannot read the store {file}: {error}. Move the file away to start with a new one."
        ) from error
    return frozenset(found)


def _on_the_server(home: Path, asked: list[str]) -> frozenset[str]:
    from paribus.store.database import Database, database_url
    from paribus.store.migrate import revision_of
    from paribus.store.reader import Reader

    with Reader(Database(database_url(home)), home) as reader:
        with reader.database.read() as connection:
            if revision_of(connection) is None:
                return frozenset()
        batches = (asked[start : start + _BATCH] for start in range(0, len(asked), _BATCH))
        return frozenset(fingerprint for batch in batches for fingerprint in reader.results(batch))
