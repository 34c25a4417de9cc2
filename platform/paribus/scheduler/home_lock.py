"""The lock of a home folder: only one process at a time starts attempts in it."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.engines.process import Identity
from paribus.errors import RunFolderError, StoreError
from paribus.retention.deletion import FILE as DELETING
from paribus.retention.deletion import finish
from paribus.run_folder.folder import read_json, write_json
from paribus.store.reader import Reader
from paribus.store.transitions import LEASE_S

SCHEDULER = "paribus scheduler"
"""The command that serves all studies of a home folder."""

_FILE = "run.lock.json"

_LIVES_S, _DYING_S = 2.0, 20.0
"""Seconds to wait for a lock: of a living process; of a killed one, whose last child may hold it before it begins."""


@dataclass(frozen=True, kw_only=True)
class LockOwner:
    """The process that has locked a home folder.

    Attributes:
        command: what the user typed, such as ``paribus run``.
        engine: name of the engine on which it starts runs; empty if it starts none.
        trouble: why the engine can't reach its cluster now, in a sentence; empty if it can.
    """

    identity: Identity
    command: str
    engine: str
    trouble: str = ""

    @property
    def is_scheduler(self) -> bool:
        """Whether it serves every study that is submitted."""
        return self.command == SCHEDULER

    def about(self) -> dict[str, Any]:
        """Return what `paribus status --json` says about it, here and through a server."""
        return {"command": self.command, "process": self.identity.pid, "engine": self.engine}

    def __str__(self) -> str:
        return f"`{self.command}` (process {self.identity.pid})"


def lock_owner(home: Path) -> LockOwner | None:
    """Return the living process of this machine that has locked a home folder; ``None`` if no process has."""
    owner = _read(home)
    return owner if owner is not None and owner.identity.alive() else None


def serving(home: Path) -> LockOwner | None:
    """Return the process that trains the studies of a home folder; ``None`` if no process does.

    One of another machine or container can't be looked up: it counts while its heartbeat is younger than a lease.
    """
    owner = _read(home)
    if owner is None or owner.identity.here():
        return lock_owner(home)
    return owner if heartbeat_age_s(home) < LEASE_S else None


@contextmanager
def lock_home(home: Path, command: str, engine: str = "") -> Iterator[None]:
    """Lock a home folder, so that no other process starts attempts in it.

    Raises:
        StoreError: another process has locked it, which the message names, or files can't be written here.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(home / "run.lock")
    try:
        with suppress(Timeout):
            lock.acquire(timeout=_LIVES_S)
        if not lock.is_locked:
            lock.acquire(timeout=_DYING_S if _was_killed(home) else 0.0)
    except Timeout:
        raise StoreError(
            f"{_read(home) or 'another process'} works in {home}. Wait for it to end, watch it with `paribus status`, "
            "or choose another folder with --home."
        ) from None
    except OSError as error:
        remedy = "Is the disk full or read-only, or the folder another user's?"
        raise StoreError(f"cannot lock the home folder {home}: {error}. {remedy}") from error
    try:
        here = {"process": Identity.of(os.getpid()).to_json(), "command": command, "engine": engine}
        write_json(home / _FILE, here)
        if (home / DELETING).exists():  # a deletion was killed: its folders must be gone before a run has them again
            with Reader.open(home) as reader:
                finish(reader)
        yield
    finally:
        (home / _FILE).unlink(missing_ok=True)
        lock.release()


def _was_killed(home: Path) -> bool:
    """Return whether the folder names an owner on this machine that no longer runs."""
    owner = _read(home)
    return owner is not None and owner.identity.here() and not owner.identity.alive()


def beat(home: Path) -> None:
    """Note that the process that has locked the folder has just taken a turn."""
    with suppress(OSError):
        os.utime(home / _FILE)


def heartbeat_age_s(home: Path) -> float:
    """Return the seconds since the process that has locked the folder took its last turn; infinite without one."""
    try:
        return time.time() - (home / _FILE).stat().st_mtime
    except OSError:
        return math.inf


def note_trouble(home: Path, trouble: str) -> None:
    """Let other commands know why the engine can't reach its cluster now, if this process has locked the folder."""
    with suppress(RunFolderError, KeyError, TypeError, OSError):
        here = read_json(home / _FILE)
        if Identity.read(here["process"]) == Identity.of(os.getpid()):
            write_json(home / _FILE, {**here, "trouble": trouble})


def _read(home: Path) -> LockOwner | None:
    try:
        here = read_json(home / _FILE)
        return LockOwner(
            identity=Identity.read(here["process"]),
            command=here["command"],
            engine=here["engine"],
            trouble=str(here.get("trouble", "")),
        )
    except (RunFolderError, KeyError, TypeError):
        return None
