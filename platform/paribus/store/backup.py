"""Consistent copies of the database, also while a study runs."""

from __future__ import annotations

import os
import shlex
import sqlite3
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy as sa

from paribus.errors import StoreError
from paribus.store.database import FILE


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
        with closing(sqlite3.connect(home / FILE, timeout=30)) as source, closing(sqlite3.connect(partial)) as copy:
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
