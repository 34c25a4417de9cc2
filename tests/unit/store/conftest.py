"""A store on a clock that tests set, in SQLite's memory and on a real PostgreSQL server."""

import pytest

from paribus.store.database import Database
from paribus.store.store import Store
from paribus.testing.databases import memory_database, postgresql


class Clock:
    """Seconds that only a test moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        """Return the time."""
        return self.now


@pytest.fixture
def clock():
    """A clock."""
    return Clock()


@pytest.fixture(params=["sqlite", "postgresql"])
def server(request, monkeypatch):
    """The URL of a new database on a server, and where `Store.open` looks; ``None``: a file in the home folder."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    if request.param == "sqlite":
        yield None
        return
    with postgresql() as url:
        monkeypatch.setenv("PARIBUS_DATABASE_URL", url.render_as_string(hide_password=False))
        yield url


@pytest.fixture
def store(server, clock, tmp_path):
    """An empty store."""
    database = memory_database(clock) if server is None else Database(server, clock)
    with Store(database, tmp_path) as made:
        yield made
