"""Cancelling, trying again, pausing, and attempts that come too late, on both databases."""

import pytest
import sqlalchemy as sa

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.errors import LostLease
from paribus.store.attempts import INTERRUPTION_TRIES, REQUEUE_TRIES, backoff_s
from paribus.store.states import TRANSITIONS, RunState
from paribus.store.tables import metadata
from paribus.store.transitions import LEASE_S, move_runs
from support.plans import small_plan


def started(store, study):
    """Claim a run and start it; ``None`` if there is none to claim."""
    claim = store.claim(study.id, engine="test", worker="here")
    if claim is not None:
        store.start(claim.run_id, claim.token)
    return claim


def states(store, study):
    """Return the states in queue order, in short."""
    return [str(r.state) for r in store.runs_of(study.id)]


def everything(store):
    """Return all rows of all tables."""
    with store.database.read() as connection:
        return [connection.execute(sa.select(table)).all() for table in metadata.sorted_tables]


ZOMBIE = {
    "start": lambda s, run, token: s.start(run, token),
    "heartbeat": lambda s, run, token: s.renew(run, token),
    "result": lambda s, run, token: s.finish(run, token, {"status": "succeeded"}),
    "early result": lambda s, run, token: s.finish(run, token, {}, stopped_early=True),
    "release": lambda s, run, token: s.release(run, token, "late"),
    "requeue": lambda s, run, token: s.release(run, token, "late", step=9),
    "failure of the program": lambda s, run, token: s.fail(run, token, "program", "late", "signature"),
    "failure of the infrastructure": lambda s, run, token: s.fail(run, token, "infrastructure", "late"),
    "cancelled": lambda s, run, token: s.cancelled(run, token),
}


@pytest.mark.parametrize("call", ZOMBIE.values(), ids=[*ZOMBIE])
def test_an_attempt_that_lost_its_run_changes_nothing(store, clock, call):
    """Whether the run waits, is held by its successor, or has ended: every call is refused, and no row differs."""
    study = store.add_study(small_plan(arms=1, seeds=1))
    old = started(store, study)
    clock.now += LEASE_S + 1
    store.expire()

    def refused():
        before = everything(store)
        for token in (old.token, 0, old.token + 7):
            with pytest.raises(LostLease):
                call(store, old.run_id, token)
        assert everything(store) == before

    refused()
    new = started(store, study)
    store.cancel("small")
    refused()
    store.finish(new.run_id, new.token, {"score": 1})
    refused()


def test_a_move_that_needs_the_token_is_never_made_without_one(store):
    """Whoever forgets to pass it changes nothing."""
    study = store.add_study(small_plan(arms=1, seeds=1))
    claim = started(store, study)
    store.cancel("small")
    before = everything(store)
    for move in {step.move for step in TRANSITIONS if step.fenced}:
        with store.database.write() as connection:
            assert move_runs(connection, store.database.now(), move, sa.true()) == []
    assert everything(store) == before
    assert store.renew(claim.run_id, claim.token).cancel


def test_a_late_name_from_the_engine_stays_with_its_attempt(store, clock):
    """What an engine calls an attempt is written to that attempt's row alone, also after its end."""
    study = store.add_study(small_plan(arms=1, seeds=1))
    old = started(store, study)
    store.release(old.run_id, old.token, "interrupted")
    started(store, study)
    store.set_external_id(old.run_id, old.token, "job 7")
    assert [a.external_id for a in store.attempts_of(study.id)] == ["job 7", ""]


def test_cancelling_counts_what_became_of_the_runs(store):
    """Queued ones at once, live ones by request, ended ones not at all; an arm alone if it is named."""
    study = store.add_study(small_plan(arms=3, seeds=2))
    done, live = started(store, study), started(store, study)
    store.finish(done.run_id, done.token, {})
    one = store.cancel("small", "arm1")
    assert (one.queued, one.running, one.shared, one.ended) == (1, 1, 0, 0)
    assert states(store, study) == ["SUCCEEDED", "RUNNING", "QUEUED", "QUEUED", "CANCELLED", "QUEUED"]
    rest = store.cancel("small")
    assert (rest.queued, rest.running, rest.shared, rest.ended) == (3, 1, 0, 2)
    assert started(store, study) is None
    assert store.renew(live.run_id, live.token).cancel
    store.cancelled(live.run_id, live.token)
    assert states(store, study) == ["SUCCEEDED", *["CANCELLED"] * 5]
    assert audit(snapshot(store, folders=False)) == ()


@pytest.mark.parametrize("end", ["release", "failure", "requeue", "expiry"])
def test_a_request_to_cancel_outlives_the_attempt_that_should_obey_it(store, clock, end):
    """Whatever ends the attempt without a result, the run is cancelled and not claimed again."""
    study = store.add_study(small_plan(arms=1, seeds=1))
    claim = started(store, study)
    store.cancel("small")
    if end == "release":
        store.release(claim.run_id, claim.token, "interrupted")
    elif end == "requeue":
        store.release(claim.run_id, claim.token, "asked", step=3)
    elif end == "failure":
        assert store.fail(claim.run_id, claim.token, "program", "why", "s") is RunState.CANCELLED
    else:
        clock.now += LEASE_S + 1
        assert len(store.expire()) == 1
    assert states(store, study) == ["CANCELLED"]
    assert audit(snapshot(store, folders=False)) == ()


def test_a_new_study_brings_back_what_others_had_cancelled_but_an_edited_one_does_not(store):
    """Cancelling holds for the name of the study until it is taken back."""
    one = store.add_study(small_plan("one", arms=2, seeds=1))
    store.cancel("one", "arm1")
    edited = store.add_study(small_plan("one", arms=2, seeds=2))
    assert states(store, edited) == ["QUEUED", "CANCELLED", "QUEUED", "QUEUED"]
    two = store.add_study(small_plan("two", arms=2, seeds=1))
    assert states(store, two) == ["QUEUED", "QUEUED"]
    assert states(store, one) == ["QUEUED", "CANCELLED"]
    assert audit(snapshot(store, folders=False)) == ()


def test_a_new_study_retries_no_failed_run(store):
    """A run that failed under another study stays so until a retry; the new study starts with it as it is."""
    study = store.add_study(small_plan("one", arms=1, seeds=1))
    for _ in range(2):
        claim = started(store, study)
        store.fail(claim.run_id, claim.token, "program", "why", "signature")
    assert states(store, store.add_study(small_plan("two", arms=1, seeds=1))) == ["QUARANTINED"]


def test_a_cancellation_is_taken_back(store):
    """Queued runs are queued again, a run that has not obeyed yet goes on."""
    study = store.add_study(small_plan(arms=2, seeds=1))
    live = started(store, study)
    store.cancel("small")
    done = store.retry("small", author="ada", reason="")
    assert (done.queued, done.kept) == (1, 1)
    assert not store.renew(live.run_id, live.token).cancel
    assert states(store, study) == ["RUNNING", "QUEUED"]


def test_a_disk_that_takes_nothing_pauses_at_once(store):
    """Nothing is counted against the run, nothing more is claimed, and trying again lifts the pause."""
    study = store.add_study(small_plan(arms=2, seeds=1))
    claim = started(store, study)
    assert store.fail(claim.run_id, claim.token, "storage", "full: make room", "storage") is RunState.QUEUED
    assert store.paused(study.id) == "full: make room"
    assert started(store, study) is None
    run = store.runs_of(study.id)[0]
    assert (run.program_failures, run.infrastructure_failures, run.signature) == (0, 0, "storage")
    with pytest.raises(LostLease):
        store.fail(claim.run_id, claim.token, "storage", "late", "storage")
    assert store.retry("small", author="ada", reason="made room").lifted
    assert started(store, study).token == 2


def test_different_failures_and_one_arm_alone_do_not_pause(store):
    """Three seeds of one arm, or three errors, are no sign of a broken set-up."""
    study = store.add_study(small_plan(arms=2, seeds=4))
    for number in range(8):
        claim = started(store, study)
        signature = "same" if claim.arm == "arm0" else f"other {number}"
        store.fail(claim.run_id, claim.token, "program", "why", signature)
    assert store.paused(study.id) == ""


def test_a_run_that_asks_to_be_queued_again_must_come_further(store):
    """As often as it likes while its step grows; three times in a row without that, and it is quarantined."""
    study = store.add_study(small_plan(arms=1, seeds=1))
    for step in (3, 5, 9, 9, 9):
        claim = started(store, study)
        assert store.release(claim.run_id, claim.token, "wall time", step=step) is RunState.QUEUED
    claim = started(store, study)
    store.release(claim.run_id, claim.token, "interrupted from outside")
    claim = started(store, study)
    assert store.release(claim.run_id, claim.token, "wall time", step=8) is RunState.QUARANTINED
    run = store.runs_of(study.id)[0]
    assert f"{REQUEUE_TRIES} times in a row" in run.reason
    assert run.signature == "asked to be queued again without coming further"


def test_interruptions_without_a_new_step_are_bounded(store, clock):
    """Preempted as often as it is while its step grows; five times in a row without that, and it is quarantined."""
    study = store.add_study(small_plan(arms=1, seeds=1))

    def preempted(step):
        clock.now += 200
        claim = started(store, study)
        return store.release(claim.run_id, claim.token, "asked to stop", reached=step)

    assert {preempted(step) for step in range(1, 2 * INTERRUPTION_TRIES)} == {RunState.QUEUED}
    assert {preempted(3) for _ in range(INTERRUPTION_TRIES - 1)} == {RunState.QUEUED}
    clock.now += 200
    for _ in range(2 * INTERRUPTION_TRIES):  # Ctrl-C: never counted
        claim = started(store, study)
        assert store.release(claim.run_id, claim.token, "asked to stop") is RunState.QUEUED
    assert preempted(9) is RunState.QUARANTINED
    run = store.runs_of(study.id)[0]
    assert "interrupted without a new step, 5 times in a row: asked to stop. Write checkpoints more often" in run.reason
    assert run.signature == "interrupted without a new step"
    assert (run.program_failures, run.infrastructure_failures) == (0, 0)
    store.retry("small", author="ada", reason="longer limit")
    assert preempted(9) is RunState.QUEUED
    assert audit(snapshot(store, folders=False)) == ()


def test_interruptions_without_a_new_step_wait_longer_each_time(store, clock):
    """As failures of the infrastructure do: at a busy hour five could come within a minute."""
    study = store.add_study(small_plan(arms=1, seeds=1))
    waits = []
    for _ in range(INTERRUPTION_TRIES - 1):
        claim = started(store, study)
        store.release(claim.run_id, claim.token, "asked to stop", reached=0)
        waits.append(backoff_s(len(waits) + 1, claim.run_id, claim.token))
        if waits[-1]:
            clock.now += waits[-1] - 0.1
            assert started(store, study) is None
        clock.now += 0.2
    assert waits[0] == 0 < waits[1] < waits[2] < waits[3]


def test_a_large_study_is_submitted_and_cancelled_in_few_statements(store):
    """The number of statements does not grow with the number of runs."""
    counts = []
    for size in (5, 50):
        statements = []
        sa.event.listen(store.database.engine, "before_cursor_execute", lambda *a, s=statements: s.append(a[2]))
        store.add_study(small_plan(f"s{size}", arms=size, seeds=3, steps=size))
        store.cancel(f"s{size}")
        counts.append(len(statements))
    assert counts[1] <= counts[0]


def test_priority_and_weight_belong_to_the_name_of_a_study(store):
    """Submitted again a study keeps them unless others are given; an edited file takes them over."""
    assert [(s.priority, s.weight) for s in (store.add_study(small_plan()), store.add_study(small_plan("other")))] == [
        (0, 1.0),
        (0, 1.0),
    ]
    assert store.add_study(small_plan(), priority=4).weight == 1.0
    assert store.add_study(small_plan(), weight=2.5).priority == 4
    edited = store.add_study(small_plan(arms=3))
    assert (edited.priority, edited.weight, store.study("other").priority) == (4, 2.5, 0)


def test_the_entries_say_what_can_go_on(store):
    """Open until every run that is not cancelled has ended; paused once, with the first reason, until a retry."""
    study, other = store.add_study(small_plan(arms=1, seeds=1)), store.add_study(small_plan("other", arms=2, seeds=1))
    assert [(e.name, e.open, e.paused) for e in store.summaries()] == [("small", True, ""), ("other", True, "")]
    for reason in ("no such data", "another reason"):
        store.pause(study.id, reason)
    assert store.claim(study.id, engine="test", worker="here") is None
    assert [e.paused for e in store.summaries([study.id])] == ["no such data"]
    store.retry("small", author="me", reason="mended")
    claim = started(store, study)
    store.cancel("other")
    assert [e.open for e in store.summaries()] == [True, False]
    store.finish(claim.run_id, claim.token, {})
    assert [e.open for e in store.summaries()] == [False, False]
    known = store.states_of([r.fingerprint for r in other.plan.runs] + ["unknown"])
    assert sorted(known.values()) == [RunState.CANCELLED, RunState.SUCCEEDED]
