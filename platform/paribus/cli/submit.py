"""``paribus submit``: submit a study for a `paribus scheduler` to train."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

from paribus.cli.console import states_text, terms_text
from paribus.home import home
from paribus.report.adaptive import grown
from paribus.scheduler.adaptive import Adaptive
from paribus.scheduler.home_lock import LockOwner, lock_owner
from paribus.store.models import Terms
from paribus.store.states import RECORDED, RunState
from paribus.store.store import Store
from paribus.study.expand import draft_file
from paribus.study.plan import Plan

WEIGHTS = (0.001, 1000.0)


def _finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not WEIGHTS[0] <= value <= WEIGHTS[1]:
        raise click.BadParameter(f"{value:g} is not allowed: {WEIGHTS[0]:g} to {WEIGHTS[1]:g}")
    return value


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--priority", type=int, help="Higher ones go first. [default: 0, or unchanged]")
@click.option(
    "--weight", type=float, callback=_finite, help="Share among studies of its priority. [default: 1, or unchanged]"
)
@click.option("--home", "folder", type=click.Path(path_type=Path), help="Default: $PARIBUS_HOME, else .paribus")
def command(study: Path, priority: int | None, weight: float | None, folder: Path | None) -> None:
    """Submit STUDY: a `paribus scheduler` trains it beside the others and writes its report.

    Submit it again to change its priority, weight, resources or budget from the next run on, even while a scheduler
    serves it. With any other edit, the new plan replaces the old one.
    """
    plan = draft_file(study).checked()
    place = (folder or home()).resolve()
    asked = Terms()
    if priority is not None:
        asked["priority"] = priority
    if weight is not None:
        asked["weight"] = weight
    with Store.open(place) as store:
        before = submitted(store, plan)
        known = store.states_of([run.fingerprint for run in plan.runs])
        record = Adaptive(grown).submit(store, plan, **asked)
        shown = states_text(store.counts(record.id)) if before else counts(plan, known)
    click.echo(f"{plan.study}: {shown}; {terms_text(record.priority, record.weight)}")
    if record.paused:
        click.echo(f"It is paused: {record.paused}\nFix it, then: paribus retry {plan.study} --home {place}")
    click.echo(next_line(lock_owner(place), plan.study, study, place))


def submitted(store: Store, plan: Plan) -> bool:
    """Return whether the newest plan of this name in the store is this plan, or one that it has grown to."""
    newest = {entry.name: entry.id for entry in store.summaries()}.get(plan.study)
    if newest is None:
        return False
    found = store.study_by_id(newest).plan
    return plan.fingerprint in (found.fingerprint, found.origin)


def counts(plan: Plan, known: Mapping[str, RunState]) -> str:
    """Return e.g. ``24 runs: 18 new, 4 shared with other studies, 2 with a result already``.

    ``known`` are the states of its runs that the store had before, by fingerprint.
    """
    done = sum(state in RECORDED for state in known.values())
    parts = {
        "new": len(plan.runs) - len(known),
        "shared with other studies": len(known) - done,
        "with a result already": done,
    }
    return f"{len(plan.runs)} runs: {', '.join(f'{n} {what}' for what, n in parts.items() if n)}"


def next_line(owner: LockOwner | None, name: str, file: Path, home: Path) -> str:
    """Return which process serves the study, and what to type next."""
    if owner is not None and owner.is_scheduler:
        return f"{owner} serves it. Watch: paribus status {name} --home {home}"
    other = f" ({owner} trains its own study there)" if owner is not None else ""
    return (
        f"No scheduler serves {home} on this machine{other}. Start one: paribus scheduler --home {home}\n"
        f"Or train this study alone: paribus run {file} --home {home}"
    )
