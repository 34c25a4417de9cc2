"""The levels at which families of tests claim something: together they are the 5% of a report's false claims."""

from __future__ import annotations

from dataclasses import dataclass

from paribus.report.analysis.effect import MIN_SEEDS
from paribus.stats.multiple_testing import ALPHA
from paribus.stats.sigmoid import FEWEST_POINTS
from paribus.study.contrasts import FACTORIALS
from paribus.study.grids import grids
from paribus.study.plan import Plan

FEWEST_ARMS = 3
"""With fewer arms, the base included, there is no test with one spread for all arms."""

SYMPTOMS = 0.2
"""Share of the 5% of a report's claims that symptoms and costs get; with the curves where these can be tested."""

ONE_SPREAD = 0.2
"""Share of the 5% that the count of arms under one spread gets; the other tests of the score share the rest."""


@dataclass(frozen=True, kw_only=True)
class Levels:
    """Levels of the claims of a report.

    A report states several families of tests, each corrected by itself. Their levels add up to :data:`ALPHA`, so that
    at most 5% of the reports of studies without any difference hold a claim. They follow from the plan alone, so that
    no result moves the level of another test.

    Attributes:
        score: of each family of differences in the score.
        symptom: that an arm moves a symptom or a cost.
        curve: of a ceiling, or of a cost of reaching a score; 0 where the plan allows no such test.
        one_spread: that an arm counts as different under one spread; 0 where too few arms are planned for its test.
    """

    score: float
    symptom: float
    curve: float
    one_spread: float


def levels_of(plan: Plan, every: int) -> Levels:
    """Return the levels of a plan whose primary metric is evaluated every so many steps."""
    designs = {r.design for r in plan.rows if r.kind in (*FACTORIALS, "pairs")}
    designs |= {grid.design for grid in grids(plan)}
    evaluations = max(a.recipe.schedule.steps for a in plan.arms) // max(every, 1) + 1
    curves = evaluations >= FEWEST_POINTS and len(plan.seeds) >= MIN_SEEDS and len(plan.arms) > 1
    curve = ALPHA * SYMPTOMS / 2 if curves else 0.0
    one_spread = ALPHA * ONE_SPREAD if len(plan.arms) >= FEWEST_ARMS else 0.0
    return Levels(
        score=(ALPHA - ALPHA * SYMPTOMS - one_spread) / (1 + len(designs)),
        symptom=ALPHA * SYMPTOMS - curve,
        curve=curve,
        one_spread=one_spread,
    )
