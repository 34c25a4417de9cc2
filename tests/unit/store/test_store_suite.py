"""The conformance suite of stores, on SQLite and on PostgreSQL."""

import pytest

from paribus.store.database import file_url
from paribus.store.store import Store
from paribus.testing.store_suite import StoreTestCase
from support.databases import new_database, postgresql


class TestSqlite(StoreTestCase):
    """A SQLite file."""

    @staticmethod
    def open(home, clock):
        """Open the file in the home folder."""
        return Store(new_database(file_url(home), clock), home)


class TestPostgresql(StoreTestCase):
    """A database on a server."""

    @pytest.fixture(autouse=True)
    def server(self, monkeypatch):
        """A new database, where `Store.open` looks."""
        with postgresql() as url:
            monkeypatch.setenv("PARIBUS_DATABASE_URL", url.render_as_string(hide_password=False))
            yield

    @staticmethod
    def open(home, clock):
        """Open the database on the server."""
        return Store.open(home, clock=clock)
