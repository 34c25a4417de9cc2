"""The tables of effects that take more than two rows: main effects, interactions, means over orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paribus.report.analysis import MIN_SEEDS, Analysis, Effect, corrected
from paribus.report.model import Cell, Column, Table, TableRow, stored
from paribus.report.tables import interval_notes
from paribus.report.text import NOT_APPLICABLE, effect_cell, p_text
from paribus.report.unbalanced import CellEffects
from paribus.study.contrasts import (
    FACTORIALS,
    Contrast,
    interactions,
    main_effects,
    order_means,
    resolution_of,
    several_orders,
)
from paribus.study.plan import Row

INTERACTION = (
    "a x b: the effect of either trick with the other on, less its effect with the other off; 0 if the effects add up."
)
_FEW_WORDS = {
    3: "Resolution III: an interaction of two tricks enters a main effect that it is measured together with, with half "
    "its size; read a main effect as that of its trick only if these interactions are small.",
    4: "Resolution IV: no interaction of two tricks enters a main effect, but some of them are measured together; "
    "that of three enters with a quarter of its size.",
    5: "Resolution V or more: no interaction of two tricks enters a main effect or another interaction of two.",
}


@dataclass(frozen=True, kw_only=True)
class TestedDesign:
    """The effects of a design that take more than two of its rows.

    Attributes:
        name: of the design.
        kind: ``factorial``, ``fractional`` or ``pairs``.
        effects: main effects and interactions, of ``pairs`` interactions alone, corrected over all of them.
    """

    name: str
    kind: str
    effects: tuple[tuple[Contrast, Effect | None], ...]

    @property
    def family(self) -> int:
        """Number of effects that could be tested."""
        return sum(e is not None and e.p_adjusted is not None for _, e in self.effects)


def tested_designs(analysis: Analysis) -> Iterator[TestedDesign]:
    """Yield the factorials, the fractions and ``pairs`` of a study with their effects."""
    for name in dict.fromkeys(r.design for r in analysis.plan.rows):
        rows = [r for r in analysis.plan.rows if r.design == name]
        kind = rows[0].kind
        if kind in (*FACTORIALS, "pairs"):
            found = (*(main_effects(rows) if kind in FACTORIALS else ()), *interactions(rows))
            cells = CellEffects.of_rows(analysis, rows)
            effects = corrected(cells.effect(c.weights) for c in found)
            yield TestedDesign(name=name, kind=kind, effects=tuple(zip(found, effects, strict=True)))


def design_effects(analysis: Analysis, design: str, rows: Sequence[Row]) -> Iterator[Table]:
    """Yield the table of effects of a factorial, a fraction or ``pairs``; other designs have none."""
    kind = rows[0].kind
    if kind in FACTORIALS:
        yield _factorial(analysis, design, rows)
    elif kind == "pairs":
        yield _pairs(analysis, design, rows)


def order_tables(analysis: Analysis) -> Iterator[Table]:
    """Yield for ladders over the same tricks what each trick added in each order, and the mean."""
    for orders in several_orders(analysis.plan.rows):
        yield _orders(analysis, orders)


def _factorial(analysis: Analysis, design: str, rows: Sequence[Row]) -> Table:
    contrasts = (*main_effects(rows), *interactions(rows))
    fraction, cells = rows[0].kind == "fractional", CellEffects.of_rows(analysis, rows)
    extra = [[_words(c.aliases)] if fraction else [] for c in contrasts]
    body = _rows(cells, contrasts, extra)
    resolution = resolution_of(rows)
    notes = [
        "Main effect: mean of the cells with the trick, less mean of those without it, over all others on and off.",
        INTERACTION,
        *cells.notes(),
        *([_FEW_WORDS[min(resolution, 5)]] if fraction and resolution else []),
    ]
    together = Column(
        key="together", label="measured together with", note="the cells cannot tell them apart; of fewest tricks"
    )
    return Table(
        key=f"{design}.effects",
        title=f"Effects of the tricks in `{design}`: {analysis.score.label}",
        answers="What does each trick do on average over the others, and which tricks interact?",
        first="Trick",
        columns=(*_columns(cells, "effect"), *([together] if fraction else [])),
        rows=body,
        notes=(*notes, *_how(analysis, body)),
        main=True,
    )


def _pairs(analysis: Analysis, design: str, rows: Sequence[Row]) -> Table:
    contrasts, arms = interactions(rows), {row.tricks: row.arm for row in rows}
    base, planned = arms[()], len(analysis.plan.seeds)
    extra = []
    for contrast in contrasts:
        parts = ((contrast.tricks[0],), (contrast.tricks[1],), contrast.tricks)
        effects = [analysis.effect(arms[p], base, analysis.score) for p in parts]
        extra.append([effect_cell(e, planned) for e in effects])
    cells = CellEffects.of_rows(analysis, rows)
    body = _rows(cells, contrasts, extra)
    unit = analysis.score.unit
    columns = (
        *_columns(cells, "interaction"),
        Column(key="first", label="first alone", unit=unit, note="difference to the base"),
        Column(key="second", label="second alone", unit=unit),
        Column(key="both", label="both", unit=unit),
    )
    return Table(
        key=f"{design}.interactions",
        title=f"Pairs of tricks in `{design}`: {analysis.score.label}",
        answers="Do two tricks together do what they do alone, added up?",
        first="Pair",
        columns=columns,
        rows=body,
        notes=("Interaction: both - first alone - second alone, 0 if the effects add up.", *_how(analysis, body)),
        main=True,
    )


def _orders(analysis: Analysis, orders: Sequence[Sequence[Row]]) -> Table:
    contrasts, planned = order_means(orders), len(analysis.plan.seeds)
    steps = [{t: analysis.contrast(w, analysis.score) for t, w in _steps(rows)} for rows in orders]
    extra = [[effect_cell(found[c.tricks[0]], planned) for found in steps] for c in contrasts]
    cells = CellEffects(analysis, {})
    body = _rows(cells, contrasts, extra)
    unit = analysis.score.unit
    ladders = [
        Column(key=rows[0].design, label=f"in `{rows[0].design}`", unit=unit, note=" + ".join(rows[-1].tricks))
        for rows in orders
    ]
    return Table(
        key=f"{orders[0][0].design}.orders",
        title=f"What each trick adds, by order: {analysis.score.label}",
        answers="Does what a trick adds depend on the tricks that are there already?",
        first="Trick",
        columns=(*_columns(cells, "mean of orders"), *ladders),
        rows=body,
        notes=(
            f"In a ladder: what the trick adds to the rows above it. The mean over {len(orders)} orders is an "
            "estimate of the mean over all orders (the Shapley value), which it is only if all orders are there.",
            *_how(analysis, body),
        ),
        main=True,
    )


def _steps(rows: Sequence[Row]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield trick and weights of each step of a ladder; no weights where the trick changes nothing."""
    arms = {row.label: row.arm for row in rows}
    for row in rows[1:]:
        before = arms[row.parent or ""]
        yield row.tricks[-1], {} if row.arm == before else {row.arm: 1.0, before: -1.0}


def _columns(cells: CellEffects, label: str) -> tuple[Column, Column]:
    analysis = cells.analysis
    how = "paired by seed, t over seeds" if analysis.plan.paired else "seeds not paired, Welch's and Satterthwaite's t"
    if cells.fit is not None:
        blocks = ", with a term for each seed" if analysis.plan.paired else ""
        how = f"least squares over {cells.fit.runs} runs{blocks}; t with {cells.fit.df} degrees of freedom"
    return (
        Column(key="effect", label=label, unit=analysis.score.unit, note=how),
        Column(key="p", label="p (Holm)", note="over the rows of this table"),
    )


def _rows(cells: CellEffects, contrasts: Sequence[Contrast], extra: Sequence[Sequence[Cell]]) -> tuple[TableRow, ...]:
    """Return a row a contrast: the effect, its p after Holm's correction over the rows, and further cells."""
    effects = corrected(cells.effect(c.weights) for c in contrasts)
    planned = len(cells.analysis.plan.seeds)
    body = []
    for contrast, effect, more in zip(contrasts, effects, extra, strict=True):
        p = effect.p_adjusted if effect else None
        tested = Cell(text=p_text(p), value=stored(p)) if p is not None else NOT_APPLICABLE
        body.append(TableRow(label=contrast.name, cells=(effect_cell(effect, planned), tested, *more)))
    return tuple(body)


def _words(aliases: Sequence[str]) -> Cell:
    return Cell(text=" ".join(aliases).replace("- ", "− ")) if aliases else NOT_APPLICABLE


def _how(analysis: Analysis, body: Sequence[TableRow]) -> list[str]:
    few = len(analysis.plan.seeds) < MIN_SEEDS
    return [*interval_notes(body), *(["Below 3 seeds nothing is tested."] if few else [])]
