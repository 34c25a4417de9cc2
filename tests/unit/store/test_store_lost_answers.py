"""A call is committed and its answer is lost: it is asked again, by the store itself, then by whoever called."""

from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.contract import Device
from paribus.errors import LostLease
from paribus.store.attempts import REQUEUE_TRIES
from paribus.store.database import Unreachable
from paribus.store.tables import metadata
from paribus.store.transitions import LEASE_S
from support.plans import small_plan

ATTEMPT = {
    "start": lambda s, run, token: s.start(run, token),
    "heartbeat": lambda s, run, token: s.renew(run, token),
    "result": lambda s, run, token: s.finish(run, token, {"score": 1}),
    "early result": lambda s, run, token: s.finish(run, token, {"score": 1}, stopped_early=True),
    "release": lambda s, run, token: s.release(run, token, "interrupted"),
    "requeue": lambda s, run, token: s.release(run, token, "asked", step=9),
    "preemption": lambda s, run, token: s.release(run, token, "asked to stop", reached=0),
    "failure of the program": lambda s, run, token: s.fail(run, token, "program", "ValueError: 3", "ValueError: #"),
    "failure of the infrastructure": lambda s, run, token: s.fail(run, token, "infrastructure", "killed"),
    "failure of the disk": lambda s, run, token: s.fail(run, token, "storage", "disk full", "storage"),
    "cancelled": lambda s, run, token: s.cancelled(run, token),
}
OTHERS = {
    "submit": lambda s, study: s.add_study(small_plan(arms=2, seeds=1)),
    "cancel": lambda s, study: s.cancel("small"),
    "retry": lambda s, study: s.retry("small", author="me", reason="why not"),
    "pause": lambda s, study: s.pause(study.id, "why not"),
    "devices": lambda s, study: s.register("here", [Device(kind="cpu", name="cpu", amount=2.0)]),
    "name from the engine": lambda s, study: s.set_external_id(1, 1, "job 7"),
    "expiry": lambda s, study: s.expire(),
}


def everything(store):
    """Return all rows of all tables."""
    with store.database.read() as connection:
        return [connection.execute(sa.select(table)).all() for table in metadata.sorted_tables]


def lose_an_answer(store, monkeypatch):
    """Let the next transaction that writes be committed without anybody hearing of it."""
    write, lost = store.database.write, []

    @contextmanager
    def losing(**options):
        with write(**options) as connection:
            yield connection
        if not lost:
            lost.append(True)
            raise Unreachable("the answer was lost")

    monkeypatch.setattr(store.database, "write", losing)
    return lost


@pytest.mark.parametrize("name", ATTEMPT)
def test_what_an_attempt_asks_twice_counts_once(store, monkeypatch, name):
    """The second time has the answer of the first and changes nothing; under another token it is refused."""
    study = store.add_study(small_plan(arms=1, seeds=1))
    claim = store.claim(study.id, engine="test", worker="here")
    if name != "start":
        store.start(claim.run_id, claim.token)
    if name == "cancelled":
        store.cancel("small")
    lost = lose_an_answer(store, monkeypatch)
    first = ATTEMPT[name](store, claim.run_id, claim.token)
    assert lost
    once = everything(store)
    assert ATTEMPT[name](store, claim.run_id, claim.token) == first
    assert everything(store) == once
    moves = [e.move for e in store.events_of(claim.run_id)]
    assert len(moves) == len(set(moves)) == (3 if name in ("start", "heartbeat") else 4)
    for token in (claim.token - 1, claim.token + 1):
        with pytest.raises(LostLease):
            ATTEMPT[name](store, claim.run_id, token)
    assert everything(store) == once
    assert audit(snapshot(store, folders=False)) == ()


def test_the_last_requeue_is_told_twice_and_quarantines_once(store, monkeypatch):
    """Its reason in the store is not the one that was asked with, and yet it is known again, also after a retry."""
    study = store.add_study(small_plan(arms=1, seeds=1))
    for number in range(REQUEUE_TRIES + 1):
        claim = store.claim(study.id, engine="test", worker="here")
        store.start(claim.run_id, claim.token)
        if number == REQUEUE_TRIES:
            lose_an_answer(store, monkeypatch)
        state = store.release(claim.run_id, claim.token, "asked", step=1)
        assert (state == "QUARANTINED") == (number == REQUEUE_TRIES)
    store.retry("small", author="me", reason="mended")
    once = everything(store)
    assert store.release(claim.run_id, claim.token, "asked", step=1) == "QUARANTINED"
    assert everything(store) == once


@pytest.mark.parametrize("told", [("interrupted", ""), ("other", ""), ("", ""), ("ValueError: 3", "")])
def test_an_attempt_has_one_end(store, told):
    """Who has failed cannot release, who has a result cannot fail, whatever the words are."""
    study = store.add_study(small_plan(arms=2, seeds=1))
    failed, done = store.claim_many(study.id, 2, engine="test", worker="here")
    for claim in (failed, done):
        store.start(claim.run_id, claim.token)
    store.fail(failed.run_id, failed.token, "program", "ValueError: 3", "ValueError: #")
    store.finish(done.run_id, done.token, {})
    once = everything(store)
    for claim in (failed, done):
        for call in (store.release, lambda run, token, reason: store.fail(run, token, "infrastructure", *told)):
            with pytest.raises(LostLease):
                call(claim.run_id, claim.token, told[0])
        with pytest.raises(LostLease):
            store.cancelled(claim.run_id, claim.token)
    assert everything(store) == once


@pytest.mark.parametrize("name", OTHERS)
def test_what_a_scheduler_or_a_person_asks_twice_counts_once(store, clock, monkeypatch, name):
    """The same rows are there, and each has been changed once."""
    study = store.add_study(small_plan(arms=2, seeds=1)) if name != "submit" else None
    if study is not None:
        claim = store.claim(study.id, engine="test", worker="here")
        store.start(claim.run_id, claim.token)
        clock.now += LEASE_S + 1 if name == "expiry" else 0
    lost = lose_an_answer(store, monkeypatch)
    OTHERS[name](store, study)
    assert lost
    once = everything(store)
    OTHERS[name](store, study)
    assert everything(store) == once
    moves = [e.move for run in store.runs_of(store.study("small").id) for e in store.events_of(run.id)]
    assert all(moves.count(move) <= (2 if move == "submit" else 1) for move in moves)
    assert audit(snapshot(store, folders=False)) == ()


def test_a_claim_that_is_asked_twice_takes_other_runs(store, monkeypatch):
    """Those of the first time stay claimed, with their costs reserved, until the scheduler puts them back."""
    study = store.add_study(small_plan(arms=3, seeds=1))
    lose_an_answer(store, monkeypatch)
    known = store.claim_many(study.id, 2, engine="test", worker="here")
    live = store.live_attempts()
    assert (len(known), len(live)) == (1, 3)
    for attempt in live:
        store.release(attempt.run_id, attempt.token, "claimed by a call whose answer was lost")
    assert {str(s) for s in store.counts(study.id)} == {"QUEUED"}
    assert audit(snapshot(store, folders=False)) == ()
