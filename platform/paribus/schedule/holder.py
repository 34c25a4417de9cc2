"""Who works in a home folder: only one process at a time starts attempts there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from paribus.engines.process import Identity
from paribus.errors import RunFolderError, StoreError
from paribus.track.folder import read_json, write_json

SCHEDULER = "paribus scheduler"
"""The command that serves all studies of a home folder."""

_FILE = "holder.json"

_DYING_S = 2.0
"""Seconds for which a process that it had just started may hold the lock of one that was killed."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The process that works in a home folder.

    Attributes:
        command: what was typed, e.g. ``paribus run``.
        engine: name of the engine on which it starts runs; empty if it starts none.
    """

    identity: Identity
    command: str
    engine: str

    @property
    def serves_all(self) -> bool:
        """Whether it takes up every study that is submitted."""
        return self.command == SCHEDULER

    def __str__(self) -> str:
        return f"`{self.command}` (process {self.identity.pid})"


def holder_of(home: Path) -> Holder | None:
    """Return the living process of this machine that works in a home folder; ``None`` if there is none."""
    holder = _read(home)
    return holder if holder is not None and holder.identity.alive() else None


@contextmanager
def hold(home: Path, command: str, engine: str = "") -> Iterator[None]:
    """Hold a home folder: only one process at a time starts attempts in it.

    Raises:
        StoreError: another process holds it; the message names it.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(home / "run.lock")
    try:
        lock.acquire(timeout=_DYING_S)
    except Timeout:
        raise StoreError(
            f"{_read(home) or 'another process'} works in {home}. Wait for it, watch it with `paribus status`, or "
            "choose another folder with --home."
        ) from None
    try:
        here = {"process": Identity.of(os.getpid()).to_json(), "command": command, "engine": engine}
        write_json(home / _FILE, here)
        yield
    finally:
        (home / _FILE).unlink(missing_ok=True)
        lock.release()


def _read(home: Path) -> Holder | None:
    try:
        here = read_json(home / _FILE)
        return Holder(identity=Identity.read(here["process"]), command=here["command"], engine=here["engine"])
    except (RunFolderError, KeyError, TypeError):
        return None
