"""Grids as tables: effects of single values, interactions, and the score by each two paths."""

from __future__ import annotations

from collections.abc import Iterator

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import MIN_SEEDS, Values, corrected
from paribus.report.model import Cell, Column, Figure, Matrix, Table, TableRow
from paribus.report.tables.cells import (
    MISSING,
    adjusted_cell,
    effect_cell,
    interval_notes,
    level_text,
    mean_cell,
    pairing,
)
from paribus.stats.intervals import Estimate
from paribus.study.grids import MOST_CONTRASTS, MOST_PAIRS, Grid, grids


def grid_tables(analysis: Analysis) -> Iterator[Table]:
    """Yield for each grid of two paths or more its effects, and the score by each pair of paths."""
    for grid in grids(analysis.plan):
        yield _effects(analysis, grid)
        for a, b in grid.pairs:
            yield _two_way(analysis, grid, a, b)


def _effects(analysis: Analysis, grid: Grid) -> Table:
    contrasts = [*grid.main_effects(), *grid.interactions()]
    effects = corrected(analysis.contrast(c.weights, analysis.score) for c in contrasts)
    planned, better = len(analysis.plan.seeds), analysis.score.better
    rows = tuple(
        TableRow(
            label=c.name,
            cells=(effect_cell(e, planned, better=better if len(c.tricks) == 1 else ""), adjusted_cell(e)),
        )
        for c, e in zip(contrasts, effects, strict=True)
    )
    unit = analysis.score.unit
    notes = [
        "path: a → b is the mean of the arms with b less that of the arms with a, over all values of the other paths.",
        "a=x x b=y: the effect of a=x (against its first value) with b=y less that with the first value of b; 0 if "
        "the effects add up.",
    ]
    many = len(contrasts) == len(grid.main_effects())
    notes[1:] = [f"More than {MOST_CONTRASTS} interactions: none is tested; see the heat maps."] if many else notes[1:]
    few = ["With fewer than 3 seeds nothing is tested."] if planned < MIN_SEEDS else []
    return Table(
        key=f"{grid.design}.effects",
        title=f"Effects of the values in `{grid.design}`: {analysis.score.label}",
        answers="What does each value do on average over the others, and which values interact?",
        first="Values",
        columns=(
            Column(key="effect", label="effect", unit=unit, note=pairing(analysis)),
            Column(key="p", label="p (Holm)", note="over the rows of this table"),
        ),
        rows=rows,
        notes=(*notes, *interval_notes(rows, score=analysis.held), *few),
        main=True,
    )


def _two_way(analysis: Analysis, grid: Grid, a: str, b: str) -> Table:
    rows = tuple(
        TableRow(label=x, cells=tuple(_cell(analysis, grid, {a: x, b: y}) for y in grid.levels[b]))
        for x in grid.levels[a]
    )
    over = [path for path in grid.levels if path not in (a, b)]
    mean = [f"Means over all values of {', '.join(f'`{path}`' for path in over)}."] if over else []
    left = len(grid.levels) * (len(grid.levels) - 1) // 2 - len(grid.pairs)
    rest = [f"The first {MOST_PAIRS} pairs of paths, in the order of the study file; {left} more have no table."]
    return Table(
        key=f"{grid.design}.{a}.{b}",
        title=f"`{grid.design}`: {analysis.score.label} by `{a}` and `{b}`",
        answers="What is the score at each pair of values?",
        first=a,
        columns=tuple(Column(key=f"{b}={y}", label=f"{b}={y}", unit=analysis.score.unit) for y in grid.levels[b]),
        rows=rows,
        notes=(*mean, *interval_notes(rows, score=analysis.held), *(rest if left else [])),
        main=len(grid.levels) == 2,
    )


def _mean(analysis: Analysis, grid: Grid, chosen: dict[str, str]) -> tuple[Values, Estimate] | None:
    """Return seed to the mean of the arms with these values, and the mean over seeds; ``None`` without data."""
    weights = grid.weights(chosen)
    if len(weights) == 1:
        (arm,) = weights
        own = analysis.estimate(arm, analysis.score)
        return (analysis.values(arm, analysis.score), own) if own is not None else None
    effect = analysis.contrast(weights, analysis.score)
    if effect is None or not (effect.supported or effect.by_seed):
        return None
    return dict(effect.by_seed), effect.estimate


def _cell(analysis: Analysis, grid: Grid, chosen: dict[str, str]) -> Cell:
    found = _mean(analysis, grid, chosen)
    return MISSING if found is None else mean_cell(*found, len(analysis.plan.seeds), short=False)


def grid_figures(analysis: Analysis) -> Iterator[Figure]:
    """Yield a figure for each grid: a heat map for each pair of paths."""
    for grid in grids(analysis.plan):
        yield Figure(
            key=f"{grid.design}.heat",
            title=f"Score by values in `{grid.design}`",
            caption="Blue is above the mean of all cells, orange below; darker is farther. Means over all other paths, "
            f"with {level_text(analysis)} t intervals from 3 seeds on; nothing in a colour is tested.",
            matrices=tuple(_heat(analysis, grid, a, b) for a, b in grid.pairs),
            table=f"{grid.design}.effects",
        )


def _heat(analysis: Analysis, grid: Grid, a: str, b: str) -> Matrix:
    means = [[_mean(analysis, grid, {a: x, b: y}) for y in grid.levels[b]] for x in grid.levels[a]]
    known = [found[1].value for row in means for found in row if found is not None]
    middle = sum(known) / len(known) if known else 0.0
    largest = max((abs(value - middle) for value in known), default=0.0) or 1.0
    return Matrix(
        key=f"{grid.design}.{a}.{b}.heat",
        title=f"{analysis.score.label} by {a} and {b}",
        names=grid.levels[a],
        columns=tuple(f"{b}={y}" for y in grid.levels[b]),
        corner=a,
        cells=tuple(tuple(_cell(analysis, grid, {a: x, b: y}) for y in grid.levels[b]) for x in grid.levels[a]),
        shades=tuple(tuple(round((m[1].value - middle) / largest, 2) if m else 0.0 for m in row) for row in means),
    )
