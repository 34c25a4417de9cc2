"""``paribus plan --probe``: measures what runs cost with pilot runs, and prints the result."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paribus.study.costs import Cost
    from paribus.study.pilot import Pilot
    from paribus.study.plan import Plan


def run_pilots(
    plan: Plan, recorded: Collection[str], known: Collection[str], engine: str, options: Path | None, home: Path
) -> tuple[Pilot, ...]:
    """Train a few steps of each kind of run whose cost is unknown.

    Args:
        plan: the study.
        recorded: fingerprints of runs that have a result.
        known: keys of the arms whose cost is known from recorded runs.
        engine: engine of the study; pilot runs need one that trains on this machine.
        options: file with the options of engines.
        home: home folder.
    """
    from paribus.engines.options import engine_settings
    from paribus.scheduler.pilot import run_pilots
    from paribus.study.pilot import kinds_without

    if engine not in ("local", "inline"):
        raise click.UsageError(
            f"--probe trains on this machine, and the study will run on {engine}: state `budget.prior`, or run one seed"
        )
    kinds = kinds_without(plan, recorded, known)
    if not kinds:
        return ()
    settings = engine_settings(plan.runner, home, options=options)
    return run_pilots(plan, kinds, settings, home, lambda line: click.echo(f"probe: {line}", err=True))


def pilot_costs(plan: Plan, found: Sequence[Pilot]) -> dict[str, Cost]:
    """Return the cost of one run of each arm with a pilot run, by key of the arm."""
    from paribus.study.pilot import cost_of

    return {a.key: cost_of(each.times, a.recipe, plan.evaluate) for each in found for a in each.arms}


def pilot_lines(found: Sequence[Pilot]) -> list[str]:
    """Return the results as lines of text."""
    if not found:
        return ["probe: recorded runs show the cost of every arm, so nothing was trained"]
    lines = [
        "pilot runs on this machine, a few steps of each kind of run without history; nothing of them is recorded. "
        "High: the slowest step, with all responses at their limit"
    ]
    for each in found:
        arms, times = each.arms, each.times
        more = f" and {len(arms) - 1} more" if len(arms) > 1 else ""
        limit = arms[0].recipe.schedule.max_new_tokens
        length = "" if times.length is None else f", responses of {times.length:.1f} tokens, at most {limit}"
        steps = f"{times.step:.3g} s a step ({min(times.steps):.3g} to {max(times.steps):.3g})"
        lines.append(
            f"  {arms[0].label}{more}: {steps}, {times.evaluation:.3g} s an evaluation, {times.start:.3g} s to start"
            f"{length}"
        )
    return lines


def pilots_as_plain(found: Sequence[Pilot]) -> list[dict[str, Any]]:
    """Return the results as JSON values."""
    return [{"arms": [arm.key for arm in each.arms], **vars(each.times)} for each in found]
