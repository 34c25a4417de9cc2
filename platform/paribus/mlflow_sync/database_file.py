"""MLflow's SQLite file: made at once or not at all, half-made ones set aside, and short looks at its tables.

MLflow creates some seventy tables in many transactions. Killed in between, it cannot open the file again. So the
tables are made in a temporary file, which is renamed when it is complete. Nothing here imports MLflow before it must.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

MARK_TAG = "paribus.destination"
"""Tag of an experiment that identifies the database behind a tracking URI."""

ARTIFACTS = "mlartifacts"
"""Folder of artifacts beside the file."""

QUIET_S = 30.0
"""Seconds without a write after which no process is making the tables any more."""

_HALF_MADE = "half-made"
_PREFIX = "sqlite:///"
_BESIDE = ("-wal", "-shm", "-journal")
_WAIT_S = 20.0
_log = logging.getLogger("paribus.mlflow_sync")


def file_of(uri: str) -> Path | None:
    """Return the SQLite file of a tracking URI; ``None`` if it has none."""
    path = uri.removeprefix(_PREFIX).partition("?")[0]
    return Path(path) if uri.startswith(_PREFIX) and path not in ("", ":memory:") else None


@contextmanager
def prepared(file: Path) -> Iterator[None]:
    """Make the tables of a file that is missing, empty or half-made; hold its lock meanwhile and in the context."""
    from filelock import FileLock

    with FileLock(file.with_suffix(".lock")):
        for left in file.parent.glob(f".{file.name}.new-*"):  # of processes that were killed
            left.unlink(missing_ok=True)
        if is_half_made(file):
            _set_aside(file)
        if not file.exists() or file.stat().st_size == 0:
            _make(file)
        _follow_move(file)
        yield


def _follow_move(file: Path) -> None:
    """Correct the paths of artifacts after a move of the home folder: MLflow keeps them absolute.

    Only those of experiments that Paribus has made, whose folder has gone and lies beside the file now.
    """
    query = """
        SELECT experiments.experiment_id, artifact_location FROM experiments
        JOIN experiment_tags ON experiment_tags.experiment_id = experiments.experiment_id AND key = ?
    """
    with closing(sqlite3.connect(file, timeout=_WAIT_S)) as database, suppress(sqlite3.OperationalError), database:
        for identity, location in database.execute(query, (MARK_TAG,)).fetchall():
            old = _path_of(location)
            new = file.parent.resolve() / ARTIFACTS / old.name if old is not None else None
            if old is None or new is None or old == new or old.parent.name != ARTIFACTS or old.exists():
                continue
            if not new.is_dir():
                continue
            database.execute(
                "UPDATE runs SET artifact_uri = ? || substr(artifact_uri, ?) "
                "WHERE experiment_id = ? AND substr(artifact_uri, 1, ?) = ?",
                (new.as_uri(), len(location) + 1, identity, len(location), location),
            )
            place = (new.as_uri(), identity)
            database.execute("UPDATE experiments SET artifact_location = ? WHERE experiment_id = ?", place)
            _log.warning("the artifacts of MLflow's experiment %s have moved to %s", identity, new)


def _path_of(uri: str) -> Path | None:
    parts = urlsplit(uri or "")
    return Path(unquote(parts.path)) if parts.scheme == "file" and not parts.netloc else None


def is_half_made(file: Path) -> bool:
    """Return whether the creation of MLflow's tables was killed in this file. Such a file holds no run.

    A file that MLflow can complete by itself is half-made, too; one with runs never is, nor is one that was written to
    in the last :data:`QUIET_S` seconds.
    """
    with suppress(OSError, sqlite3.Error):
        if file.stat().st_size == 0 or time.time() - file.stat().st_mtime < QUIET_S:
            return False
        with closing(sqlite3.connect(file, timeout=1)) as database:
            tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if not tables & {"experiments", "alembic_version"} or _count(database, tables, "runs"):
                return False
            named = _count(database, tables, "experiments", "WHERE name != 'Default'")
            return not named and _revision(database, tables) != _newest_revision()
    return False


def read_only(file: Path, timeout_s: float) -> AbstractContextManager[sqlite3.Connection]:
    """Return a connection for reading, closed at the end of the context; it never creates the file."""
    return closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", timeout=timeout_s, uri=True))


def marks_in(file: Path) -> frozenset[str]:
    """Return the marks of the experiments in a file; none if it is missing or has no such table."""
    with suppress(sqlite3.Error), read_only(file, 1) as database:
        found = database.execute("SELECT value FROM experiment_tags WHERE key = ?", (MARK_TAG,))
        return frozenset(value for (value,) in found)
    return frozenset()


def doubled_points(file: Path) -> dict[str, int]:
    """Return, by run id in MLflow, how many steps of its metrics hold more than one point, for all runs with any."""
    query = """
        SELECT run_uuid, COUNT(*) FROM (
            SELECT m.run_uuid FROM metrics m JOIN tags t ON t.run_uuid = m.run_uuid AND t.key = 'paribus.run'
            GROUP BY m.run_uuid, m.key, m.step HAVING COUNT(*) > 1
        ) GROUP BY run_uuid
    """
    with read_only(file, _WAIT_S) as database:
        return dict(database.execute(query).fetchall())


def _make(file: Path) -> None:
    """Make the tables in a temporary file, and rename it."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    temporary = file.with_name(f".{file.name}.new-{os.getpid()}")
    store = SqlAlchemyStore(f"{_PREFIX}{temporary}", str(file.parent / ARTIFACTS))
    store.engine.dispose()
    with closing(sqlite3.connect(temporary)) as database:
        database.execute("PRAGMA journal_mode = WAL")
    with temporary.open("rb") as made:
        os.fsync(made.fileno())
    for suffix in _BESIDE:  # of a file that was deleted: SQLite would take their content into the new one
        file.with_name(file.name + suffix).unlink(missing_ok=True)
    temporary.replace(file)
    folder = os.open(file.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _set_aside(file: Path) -> None:
    kept = next(p for i in range(1, 1000) if not (p := file.with_name(f"{file.name}.{_HALF_MADE}-{i}")).exists())
    for suffix in _BESIDE:
        with suppress(FileNotFoundError):
            file.with_name(file.name + suffix).replace(kept.with_name(kept.name + suffix))
    file.replace(kept)
    _log.warning("%s was left half-made when its creation was killed; it is %s now, and a new one is made", file, kept)


def _count(database: sqlite3.Connection, tables: set[str], table: str, where: str = "") -> int:
    if table not in tables:
        return 0
    return int(database.execute(f"SELECT COUNT(*) FROM {table} {where}").fetchone()[0])  # noqa: S608 - constants


def _revision(database: sqlite3.Connection, tables: set[str]) -> str | None:
    if "alembic_version" not in tables:
        return None
    row = database.execute("SELECT version_num FROM alembic_version").fetchone()
    return None if row is None else str(row[0])


def _newest_revision() -> str:
    """Return the revision of a complete file, from the folder of MLflow's migrations."""
    from importlib.util import find_spec

    from alembic.script import ScriptDirectory

    found = find_spec("mlflow")
    if found is None or not found.submodule_search_locations:
        raise OSError("MLflow is not installed")
    folder = Path(next(iter(found.submodule_search_locations))) / "store" / "db_migrations"
    return str(ScriptDirectory(str(folder)).get_current_head())
