"""How much of each run is in MLflow: a small SQLite file that only the sync process writes."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

FILE = "shipper.db"  # the name and tables of earlier versions, so that their homes continue
_TABLES = """
CREATE TABLE IF NOT EXISTS mirror (run TEXT PRIMARY KEY, identity TEXT NOT NULL, closed INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS offset (run TEXT, token INTEGER, bytes INTEGER NOT NULL, PRIMARY KEY (run, token));
"""
_IDENTITY = "SELECT identity FROM mirror WHERE run = ?"


def identity_of(home: Path, run: str) -> str | None:
    """Return a run's id in MLflow without waiting for the sync process; ``None`` if the run has none yet."""
    try:
        with closing(sqlite3.connect(f"{(home / FILE).resolve().as_uri()}?mode=ro", uri=True, timeout=1)) as database:
            row = database.execute(_IDENTITY, (run,)).fetchone()
    except sqlite3.Error:
        return None
    return None if row is None else str(row[0])


class Offsets:
    """Offsets into the metric files of run folders, and the ids of runs in MLflow."""

    def __init__(self, home: Path) -> None:
        self._database = sqlite3.connect(home / FILE, timeout=30, isolation_level=None)
        self._database.executescript(_TABLES)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def identity(self, run: str) -> str | None:
        """Return a run's id in MLflow; ``None`` if it has none yet."""
        row = self._database.execute(_IDENTITY, (run,)).fetchone()
        return None if row is None else str(row[0])

    def opened(self, run: str, identity: str) -> None:
        """Note a run's id in MLflow."""
        self._database.execute("INSERT OR REPLACE INTO mirror VALUES (?, ?, 0)", (run, identity))

    def offset(self, run: str, token: int) -> int:
        """Return how many bytes of an attempt's metric file have been sent."""
        query = "SELECT bytes FROM offset WHERE run = ? AND token = ?"
        row = self._database.execute(query, (run, token)).fetchone()
        return 0 if row is None else int(row[0])

    def advance(self, run: str, token: int, bytes_: int) -> None:
        """Note that an attempt's metric file has been sent up to ``bytes_``."""
        self._database.execute("INSERT OR REPLACE INTO offset VALUES (?, ?, ?)", (run, token, bytes_))

    def rewind(self, run: str) -> None:
        """Forget the offsets of a run, so that it is sent again."""
        self._database.execute("DELETE FROM offset WHERE run = ?", (run,))

    def closed(self, run: str, token: int) -> None:
        """Note that a run is completely in MLflow, up to its attempt ``token``."""
        self._database.execute("UPDATE mirror SET closed = ? WHERE run = ?", (token, run))

    def closed_runs(self) -> dict[str, int]:
        """Return, by run, the attempt up to which it is completely in MLflow; a run may be retried after its end."""
        return dict(self._database.execute("SELECT run, closed FROM mirror WHERE closed > 0").fetchall())


def unsynced(home: Path, runs: Mapping[str, int]) -> frozenset[str]:
    """Return those of the given runs (with their newest token) that are not completely in MLflow."""
    asked = frozenset(runs)
    file = home / FILE
    if not file.is_file():
        return asked
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=30)) as database:
        try:
            closed = dict(database.execute("SELECT run, closed FROM mirror").fetchall())
        except sqlite3.OperationalError:  # created, but still without tables
            return asked
    return frozenset(run for run, token in runs.items() if closed.get(run, 0) < token)
