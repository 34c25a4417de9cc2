"""F4 and F5: supervisors, trainers, schedulers and writers are killed; the server is stopped at once."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from faults import judge
from faults.judge import Verdict
from faults.sessions import work
from faults.world import Lines, World, ended, kill, process, until
from paribus.engines.process import Identity
from paribus.errors import LostLease, RunFolderError
from paribus.run_folder.folder import RunFolder, read_json
from paribus.store.database import Unreachable
from paribus.store.reader import Reader
from paribus.store.states import RunState
from paribus.store.store import Store
from support.plans import small_plan

SLOTS = 8


def workers(world: World) -> Verdict:
    """Supervisors and trainers are killed, one after the other, about one a second of their lives."""
    wanted, rounds, hit = world.number(260, 12), 0, list[tuple[str, int, float]]()
    world.orders(json.dumps({"step_s": 0.1}))
    world.store().close()
    while len(hit) < wanted:
        rounds += 1
        plan = small_plan(f"workers{rounds}", arms=world.number(8, 2), seeds=4, steps=8 + rounds)
        with process(work, world.home, plan, SLOTS) as session, Reader.open(world.home) as reader:
            while session.is_alive() and len(hit) < wanted:
                time.sleep(world.random.uniform(0.02, 0.2))
                hit += kill_one(world, reader)
            ended(session)
    s = world.snapshot()
    return judge.judge(
        s, trials=len(s.runs), faults=len(hit), home=world.home, recovery=judge.until_tried_again(s, hit),
        wrong=judge.broken_records(s, world.home), note="trials: runs",
    )  # fmt: skip


def kill_one(world: World, reader: Reader) -> list[tuple[str, int, float]]:
    """Kill supervisor or trainer of a live attempt; return which, empty if there was none."""
    attempts = [(a.fingerprint, a.token) for a in reader.live_attempts()]
    world.random.shuffle(attempts)
    for fingerprint, token in attempts:
        with suppress(RunFolderError, KeyError):
            here = read_json(RunFolder.of(world.home, fingerprint, token).attempt)
            victim = Identity.read(here[world.random.choice(("supervisor", "runner"))])
            if victim.alive() and kill(victim.pid):
                return [(fingerprint, token, time.time())]
    return []


def schedulers(world: World) -> Verdict:
    """The scheduler is killed, again and again, and with it every process of its own; the next goes on."""
    wanted, times, rounds = world.number(30, 3), list[float](), 0
    world.orders(json.dumps({"step_s": 0.05}))
    while len(times) < wanted:
        rounds += 1
        plan = small_plan(f"schedulers{rounds}", arms=6, seeds=world.number(10, 2), steps=8 + rounds)
        while True:
            with process(work, world.home, plan, SLOTS) as session:
                session.join(world.random.uniform(0.3, 3.0) if len(times) < wanted else None)
                if session.exitcode is not None:
                    ended(session)
                    break
                times.append(time.time())
    s = world.snapshot()
    return judge.judge(
        s, trials=len(s.runs), faults=len(times), home=world.home, recovery=judge.until_next_claim(s, times),
        wrong=judge.broken_records(s, world.home), note="trials: runs",
    )  # fmt: skip


def writers(world: World) -> Verdict:
    """A process that submits studies and records results is killed between any two instructions."""
    return written(world, world.number(60, 10), server=False)


def servers(world: World) -> Verdict:
    """The database server is stopped at once and started again, while a process submits and records."""
    return written(world, world.number(40, 3), server=True)


def written(world: World, wanted: int, *, server: bool) -> Verdict:
    """Kill writers, or the server under them; all that was acknowledged must be there."""
    told, times, first, acknowledged = Lines(), list[float](), 0, set[tuple[str, str]]()
    world.store().close()

    def heard() -> bool:
        before = len(acknowledged)
        acknowledged.update(told.new())
        return len(acknowledged) > before

    while len(times) < wanted:
        heard()
        with process(write, world.home, told, first) as writer:
            if server or world.random.random() < 0.5:  # else it may die before it has begun
                until(heard)
            time.sleep(world.random.uniform(0.01, 0.4))
            times.append(time.time())
            if server and world.server is not None:
                world.server.stop()
                world.server.start()
                time.sleep(0.3)
            assert writer.exitcode is None, "the writer ended by itself"
        first += 10_000
    heard()
    finish_all(world)
    s = world.snapshot(folders=False)
    there = {("submit", x.name) for x in s.studies} | {("result", json.loads(r.payload)["name"]) for r in s.results}
    verdict = judge.judge(
        s, trials=len(acknowledged), faults=len(times), recovery=judge.until_next_claim(s, times),
        note="trials: submits and results that were acknowledged",
    )  # fmt: skip
    return replace(verdict, lost=verdict.lost + len(acknowledged - there))


def write(home: Path, told: Lines, first: int) -> None:
    """Submit a study, tell it, take its runs, record their results, tell them; without end."""
    while True:
        # a server that is away for longer than a call tries is told to the caller, who comes again later
        with suppress(Unreachable), Store.open(home) as store:
            while True:
                first += 1
                study = store.add_study(small_plan(f"w{first}", arms=1, seeds=2, steps=first))
                told.put(("submit", study.name))
                finish_study(store, study, told)


def finish_study(store: Store, study: Any, told: Lines | None = None) -> None:
    """Take all runs of a study that can be had, and record a result for each."""
    while (claim := store.claim(study.id, engine="test", worker=str(os.getpid()))) is not None:
        with suppress(LostLease):  # a start whose commit was not known, tried again
            store.start(claim.run_id, claim.token)
        store.finish(claim.run_id, claim.token, {"status": "succeeded", "name": claim.submit_name})
        if told is not None:
            told.put(("result", claim.submit_name))


def finish_all(world: World, prefix: str = "") -> None:
    """Take back what the dead held, and finish all studies whose name begins so."""
    with world.store() as store:

        def done() -> bool:
            store.expire()
            studies = [x for x in store.studies() if x.name.startswith(prefix)]
            for study in studies:
                finish_study(store, study)
            return all(set(store.counts(x.id)) <= {RunState.SUCCEEDED} for x in studies)

        until(done, 0.2)
