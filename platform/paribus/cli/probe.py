"""What ``paribus plan --probe`` does and prints."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paribus.study.costs import Cost
    from paribus.study.plan import Plan
    from paribus.study.probe import Probed


def probes(
    plan: Plan, recorded: Collection[str], known: Collection[str], engine: str, options: Path | None, home: Path
) -> tuple[Probed, ...]:
    """Train a few steps of each kind of run of which no cost is known.

    Args:
        plan: the study.
        recorded: fingerprints of runs that have a result.
        known: keys of the arms whose cost is known from recorded runs.
        engine: where the study will run; on other machines nothing is probed.
        options: file with the options of engines.
        home: home folder.
    """
    from paribus.engines.options import engine_settings
    from paribus.schedule.cost_probe import probe
    from paribus.study.probe import kinds_without

    if engine not in ("local", "inline"):
        raise click.UsageError(
            f"--probe trains on this machine, and the study will run on {engine}: state `budget.prior`, or run one seed"
        )
    kinds = kinds_without(plan, recorded, known)
    if not kinds:
        return ()
    settings = engine_settings(plan.runner, home, options=options)
    return probe(plan, kinds, settings, home, lambda line: click.echo(f"probe: {line}", err=True))


def probed_costs(plan: Plan, found: Sequence[Probed]) -> dict[str, Cost]:
    """Return what one run of each probed arm costs, by key of the arm."""
    from paribus.study.probe import cost_of

    return {a.key: cost_of(each.times, a.recipe, plan.evaluate) for each in found for a in each.arms}


def probe_lines(found: Sequence[Probed]) -> list[str]:
    """Return what was probed, for people; nothing if every cost was known."""
    if not found:
        return ["probe: recorded runs tell the cost of every arm, so nothing was trained"]
    lines = [
        "probed on this machine, and nothing of it recorded: a few steps of each kind of run without history; high: "
        "the slowest step, with all responses at their limit"
    ]
    for each in found:
        arms, times = each.arms, each.times
        more = f" and {len(arms) - 1} more" if len(arms) > 1 else ""
        limit = arms[0].recipe.schedule.max_new_tokens
        length = "" if times.length is None else f", responses of {times.length:.1f} tokens, at most {limit}"
        steps = f"{times.step:.3g} s a step ({min(times.steps):.3g} to {max(times.steps):.3g})"
        lines.append(
            f"  {arms[0].label}{more}: {steps}, {times.evaluation:.3g} s an evaluation, {times.start:.3g} s to begin"
            f"{length}"
        )
    return lines


def probes_as_plain(found: Sequence[Probed]) -> list[dict[str, Any]]:
    """Return what was probed as JSON values."""
    return [{"arms": [arm.key for arm in each.arms], **vars(each.times)} for each in found]
