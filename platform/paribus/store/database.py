"""The connection to SQLite or PostgreSQL: transactions, timeouts, locks, the clock and copies.

Both run the same statements. Everything that differs between them is in this file.
"""

from __future__ import annotations

import os
import re
import shlex
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from paribus.errors import MissingExtra, StoreError
from paribus.home import DATABASE_URL, read_secret, since_boot

PASSWORD_FILE = "PARIBUS_DATABASE_PASSWORD_FILE"  # noqa: S105 - the name of a variable
"""Environment variable with the file that holds the password, if the URL of the database has none."""

FILE = "paribus.db"
"""Name of the SQLite file in a home folder."""

STATEMENT_S, LOCK_S, IDLE_S = 60, 30, 60
"""Seconds that a statement may take, that it may wait for a lock, and that a transaction may be idle."""

GONE_S = 30
"""Seconds after which a server machine that sends nothing more, as after a power cut, counts as unreachable."""

TRIES = 5
"""Tries of a transaction that the server aborts, with pauses of 0.1, 0.2, 0.4, ... seconds in between."""

_WAL_RETRY_S = 0.02
_SECRET = ("password", "passfile", "sslpassword", "options")
_WRITES = "paribus_writes"
_DATABASE_ERRORS = (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.DatabaseError, sa.exc.InternalError)
_NOT_GRANTED = ("42501", "3F000")
"""States of PostgreSQL: insufficient privilege, and no schema that the user may use."""
_P = ParamSpec("_P")
_T = TypeVar("_T")


class Unreachable(StoreError):
    """The server did not answer, or aborted a transaction. The same call may work later."""


class StudyDeleted(StoreError):
    """A study that this process has seen is no longer in the store.

    Args:
        name: its name, if that is known.
    """

    def __init__(self, name: str = "") -> None:
        shown = f"the study `{name}`" if name else "the study"
        super().__init__(f"{shown} was deleted meanwhile. To train it, submit it again.")


class NothingYet(StoreError):
    """There is no database, or one without tables: nothing has run yet, or a first study is about to make them."""


class Locked(Unreachable):
    """Another program has kept the file locked for all of :data:`LOCK_S`."""


_COMES_BACK = re.compile(r"starting up|shutting down|recovery|terminating connection|too many|reserved|crash", re.I)


def refused(error: Unreachable) -> bool:
    """Return whether a server answered and will refuse the same call again: wrong password, no such database."""
    said = str(error)
    return "FATAL:" in said and _COMES_BACK.search(said) is None


class database_now(GenericFunction[float]):  # noqa: N801 - SQL functions are named in lower case
    """Seconds since 1970 on the database's clock. No decision uses the clock of a worker.

    A SQLite file has no clock of its own. Each process that opens one reads the time of day once and goes on with the
    machine's uptime. If the time of day is corrected by an hour, no live run loses its lease.
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
    """A database, with transactions for writing and for reading.

    Args:
        url: SQLAlchemy URL.
        clock: seconds since 1970, for tests; ``None``: the database's own clock.

    Raises:
        MissingExtra: the driver is not installed.
    """

    def __init__(self, url: str | sa.URL, clock: Callable[[], float] | None = None) -> None:
        self.url = sa.make_url(url)
        self.embedded = self.url.get_backend_name() == "sqlite"
        options: dict[str, Any] = {} if self.embedded else {"pool_pre_ping": True, "connect_args": _patience(self.url)}
        try:
            self.engine = sa.create_engine(self.url, **options)
        except ImportError:
            raise MissingExtra("postgresql", "A PostgreSQL database") from None
        # always the same element: statements that contain it are compiled once
        self._now = database_now() if clock is None else sa.bindparam("clock", callable_=clock, type_=sa.Float())
        self._joined = threading.local()
        sa.event.listen(self.engine, "connect", _prepare_sqlite if self.embedded else _prepare_postgresql)
        # on PostgreSQL a claim must see what others commit meanwhile; a reader must not
        self._writing = {_WRITES: "FULL"} if self.embedded else {"isolation_level": "READ COMMITTED"}
        self._unflushed = {_WRITES: "NORMAL"} if self.embedded else {}
        self._reading = {} if self.embedded else {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}

    @property
    def name(self) -> str:
        """The URL or path for people, without a password."""
        return shown_url(self.url)

    def now(self) -> sa.ColumnElement[float]:
        """Return the current time as a SQL expression."""
        return self._now

    @contextmanager
    def write(self, *, flush: bool = True) -> Iterator[sa.Connection]:
        """Yield a connection in a transaction that may write; commit it at the end.

        On SQLite it holds the write lock from its start. On PostgreSQL it locks the rows that it changes.

        Args:
            flush: wait until the commit is on disk. Without it, a power cut or an immediate stop of the server may
                lose this transaction together with all later ones, but none before it. The death of any other process
                loses nothing.

        Raises:
            Unreachable: the server did not answer or aborted; it may or may not have committed. Or the file stayed
                locked, and nothing was committed.
            StoreError: the file cannot be used.
        """
        joined: sa.Connection | None = getattr(self._joined, "connection", None)
        if joined is not None:
            yield joined
            return
        with self._begin(self._writing if flush else {**self._writing, **self._unflushed}) as connection:
            if not (flush or self.embedded):
                connection.execute(sa.text("SET LOCAL synchronous_commit = off"))
            yield connection

    @contextmanager
    def transaction(self, *, flush: bool = True) -> Iterator[None]:
        """Join all writes of this thread into one transaction, so that they wait for the disk once (group commit).

        Acknowledge nothing of it before the end. If the commit fails, none of the writes has happened.

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
        """Yield a connection in a read-only transaction that sees one state of the database.

        Raises:
            Unreachable: the server did not answer.
            StoreError: the file cannot be used.
        """
        with self._begin(self._reading) as connection:
            yield connection

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextmanager
    def _begin(self, options: dict[str, Any]) -> Iterator[sa.Connection]:
        try:
            with self.engine.connect().execution_options(**options) as connection, connection.begin():
                if self.embedded:  # an engine event would make each statement a third slower
                    _begin_sqlite(connection, options.get(_WRITES))
                yield connection
        except sa.exc.TimeoutError as error:  # of the pool; a database's own are others
            raise Unreachable(
                f"the database {self.name} cannot be used: all connections of this process are in use, and none became "
                "free. Try again when it has less to do."
            ) from error
        except sa.exc.DBAPIError as error:
            if type(error) not in _DATABASE_ERRORS and _sqlstate(error) not in _NOT_GRANTED:
                raise  # a bug in a statement, not trouble with the database
            raise self._store_error(error) from error

    def _store_error(self, error: sa.exc.DBAPIError) -> StoreError:
        reason = (str(error.orig).splitlines() or [""])[0]
        kind: type[StoreError] = StoreError
        remedy = "Is the disk full, or the file damaged? `paribus doctor` checks both."
        if _sqlstate(error) in _NOT_GRANTED:
            user = self.url.username or "the user"
            remedy = (
                f"The owner of the database lets {user} make and use tables: GRANT ALL ON SCHEMA public TO {user}; "
                f"and, if another user has made them, GRANT ALL ON ALL TABLES IN SCHEMA public TO {user};"
            )
        elif not self.embedded:
            kind, remedy = Unreachable, f"Is the server running, and is {DATABASE_URL} right?"
        elif getattr(error.orig, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            kind, remedy = Locked, "Another program works with the file. Try again when it has ended."
        return kind(f"the database {self.name} cannot be used: {reason}. {remedy}")


def _sqlstate(error: sa.exc.DBAPIError) -> str:
    return getattr(error.orig, "sqlstate", None) or ""


class _HasDatabase(Protocol):
    database: Database


_Store = TypeVar("_Store", bound=_HasDatabase)


def retry_on_disconnect(method: Callable[Concatenate[_Store, _P], _T]) -> Callable[Concatenate[_Store, _P], _T]:
    """Retry a method of one transaction that the server aborts: a deadlock, a restart, a lost connection.

    A file that stays locked is not retried: the method has waited for :data:`LOCK_S` already.

    If the aborted transaction was committed after all, the second try changes nothing: a fence token protects attempts,
    a fingerprint protects plans. If the answer to a claim is lost, the scheduler requeues the runs that it took.
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


# ---- what only a server needs; the connection is in a transaction ------------------------------------


def serialize(connection: sa.Connection, what: str) -> None:
    """Lock out all other transactions that serialize on ``what`` until this one ends; SQLite has one writer anyway."""
    if connection.dialect.name != "sqlite":
        lock = sa.func.pg_advisory_xact_lock(sa.func.hashtext("paribus"), sa.func.hashtext(what))
        connection.execute(sa.select(lock))


def analyze(connection: sa.Connection, *tables: sa.Table) -> None:
    """Update the planner's statistics of tables that have grown; until then it plans for small ones."""
    if connection.dialect.name != "sqlite":
        names = ", ".join(connection.dialect.identifier_preparer.format_table(table) for table in tables)
        connection.execute(sa.text(f"ANALYZE {names}"))


def no_timeout(connection: sa.Connection) -> None:
    """Disable the statement timeout for this transaction."""
    if connection.dialect.name != "sqlite":
        connection.execute(sa.text("SET LOCAL statement_timeout = 0"))


# ---- where the database is ---------------------------------------------------------------------------


def database_url(home: Path) -> sa.URL:
    """Return ``$PARIBUS_DATABASE_URL``, or the URL of the SQLite file in a home folder.

    Raises:
        StoreError: the variable is not the URL of a PostgreSQL database, or the password's file is missing or empty.
            The message does not repeat the value.
    """
    return named_server() or file_url(home)


def named_server() -> sa.URL | None:
    """Return ``$PARIBUS_DATABASE_URL``; ``None`` if it is not set.

    Raises:
        StoreError: as :func:`database_url`.
    """
    named = os.environ.get(DATABASE_URL, "").strip()
    return server_url(named) if named else None


def server_url(named: str, source: str = DATABASE_URL) -> sa.URL:
    """Return the URL of a PostgreSQL database, with the driver and the password of the file beside it.

    Args:
        named: what the user wrote.
        source: where, for messages, which never repeat it.

    Raises:
        StoreError: it is not such a URL, or the password's file is missing or empty.
    """
    try:
        url = sa.make_url(named)
    except (sa.exc.ArgumentError, ValueError):
        url = None
    if url is None or url.drivername not in ("postgresql", "postgres", "postgresql+psycopg") or not url.database:
        raise StoreError(
            f"{source} must look like postgresql://USER@HOST:5432/DATABASE; the password may be in it, in "
            f"PGPASSWORD or in ~/.pgpass. Without {source} the store is an SQLite file in the home folder."
        )
    url = url.set(drivername="postgresql+psycopg")
    file = os.environ.get(PASSWORD_FILE, "").strip()
    if not file or url.password is not None:
        return url
    return url.set(password=read_secret(Path(file), "password", StoreError))


def file_url(home: Path) -> sa.URL:
    """Return the URL of the SQLite file in a home folder."""
    return sa.URL.create("sqlite", database=str(home / FILE))


def shown_url(url: sa.URL) -> str:
    """Return a URL without secrets; for SQLite, the path of the file."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    harmless = url.difference_update_query([key for key in url.query if key.lower() in _SECRET])
    return harmless.set(drivername="postgresql").render_as_string(hide_password=True)


# ---- SQLite ------------------------------------------------------------------------------------------


_BOOTED = time.time() - since_boot()


def _prepare_sqlite(connection: Any, _: object) -> None:
    connection.isolation_level = None  # the driver must not open transactions by itself
    connection.create_function("paribus_now", 0, lambda: _BOOTED + since_boot())
    connection.execute(f"PRAGMA busy_timeout = {LOCK_S}000")
    _write_ahead(connection)
    connection.execute("PRAGMA foreign_keys = ON")


def _write_ahead(connection: Any) -> None:
    """Switch the file to write-ahead logging; only the first connection to a new file really changes it.

    The busy timeout does not apply here: SQLite refuses at once if two connections that switch could deadlock.
    """
    until = time.monotonic() + LOCK_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(_WAL_RETRY_S)
        else:
            return


def _begin_sqlite(connection: sa.Connection, flushing: str | None) -> None:
    # a deferred transaction that reads and then writes fails at once with "database is locked", despite the timeout
    if flushing and connection.info.get(_WRITES) != flushing:
        connection.exec_driver_sql(f"PRAGMA synchronous = {flushing}")
        connection.info[_WRITES] = flushing
    connection.exec_driver_sql("BEGIN IMMEDIATE" if flushing else "BEGIN")


# ---- PostgreSQL --------------------------------------------------------------------------------------

# without the last five, TCP waits more than a quarter of an hour for a machine that has lost its power or its network
_PATIENCE = {
    "connect_timeout": 10,
    "application_name": "paribus",
    "keepalives": 1,
    "keepalives_idle": GONE_S // 3,
    "keepalives_interval": GONE_S // 6,
    "keepalives_count": 4,
    "tcp_user_timeout": GONE_S * 1000,
}


def _patience(url: sa.URL) -> dict[str, Any]:
    """Return the options of a connection, except for those that the URL sets itself."""
    # connection poolers support neither prepared statements nor start-up options
    return {"prepare_threshold": None, **{name: x for name, x in _PATIENCE.items() if name not in url.query}}


def _prepare_postgresql(connection: Any, _: object) -> None:
    limits = {"statement_timeout": STATEMENT_S, "lock_timeout": LOCK_S, "idle_in_transaction_session_timeout": IDLE_S}
    with connection.cursor() as cursor:
        for name, seconds in limits.items():
            cursor.execute(f"SET {name} = '{seconds}s'")
    connection.commit()


# ---- copies -----------------------------------------------------------------------------------------


def backup_file(home: Path, target: Path | None = None) -> Path:
    """Copy the SQLite file of a home folder with SQLite's online backup, check the copy and return its path.

    Args:
        home: home folder.
        target: file to write; it must not exist. Default: ``backups/paribus-<time>.db`` in the home folder.

    Raises:
        StoreError: there is no store, the target exists, or the copy is damaged.
    """
    if not (home / FILE).is_file():
        raise StoreError(f"there is no store in {home}: nothing to copy.")
    target = target or home / "backups" / f"paribus-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.db"
    if target.exists():
        raise StoreError(f"{target} exists already: name another file with --to.")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with closing(sqlite3.connect(home / FILE, timeout=LOCK_S)) as source, closing(sqlite3.connect(partial)) as copy:
            source.backup(copy)  # in one step: a backup in steps restarts whenever another process writes
            verdict = copy.execute("PRAGMA integrity_check").fetchone()[0]
        if verdict != "ok":
            raise StoreError(f"the copy of {home / FILE} is damaged, so the file itself may be, too: {verdict}")
        partial.replace(target)
    except (sqlite3.Error, OSError) as error:
        raise StoreError(f"cannot copy {home / FILE} to {target}: {error}") from error
    finally:
        partial.unlink(missing_ok=True)
    return target


def dump_command(url: sa.URL) -> str:
    """Return the ``pg_dump`` command for a database on a server. It asks for the password itself."""
    hosts = url.query.get("host", ())
    host = url.host or (hosts if isinstance(hosts, str) else next(iter(hosts), None))
    options = {"host": host, "port": url.port, "username": url.username, "dbname": url.database}
    words = ["pg_dump", "--format=custom", "--file=paribus.dump"]
    words += [f"--{name}={value}" for name, value in options.items() if value is not None]
    return shlex.join(words)
