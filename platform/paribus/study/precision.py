"""How precisely each design of a plan measures its effects, and what it costs, before anything is run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isclose, sqrt

from paribus.stats.power import detectable_shift
from paribus.study.contrasts import (
    FACTORIALS,
    Contrast,
    differences,
    interactions,
    main_effects,
    order_means,
    resolution_of,
    several_orders,
    tricks_of,
)
from paribus.study.costs import Cost, run_costs, total
from paribus.study.fractions import MAX_TRICKS, MIN_TRICKS, best_fraction
from paribus.study.grids import grid_of
from paribus.study.plan import Plan, Row
from paribus.study.spec import Grid, Study


@dataclass(frozen=True, kw_only=True)
class Precision:
    """How precisely a design measures one kind of effect.

    Attributes:
        effect: what it is, in words.
        count: effects of this kind and precision.
        se: standard error in standard deviations of one arm's score over seeds, as if paired seeds were independent;
            where scores of a seed correlate by rho between arms, ``sqrt(1 - rho)`` of it.
        detectable: true effect that a two-sided t test at 0.05 detects with power 0.8, in the same unit and with the
            same factor; ``None`` with one seed.
    """

    effect: str
    count: int
    se: float
    detectable: float | None


@dataclass(frozen=True, kw_only=True)
class DesignSummary:
    """One design of a plan.

    Attributes:
        design: its name.
        kind: its kind.
        cells: its rows.
        runs: distinct runs of its arms, also those that other designs share.
        unrecorded: those without a result.
        precisions: its effects.
        cost: of the runs without a result; ``None`` if it is unknown, or there are none.
        aliases: for each effect of a fraction what is measured together with it.
        resolution: of a fraction.
        cheaper: a sentence on a design that answers the same for less; empty if there is none.
    """

    design: str
    kind: str
    cells: int
    runs: int
    unrecorded: int
    precisions: tuple[Precision, ...]
    cost: Cost | None
    aliases: Mapping[str, tuple[str, ...]]
    resolution: int | None
    cheaper: str


def design_summaries(
    study: Study, plan: Plan, recorded: frozenset[str] = frozenset(), costs: Mapping[str, Cost] | None = None
) -> tuple[DesignSummary, ...]:
    """Return cost and precision of each design of the plan, in the order of the study file.

    Args:
        study: the study.
        plan: its plan.
        recorded: fingerprints of the runs that have a result.
        costs: cost of one run of each arm; absent: the prior of the study.
    """
    costs = run_costs(plan, study.budget.prior) if costs is None else costs
    return tuple(
        _summary(study, plan, [r for r in plan.rows if r.design == name], recorded, costs)
        for name in dict.fromkeys(row.design for row in plan.rows)
    )


def order_summaries(plan: Plan) -> tuple[tuple[tuple[str, ...], tuple[Precision, ...]], ...]:
    """Return for ladders over the same tricks their names, and the precision of the mean over their orders."""
    return tuple(
        (
            tuple(rows[0].design for rows in orders),
            _precisions(plan, f"mean of {len(orders)} orders", order_means(orders)),
        )
        for orders in several_orders(plan.rows)
    )


def standard_error(contrast: Contrast, n: int) -> float:
    """Return the standard error of a contrast in standard deviations of one arm over seeds.

    For independent scores with variance 1: ``sqrt(sum of squared weights / n)``. With a part that is common to all arms
    of a seed, which the weights cancel, the same times ``sqrt(1 - rho)``.

    Args:
        contrast: weights of arm means.
        n: seeds an arm.
    """
    return sqrt(fsum(w * w for w in contrast.weights.values()) / n)


def detectable(contrast: Contrast, n: int, *, paired: bool) -> float | None:
    """Return the effect that a t test detects with power 0.8, in standard deviations of one arm; ``None`` for one seed.

    Degrees of freedom: ``n - 1`` where seeds are paired, since each seed gives one value of the contrast; else Welch's
    and Satterthwaite's at equal variances.
    """
    if n < 2:
        return None
    squares = [w * w for w in contrast.weights.values()]
    df = n - 1 if paired else (n - 1) * fsum(squares) ** 2 / fsum(x * x for x in squares)
    return detectable_shift(round(df, 9)) * standard_error(contrast, n)


def _summary(
    study: Study, plan: Plan, rows: Sequence[Row], recorded: frozenset[str], costs: Mapping[str, Cost]
) -> DesignSummary:
    arms = {row.arm for row in rows}
    runs = [run for run in plan.runs if run.arm in arms]
    unrecorded = [run for run in runs if run.fingerprint not in recorded]
    fraction = rows[0].kind == "fractional"
    effects = (*main_effects(rows), *interactions(rows)) if fraction else ()
    return DesignSummary(
        design=rows[0].design,
        kind=rows[0].kind,
        cells=len(rows),
        runs=len(runs),
        unrecorded=len(unrecorded),
        precisions=tuple(p for name, found in _effects(plan, rows) for p in _precisions(plan, name, found)),
        cost=total(costs, unrecorded),
        aliases={effect.name: effect.aliases for effect in effects},
        resolution=resolution_of(rows) if fraction else None,
        cheaper=_cheaper(study, rows),
    )


def _effects(plan: Plan, rows: Sequence[Row]) -> Iterator[tuple[str, Sequence[Contrast]]]:
    kind = rows[0].kind
    grid = grid_of(rows, {arm.key: arm for arm in plan.arms}) if kind == "grid" else None
    if kind in FACTORIALS:
        yield "main effect", main_effects(rows)
        yield "interaction", interactions(rows)
    else:
        names = {"cumulative": "step", "leave_one_out": "trick in full recipe", "add_one": "trick alone"}
        names["pairs"] = "one trick more"
        yield names.get(kind, "difference to base"), differences(rows)
        if kind == "pairs":
            yield "interaction", interactions(rows)
    if grid is not None:
        yield "between values", grid.main_effects()
        yield "interaction", grid.interactions()


def _precisions(plan: Plan, name: str, contrasts: Sequence[Contrast]) -> tuple[Precision, ...]:
    """Return the precisions of contrasts, those that are equally precise together."""
    n, found = len(plan.seeds), list[Precision]()
    for contrast in (c for c in contrasts if c.weights):
        se, reach = standard_error(contrast, n), detectable(contrast, n, paired=plan.paired)
        same = next((k for k, p in enumerate(found) if isclose(p.se, se)), None)
        if same is None:
            found.append(Precision(effect=name, count=1, se=se, detectable=reach))
        else:
            found[same] = Precision(effect=name, count=found[same].count + 1, se=se, detectable=reach)
    return tuple(found)


def _cheaper(study: Study, rows: Sequence[Row]) -> str:
    kind, k, cells = rows[0].kind, len(tricks_of(rows)), len(rows)
    if kind in ("factorial", "pairs") and MIN_TRICKS <= k <= MAX_TRICKS:
        fraction = best_fraction(k, 5)
        fewer = len(fraction.cells)
        if kind == "factorial" and fewer < cells:
            return (
                "a fractional factorial of resolution V gives all main effects and interactions of two in "
                f"{fewer} rows instead of {cells}"
            )
        if kind == "pairs" and fewer <= cells:
            same = "as many rows" if fewer == cells else f"{fewer} rows instead of {cells}"
            return (
                f"a fractional factorial of resolution V has {same} and measures every trick and pair "
                "of tricks more precisely, as a mean over the other tricks"
            )
        if kind == "factorial" and (half := best_fraction(k, 4)).resolution is not None:
            return (
                "if only main effects are asked for: a fractional factorial of resolution IV has "
                f"{len(half.cells)} rows instead of {cells}"
            )
    design = study.designs.get(rows[0].design)
    if isinstance(design, Grid) and (single := 1 + sum(map(len, design.over.values()))) < cells:
        return f"if the paths do not interact: one_at_a_time over the same values has {single} rows instead of {cells}"
    return ""
