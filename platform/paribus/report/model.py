"""The report as a value: every number and sentence that is printed, in every format.

Renderers lay out these values and escape their texts; they never compute. A number in any format is a number of this
model, rounded here. Texts are plain, with names in backquotes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

REPORT_SCHEMA = 1
"""Version of ``report.json``."""

Verdict = Literal["", "separated", "not_separated", "untested"]
Side = Literal["", "better", "worse"]


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One cell of a table.

    Attributes:
        text: what is printed, already rounded; ``n/a`` if it was not measured, an em dash if it does not apply.
        note: second, smaller line of the cell; may be empty.
        value: number behind the text, to 6 significant digits; ``None`` for words.
        low: lower end of its interval.
        high: upper end.
        n: seeds, or pairs of seeds, behind the value.
        p: two-sided p value, before correction.
        p_adjusted: after the correction over the family that the table names.
        correction: of ``p_adjusted``: ``holm``, ``benjamini_hochberg`` or ``dunnett``; empty without one.
        seeds: value of each seed.
        verdict: whether a difference is separated from seed noise.
        side: whether a separated difference is to the better or the worse; empty where neither is meant.
        bold: whether the arm is among the best of its table.
    """

    text: str
    note: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    n: int | None = None
    p: float | None = None
    p_adjusted: float | None = None
    correction: str = ""
    seeds: tuple[tuple[int, float], ...] = ()
    verdict: Verdict = ""
    side: Side = ""
    bold: bool = False


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column.

    Attributes:
        key: stable name, used in CSV.
        label: heading.
        unit: unit of the numbers; empty for words and pure numbers.
        note: footnote that defines the column; empty if the heading says all.
    """

    key: str
    label: str
    unit: str = ""
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    """One row; ``cells`` are in the order of the columns, the first column being ``label``."""

    label: str
    cells: tuple[Cell, ...]


@dataclass(frozen=True, kw_only=True)
class Table:
    """One table.

    Attributes:
        key: stable name, e.g. ``ladder.score``.
        title: heading.
        answers: the question it answers, one sentence.
        first: heading of the column of row labels.
        columns: the other columns.
        rows: rows in order.
        notes: how to read it: rules, tests, family of the correction.
        main: whether the terminal shows it, and the page without unfolding.
        lead: whether it stands beside the answer.
    """

    key: str
    title: str
    answers: str
    first: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]
    notes: tuple[str, ...] = ()
    main: bool = False
    lead: bool = False


@dataclass(frozen=True, kw_only=True)
class Line:
    """One arm's curve.

    Attributes:
        arm: label of the arm.
        n: seeds behind the mean; the mean ends with the shortest of them.
        x: steps, or generated tokens.
        mean: mean over seeds.
        low: lower end of the 95% t band; empty below three seeds.
        high: upper end; empty below three seeds.
        seeds: seed, its x and its values, unsmoothed.
    """

    arm: str
    n: int
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    seeds: tuple[tuple[int, tuple[float, ...], tuple[float, ...]], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One metric against one x axis, with one line per arm.

    Attributes:
        key: stable name.
        title: heading.
        x_label: label of the x axis, with its unit.
        y_label: label of the y axis, with its unit.
        lines: one per arm.
        ticks: labelled x values of a logarithmic axis; empty for a linear axis.
        steps: whether lines stay level until the next point.
        alt: text alternative for screen readers.
    """

    key: str
    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    ticks: tuple[float, ...] = ()
    steps: bool = False
    alt: str = ""


@dataclass(frozen=True, kw_only=True)
class Interval:
    """One difference of a forest plot.

    Attributes:
        label: of its row.
        value: the difference.
        low: lower end; ``None`` below three seeds.
        high: upper end; ``None`` below three seeds.
        n: seeds behind it.
        separated: whether the interval excludes 0.
        side: whether an interval that excludes 0 lies on the better or the worse side; empty where neither is meant.
        filled: whether its mark is filled; the caption says of what.
    """

    label: str
    value: float
    low: float | None
    high: float | None
    n: int
    separated: bool
    side: Side = ""
    filled: bool = False


@dataclass(frozen=True, kw_only=True)
class Forest:
    """Differences in one metric.

    Attributes:
        key: stable name.
        title: heading.
        x_label: label of the x axis, with its unit.
        intervals: one per row.
        bars: whether bars lead from 0 to the values.
        alt: text alternative for screen readers.
    """

    key: str
    title: str
    x_label: str
    intervals: tuple[Interval, ...]
    bars: bool = False
    alt: str = ""


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Tricks against tricks, effects on the diagonal and interactions below it; or values of two paths of a grid.

    Attributes:
        key: stable name.
        title: heading.
        names: tricks, of rows and columns alike, or the values of the rows.
        cells: lower triangle by row, diagonal included, or all places; ``n/a`` if the runs do not determine a cell.
        shades: each cell's value over the largest absolute value, -1 to 1; 0 without a value.
        columns: headings of the columns; empty: ``names``.
        corner: heading of the rows.
    """

    key: str
    title: str
    names: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    shades: tuple[tuple[float, ...], ...]
    columns: tuple[str, ...] = ()
    corner: str = "Trick"


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One upright axis of parallel coordinates: its name, and the texts of its two ends."""

    label: str
    low: str
    high: str


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One line of parallel coordinates.

    Attributes:
        label: e.g. ``trial 3``.
        places: where it crosses each axis, 0 at the low end to 1 at the high one; ``None`` without a value.
        texts: the values there.
        chosen: whether it is the one that was chosen.
    """

    label: str
    places: tuple[float | None, ...]
    texts: tuple[str, ...]
    chosen: bool = False


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """Parallel coordinates: each setting is a line across the axes, of which the last is the score.

    Attributes:
        key: stable name.
        title: heading.
        axes: the axes from left to right.
        settings: the lines, the worst first, so that the best is drawn on top.
        alt: text alternative for screen readers.
    """

    key: str
    title: str
    axes: tuple[Axis, ...]
    settings: tuple[Setting, ...]
    alt: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A block of panels that share their arms, of forest plots that share their rows, or of other plots.

    Attributes:
        key: stable name.
        title: heading.
        caption: how to read it.
        panels: curves.
        forests: intervals.
        matrices: tricks against tricks.
        parallels: settings across the paths that a search tuned.
        table: key of the table with the numbers; empty if the report has no such table.
        lead: whether it stands beside the answer.
    """

    key: str
    title: str
    caption: str
    panels: tuple[Panel, ...] = ()
    forests: tuple[Forest, ...] = ()
    matrices: tuple[Matrix, ...] = ()
    parallels: tuple[Parallel, ...] = ()
    table: str = ""
    lead: bool = False


@dataclass(frozen=True, kw_only=True)
class ReportModel:
    """A whole report.

    Attributes:
        study: name of the study.
        title: heading.
        question: the study's question.
        status: ``complete: 39 of 39 runs`` or ``incomplete: 12 of 39 runs``.
        complete: whether every run has ended.
        answer: what the study says, in one or two sentences.
        totals: what it cost, and what the detectors found: one line each.
        summary: what each design says.
        words: the findings, one or two sentences per comparison.
        warnings: what lowers trust: lost runs, fragile verdicts, warnings of the plan.
        tables: tables in order.
        figures: figures in order.
        provenance: name to value: what the numbers depend on.
    """

    study: str
    title: str
    question: str
    status: str
    complete: bool
    answer: str
    totals: tuple[str, ...]
    summary: tuple[str, ...]
    words: tuple[str, ...]
    warnings: tuple[str, ...]
    tables: tuple[Table, ...]
    figures: tuple[Figure, ...]
    provenance: Mapping[str, str]
    schema_version: int = REPORT_SCHEMA

    def to_json(self) -> str:
        """Return the model as JSON text, the content of ``report.json``."""
        return json.dumps(self, default=vars, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    def main_tables(self) -> tuple[Table, ...]:
        """Return the tables that the terminal shows, that beside the answer first."""
        return tuple(sorted((t for t in self.tables if t.main), key=lambda table: not table.lead))


def rounded(value: float) -> float:
    """Return a number as the model stores it: to 6 significant digits, so that files do not differ by machine."""
    return float(f"{value:.6g}")


def stored(value: float | None) -> float | None:
    """Return a number that may be missing as the model stores it."""
    return None if value is None else rounded(value)


def kept(values: Iterable[float]) -> tuple[float, ...]:
    """Return the numbers of a curve as the model stores them."""
    return tuple(map(rounded, values))


def described(figure: Figure) -> Figure:
    """Return the figure with a text for screen readers for each plot; matrices are already tables."""
    return replace(
        figure,
        panels=tuple(replace(p, alt=panel_text(p)) for p in figure.panels),
        forests=tuple(replace(f, alt=forest_text(f)) for f in figure.forests),
        parallels=tuple(replace(p, alt=parallel_text(p)) for p in figure.parallels),
    )


def panel_text(panel: Panel) -> str:
    """Return the first and the last point of each line."""
    lines = "; ".join(_line(line) for line in panel.lines)
    return f"{panel.title}: {panel.y_label} against {panel.x_label}. {lines}."


def forest_text(forest: Forest) -> str:
    """Return each row with its interval."""
    return f"{forest.title}: {forest.x_label}. {'; '.join(_interval(i) for i in forest.intervals)}."


def parallel_text(plot: Parallel) -> str:
    """Return the axes and the best setting."""
    axes = ", ".join(f"{a.label} from {a.low} to {a.high}" for a in plot.axes)
    best = plot.settings[-1]
    values = ", ".join(f"{a.label} {text}" for a, text in zip(plot.axes, best.texts, strict=True))
    return f"{plot.title}: {len(plot.settings)} settings across {axes}. Best, {best.label}: {values}."


def _line(line: Line) -> str:
    if line.mean:
        ends = f"{_short(line.mean[0])} at {_short(line.x[0])} to {_short(line.mean[-1])} at {_short(line.x[-1])}"
        return f"{line.arm} from {ends} (n={line.n})"
    ends = ", ".join(f"{_short(y[0])} to {_short(y[-1])}" for _, _, y in line.seeds)
    return f"{line.arm}, single seeds: {ends}"


def _interval(row: Interval) -> str:
    if row.low is None or row.high is None:
        return f"{row.label} {_short(row.value)} (n={row.n})"
    apart = "" if row.separated else ", not separated from 0"
    return f"{row.label} {_short(row.value)} [{_short(row.low)}, {_short(row.high)}] (n={row.n}{apart})"


def _short(value: float) -> str:
    text = f"{value:.3g}"
    return f"{float(text):g}".replace("-", "−")
