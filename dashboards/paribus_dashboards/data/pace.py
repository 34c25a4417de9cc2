"""How fast runs go and when they will be done: nothing of it is said of a run that has ended or has fallen silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paribus.store.models import RunRecord
from paribus.store.states import LIVE
from paribus_dashboards.data.run_now import RunNow
from paribus_dashboards.data.study_now import StudyNow

SILENT_S, SILENT_STEPS = 60.0, 10.0
"""A run is silent if its newest line is older than this many seconds and this many of its steps."""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What the newest metric lines say.

    Attributes:
        since_ms: time of the newest line, milliseconds since 1970.
        speed: e.g. ``0.52 steps/s``; empty if unknown.
        until_ms: when the last step is to be expected, milliseconds since 1970; ``None`` if unknown.
        silent: whether no line has come for so long that the pace no longer holds.
    """

    since_ms: int
    speed: str
    until_ms: int | None
    silent: bool


def pace_of(run: RunRecord, now: RunNow, steps: int, at: float) -> Pace | None:
    """Return the pace of a run; ``None`` unless an attempt is live and has written a line.

    Args:
        run: the run.
        now: its newest lines.
        steps: planned steps.
        at: seconds since 1970.
    """
    if run.state not in LIVE or not now.time_ms:
        return None
    if _silent(now, at):
        return Pace(since_ms=now.time_ms, speed="", until_ms=None, silent=True)
    left = None if not now.per_s else max(0, steps - now.step) / now.per_s
    return Pace(since_ms=now.time_ms, speed=speed(now.per_s), until_ms=_until(now.time_ms, left), silent=False)


def study_pace(study: StudyNow, now: Mapping[str, RunNow]) -> Pace | None:
    """Return the pace of all live runs together, and when all planned steps are to be expected; ``None`` without any.

    There is no such time for a paused study, whose queued runs don't start.

    Args:
        study: the study.
        now: fingerprint to the newest lines of a run; runs that are missing count as not begun.
    """
    unknown = RunNow()
    live = [now.get(r.fingerprint, unknown) for r in study.runs if r.state in LIVE]
    written = [n for n in live if n.time_ms]
    if not written:
        return None
    since_ms = max(n.time_ms for n in written)
    going = [n for n in written if not _silent(n, study.at)]
    total = sum(n.per_s for n in going)
    left = _left(study, now, unknown) / total if total and not study.record.paused else None
    return Pace(since_ms=since_ms, speed=speed(total), until_ms=_until(since_ms, left), silent=not going)


def _left(study: StudyNow, now: Mapping[str, RunNow], unknown: RunNow) -> int:
    steps = {a.key: a.recipe.schedule.steps for a in study.record.plan.all_arms}
    open_runs: Sequence[RunRecord] = [r for r in study.runs if not r.terminal]
    return sum(max(0, steps[r.arm] - now.get(r.fingerprint, unknown).step) for r in open_runs)


def _silent(now: RunNow, at: float) -> bool:
    step_s = 1 / now.per_s if now.per_s else 0.0
    return at - now.time_ms / 1000 > max(SILENT_S, SILENT_STEPS * step_s)


def _until(since_ms: int, left_s: float | None) -> int | None:
    return None if left_s is None else round(since_ms + 1000 * left_s)


def speed(per_s: float) -> str:
    """Return steps per second, or per minute or hour if they are slow, e.g. ``0.52 steps/s``; empty for none."""
    if per_s <= 0:
        return ""
    scales = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))
    size, name = next(((s, n) for s, n in scales if per_s * s >= 0.1), scales[-1])
    pace = per_s * size
    number = f"{pace:.2g}" if pace < 99.5 else f"{pace:,.0f}"  # 99.5 in two digits is 1e+02
    return f"{number} {'step' if number == '1' else 'steps'}/{name}"
