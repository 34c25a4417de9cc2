"""Adaptive plans: the seeds that a declared rule adds, and the rules in words. Pure functions."""

from __future__ import annotations

from dataclasses import replace

from paribus.stats.multiple_testing import SPENDING_WORDS, level_at, shares
from paribus.study.plan import InterimRule, Plan, SearchRanking
from paribus.study.spec import Seeds
from paribus.text import plural


def interim_rule(seeds: Seeds) -> InterimRule | None:
    """Return the rule of interim analyses that a study declares; ``None`` if it has a fixed number of seeds."""
    if seeds.until is None:
        return None
    return InterimRule(at=seeds.at, spending=seeds.spending or "obrien_fleming", width=seeds.until.width)


def next_interim(plan: Plan) -> Plan | None:
    """Return the plan with the seeds of its next look, in whole blocks; ``None`` after the last look."""
    if plan.interim is None or plan.look == len(plan.interim.at):
        return None
    count = plan.interim.at[plan.look]
    more = (count - len(plan.seeds)) * len(plan.arms)
    return replace(
        plan,
        seeds=tuple(range(plan.seeds[0], plan.seeds[0] + count)),
        runs=(*plan.runs, *plan.later[:more]),
        later=plan.later[more:],
    )


def interim_text(looks: InterimRule) -> str:
    """Return the declared rule in words."""
    counts = ", ".join(map(str, looks.at[:-1])) + f" and {looks.at[-1]}"
    decided = "every arm is separated from the base at 5% after Holm's correction, or equivalent to it"
    width = f"every difference to the base has an interval of length {looks.width} at most"
    return (
        f"looks at {counts} seeds an arm, {SPENDING_WORDS[looks.spending]} spending; the first look at which "
        f"{decided if looks.width is None else width} is the last"
    )


def levels_text(looks: InterimRule) -> str:
    """Return the levels of the intervals of all looks, e.g. ``99.99%, 99.1% and 95.9%``."""
    found = [f"{100 * level_at(share):.4g}%" for share in shares(looks.at, looks.spending)]
    return ", ".join(found[:-1]) + f" and {found[-1]}"


def ranking_text(screen: SearchRanking) -> str:
    """Return the rule of a search in words."""
    rule, tuned = screen.rule, ", ".join(f"`{row.label}`" for row in screen.candidates)
    return (
        f"search `{screen.design}` over {', '.join(rule.over)}: {plural(rule.trials, 'trial')} x "
        f"{plural(rule.seeds, 'seed')} for each of "
        f"{tuned} (sampler {rule.sampler}, seed {rule.seed}); then the best of each on the seeds of the study"
    )


def runs_between(plan: Plan) -> tuple[int, int]:
    """Return the least and the most runs of a plan.

    Settings of a search may coincide, so that it has fewer runs; each tuned arm has at least one setting.
    """
    least, most = len(plan.runs), len(plan.runs) + len(plan.later)
    if plan.ranking is None:
        return least, most
    rule, tuned = plan.ranking.rule, len(plan.ranking.candidates)
    return least + rule.seeds, most + tuned * (rule.trials * rule.seeds + len(plan.seeds))


def stage_text(plan: Plan) -> str:
    """Return how far an adaptive plan has come; empty for a plan whose runs are fixed."""
    if plan.ranking is not None:
        done, of = len(plan.ranking.trials), plan.ranking.rule.trials * len(plan.ranking.candidates)
        stage = "confirmation" if plan.ranking.confirmed else "screen"
        return f"{stage}: {done} of {plural(of, 'trial')}; {ranking_text(plan.ranking)}"
    if plan.interim is None:
        return ""
    return (
        f"look {plan.look} of {len(plan.interim.at)}: {plural(len(plan.seeds), 'seed')}; {interim_text(plan.interim)}"
    )
