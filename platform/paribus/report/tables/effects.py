"""The tables of effects: what each arm moves, what tricks contribute, main effects, interactions, orders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import MIN_SEEDS, Effect, corrected
from paribus.report.analysis.effects import (
    CellEffects,
    cells_of,
    contrast_of,
    contributions,
    crossed_cells,
    effect_measures,
    effects,
    full_recipe,
    gaps,
    singles,
    stars,
    whole_of,
)
from paribus.report.analysis.measures import LATE_NOTE
from paribus.report.model import Cell, Column, Table, TableRow
from paribus.report.tables.cells import (
    NOT_APPLICABLE,
    adjusted_cell,
    effect_cell,
    finished,
    interval_notes,
    p_words,
    pairing,
    training_notes,
)
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


def effects_table(analysis: Analysis) -> Table | None:
    """Return what each arm does to the symptoms; ``None`` if the base is the only arm."""
    rows, found = singles(analysis), effects(analysis)
    if not rows:
        return None
    measures = effect_measures(analysis)
    columns = tuple(Column(key=m.key, label=m.label, unit=m.unit, note=m.note) for m in measures)
    body = []
    for single in rows:
        expected = finished(analysis, single.arm)
        cells = [effect_cell(found[single.arm, m.key], expected, better=m.better, verdict=True) for m in measures]
        body.append(TableRow(label=single.name, cells=tuple(cells)))
    how = "paired by seed" if analysis.paired else "seeds not paired (Welch)"
    notes = [f"Difference from `{analysis.label(analysis.plan.base)}`, {how}. {LATE_NOTE}"]
    if any(e is not None and e.p_adjusted is not None for e in found.values()):
        notes += [
            f"separated: the 95% interval excludes 0. {stars(analysis, found)}",
            "undecided: the interval holds 0 and other values; this is not evidence that nothing moves.",
        ]
    return Table(
        key="effects",
        title="What each arm moves",
        answers="Which symptoms and costs does an arm move beyond seed noise?",
        first="Arm",
        columns=columns,
        rows=tuple(body),
        notes=(
            *notes,
            *interval_notes(body),
            *training_notes(analysis, [analysis.plan.base, *(s.arm for s in rows)], measures),
        ),
        main=True,
    )


CONTRIBUTIONS = {
    "alone": ("added to the base", "base + trick - base"),
    "in_full": ("in the full recipe", "full recipe - full recipe without the trick"),
    "mean": ("mean of both", "order-free estimate; see the note"),
    "shapley": ("Shapley value", "mean gain from adding the trick over all orders, from all arms; no assumption"),
}


def contribution_table(analysis: Analysis) -> Table | None:
    """Return the contributions with the check of their sums; ``None`` unless two kinds of them are known."""
    found = contributions(analysis)
    keys = [k for k in CONTRIBUTIONS if any(getattr(c, k) for c in found)]
    if len(keys) < 2:
        return None
    score = analysis.score
    crossed = crossed_cells(analysis)
    meant = {k: note for k, (_, note) in CONTRIBUTIONS.items()}
    if crossed.missing:
        meant["shapley"] = "mean gain from adding the trick over all orders; missing runs as in the note"
    columns = [Column(key=k, label=CONTRIBUTIONS[k][0], unit=score.unit, note=meant[k]) for k in keys]
    planned, better = len(analysis.plan.seeds), score.better
    body = [
        TableRow(label=c.trick, cells=tuple(_contribution_cell(getattr(c, k), planned, k, better) for k in keys))
        for c in found
    ]
    sums = _sums(analysis, keys)
    tests = "no comparison with the base could be tested."
    if analysis.family:
        tests = (
            f"{pairing(analysis)}. p of tricks added to the base: Holm over all {analysis.family} comparisons with the "
            "base; in the full recipe: Holm over the rows of the column."
        )
    return Table(
        key="contributions",
        title="Each trick alone, and in the full recipe",
        answers="What does a trick add by itself, what is lost without it, and what share of the whole does it have?",
        first="Trick",
        columns=tuple(columns),
        rows=(*body, *sums),
        notes=(
            f"Differences in {score.label}; {tests}",
            *interval_notes(body, score=analysis.held),
            *_contribution_notes(keys, sums, crossed),
        ),
        main=True,
    )


def _sums(analysis: Analysis, keys: Sequence[str]) -> list[TableRow]:
    """Return the total difference, and by how much the sum of each column misses it."""
    full = full_recipe(analysis.plan.rows)
    if not full:
        return []
    whole, found = contrast_of(CellEffects(analysis, {}), cells_of(analysis), whole_of(full)), gaps(analysis)
    planned = len(analysis.plan.seeds)
    missed = [effect_cell(found[key], planned) if key in found else NOT_APPLICABLE for key in keys]
    return [
        TableRow(
            label="full recipe - base", cells=(effect_cell(whole, planned, better=analysis.score.better),) * len(keys)
        ),
        TableRow(label="not explained by the sum", cells=tuple(missed)),
    ]


def _contribution_cell(effect: Effect | None, planned: int, key: str, better: str) -> Cell:
    p = effect.p_adjusted if effect and key in ("alone", "in_full") else None
    return replace(effect_cell(effect, planned, better=better), note="" if p is None else p_words(p))


def _contribution_notes(keys: Sequence[str], sums: Sequence[TableRow], crossed: CellEffects) -> list[str]:
    """Return where Shapley values come from, and the caveat of the order-free mean with its lack-of-fit check."""
    notes = []
    if "shapley" in keys:
        notes += crossed.notes("Shapley values")
        notes += [] if crossed.missing else ["The Shapley values add up to the total difference by construction."]
    elif crossed.missing:
        notes.append("The available runs don't determine the Shapley values.")
    if "mean" not in keys:
        return notes
    notes.append(
        "The mean of both does not depend on the order of the tricks. It is valid only without three-way interactions; "
        "then it equals the Shapley value."
    )
    gap = sums[1].cells[keys.index("mean")] if sums else NOT_APPLICABLE
    if gap.verdict in ("separated", "not_separated"):
        zero = (
            "an interval without 0 (uncorrected): do not add the effects"
            if gap.verdict == "separated"
            else "0 is in it"
        )
        notes.append(f"Check: full recipe - base - sum of these means is {gap.text}, {zero}.")
    return notes


INTERACTION = (
    "a x b: the effect of one trick with the other on minus its effect with the other off; 0 if the effects add up."
)


_RESOLUTION = {
    3: "Resolution III: main effects are confounded with two-trick interactions, which enter with half their size; "
    "attribute a main effect to its trick only if these interactions are small.",
    4: "Resolution IV: no two-trick interaction enters a main effect, but some of them are confounded with each other; "
    "three-trick interactions enter with a quarter of their size.",
    5: "Resolution V or more: no two-trick interaction enters a main effect or another two-trick interaction.",
}


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
        "Main effect: mean of the arms with the trick minus mean of those without it, over all others on and off.",
        INTERACTION,
        *cells.notes(),
        *([_RESOLUTION[min(resolution, 5)]] if fraction and resolution else []),
    ]
    together = Column(
        key="together", label="confounded with", note="these arms cannot separate them; aliases of fewest tricks"
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
        extra.append([effect_cell(e, planned, better=analysis.score.better) for e in effects])
    cells = CellEffects.of_rows(analysis, rows)
    body = _rows(cells, contrasts, extra)
    unit = analysis.score.unit
    columns = (
        *_columns(cells, "interaction"),
        Column(key="first", label="first alone", unit=unit, note="difference from the base"),
        Column(key="second", label="second alone", unit=unit),
        Column(key="both", label="both", unit=unit),
    )
    return Table(
        key=f"{design}.interactions",
        title=f"Pairs of tricks in `{design}`: {analysis.score.label}",
        answers="Do two tricks together do what their separate effects add up to?",
        first="Pair",
        columns=columns,
        rows=body,
        notes=("Interaction: both - first alone - second alone, 0 if the effects add up.", *_how(analysis, body)),
        main=True,
    )


def _orders(analysis: Analysis, orders: Sequence[Sequence[Row]]) -> Table:
    contrasts, planned = order_means(orders), len(analysis.plan.seeds)
    steps = [{t: analysis.contrast(w, analysis.score) for t, w in _steps(rows)} for rows in orders]
    better = analysis.score.better
    extra = [[effect_cell(found[c.tricks[0]], planned, better=better) for found in steps] for c in contrasts]
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
        answers="Does what a trick adds depend on the tricks that are already on?",
        first="Trick",
        columns=(*_columns(cells, "mean of orders"), *ladders),
        rows=body,
        notes=(
            f"In a ladder: what the trick adds to the rows above it. The mean over {len(orders)} orders estimates the "
            "mean over all orders (the Shapley value); it equals that only if the study has all orders.",
            *_how(analysis, body),
        ),
        main=True,
    )


def _steps(rows: Sequence[Row]) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield the trick and weights of each step of a ladder; no weights if the trick changes nothing."""
    arms = {row.label: row.arm for row in rows}
    for row in rows[1:]:
        before = arms[row.parent or ""]
        yield row.tricks[-1], {} if row.arm == before else {row.arm: 1.0, before: -1.0}


def _columns(cells: CellEffects, label: str) -> tuple[Column, Column]:
    analysis = cells.analysis
    how = "paired by seed, t over seeds" if analysis.paired else "seeds not paired, Welch's and Satterthwaite's t"
    return (
        Column(key="effect", label=label, unit=analysis.score.unit, note=how),
        Column(key="p", label="p (Holm)", note="over the rows of this table"),
    )


def _rows(cells: CellEffects, contrasts: Sequence[Contrast], extra: Sequence[Sequence[Cell]]) -> tuple[TableRow, ...]:
    """Return one row per contrast: the effect, its p after Holm's correction over the rows, and further cells."""
    effects = corrected(cells.effect(c.weights) for c in contrasts)
    planned = len(cells.analysis.plan.seeds)
    body = []
    for contrast, effect, more in zip(contrasts, effects, extra, strict=True):
        better = cells.analysis.score.better if len(contrast.tricks) == 1 else ""  # an interaction is neither
        cell = effect_cell(effect, planned, better=better)
        body.append(TableRow(label=contrast.name, cells=(cell, adjusted_cell(effect), *more)))
    return tuple(body)


def _words(aliases: Sequence[str]) -> Cell:
    return Cell(text=" ".join(aliases).replace("- ", "− ")) if aliases else NOT_APPLICABLE


def _how(analysis: Analysis, body: Sequence[TableRow]) -> list[str]:
    few = len(analysis.plan.seeds) < MIN_SEEDS
    return [*interval_notes(body), *(["With fewer than 3 seeds nothing is tested."] if few else [])]
