"""``paribus status``: the studies of a home folder, or the runs of one study. It only reads, at any time."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import click

from paribus.cli.console import console, states_text, table
from paribus.home import home
from paribus.monitor.progress import Follower, RunView
from paribus.scheduler.home_lock import LockOwner, lock_owner
from paribus.store.budget import UNITS
from paribus.store.models import StudyRecord, StudySummary
from paribus.store.reader import Reader
from paribus.store.states import LIVE, TERMINAL, RunState
from paribus.study.adaptive import stage_text

PAGE = 200
"""Runs on a page."""

_LAST = ("reward/mean", "reward/correct_frac")


@click.command()
@click.argument("study", required=False)
@click.option("--home", "folder", type=click.Path(path_type=Path), help="Default: $PARIBUS_HOME, else .paribus")
@click.option("--page", type=click.IntRange(min=1), default=1, help=f"Which {PAGE} runs of STUDY, in queue order.")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.lower() for state in RunState]),
    help="Only runs of STUDY in this state; repeat for more.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def command(study: str | None, folder: Path | None, page: int, states: tuple[str, ...], as_json: bool) -> None:
    """Show the studies in the store, or the runs of STUDY: state, attempt, step, last reward, health, reason."""
    with Reader.open(folder or home()) as reader:
        if study is None:
            show_studies(studies(reader), lock_owner(reader.home), as_json)
        else:
            show_runs(page_of(reader, study, page, [RunState(s.upper()) for s in states] or tuple(RunState)), as_json)


def studies(reader: Reader) -> list[dict[str, Any]]:
    """Return one entry for each study name, with the counts of its newest plan."""
    newest = {s.name: s for s in reader.summaries()}
    return [_study(reader, s) for s in newest.values()]


def _study(reader: Reader, entry: StudySummary) -> dict[str, Any]:
    counts = reader.counts(entry.id)
    running = sum(counts.get(state, 0) for state in LIVE)
    if not entry.open:
        state = "ended"
    elif entry.paused:
        state = "paused"
    elif running:
        state = "running"
    else:
        state = "queued" if reader.within_budget(entry.name) else "out of budget"
    return {
        "study": entry.name,
        "state": state,
        "priority": entry.priority,
        "weight": entry.weight,
        "runs": sum(counts.values()),
        "running": running,
        "states": {str(k): n for k, n in counts.items()},
        "paused": entry.paused,
    }


def page_of(reader: Reader, name: str, page: int = 1, states: Collection[RunState] = tuple(RunState)) -> dict[str, Any]:
    """Return a study's counts, its budgets, and one entry for each run on a page, in queue order."""
    study = reader.study(name)
    counts = reader.counts(study.id)
    found = sum(n for state, n in counts.items() if state in states)
    follower = Follower(reader, study)
    return {
        "study": name,
        "paused": study.paused,
        "stage": stage_text(study.plan),
        "budget": budgets(reader, study, counts),
        "states": {str(state): n for state, n in counts.items()},
        "page": page,
        "pages": max(1, -(-found // PAGE)),
        "runs": [_entry(follower.view_run(r)) for r in reader.runs_page(study.id, PAGE * (page - 1), PAGE, states)],
    }


def budgets(reader: Reader, study: StudyRecord, counts: Mapping[RunState, int]) -> list[dict[str, Any]]:
    """Return one entry, in hours, for each unit that a study has used or has a budget in."""
    remaining = sum(n for state, n in counts.items() if state not in TERMINAL)
    found = []
    for unit, words in UNITS.items():
        budget = reader.budget(study.name, unit)
        if budget.cap is None and budget.used + budget.reserved == 0:
            continue
        forecast = budget.forecast(remaining)
        seconds = {"cap": budget.cap, "spent": budget.spent, "in_flight": budget.live, "wasted": budget.wasted}
        seconds |= {"reserved": budget.reserved, "forecast": forecast, "expected": budget.expected(remaining)}
        hours = {part: None if s is None else s / 3600 for part, s in seconds.items()}
        found.append({"unit": words, **hours, "allows_another": budget.allows_another})
    return found


def _entry(view: RunView) -> dict[str, Any]:
    run = view.run
    return {
        "arm": run.label,
        "seed": run.seed,
        "state": str(run.state),
        "attempt": run.token,
        "step": view.step,
        "steps": view.steps,
        "health": view.status,
        "detector": view.detector,
        "reward": next((view.values[m] for m in _LAST if m in view.values), None),
        "reason": run.reason or view.trouble,
        "fingerprint": run.fingerprint,
    }


def show_studies(entries: list[dict[str, Any]], owner: LockOwner | None, as_json: bool) -> None:
    """Print the studies, why one is paused, and which process trains them."""
    if as_json:
        known = {"command": owner.command, "process": owner.identity.pid, "engine": owner.engine} if owner else None
        click.echo(json.dumps({"served_by": known, "studies": entries}, indent=1))
        return
    shown = table("study", "state", "priority", "weight", "runs", "states")
    for e in entries:
        terms = (str(e["priority"]), f"{e['weight']:g}", str(e["runs"]))
        shown.add_row(e["study"], e["state"], *terms, states_text(e["states"]))
    console().print(shown)
    for e in entries:
        if e["paused"]:
            click.echo(f"{e['study']} is paused: {e['paused']}\nFix it, then: paribus retry {e['study']}")
    on = f" on the engine {owner.engine}" if owner and owner.engine else ""
    if owner:
        click.echo(f"{owner} works here{on}")
    elif any(e["state"] in ("queued", "running") for e in entries):
        click.echo("No process of this machine trains the open studies. Start one: paribus scheduler")


def show_runs(found: dict[str, Any], as_json: bool) -> None:
    """Print a page of a study's runs, its budgets, and why it is paused."""
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    shown = table("arm", "seed", "state", "attempt", "step", "reward", "health", "reason")
    for e in found["runs"]:
        reward = "" if e["reward"] is None else f"{e['reward']:.3g}"
        state = e["state"].lower().replace("_", " ")
        health = f"{e['health']}: {e['detector']}" if e["detector"] else e["health"]
        row = (e["arm"], str(e["seed"]), state, str(e["attempt"]), f"{e['step']}/{e['steps']}", reward, health)
        shown.add_row(*row, e["reason"])
    console().print(shown)
    if found["pages"] > 1 or found["page"] > 1:
        click.echo(
            f"{states_text(found['states'])}; page {found['page']} of {found['pages']}: --page, --state show others"
        )
    if found["stage"]:
        click.echo(found["stage"])
    for spending in found["budget"]:
        click.echo(spending_line(spending))
    if found["paused"]:
        click.echo(f"paused: {found['paused']}\nFix it, then: paribus retry {found['study']}")


def spending_line(b: dict[str, Any]) -> str:
    """Return e.g. ``GPU-hours: 1.2 spent (0.1 wasted), 0.3 in flight; forecast 3.1, expected 3.5; at most 4``."""
    parts = [f"{b['spent']:.3g} spent" + (f" ({b['wasted']:.3g} wasted)" if b["wasted"] else "")]
    parts += [f"{b[part]:.3g} {part.replace('_', ' ')}" for part in ("in_flight", "reserved") if b[part]]
    later = [f"{part} {b[part]:.3g}" for part in ("forecast", "expected") if b[part] is not None]
    cap = [] if b["cap"] is None else [f"at most {b['cap']:.3g}{'' if b['allows_another'] else ', too little left'}"]
    return f"{b['unit']}: {'; '.join([', '.join(parts), *([', '.join(later)] if later else []), *cap])}"
