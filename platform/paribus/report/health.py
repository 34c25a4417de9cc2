"""The verdicts that the detectors gave on the runs while they trained: an outcome that is counted, never tested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from paribus.health.finding import RAISED, Lamp
from paribus.report.analysis import Analysis
from paribus.report.data import RunData
from paribus.report.model import Cell, Column, Table, TableRow
from paribus.report.tables import seeds_cell
from paribus.report.text import MISSING, listed, number

COLUMNS: tuple[tuple[Lamp, str, str], ...] = (
    ("critical", "■ critical", "what the run yields is likely worthless from the onset on"),
    ("warn", "▲ warning", "look at it"),
    ("ok", "● ok", "judged, and nothing was found"),
)
"""Lamp, heading and meaning of the columns that count runs."""

SHOWN = 3
"""Most findings of a kind that a cell shows."""

FINDINGS = (
    f"at most {SHOWN} of a kind: in how many runs, and since which step, the median over them; a run counts at the "
    "worst state that the detector showed, also if that has cleared"
)
NO_TEST = (
    "A warning is no proof that something is wrong, nor is ok one that nothing is. The counts of the arms are not "
    "compared: this is no statistical test."
)
UNJUDGED = "not judged: no verdict was recorded (a run of less than two seconds, or yet to begin), or none can be read."
SO_FAR = "…: of a run that is not finished it is the verdict so far."
STOPPED = "†: a run that a finding stopped counts here with that finding, and its reason is told with the lost runs."


@dataclass(frozen=True, kw_only=True)
class Raised:
    """A finding in the runs of an arm.

    Attributes:
        detector: who raised it.
        state: how bad it was, ``warn`` or ``critical``.
        runs: in how many runs.
        onset: median over them of the first step at which it held, as bad as that; ``None`` if it has no step.
    """

    detector: str
    state: Lamp
    runs: int
    onset: float | None

    @property
    def since(self) -> str:
        """`` since step 12``; empty if there is no step."""
        return "" if self.onset is None else f" since step {number(self.onset, 0 if self.onset % 1 == 0 else 1)}"


def raised(runs: Iterable[RunData]) -> list[Raised]:
    """Return what was found in these runs: critical first, then in most runs, then the earliest."""
    found: dict[tuple[Lamp, str], list[int | None]] = {}
    for run in runs:
        for finding in run.health.raised if run.health else ():
            found.setdefault((finding.state, finding.detector), []).append(finding.step_onset)
    entries = [_raised(state, detector, onsets) for (state, detector), onsets in found.items()]
    return sorted(entries, key=lambda e: (RAISED.index(e.state), -e.runs, e.onset or 0, e.detector))


def _raised(state: Lamp, detector: str, onsets: Sequence[int | None]) -> Raised:
    known = [s for s in onsets if s is not None]
    return Raised(detector=detector, state=state, runs=len(onsets), onset=median(known) if known else None)


def health_table(analysis: Analysis) -> Table | None:
    """Return how many runs of each arm were judged critical, with a warning and ok; ``None`` without a verdict."""
    runs = analysis.data.runs
    if not any(r.health for r in runs):
        return None
    unjudged = any(r.health is None for r in runs)
    columns = (
        Column(key="seeds", label="seeds", note="finished / planned"),
        *(Column(key=lamp, label=label, unit="runs", note=note) for lamp, label, note in COLUMNS),
        *([Column(key="not_judged", label="○ not judged", unit="runs")] if unjudged else []),
        Column(key="findings", label="worst findings", note=FINDINGS),
    )
    return Table(
        key="health",
        title="Health",
        answers="In how many runs did the detectors find something wrong, what, and since when?",
        first="Configuration",
        columns=columns,
        rows=tuple(_row(analysis, a.key, unjudged) for a in analysis.plan.arms),
        notes=tuple(_notes(analysis, unjudged)),
    )


def _row(analysis: Analysis, arm: str, unjudged: bool) -> TableRow:
    runs = analysis.runs(arm)
    lamps: list[Lamp] = [r.health.lamp for r in runs if r.health]
    counts = [_count(lamps.count(lamp), len(lamps)) if lamps else MISSING for lamp, _, _ in COLUMNS]
    rest = [_count(len(runs) - len(lamps), len(runs))] if unjudged else []
    cells = (seeds_cell(analysis, arm), *counts, *rest, _findings(runs) if lamps else MISSING)
    return TableRow(label=analysis.label(arm), cells=cells)


def _count(count: int, of: int) -> Cell:
    return Cell(text=str(count), value=float(count), n=of)


def _findings(runs: Sequence[RunData]) -> Cell:
    """Return the findings, the worst first; warnings on the second line if there is something critical."""
    found = raised(runs)
    lines = [
        f"{word}: {_some([e for e in found if e.state == state])}"
        for state, word in zip(RAISED, ("critical", "warning"), strict=True)
        if any(e.state == state for e in found)
    ]
    return Cell(text=lines[0] if lines else "none", note=lines[1] if len(lines) > 1 else "")


def _some(found: Sequence[Raised]) -> str:
    names = [f"{e.detector} in {e.runs}{e.since}" for e in found[:SHOWN]]
    return "; ".join([*names, *([f"{len(found) - SHOWN} more"] if len(found) > SHOWN else [])])


def _notes(analysis: Analysis, unjudged: bool) -> Iterable[str]:
    runs = analysis.data.runs
    profiles = listed(f"`{p}`" for p in dict.fromkeys(r.health.profile for r in runs if r.health))
    yield f"Verdicts: those of the detectors while each run trained, thresholds of {profiles}; none is made anew here."
    yield NO_TEST
    if unjudged:
        yield UNJUDGED
    if any(r.health and r.outcome == "pending" for r in runs):
        yield SO_FAR
    if any(r.health and r.health.lamp == "critical" and r.outcome == "stopped_early" for r in runs):
        yield STOPPED


def health_words(analysis: Analysis) -> list[str]:
    """Return a sentence for each arm of which a run was critical."""
    return [text for arm in analysis.plan.arms if (text := _critical(analysis, arm.key))]


def _critical(analysis: Analysis, arm: str) -> str:
    runs = analysis.runs(arm)
    judged = [r for r in runs if r.health]
    critical = [r for r in judged if r.health and r.health.lamp == "critical"]
    if not critical:
        return ""
    found = [e for e in raised(critical) if e.state == "critical"]
    each = listed(_told(e, alone=len(critical) == 1) for e in found)
    kind = "a critical finding" if len(found) == 1 else "critical findings"
    who = f"{len(runs)} run{'s' if len(runs) > 1 else ''} of `{analysis.label(arm)}`"
    who += f" ({len(judged)} judged)" if len(judged) < len(runs) else ""
    return f"{len(critical)} of {who} had {kind}: {each}."


def _told(entry: Raised, *, alone: bool) -> str:
    if alone:
        return f"{entry.detector}{entry.since}"
    return f"{entry.detector} in {entry.runs}{entry.since}" + (" (median)" if entry.runs > 1 and entry.since else "")
