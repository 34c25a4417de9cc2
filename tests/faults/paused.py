"""F6: paused attempts that wake up when their run belongs to another attempt."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from faults import judge
from faults.judge import Verdict
from faults.sessions import far_away, work
from faults.world import LEASE_S, World, ended, process
from paribus.audit.snapshot import Snapshot
from paribus.engines.process import Identity, signal_group
from paribus.errors import RunFolderError
from paribus.run_folder.folder import RunFolder, read_json
from paribus.store.reader import Reader
from paribus.store.states import Move
from support.plans import small_plan

SLOTS, SLOTS_SHORT = 16, 4
LEASES = (0.5, 3.0)
ASKED_AGAIN = (("finish", Move.SUCCEED), ("release", Move.RELEASE))
"""Calls that may be accepted after the end that they have made: they are asked again, and change nothing."""
SURVIVAL_S = 30.0
"""Seconds after the last session until no zombie may be there any more."""


@dataclass
class Paused:
    """An attempt that is paused, or was."""

    run: str
    token: int
    groups: tuple[Identity, ...]
    wake_at: float
    woken: float = 0.0
    gone: float = 0.0


def zombies(world: World) -> Verdict:
    """Attempts that nobody can kill are paused, lose their run, and go on; nothing of theirs counts any more."""
    wanted, rounds, all_of_them = world.number(110, 8), 0, list[Paused]()
    world.orders(json.dumps({"step_s": 0.15}))
    world.store().close()
    notes = world.home.with_name("notes")
    while len(all_of_them) < wanted:
        rounds += 1
        plan = small_plan(f"paused{rounds}", arms=world.number(10, 2), seeds=4, steps=12 + rounds)
        with (
            process(work, world.home, plan, world.number(SLOTS, SLOTS_SHORT), lambda: far_away(notes)) as session,
            Reader.open(world.home) as reader,
        ):
            while session.is_alive():
                time.sleep(world.random.uniform(0.02, 0.1))
                wake(all_of_them)
                if len(all_of_them) < wanted:
                    all_of_them += pause(world, reader, {(p.run, p.token) for p in all_of_them})
            ended(session)
    end = time.monotonic() + SURVIVAL_S
    while not all(p.gone for p in all_of_them) and time.monotonic() < end:
        wake(all_of_them)
        time.sleep(0.02)
    s = world.snapshot()
    lost = [p for p in all_of_them if was_lost(s, p)]
    refused, wrong = late(s, notes)
    wrong += [f"run {p.run[:12]}, attempt {p.token} was lost, and did not end" for p in lost if not p.gone]
    return judge.judge(
        s, trials=len(s.runs), faults=len(all_of_them), home=None,
        recovery=max((p.gone - p.woken for p in lost), default=0.0) / LEASE_S,
        wrong=[*wrong, *judge.broken_records(s, world.home)],
        note=f"{len(lost)} lost their lease, {refused} late calls refused; recovery: until a zombie had ended",
    )  # fmt: skip


def pause(world: World, reader: Reader, before: set[tuple[str, int]]) -> list[Paused]:
    """Stop the supervisor of a live attempt, or supervisor and trainer; return which, empty if there was none."""
    attempts = [(a.fingerprint, a.token) for a in reader.live_attempts()]
    fresh = [a for a in attempts if a not in before]
    world.random.shuffle(fresh)
    for run, token in fresh:
        with suppress(RunFolderError, KeyError):
            here = read_json(RunFolder.of(world.home, run, token).attempt)
            both = tuple(Identity.read(here[k]) for k in ("supervisor", "runner"))
            groups = both if world.random.random() < 0.5 else both[:1]
            if all(g.alive() for g in both):
                for group in groups:
                    signal_group(group.pid, signal.SIGSTOP)
                return [Paused(run, token, groups, time.time() + world.random.uniform(*LEASES) * LEASE_S)]
    return []


def wake(all_of_them: list[Paused]) -> None:
    """Let those go on whose time has come, and note when they end."""
    now = time.time()
    for p in all_of_them:
        if not p.woken and now >= p.wake_at:
            p.woken = now
            for group in p.groups:
                signal_group(group.pid, signal.SIGCONT)
        elif p.woken and not p.gone and not any(g.alive() for g in p.groups):
            p.gone = now


def was_lost(s: Snapshot, paused: Paused) -> bool:
    """Return whether the run was taken back before the attempt went on."""
    mine = [a for a in s.attempts if (a.fingerprint, a.token) == (paused.run, paused.token)]
    return any(a.outcome in (Move.EXPIRE, Move.ABANDON) for a in mine)


def late(s: Snapshot, notes: Path) -> tuple[int, list[str]]:
    """Return how many calls came after the end of their attempt, and those of them that were not refused."""
    ends = {(a.run_id, a.token): a for a in s.attempts}
    wrong, count = [], Counter[bool]()
    for line in notes.read_text().splitlines():
        call = json.loads(line)
        attempt = ends[call["run"], call["token"]]
        if attempt.ended_at is None or call["at"] <= attempt.ended_at + judge.CLOCK_S:
            continue
        count[call["ok"]] += 1
        if call["ok"] and (call["do"], attempt.outcome) not in ASKED_AGAIN:
            wrong.append(
                f"run {attempt.run_id}, attempt {attempt.token}: `{call['do']}` was taken after its end by "
                f"{attempt.outcome}"
            )
    return count[False], wrong
