"""GPUs and cores as rows: taken all or nothing with the claim, free again with the end, never held twice."""

import threading
from collections import Counter

import pytest
import sqlalchemy as sa
from hypothesis import given
from hypothesis import strategies as st

from paribus.engines.base import Device, Need
from paribus.store.audit import audit
from paribus.store.devices import PATIENCE_S, STALE_S, Pool, Room, choose, set_aside
from paribus.store.moves import LEASE_S
from paribus.store.snapshot import snapshot
from paribus.store.store import Store
from paribus.testing.plans import small_plan

WHOLE, HALF, QUARTER = (Need(gpus=share) for share in (1.0, 0.5, 0.25))


def machine(gpus, cores=8, memory=80.0):
    """Return the devices of a machine."""
    made = [Device(kind="gpu", name=f"GPU-{i}", amount=1.0, memory=memory) for i in range(gpus)]
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


def test_memory_is_a_part_of_the_gpu_that_a_run_gets_and_is_charged_so(store, clock):
    """Twenty GiB are a quarter of eighty: four runs a GPU, each charged a quarter of its seconds."""
    host = Host(store, gpus=1)
    need = Need(gpus=0.25, gpu_memory=20.0)
    claims = [host.claim(need) for _ in range(5)]
    assert [c and c.gpus for c in claims] == [0.25, 0.25, 0.25, 0.25, None]
    clock.now += 100.0
    store.finish(claims[0].run_id, claims[0].token, {})
    assert store.budget("small", "gpu").spent == pytest.approx(25.0)


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
    """Others may be left out of its `CUDA_VISIBLE_DEVICES`, or still have to be looked at."""
    host = Host(store, gpus=2)
    del host.numbers["GPU-0"]
    assert host.claim(Need(gpus=2.0)) is None
    assert host.claim(WHOLE).devices == ("GPU-1",)


def test_a_cordoned_gpu_is_given_to_nobody(store):
    """Until its reason is gone."""
    host = Host(store, gpus=1)
    store.cordon(host.numbers["GPU-0"], "memory in use")
    assert host.claim(QUARTER) is None
    store.cordon(host.numbers["GPU-0"], "")
    assert host.claim(QUARTER) is not None


def test_a_large_run_does_not_starve_behind_small_ones(store, clock):
    """After ten minutes the emptiest GPUs are kept for it; other GPUs go on, and smaller runs come after it."""
    host = Host(store, gpus=3)
    small = [host.claim(HALF) for _ in range(5)]
    assert host.claim(Need(gpus=2.0), "large") is None
    for _ in range(round(PATIENCE_S / (STALE_S / 2)) + 1):
        clock.now += STALE_S / 2
        assert host.claim(Need(gpus=2.0), "large") is None
        for claim in small:
            store.renew(claim.run_id, claim.token)
    store.finish(small[4].run_id, small[4].token, {})  # GPU-2 is empty now, GPU-0 and GPU-1 are full
    assert host.claim(HALF) is None
    store.finish(small[3].run_id, small[3].token, {})  # half of GPU-1
    store.finish(small[0].run_id, small[0].token, {})  # half of GPU-0: of these two only one is kept
    assert host.claim(HALF).devices == ("GPU-1",)
    assert host.claim(HALF) is None
    store.finish(small[1].run_id, small[1].token, {})
    assert host.claim(HALF) is None
    assert host.claim(Need(gpus=2.0), "large").devices == ("GPU-0", "GPU-2")
    store.finish(small[2].run_id, small[2].token, {})
    assert host.claim(HALF) is not None


def test_nothing_is_kept_at_once_and_two_who_wait_come_in_their_order(store, clock):
    """Within ten minutes what fits first goes first; after them the one who has waited longer is not kept away."""
    host = Host(store, gpus=4)
    small = [host.claim(HALF) for _ in range(6)]
    assert host.claim(Need(gpus=2.0), "large") is None
    assert host.claim(HALF) is not None
    clock.now += 1
    assert host.claim(Need(gpus=3.0), "huge") is None
    for _ in range(round(PATIENCE_S / (STALE_S / 2)) + 1):
        clock.now += STALE_S / 2
        host.claim(Need(gpus=2.0), "large")
        host.claim(Need(gpus=3.0), "huge")
        for claim in small:
            store.renew(claim.run_id, claim.token)
    for claim in small[:2]:
        store.finish(claim.run_id, claim.token, {})
    store.expire()  # the seventh, of which nobody has heard
    assert host.claim(Need(gpus=2.0), "large").devices == ("GPU-0", "GPU-3")


def test_several_runs_at_once_share_what_there_is(store):
    """One transaction, and each takes of what the ones before it have left."""
    host = Host(store, gpus=2, cores=3)
    study = store.add_study(small_plan(arms=3, seeds=4)).id
    pool = Pool(host=host.name, need=Need(gpus=0.5, cpus=1.0), devices=set(host.numbers.values()))
    claims = store.claim_many(study, 8, engine="local", worker="here", gpus=0.5, pool=pool)
    assert [c.devices for c in claims] == [("GPU-0",), ("GPU-0",), ("GPU-1",)]
    assert host.held() == {"cpu": 3, "GPU-0": 1, "GPU-1": 0.5}
    assert store.budget("small", "gpu").reserved == 0.0


def test_one_who_has_stopped_asking_keeps_nothing(store, clock):
    """A scheduler that died while it waited does not block the host."""
    host = Host(store, gpus=1)
    first = host.claim(HALF)
    assert host.claim(WHOLE, "large") is None
    clock.now += PATIENCE_S + 1
    store.finish(first.run_id, first.token, {}) if store.expire() == () else None
    assert host.claim(HALF) is not None


rooms = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=1, max_size=6).map(
    lambda free: [
        Room(id=i, kind="gpu", name=f"g{i}", amount=1.0, memory=80.0, free=part) for i, part in enumerate(free)
    ]
)
needs = st.sampled_from([QUARTER, HALF, WHOLE, Need(gpus=2.0), Need(gpus=3.0), Need(gpus=0.5, gpu_memory=40.0)])


@given(rooms, needs)
def test_a_choice_is_whole_fits_and_is_made_whenever_there_is_one(free, need):
    """All or nothing, within what is free, and never refused where some choice exists."""
    held = choose(free, need)
    wanted = max(1, round(need.gpus))
    share = min(need.gpus, 1.0)
    assert (held is not None) == (sum(r.free >= share for r in free) >= wanted)
    if held is not None:
        assert list(held.shares.values()) == [share] * wanted
        assert all(next(r.free for r in free if r.id == i) >= s for i, s in held.shares.items())


@given(rooms, st.integers(1, 3))
def test_a_small_run_takes_nothing_of_what_is_kept_for_a_large_one(free, wanted):
    """The emptiest GPUs only become emptier; all others may be had, so that none is idle without need."""
    left = set_aside(free, QUARTER, [Need(gpus=float(wanted))])
    kept = sorted(r.free for r in free if r not in left)
    assert kept == sorted(r.free for r in free)[len(free) - len(kept) :]
    assert len(kept) == min(wanted, len(free))
    assert set_aside(free, Need(gpus=float(wanted)), [Need(gpus=float(wanted))]) == free


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
