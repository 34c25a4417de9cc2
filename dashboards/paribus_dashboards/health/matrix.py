"""The health of a study at a glance: arms by detectors, how many seeds are sick and since when. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlencode

from paribus.health.diagnose import DETECTORS
from paribus.health.finding import RAISED, Status
from paribus.run_folder.folder import SHORT
from paribus.store.models import RunRecord
from paribus.study.plan import Arm
from paribus.text import plural
from paribus_dashboards.data.run_now import RunNow
from paribus_dashboards.format import STATUSES, spaced

MAX_LISTED = 400
"""Most seeds of an arm that its row shows."""

Seeds = Sequence[tuple[RunRecord, RunNow]]
"""The runs of an arm by seed, and their health so far."""

_PLACE: Mapping[str, int] = {d.name: place for place, d in enumerate(DETECTORS)}
_COUNTED: Mapping[Status, str] = {
    "critical": "critical",
    "warn": "with a warning",
    "ok": "ok",
    "unknown": "not judged",
}


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What a detector found in an arm.

    Attributes:
        status: the worst finding.
        sick: seeds with a finding.
        seeds: seeds that were judged.
        onset: the first step from which a finding holds; ``None`` without a step.
        query: query string of the page that shows it: the run, or the arm if several seeds are sick.
        text: all of it in words.
    """

    status: Status
    sick: int
    seeds: int
    onset: int | None
    query: str
    text: str


@dataclass(frozen=True, kw_only=True)
class ArmHealth:
    """An arm: its seeds, and a cell for each detector of the table; ``None`` where it found nothing.

    Attributes:
        key: key of the arm.
        label: label of the arm.
        seeds: seed, first digits of the run, status, detector of the worst finding.
        hidden: seeds beyond :data:`MAX_LISTED`.
        cells: one for each detector.
    """

    key: str
    label: str
    seeds: tuple[tuple[int, str, Status, str], ...]
    hidden: int
    cells: tuple[Cell | None, ...]


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Arms by those detectors that found something in one of them.

    Attributes:
        detectors: their titles.
        arms: the rows.
        counts: how many runs have which health, in words.
    """

    detectors: tuple[str, ...]
    arms: tuple[ArmHealth, ...]
    counts: str


def matrix(arms: Sequence[Arm], runs: Mapping[str, Seeds], of: int = 0) -> Matrix:
    """Return the table of some arms.

    Args:
        arms: the arms, in the order of the rows.
        runs: key of an arm to its runs.
        of: runs of the study, if these may not be all.
    """
    raised = {f.detector for seeds in runs.values() for _, now in seeds for f in now.raised}
    found = sorted(raised, key=lambda name: (_PLACE.get(name, len(_PLACE)), name))
    statuses = Counter(now.status for seeds in runs.values() for _, now in seeds)
    counts = ", ".join(f"{statuses[status]:,} {words}" for status, words in _COUNTED.items() if statuses[status])
    count = statuses.total()
    these = plural(count, "run") if of <= count else f"{count:,} of {plural(of, 'run')}"
    return Matrix(
        detectors=tuple(map(spaced, found)),
        arms=tuple(_row(arm, runs[arm.key], found) for arm in arms),
        counts=f"{these}: {counts}." if counts else "No run yet.",
    )


def _row(arm: Arm, seeds: Seeds, detectors: Sequence[str]) -> ArmHealth:
    listed = seeds[:MAX_LISTED]
    return ArmHealth(
        key=arm.key,
        label=arm.label,
        seeds=tuple((r.seed, r.fingerprint[:SHORT], now.status, spaced(now.detector)) for r, now in listed),
        hidden=len(seeds) - len(listed),
        cells=tuple(_cell(arm, seeds, name) for name in detectors),
    )


def _cell(arm: Arm, seeds: Seeds, detector: str) -> Cell | None:
    found = [(run, f) for run, now in seeds for f in now.raised if f.detector == detector]
    if not found:
        return None
    status = next(s for s in RAISED if any(f.status == s for _, f in found))
    judged = sum(now.status != "unknown" for _, now in seeds)
    onset = min((f.onset for _, f in found if f.onset is not None), default=None)
    since = "" if onset is None else f", from step {onset}"
    one = {"run": found[0][0].fingerprint[:SHORT]} if len(found) == 1 else {"arm": arm.key}
    return Cell(
        status=status,
        sick=len(found),
        seeds=judged,
        onset=onset,
        query=urlencode(one),
        text=f"{arm.label}: {spaced(detector)} ({STATUSES[status][1]}) in {_of_seeds(len(found), judged)}{since}",
    )


def _of_seeds(sick: int, seeds: int) -> str:
    return f"{sick} of {plural(seeds, 'seed')}"


def sickest(arms: Sequence[Arm], runs: Mapping[str, Seeds], base: str, most: int) -> tuple[str, ...]:
    """Return the keys of the base and of the arms with the most sick seeds, in the order of ``arms``.

    Args:
        arms: the arms to choose from.
        runs: key of an arm to its runs.
        base: key of the base.
        most: how many.
    """

    def sick(arm: Arm) -> tuple[int, ...]:
        statuses = Counter(now.status for _, now in runs[arm.key])
        return tuple(-statuses[status] for status in RAISED)

    others = sorted((a for a in arms if a.key != base), key=sick)[: most - 1]
    chosen = {base, *(a.key for a in others)}
    return tuple(a.key for a in arms if a.key in chosen)
