"""F13: trainers leave processes in other groups and sessions, and those above them are killed."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from faults import judge
from faults.judge import Verdict
from faults.sessions import work
from faults.world import LEASE_S, World, ended, kill, process, until
from paribus.audit.snapshot import Snapshot
from paribus.engines.process import Identity
from paribus.errors import RunFolderError
from paribus.run_folder.folder import RunFolder, read_json
from paribus.store.reader import Reader
from support.plans import small_plan

VICTIMS = ("runner", "supervisor", "server", "scheduler", "scheduler and server")
LEFT = 3
SURVIVAL_S = 30.0


def orphans(world: World) -> Verdict:
    """Whoever is killed, nothing of the attempt lives on, and its only slot is not given away before."""
    kills, wrong, slowest = world.number(50, 5), list[str](), 0.0
    world.orders(json.dumps({"step_s": 0.1, "rules": [{"do": "fork", "at": 1}]}))
    world.store().close()
    for number in range(kills):
        victim = VICTIMS[number % len(VICTIMS)]
        plan = small_plan(f"orphans{number}", arms=2, seeds=1, steps=12 + number)
        with process(work, world.home, plan, 1) as session, Reader.open(world.home) as reader:
            folder, pids = until(lambda: with_orphans(reader, world.home))
            pids["scheduler"] = session.pid or 0
            time.sleep(world.random.uniform(0.0, 0.2))
            began = time.monotonic()
            for name in reversed(victim.split(" and ")):
                kill(pids[name])
            if "scheduler" not in victim:
                gone(folder, began, wrong, victim)
                slowest = max(slowest, time.monotonic() - began)
                ended(session)
                continue
            session.join()
            if victim == "scheduler":
                gone(folder, began, wrong, victim)
                slowest = max(slowest, time.monotonic() - began)
        with process(work, world.home, plan, 1) as session:
            ended(session)
            gone(folder, began, wrong, victim)
    s = world.snapshot()
    count, late = lived_on(s, world.home)
    return judge.judge(
        s, trials=len(s.runs), faults=kills, home=world.home, recovery=slowest / LEASE_S, wrong=[*wrong, *late],
        note=f"{count} processes left, in their group or out of it; recovery: until none was there",
    )  # fmt: skip


def with_orphans(reader: Reader, home: Path) -> tuple[RunFolder, dict[str, int]] | None:
    """Return the folder of a live attempt that has left its processes, and the processes above them."""
    for attempt in reader.live_attempts():
        folder = RunFolder.of(home, attempt.fingerprint, attempt.token)
        with suppress(RunFolderError, KeyError, OSError):  # not begun, or over
            here = read_json(folder.attempt)
            pids = {k: Identity.read(here[k]).pid for k in ("runner", "supervisor")}
            pids["server"] = parent_of(pids["supervisor"])
            if len(left(folder)) == LEFT:
                return folder, pids
    return None


def left(folder: RunFolder) -> list[int]:
    """Return the process ids of what a trainer has left."""
    return [int(p.name.rpartition("-")[2]) for p in folder.path.glob("left-*") if p.stat().st_size > 0]


def parent_of(pid: int) -> int:
    """Return the parent of a process."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def gone(folder: RunFolder, began: float, wrong: list[str], victim: str) -> None:
    """Wait until nothing is left of an attempt; note what is left after half a minute, and end it."""
    while alive := [pid for pid in left(folder) if running(pid)]:
        if time.monotonic() > began + SURVIVAL_S:
            wrong.append(f"{len(alive)} processes survived the end of the {victim}")
            for pid in alive:
                kill(pid)
        time.sleep(0.01)


def running(pid: int) -> bool:
    """Return whether a process is there and has not ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def lived_on(s: Snapshot, home: Path) -> tuple[int, list[str]]:
    """Return how many processes were left, and those that were still there when the only slot was given away."""
    claims = sorted(((a.claimed_at, a) for a in s.attempts), key=lambda pair: pair[0])
    count, wrong = 0, list[str]()
    for (_, attempt), (following, _) in pairwise(claims):
        for file in RunFolder.of(home, attempt.fingerprint, attempt.token).path.glob("left-*"):
            count += 1
            *_, last = [0.0, *map(float, file.read_text().split("\n")[:-1])]
            if last > following + judge.CLOCK_S:
                wrong.append(f"{file.name} of {attempt.submit_name} was there {last - following:.2f} s after a claim")
    return count, wrong
