"""What each trick contributes: alone, in the full recipe, and free of the order, with the check of the sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paribus.report.analysis import Analysis, Effect, corrected
from paribus.report.model import Cell, Column, Table, TableRow
from paribus.report.tables import interval_notes, pairing
from paribus.report.text import MISSING, NOT_APPLICABLE, effect_cell, p_text
from paribus.report.unbalanced import CellEffects
from paribus.stats.attribution import Weights, both_ends_weights, shapley_weights
from paribus.study.plan import Row

Cells = Mapping[frozenset[str], str]
"""Set of tricks to the arm that has them, where only one arm does."""

KINDS = ("cumulative", "add_one", "leave_one_out", "factorial")
"""Designs whose rows are nothing but base and tricks."""

SHOWN = {
    "alone": ("added to the base", "base + trick - base"),
    "in_full": ("in the full recipe", "full recipe - full recipe without the trick"),
    "mean": ("mean of both", "order-free estimate; see the note"),
    "shapley": ("Shapley value", "mean gain from adding the trick over all orders, from all cells; no assumption"),
}


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """One trick: what it adds to the base, what the full recipe loses without it, and its share of the whole."""

    trick: str
    alone: Effect | None
    in_full: Effect | None
    mean: Effect | None
    shapley: Effect | None


def contributions(analysis: Analysis) -> tuple[Contribution, ...]:
    """Return the effects by trick; empty if no design adds tricks to the base or removes them from a full recipe."""
    rows, cells = analysis.plan.rows, _cells(analysis)
    plain, crossed = CellEffects(analysis, {}), crossed_cells(analysis)
    added = [r.tricks[0] for r in rows if r.kind in ("add_one", "factorial") and len(r.tricks) == 1]
    full = full_recipe(rows)
    tricks = list(dict.fromkeys([*added, *full]))
    weights = _weights(tricks, added, full)
    found = {
        key: [_effect(crossed if key == "shapley" else plain, cells, w.get(t)) for t in tricks]
        for key, w in weights.items()
    }
    found |= {key: corrected(found[key]) for key in ("alone", "in_full")}
    return tuple(Contribution(trick=t, **{key: e[i] for key, e in found.items()}) for i, t in enumerate(tricks))


def crossed_cells(analysis: Analysis) -> CellEffects:
    """Return the cells of a Shapley value: all combinations of the tricks of the full recipe, those that are there."""
    full, found = frozenset(full_recipe(analysis.plan.rows)), dict[str, list[frozenset[str]]]()
    for tricks, arm in _cells(analysis).items():
        if tricks <= full:
            found.setdefault(arm, []).append(tricks)
    complete = len(full) > 1 and sum(map(len, found.values())) == 2 ** len(full)
    return CellEffects(analysis, found if complete else {})


def full_recipe(rows: Iterable[Row]) -> tuple[str, ...]:
    """Return all tricks of the designs that have a full recipe, in order; empty without such a design."""
    return tuple(dict.fromkeys(t for r in rows if r.kind in ("leave_one_out", "factorial") for t in r.tricks))


def contribution_table(analysis: Analysis) -> Table | None:
    """Return the contributions with the check of their sums; ``None`` unless two kinds of them are known."""
    found = contributions(analysis)
    keys = [k for k in SHOWN if any(getattr(c, k) for c in found)]
    if len(keys) < 2:
        return None
    score = analysis.score
    crossed = crossed_cells(analysis)
    meant = {k: note for k, (_, note) in SHOWN.items()}
    if crossed.fit is not None:
        meant["shapley"] = "mean gain from adding the trick over all orders, as the fit of the note predicts it"
    columns = [Column(key=k, label=SHOWN[k][0], unit=score.unit, note=meant[k]) for k in keys]
    planned = len(analysis.plan.seeds)
    body = [TableRow(label=c.trick, cells=tuple(_cell(getattr(c, k), planned, k) for k in keys)) for c in found]
    sums = _sums(analysis, keys)
    pairs = f"Differences in {score.label}; {pairing(analysis)}. p: Holm over the rows of its column."
    return Table(
        key="contributions",
        title="Each trick alone, and in the full recipe",
        answers="What does a trick add by itself, what is lost without it, and what is its share of the whole?",
        first="Trick",
        columns=tuple(columns),
        rows=(*body, *sums),
        notes=(pairs, *interval_notes(body, score=analysis.held), *_notes(keys, sums, crossed)),
        main=True,
    )


def _cells(analysis: Analysis) -> Cells:
    arms: dict[frozenset[str], set[str]] = {frozenset(): {analysis.plan.base}}
    for row in analysis.plan.rows:
        if row.kind in KINDS:
            arms.setdefault(frozenset(row.tricks), set()).add(row.arm)
    return {tricks: next(iter(found)) for tricks, found in arms.items() if len(found) == 1}


def _weights(tricks: Sequence[str], added: Sequence[str], full: Sequence[str]) -> dict[str, Mapping[str, Weights]]:
    everything, nothing = frozenset(full), frozenset[str]()
    return {
        "alone": {t: {frozenset([t]): 1.0, nothing: -1.0} for t in tricks if t in added},
        "in_full": {t: {everything: 1.0, everything - {t}: -1.0} for t in full},
        "mean": {t: w for t, w in both_ends_weights(full).items() if t in added},
        "shapley": shapley_weights(full) if len(full) > 1 else {},
    }


def _effect(effects: CellEffects, cells: Cells, weights: Weights | None) -> Effect | None:
    """Return a contrast of cells; ``None`` where one of them is not in the study."""
    if weights is None or not all(cell in cells for cell in weights):
        return None
    by_arm: dict[str, float] = {}
    for cell, weight in weights.items():
        by_arm[cells[cell]] = by_arm.get(cells[cell], 0.0) + weight
    return effects.effect(by_arm)


def gaps(analysis: Analysis) -> dict[str, Effect | None]:
    """Return by how much the sum of each kind of contribution misses the whole; a kind that cannot miss is left out."""
    full, cells = full_recipe(analysis.plan.rows), _cells(analysis)
    found = {}
    for key, weights in _weights(full, full, full).items() if full else ():
        gap = _whole(full)
        for contribution in weights.values():
            for cell, weight in contribution.items():
                gap[cell] = gap.get(cell, 0.0) - weight
        if left := {cell: weight for cell, weight in gap.items() if abs(weight) > 1e-9}:
            found[key] = _effect(CellEffects(analysis, {}), cells, left)
    return found


def _whole(full: Sequence[str]) -> dict[frozenset[str], float]:
    return {frozenset(full): 1.0, frozenset(): -1.0}


def _sums(analysis: Analysis, keys: Sequence[str]) -> list[TableRow]:
    """Return the whole difference, and by how much the contributions of each column miss it."""
    full = full_recipe(analysis.plan.rows)
    if not full:
        return []
    whole, found = _effect(CellEffects(analysis, {}), _cells(analysis), _whole(full)), gaps(analysis)
    missed = [_closing(analysis, found[key]) if key in found else NOT_APPLICABLE for key in keys]
    return [
        TableRow(label="full recipe - base", cells=(_closing(analysis, whole),) * len(keys)),
        TableRow(label="not explained by the sum", cells=tuple(missed)),
    ]


def _closing(analysis: Analysis, effect: Effect | None) -> Cell:
    return MISSING if effect is None else effect_cell(effect, len(analysis.plan.seeds))


def _cell(effect: Effect | None, planned: int, key: str) -> Cell:
    if effect is None:
        return MISSING
    cell = effect_cell(effect, planned)
    note = f"p = {p_text(effect.p_adjusted)}" if effect.p_adjusted is not None and key in ("alone", "in_full") else ""
    return Cell(**{**vars(cell), "note": note.replace("= <", "< ")})


def _notes(keys: Sequence[str], sums: Sequence[TableRow], crossed: CellEffects) -> list[str]:
    """Return what Shapley values are from, and the caveat of the order-free estimate with its lack-of-fit check."""
    notes = []
    if "shapley" in keys:
        notes += crossed.notes("Shapley values")
        why = "by construction" if crossed.fit is None else "that the fit predicts"
        notes.append(f"The Shapley values add up to the whole difference {why}.")
    elif crossed.unbalanced:
        notes.append("The Shapley values are not estimable from the runs that there are.")
    if "mean" not in keys:
        return notes
    notes.append(
        "The mean of both is free of the order of the tricks, and valid only without three-way interactions; then it "
        "is the Shapley value."
    )
    gap = sums[1].cells[keys.index("mean")] if sums else NOT_APPLICABLE
    if gap.verdict in ("separated", "not_separated"):
        against = gap.verdict == "separated"
        fit = "which speaks against it: do not add the effects" if against else "which does not speak against it"
        notes.append(f"Check: full recipe - base - sum of these means is {gap.text}, {fit}.")
    return notes
