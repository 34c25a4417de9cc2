"""GPUs and cores as rows: taken all or nothing with the claim, free again with the end, never held twice."""

import threading
from collections import Counter

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.contract import Device, Need
from paribus.store.devices import FreeDevice, Pool, choose
from paribus.store.store import Store
from paribus.store.transitions import LEASE_S
from support.plans import small_plan

WHOLE, HALF, QUARTER = (Need(gpus=share) for share in (1.0, 0.5, 0.25))


def machine(gpus, cores=8):
    """Return the devices of a machine."""
    made = [Device(kind="gpu", name=f"GPU-{i}", amount=1.0) for i in range(gpus)]
    return (*made, Device(kind="cpu", name="cpu", amount=float(cores)))


class Host:
    """A host of a store; each study has as many runs as anybody needs."""

    def __init__(self, store, gpus, name="here", **more):
        self.store, self.name = store, name
        self.numbers = store.register(name, machine(gpus, **more))
        self.studies = {}

    def claim(self, need, study="small", start=True):
        """Claim a run that needs so much."""
        if study not in self.studies:
            plan = small_plan(study, arms=3, seeds=8, steps=4 + len(study))
            self.studies[study] = self.store.add_study(plan).id
        pool = Pool(host=self.name, need=need, devices=set(self.numbers.values()))
        of = {"engine": "local", "worker": f"{self.name}/{study}", "gpus": need.gpus, "pool": pool}
        claim = self.store.claim(self.studies[study], **of)
        if claim is not None and start:
            self.store.start(claim.run_id, claim.token)
        return claim

    def held(self):
        """Return how much of each device is held."""
        return {d.name: pytest.approx(d.held) for d in self.store.devices(self.name)}


def test_parts_share_a_gpu_and_whole_ones_are_had_together_or_not_at_all(store):
    """Small runs fill the fullest GPU first; a run on two GPUs never has only one of them."""
    host = Host(store, gpus=3)
    assert [host.claim(QUARTER).devices for _ in range(5)] == [("GPU-0",)] * 4 + [("GPU-1",)]
    assert host.claim(Need(gpus=3.0)) is None
    assert host.held() == {"cpu": 0, "GPU-0": 1, "GPU-1": 0.25, "GPU-2": 0}
    assert host.claim(Need(gpus=1.0)).devices == ("GPU-2",)
    assert host.claim(WHOLE) is None
    assert host.claim(HALF).devices == ("GPU-1",)


@pytest.mark.parametrize("end", ["finish", "fail", "release", "cancelled", "expire"])
def test_every_end_of_an_attempt_gives_back_what_it_held(store, clock, end):
    """Whoever ends it: in the same transaction everything is free."""
    host = Host(store, gpus=2, cores=4)
    claim = host.claim(Need(gpus=2.0, cpus=3.0))
    assert (claim.devices, claim.gpus) == (("GPU-0", "GPU-1"), 2.0)
    assert host.held() == {"cpu": 3, "GPU-0": 1, "GPU-1": 1}
    key = (claim.run_id, claim.token)
    match end:
        case "finish":
            store.finish(*key, {})
        case "fail":
            store.fail(*key, "program", "why")
        case "release":
            store.release(*key, "why")
        case "cancelled":
            store.cancel("small")
            store.cancelled(*key)
        case "expire":
            clock.now += LEASE_S + 1
            store.expire()
    assert host.held() == {"cpu": 0, "GPU-0": 0, "GPU-1": 0}


def test_cores_are_counted_for_runs_without_gpus_too(store):
    """A run on three cores leaves one of four, on this host only."""
    host, other = Host(store, gpus=1, cores=4), Host(store, gpus=0, cores=4, name="there")
    assert host.claim(Need(cpus=3.0)).devices == ()
    assert host.claim(Need(cpus=2.0)) is None
    assert host.claim(Need(gpus=1.0, cpus=2.0)) is None
    assert host.claim(Need(cpus=1.0)) is not None
    assert other.claim(Need(cpus=4.0)) is not None
    assert other.held() == {"cpu": 4}


def test_a_scheduler_gets_only_what_it_may_use(store):
    """GPUs may be missing from its `CUDA_VISIBLE_DEVICES`, or still hold processes of an ended attempt."""
    host = Host(store, gpus=2)
    del host.numbers["GPU-0"]
    assert host.claim(Need(gpus=2.0)) is None
    assert host.claim(WHOLE).devices == ("GPU-1",)


def test_several_runs_at_once_share_what_there_is(store):
    """One transaction, and each takes of what the ones before it have left."""
    host = Host(store, gpus=2, cores=3)
    study = store.add_study(small_plan(arms=3, seeds=4)).id
    pool = Pool(host=host.name, need=Need(gpus=0.5, cpus=1.0), devices=set(host.numbers.values()))
    claims = store.claim_many(study, 8, engine="local", worker="here", gpus=0.5, pool=pool)
    assert [c.devices for c in claims] == [("GPU-0",), ("GPU-0",), ("GPU-1",)]
    assert host.held() == {"cpu": 3, "GPU-0": 1, "GPU-1": 0.5}
    assert store.budget("small", "gpu").reserved == 0.0


gpus = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=6).map(
    lambda free: [FreeDevice(id=i, kind="gpu", name=f"g{i}", free=part) for i, part in enumerate(free)]
)
needs = st.sampled_from([QUARTER, HALF, WHOLE, Need(gpus=2.0), Need(gpus=3.0)])


@given(gpus, needs)
def test_a_choice_is_whole_fits_and_is_made_whenever_there_is_one(free, need):
    """All or nothing, within what is free, and never refused where some choice exists."""
    held = choose(free, need)
    wanted = max(1, round(need.gpus))
    share = min(need.gpus, 1.0)
    assert (held is not None) == (sum(r.free >= share for r in free) >= wanted)
    if held is not None:
        assert list(held.shares.values()) == [share] * wanted
        assert all(next(r.free for r in free if r.id == i) >= s for i, s in held.shares.items())


def test_two_schedulers_at_once_never_book_a_gpu_twice(server, tmp_path):
    """Each with a connection and a study of its own, on one host: what is held is never more than there is."""
    homes = [tmp_path] * 4
    with Store.open(tmp_path) as first:
        first.register("here", machine(2))
        studies = [first.add_study(small_plan(f"s{i}", arms=2, seeds=6, steps=4 + i)).id for i in range(4)]
    needs = [QUARTER, HALF, WHOLE, Need(gpus=2.0)]
    claimed = Counter()

    def work(home, study, need):
        with Store.open(home) as store:
            devices = {d.id for d in store.devices("here")}
            for _ in range(25):
                of = {"engine": "local", "worker": "here", "gpus": need.gpus}
                claim = store.claim(study, **of, pool=Pool(host="here", need=need, devices=devices))
                if claim is not None:
                    claimed[study] += 1
                    store.start(claim.run_id, claim.token)
                    store.finish(claim.run_id, claim.token, {})

    threads = [threading.Thread(target=work, args=each) for each in zip(homes, studies, needs, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with Store.open(tmp_path) as store:
        seen = snapshot(store, folders=False)
        assert len(seen.leases) >= sum(claimed.values()) > 10
        assert audit(seen) == ()
        assert {d.held for d in store.devices("here")} == {0.0}


@pytest.mark.parametrize("server", ["sqlite"], indirect=True)
def test_what_a_claim_looks_up_does_not_grow_with_the_history(store):
    """SQLite reads the live attempts, and their leases by key."""
    host = Host(store, gpus=1)
    host.claim(QUARTER)
    asked = []
    sa.event.listen(store.database.engine, "before_cursor_execute", lambda c, k, text, p, x, m: asked.append((text, p)))
    host.claim(QUARTER)
    text, values = next((text, values) for text, values in asked if "FROM device" in text)
    with store.database.read() as connection:
        plan = [row.detail for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)]
    assert any(line.startswith("SEARCH lease") for line in plan), plan
    assert all("ix_attempt_live" in line for line in plan if line.startswith("SCAN attempt")), plan
