"""What each trick contributes: alone, in the full recipe, and independently of the order, with a check of the sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paribus.report.analysis.analysis import Analysis, Effect, corrected
from paribus.report.analysis.effects import CellEffects
from paribus.stats.factorial import Weights, both_ends_weights, shapley_weights
from paribus.study.plan import Row

Cells = Mapping[frozenset[str], str]
"""Set of tricks to the arm that has them, if exactly one arm does."""


KINDS = ("cumulative", "add_one", "leave_one_out", "factorial")
"""Designs whose rows consist of the base and tricks only."""


@dataclass(frozen=True, kw_only=True)
class Contribution:
    """One trick: what it adds to the base, what the full recipe loses without it, and its share of the total."""

    trick: str
    alone: Effect | None
    in_full: Effect | None
    mean: Effect | None
    shapley: Effect | None


def contributions(analysis: Analysis) -> tuple[Contribution, ...]:
    """Return the effects by trick; empty if no design adds tricks to the base or removes them from a full recipe."""
    rows, cells = analysis.plan.rows, cells_of(analysis)
    plain, crossed = CellEffects(analysis, {}), crossed_cells(analysis)
    added = [r.tricks[0] for r in rows if r.kind in ("add_one", "factorial") and len(r.tricks) == 1]
    full = full_recipe(rows)
    tricks = list(dict.fromkeys([*added, *full]))
    weights = _weights(tricks, added, full)
    found = {
        key: [contrast_of(crossed if key == "shapley" else plain, cells, w.get(t)) for t in tricks]
        for key, w in weights.items()
    }
    found |= {key: corrected(found[key]) for key in ("alone", "in_full")}
    return tuple(Contribution(trick=t, **{key: e[i] for key, e in found.items()}) for i, t in enumerate(tricks))


def crossed_cells(analysis: Analysis) -> CellEffects:
    """Return the arms of a Shapley value: all combinations of the full recipe's tricks; none if one is missing."""
    full, found = frozenset(full_recipe(analysis.plan.rows)), dict[str, list[frozenset[str]]]()
    for tricks, arm in cells_of(analysis).items():
        if tricks <= full:
            found.setdefault(arm, []).append(tricks)
    complete = len(full) > 1 and sum(map(len, found.values())) == 2 ** len(full)
    return CellEffects(analysis, found if complete else {})


def full_recipe(rows: Iterable[Row]) -> tuple[str, ...]:
    """Return the tricks of the designs that have a full recipe, in order; empty without such a design."""
    return tuple(dict.fromkeys(t for r in rows if r.kind in ("leave_one_out", "factorial") for t in r.tricks))


def cells_of(analysis: Analysis) -> Cells:
    """Return the arm of each set of tricks, where only one arm has this set."""
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


def contrast_of(effects: CellEffects, cells: Cells, weights: Weights | None) -> Effect | None:
    """Return a contrast of sets of tricks; ``None`` if one of them is not in the study."""
    if weights is None or not all(cell in cells for cell in weights):
        return None
    by_arm: dict[str, float] = {}
    for cell, weight in weights.items():
        by_arm[cells[cell]] = by_arm.get(cells[cell], 0.0) + weight
    return effects.effect(by_arm)


def gaps(analysis: Analysis) -> dict[str, Effect | None]:
    """Return by how much each kind of contribution misses the total; kinds that add up by construction are left out."""
    full, cells = full_recipe(analysis.plan.rows), cells_of(analysis)
    found = {}
    for key, weights in _weights(full, full, full).items() if full else ():
        gap = whole_of(full)
        for contribution in weights.values():
            for cell, weight in contribution.items():
                gap[cell] = gap.get(cell, 0.0) - weight
        if left := {cell: weight for cell, weight in gap.items() if abs(weight) > 1e-9}:
            found[key] = contrast_of(CellEffects(analysis, {}), cells, left)
    return found


def whole_of(full: Sequence[str]) -> dict[frozenset[str], float]:
    """Return the weights of the full recipe minus the base."""
    return {frozenset(full): 1.0, frozenset(): -1.0}
