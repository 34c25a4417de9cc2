"""Which effects a study has: arms against the base, and contrasts over all rows of a design."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import MIN_SEEDS, Effect, corrected
from paribus.report.analysis.measures import Measure, symptom_measures
from paribus.stats.factorial import (
    Cells,
    Weights,
    both_ends_weights,
    shapley_weights,
    weights_where_runs_are_missing,
)
from paribus.stats.multiple_testing import Correction
from paribus.study.contrasts import FACTORIALS, Contrast, interactions, main_effects
from paribus.study.grids import grids
from paribus.study.plan import Row
from paribus.text import plural

STARS: Mapping[Correction, str] = {
    "holm": "*: p < 0.05 after Holm's correction over {tests} tests.",
    "benjamini_hochberg": "*: q < 0.05 (Benjamini and Hochberg over {tests} tests); on average 5% or fewer are false.",
}
"""Meaning of a star in the table of effects and in the sentences about it."""


@dataclass(frozen=True, kw_only=True)
class Single:
    """One arm that is compared with the base by itself, under its shortest name."""

    name: str
    arm: str
    trick: bool


def singles(analysis: Analysis) -> tuple[Single, ...]:
    """Return the arms to compare with the base one by one: single tricks, then lists and grids; else all arms."""
    rows = [r for r in analysis.plan.rows if r.arm != analysis.plan.base]
    chosen = [r for r in rows if r.kind == "add_one"]
    several = {"pairs", "factorial", "fractional"}  # only their rows with one trick count
    others = (r for r in rows if r.kind not in ("add_one", "cumulative", "leave_one_out"))
    chosen += [r for r in others if r.kind not in several or len(r.tricks) == 1]
    found: dict[str, Single] = {}
    for row in chosen or rows:
        found.setdefault(row.arm, _single(analysis, row))
    return tuple(found.values())


def effects(analysis: Analysis) -> dict[tuple[str, str], Effect | None]:
    """Return the differences from the base by arm and measure key, corrected over all of them as declared."""
    keys = [(s.arm, m) for s in singles(analysis) for m in effect_measures(analysis)]
    found = corrected((analysis.effect(a, analysis.plan.base, m) for a, m in keys), analysis.symptom_correction)
    return {(arm, m.key): e for (arm, m), e in zip(keys, found, strict=True)}


def stars(analysis: Analysis, found: Mapping[tuple[str, str], Effect | None]) -> str:
    """Return the meaning of a star: the correction over all :func:`effects` that are tested."""
    tested = sum(e is not None and e.p_adjusted is not None for e in found.values())
    return STARS[analysis.symptom_correction].format(tests=tested)


def effect_measures(analysis: Analysis) -> tuple[Measure, ...]:
    """Return the columns of the table of effects."""
    return (*symptom_measures(), analysis.costs["generated"])


def _single(analysis: Analysis, row: Row) -> Single:
    trick = row.kind in ("add_one", "pairs") and len(row.tricks) == 1
    return Single(name=analysis.label(row.arm), arm=row.arm, trick=trick)


class CellEffects:
    """Effects over the rows of a design: each seed gives one number, from the arms that it has.

    Where runs of a factorial are missing, the arms of their seed have other weights. All other seeds keep theirs, so
    the spread over seeds and its degrees of freedom are those of a study without losses.
    """

    def __init__(self, analysis: Analysis, cells: Cells) -> None:
        self.analysis = analysis
        self.cells = cells
        self._values = {arm: analysis.values(arm, analysis.score) for arm in cells}

    @classmethod
    def of_rows(cls, analysis: Analysis, rows: Iterable[Row]) -> CellEffects:
        """Return the effects of a design; only a factorial or a fraction can do without some of its runs."""
        cells: dict[str, list[tuple[str, ...]]] = {}
        for row in rows:
            if row.kind in FACTORIALS:
                cells.setdefault(row.arm, []).append(row.tricks)
        return cls(analysis, cells)

    @property
    def planned(self) -> int:
        """Number of runs of the design, without seeds that no arm has."""
        if self.analysis.paired:
            return len(self.cells) * len({s for values in self._values.values() for s in values})
        return len(self.cells) * max(map(len, self._values.values()), default=0)

    @property
    def missing(self) -> int:
        """Number of these runs without a score."""
        return self.planned - sum(map(len, self._values.values()))

    def effect(self, weights: Mapping[str, float]) -> Effect | None:
        """Return the weighted sum of cells, uncorrected; ``None`` without weights, or if runs don't determine it."""
        analysis = self.analysis
        if not self.missing or not weights or not self.cells:
            return analysis.contrast(weights, analysis.score)
        if analysis.paired:
            seeds = sorted({s for values in self._values.values() for s in values})
            present = {s: [arm for arm, values in self._values.items() if s in values] for s in seeds}
            found = {s: weights_where_runs_are_missing(self.cells, weights, arms) for s, arms in present.items()}
            return analysis.contrast_by_seed({s: w for s, w in found.items() if w}, analysis.score)
        there = [arm for arm, values in self._values.items() if values]
        used = weights_where_runs_are_missing(self.cells, weights, there) or {}
        return _per_arm(analysis.contrast(used, analysis.score), sum(len(self._values[arm]) for arm in used), len(used))

    def notes(self, what: str = "effects") -> list[str]:
        """Return how missing runs were handled; empty if no run is missing."""
        if not self.missing:
            return []
        some = f"{self.missing} of {plural(self.planned, 'run')} {'is' if self.missing == 1 else 'are'} missing"
        if not self.analysis.paired:
            lost = any(not values for values in self._values.values())
            how = f"; where all runs of an arm are, {FITTED}" if lost else ""
            return [f"{some}: {what} come from the means of the runs that there are{how}."]
        tests = ", and tests have the degrees of freedom of the seeds"
        return [
            f"{some}: in the seed of a missing run {FITTED}; where they do not determine an effect, it is that of the "
            f"other seeds. These count as without losses{tests if len(self.analysis.plan.seeds) >= MIN_SEEDS else ''}."
        ]


def _per_arm(effect: Effect | None, runs: int, arms: int) -> Effect | None:
    """Return an unpaired effect of many arms with its seeds per arm, where the smallest arm says too little of it."""
    if effect is None or not effect.estimate.se:
        return effect
    n = round(runs / arms)
    return replace(effect, estimate=replace(effect.estimate, n=n, sd=effect.estimate.se * math.sqrt(n / 2)))


FITTED = "the other arms stand in by a fit with main effects and pairs, which takes larger interactions as 0"


@dataclass(frozen=True, kw_only=True)
class TestedDesign:
    """The effects of a design that combine more than two of its rows.

    Attributes:
        name: name of the design.
        kind: ``factorial``, ``fractional``, ``pairs`` or ``grid``.
        effects: main effects and interactions (``pairs``: interactions only), corrected over all of them.
    """

    name: str
    kind: str
    effects: tuple[tuple[Contrast, Effect | None], ...]

    @property
    def family(self) -> int:
        """Number of effects that could be tested."""
        return sum(e is not None and e.p_adjusted is not None for _, e in self.effects)


def tested_designs(analysis: Analysis) -> Iterator[TestedDesign]:
    """Yield the factorials, the fractions, ``pairs`` and the grids of a study with their effects."""
    crossed = {grid.design: grid for grid in grids(analysis.plan)}
    for name in dict.fromkeys(r.design for r in analysis.plan.rows):
        rows = [r for r in analysis.plan.rows if r.design == name]
        kind = rows[0].kind
        if kind in (*FACTORIALS, "pairs"):
            found = (*(main_effects(rows) if kind in FACTORIALS else ()), *interactions(rows))
            cells = CellEffects.of_rows(analysis, rows)
            effects = corrected(cells.effect(c.weights) for c in found)
            yield TestedDesign(name=name, kind=kind, effects=tuple(zip(found, effects, strict=True)))
        elif grid := crossed.get(name):
            found = (*grid.main_effects(), *grid.interactions())
            effects = corrected(analysis.contrast(c.weights, analysis.score) for c in found)
            yield TestedDesign(name=name, kind=kind, effects=tuple(zip(found, effects, strict=True)))


ArmOf = Mapping[frozenset[str], str]
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
    base = analysis.to_base  # a trick that is added to the base has the same p here as in every other table
    alone = zip(tricks, found["alone"], strict=True)
    found["alone"] = [base.get(cells[frozenset([trick])]) if effect else None for trick, effect in alone]
    found["in_full"] = corrected(found["in_full"])
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


def cells_of(analysis: Analysis) -> ArmOf:
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


def contrast_of(effects: CellEffects, cells: ArmOf, weights: Weights | None) -> Effect | None:
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
