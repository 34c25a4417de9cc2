"""The invariants: what holds in every store at every moment, whatever was killed.

Each invariant is a pure function of a :class:`~paribus.audit.snapshot.Snapshot`. The first line of its docstring is
shown to users and in the documentation.
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

from paribus.audit.snapshot import RunRow, Snapshot
from paribus.run_folder.folder import SHORT
from paribus.store.attempts import ANYWHERE, BACKOFF_MAX_S
from paribus.store.budget import KEPT, OVERRUN_S, UNITS
from paribus.store.models import TINY_S, AttemptRecord, BudgetRecord, EventRecord, payload_hash, unit_of
from paribus.store.states import LIVE, RECORDED, TERMINAL, TRACKED, Move, RunState, target_of
from paribus.store.transitions import LEASE_S

CLOCK_S = 1.0
"""Seconds by which the database's clock may go back (when it is corrected) without a finding."""

INLINE = "inline"
"""The engine that runs attempts in the scheduler's own process."""

_REPORT = "Paribus cannot repair this. Keep a copy of the home folder and report it as a bug."
_RESTORE = "The store was lost, or restored from an older copy. Restore the newest copy, or move these folders away."

T = TypeVar("T")
K = TypeVar("K")


@dataclass(frozen=True, kw_only=True)
class Violation:
    """An invariant that does not hold.

    Attributes:
        invariant: ``I1`` to ``I11``.
        level: ``warn`` if the next ``paribus run`` repairs it, else ``critical``.
        rows: which rows or folders, e.g. ``run 3, attempts 1 and 2``.
        message: what is wrong.
        remedy: what to do.
    """

    invariant: str
    rows: str
    message: str
    remedy: str = _REPORT
    level: Literal["warn", "critical"] = "critical"


def audit(snapshot: Snapshot) -> tuple[Violation, ...]:
    """Return the violations of all invariants; empty if all hold."""
    return tuple(found for check in INVARIANTS.values() for found in check(snapshot))


def statement(invariant: str) -> str:
    """Return an invariant in one sentence."""
    return (inspect.getdoc(INVARIANTS[invariant]) or "").split("\n")[0]


def _i1(s: Snapshot) -> Iterator[Violation]:
    """Each arm of a study has at most one result per seed."""
    for run, count in Counter(r.run_id for r in s.results).items():
        if count > 1:
            yield Violation(invariant="I1", rows=f"run {run}", message=f"the run has {count} results")
    seeds = {r.id: r.seed for r in s.runs}
    cells = _grouped(s.links, lambda link: (link.study_id, link.arm, seeds.get(link.run_id)))
    for (study, arm, seed), links in cells.items():
        if len(links) > 1:
            rows = f"study {study}, runs {_listed(link.run_id for link in links)}"
            yield Violation(invariant="I1", rows=rows, message=f"arm {arm} has {len(links)} runs with seed {seed}")


def _i2(s: Snapshot) -> Iterator[Violation]:
    """A result belongs to the last attempt at its run."""
    runs = {r.id: r for r in s.runs}
    attempts = {(a.run_id, a.token): a for a in s.attempts}
    for result in s.results:
        rows = f"run {result.run_id}, attempt {result.token}"
        run, attempt = runs.get(result.run_id), attempts.get((result.run_id, result.token))
        if run is None or attempt is None:
            yield Violation(invariant="I2", rows=rows, message="there is a result, but no such run or attempt")
        elif run.token != result.token:
            yield Violation(
                invariant="I2", rows=rows, message=f"the result is not from the last attempt, which is {run.token}"
            )
        elif attempt.outcome not in (Move.SUCCEED, Move.STOP_EARLY):
            message = f"the attempt has a result, but its outcome is `{attempt.outcome}`"
            yield Violation(invariant="I2", rows=rows, message=message)


def _i3(s: Snapshot) -> Iterator[Violation]:
    """No two attempts hold one run at the same time, and no GPU is shared beyond its whole."""
    for run, attempts in _grouped(s.attempts, lambda a: a.run_id).items():
        for earlier, later in pairwise(sorted(attempts, key=lambda a: a.token)):
            if earlier.ended_at is None or earlier.ended_at > later.claimed_at + CLOCK_S:
                yield Violation(
                    invariant="I3",
                    rows=f"run {run}, attempts {earlier.token} and {later.token}",
                    message="the later attempt began before the earlier one had ended",
                    remedy=f"Was the clock of the database set back by more than {CLOCK_S:g} s? If not: {_REPORT}",
                )
    names = {d.id: f"GPU {d.name} of {d.host}" for d in s.devices}
    tried = {(a.run_id, a.token): a for a in s.attempts}
    for device, leases in _grouped(s.leases, lambda lease: lease.device_id).items():
        holders = [(tried[key], lease.share) for lease in leases if (key := (lease.run_id, lease.token)) in tried]
        for held, crowd in _crowds(holders):
            rows = ", ".join(f"run {a.run_id} attempt {a.token}" for a in crowd)
            message = f"together they held {held:.3g} of {names.get(device, f'device {device}')} at the same time"
            yield Violation(invariant="I3", rows=rows, message=message)


def _crowds(holders: Iterable[tuple[AttemptRecord, float]]) -> Iterator[tuple[float, list[AttemptRecord]]]:
    """Yield the share of a device and its holders wherever attempts held more than the whole."""
    open_: list[tuple[AttemptRecord, float]] = []
    for attempt, share in sorted(holders, key=lambda h: (h[0].claimed_at, h[0].run_id, h[0].token)):
        until = attempt.claimed_at + CLOCK_S
        open_ = [(a, part) for a, part in open_ if a.ended_at is None or a.ended_at > until]
        open_.append((attempt, share))
        if (held := sum(part for _, part in open_)) > 1 + TINY_S:
            yield held, [a for a, _ in open_]


def _i4(s: Snapshot) -> Iterator[Violation]:
    """Every run of a submitted plan and every attempt is in the store."""
    runs = {r.id: r for r in s.runs}
    tokens = {r.fingerprint[:SHORT]: r.token for r in s.runs}
    linked = {(link.study_id, runs[link.run_id].fingerprint) for link in s.links if link.run_id in runs}
    for study in s.studies:
        lost = [p.fingerprint for p in study.plan.all_runs if (study.id, p.fingerprint) not in linked]
        if lost:
            rows = f"study {study.id} ({study.name}), runs {_listed(f[:SHORT] for f in lost)}"
            yield Violation(invariant="I4", rows=rows, message="runs of the plan are missing in the store")
    for folder in s.folders or ():
        if folder.token > tokens.get(folder.run, 0):
            rows = f"folder runs/{folder.run}/a{folder.token}"
            message = "the store has no such attempt"
            yield Violation(invariant="I4", rows=rows, message=message, remedy=_RESTORE)


def _i5(s: Snapshot) -> Iterator[Violation]:
    """A run that has ended starts again only on request, and never if it has a result."""
    reruns = Counter(e.run_id for e in s.events if e.move == Move.RERUN)
    for row in s.runs:
        if row.generation != reruns[row.id]:
            message = f"it counts {row.generation} retries, but the event log has {reruns[row.id]}"
            yield Violation(invariant="I5", rows=f"run {row.id}", message=message)
    for run, events in _grouped(s.events, lambda e: e.run_id).items():
        for event in events:
            if event.source in TERMINAL and target_of(Move(event.move), RunState(event.source)) is None:
                rows = f"run {run}, attempt {event.token}"
                yield Violation(
                    invariant="I5",
                    rows=rows,
                    message=f"`{event.move}` changed the state although it was {event.source}",
                )


def _i6(s: Snapshot) -> Iterator[Violation]:
    """A study stays within its budget when an attempt begins, and exceeds it later by a bounded amount only."""
    for budget, attempts in _charged(s):
        for attempt, taken in _takings(attempts):
            if attempt.cap is not None and taken > attempt.cap + TINY_S:
                rows = f"study {budget.study}, run {attempt.run_id}, attempt {attempt.token}"
                message = f"it began with {taken / 3600:.3g} of {attempt.cap / 3600:.3g} hours spent or reserved"
                yield Violation(invariant="I6", rows=rows, message=message)
        caps = [budget.cap, *(a.cap for a in attempts)]
        known = [cap for cap in caps if cap is not None]
        if len(known) < len(caps) or any(a.engine == INLINE or a.worker.startswith(ANYWHERE) for a in attempts):
            continue  # some had no cap, or nothing stops them: in the scheduler's own process, or without a scheduler
        most = max(known) + _peak(attempts) * OVERRUN_S
        if budget.spent > most + TINY_S:
            message = f"{budget.spent / 3600:.3g} hours were spent, but at most {most / 3600:.3g} are allowed"
            yield Violation(invariant="I6", rows=f"study {budget.study}, {UNITS[budget.unit]}", message=message)


def _charged(s: Snapshot) -> Iterator[tuple[BudgetRecord, list[AttemptRecord]]]:
    """Yield each budget with its attempts, in the order of their claims."""
    names: dict[int | None, str] = {study.id: study.name for study in s.studies}
    by_claim = sorted(s.attempts, key=lambda a: (a.claimed_at, a.run_id, a.token))
    groups = _grouped(by_claim, lambda a: (names.get(a.study_id), unit_of(a.gpus)))
    for budget in s.budgets:
        yield budget, groups.get((budget.study, budget.unit), [])


def _takings(attempts: Iterable[AttemptRecord]) -> Iterator[tuple[AttemptRecord, float]]:
    """Yield each attempt with the sum spent and reserved at its claim; the smaller sum if the order is unclear."""
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
    """Return the largest number of GPUs, or CPU slots, that attempts held at the same time."""
    steps = [(a.claimed_at, 1, a.gpus or 1.0) for a in attempts]
    steps += [(a.ended_at, 0, -(a.gpus or 1.0)) for a in attempts if a.ended_at is not None]
    return max(accumulate(size for _, _, size in sorted(steps)), default=0.0)


def _i7(s: Snapshot) -> Iterator[Violation]:
    """Each attempt is charged once, and the sums of the budgets equal those of the attempts."""
    known = _grouped(s.attempts, lambda a: a.run_id)
    for run in s.runs:
        tokens = sorted(a.token for a in known.get(run.id, ()))
        if tokens != list(range(1, run.token + 1)):
            message = f"it counts {run.token} attempts, but the store has {_listed(tokens) or 'none'}"
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
                message = f"`{part}` is {getattr(budget, part):.6g}, but {total:.6g} for its attempts"
                yield Violation(invariant="I7", rows=f"study {budget.study}, {UNITS[budget.unit]}", message=message)


def _wrong_charge(attempt: AttemptRecord) -> Iterator[str]:
    ended, began = attempt.ended_at, attempt.started_at
    if (ended is None) != (attempt.outcome == ""):
        yield "it has an end but no outcome, or an outcome but no end"
    if (ended is None) != (attempt.charged is None):
        yield "it was charged before its end, or not at all"
    if attempt.gpus < 0 or (ended or attempt.claimed_at) < attempt.claimed_at - CLOCK_S:
        yield "its charge is negative. Was the clock set back?"
    if ended is None or attempt.charged is None:
        return
    held = (attempt.gpus or 1.0) * max(0.0, ended - (ended if began is None else began))
    recorded = attempt.outcome in (Move.SUCCEED, Move.STOP_EARLY)
    slack = CLOCK_S * (attempt.gpus or 1.0)  # end and charge are set by two statements
    if not (held if recorded else 0.0) - slack <= attempt.charged <= held + slack:
        yield f"it was charged {attempt.charged:.6g} s, but it lasted {held:.6g} s"


def _i8(s: Snapshot) -> Iterator[Violation]:
    """No run waits for something that cannot happen."""
    open_attempts = {(a.run_id, a.token) for a in s.attempts if a.ended_at is None}
    linked = {link.run_id for link in s.links if not link.withdrawn}
    live = {r.id for r in s.runs if r.cancel_requested and r.state in LIVE}
    tracked = {a.run_id for a in s.attempts if a.engine == TRACKED}  # those are failed for every reader
    for run in s.runs:
        rows = f"run {run.id}, attempt {run.token}"
        late = run.state in LIVE and run.lease_until is not None and run.lease_until + LEASE_S < s.now
        if late and run.lease_until is not None and run.id not in tracked:
            message = f"its supervisor has been silent for {s.now - run.lease_until + LEASE_S:.0f} s"
            remedy = "Repeat the `paribus run` command of its study: it takes the job over, or queues the run again."
            yield Violation(invariant="I8", rows=rows, message=message, remedy=remedy, level="warn")
        if message := _stuck(run, s.now, held=(run.id, run.token) in open_attempts, asked_for=run.id in linked | live):
            yield Violation(invariant="I8", rows=rows, message=message)


def _stuck(run: RunRow, now: float, *, held: bool, asked_for: bool) -> str:
    if (run.state in LIVE) != held:
        return f"it is {run.state}, but {'an' if held else 'no'} attempt is open"
    if (run.state in LIVE) != (run.lease_until is not None):
        return f"it is {run.state}, but {'has' if run.lease_until is not None else 'lacks'} a time limit for heartbeats"
    if run.state is RunState.PLANNED or (run.state not in TERMINAL and not asked_for):
        return f"it is {run.state}, but no study will start it"
    if run.state is RunState.QUEUED and run.not_before > now + BACKOFF_MAX_S + CLOCK_S:
        return f"it waits for {run.not_before - now:.0f} s, longer than any wait after a failure"
    return ""


def _i9(s: Snapshot) -> Iterator[Violation]:
    """Every row of a table is a recorded result, and no planned run is missing."""
    runs = {r.id: r for r in s.runs}
    for row in {r.run_id for r in s.results} ^ {r.id for r in s.runs if r.state in RECORDED}:
        message = f"its state, {runs[row].state if row in runs else 'unknown'}, contradicts its result"
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
            yield Violation(invariant="I9", rows=rows, message="its result was changed after it was recorded")
        if s.folders is None or result.run_id not in runs:
            continue
        key = (runs[result.run_id].fingerprint[:SHORT], result.token)
        folder, place = folders.get(key), f"runs/{key[0]}/a{key[1]}"
        if folder is None and s.shared:
            continue
        if folder is None or folder.metrics == 0:
            remedy = f"The report shows the run as failed. Restore {place} from a copy."
            yield Violation(
                invariant="I9", rows=rows, message=f"its folder is missing or empty: {place}", remedy=remedy
            )
        elif folder.result_hash != result.payload_hash:
            message = f"{place}/result.json differs from the recorded result"
            yield Violation(invariant="I9", rows=rows, message=message)


def _i10(s: Snapshot) -> Iterator[Violation]:
    """The event log leads to the current state of each run."""
    logs = _grouped(s.events, lambda e: e.run_id)
    for run in s.runs:
        rows = f"run {run.id}"
        state, token, broken = _replay(logs.get(run.id, ()))
        if broken is not None:
            message = f"the event log has `{broken.move}` from {broken.source} to {broken.target}, but it was {state}"
            yield Violation(invariant="I10", rows=f"{rows}, attempt {broken.token}", message=message)
        elif (state, token) != (run.state, run.token):
            message = f"the event log leads to {state} at attempt {token}, but it is {run.state} at attempt {run.token}"
            yield Violation(invariant="I10", rows=rows, message=message)


def _replay(events: Iterable[EventRecord]) -> tuple[RunState, int, EventRecord | None]:
    """Return state and token after a run's events, and the first event that the state machine does not allow."""
    state, token = RunState.PLANNED, 0
    for event in events:
        token += event.move == Move.CLAIM
        target = target_of(Move(event.move), RunState(event.source))
        if (event.source, event.target, event.token) != (state, target, token):
            return state, token, event
        state = RunState(event.target)
    return state, token, None


def _i11(s: Snapshot) -> Iterator[Violation]:
    """Every file of a checkpoint matches its manifest."""
    for folder in s.folders or ():
        if folder.damaged:
            rows = f"folder runs/{folder.run}/a{folder.token}"
            message = f"a checkpoint is damaged: {', '.join(folder.damaged)}"
            remedy = "No run resumes from it. Check the disk; delete its folder in `checkpoints` to clear this finding."
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
