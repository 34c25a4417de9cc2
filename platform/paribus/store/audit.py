"""The auditor: what must hold in every store at every moment, whatever was killed. It only reads.

Each invariant is one pure function of a :class:`~paribus.store.snapshot.Snapshot`; the first line of its docstring is
the promise.
"""

from __future__ import annotations

import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import accumulate, pairwise
from math import inf
from typing import Literal, TypeVar

from paribus.store.attempts import BACKOFF_MAX_S
from paribus.store.budget import KEPT, OVERRUN_S, UNITS
from paribus.store.moves import LEASE_S
from paribus.store.records import TINY_S, AttemptRecord, BudgetRecord, EventRecord, unit_of
from paribus.store.snapshot import RunRow, Snapshot, payload_hash
from paribus.store.states import LIVE, RECORDED, TERMINAL, Move, RunState, target_of
from paribus.track.folder import SHORT

CLOCK_S = 1.0
"""Seconds by which a database's clock may go back (a clock that is being set) without being told."""

INLINE = "inline"
"""The engine whose attempts are the scheduler's own process."""

_ASK = "Nothing mends this by itself: keep a copy of the home folder and report it."
_RESTORE = "The store was restored from an older copy, or lost: bring the newest copy back, or move these folders away."

T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True, kw_only=True)
class Violation:
    """A promise that is not kept.

    Attributes:
        invariant: ``I1`` to ``I11``.
        level: ``warn`` if the next ``paribus run`` mends it, else ``critical``.
        rows: which rows or folders, e.g. ``run 3, attempts 1 and 2``.
        message: what is wrong, in one sentence.
        remedy: what to do.
    """

    invariant: str
    rows: str
    message: str
    remedy: str = _ASK
    level: Literal["warn", "critical"] = "critical"


def audit(snapshot: Snapshot) -> tuple[Violation, ...]:
    """Check all invariants; empty if all hold."""
    return tuple(found for check in INVARIANTS.values() for found in check(snapshot))


def promise(invariant: str) -> str:
    """Return what an invariant promises, in one sentence."""
    return (inspect.getdoc(INVARIANTS[invariant]) or "").split("\n")[0]


def _i1(s: Snapshot) -> Iterator[Violation]:
    """Each cell (study, arm, seed) has at most one result."""
    for run, count in Counter(r.run_id for r in s.results).items():
        if count > 1:
            yield Violation(invariant="I1", rows=f"run {run}", message=f"it has {count} results")
    seeds = {r.id: r.seed for r in s.runs}
    cells = _grouped(s.links, lambda link: (link.study_id, link.arm, seeds.get(link.run_id)))
    for (study, arm, seed), links in cells.items():
        if len(links) > 1:
            rows = f"study {study}, runs {_listed(link.run_id for link in links)}"
            yield Violation(invariant="I1", rows=rows, message=f"arm {arm} has {len(links)} runs with seed {seed}")


def _i2(s: Snapshot) -> Iterator[Violation]:
    """A result belongs to the attempt that claimed its run last."""
    runs = {r.id: r for r in s.runs}
    attempts = {(a.run_id, a.token): a for a in s.attempts}
    for result in s.results:
        rows = f"run {result.run_id}, attempt {result.token}"
        run, attempt = runs.get(result.run_id), attempts.get((result.run_id, result.token))
        if run is None or attempt is None:
            yield Violation(invariant="I2", rows=rows, message="a result without its run or attempt")
        elif run.token != result.token:
            yield Violation(invariant="I2", rows=rows, message=f"the run was claimed up to token {run.token}")
        elif attempt.outcome not in (Move.SUCCEED, Move.STOP_EARLY):
            message = f"the attempt with the result has the outcome `{attempt.outcome}`"
            yield Violation(invariant="I2", rows=rows, message=message)


def _i3(s: Snapshot) -> Iterator[Violation]:
    """No two attempts hold one run at the same time, nor together more than the whole of a GPU."""
    for run, attempts in _grouped(s.attempts, lambda a: a.run_id).items():
        for earlier, later in pairwise(sorted(attempts, key=lambda a: a.token)):
            if earlier.ended_at is None or earlier.ended_at > later.claimed_at + CLOCK_S:
                yield Violation(
                    invariant="I3",
                    rows=f"run {run}, attempts {earlier.token} and {later.token}",
                    message="the later one claimed the run before the earlier one had ended",
                    remedy=f"Was the clock of the database set back by more than {CLOCK_S:g} s? If not: {_ASK}",
                )
    names = {d.id: f"GPU {d.name} of {d.host}" for d in s.devices}
    tried = {(a.run_id, a.token): a for a in s.attempts}
    for device, leases in _grouped(s.leases, lambda lease: lease.device_id).items():
        holders = [(tried[key], lease.share) for lease in leases if (key := (lease.run_id, lease.token)) in tried]
        for held, crowd in _crowds(holders):
            rows = ", ".join(f"run {a.run_id} attempt {a.token}" for a in crowd)
            message = f"they held {held:.3g} of the {names.get(device, f'device {device}')} at the same time"
            yield Violation(invariant="I3", rows=rows, message=message)


def _crowds(holders: Iterable[tuple[AttemptRecord, float]]) -> Iterator[tuple[float, list[AttemptRecord]]]:
    """Yield what attempts held of a device, and which, wherever it was more than the whole."""
    open_: list[tuple[AttemptRecord, float]] = []
    for attempt, share in sorted(holders, key=lambda h: (h[0].claimed_at, h[0].run_id, h[0].token)):
        until = attempt.claimed_at + CLOCK_S
        open_ = [(a, part) for a, part in open_ if a.ended_at is None or a.ended_at > until]
        open_.append((attempt, share))
        if (held := sum(part for _, part in open_)) > 1 + TINY_S:
            yield held, [a for a, _ in open_]


def _i4(s: Snapshot) -> Iterator[Violation]:
    """Every run that was asked for, and every attempt that was made, is in the store."""
    runs = {r.id: r for r in s.runs}
    tokens = {r.fingerprint[:SHORT]: r.token for r in s.runs}
    linked = {(link.study_id, runs[link.run_id].fingerprint) for link in s.links if link.run_id in runs}
    for study in s.studies:
        lost = [p.fingerprint for p in study.plan.all_runs if (study.id, p.fingerprint) not in linked]
        if lost:
            rows = f"study {study.id} ({study.name}), runs {_listed(f[:SHORT] for f in lost)}"
            yield Violation(invariant="I4", rows=rows, message="the plan asks for runs that are not there")
    for folder in s.folders or ():
        if folder.token > tokens.get(folder.run, 0):
            rows = f"folder runs/{folder.run}/a{folder.token}"
            message = "the store knows nothing of this attempt"
            yield Violation(invariant="I4", rows=rows, message=message, remedy=_RESTORE)


def _i5(s: Snapshot) -> Iterator[Violation]:
    """A terminal state is left only into a new generation, and never with a result."""
    reruns = Counter(e.run_id for e in s.events if e.move == Move.RERUN)
    for row in s.runs:
        if row.generation != reruns[row.id]:
            message = f"it is in generation {row.generation} after {reruns[row.id]} requests to run it again"
            yield Violation(invariant="I5", rows=f"run {row.id}", message=message)
    for run, events in _grouped(s.events, lambda e: e.run_id).items():
        for event in events:
            if event.source in TERMINAL and target_of(Move(event.move), RunState(event.source)) is None:
                rows = f"run {run}, attempt {event.token}"
                yield Violation(invariant="I5", rows=rows, message=f"`{event.move}` led out of {event.source}")


def _i6(s: Snapshot) -> Iterator[Violation]:
    """What a study has spent and reserved is within its cap at each claim; what goes beyond later is bounded."""
    for budget, attempts in _charged(s):
        for attempt, taken in _takings(attempts):
            if attempt.cap is not None and taken > attempt.cap + TINY_S:
                rows = f"study {budget.study}, run {attempt.run_id}, attempt {attempt.token}"
                message = f"its claim made {taken / 3600:.3g} of {attempt.cap / 3600:.3g} hours spent or reserved"
                yield Violation(invariant="I6", rows=rows, message=message)
        caps = [budget.cap, *(a.cap for a in attempts)]
        known = [cap for cap in caps if cap is not None]
        if len(known) < len(caps) or any(a.engine == INLINE for a in attempts):
            continue  # some were claimed without a cap, or in the scheduler's own process, where nothing ends them
        most = max(known) + _peak(attempts) * OVERRUN_S
        if budget.spent > most + TINY_S:
            message = f"{budget.spent / 3600:.3g} hours were spent, where {most / 3600:.3g} are the most"
            yield Violation(invariant="I6", rows=f"study {budget.study}, {UNITS[budget.unit]}", message=message)


def _charged(s: Snapshot) -> Iterator[tuple[BudgetRecord, list[AttemptRecord]]]:
    """Yield each budget with its attempts in the order of their claims."""
    names = {study.id: study.name for study in s.studies}
    by_claim = sorted(s.attempts, key=lambda a: (a.claimed_at, a.run_id, a.token))
    groups = _grouped(by_claim, lambda a: (names.get(a.study_id), unit_of(a.gpus)))
    for budget in s.budgets:
        yield budget, groups.get((budget.study, budget.unit), [])


def _takings(attempts: Iterable[AttemptRecord]) -> Iterator[tuple[AttemptRecord, float]]:
    """Yield each attempt with what was spent and reserved at its claim; in doubt what came first, the smaller sum."""
    gone, open_ = 0.0, list[tuple[float, int, AttemptRecord]]()
    for number, attempt in enumerate(attempts):
        at = attempt.claimed_at
        while open_ and open_[0][0] < at - CLOCK_S:
            gone += heappop(open_)[2].charged or 0.0
        heappush(open_, (inf if attempt.ended_at is None else attempt.ended_at, number, attempt))
        yield attempt, gone + sum(a.reserved if end > at + CLOCK_S else _smaller(a) for end, _, a in open_)


def _smaller(attempt: AttemptRecord) -> float:
    return min(attempt.charged or 0.0, attempt.reserved)


def _peak(attempts: Sequence[AttemptRecord]) -> float:
    """Return the most GPUs, or CPU slots, that attempts held at the same time."""
    steps = [(a.claimed_at, 1, a.gpus or 1.0) for a in attempts]
    steps += [(a.ended_at, 0, -(a.gpus or 1.0)) for a in attempts if a.ended_at is not None]
    return max(accumulate(size for _, _, size in sorted(steps)), default=0.0)


def _i7(s: Snapshot) -> Iterator[Violation]:
    """Each claim is one attempt that is charged once, and the sums of the budgets are those of the attempts."""
    known = _grouped(s.attempts, lambda a: a.run_id)
    for run in s.runs:
        tokens = sorted(a.token for a in known.get(run.id, ()))
        if tokens != list(range(1, run.token + 1)):
            message = f"{run.token} claims, but the attempts are {_listed(tokens) or 'none'}"
            yield Violation(invariant="I7", rows=f"run {run.id}", message=message)
    for attempt in s.attempts:
        for message in _wrong_charge(attempt):
            rows = f"run {attempt.run_id}, attempt {attempt.token}"
            yield Violation(invariant="I7", rows=rows, message=message)
    for name, unit in sorted({(study.name, unit) for study in s.studies for unit in UNITS}):
        if not any((b.study, b.unit) == (name, unit) for b in s.budgets):
            yield Violation(invariant="I7", rows=f"study {name}, {UNITS[unit]}", message="it has no budget")
    for budget, attempts in _charged(s):
        sums = {
            "reserved": sum(a.reserved for a in attempts if a.ended_at is None),
            "spent": sum(a.charged or 0.0 for a in attempts),
            "wasted": sum(a.charged or 0.0 for a in attempts if a.outcome not in KEPT),
            "results": sum(a.outcome in (Move.SUCCEED, Move.STOP_EARLY) for a in attempts),
        }
        for part, total in sums.items():
            if abs(getattr(budget, part) - total) > TINY_S * (1 + len(attempts)):
                message = f"`{part}` is {getattr(budget, part):.6g}, that of its attempts is {total:.6g}"
                yield Violation(invariant="I7", rows=f"study {budget.study}, {UNITS[budget.unit]}", message=message)


def _wrong_charge(attempt: AttemptRecord) -> Iterator[str]:
    ended, began = attempt.ended_at, attempt.started_at
    if (ended is None) != (attempt.outcome == ""):
        yield "it has an end without an outcome, or the reverse"
    if (ended is None) != (attempt.charged is None):
        yield "it was charged before its end, or never"
    if attempt.gpus < 0 or (ended or attempt.claimed_at) < attempt.claimed_at - CLOCK_S:
        yield "its charge is negative: was the clock set back?"
    if ended is None or attempt.charged is None:
        return
    held = (attempt.gpus or 1.0) * max(0.0, ended - (ended if began is None else began))
    recorded = attempt.outcome in (Move.SUCCEED, Move.STOP_EARLY)
    slack = CLOCK_S * (attempt.gpus or 1.0)  # its end and its charge are two statements
    if not (held if recorded else 0.0) - slack <= attempt.charged <= held + slack:
        yield f"it was charged {attempt.charged:.6g} s, and held {held:.6g} s"


def _i8(s: Snapshot) -> Iterator[Violation]:
    """No run waits for something that cannot come."""
    open_attempts = {(a.run_id, a.token) for a in s.attempts if a.ended_at is None}
    linked = {link.run_id for link in s.links if not link.withdrawn}
    live = {r.id for r in s.runs if r.cancel_requested and r.state in LIVE}
    for run in s.runs:
        rows = f"run {run.id}, attempt {run.token}"
        if run.state in LIVE and run.lease_until is not None and run.lease_until + LEASE_S < s.now:
            message = f"its lease ended {s.now - run.lease_until:.0f} s ago, and nobody has taken it back"
            remedy = "Type the `paribus run` command of its study again: it puts the run back into the queue."
            yield Violation(invariant="I8", rows=rows, message=message, remedy=remedy, level="warn")
        if message := _stuck(run, s.now, held=(run.id, run.token) in open_attempts, asked_for=run.id in linked | live):
            yield Violation(invariant="I8", rows=rows, message=message)


def _stuck(run: RunRow, now: float, *, held: bool, asked_for: bool) -> str:
    if (run.state in LIVE) != held:
        return f"it is {run.state}, {'but an attempt holds it' if held else 'but no attempt holds it'}"
    if (run.state in LIVE) != (run.lease_until is not None):
        return f"it is {run.state} {'with' if run.lease_until is not None else 'without'} a lease"
    if run.state is RunState.PLANNED or (run.state not in TERMINAL and not asked_for):
        return f"it is {run.state}, and no study will ever claim it"
    if run.state is RunState.QUEUED and run.not_before > now + BACKOFF_MAX_S + CLOCK_S:
        return f"it waits {run.not_before - now:.0f} s, longer than any pause after a failure"
    return ""


def _i9(s: Snapshot) -> Iterator[Violation]:
    """A table's rows are the results of runs that are recorded, and no declared run is missing silently."""
    runs = {r.id: r for r in s.runs}
    for row in {r.run_id for r in s.results} ^ {r.id for r in s.runs if r.state in RECORDED}:
        message = f"it is {runs[row].state if row in runs else 'unknown'}, which does not fit its result"
        yield Violation(invariant="I9", rows=f"run {row}", message=message)
    for study in s.studies:
        declared = Counter(p.arm for p in study.plan.all_runs)
        for arm, count in (declared - Counter(k.arm for k in s.links if k.study_id == study.id)).items():
            rows = f"study {study.id} ({study.name}), arm {arm}"
            yield Violation(invariant="I9", rows=rows, message=f"{count} of its {declared[arm]} runs are missing")
    folders = {(f.run, f.token): f for f in s.folders or ()}
    for result in s.results:
        rows = f"run {result.run_id}, attempt {result.token}"
        if payload_hash(result.payload) != result.payload_hash:
            yield Violation(invariant="I9", rows=rows, message="its result is not what was recorded")
        if s.folders is None or result.run_id not in runs:
            continue
        key = (runs[result.run_id].fingerprint[:SHORT], result.token)
        folder, place = folders.get(key), f"runs/{key[0]}/a{key[1]}"
        if folder is None and s.shared:
            continue
        if folder is None or folder.metrics == 0:
            remedy = f"The report shows it as failed. Bring {place} back from a copy."
            yield Violation(invariant="I9", rows=rows, message=f"its records are gone: {place}", remedy=remedy)
        elif folder.result_hash != result.payload_hash:
            message = f"{place}/result.json is not the result that was recorded"
            yield Violation(invariant="I9", rows=rows, message=message)


def _i10(s: Snapshot) -> Iterator[Violation]:
    """The event log replays to the rows."""
    logs = _grouped(s.events, lambda e: e.run_id)
    for run in s.runs:
        rows = f"run {run.id}"
        state, token, broken = _replay(logs.get(run.id, ()))
        if broken is not None:
            message = f"the log has `{broken.move}` from {broken.source} to {broken.target} after {state}"
            yield Violation(invariant="I10", rows=f"{rows}, attempt {broken.token}", message=message)
        elif (state, token) != (run.state, run.token):
            message = f"the log leads to {state} and token {token}, the row is {run.state} and {run.token}"
            yield Violation(invariant="I10", rows=rows, message=message)


def _replay(events: Iterable[EventRecord]) -> tuple[RunState, int, EventRecord | None]:
    """Return state and token after a run's events, and the first event that the table of moves does not allow."""
    state, token = RunState.PLANNED, 0
    for event in events:
        token += event.move == Move.CLAIM
        target = target_of(Move(event.move), RunState(event.source))
        if (event.source, event.target, event.token) != (state, target, token):
            return state, token, event
        state = RunState(event.target)
    return state, token, None


def _i11(s: Snapshot) -> Iterator[Violation]:
    """Every file of a checkpoint is what its manifest says."""
    for folder in s.folders or ():
        if folder.damaged:
            rows = f"folder runs/{folder.run}/a{folder.token}"
            message = f"the checkpoint is damaged: {', '.join(folder.damaged)}"
            remedy = "Nothing goes on from it; delete its folder `checkpoint` to have it gone. Check the disk."
            yield Violation(invariant="I11", rows=rows, message=message, remedy=remedy)


def _grouped(rows: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    groups: dict[K, list[T]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups


def _listed(values: Iterable[object]) -> str:
    shown = [str(v) for v in values]
    return ", ".join(shown[:5]) + (f" and {len(shown) - 5} more" if len(shown) > 5 else "")


INVARIANTS: Mapping[str, Callable[[Snapshot], Iterator[Violation]]] = {
    "I1": _i1, "I2": _i2, "I3": _i3, "I4": _i4, "I5": _i5, "I6": _i6,
    "I7": _i7, "I8": _i8, "I9": _i9, "I10": _i10, "I11": _i11,
}  # fmt: skip
"""Each invariant by its name."""
