"""How much of each run is in MLflow: a small SQLite file that the sync process writes, and ``paribus doctor --replay``.

Everything hangs on a destination: an experiment in the database behind a tracking URI, known by a mark that is a tag of
the experiment. If the database is replaced or the URI changes, the mark is another one, and all runs are sent again. A
destination that was used before is known again.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from paribus.mlflow_sync.client import tracking_uri
from paribus.mlflow_sync.database_file import file_of, marks_in, read_only
from paribus.run_folder.folder import MetricLine

OFFSETS = "shipper.db"  # the name of earlier versions, whose tables `mirror` and `offset` are read once

_TABLES = """
CREATE TABLE IF NOT EXISTS destination (uri TEXT, study TEXT, mark TEXT NOT NULL, PRIMARY KEY (uri, study));
CREATE TABLE IF NOT EXISTS copy (
    mark TEXT, run TEXT, identity TEXT NOT NULL, owner INTEGER NOT NULL, closed INTEGER NOT NULL,
    PRIMARY KEY (mark, run));
CREATE TABLE IF NOT EXISTS sent (identity TEXT, token INTEGER, bytes INTEGER NOT NULL, PRIMARY KEY (identity, token));
CREATE TABLE IF NOT EXISTS health (
    identity TEXT PRIMARY KEY, step INTEGER NOT NULL, time_ms INTEGER NOT NULL, counts TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS refused (identity TEXT, name TEXT, PRIMARY KEY (identity, name));
CREATE TABLE IF NOT EXISTS dead_letter (
    uri TEXT, run TEXT, token INTEGER NOT NULL, reason TEXT NOT NULL, PRIMARY KEY (uri, run));
CREATE TABLE IF NOT EXISTS parent (
    mark TEXT, study TEXT, arm TEXT, identity TEXT NOT NULL, shown TEXT NOT NULL, PRIMARY KEY (mark, study, arm));
CREATE TABLE IF NOT EXISTS child (
    identity TEXT PRIMARY KEY, study TEXT NOT NULL, arm TEXT NOT NULL, parent TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS refused_group (uri TEXT, name TEXT, reason TEXT NOT NULL, PRIMARY KEY (uri, name));
CREATE TABLE IF NOT EXISTS replayed (number INTEGER PRIMARY KEY AUTOINCREMENT);
"""
_CURRENT = """
SELECT copy.run, copy.identity, copy.closed, copy.mark FROM copy
JOIN destination ON destination.mark = copy.mark WHERE destination.uri = ?
"""
_REFUSED_RUNS = """
SELECT run FROM copy WHERE identity IN (SELECT identity FROM refused) UNION SELECT run FROM dead_letter
"""
_CHILDREN = """
SELECT copy.run, child.study, child.arm, child.identity, child.parent FROM child
JOIN copy ON copy.identity = child.identity JOIN destination ON destination.mark = copy.mark WHERE destination.uri = ?
"""
_REPLAY = (
    "DELETE FROM sent WHERE identity IN (SELECT identity FROM refused)",
    "UPDATE copy SET closed = 0 WHERE identity IN (SELECT identity FROM refused)",
    "DELETE FROM refused",
    # its run in MLflow may have been deleted: it is looked for again, and made if it is gone
    "DELETE FROM copy WHERE run IN (SELECT run FROM dead_letter)",
    "DELETE FROM dead_letter",
    # one that was deleted in MLflow is made again, and its runs are linked to the new one
    "DELETE FROM parent WHERE EXISTS (SELECT 1 FROM refused_group)",
    "DELETE FROM refused_group",
    "INSERT INTO replayed DEFAULT VALUES",
)


def _rows(home: Path, query: str, *values: str, timeout_s: float) -> list[Any]:
    """Return rows of the file; none if there is none yet, or another process keeps it locked."""
    with suppress(sqlite3.Error), read_only(home / OFFSETS, timeout_s) as database:
        return database.execute(query, values).fetchall()
    return []


def _copies(home: Path, timeout_s: float) -> Iterator[tuple[str, str, int]]:
    """Yield run, id in MLflow, and the newest complete attempt of each copy in the MLflow that is named now."""
    uri = tracking_uri(home)
    file = file_of(uri)
    marks = None if file is None else marks_in(file)
    for run, identity, closed, mark in _rows(home, _CURRENT, _key(uri), timeout_s=timeout_s):
        if marks is None or mark in marks:
            yield run, identity, closed


def identity_of(home: Path, run: str) -> str | None:
    """Return a run's id in MLflow without waiting for the sync process; ``None`` if the run has none yet."""
    return next((identity for known, identity, _ in _copies(home, 1) if known == run), None)


def unsynced(home: Path, runs: Mapping[str, int]) -> frozenset[str]:
    """Return those of the given runs (with their newest token) that are not completely in MLflow."""
    closed = {run: token for run, _, token in _copies(home, 30)}
    return frozenset(run for run, token in runs.items() if closed.get(run, 0) < token)


def forget(home: Path, runs: Collection[str]) -> None:
    """Forget runs that were deleted here; their copies in MLflow stay.

    Raises:
        sqlite3.Error: the file cannot be written.
    """
    if not runs or not (home / OFFSETS).is_file():
        return
    with closing(sqlite3.connect(home / OFFSETS, timeout=30)) as database, database:
        database.executescript(_TABLES)
        for run in runs:
            for table in ("sent", "health", "refused", "child"):
                mine = f"DELETE FROM {table} WHERE identity IN (SELECT identity FROM copy WHERE run = ?)"  # noqa: S608
                database.execute(mine, (run,))
            for table in ("copy", "dead_letter"):
                database.execute(f"DELETE FROM {table} WHERE run = ?", (run,))  # noqa: S608 - our own names


def refused_names(home: Path) -> tuple[str, ...]:
    """Return the metric names that MLflow has refused in any run of this home folder."""
    return tuple(name for (name,) in _rows(home, "SELECT DISTINCT name FROM refused ORDER BY name", timeout_s=1))


def dead_letters(home: Path, uri: str | None = None) -> dict[str, str]:
    """Return why MLflow refuses runs of this home folder that are not tried again, by run.

    Args:
        home: home folder.
        uri: tracking URI; ``None``: all that were ever used. A scheduler may have another one than the caller.
    """
    query = "SELECT run, reason FROM dead_letter WHERE ? IN ('', uri) ORDER BY run"
    return dict(_rows(home, query, "" if uri is None else _key(uri), timeout_s=1))


def refused_groups(home: Path, uri: str | None = None) -> dict[str, str]:
    """Return why MLflow refuses parent runs of studies and arms, or links to them, by what they are.

    Args:
        home: home folder.
        uri: tracking URI; ``None``: all that were ever used.
    """
    query = "SELECT name, reason FROM refused_group WHERE ? IN ('', uri) ORDER BY name"
    return dict(_rows(home, query, "" if uri is None else _key(uri), timeout_s=1))


def replay(home: Path) -> int:
    """Let the sync try again all that MLflow has refused: dead letters, and the points of refused names.

    What was sent before is sent again with the times of its records, which doubles nothing.

    Returns:
        The number of runs, and of groups of runs, that are tried again.
    """
    if not (home / OFFSETS).exists():
        return 0
    offsets = Offsets(home)
    try:
        return offsets.replay()
    finally:
        offsets.close()


class Offsets:
    """Destinations, the ids of runs in MLflow, and offsets into the metric files of run folders.

    Args:
        home: home folder.
        uri: tracking URI; by default that of the home folder.
    """

    def __init__(self, home: Path, uri: str | None = None) -> None:
        self._uri = _key(uri or tracking_uri(home))
        self._database = sqlite3.connect(home / OFFSETS, timeout=30, isolation_level=None)
        self._database.executescript(_TABLES)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    # ---- destinations ----------------------------------------------------------------------------

    def marks(self) -> dict[str, str]:
        """Return the mark of each study's experiment, as it was seen last."""
        query = "SELECT study, mark FROM destination WHERE uri = ?"
        return dict(self._database.execute(query, (self._uri,)).fetchall())

    def arrive(self, study: str, mark: str) -> None:
        """Note the mark of a study's experiment; empty if the experiment has gone."""
        self._database.execute("INSERT OR REPLACE INTO destination VALUES (?, ?, ?)", (self._uri, study, mark))

    def adopt(self, mark: str, identities: Collection[str]) -> None:
        """Take over what an earlier version noted of these runs in MLflow."""
        with suppress(sqlite3.OperationalError):  # there is nothing of an earlier version
            for run, identity, closed in self._database.execute("SELECT run, identity, closed FROM mirror").fetchall():
                if identity not in identities:
                    continue
                self._database.execute(
                    "INSERT OR IGNORE INTO copy VALUES (?, ?, ?, 0, ?)", (mark, run, identity, closed)
                )
                sent = "INSERT OR IGNORE INTO sent SELECT ?, token, bytes FROM offset WHERE run = ?"
                self._database.execute(sent, (identity, run))

    # ---- runs ------------------------------------------------------------------------------------

    def opened(self, run: str, mark: str, identity: str) -> None:
        """Note a run's id in MLflow."""
        self._database.execute("INSERT OR REPLACE INTO copy VALUES (?, ?, ?, 0, 0)", (mark, run, identity))

    def identity(self, run: str) -> str | None:
        """Return a run's id in MLflow; ``None`` if it has none yet."""
        row = self._database.execute(f"{_CURRENT} AND copy.run = ?", (self._uri, run)).fetchone()
        return None if row is None else str(row[1])

    def owner(self, identity: str) -> int:
        """Return the newest attempt that was noted in MLflow as the owner of a run; 0 before the first."""
        row = self._database.execute("SELECT MAX(owner) FROM copy WHERE identity = ?", (identity,)).fetchone()
        return int(row[0] or 0)

    def own(self, identity: str, token: int) -> None:
        """Note that MLflow knows the newest attempt of a run."""
        self._database.execute("UPDATE copy SET owner = ? WHERE identity = ?", (token, identity))

    def closed(self, identity: str, token: int) -> None:
        """Note that a run is completely in MLflow, up to its attempt ``token``."""
        self._database.execute("UPDATE copy SET closed = ? WHERE identity = ?", (token, identity))

    def closed_runs(self) -> dict[str, int]:
        """Return, by run, the attempt up to which it is completely in MLflow; a run may be retried after its end."""
        rows = self._database.execute(f"{_CURRENT} AND copy.closed > 0", (self._uri,))
        return {run: closed for run, _, closed, _ in rows.fetchall()}

    # ---- what of a run was sent ------------------------------------------------------------------

    def offset(self, identity: str, token: int) -> int:
        """Return how many bytes of an attempt's metric file have been sent."""
        query = "SELECT bytes FROM sent WHERE identity = ? AND token = ?"
        row = self._database.execute(query, (identity, token)).fetchone()
        return 0 if row is None else int(row[0])

    def advance(self, identity: str, token: int, bytes_: int) -> None:
        """Note that an attempt's metric file has been sent up to ``bytes_``."""
        self._database.execute("INSERT OR REPLACE INTO sent VALUES (?, ?, ?)", (identity, token, bytes_))

    def rewind(self, identity: str) -> None:
        """Forget the offsets of a run, so that it is sent again."""
        self._database.execute("DELETE FROM sent WHERE identity = ?", (identity,))

    def health(self, identity: str) -> MetricLine | None:
        """Return the newest point of a run's health that was or will be sent."""
        query = "SELECT step, time_ms, counts FROM health WHERE identity = ?"
        row = self._database.execute(query, (identity,)).fetchone()
        return None if row is None else MetricLine(step=row[0], time_ms=row[1], values=json.loads(row[2]))

    def note_health(self, identity: str, line: MetricLine) -> None:
        """Note a point of a run's health before it is sent."""
        row = (identity, line.step, line.time_ms, json.dumps(dict(line.values)))
        self._database.execute("INSERT OR REPLACE INTO health VALUES (?, ?, ?, ?)", row)

    def refused(self, identity: str) -> frozenset[str]:
        """Return the metric names of a run that MLflow has refused."""
        rows = self._database.execute("SELECT name FROM refused WHERE identity = ?", (identity,))
        return frozenset(name for (name,) in rows.fetchall())

    # ---- groups ----------------------------------------------------------------------------------

    def parent(self, study: str, arm: str) -> tuple[str, str] | None:
        """Return the id in MLflow of a group and what it shows; ``None`` if there is none. No arm: of the study."""
        query = """
            SELECT parent.identity, parent.shown FROM parent JOIN destination ON destination.mark = parent.mark
            WHERE destination.uri = ? AND parent.study = ? AND parent.arm = ?
        """
        row = self._database.execute(query, (self._uri, study, arm)).fetchone()
        return None if row is None else (str(row[0]), str(row[1]))

    def note_parent(self, study: str, arm: str, identity: str, shown: str) -> None:
        """Note the id in MLflow of a group, and what it shows."""
        row = (self.marks().get(study, ""), study, arm, identity, shown)
        self._database.execute("INSERT OR REPLACE INTO parent VALUES (?, ?, ?, ?, ?)", row)

    def note_child(self, identity: str, study: str, arm: str, parent: str) -> None:
        """Note the group of a run in MLflow, and the id of the group that MLflow knows, or an empty string."""
        self._database.execute("INSERT OR REPLACE INTO child VALUES (?, ?, ?, ?)", (identity, study, arm, parent))

    def note_link(self, identity: str, parent: str) -> None:
        """Note that MLflow knows the group of a run."""
        self._database.execute("UPDATE child SET parent = ? WHERE identity = ?", (parent, identity))

    def without_group(self) -> list[tuple[str, str]]:
        """Return the runs in MLflow of which no group is noted, as earlier versions left them, and their ids there."""
        known = {identity for (identity,) in self._database.execute("SELECT identity FROM child")}
        rows = self._database.execute(_CURRENT, (self._uri,)).fetchall()
        return [(run, identity) for run, identity, *_ in rows if identity not in known]

    def children(self) -> list[tuple[str, str, str, str, str]]:
        """Return of each run in MLflow: run, study, arm, its id there, and the id of its group as noted there."""
        return [tuple(row) for row in self._database.execute(_CHILDREN, (self._uri,)).fetchall()]

    def refused_groups(self) -> frozenset[str]:
        """Return the names of the groups that MLflow refuses."""
        rows = self._database.execute("SELECT name FROM refused_group WHERE uri = ?", (self._uri,))
        return frozenset(name for (name,) in rows.fetchall())

    def refuse_group(self, name: str, reason: str) -> None:
        """Note that MLflow refuses a group, and why."""
        self._database.execute("INSERT OR REPLACE INTO refused_group VALUES (?, ?, ?)", (self._uri, name, reason))

    # ---- dead letters ----------------------------------------------------------------------------

    def dead(self) -> dict[str, int]:
        """Return, by run, the attempt at which MLflow refused it for good; a later attempt is tried again."""
        query = "SELECT run, token FROM dead_letter WHERE uri = ?"
        return dict(self._database.execute(query, (self._uri,)).fetchall())

    def bury(self, run: str, token: int, reason: str) -> None:
        """Note that MLflow refuses a run, and why."""
        row = (self._uri, run, token, reason)
        self._database.execute("INSERT OR REPLACE INTO dead_letter VALUES (?, ?, ?, ?)", row)

    def replay(self) -> int:
        """Forget all refusals, at all tracking URIs; return the number of runs and groups that have had one."""
        with self._transaction() as database:
            runs = {run for (run,) in database.execute(_REFUSED_RUNS)}
            runs |= {name for (name,) in database.execute("SELECT name FROM refused_group")}
            for statement in _REPLAY:
                database.execute(statement)
        return len(runs)

    def replays(self) -> int:
        """Return how often :meth:`replay` was called: what a process remembers of offsets is old after each."""
        return int(self._database.execute("SELECT COALESCE(MAX(number), 0) FROM replayed").fetchone()[0])

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield self._database
        except BaseException:
            self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")

    def refuse(self, identity: str, names: Collection[str]) -> None:
        """Note metric names of a run that MLflow refuses."""
        self._database.executemany("INSERT OR IGNORE INTO refused VALUES (?, ?)", [(identity, n) for n in names])


def _key(uri: str) -> str:
    """Return what stands for a tracking URI: a hash, without the credentials, which may be renewed."""
    parts = urlsplit(uri)
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl().rstrip("/")
    return hashlib.sha256(plain.encode()).hexdigest()[:16]
