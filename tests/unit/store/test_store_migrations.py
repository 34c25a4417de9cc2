"""The migrations make the tables that the code expects, and can be undone."""

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from paribus._resources import data_root
from paribus.errors import StoreError
from paribus.store.database import Database, file_url
from paribus.store.migrate import HEAD, VERSION_TABLE, migrate, revision_of, run_alembic
from paribus.store.reader import Reader
from paribus.store.store import Store
from paribus.store.tables import metadata


@pytest.fixture
def database(tmp_path):
    """An empty database."""
    made = Database(file_url(tmp_path))
    yield made
    made.close()


def test_the_newest_revision_is_the_one_in_the_code():
    """`HEAD` saves the import of alembic; it must name the last script."""
    config = Config()
    config.set_main_option("script_location", str(data_root("db_migrations")))
    assert ScriptDirectory.from_config(config).get_current_head() == HEAD


def test_a_migrated_database_is_what_the_code_expects(database, tmp_path):
    """Alembic finds nothing to add or change."""
    migrate(database, tmp_path / "lock")
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        assert compare_metadata(context, metadata) == []


def test_migrations_go_up_down_and_up_again(database):
    """Down to nothing leaves no table but the version's."""
    run_alembic(database, "upgrade", HEAD)
    run_alembic(database, "downgrade", "base")
    with database.read() as connection:
        assert sa.inspect(connection).get_table_names() == [VERSION_TABLE]
    run_alembic(database, "upgrade", HEAD)
    with database.read() as connection:
        assert revision_of(connection) == HEAD


def test_a_database_of_a_newer_version_is_refused(tmp_path):
    """Writing to it could destroy what this version does not know."""
    Store.open(tmp_path).close()
    database = Database(file_url(tmp_path))
    with database.write() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    database.close()
    with pytest.raises(StoreError, match=r"revision 9999.*Update Paribus"):
        Store.open(tmp_path)
    with pytest.raises(StoreError, match="revision 9999"):
        Reader.look(tmp_path)
