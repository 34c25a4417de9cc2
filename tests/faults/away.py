"""F23: the scheduler of a cluster is away while its jobs begin, train and end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace

from faults import judge
from faults.clusters import RayCluster, impatient, slurm_cluster
from faults.judge import Verdict
from faults.sessions import work
from faults.world import World, ended, kill, process, until
from paribus.engines.base import Engine, EngineSettings
from paribus.engines.ray.engine import RayEngine
from paribus.engines.slurm.engine import SlurmEngine
from paribus.run_folder.folder import RunFolder
from paribus.store.reader import Reader
from paribus.store.states import Move
from support.plans import small_plan

AWAY_S, AWAY_SHORT_S = 600.0, 25.0
RUNS = 12


def slurm(world: World) -> Verdict:
    """Jobs of Slurm outlive their scheduler."""
    world.home.mkdir()
    options = {"gpus": 1, "memory": "200M", "grace": 5, "host": "127.0.0.1", "poll": 0.3}
    (world.home / "engines.yaml").write_text(json.dumps({"slurm": options}))
    with slurm_cluster():
        return absences(world, SlurmEngine)


def ray(world: World) -> Verdict:
    """Jobs of Ray outlive their scheduler."""
    world.home.mkdir()
    cluster = RayCluster(world.home / "engines.yaml", jobs=RUNS)
    try:
        return absences(world, RayEngine)
    finally:
        cluster.stop()


def absences(world: World, engine: Callable[[EngineSettings], Engine]) -> Verdict:
    """Kill the scheduler, and let the next one come when some jobs have ended and others have begun; judge."""
    away = world.number(int(AWAY_S), int(AWAY_SHORT_S))
    world.orders(json.dumps({"step_s": away / 30}))
    world.store().close()
    found = dict.fromkeys(("began", "ended"), 0)
    for number in range(world.number(2, 1)):
        plan = small_plan(f"away{number}", arms=RUNS, seeds=1, steps=12 + number)
        with process(work, world.home, plan, None, impatient, engine) as session, Reader.open(world.home) as reader:
            until(lambda: len(training(world, reader)) >= 2 and len(reader.live_attempts()) == RUNS)
            before = training(world, reader)
            assert session.pid is not None
            kill(session.pid)
            session.join()
            time.sleep(away)
            folders = [path.parent for path in world.home.glob("runs/*/a*/attempt.json")]
            found["began"] += len(folders) - len(before)
            found["ended"] += sum((folder / "outcome.json").exists() for folder in folders)
        with process(work, world.home, plan, None, impatient, engine) as session:
            ended(session)
    s = world.snapshot()
    wrong = [
        f"{a.submit_name} ended as {a.outcome}: {a.reason}"
        for a in s.attempts
        # a submit may be killed before it reaches the cluster: such an attempt never begins, and is made again
        if a.outcome != Move.SUCCEED and RunFolder.of(world.home, a.fingerprint, a.token).attempt.exists()
    ]
    verdict = judge.judge(
        s, trials=len(s.runs), faults=world.number(2, 1), home=world.home,
        wrong=[*judge.broken_records(s, world.home), *wrong],
        note=f"away for {away} s; meanwhile {found['began']} attempts began and {found['ended']} ended",
    )  # fmt: skip
    if not all(found.values()):
        return replace(verdict, wrong=(*verdict.wrong, f"nothing happened meanwhile: {found}"))
    return verdict


def training(world: World, reader: Reader) -> list[str]:
    """Return the attempts that have begun and not ended."""
    begun = {path.parent for path in world.home.glob("runs/*/a*/metrics.jsonl")}
    live = {(a.fingerprint[:12], f"a{a.token}") for a in reader.live_attempts()}
    return [f"{folder}" for folder in begun if (folder.parent.name, folder.name) in live]
