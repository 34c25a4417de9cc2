"""``paribus status``: the studies of a home folder, or the runs of one; it only reads, also while a study is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from paribus.schedule.progress import RunView
    from paribus.store.reader import Reader

_LAST = ("reward/mean", "reward/correct_frac")


@click.command()
@click.argument("study", required=False)
@click.option("--home", "folder", type=click.Path(path_type=Path), help="Default: $PARIBUS_HOME, else .paribus")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def command(study: str | None, folder: Path | None, as_json: bool) -> None:
    """Show the studies in the store, or the runs of STUDY: state, attempt, step, last reward, why one failed."""
    from paribus.store.reader import Reader
    from paribus.study.home import home

    with Reader.look(folder or home()) as reader:
        if study is None:
            show_studies(studies(reader), as_json)
        else:
            entries = runs(reader, study)
            show_runs(study, entries, reader.study(study).paused, budgets(reader, study, entries), as_json)


def studies(reader: Reader) -> list[dict[str, Any]]:
    """Return one entry a study name, with the counts of its newest plan."""
    newest = {s.name: s for s in reader.studies()}
    return [
        {
            "study": s.name,
            "runs": len(s.plan.runs),
            "states": {str(k): n for k, n in reader.counts(s.id).items()},
            "paused": s.paused,
        }
        for s in newest.values()
    ]


def runs(reader: Reader, name: str) -> list[dict[str, Any]]:
    """Return one entry a run of a study, in queue order."""
    from paribus.schedule.progress import Follower

    study = reader.study(name)
    follower = Follower(reader, study)
    return [_entry(follower.view_run(run)) for run in reader.runs_of(study.id)]


def budgets(reader: Reader, name: str, entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one entry for each unit that a study has used or may use at most so much of, in hours."""
    from paribus.store.budget import UNITS
    from paribus.store.states import TERMINAL

    remaining = sum(e["state"] not in TERMINAL for e in entries)
    found = []
    for unit, words in UNITS.items():
        budget = reader.budget(name, unit)
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
        "health": view.lamp,
        "reward": next((view.values[m] for m in _LAST if m in view.values), None),
        "reason": run.reason,
        "fingerprint": run.fingerprint,
    }


def show_studies(entries: list[dict[str, Any]], as_json: bool) -> None:
    """Print the studies."""
    if as_json:
        click.echo(json.dumps({"studies": entries}, indent=1))
        return
    from paribus.cli.console import console, table

    shown = table("study", "runs", "states")
    for entry in entries:
        states = ", ".join(f"{n} {state.lower().replace('_', ' ')}" for state, n in entry["states"].items())
        shown.add_row(entry["study"], str(entry["runs"]), f"{states} (paused)" if entry["paused"] else states)
    console().print(shown)


def show_runs(
    name: str, entries: list[dict[str, Any]], paused: str, spendings: list[dict[str, Any]], as_json: bool
) -> None:
    """Print the runs of a study, what they cost, and why it is paused."""
    if as_json:
        click.echo(json.dumps({"study": name, "paused": paused, "budget": spendings, "runs": entries}, indent=1))
        return
    from paribus.cli.console import console, table

    shown = table("arm", "seed", "state", "attempt", "step", "reward", "health", "reason")
    for e in entries:
        reward = "" if e["reward"] is None else f"{e['reward']:.3g}"
        state = e["state"].lower().replace("_", " ")
        row = (e["arm"], str(e["seed"]), state, str(e["attempt"]), f"{e['step']}/{e['steps']}", reward, e["health"])
        shown.add_row(*row, e["reason"])
    console().print(shown)
    for spending in spendings:
        click.echo(spending_line(spending))
    if paused:
        click.echo(f"paused: {paused}\nMend it, then: paribus retry {name}")


def spending_line(b: dict[str, Any]) -> str:
    """Return e.g. ``GPU-hours: 1.2 spent (0.1 wasted), 0.3 in flight; forecast 3.1, expected 3.5; at most 4``."""
    parts = [f"{b['spent']:.3g} spent" + (f" ({b['wasted']:.3g} wasted)" if b["wasted"] else "")]
    parts += [f"{b[part]:.3g} {part.replace('_', ' ')}" for part in ("in_flight", "reserved") if b[part]]
    later = [f"{part} {b[part]:.3g}" for part in ("forecast", "expected") if b[part] is not None]
    cap = [] if b["cap"] is None else [f"at most {b['cap']:.3g}{'' if b['allows_another'] else ', too little left'}"]
    return f"{b['unit']}: {'; '.join([', '.join(parts), *([', '.join(later)] if later else []), *cap])}"
