"""Where faults happen: a home folder, a database that can be stopped at once, processes that can be killed."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import random
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from paribus.audit import invariants as audit
from paribus.audit.snapshot import Snapshot, snapshot
from paribus.engines.process import Identity, die_with_parent
from paribus.home import DATABASE_URL
from paribus.scheduler import active_attempts, setup_jobs
from paribus.store import attempts
from paribus.store import transitions as moves
from paribus.store.reader import Reader
from paribus.store.store import Store
from paribus.testing.fake_runner import VARIABLE
from support.databases import started_server

LEASE_S = 2.0
"""Seconds of a lease while faults are injected: a thirtieth of the real one; what depends on it is shortened alike."""

LONG_LEASE_S = 12.0
"""The same where leases are not the matter: a busy machine loses short ones of all runs at once, again and again."""

DATABASES = ("SQLite", "PostgreSQL")
STACKS = signal.SIGUSR1
"""Lets a process that was started here print the stacks of its threads."""
_FORK = multiprocessing.get_context("fork")
_PATIENCE_S = 3600.0


class Skipped(Exception):
    """A fault cannot be injected here; the message says what is missing."""


def hasten(lease_s: float) -> None:
    """Shorten the lease and the waits of this process and of all that it forks; give an attempt any number of tries."""
    for module in (moves, attempts, audit):
        module.LEASE_S = lease_s  # type: ignore[attr-defined]
    active_attempts.HOLD_S = lease_s / 6  # type: ignore[misc]
    for module in (attempts, setup_jobs):
        module.INFRASTRUCTURE_TRIES = 10**6  # type: ignore[attr-defined]
    attempts._BACKOFF_S = 0.0  # type: ignore[misc]


@dataclass(frozen=True, kw_only=True)
class World:
    """What a fault is injected into.

    Attributes:
        home: home folder.
        random: the source of all chance.
        short: few trials.
        minutes: how long what has no number of trials takes.
        server: the PostgreSQL server; ``None`` on SQLite.
        database: name of the database on the server.
    """

    home: Path
    random: random.Random
    short: bool
    minutes: float
    server: Server | None
    database: str

    def store(self) -> Store:
        """Open the store."""
        return Store.open(self.home)

    def number(self, full: int, short: int) -> int:
        """Return how many trials to make."""
        return short if self.short else full

    def snapshot(self, *, folders: bool = True) -> Snapshot:
        """Read everything; with the run folders, where there was training."""
        with Reader.open(self.home) as reader:
            return snapshot(reader, folders=folders, deep=True)

    def orders(self, text: str) -> None:
        """Tell the fake runners of this process's children what to do."""
        os.environ[VARIABLE] = text


class Server:
    """A PostgreSQL server of our own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server = started_server(folder / "data")
        self.url = sa.make_url(self._server.get_uri()).set(drivername="postgresql+psycopg")
        # what is stopped here are processes; the machine goes on, and with it what the kernel was given to write
        self.execute("ALTER SYSTEM SET fsync = off")
        self.execute("SELECT pg_reload_conf()")

    def execute(self, statement: str) -> None:
        """Execute one statement outside of any transaction."""
        engine = sa.create_engine(self.url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sa.text(statement))
        engine.dispose()

    def stop(self) -> None:
        """Stop at once, as `pg_ctl stop -m immediate` does: no transaction is ended, nothing is written any more."""
        server = Identity.of(self._server.get_pid())
        os.kill(server.pid, signal.SIGQUIT)
        until(lambda: not server.alive(), 0.005)

    def start(self) -> None:
        """Start again; the server recovers from its log."""
        self._server.ensure_postgres_running()


@cache
def _server() -> Server:
    return Server(Path(tempfile.mkdtemp(prefix="paribus-faults-")))


def server_runs() -> bool:
    """Return whether this process has started the server."""
    return _server.cache_info().currsize > 0


def stop_server() -> None:
    """Stop the server, and remove what it kept: nothing is called when a forked process ends."""
    server = _server()
    server.stop()
    shutil.rmtree(server.folder, ignore_errors=True)


def server_version() -> str:
    """Return the version of the server."""
    engine = sa.create_engine(_server().url)
    with engine.connect() as connection:
        shown = str(connection.execute(sa.text("SHOW server_version")).scalar_one())
    engine.dispose()
    return shown


@contextmanager
def world(place: str, chance: random.Random, *, short: bool, minutes: float) -> Iterator[World]:
    """Yield a world with an empty database; it is SQLite but where the place names PostgreSQL."""
    with ExitStack() as stack:
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="paribus-faults-", ignore_cleanup_errors=True))
        )
        os.environ.pop(DATABASE_URL, None)
        server, name = None, ""
        if place.endswith("PostgreSQL"):
            server = _server()
            name = f"faults_{chance.getrandbits(40)}_{os.getpid()}"
            server.execute(f"CREATE DATABASE {name}")
            os.environ[DATABASE_URL] = server.url.set(database=name).render_as_string(hide_password=False)
            stack.callback(server.execute, f"DROP DATABASE {name} WITH (FORCE)")
        yield World(home=folder / "home", random=chance, short=short, minutes=minutes, server=server, database=name)


@contextmanager
def process(
    function: Callable[..., Any], *arguments: Any, **named: Any
) -> Iterator[multiprocessing.process.BaseProcess]:
    """Start a function in a forked process that leads nobody's group and dies with this one; end it at the end."""
    child = _FORK.Process(target=_begin, args=(os.getpid(), function, arguments, named))
    child.start()
    try:
        yield child
    finally:
        child.kill()
        child.join()


def _begin(parent: int, function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    die_with_parent(parent)
    faulthandler.register(STACKS)
    function(*arguments, **named)


def ended(child: multiprocessing.process.BaseProcess) -> None:
    """Wait for the good end of a process."""
    child.join(_PATIENCE_S)
    if child.is_alive():
        raise AssertionError("a process that nothing was done to does not come to its end")
    if child.exitcode != 0:
        raise AssertionError(f"a process that nothing was done to ended with {child.exitcode}")


def barrier(parties: int) -> Any:
    """Return what lets so many processes go at the same moment."""
    return _FORK.Barrier(parties)


class Lines:
    """What processes tell this one: it is out of theirs when the call returns, however much it is and whoever dies."""

    def __init__(self) -> None:
        with tempfile.NamedTemporaryFile(prefix="paribus-faults-") as file:
            self._file = os.open(file.name, os.O_RDWR | os.O_APPEND)
        self._seen = 0

    def put(self, what: Any) -> None:
        """Tell something."""
        os.write(self._file, pickle.dumps(what).hex().encode() + b"\n")

    def new(self) -> list[Any]:
        """Return what was told since the last call."""
        told = os.pread(self._file, os.fstat(self._file).st_size - self._seen, self._seen)
        told = told[: told.rfind(b"\n") + 1]
        self._seen += len(told)
        return [pickle.loads(bytes.fromhex(line.decode())) for line in told.splitlines()]


def until(condition: Callable[[], Any], pause: float = 0.02) -> Any:
    """Wait until a condition gives something, and return it."""
    end = time.monotonic() + _PATIENCE_S
    while not (found := condition()):
        if time.monotonic() > end:
            raise AssertionError("it did not come so far")
        time.sleep(pause)
    return found


def kill(pid: int) -> bool:
    """Kill a process by force; return whether it was there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
        return True
    return False
