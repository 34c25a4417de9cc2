"""Opens the database: the one place that knows what differs between SQLite and PostgreSQL.

The same statements run on both. What differs is how a transaction takes its locks, how long it may wait, and how the
clock is read.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from paribus.engines.process import since_boot
from paribus.errors import MissingExtra, StoreError
from paribus.study.home import DATABASE_URL

FILE = "paribus.db"
"""Name of the SQLite file in a home folder."""

STATEMENT_S, LOCK_S, IDLE_S = 60, 30, 60
"""Seconds that a statement may take, wait for a lock, and that a transaction may do nothing."""

TRIES = 5
"""How often a transaction is tried that a server broke off; with pauses of 0.1, 0.2, 0.4, ... seconds between."""

_AGAIN_S = 0.02
_SECRET = ("password", "passfile", "sslpassword", "options")
_WRITES = "paribus_writes"
_TROUBLES = (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.DatabaseError, sa.exc.InternalError)
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Unreachable(StoreError):
    """The server did not answer, or broke a transaction off; the same may work later."""


class Locked(Unreachable):
    """Another program has kept the file locked for all of :data:`LOCK_S`."""


class database_now(GenericFunction[float]):  # noqa: N801 - SQL functions are named in lower case
    """Seconds since 1970 on the database's clock; no worker's clock ever enters a decision.

    A file has no clock. Each process that opens one reads the time of day once, and goes on with a clock that nobody
    sets: a machine whose time is put right by an hour takes no run from those that work.
    """

    type = sa.Float()
    inherit_cache = True


@compiles(database_now, "sqlite")
def _now_sqlite(element: database_now, compiler: SQLCompiler, **_: Any) -> str:
    return "paribus_now()"


@compiles(database_now, "postgresql")
def _now_postgresql(element: database_now, compiler: SQLCompiler, **_: Any) -> str:
    return "CAST(EXTRACT(EPOCH FROM clock_timestamp()) AS DOUBLE PRECISION)"


class Database:
    """A database and its two kinds of transaction.

    Args:
        url: SQLAlchemy URL.
        clock: seconds since 1970, for tests; absent: the database's own clock.

    Raises:
        MissingExtra: the driver is not installed.
    """

    def __init__(self, url: str | sa.URL, clock: Callable[[], float] | None = None) -> None:
        self.url = sa.make_url(url)
        self.embedded = self.url.get_backend_name() == "sqlite"
        options: dict[str, Any] = {} if self.embedded else {"pool_pre_ping": True, "connect_args": _PATIENCE}
        try:
            self.engine = sa.create_engine(self.url, **options)
        except ImportError:
            raise MissingExtra("postgresql", "A PostgreSQL database") from None
        # one element for good: statements that hold it are compiled once
        self._now = database_now() if clock is None else sa.bindparam("clock", callable_=clock, type_=sa.Float())
        self._joined = threading.local()
        sa.event.listen(self.engine, "connect", _prepare_sqlite if self.embedded else _prepare_postgresql)
        # on PostgreSQL a claim must see what others have committed meanwhile; a reader must not
        self._writing = {_WRITES: "FULL"} if self.embedded else {"isolation_level": "READ COMMITTED"}
        self._unflushed = {_WRITES: "NORMAL"} if self.embedded else {}
        self._reading = {} if self.embedded else {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}

    @property
    def name(self) -> str:
        """The database as people may see it: never with a password."""
        return shown_url(self.url)

    def now(self) -> sa.ColumnElement[float]:
        """Return the SQL expression of the time now."""
        return self._now

    @contextmanager
    def write(self, *, flush: bool = True) -> Iterator[sa.Connection]:
        """Yield a connection in a transaction that may write, and commit it.

        On SQLite it holds the write lock from its start; on PostgreSQL it locks the rows that it changes.

        Args:
            flush: wait until the disk has it. Otherwise a machine that loses its power, or a server that is stopped
                at once, may lose this transaction, but never one before it without those after it. Any other
                process that dies loses nothing.

        Raises:
            Unreachable: the server did not answer or broke off; whether it has committed is not known. Or the file
                stayed locked, and nothing was committed.
            StoreError: the file cannot be used.
        """
        joined: sa.Connection | None = getattr(self._joined, "connection", None)
        if joined is not None:
            yield joined
            return
        with self._transaction(self._writing if flush else {**self._writing, **self._unflushed}) as connection:
            if not (flush or self.embedded):
                connection.execute(sa.text("SET LOCAL synchronous_commit = off"))
            yield connection

    @contextmanager
    def together(self, *, flush: bool = True) -> Iterator[None]:
        """Make one transaction of all those that this thread begins until the end: they share one wait for the disk.

        Nothing of it may be acknowledged before the end; if that fails, nothing of it has happened.

        Raises:
            Unreachable: as :meth:`write`.
            StoreError: as :meth:`write`.
        """
        with self.write(flush=flush) as connection:
            self._joined.connection = connection
            try:
                yield
            finally:
                del self._joined.connection

    @contextmanager
    def read(self) -> Iterator[sa.Connection]:
        """Yield a connection in a transaction that sees one state of the database.

        Raises:
            Unreachable: the server did not answer.
            StoreError: the file cannot be used.
        """
        with self._transaction(self._reading) as connection:
            yield connection

    def alone(self, connection: sa.Connection, what: str) -> None:
        """Let no other transaction do ``what`` until this one ends; on SQLite a writer is alone anyway."""
        if not self.embedded:
            lock = sa.func.pg_advisory_xact_lock(sa.func.hashtext("paribus"), sa.func.hashtext(what))
            connection.execute(sa.select(lock))

    def count_rows(self, connection: sa.Connection, *tables: sa.Table) -> None:
        """Let a server look at tables that have grown: until it does by itself, its plans take them for small ones."""
        if not self.embedded:
            names = ", ".join(self.engine.dialect.identifier_preparer.format_table(table) for table in tables)
            connection.execute(sa.text(f"ANALYZE {names}"))

    def unhurried(self, connection: sa.Connection) -> None:
        """Let this transaction take as long as it takes."""
        if not self.embedded:
            connection.execute(sa.text("SET LOCAL statement_timeout = 0"))

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextmanager
    def _transaction(self, options: dict[str, Any]) -> Iterator[sa.Connection]:
        try:
            with self.engine.connect().execution_options(**options) as connection, connection.begin():
                if self.embedded:  # not as an event of the engine: with one, each statement costs a third more
                    _begin_sqlite(connection, options.get(_WRITES))
                yield connection
        except sa.exc.DBAPIError as error:
            if type(error) not in _TROUBLES:
                raise  # a fault of ours
            raise self._trouble(error) from error

    def _trouble(self, error: sa.exc.DBAPIError) -> StoreError:
        reason = (str(error.orig).splitlines() or [""])[0]
        kind: type[StoreError] = StoreError
        remedy = "Is the disk full, or the file damaged? `paribus doctor` looks."
        if not self.embedded:
            kind, remedy = Unreachable, f"Does the server run, and is {DATABASE_URL} right?"
        elif getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            kind, remedy = Locked, "Another program works with the file: try again when that has ended."
        return kind(f"the database {self.name} cannot be used: {reason}. {remedy}")


class _HasDatabase(Protocol):
    database: Database


_Store = TypeVar("_Store", bound=_HasDatabase)


def again(method: Callable[Concatenate[_Store, _P], _T]) -> Callable[Concatenate[_Store, _P], _T]:
    """Repeat a method of one transaction that a server broke off: a deadlock, a restart, a lost connection.

    A file that stays locked has been waited for, and is not tried again at once.

    If the transaction was committed all the same, the second try changes nothing: of an attempt its fence token sees to
    that, of a plan its fingerprint. Runs that a claim took whose answer was lost are put back by whoever claimed them.
    """

    @wraps(method)
    def trying(self: _Store, /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        for number in range(TRIES - 1):
            try:
                return method(self, *args, **kwargs)
            except Locked:
                raise
            except Unreachable:
                time.sleep(0.1 * 2.0**number)
        return method(self, *args, **kwargs)

    return trying


# ---- where the database is ---------------------------------------------------------------------------


def database_url(home: Path) -> sa.URL:
    """Return ``$PARIBUS_DATABASE_URL``, or the URL of the SQLite file of a home folder.

    Raises:
        StoreError: the variable holds no URL of a PostgreSQL database; the message does not repeat it.
    """
    named = os.environ.get(DATABASE_URL, "").strip()
    if not named:
        return file_url(home)
    try:
        url = sa.make_url(named)
    except (sa.exc.ArgumentError, ValueError):
        url = None
    if url is None or url.drivername not in ("postgresql", "postgres", "postgresql+psycopg") or not url.database:
        raise StoreError(
            f"{DATABASE_URL} must look like postgresql://USER@HOST:5432/DATABASE; the password may be in it, in "
            "PGPASSWORD or in ~/.pgpass. Without the variable the store is an SQLite file in the home folder."
        )
    return url.set(drivername="postgresql+psycopg")


def file_url(home: Path) -> sa.URL:
    """Return the URL of the SQLite file of a home folder."""
    return sa.URL.create("sqlite", database=str(home / FILE))


def shown_url(url: sa.URL) -> str:
    """Return a URL without its secrets; for SQLite the path of the file."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    harmless = url.difference_update_query([key for key in url.query if key.lower() in _SECRET])
    return harmless.set(drivername="postgresql").render_as_string(hide_password=True)


# ---- SQLite ------------------------------------------------------------------------------------------


_BOOTED = time.time() - since_boot()


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver must not open transactions on its own
    connection.create_function("paribus_now", 0, lambda: _BOOTED + since_boot())
    connection.execute(f"PRAGMA busy_timeout = {LOCK_S}000")
    _write_ahead(connection)
    connection.execute("PRAGMA foreign_keys = ON")


def _write_ahead(connection: Any) -> None:
    """Turn the log on, which only the first connection to a new file really does.

    The busy timeout does not hold here: SQLite refuses at once where two that turn it on could wait for each other.
    """
    until = time.monotonic() + LOCK_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(_AGAIN_S)
        else:
            return


def _begin_sqlite(connection: sa.Connection, flushing: str | None) -> None:
    # a deferred transaction that reads and then writes fails at once with "database is locked", whatever the timeout
    if flushing and connection.info.get(_WRITES) != flushing:
        connection.exec_driver_sql(f"PRAGMA synchronous = {flushing}")
        connection.info[_WRITES] = flushing
    connection.exec_driver_sql("BEGIN IMMEDIATE" if flushing else "BEGIN")


# ---- PostgreSQL --------------------------------------------------------------------------------------

# connection poolers keep neither prepared statements nor start-up options
_PATIENCE = {"connect_timeout": 10, "application_name": "paribus", "prepare_threshold": None}


def _prepare_postgresql(connection: Any, _: object) -> None:
    limits = {"statement_timeout": STATEMENT_S, "lock_timeout": LOCK_S, "idle_in_transaction_session_timeout": IDLE_S}
    with connection.cursor() as cursor:
        for name, seconds in limits.items():
            cursor.execute(f"SET {name} = '{seconds}s'")
    connection.commit()
