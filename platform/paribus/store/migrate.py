"""Brings the database to the shape that this version of Paribus expects."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from paribus._resources import data_root
from paribus.errors import StoreError
from paribus.store.database import Database

VERSION_TABLE = "paribus_alembic_version"
"""An own name: MLflow and Optuna both call theirs ``alembic_version`` and refuse each other's database."""

HEAD = "0004"
"""The newest revision in ``db_migrations/versions``."""

_REVISION = sa.text(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608 - a constant


def revision_of(connection: sa.Connection) -> str | None:
    """Return the revision of a database; ``None`` for one that is empty."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(_REVISION).scalar()


def refuse_other_revision(database: Database) -> None:
    """Do nothing if the database has the revision :data:`HEAD`.

    Raises:
        StoreError: it is empty, or another version wrote it; the message says what to do.
    """
    with database.read() as connection:
        revision = revision_of(connection)
    if revision is None:
        raise StoreError(f"the database {database.name} is empty. Run a study first (paribus run STUDY.yaml).")
    if revision != HEAD:
        raise StoreError(
            f"the database {database.name} has revision {revision}, this version of Paribus reads {HEAD}: "
            "`paribus db upgrade` brings an older one up to date; for a newer one update Paribus."
        )


def refuse_other_version(connection: sa.Connection) -> None:
    """Refuse to begin anything new in a database that another version has upgraded since this process opened it.

    What has been begun may still be finished: migrations keep what an older version writes at the end of an attempt.

    Raises:
        StoreError: the revision is not :data:`HEAD` any more.
    """
    revision = connection.execute(_REVISION).scalar()
    if revision != HEAD:
        raise StoreError(
            f"the database was brought from revision {HEAD} to {revision} while this process worked with it. Runs in "
            "progress come to their end; update Paribus here, and type the same command again."
        )


def migrate(database: Database, lock: Path) -> None:
    """Bring the database to :data:`HEAD`; one process does it at a time. Nothing happens if it is there.

    A server may have users of an older version, so there only an empty database is filled.

    Args:
        database: the database.
        lock: file that is locked meanwhile.

    Raises:
        StoreError: the database was written by a newer version, or it is a server's and was written by an older one.
    """
    with database.read() as connection:
        current = revision_of(connection)
    if current == HEAD:
        return
    if current is not None and not database.embedded:
        refuse_other_revision(database)
    upgrade(database, lock)


def upgrade(database: Database, lock: Path) -> None:
    """Bring the database to :data:`HEAD` from whatever older revision it has; one process does it at a time.

    Raises:
        StoreError: the database was written by a newer version.
    """
    from filelock import FileLock

    with FileLock(lock):
        run_alembic(database, "upgrade", HEAD)


def run_alembic(database: Database, command: str, revision: str) -> None:
    """Run ``alembic upgrade`` or ``alembic downgrade`` on the database.

    Raises:
        StoreError: the database was written by a newer version.
    """
    from alembic import command as commands
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(data_root("db_migrations")).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    with database.write() as connection:
        database.alone(connection, "migrate")
        database.unhurried(connection)
        current = revision_of(connection)
        if current is not None and current not in known:
            raise StoreError(
                f"the database {database.name} has revision {current}, which this version of Paribus does not know: a "
                "newer one wrote it. Update Paribus, or choose another folder with --home."
            )
        config.attributes["connection"] = connection
        getattr(commands, command)(config, revision)
