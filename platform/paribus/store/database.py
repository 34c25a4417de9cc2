"""Opens the database: one place that knows what differs between SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

FILE = "paribus.db"
_WRITES = "paribus_writes"


class database_now(GenericFunction[float]):  # noqa: N801 - SQL functions are named in lower case
    """Seconds since 1970 on the database's clock; no worker's clock ever enters a decision."""

    type = sa.Float()
    inherit_cache = True


@compiles(database_now, "sqlite")
def _now_sqlite(element: database_now, compiler: SQLCompiler, **_: Any) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(database_now, "postgresql")
def _now_postgresql(element: database_now, compiler: SQLCompiler, **_: Any) -> str:
    return "EXTRACT(EPOCH FROM clock_timestamp())"


class Database:
    """A database and its two kinds of transaction.

    Args:
        url: SQLAlchemy URL.
        clock: seconds since 1970, for tests; absent: the database's own clock.
    """

    def __init__(self, url: str | sa.URL, clock: Callable[[], float] | None = None) -> None:
        self.engine = sa.create_engine(url)
        self._clock = clock
        if self.engine.dialect.name == "sqlite":
            sa.event.listen(self.engine, "connect", _prepare_sqlite)
            sa.event.listen(self.engine, "begin", _begin_sqlite)

    @property
    def name(self) -> str:
        """The database as people may see it: never with its password."""
        url = self.engine.url
        return str(url.database) if self.engine.dialect.name == "sqlite" else url.render_as_string()

    def now(self) -> sa.ColumnElement[float]:
        """Return the SQL expression of the time now."""
        return database_now() if self._clock is None else sa.literal(self._clock(), sa.Float())

    @contextmanager
    def write(self) -> Iterator[sa.Connection]:
        """Yield a connection in a transaction that holds the write lock from its start, and commit it."""
        with self.engine.connect().execution_options(**{_WRITES: True}) as connection, connection.begin():
            yield connection

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Yield a connection in a transaction that sees one state of the database."""
        with self.engine.connect() as connection, connection.begin():
            yield connection

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()


def file_url(home: Path) -> sa.URL:
    """Return the URL of the SQLite file of a home folder."""
    return sa.URL.create("sqlite", database=str(home / FILE))


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver must not open transactions on its own
    for pragma in ("busy_timeout = 30000", "journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin_sqlite(connection: sa.Connection) -> None:
    # a deferred transaction that reads and then writes fails at once with "database is locked", whatever the timeout
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
