"""The health table: the statuses that detectors gave the runs while they trained. They are counted, never tested."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from paribus.health.finding import RAISED, Status
from paribus.report.analysis.analysis import Analysis
from paribus.report.inputs import RunData
from paribus.report.model import Cell, Column, Table, TableRow
from paribus.report.tables.cells import MISSING, number, seeds_cell, seeds_column
from paribus.text import listed, plural

COLUMNS: tuple[tuple[Status, str, str], ...] = (
    ("critical", "■ critical", "the run's results are likely worthless from the onset on"),
    ("warn", "▲ warning", "worth a look"),
    ("ok", "● ok", "checked, and nothing was found"),
)
"""Status, heading and meaning of the columns that count runs."""


SHOWN = 3
"""Maximum number of findings of one severity in a cell."""


FINDINGS = (
    f"at most {SHOWN} per severity, each with the number of runs and the median step since which it held; a run counts "
    "with the worst state that the detector had, even if that has cleared"
)


NO_TEST = (
    "A warning does not prove that something is wrong, and ok does not prove that nothing is. Counts are not compared "
    "between arms: this is not a statistical test."
)


UNCHECKED = (
    "not checked: the run has no recorded status (it has recorded no step, or too few to judge), or none can be read."
)
SO_FAR = "…: the status so far of a run that has not finished."
STOPPED = "run that a finding stopped counts here with that finding; the table of lost runs has the reason."


@dataclass(frozen=True, kw_only=True)
class Raised:
    """A finding in the runs of an arm.

    Attributes:
        detector: the detector that raised it.
        state: its severity, ``warn`` or ``critical``.
        runs: number of runs.
        onset: median over these runs of the first step with this severity; ``None`` if it has no step.
    """

    detector: str
    state: Status
    runs: int
    onset: float | None

    @property
    def since(self) -> str:
        """`` since step 12``; empty if there is no step."""
        return "" if self.onset is None else f" since step {number(self.onset, 0 if self.onset % 1 == 0 else 1)}"


def raised(runs: Iterable[RunData]) -> list[Raised]:
    """Return the findings of these runs: critical ones first, then the most frequent, then the earliest."""
    found: dict[tuple[Status, str], list[int | None]] = {}
    for run in runs:
        for finding in run.health.raised if run.health else ():
            found.setdefault((finding.state, finding.detector), []).append(finding.step_onset)
    entries = [_raised(state, detector, onsets) for (state, detector), onsets in found.items()]
    return sorted(entries, key=lambda e: (RAISED.index(e.state), -e.runs, e.onset or 0, e.detector))


def _raised(state: Status, detector: str, onsets: Sequence[int | None]) -> Raised:
    known = [s for s in onsets if s is not None]
    return Raised(detector=detector, state=state, runs=len(onsets), onset=median(known) if known else None)


def health_table(analysis: Analysis) -> Table | None:
    """Return how many runs of each arm were critical, had a warning, or were ok; ``None`` if no run has a status."""
    runs = analysis.data.runs
    if not any(r.health for r in runs):
        return None
    unchecked = any(r.health is None for r in runs)
    columns = (
        seeds_column(analysis),
        *(Column(key=status, label=label, unit="runs", note=note) for status, label, note in COLUMNS),
        *([Column(key="not_judged", label="○ not checked", unit="runs")] if unchecked else []),
        Column(key="findings", label="worst findings", note=FINDINGS),
    )
    return Table(
        key="health",
        title="Health",
        answers="In how many runs did the detectors find something wrong, what, and since when?",
        first="Arm",
        columns=columns,
        rows=tuple(_row(analysis, a.key, unchecked) for a in analysis.plan.arms),
        notes=tuple(_notes(analysis, unchecked)),
    )


def _row(analysis: Analysis, arm: str, unchecked: bool) -> TableRow:
    runs = analysis.runs(arm)
    statuses: list[Status] = [r.health.status for r in runs if r.health]
    counts = [_count(statuses.count(status), len(statuses)) if statuses else MISSING for status, _, _ in COLUMNS]
    rest = [_count(len(runs) - len(statuses), len(runs))] if unchecked else []
    cells = (seeds_cell(analysis, arm), *counts, *rest, _findings(runs) if statuses else MISSING)
    return TableRow(label=analysis.label(arm), cells=cells)


def _count(count: int, of: int) -> Cell:
    return Cell(text=str(count), value=float(count), n=of)


def _findings(runs: Sequence[RunData]) -> Cell:
    """Return the findings, the worst first; warnings go on the second line below critical findings."""
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


def _notes(analysis: Analysis, unchecked: bool) -> Iterable[str]:
    runs = analysis.data.runs
    profiles = listed(f"`{p}`" for p in dict.fromkeys(r.health.profile for r in runs if r.health))
    when = "while the run trained"
    if any(r.external and r.external.origin == "imported" for r in runs):
        when = "when its log was imported" if all(r.external for r in runs) else f"{when}, or when its log was imported"
    yield f"Detectors set each status {when}, by the thresholds of {profiles}; no run is checked again."
    yield NO_TEST
    if unchecked:
        yield UNCHECKED
    if any(r.health and r.outcome == "pending" for r in runs):
        yield SO_FAR
    critical = [r for r in runs if r.health and r.health.status == "critical"]
    if any(r.outcome == "stopped_early" for r in critical):
        yield f"†: a {STOPPED}"
    elif any(r.stopped_at_end for r in critical):  # without a mark
        yield f"A {STOPPED}"


def health_words(analysis: Analysis) -> list[str]:
    """Return a sentence for each arm that has a critical run."""
    return [text for arm in analysis.plan.arms if (text := _critical(analysis, arm.key))]


def _critical(analysis: Analysis, arm: str) -> str:
    runs = analysis.runs(arm)
    checked = [r for r in runs if r.health]
    critical = [r for r in checked if r.health and r.health.status == "critical"]
    if not critical:
        return ""
    found = [e for e in raised(critical) if e.state == "critical"]
    each = listed(_onset_text(e, alone=len(critical) == 1) for e in found)
    kind = "a critical finding" if len(found) == 1 else "critical findings"
    of = f"{plural(len(runs), 'run')} of `{analysis.label(arm)}`"
    of += f" ({len(checked)} checked)" if len(checked) < len(runs) else ""
    return f"{len(critical)} of {of} had {kind}: {each}."


def _onset_text(entry: Raised, *, alone: bool) -> str:
    if alone:
        return f"{entry.detector}{entry.since}"
    return f"{entry.detector} in {entry.runs}{entry.since}" + (" (median)" if entry.runs > 1 and entry.since else "")
