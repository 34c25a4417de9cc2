"""What the faults did: the auditor's eleven promises, and what is counted beside them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from faults.world import LEASE_S
from paribus.audit.invariants import audit
from paribus.audit.snapshot import Snapshot
from paribus.run_folder.folder import RunFolder
from paribus.store.states import TERMINAL, Move, RunState

CLOCK_S = 0.05
"""Seconds by which the clocks of a database and of a process of the same machine may seem to differ."""


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a fault.

    Attributes:
        trials: how often it was tried.
        faults: processes killed or paused, servers stopped.
        lost: runs, acknowledged submits and results that are not there.
        doubled: runs with more than one result, or with two attempts at work at once.
        recovery: longest time from a fault to the next step forward, in leases; ``None`` where nothing has to recover.
        wrong: what else must not be, one sentence each.
        note: what happened beside.
    """

    trials: int
    faults: int
    lost: int = 0
    doubled: int = 0
    recovery: float | None = None
    wrong: tuple[str, ...] = ()
    note: str = ""

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        return not (self.lost or self.doubled or self.wrong)


def judge(
    s: Snapshot,
    *,
    trials: int,
    faults: int,
    home: Path | None = None,
    expected: Collection[RunState] = (RunState.SUCCEEDED,),
    recovery: float | None = None,
    wrong: Iterable[str] = (),
    note: str = "",
) -> Verdict:
    """Judge a store in which all studies have come to their end.

    Args:
        s: the store.
        trials: how often the fault was tried.
        faults: how often it happened.
        home: where the run folders are; absent: nothing was trained.
        expected: states in which a run may end.
        recovery: longest recovery, in leases.
        wrong: what else was seen that must not be.
        note: for people.
    """
    told = [f"{v.invariant}: {v.rows}: {v.message}" for v in audit(s)]
    told += [f"run {r.id} ended as {r.state}" for r in s.runs if r.state in TERMINAL and r.state not in expected]
    return Verdict(
        trials=trials,
        faults=faults,
        lost=sum(r.state not in TERMINAL for r in s.runs) + missing(s),
        doubled=doubled(s, home),
        recovery=recovery,
        wrong=(*wrong, *told),
        note=note,
    )


def missing(s: Snapshot) -> int:
    """Return how many runs have succeeded without a result."""
    known = {r.run_id for r in s.results}
    return sum(r.state is RunState.SUCCEEDED and r.id not in known for r in s.runs)


def doubled(s: Snapshot, home: Path | None) -> int:
    """Return how many runs have two results or two good ends, or were trained by two attempts at once."""
    results = Counter(r.run_id for r in s.results)
    ends = Counter(a.run_id for a in s.attempts if a.outcome in (Move.SUCCEED, Move.STOP_EARLY))
    twice = {run for counts in (results, ends) for run, n in counts.items() if n > 1}
    return len(twice | (set() if home is None else at_once(s, home)))


def at_once(s: Snapshot, home: Path) -> set[int]:
    """Return the runs of which an attempt wrote a metric line after the next attempt had been claimed."""
    claimed = {(a.run_id, a.token): a.claimed_at for a in s.attempts}
    found = set()
    for a in s.attempts:
        later = claimed.get((a.run_id, a.token + 1))
        folder = RunFolder.of(home, a.fingerprint, a.token)
        if later is None or not folder.metrics.exists():
            continue
        last = max((line.time_ms for line in folder.read_metrics()), default=0)
        if last / 1000 > later + CLOCK_S:
            found.add(a.run_id)
    return found


def broken_records(s: Snapshot, home: Path) -> list[str]:
    """Return the runs whose recorded attempt does not hold each step once, in order."""
    prints = {r.id: r.fingerprint for r in s.runs}
    found = []
    for result in s.results:
        steps = [line.step for line in RunFolder.of(home, prints[result.run_id], result.token).read_metrics()]
        if steps != list(range(len(steps))):
            found.append(f"run {result.run_id}: the steps of the recorded attempt are {steps}")
    return found


def until_next_claim(s: Snapshot, faults: Iterable[float]) -> float:
    """Return the longest time from a fault to the next claim of any run, in leases; none follows the last."""
    claims = sorted(a.claimed_at for a in s.attempts)
    gaps = [min((c for c in claims if c >= at), default=at) - at for at in faults]
    return max(gaps, default=0.0) / LEASE_S


def until_tried_again(s: Snapshot, faults: Iterable[tuple[str, int, float]]) -> float:
    """Return the longest time from the fault of an attempt to the next claim of its run, in leases.

    Args:
        s: the store.
        faults: fingerprint, token and time.
    """
    claims = defaultdict(dict)
    for a in s.attempts:
        claims[a.fingerprint][a.token] = a.claimed_at
    gaps = [claims[run][token + 1] - at for run, token, at in faults if token + 1 in claims[run]]
    return max(gaps, default=0.0) / LEASE_S
