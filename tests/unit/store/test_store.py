"""The store: studies are submitted once, runs shared, attempts fenced, results recorded once."""

import multiprocessing

import pytest

from paribus.errors import LostLease, StoreError
from paribus.external.plan import ExternalRun, Terms, external_plan
from paribus.home import DATABASE_URL
from paribus.store.attempts import INFRASTRUCTURE_TRIES, backoff_s
from paribus.store.database import Unreachable
from paribus.store.history import recorded_runs
from paribus.store.reader import Reader
from paribus.store.states import RunState
from paribus.store.store import Store
from paribus.store.transitions import LEASE_S
from support.plans import small_plan


def take(store, study):
    """Claim a run."""
    return store.claim(study.id, engine="test", worker="here")


def started(store, study):
    """Claim a run and start it."""
    claim = take(store, study)
    store.start(claim.run_id, claim.token)
    return claim


def states(store, study):
    """Return the states in queue order."""
    return [r.state for r in store.runs_of(study.id)]


def test_the_study_of_a_name_is_the_one_submitted_last(store, clock):
    """Going back to an earlier plan finds its runs again."""
    before = store.add_study(small_plan(seeds=1))
    clock.now += 1
    store.add_study(small_plan(seeds=2))
    clock.now += 1
    assert store.add_study(small_plan(seeds=1)).id == before.id
    assert store.study("small").id == before.id


def test_a_clock_that_goes_back_brings_no_old_plan_back(store, clock):
    """An edited file takes the place of the one before, and one of earlier takes it back, whatever the clock says."""
    before = store.add_study(small_plan(seeds=1))
    clock.now -= 3600
    edited = store.add_study(small_plan(seeds=2))
    assert (edited.plan, store.study("small").id) == (small_plan(seeds=2), edited.id)
    assert store.add_study(small_plan(seeds=1)).id == before.id
    assert [e.id for e in store.summaries()] == [edited.id, before.id]


def test_runs_are_claimed_in_queue_order_under_a_new_token(store):
    """Seed-major order, the base first, each claim with the token raised by one and a name of its own."""
    study = store.add_study(small_plan())
    claims = [take(store, study) for _ in range(4)]
    assert [(c.seed, c.arm, c.token) for c in claims] == [
        (0, "arm0", 1),
        (0, "arm1", 1),
        (1, "arm0", 1),
        (1, "arm1", 1),
    ]
    assert take(store, study) is None
    assert len({c.submit_name for c in claims}) == 4


def test_a_run_that_goes_on_has_no_reason_of_the_attempt_before(store):
    """Why an attempt ended stays with it and with the queued run; the next attempt has not ended."""
    study = store.add_study(small_plan(arms=1, seeds=1))
    claim = take(store, study)
    store.start(claim.run_id, claim.token)
    store.release(claim.run_id, claim.token, "asked to stop", step=1)
    assert [r.reason for r in store.runs_of(study.id)] == ["asked to stop"]
    claim = take(store, study)
    assert [r.reason for r in store.runs_of(study.id)] == [""]
    store.start(claim.run_id, claim.token)
    assert [r.reason for r in store.runs_of(study.id)] == [""]
    assert [a.reason for a in store.attempts_of(study.id)] == ["asked to stop", ""]


def test_a_run_that_was_stopped_early_says_why(store):
    """The store has the reason of the result, for whoever shows runs and attempts; one that succeeded has none."""
    study = store.add_study(small_plan(arms=2, seeds=1))
    stopped, whole = started(store, study), started(store, study)
    store.finish(stopped.run_id, stopped.token, {"reason": "huge_update at step 3"}, stopped_early=True)
    store.finish(whole.run_id, whole.token, {"reason": "nothing"})
    assert [r.reason for r in store.runs_of(study.id)] == ["huge_update at step 3", ""]
    assert [a.reason for a in store.attempts_of(study.id)] == ["huge_update at step 3", ""]


def test_failures_of_the_infrastructure_wait_longer_each_time(store, clock):
    """The first retry comes at once, later ones after a wait; the fifth failure ends the run."""
    study = store.add_study(small_plan(arms=1, seeds=1))
    for failure in range(1, INFRASTRUCTURE_TRIES + 1):
        claim = started(store, study)
        store.fail(claim.run_id, claim.token, "infrastructure", "killed")
        wait = backoff_s(failure, claim.run_id, claim.token)
        if wait and failure < INFRASTRUCTURE_TRIES:
            assert take(store, study) is None
        clock.now += wait
    assert states(store, study) == [RunState.FAILED]


def test_runs_that_failed_together_come_back_apart():
    """Each wait is within a fifth of the power of two, the same for the same attempt, and never above the most."""
    third = [backoff_s(3, run, token) for run in range(1, 40) for token in (3, 4)]
    assert third == [backoff_s(3, run, token) for run in range(1, 40) for token in (3, 4)]
    assert len(set(third)) == len(third)
    assert (min(third) >= 48, max(third) <= 72, min(third) < 50, max(third) > 70) == (True,) * 4
    assert {backoff_s(1, run, 1) for run in range(9)} == {0.0}
    assert max(backoff_s(20, run, 20) for run in range(9)) == 1800.0


def test_what_may_begin_at_once_waits_for_no_clock(store, clock):
    """A scheduler whose clock is behind that of whoever submits, retries or lets go claims the run all the same."""
    clock.now += 9999
    study = store.add_study(small_plan(arms=1, seeds=1))
    clock.now -= 3600
    claim = started(store, study)
    clock.now += 3600
    store.release(claim.run_id, claim.token, "interrupted")
    clock.now -= 3600
    claim = started(store, study)
    store.fail(claim.run_id, claim.token, "program", "why", "s")
    claim = started(store, study)
    store.fail(claim.run_id, claim.token, "program", "why", "s")
    clock.now += 3600
    assert store.retry("small", author="ada", reason="mended").queued == 1
    clock.now -= 3600
    assert take(store, study) is not None


def tracked(store):
    """Begin an attempt at a run that its own program trains."""
    run = ExternalRun(arm="grpo", seed=0, fingerprint="e" * 64)
    return store.begin_external(
        "mine", lambda known, _: (external_plan("mine", [run], Terms(), known), "e" * 64), "here"
    )


def test_a_tracked_run_is_left_alone_and_begins_again(store, clock):
    """No scheduler takes back what none can start; one attempt at a time holds it, and a silent one is replaced."""
    first = tracked(store)
    assert tracked(store) is None
    clock.now += LEASE_S + 1
    assert store.expire("here") == ()
    second = tracked(store)
    assert (second.run_id, second.token) == (first.run_id, first.token + 1)
    with pytest.raises(LostLease):
        store.lose(first.run_id, first.token, "killed")
    store.lose(second.run_id, second.token, "killed")
    assert [run.state for run in store.runs_of(store.study("mine").id)] == [RunState.FAILED]


def test_attempts_that_go_on_without_their_scheduler_expire_by_its_hand(store, clock):
    """Others can't ask the engine, and wait for a week; attempts whose host went away are theirs, as ever."""
    study = store.add_study(small_plan(arms=1, seeds=3))
    away, own, gone = (
        store.claim(study.id, engine="slurm", worker=worker) for worker in ("/home1", "/home3", "host/home2")
    )
    clock.now += LEASE_S + 1
    assert {a.submit_name for a in store.expire("/home3")} == {own.submit_name, gone.submit_name}
    assert store.expire() == ()
    clock.now += 8 * 86400
    assert [a.submit_name for a in store.expire("/home3")] == [away.submit_name]


def test_an_attempt_that_ended_while_no_scheduler_was_there_is_charged_until_its_end(store, clock):
    """Not until its lease was over, nor until the report."""
    study = store.add_study(small_plan(arms=1, seeds=1))
    claim = store.claim(study.id, engine="slurm", worker="/home1")
    store.start(claim.run_id, claim.token)
    clock.now += 3600
    store.fail(claim.run_id, claim.token, "infrastructure", "node failure", ago_s=600.0)
    (attempt,) = store.attempts_of(study.id)
    assert attempt.charged == pytest.approx(3000.0)


def test_an_unknown_study_is_told_with_the_nearest_name(store):
    """The message lists what there is."""
    store.add_study(small_plan("ladder"))
    with pytest.raises(StoreError, match=r"no study `lader`.*Did you mean `ladder`"):
        store.study("lader")


def test_asking_what_is_recorded_makes_no_database(server, tmp_path):
    """`paribus plan` leaves no trace; with a store it learns which runs have results."""
    plan = small_plan()
    fingerprints = [r.fingerprint for r in plan.runs]
    assert recorded_runs(tmp_path, fingerprints) == frozenset()
    assert list(tmp_path.iterdir()) == []
    with Store.open(tmp_path) as store:
        claim = started(store, store.add_study(plan))
        store.finish(claim.run_id, claim.token, {})
        assert recorded_runs(tmp_path, fingerprints) == {claim.fingerprint}
        assert recorded_runs(tmp_path, fingerprints[1:]) == frozenset()


def test_a_file_that_is_no_database_is_told(tmp_path):
    """Not a traceback of the driver."""
    (tmp_path / "paribus.db").write_text("this is text, long enough to be no database header at all")
    with pytest.raises(StoreError, match="cannot read the store"):
        recorded_runs(tmp_path, ["0" * 64])


def test_looking_needs_a_store(tmp_path):
    """`paribus status` says how to get one."""
    with pytest.raises(StoreError, match="there is no store"):
        Reader.open(tmp_path)


def claim_all(home, results):
    """Claim until nothing is left, and tell what was claimed."""
    with Store.open(home) as store:
        study = store.study("small")
        claimed = []
        while (claim := take(store, study)) is not None:
            claimed.append((claim.fingerprint, claim.token))
    results.put(claimed)


def test_a_server_that_is_away_raises_the_error_that_callers_wait_on(monkeypatch, tmp_path):
    """Not the error of a file that can't be read: the same call may work later."""
    monkeypatch.setenv(DATABASE_URL, "postgresql+psycopg://nobody@127.0.0.1:9/none")
    with pytest.raises(Unreachable, match="Connection refused"):
        recorded_runs(tmp_path, ["a"])


def test_two_processes_never_claim_the_same_run(server, tmp_path):
    """Both claim as fast as they can from one database: each run goes to one of them."""
    with Store.open(tmp_path) as store:
        store.add_study(small_plan(arms=10, seeds=5))
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    both = [context.Process(target=claim_all, args=(tmp_path, results)) for _ in range(2)]
    for process in both:
        process.start()
    claimed = results.get(timeout=60) + results.get(timeout=60)
    for process in both:
        process.join()
    assert len(claimed) == len(set(claimed)) == 50
