"""F8: the disk is full, read-only or broken; a small file system in memory stands for it."""

from __future__ import annotations

import json
import os
import subprocess
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from faults import judge
from faults.judge import Verdict
from faults.sessions import work
from faults.world import Lines, Skipped, World, ended, process
from paribus.errors import ParibusError
from paribus.store.states import RunState
from paribus.store.store import Store
from paribus.study.plan import Plan
from support.plans import small_plan

SIZE = "24m"
SLOTS = 4
KINDS = ("fill", "eio", "erofs", "read-only")
FULL = "filling"


def disks(world: World) -> Verdict:
    """No run is tried in vain, the user reads what to do, and when it is done everything comes to its end."""
    told, wrong, seen = Lines(), list[str](), list[str]()
    with mounted(world.home):
        for number in range(world.number(24, len(KINDS))):
            kind = KINDS[number % len(KINDS)]
            plan = small_plan(f"disk{number}", arms=4, seeds=2, steps=8 + number)
            rule = {"do": kind, "at": world.random.randrange(1, 7), "arm": "arm 1", "token": 1}
            world.orders(json.dumps({"step_s": 0.05, "rules": [] if kind == "read-only" else [rule]}))
            if kind == "read-only":
                remount(world.home, "ro")
            with process(attempt, world.home, plan, told) as session:
                ended(session)
            seen += told.new()
            wrong += [f"{kind}: {what}" for what in after(world, plan, kind, seen[-1])]
        s = world.snapshot()
        return judge.judge(
            s, trials=len(s.runs), faults=len(seen), home=world.home,
            wrong=[*wrong, *judge.broken_records(s, world.home)],
            note=f"{sum(x.startswith('paused') for x in seen)} times the study was paused, else the command ended "
            "with what to do",
        )  # fmt: skip


@contextmanager
def mounted(folder: Path) -> Iterator[None]:
    """Make a folder a small file system of its own."""
    if os.getuid() != 0:
        raise Skipped("only root can mount a small file system")
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "paribus-faults", str(folder)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    if told.returncode != 0:
        raise Skipped(f"a small file system cannot be mounted here: {told.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def remount(folder: Path, how: str) -> None:
    """Let the file system take nothing any more, or again."""
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


def attempt(home: Path, plan: Plan, told: Lines) -> None:
    """Bring a study to its end, as far as the disk allows; tell how that ended."""
    try:
        work(home, plan, SLOTS)
    except ParibusError as error:
        told.put(f"{error.code}: {error}")
        return
    except Exception as error:
        traceback.print_exc()
        told.put(f"CRASH: {type(error).__name__}: {error}")
        return
    with Store.open(home) as store:
        told.put(f"paused: {store.paused(store.study(plan.study).id)}")


def after(world: World, plan: Plan, kind: str, said: str) -> list[str]:
    """Look at what was left and said, make room, go on; return what must not be."""
    if kind == "read-only":
        remount(world.home, "rw")
    for file in world.home.glob(f"runs/*/a*/{FULL}"):
        file.unlink()
    wrong = [] if said.startswith(("P300", "paused: ")) and len(said) > len("paused: ") else [said]
    wrong += [] if any(word in said for word in ("Make room", "Is the disk full", "read-only")) else [said]
    with world.store() as store:
        names = {x.name for x in store.studies()}
        if plan.study in names:
            store.retry(plan.study, author="somebody", reason="there is room again")
    world.orders(json.dumps({"step_s": 0.05}))
    with process(work, world.home, plan, SLOTS) as session:
        ended(session)
    with world.store() as store:
        runs = store.runs_of(store.study(plan.study).id)
    wrong += [f"run {r.position} is {r.state}" for r in runs if r.state is not RunState.SUCCEEDED]
    return wrong + [f"run {r.position} failed {r.program_failures} times" for r in runs if r.program_failures]
