"""F21: a long session under all of it; what its processes hold must not grow."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from statistics import median

from faults import judge
from faults.judge import Verdict
from faults.kills import kill_one
from faults.orphans import parent_of
from faults.paused import Paused, pause, wake
from faults.sessions import work
from faults.world import World, ended, process, until
from paribus.engines.process import Identity
from paribus.errors import RunFolderError
from paribus.run_folder.folder import RunFolder, read_json
from paribus.store.database import FILE
from paribus.store.reader import Reader
from paribus.store.states import RunState
from support.plans import small_plan

SLOTS = 4
SEEDS = 100
SHORT_MINUTES = 0.25
GROWTH = 0.05
FILES = 8  # a connection that a thread opens late is two; a leak of one a run or a fault is dozens
WAL_BYTES = 64 << 20
LOOKS = 200
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def soak(world: World) -> Verdict:
    """One session trains one run after the other while supervisors and trainers are killed and paused."""
    seconds = 60 * (SHORT_MINUTES if world.short else world.minutes)
    world.orders(json.dumps({"step_s": 0.1}))
    world.store().close()
    plan = small_plan("soak", arms=max(2, int(seconds * SLOTS / SEEDS)), seeds=SEEDS, steps=10)
    hit, wal, held = list[tuple[str, int, float]](), 0, dict[str, list[tuple[int, int]]]()
    paused, end = list[Paused](), time.monotonic() + seconds
    with process(work, world.home, plan, SLOTS) as session, Reader.open(world.home) as reader:
        server = until(lambda: server_of(reader, world.home))
        look = 0.0
        while time.monotonic() < end and session.is_alive():
            time.sleep(world.random.uniform(0.2, 2.0))
            wake(paused)
            if world.random.random() < 0.3:
                paused += pause(world, reader, {(p.run, p.token) for p in paused})
            else:
                hit += kill_one(world, reader)
            if time.monotonic() > look:
                look = time.monotonic() + seconds / LOOKS
                for name, pid in (("scheduler", session.pid or 0), ("warm server", server)):
                    held.setdefault(name, []).append(holds(pid))
                wal = max(wal, wal_bytes(world.home))
        with world.store() as store:
            store.cancel(plan.study)
        while session.is_alive():
            wake(paused)
            time.sleep(0.05)
        ended(session)
    s = world.snapshot()
    growth = {name: grown(values) for name, values in held.items()}
    told = ", ".join(f"{name} {memory:+.1%} memory, {files:+d} files" for name, (memory, files) in growth.items())
    # what has just started still grows
    leaks = ((memory > GROWTH and not world.short) or files > FILES for memory, files in growth.values())
    wrong = [told] if any(leaks) else []
    wrong += [f"the write-ahead log has {wal} bytes"] if wal > WAL_BYTES else []
    return judge.judge(
        s, trials=sum(r.state is RunState.SUCCEEDED for r in s.runs), faults=len(hit) + len(paused), home=world.home,
        expected=(RunState.SUCCEEDED, RunState.CANCELLED),
        wrong=[*wrong, *judge.broken_records(s, world.home)],
        note=f"{seconds / 60:g} minutes: {told}, write-ahead log at most {wal / (1 << 20):.1f} MiB",
    )  # fmt: skip


def server_of(reader: Reader, home: Path) -> int:
    """Return the warm server's process; 0 as long as it has no job."""
    for attempt in reader.live_attempts():
        with suppress(RunFolderError, KeyError, OSError):
            here = read_json(RunFolder.of(home, attempt.fingerprint, attempt.token).attempt)
            return parent_of(Identity.read(here["supervisor"]).pid)
    return 0


def holds(pid: int) -> tuple[int, int]:
    """Return the bytes of memory that a process holds, and its open files."""
    with suppress(OSError):
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * PAGE_BYTES, len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return 0, 0


def grown(values: list[tuple[int, int]]) -> tuple[float, int]:
    """Return the share by which memory has grown since the first third, and how many more files stay open.

    Files come and go with each run: what leaks raises the lowest count.
    """
    some = max(1, len(values) // 6)
    parts = values[len(values) // 3 :][:some], values[-some:]
    before, after = (median(memory for memory, _ in part) for part in parts)
    fewest, still = (min(files for _, files in part) for part in parts)
    return after / max(before, 1) - 1, still - fewest


def wal_bytes(home: Path) -> int:
    """Return the size of SQLite's write-ahead log."""
    with suppress(OSError):
        return (home / f"{FILE}-wal").stat().st_size
    return 0
