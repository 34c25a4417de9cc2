"""A store in memory on a clock that tests set, and a plan."""

import pytest

from paribus.store.database import Database
from paribus.store.store import Store
from paribus.store.tables import metadata


class Clock:
    """Seconds that only a test moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        """Return the time."""
        return self.now


def memory_store(clock, home):
    """Return an empty store that exists as long as its connection."""
    database = Database("sqlite://", clock)
    metadata.create_all(database.engine)
    return Store(database, home)


@pytest.fixture
def clock():
    """A clock."""
    return Clock()


@pytest.fixture
def store(clock, tmp_path):
    """A store in memory."""
    made = memory_store(clock, tmp_path)
    yield made
    made.close()
