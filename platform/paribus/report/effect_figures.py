"""What tricks contribute as bars, and tricks against tricks as a matrix; the numbers are those of the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paribus.report.analysis import Analysis, Effect
from paribus.report.attribution import SHOWN, contributions
from paribus.report.curves import interval_of
from paribus.report.model import Cell, Figure, Forest, Matrix
from paribus.report.text import MISSING, effect_cell
from paribus.report.unbalanced import CellEffects
from paribus.study.contrasts import FACTORIALS, interactions, main_effects, tricks_of
from paribus.study.plan import Row


def contribution_figure(analysis: Analysis) -> Figure | None:
    """Return the contributions of the tricks as bars with intervals; ``None`` where there is no table of them."""
    found = contributions(analysis)
    keys = [k for k in SHOWN if any(getattr(c, k) for c in found)]
    if len(keys) < 2:
        return None
    score = analysis.score
    unit = f" ({score.unit})" if score.unit else ""
    forests = []
    for key in keys:
        known = [(c.trick, e) for c in found if (e := getattr(c, key)) is not None]
        rows = tuple(interval_of(trick, e.estimate, e.separated) for trick, e in known)
        forest = Forest(
            key=f"contributions.{key}",
            title=SHOWN[key][0],
            x_label=f"Δ {score.label}{unit}",
            intervals=rows,
            bars=True,
        )
        forests.append(forest)
    return Figure(
        key="contributions.figure",
        title="What each trick contributes",
        caption="With 95% t intervals; without below 3 seeds. Coloured: the interval leaves out 0, uncorrected.",
        forests=tuple(forests),
        table="contributions",
    )


def matrix_figures(analysis: Analysis) -> Iterator[Figure]:
    """Yield a matrix of effects and interactions for each factorial, fraction and ``pairs``."""
    rows = analysis.plan.rows
    for design in dict.fromkeys(r.design for r in rows):
        chosen = [r for r in rows if r.design == design]
        if chosen[0].kind in (*FACTORIALS, "pairs") and len(tricks_of(chosen)) > 1:
            yield _figure(analysis, design, chosen)


def _figure(analysis: Analysis, design: str, rows: Sequence[Row]) -> Figure:
    pairs, fraction = rows[0].kind == "pairs", rows[0].kind == "fractional"
    names = tricks_of(rows)
    cells = CellEffects.of_rows(analysis, rows)
    effects = {frozenset([t]): e for t, e in (_alone(analysis, rows) if pairs else _main(cells, rows))}
    effects |= {frozenset(c.tricks): cells.effect(c.weights) for c in interactions(rows)}
    sizes = [abs(e.estimate.value) for e in effects.values() if e is not None]
    largest = max(sizes, default=0.0) or 1.0
    planned = len(analysis.plan.seeds)
    by_row = [[effects.get(frozenset((a, b))) for b in names[: i + 1]] for i, a in enumerate(names)]
    diagonal = "the trick alone, against the base" if pairs else "main effect"
    matrix = Matrix(
        key=f"{design}.matrix",
        title=f"{analysis.score.label}, `{design}`",
        names=names,
        cells=tuple(tuple(_cell(e, planned) for e in row) for row in by_row),
        shades=tuple(tuple(round(e.estimate.value / largest, 2) if e else 0.0 for e in row) for row in by_row),
    )
    return Figure(
        key=f"{design}.matrix.figure",
        title=f"Tricks against tricks in `{design}`",
        caption=f"On the diagonal: {diagonal}. Below: interaction, the effect of either trick with the other on less "
        "its effect with the other off. The darker, the larger; grey text: not separated from 0, uncorrected."
        + (" What the cells of this fraction measure together stands in the table." if fraction else ""),
        matrices=(matrix,),
        table=f"{design}.{'interactions' if pairs else 'effects'}",
    )


def _main(cells: CellEffects, rows: Sequence[Row]) -> Iterator[tuple[str, Effect | None]]:
    return ((c.tricks[0], cells.effect(c.weights)) for c in main_effects(rows))


def _alone(analysis: Analysis, rows: Sequence[Row]) -> Iterator[tuple[str, Effect | None]]:
    base = next(r.arm for r in rows if not r.tricks)
    return ((r.tricks[0], analysis.effect(r.arm, base, analysis.score)) for r in rows if len(r.tricks) == 1)


def _cell(effect: Effect | None, planned: int) -> Cell:
    return MISSING if effect is None else effect_cell(effect, planned)
