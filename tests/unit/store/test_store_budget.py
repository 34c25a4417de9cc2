"""The budget ledger: reserved at the claim, settled at the end, whatever ends an attempt; never beyond the cap."""

import random
import threading
from contextlib import suppress
from dataclasses import replace

import pytest

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.errors import LostLease
from paribus.store.database import Database
from paribus.store.store import Store
from paribus.store.transitions import LEASE_S
from support.plans import small_plan


def claim(store, study, gpus=1.0, *, start=True):
    """Claim the next run, and be its supervisor."""
    claim = store.claim(study.id, engine="test", worker="here", gpus=gpus)
    if claim is not None and start:
        store.start(claim.run_id, claim.token)
    return claim


def sums(store, unit="gpu"):
    """Return what is reserved, spent and wasted."""
    budget = store.budget("small", unit)
    return budget.reserved, budget.spent, budget.wasted


def kept(store):
    """Whether the auditor finds nothing."""
    return audit(snapshot(store, folders=False)) == ()


def test_what_is_stated_is_reserved_until_a_run_of_the_study_has_ended(store, clock):
    """Then as much as the longest took; the reservation ends with its attempt, and the charge is the time held."""
    study = store.add_study(small_plan(seeds=4, run_hours=1.0))
    first, second = claim(store, study), claim(store, study)
    assert sums(store) == (7200.0, 0.0, 0.0)
    clock.now += 50
    store.finish(first.run_id, first.token, {})
    assert sums(store) == (3600.0, 50.0, 0.0)
    third = claim(store, study)
    assert sums(store) == (3650.0, 50.0, 0.0)
    clock.now += 10
    store.release(second.run_id, second.token, "interrupted")
    store.fail(third.run_id, third.token, "program", "why", "signature")
    assert sums(store) == (0.0, 120.0, 10.0)
    assert (store.budget("small", "gpu").results, store.budget("small", "gpu").longest) == (1, 60.0)
    assert kept(store)


def test_claims_at_once_are_those_that_the_budget_allows_one_by_one(store):
    """Each is reserved for, and the first that has no room ends the row; they come in queue order."""
    study = store.add_study(small_plan(seeds=4, run_hours=1.0, gpu_hours=3.5))
    claims = store.claim_many(study.id, 8, engine="test", worker="here", gpus=1.0)
    assert [c.run_id for c in claims] == [r.id for r in store.runs_of(study.id)[:3]]
    assert {c.token for c in claims} == {1}
    assert sums(store) == (3 * 3600.0, 0.0, 0.0)
    assert store.claim_many(study.id, 8, engine="test", worker="here", gpus=1.0) == ()
    assert kept(store)


def test_gpus_are_charged_by_their_number_and_slots_apart(store, clock):
    """Two GPUs cost twice, half a GPU half, and where there is none a CPU slot is counted in another sum."""
    study = store.add_study(small_plan(seeds=4))
    for gpus in (2.0, 0.5, 0.0):
        one = claim(store, study, gpus)
        clock.now += 10
        store.finish(one.run_id, one.token, {})
    assert (store.budget("small", "gpu").spent, store.budget("small", "cpu").spent) == (25.0, 10.0)
    assert kept(store)


def test_an_attempt_that_never_began_costs_nothing_and_one_that_died_costs_its_lease(store, clock):
    """Waiting in a queue is free; a night before anybody notices a death is not charged."""
    study = store.add_study(small_plan(seeds=1))
    waiting, dead = claim(store, study, start=False), claim(store, study)
    clock.now += 20
    store.renew(waiting.run_id, waiting.token)
    store.renew(dead.run_id, dead.token)
    clock.now += 36_000
    store.release(waiting.run_id, waiting.token, "the scheduler was gone")
    assert [a.submit_name for a in store.expire()] == [dead.submit_name]
    assert sums(store) == (0.0, 20 + LEASE_S, 20 + LEASE_S)
    assert kept(store)


def test_the_cap_holds_at_each_claim_and_a_settlement_makes_room(store, clock):
    """Reserved and spent together stay below it; what needed less than it had reserved lets another one in."""
    study = store.add_study(small_plan(seeds=4, gpu_hours=2.0, run_hours=0.8))
    first, second = claim(store, study), claim(store, study)
    assert claim(store, study) is None
    clock.now += 100
    store.finish(first.run_id, first.token, {})
    assert claim(store, study) is not None
    assert second is not None
    assert kept(store)


def test_a_refused_claim_changes_nothing(store):
    """Neither token, nor state, nor log, nor sums."""
    study = store.add_study(small_plan(gpu_hours=1.0, run_hours=2.0))
    before = snapshot(store, folders=False)
    assert claim(store, study) is None
    assert replace(snapshot(store, folders=False), now=before.now) == before


def test_a_raised_budget_counts_at_the_next_submission_and_what_was_spent_stays(store, clock):
    """Nothing else of the plan has changed, so it is the same study; an edited plan of the name shares the budget."""
    study = store.add_study(small_plan(gpu_hours=1.0))
    one = claim(store, study)
    clock.now += 3600
    store.finish(one.run_id, one.token, {})
    assert claim(store, study) is None
    again = store.add_study(small_plan(gpu_hours=2.0))
    assert again.id == study.id
    two = claim(store, study, start=False)
    store.release(two.run_id, two.token, "interrupted")
    edited = store.add_study(small_plan(arms=3, gpu_hours=1.0))
    assert edited.id != study.id
    assert claim(store, edited) is None
    assert kept(store)


def test_what_is_in_flight_counts_as_used(store, clock):
    """The cap may be hit by runs that take longer than was reserved for them."""
    study = store.add_study(small_plan(gpu_hours=0.01))
    claim(store, study), claim(store, study)
    clock.now += 17
    budget = store.budget("small", "gpu")
    assert (budget.live, budget.used, budget.used_up) == (34.0, 34.0, False)
    clock.now += 1
    assert store.budget("small", "gpu").used_up


def test_nothing_is_claimed_beyond_what_is_in_flight(store, clock):
    """What was reserved for an attempt counts as long as it uses less, and what it uses as soon as that is more."""
    study = store.add_study(small_plan(arms=4, seeds=4, gpu_hours=0.1, run_hours=0.02))
    claim(store, study), claim(store, study)
    clock.now += 100
    assert store.budget("small", "gpu").beyond == 56.0
    assert len(store.claim_many(study.id, 8, engine="test", worker="here", gpus=1.0)) == 2  # 160 of 360 s are free
    unknown = store.add_study(small_plan("unknown", steps=9, gpu_hours=0.01))
    first, _ = claim(store, unknown), claim(store, unknown)
    clock.now += 18
    assert claim(store, unknown) is None
    store.release(first.run_id, first.token, "its checkpoint is written")
    assert claim(store, unknown) is None
    assert kept(store)


def test_the_forecast_is_the_mean_cost_of_a_result_with_its_waste(store, clock):
    """Before the first result it is what was stated, without that nothing."""
    study = store.add_study(small_plan(seeds=2, run_hours=0.1))
    assert (store.budget("small", "gpu").forecast(4), store.budget("small", "gpu").expected(4)) == (1440.0, 1440.0)
    bad = claim(store, study)
    clock.now += 30
    store.fail(bad.run_id, bad.token, "program", "why", "signature")
    good = claim(store, study)
    clock.now += 100
    store.finish(good.run_id, good.token, {})
    assert (store.budget("small", "gpu").forecast(3), store.budget("small", "gpu").expected(3)) == (520.0, 1440.0)
    store.add_study(small_plan("other"))
    assert store.budget("other", "gpu").forecast(3) is None


@pytest.mark.slow
@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
@pytest.mark.parametrize("seed", range(30))
def test_whatever_happens_the_sums_are_those_of_the_attempts_and_the_cap_holds(store, clock, seed):
    """Random histories with faults, stale calls and changed caps; a wrong sum stays, so the audit can be rare."""
    dice = random.Random(seed)
    study = store.add_study(small_plan(arms=4, seeds=5, gpu_hours=1.0, run_hours=0.1))
    held = []
    for number in range(150):
        clock.now += dice.choice((0.0, 1.0, 20.0, 200.0))
        match dice.randrange(9):
            case 0 | 1:
                one = claim(store, study, dice.choice((0.5, 1.0, 2.0)), start=dice.random() < 0.8)
                held += [] if one is None else [one]
            case 2:
                store.expire()
            case 3:
                store.add_study(small_plan(arms=4, seeds=5, gpu_hours=dice.choice((0.5, 1.0, 3.0)), run_hours=0.1))
            case 4 if dice.random() < 0.2:
                store.cancel("small", "arm3")
            case 5 if dice.random() < 0.3:
                store.retry("small", author="me", reason="mended")
            case _ if held:
                one = dice.choice(held)
                end = dice.choice((store.renew, store.finish, store.fail, store.release, store.cancelled))
                more = {store.finish: [{}], store.fail: ["program", "why"], store.release: ["why"]}.get(end, [])
                with suppress(LostLease):
                    end(one.run_id, one.token, *more)
        assert store.budget("small", "gpu").reserved >= -1e-6
        if number % 5 == 4:
            broken = [v for v in audit(snapshot(store, folders=False)) if v.invariant in ("I6", "I7")]
            assert [v for v in broken if v.invariant == "I7" or "its claim" in v.message] == []


def test_claims_from_many_threads_never_reserve_more_than_the_cap(server, store):
    """Eight processes of a server ask at once, and the row of the budget lets one after the other in."""
    if server is None:
        pytest.skip("on SQLite one process writes")
    study = store.add_study(small_plan(arms=4, seeds=10, gpu_hours=5.0, run_hours=1.0))
    found, gate = [], threading.Barrier(8)

    def work():
        with Store(Database(server), store.home) as mine:
            gate.wait()
            found.extend(mine.claim(study.id, engine="test", worker="here", gpus=1.0) for _ in range(3))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([c for c in found if c is not None]) == 5
    assert sums(store)[0] == 5 * 3600.0
    assert kept(store)
