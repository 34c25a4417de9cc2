"""Brings the database to the shape that this version of Paribus expects."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from paribus._resources import data_root
from paribus.errors import StoreError
from paribus.store.database import Database

VERSION_TABLE = "paribus_alembic_version"
"""An own name: MLflow and Optuna both call theirs ``alembic_version`` and refuse each other's database."""

HEAD = "0001"
"""The newest revision in ``db_migrations/versions``."""


def revision_of(connection: sa.Connection) -> str | None:
    """Return the revision of a database; ``None`` for one that is empty."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()  # noqa: S608 - a constant


def migrate(database: Database, lock: Path) -> None:
    """Bring the database to :data:`HEAD`; one process does it at a time. Nothing happens if it is there.

    Args:
        database: the database.
        lock: file that is locked meanwhile.

    Raises:
        StoreError: the database was written by a newer version.
    """
    with database.read() as connection:
        if revision_of(connection) == HEAD:
            return
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
        current = revision_of(connection)
        if current is not None and current not in known:
            raise StoreError(
                f"the database {database.engine.url.render_as_string()} has revision {current}, which this version of "
                "Paribus does not know: a newer one wrote it. Update Paribus, or choose another folder with --home."
            )
        config.attributes["connection"] = connection
        getattr(commands, command)(config, revision)
