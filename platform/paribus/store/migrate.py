"""Bring the database to the revision that this version of Paribus expects."""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa

from paribus.errors import StoreError
from paribus.home import data_root
from paribus.store.database import Database, NothingYet, no_timeout, serialize
from paribus.store.tables import metadata

VERSION_TABLE = "paribus_alembic_version"
"""Not Alembic's default: MLflow and Optuna both use ``alembic_version`` and refuse each other's database."""

HEAD = "0007"
"""The newest revision in ``db_migrations/versions``."""

_REVISION = sa.text(f"SELECT version_num FROM {VERSION_TABLE}")  # noqa: S608 - a constant


def revision_of(connection: sa.Connection) -> str | None:
    """Return the revision of a database; ``None`` if it is empty."""
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(_REVISION).scalar()


def create(database: Database) -> None:
    """Create all tables of an empty database that lives no longer than its process, without the migrations."""
    with database.write() as connection:
        if not sa.inspect(connection).has_table(VERSION_TABLE):
            metadata.create_all(connection)
            connection.execute(sa.text(f"CREATE TABLE {VERSION_TABLE} (version_num TEXT)"))
            connection.execute(sa.text(f"INSERT INTO {VERSION_TABLE} VALUES ('{HEAD}')"))  # noqa: S608 - constants


def is_newer(revision: str | None) -> bool:
    """Return whether a newer version of Paribus has made this revision."""
    known = (data_root("db_migrations") / "versions").glob("[0-9]*_*.py")
    return revision is not None and revision not in {file.name.partition("_")[0] for file in known}


def refuse_other_revision(database: Database) -> None:
    """Check that the database has the revision :data:`HEAD`.

    Raises:
        NothingYet: it is empty.
        StoreError: another version wrote it. The message says what to do.
    """
    with database.read() as connection:
        revision = revision_of(connection)
    if revision is None:
        raise NothingYet(f"the database {database.name} is empty. Run a study first (paribus run STUDY.yaml).")
    if revision != HEAD:
        newer = "a newer version wrote it. Update Paribus."
        remedy = newer if is_newer(revision) else "`paribus db upgrade` upgrades it."
        raise StoreError(
            f"the database {database.name} has revision {revision}, this version of Paribus reads {HEAD}: {remedy}"
        )


def refuse_other_version(connection: sa.Connection) -> None:
    """Refuse to start anything new if another version has upgraded the database since this process opened it.

    Running attempts may still finish: migrations keep the columns that an older version writes at their end.

    Raises:
        StoreError: the revision is no longer :data:`HEAD`.
    """
    revision = connection.execute(_REVISION).scalar()
    if revision != HEAD:
        raise StoreError(
            f"the database was upgraded from revision {HEAD} to {revision} while this process was using it. Live runs "
            "finish; update Paribus here and repeat the command."
        )


def migrate(database: Database, lock: Path) -> None:
    """Upgrade a SQLite file, or fill an empty database of a server, up to :data:`HEAD`; one process at a time.

    An older database on a server is not upgraded here: others may still use it with an older version.

    Args:
        database: the database.
        lock: lock file.

    Raises:
        StoreError: a newer version wrote the database, or it is on a server and an older version wrote it.
    """
    with database.read() as connection:
        current = revision_of(connection)
    if current == HEAD:
        return
    if current is not None and not database.embedded:
        refuse_other_revision(database)
    upgrade(database, lock)


def upgrade(database: Database, lock: Path) -> None:
    """Upgrade the database to :data:`HEAD` from any older revision; one process at a time.

    Raises:
        StoreError: a newer version wrote the database.
    """
    from filelock import FileLock

    with FileLock(lock):
        run_alembic(database, "upgrade", HEAD)


def run_alembic(database: Database, command: str, revision: str) -> None:
    """Run ``alembic upgrade`` or ``alembic downgrade`` on the database.

    Raises:
        StoreError: a newer version wrote the database.
    """
    from alembic import command as commands
    from alembic.config import Config
    from alembic.script import ScriptDirectory

    config = Config()
    config.set_main_option("script_location", str(data_root("db_migrations")).replace("%", "%%"))
    known = {script.revision for script in ScriptDirectory.from_config(config).walk_revisions()}
    with database.write() as connection:
        serialize(connection, "migrate")
        no_timeout(connection)
        current = revision_of(connection)
        if current is not None and current not in known:
            raise StoreError(
                f"the database {database.name} has revision {current}, which this version of Paribus does not know: a "
                "newer version wrote it. Update Paribus, or choose another folder with --home."
            )
        config.attributes["connection"] = connection
        getattr(commands, command)(config, revision)
