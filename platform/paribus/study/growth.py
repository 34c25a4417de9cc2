"""Plans that grow: what a declared rule adds to a plan. Pure; the same plan and answer give the same next plan."""

from __future__ import annotations

from dataclasses import replace

from paribus.stats.sequential import SPENDING_WORDS, level_at, shares
from paribus.study.plan import Looks, Plan, Screen
from paribus.study.spec import Seeds


def looks_of(seeds: Seeds) -> Looks | None:
    """Return the looks that a study file declares; ``None`` if it states the number of seeds."""
    if seeds.until is None:
        return None
    return Looks(at=seeds.at, spending=seeds.spending or "obrien_fleming", width=seeds.until.width)


def next_look(plan: Plan) -> Plan | None:
    """Return the plan with the seeds of its next look, in whole blocks; ``None`` if it stands at the last one."""
    if plan.looks is None or plan.look == len(plan.looks.at):
        return None
    count = plan.looks.at[plan.look]
    more = (count - len(plan.seeds)) * len(plan.arms)
    return replace(
        plan,
        seeds=tuple(range(plan.seeds[0], plan.seeds[0] + count)),
        runs=(*plan.runs, *plan.later[:more]),
        later=plan.later[more:],
    )


def looks_text(looks: Looks) -> str:
    """Return the declared rule in words."""
    counts = ", ".join(map(str, looks.at[:-1])) + f" and {looks.at[-1]}"
    decided = "every arm is separated from the base after Holm's correction, or equivalent to it"
    width = f"every difference to the base has an interval of length {looks.width} at most"
    return (
        f"looks at {counts} seeds an arm, {SPENDING_WORDS[looks.spending]} spending; the first look at which "
        f"{decided if looks.width is None else width} is the last"
    )


def levels_text(looks: Looks) -> str:
    """Return the levels of the intervals of all looks, e.g. ``99.99%, 99.1% and 95.9%``."""
    found = [f"{100 * level_at(share):.4g}%" for share in shares(looks.at, looks.spending)]
    return ", ".join(found[:-1]) + f" and {found[-1]}"


def screen_text(screen: Screen) -> str:
    """Return what a search does in words."""
    rule, tuned = screen.rule, ", ".join(f"`{row.label}`" for row in screen.candidates)
    return (
        f"search `{screen.design}` over {', '.join(rule.over)}: {rule.trials} trials x {rule.seeds} seeds for each of "
        f"{tuned} (sampler {rule.sampler}, seed {rule.seed}); then the best of each on the seeds of the study"
    )


def runs_between(plan: Plan) -> tuple[int, int]:
    """Return how many runs the plan of a study file comes to at least and at most.

    Settings of a search may coincide with others, so that it has fewer runs; each candidate has one setting at least.
    """
    least, most = len(plan.runs), len(plan.runs) + len(plan.later)
    if plan.screen is None:
        return least, most
    rule, tuned = plan.screen.rule, len(plan.screen.candidates)
    return least + rule.seeds, most + tuned * (rule.trials * rule.seeds + len(plan.seeds))


def stage_text(plan: Plan) -> str:
    """Return how far results have added runs; empty for a plan that they add nothing to."""
    if plan.screen is not None:
        done, of = len(plan.screen.trials), plan.screen.rule.trials * len(plan.screen.candidates)
        stage = "confirmation" if plan.screen.confirmed else "screen"
        return f"{stage}: {done} of {of} trials; {screen_text(plan.screen)}"
    if plan.looks is None:
        return ""
    return f"look {plan.look} of {len(plan.looks.at)}: {len(plan.seeds)} seeds; {looks_text(plan.looks)}"
