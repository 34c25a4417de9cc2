"""The auditor: silent about whatever the store does, and it sees every single thing that must not be."""

from dataclasses import replace

import pytest

from paribus.audit.invariants import INVARIANTS, audit, statement
from paribus.audit.snapshot import FolderFacts, snapshot
from paribus.run_folder.checkpoints import damaged_files
from paribus.run_folder.folder import MetricLine, RunFolder, write_json
from paribus.store.models import EventRecord, LeaseRecord
from paribus.store.states import RunState
from paribus.store.transitions import LEASE_S
from support.plans import small_plan

embedded = pytest.mark.parametrize("server", ["sqlite"], indirect=True)


def folder_of(store, claim, payload=None):
    """Make the folder of an attempt, with a result if there is one."""
    folder = RunFolder.of(store.home, claim.fingerprint, claim.token)
    folder.path.mkdir(parents=True)
    folder.append_metrics(MetricLine(step=1, time_ms=1, values={"reward/mean": 0.5}))
    if payload is not None:
        write_json(folder.result, payload)
    return folder


@pytest.fixture
def history(store, clock):
    """A store with some of everything: a result, a retry, an interruption, an expiry, a cancellation, a live run."""
    study = store.add_study(small_plan(arms=3, seeds=2, gpu_hours=10.0))

    def take():
        clock.now += 1
        claim = store.claim(study.id, engine="test", worker="here", gpus=1.0)
        store.start(claim.run_id, claim.token)
        clock.now += 100
        return claim

    first = take()
    folder_of(store, first, {"status": "succeeded"})
    store.finish(first.run_id, first.token, {"status": "succeeded"})
    failed = take()
    folder_of(store, failed)
    store.fail(failed.run_id, failed.token, "program", "why", "signature")
    again = take()
    store.release(again.run_id, again.token, "interrupted")
    lost = take()
    clock.now += LEASE_S
    store.expire()
    live = store.claim(study.id, engine="test", worker="here", gpus=1.0)
    store.start(live.run_id, live.token)
    store.cancel("small", "arm2")
    store.retry("small", "arm2", author="me", reason="after all")
    store.cancel("small", "arm2")
    assert (again.run_id, lost.token) == (failed.run_id, 3)
    return snapshot(store)


def told(made):
    """Return which invariants a snapshot violates."""
    return {v.invariant for v in audit(made)}


def change(rows, index, **values):
    """Return rows with one of them changed."""
    return tuple(replace(r, **values) if i == index else r for i, r in enumerate(rows))


def test_what_the_store_does_violates_nothing(history):
    """All eleven promises hold, and each has a sentence."""
    assert audit(history) == ()
    assert [*INVARIANTS] == [f"I{i}" for i in range(1, 12)]
    assert all(statement(name).endswith(".") for name in INVARIANTS)


def doubled_result(s):
    """Corrupt a snapshot."""
    return replace(s, results=s.results * 2)


def doubled_cell(s):
    """Corrupt a snapshot."""
    return replace(s, links=(*s.links, replace(s.links[0], run_id=s.links[3].run_id)), runs=change(s.runs, 3, seed=0))


def stale_result(s):
    """Corrupt a snapshot."""
    return replace(s, results=change(s.results, 0, token=2))


def result_of_a_failed_attempt(s):
    """Corrupt a snapshot."""
    return replace(s, attempts=change(s.attempts, 0, outcome="retry"))


def two_owners(s):
    """Corrupt a snapshot."""
    return replace(s, attempts=change(s.attempts, 1, ended_at=None))


def overlapping_owners(s):
    """Corrupt a snapshot."""
    return replace(s, attempts=change(s.attempts, 1, ended_at=s.attempts[2].claimed_at + 2))


def gpu_booked_twice(s):
    """Corrupt a snapshot."""
    live = [a for a in s.attempts if a.ended_at is None]
    last = max((a for a in s.attempts if a.ended_at is not None), key=lambda a: a.ended_at)
    over = tuple(replace(a, ended_at=live[0].claimed_at + 2) if a is last else a for a in s.attempts)
    shares = ((last, 0.75), (live[0], 0.5))
    leases = tuple(LeaseRecord(run_id=a.run_id, token=a.token, device_id=1, share=part) for a, part in shares)
    return replace(s, attempts=over, leases=leases)


def lost_run(s):
    """Corrupt a snapshot."""
    return replace(s, links=s.links[1:])


def unknown_folder(s):
    """Corrupt a snapshot."""
    return replace(s, folders=(*s.folders, FolderFacts(run="0" * 12, token=1, result_hash="", metrics=1)))


def life_after_the_end(s):
    """Corrupt a snapshot."""
    line = EventRecord(run_id=1, at=s.now, token=1, move="claim", source="SUCCEEDED", target="LEASED", reason="")
    return replace(s, events=(*s.events, line))


def lost_generation(s):
    """Corrupt a snapshot."""
    return replace(s, runs=change(s.runs, 2, generation=0))


def cancelled_by_all(s):
    """Corrupt a snapshot."""
    queued = next(r.id for r in s.runs if r.state is RunState.QUEUED)
    return replace(s, links=tuple(replace(k, withdrawn=k.withdrawn or k.run_id == queued) for k in s.links))


def over_budget(s):
    """Corrupt a snapshot."""
    return replace(s, attempts=change(s.attempts, 2, cap=30.0))


def far_beyond_the_budget(s):
    """Corrupt a snapshot."""
    budgets = tuple(replace(b, cap=300.0, spent=b.spent and 500.0) for b in s.budgets)
    return replace(s, budgets=budgets, attempts=tuple(replace(a, cap=300.0) for a in s.attempts))


def forgotten_reservation(s):
    """Corrupt a snapshot."""
    return replace(s, budgets=tuple(replace(b, reserved=0.0) for b in s.budgets))


def hidden_waste(s):
    """Corrupt a snapshot."""
    return replace(s, budgets=tuple(replace(b, wasted=0.0) for b in s.budgets))


def another_result_than_charged(s):
    """Corrupt a snapshot."""
    return replace(s, budgets=tuple(replace(b, results=2) for b in s.budgets))


def charged_twice(s):
    """Corrupt a snapshot."""
    return replace(s, budgets=tuple(replace(b, spent=2 * b.spent) for b in s.budgets))


def never_charged(s):
    """Corrupt a snapshot."""
    return replace(s, attempts=change(s.attempts, 0, charged=None))


def overcharged(s):
    """Corrupt a snapshot."""
    return replace(s, attempts=change(s.attempts, 1, charged=1000.0))


def undercharged(s):
    """Corrupt a snapshot."""
    return replace(s, attempts=change(s.attempts, 0, charged=0.0))


def no_budget(s):
    """Corrupt a snapshot."""
    return replace(s, budgets=s.budgets[1:])


def forgotten_attempt(s):
    """Corrupt a snapshot."""
    return replace(s, attempts=s.attempts[:1] + s.attempts[2:])


def negative_charge(s):
    """Corrupt a snapshot."""
    return replace(s, attempts=change(s.attempts, 0, ended_at=s.attempts[0].claimed_at - 5))


def end_without_outcome(s):
    """Corrupt a snapshot."""
    return replace(s, attempts=change(s.attempts, 0, outcome=""))


def lease_long_over(s):
    """Corrupt a snapshot."""
    return replace(s, now=s.now + 3 * LEASE_S)


def held_by_nobody(s):
    """Corrupt a snapshot."""
    return replace(s, runs=change(s.runs, 5, state=RunState.RUNNING, lease_until=s.now))


def live_without_lease(s):
    """Corrupt a snapshot."""
    live = next(i for i, r in enumerate(s.runs) if r.state is RunState.RUNNING)
    return replace(s, runs=change(s.runs, live, lease_until=None))


def waits_for_ever(s):
    """Corrupt a snapshot."""
    queued = next(i for i, r in enumerate(s.runs) if r.state is RunState.QUEUED)
    return replace(s, runs=change(s.runs, queued, not_before=s.now + 10_000))


def never_submitted(s):
    """Corrupt a snapshot."""
    return replace(s, runs=change(s.runs, 4, state=RunState.PLANNED))


def result_without_state(s):
    """Corrupt a snapshot."""
    return replace(s, runs=change(s.runs, 0, state=RunState.FAILED))


def state_without_result(s):
    """Corrupt a snapshot."""
    return replace(s, results=())


def forged_result(s):
    """Corrupt a snapshot."""
    return replace(s, results=change(s.results, 0, payload='{"status": "better"}'))


def lost_records(s):
    """Corrupt a snapshot."""
    return replace(s, folders=())


def other_result_on_disk(s):
    """Corrupt a snapshot."""
    return replace(s, folders=change(s.folders, 0, result_hash="f" * 64))


def forgotten_event(s):
    """Corrupt a snapshot."""
    return replace(s, events=s.events[:-1])


def reordered_events(s):
    """Corrupt a snapshot."""
    return replace(s, events=s.events[::-1])


def damaged_checkpoint(s):
    """Corrupt a snapshot."""
    return replace(s, folders=change(s.folders, 0, damaged=("model.safetensors",)))


CORRUPTIONS = {
    doubled_result: "I1",
    doubled_cell: "I1",
    stale_result: "I2",
    result_of_a_failed_attempt: "I2",
    two_owners: "I3",
    overlapping_owners: "I3",
    gpu_booked_twice: "I3",
    lost_run: "I4",
    unknown_folder: "I4",
    life_after_the_end: "I5",
    lost_generation: "I5",
    cancelled_by_all: "I8",
    over_budget: "I6",
    far_beyond_the_budget: "I6",
    forgotten_reservation: "I7",
    hidden_waste: "I7",
    another_result_than_charged: "I7",
    charged_twice: "I7",
    never_charged: "I7",
    overcharged: "I7",
    undercharged: "I7",
    no_budget: "I7",
    forgotten_attempt: "I7",
    negative_charge: "I7",
    end_without_outcome: "I7",
    lease_long_over: "I8",
    held_by_nobody: "I8",
    live_without_lease: "I8",
    waits_for_ever: "I8",
    never_submitted: "I8",
    result_without_state: "I9",
    state_without_result: "I9",
    forged_result: "I9",
    lost_records: "I9",
    other_result_on_disk: "I9",
    forgotten_event: "I10",
    reordered_events: "I10",
    damaged_checkpoint: "I11",
}


@embedded
@pytest.mark.parametrize("corrupt", CORRUPTIONS, ids=lambda f: f.__name__)
def test_each_corruption_is_told(history, corrupt):
    """By the invariant that it breaks, with the rows and what to do."""
    found = audit(corrupt(history))
    assert CORRUPTIONS[corrupt] in {v.invariant for v in found}
    assert all(v.rows and v.message and v.remedy for v in found)


@embedded
def test_without_folders_only_the_rows_are_judged(store, clock):
    """A store whose run folders lie elsewhere is audited all the same."""
    study = store.add_study(small_plan())
    claim = store.claim(study.id, engine="test", worker="here")
    store.start(claim.run_id, claim.token)
    store.finish(claim.run_id, claim.token, {})
    assert audit(snapshot(store, folders=False)) == ()
    assert told(snapshot(store)) == {"I9"}


def test_folders_of_other_hosts_are_not_missed(history):
    """A server is shared by hosts with home folders of their own."""
    assert told(lost_records(replace(history, shared=True))) == set()
    assert told(lost_records(replace(history, shared=False))) == {"I9"}


def test_a_checkpoint_is_compared_with_its_manifest(tmp_path):
    """A changed, a missing and an unreadable file are named; a checkpoint without a manifest is not judged."""
    (tmp_path / "weights").write_bytes(b"abc")
    assert damaged_files(tmp_path) == ()
    good = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    write_json(tmp_path / "paribus.json", {"run": "r", "step": 1, "spent": {}, "files": {"weights": good}})
    assert damaged_files(tmp_path) == ()
    (tmp_path / "weights").write_bytes(b"abd")
    assert damaged_files(tmp_path) == ("weights",)
    (tmp_path / "weights").unlink()
    assert damaged_files(tmp_path) == ("weights",)
    (tmp_path / "paribus.json").write_text("[]")
    assert damaged_files(tmp_path) == ("paribus.json",)


@embedded
def test_checkpoints_of_ended_runs_are_hashed_only_when_asked(store):
    """They may be large, and nothing goes on from them."""
    study = store.add_study(small_plan())
    claim = store.claim(study.id, engine="test", worker="here")
    store.start(claim.run_id, claim.token)
    folder = folder_of(store, claim, {})
    store.finish(claim.run_id, claim.token, {})
    place = folder.checkpoints / "step-000004"
    place.mkdir(parents=True)
    write_json(place / "paribus.json", {"run": "r", "step": 4, "spent": {}, "files": {"model/weights": "0"}})
    write_json(folder.checkpoints / "index.json", {"checkpoints": ["step-000004"]})
    assert told(snapshot(store)) == set()
    assert told(snapshot(store, deep=True)) == {"I11"}
    (damaged,) = [found.damaged for found in snapshot(store, deep=True).folders if found.damaged]
    assert damaged == ("step-000004/model/weights",)
    (folder.checkpoints / "index.json").write_text("{")
    (damaged,) = [found.damaged for found in snapshot(store, deep=True).folders if found.damaged]
    assert damaged == ("index.json",)
