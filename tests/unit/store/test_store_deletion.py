"""A study is deleted with the runs that no other study has; what stays keeps every promise of the store."""

from dataclasses import replace

import pytest
import sqlalchemy as sa

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.errors import StoreError
from paribus.store.remarks import Change, Subject
from support.plans import small_plan


def train(store, study, clock):
    """Give every run of a study a result, one after the other."""
    while (claim := store.claim(study.id, engine="local", worker="here")) is not None:
        clock.now += 1
        store.start(claim.run_id, claim.token)
        clock.now += 1
        store.finish(claim.run_id, claim.token, {"status": "succeeded"})


def counts(store):
    """Return the number of rows of each table."""
    with store.database.read() as connection:
        names = sa.inspect(connection).get_table_names()
        return {name: connection.execute(sa.text(f"SELECT COUNT(*) FROM {name}")).scalar_one() for name in names}


def test_a_study_goes_with_all_that_is_its_own(store, clock):
    """Rows of runs, attempts, events, results, budgets and remarks; one line says who deleted it."""
    before = counts(store)
    study = store.add_study(small_plan(cpu_hours=1.0))
    train(store, study, clock)
    store.remark(Subject(study="small"), Change(note="n", add=("t",)), "ada")
    store.remark(Subject(run=store.runs_of(study.id)[0].fingerprint), Change(note="n"), "ada")
    found = store.what_goes("small")
    assert (found.plans, len(found.runs), found.results, found.kept, found.shared) == (1, 4, 4, 0, {})
    store.delete_study(found, "bob")
    assert counts(store) == before | {"remark": 1, "used_number": 2}
    [line] = store.remarks(store.subject("small"))
    with pytest.raises(StoreError, match="any more"):
        store.remark(store.subject("small"), Change(note="late"), "ada")
    assert (line.author, line.kind, line.text) == ("bob", "delete", "4 runs, 4 with a result")
    with pytest.raises(StoreError, match="no study `small`"):
        store.what_goes("small")


def test_what_another_study_has_stays_and_its_budget_too(store, clock):
    """The attempts that the deleted study has paid for are charged to nobody; the other may still spend all it may."""
    first = store.add_study(small_plan(arms=3, cpu_hours=1.0))
    train(store, first, clock)
    other = store.add_study(small_plan("other", arms=1, cpu_hours=0.0001))
    budget = store.budget("other", "cpu")
    found = store.what_goes("small")
    assert (len(found.runs), found.kept, found.shared) == (4, 2, {"other": 2})
    results = store.results([p.fingerprint for p in other.plan.runs])
    store.delete_study(found, "ada")
    assert audit(snapshot(store, folders=False)) == ()
    assert store.budget("other", "cpu") == budget
    assert store.results([p.fingerprint for p in other.plan.runs]) == results
    assert [a.study_id for a in store.attempts_of(other.id)] == [None, None]
    assert store.first_planned([p.fingerprint for p in other.plan.runs]) == {("other", other.first_submitted_at): 2}
    again = store.add_study(small_plan(arms=3))
    assert [str(run.state) for run in store.runs_of(again.id)].count("SUCCEEDED") == 2
    train(store, again, clock)
    assert audit(snapshot(store, folders=False)) == ()


def test_an_attempt_of_a_deleted_run_fits_no_other(store, clock):
    """SQLite would give its number away again, and a supervisor that was cut off would record into a stranger's run."""
    study = store.add_study(small_plan())
    train(store, study, clock)
    last, old = max(run.id for run in store.runs_of(study.id)), study.id
    store.delete_study(store.what_goes("small"), "ada")
    fresh = store.add_study(small_plan("fresh", steps=9))
    assert fresh.id > old
    assert min(run.id for run in store.runs_of(fresh.id)) > last


def test_a_study_that_has_not_ended_is_refused(store, clock):
    """Queued or running, or cancelled and not stopped yet."""
    study = store.add_study(small_plan())
    for _ in range(2):
        with pytest.raises(StoreError, match=r"4 runs that have not ended: `paribus cancel small` first"):
            store.delete_study(store.what_goes("small"), "ada")
    claim = store.claim(study.id, engine="local", worker="here")
    store.start(claim.run_id, claim.token)
    store.cancel("small")
    with pytest.raises(StoreError, match="has 1 run that has not ended"):
        store.delete_study(store.what_goes("small"), "ada")
    store.cancelled(claim.run_id, claim.token)
    store.delete_study(store.what_goes("small"), "ada")
    assert store.summaries() == ()


def test_a_run_that_goes_on_for_another_study_does_not_hold_a_study(store):
    """The first has cancelled it, the second trains it."""
    store.add_study(small_plan())
    other = store.add_study(small_plan("other"))
    store.cancel("small")
    claim = store.claim(other.id, engine="local", worker="here")
    store.start(claim.run_id, claim.token)
    store.delete_study(store.what_goes("small"), "ada")
    store.finish(claim.run_id, claim.token, {"status": "succeeded"})
    assert audit(snapshot(store, folders=False)) == ()


def test_only_what_was_shown_is_deleted(store, clock):
    """A study that shares a run since, or was submitted anew, must be looked at again."""
    study = store.add_study(small_plan())
    train(store, study, clock)
    shown = store.what_goes("small")
    store.add_study(small_plan("other", arms=1))
    with pytest.raises(StoreError, match="nothing was deleted"):
        store.delete_study(shown, "ada")
    with pytest.raises(StoreError, match="nothing was deleted"):
        store.delete_study(replace(store.what_goes("small"), plans=2), "ada")
    assert len(store.runs_of(study.id)) == 4
