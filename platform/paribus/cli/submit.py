"""``paribus submit``: put a study into the store, for a `paribus scheduler` to train."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paribus.cli.console import states_text, terms_text

if TYPE_CHECKING:
    from paribus.schedule.holder import Holder
    from paribus.store.states import RunState
    from paribus.store.store import Store
    from paribus.study.plan import Plan

WEIGHTS = (0.001, 1000.0)


def _finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not WEIGHTS[0] <= value <= WEIGHTS[1]:
        raise click.BadParameter(f"{value:g} is not allowed: {WEIGHTS[0]:g} to {WEIGHTS[1]:g}")
    return value


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--priority", type=int, help="Studies of a higher one go first. [default: 0, or as it was]")
@click.option(
    "--weight", type=float, callback=_finite, help="Share among those of its priority. [default: 1, or as it was]"
)
@click.option("--home", "folder", type=click.Path(path_type=Path), help="Default: $PARIBUS_HOME, else .paribus")
def command(study: Path, priority: int | None, weight: float | None, folder: Path | None) -> None:
    """Submit STUDY: a `paribus scheduler` trains it beside the others and writes its report.

    Submitted again, it changes priority, weight, resources and budget from the next run on, also in a scheduler that
    serves it; a file that was edited otherwise takes the place of the one before.
    """
    from paribus.report.growth import grown
    from paribus.schedule.growth import submit as put
    from paribus.schedule.holder import holder_of
    from paribus.store.records import Terms
    from paribus.store.store import Store
    from paribus.study.expand import make_plan
    from paribus.study.home import home
    from paribus.study.load import load_study
    from paribus.study.runner import load_runner
    from paribus.study.search import refuse_without_optuna

    spec = load_study(study)
    plan = make_plan(spec, load_runner(spec.runner))
    refuse_without_optuna(plan)
    place = (folder or home()).resolve()
    asked = Terms()
    if priority is not None:
        asked["priority"] = priority
    if weight is not None:
        asked["weight"] = weight
    with Store.open(place) as store:
        before = submitted(store, plan)
        known = store.known([run.fingerprint for run in plan.runs])
        record = put(store, plan, grown, **asked)
        shown = states_text(store.counts(record.id)) if before else counts(plan, known)
    click.echo(f"{plan.study}: {shown}; {terms_text(record.priority, record.weight)}")
    if record.paused:
        click.echo(f"It is paused: {record.paused}\nMend it, then: paribus retry {plan.study} --home {place}")
    click.echo(next_line(holder_of(place), plan.study, study, place))


def submitted(store: Store, plan: Plan) -> bool:
    """Return whether this very plan, or what has grown from it, is the newest of its name in the store."""
    newest = {entry.name: entry.id for entry in store.entries()}.get(plan.study)
    if newest is None:
        return False
    found = store.numbered(newest).plan
    return plan.fingerprint in (found.fingerprint, found.origin)


def counts(plan: Plan, known: Mapping[str, RunState]) -> str:
    """Return e.g. ``24 runs: 18 new, 4 shared with other studies, 2 with a result already``.

    Args:
        plan: the study.
        known: the states of its runs that were there before, by fingerprint.
    """
    from paribus.store.states import RECORDED

    done = sum(state in RECORDED for state in known.values())
    parts = {
        "new": len(plan.runs) - len(known),
        "shared with other studies": len(known) - done,
        "with a result already": done,
    }
    return f"{len(plan.runs)} runs: {', '.join(f'{n} {what}' for what, n in parts.items() if n)}"


def next_line(holder: Holder | None, name: str, file: Path, home: Path) -> str:
    """Return what serves the study, and what to type next."""
    if holder is not None and holder.serves_all:
        return f"{holder} serves it. Watch: paribus status {name} --home {home}"
    other = f" ({holder} trains its own study there)" if holder is not None else ""
    return (
        f"No scheduler serves {home} on this machine{other}. Start one: paribus scheduler --home {home}\n"
        f"Or train this study alone: paribus run {file} --home {home}"
    )
