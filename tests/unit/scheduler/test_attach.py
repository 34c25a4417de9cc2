"""Attaching to a study: its end is seen in the store, and a scheduler that has gone is reported."""

import pytest

from paribus.errors import StoreError
from paribus.scheduler import attach
from paribus.scheduler.attach import Attached
from paribus.scheduler.home_lock import SCHEDULER, lock_home
from paribus.scheduler.scheduler import Ending
from paribus.store.database import Unreachable
from paribus.store.store import Store
from support.plans import small_plan


@pytest.fixture
def site(tmp_path):
    """Return a store with a study, and what is attached to it."""
    with Store.open(tmp_path) as store:
        study = store.add_study(small_plan())
        attached = Attached(store)
        attached.take_up(study)
        yield store, study, attached


def test_the_end_of_a_study_is_seen_in_the_store(site):
    """A pause counts only when no attempt is live, as in the scheduler itself."""
    store, study, attached = site
    claim = store.claim(study.id, engine="test", worker="here")
    store.start(claim.run_id, claim.token)
    store.pause(study.id, "something is wrong")
    assert attached.turn() == {}
    store.finish(claim.run_id, claim.token, {"status": "succeeded"})
    assert attached.turn() == {study.id: Ending.PAUSED}
    assert attached.idle
    attached.take_up(study)
    store.cancel("small")
    assert attached.turn() == {study.id: Ending.COMPLETE}


def test_a_scheduler_that_has_gone_is_reported(site, monkeypatch):
    """Also while the database is away; not while the scheduler lives."""
    store, _, attached = site
    monkeypatch.setattr(attach, "GONE_S", -1.0)
    with lock_home(store.home, SCHEDULER):
        assert attached.turn() == {}
    with pytest.raises(StoreError, match="has gone"):
        attached.turn()

    def away(*_):
        raise Unreachable("the database is away")

    monkeypatch.setattr(store, "summaries", away)
    with pytest.raises(StoreError, match="has gone"):
        attached.turn()
    with lock_home(store.home, SCHEDULER), pytest.raises(Unreachable):
        attached.turn()


def test_a_study_that_was_deleted_meanwhile_is_reported(site):
    """Such as while the terminal of the command was stopped: a sentence, no traceback."""
    store, study, attached = site
    store.cancel("small")
    store.delete_study(store.what_goes("small"), "me")
    assert store.summaries([study.id]) == ()
    with pytest.raises(StoreError, match="`small` was deleted meanwhile"):
        attached.turn()
