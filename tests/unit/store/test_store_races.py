"""Requests that meet an attempt's end between two of their statements, on a real PostgreSQL server."""

import threading
from contextlib import contextmanager, suppress

import pytest
import sqlalchemy as sa

from paribus.errors import LostLease
from paribus.store import tables as t
from paribus.store.database import Database
from paribus.store.store import Store
from support.databases import postgresql
from support.plans import small_plan

STATEMENTS = 16
"""More than any request has."""


@pytest.fixture
def store(clock, tmp_path):
    """An empty store on a server, where transactions run side by side."""
    with postgresql() as url, Store(Database(url, clock), tmp_path) as made:
        yield made


@contextmanager
def meeting(store, moment, call):
    """Let another thread call before this thread's statement number ``moment``; it may have to wait for this one."""
    mine, met, seen = threading.get_ident(), threading.Thread(target=call), []

    def before(*_):
        if threading.get_ident() == mine:
            seen.append(True)
            if len(seen) == moment:
                met.start()
                met.join(timeout=0.3)

    engine = store.database.engine
    sa.event.listen(engine, "before_cursor_execute", before)
    try:
        yield seen
    finally:
        sa.event.remove(engine, "before_cursor_execute", before)
        if met.ident is not None:
            met.join()


def held(store, moment):
    """Return the claim of a new study's run, which is training."""
    study = store.add_study(small_plan(f"s{moment}", arms=1, seeds=1, steps=10 + moment))
    claim = store.claim(study.id, engine="test", worker="here")
    store.start(claim.run_id, claim.token)
    return claim


def obey(store, claim):
    """End as asked; refused where nobody asks any more."""
    with suppress(LostLease):
        store.cancelled(claim.run_id, claim.token)


def state(store, claim):
    """Return the run's state, whichever study looks at it."""
    with store.database.read() as connection:
        return connection.execute(sa.select(t.run.c.state).where(t.run.c.id == claim.run_id)).scalar_one()


ENDS = {
    "failure": lambda s, c: s.fail(c.run_id, c.token, "infrastructure", "killed"),
    "failure of the disk": lambda s, c: s.fail(c.run_id, c.token, "storage", "killed"),
    "release": lambda s, c: s.release(c.run_id, c.token, "interrupted"),
}


@pytest.mark.parametrize("end", ENDS.values(), ids=[*ENDS])
def test_an_end_while_a_study_is_cancelled_queues_nothing_for_ever(store, end):
    """Whatever moment the attempt ends at, its run is cancelled: no study would ever claim it."""
    reached = 0
    for moment in range(1, STATEMENTS):
        claim = held(store, moment)
        with meeting(store, moment, lambda c=claim: end(store, c)) as seen:
            store.cancel(f"s{moment}")
        reached += len(seen) >= moment
        wanted = "CANCELLED" if len(seen) >= moment else "RUNNING"
        assert state(store, claim) == wanted, f"before statement {moment}"
    assert reached > 4


def test_a_cancellation_that_is_obeyed_while_its_run_is_asked_for_again_is_no_end(store):
    """Whatever moment the attempt obeys at, the run goes on or is queued again."""
    reached = 0
    for moment in range(1, STATEMENTS):
        claim = held(store, moment)
        store.cancel(f"s{moment}")
        with meeting(store, moment, lambda c=claim: obey(store, c)) as seen:
            store.retry(f"s{moment}", author="me", reason="why not")
        reached += len(seen) >= moment
        assert state(store, claim) in ("QUEUED", "RUNNING"), f"before statement {moment}"
        if state(store, claim) == "RUNNING":
            assert not store.renew(claim.run_id, claim.token).cancel
    assert reached > 4
