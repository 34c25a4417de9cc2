"""F24: any process of `paribus run` is killed, from its first second: set-up jobs, MLflow's first start, the sync."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from faults import judge
from faults.judge import Verdict
from faults.orphans import parent_of
from faults.world import World, ended, kill, process, world
from paribus.audit.snapshot import Snapshot
from paribus.errors import RunFolderError
from paribus.mlflow_sync.process import LOG
from paribus.run_folder.folder import RunFolder

SHORT_MINUTES = 0.5
ROUND_S = 20.0
SCHEDULER, SYNC = 0.08, 0.45
"""Share of the kills that hit the scheduler; share up to which they hit the MLflow sync. The rest hits the engine's."""

STUDY = """
study: storm
runner: fake
base:
  preset: grpo
  set: {model: tiny, task: search, optimizer.learning_rate: 5.0e-4,
        schedule: {steps: 15, prompts_per_step: 8, group_size: 4, minibatches: 1, epochs: 1, max_new_tokens: 30}}
tricks:
  other_task: {task: chain}
  other_clip: {clip.high: 0.3}
designs: {main: {kind: add_one}}
seeds: {n: 6}
evaluate: {every: 5, problems: 20, primary: eval/heldout/avg_at_1}
"""
"""Two tasks, so two set-up jobs."""


def storm(outer: World) -> Verdict:
    """Kill for a while, then let the same command end: it needs no hand, and MLflow has each point once."""
    end = time.monotonic() + 60 * (SHORT_MINUTES if outer.short else outer.minutes)
    verdicts, kills = list[Verdict](), Counter[str]()
    while not verdicts or time.monotonic() < end:
        place = "SQLite" if outer.server is None else "PostgreSQL"
        with world(place, outer.random, short=outer.short, minutes=outer.minutes) as here:
            verdicts.append(_one(here, kills))
    told = ", ".join(f"{name} {number}" for name, number in sorted(kills.items()))
    return Verdict(
        trials=sum(v.trials for v in verdicts),
        faults=sum(kills.values()),
        lost=sum(v.lost for v in verdicts),
        doubled=sum(v.doubled for v in verdicts),
        wrong=tuple(line for v in verdicts for line in v.wrong),
        note=f"{len(verdicts)} homes, each with MLflow's first start; killed: {told}",
    )


def _one(world: World, kills: Counter[str]) -> Verdict:
    """Take one study of a new home through the storm."""
    world.orders(json.dumps({"step_s": 0.08, "prepare_s": 1.5}))
    world.home.mkdir(parents=True)
    study, log = world.home.parent / "storm.yaml", world.home.parent / "storm.log"
    study.write_text(STUDY)
    end, wrong, faults = time.monotonic() + ROUND_S, list[str](), 0
    while True:
        with process(_command, world.home, study, log) as session:
            while session.is_alive() and time.monotonic() < end:
                time.sleep(world.random.uniform(0.05, 1.0))
                name, victim = _victim(world, session.pid or 0)
                if victim and kill(victim):
                    kills[name] += 1
                    faults += 1
                    if name == "scheduler":
                        session.join()
            if session.is_alive():
                session.join(600)
            if session.exitcode is not None and session.exitcode >= 0:
                break
    _copy_the_rest(world.home, study, log)
    try:
        ended(session)
    except AssertionError as error:
        wrong.append(f"{error}: {log.read_text(errors='replace')[-2000:]}")
    s = world.snapshot()
    wrong += judge.broken_records(s, world.home)
    if not wrong and (wrong := _not_mirrored(s, world.home)):
        wrong += [f"{log.read_text()[-500:]}\n{(world.home / LOG).read_text(errors='replace')[-3000:]}"]
    return judge.judge(s, trials=len(s.runs), faults=faults, home=world.home, wrong=wrong)


def _copy_the_rest(home: Path, study: Path, log: Path) -> None:
    """Start again as long as it is said that not everything is copied: a busy machine has no time for it at the end."""
    for _ in range(3):
        if "not everything is copied yet" in log.read_text(errors="replace")[-1000:]:
            with process(_command, home, study, log) as session:
                session.join(600)


def _command(home: Path, study: Path, log: Path) -> None:
    """Do what `paribus run` does; set-up jobs, too, are tried as often as it takes."""
    from paribus.cli.run import command

    file = log.open("a", buffering=1)
    os.dup2(file.fileno(), 1)
    os.dup2(file.fileno(), 2)
    sys.stdout = sys.stderr = file
    os.chdir(home.parent)
    command([str(study), "--home", str(home), "--slots", "4", "--no-report"])


def _victim(world: World, scheduler: int) -> tuple[str, int]:
    """Return the name and the process id of what is killed next; 0 if nothing of this kind runs."""
    dice, below = world.random.random(), list(_below(scheduler))
    sync = [pid for pid in below if "paribus.mlflow_sync.sync" in _command_line(pid)]
    others = [pid for pid in below if "paribus.engines" in _command_line(pid)]
    if dice < SCHEDULER:
        return "scheduler", scheduler
    if dice < SYNC:
        return "MLflow sync", sync[0] if sync else 0
    return "warm server, set-up job, supervisor or trainer", world.random.choice(others) if others else 0


def _below(top: int) -> Iterator[int]:
    """Yield the descendants of a process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ValueError):
                parents[int(entry.name)] = parent_of(int(entry.name))
    known = {top}
    while found := {pid for pid, parent in parents.items() if parent in known} - known:
        yield from found
        known |= found


def _command_line(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def _not_mirrored(s: Snapshot, home: Path) -> list[str]:
    """Return the runs whose recorded points are not in MLflow, each exactly once; read with SQLite alone."""
    wrong = []
    with closing(sqlite3.connect(home / "mlflow.db")) as database:
        mlflow = dict(database.execute("SELECT value, run_uuid FROM tags WHERE key = 'paribus.run'").fetchall())
        if len(mlflow) != len(s.runs):
            wrong.append(f"MLflow has {len(mlflow)} of {len(s.runs)} runs")
        for result in s.results:
            fingerprint = next(r.fingerprint for r in s.runs if r.id == result.run_id)
            query = "SELECT key, step FROM metrics WHERE run_uuid = ?"
            held = Counter(database.execute(query, (mlflow.get(fingerprint),)).fetchall())
            try:
                lines = RunFolder.of(home, fingerprint, result.token).read_metrics()
            except RunFolderError as error:
                wrong.append(str(error))
                continue
            written = {(key, line.step) for line in lines for key in line.values}
            missing = len(written - held.keys())
            twice = sorted({key for (key, _), n in held.items() if n > 1})
            if missing or twice:
                wrong.append(f"run {result.run_id}: MLflow lacks {missing} points and has some twice of {twice}")
    return wrong
