"""F9: the time of day jumps by an hour, for the whole machine, for the scheduler, or for what it started."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from faults import judge
from faults.judge import Verdict
from faults.sessions import work
from faults.world import LONG_LEASE_S, Skipped, World, hasten, until
from paribus.engines.process import Identity, signal_group
from paribus.run_folder.folder import RunFolder, read_json
from paribus.store.reader import Reader
from paribus.store.states import Move
from support.plans import small_plan

PLACES = ("the machine", "the scheduler", "the supervisors and trainers")
HOUR_S = 3600
SOON_S = HOUR_S / 60
"""A lease, and what a busy machine adds; a clock that was believed would make it an hour or nothing."""
ARMS = 4
CLOCK, PRELOAD = "FAULTS_CLOCK", "LD_PRELOAD"


def clocks(world: World) -> Verdict:
    """The clock jumps while all attempts train and one is paused: only the paused one is taken back, and in time."""
    library = built(world.home.with_name("wall_clock.so"))
    world.orders(json.dumps({"step_s": 0.8}))  # a run takes longer than a lease
    world.store().close()
    kinds = list(itertools.product(PLACES, (HOUR_S, -HOUR_S)))
    chosen = (kinds * 4)[: world.number(24, len(kinds))] if not world.short else world.random.sample(kinds, 2)
    wrong, slowest = list[str](), 0.0
    for number, (place, seconds) in enumerate(chosen):
        took, seen = jump(world, library, number, place, seconds)
        slowest = max(slowest, took)
        wrong += [f"{seconds:+d} s for {place}: {what}" for what in seen]
    s = world.snapshot(folders=False)
    return judge.judge(
        s, trials=len(s.runs), faults=len(chosen), recovery=slowest / LONG_LEASE_S,
        wrong=[*wrong, *judge.broken_records(s, world.home)],
        note=f"jumps of an hour; recovery: until a paused attempt was taken back, in leases of {LONG_LEASE_S:g} s",
    )  # fmt: skip


def built(library: Path) -> Path:
    """Build what shows programs another time of day."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise Skipped("no C compiler (cc) here to build the wrong clock with")
    source = str(Path(__file__).with_name("wall_clock.c"))
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), source], check=True)
    return library


def jump(world: World, library: Path, number: int, place: str, seconds: int) -> tuple[float, list[str]]:
    """Let the clock jump in one study; return how long the paused attempt kept its run, and what was wrong."""
    clock = world.home.with_name(f"clock{number}")
    clock.write_bytes(struct.pack("l", 0))
    environment = {**os.environ, CLOCK: str(clock)}
    if place != PLACES[2]:
        environment[PRELOAD] = str(library)
    command = [sys.executable, "-m", "faults.clocks", str(world.home), str(number), place, str(library)]
    with subprocess.Popen(command, env=environment) as session, Reader.open(world.home) as reader:
        try:
            paused = until(lambda: one_of_all(reader, world.home, number))
            written = until(lambda: (found := read_json(paused.attempt)).get("runner") and found)
            groups = [Identity.read(written[k]).pid for k in ("supervisor", "runner")]
            for group in groups:
                signal_group(group, signal.SIGSTOP)
            began = time.monotonic()
            with clock.open("r+b") as file:
                file.write(struct.pack("l", seconds))
            until(lambda: taken_back(reader, number) or session.poll() is not None)
            took = time.monotonic() - began
            wrong = [] if session.wait() == 0 else [f"the scheduler ended with {session.returncode}"]
        finally:
            session.kill()
        attempts = reader.attempts_of(reader.study(f"clocks{number}").id)
    early = [a.submit_name for a in attempts if a.outcome == Move.EXPIRE]
    wrong += [f"{name} was taken back, too" for name in early if paused.path.parent.name not in name]
    wrong += [] if took < SOON_S and early else [f"the paused attempt kept its run for {took:.0f} s"]
    return took, wrong


def one_of_all(reader: Reader, home: Path, number: int) -> RunFolder | None:
    """Return the folder of the attempt that has most left to do, as soon as all train."""
    if f"clocks{number}" not in {x.name for x in reader.studies()}:
        return None
    attempts = reader.attempts_of(reader.study(f"clocks{number}").id)
    folders = [RunFolder.of(home, a.fingerprint, a.token) for a in attempts]
    if len(folders) < ARMS or not all(f.metrics.exists() for f in folders):
        return None
    return min(folders, key=lambda f: len(list(f.read_metrics())))


def taken_back(reader: Reader, number: int) -> bool:
    """Return whether an attempt has lost its run."""
    attempts = reader.attempts_of(reader.study(f"clocks{number}").id)
    return any(a.outcome == Move.EXPIRE for a in attempts)


def main(arguments: Sequence[str]) -> None:
    """Bring a study to its end, with another clock where it was asked for."""
    home, number, place, library = arguments
    if place == PLACES[1]:
        del os.environ[PRELOAD]
    elif place == PLACES[2]:
        os.environ[PRELOAD] = library
    hasten(LONG_LEASE_S)
    work(Path(home), small_plan(f"clocks{number}", arms=ARMS, seeds=1, steps=24 + int(number)), ARMS)


if __name__ == "__main__":
    main(sys.argv[1:])
