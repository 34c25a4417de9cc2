"""``paribus submit``: submit a study for a `paribus scheduler` to train."""

from __future__ import annotations

import json
import shlex
from dataclasses import asdict
from pathlib import Path

import click

from paribus.cli.console import states_text, terms_text
from paribus.cli.options import home_option, json_option, set_option, study_argument
from paribus.home import at_home, home
from paribus.remote.bundle import pack_study
from paribus.remote.client import server_for
from paribus.remote.submission import Submission, submit_file
from paribus.scheduler.home_lock import LockOwner, lock_owner
from paribus.store.models import Terms
from paribus.text import plural

WEIGHTS = (0.001, 1000.0)


def _finite(context: click.Context, parameter: click.Parameter, value: float | None) -> float | None:
    if value is not None and not WEIGHTS[0] <= value <= WEIGHTS[1]:
        raise click.BadParameter(f"{value:g} is not allowed: {WEIGHTS[0]:g} to {WEIGHTS[1]:g}")
    return value


@click.command()
@study_argument
@click.option("--priority", type=int, help="Higher ones go first. [default: 0, or unchanged]")
@click.option(
    "--weight", type=float, callback=_finite, help="Share among studies of its priority. [default: 1, or unchanged]"
)
@home_option
@set_option
@json_option
def command(
    study: Path,
    priority: int | None,
    weight: float | None,
    folder: Path | None,
    changes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Submit STUDY: a `paribus scheduler` trains it beside the others and writes its report.

    Submit it again to change its priority, weight, resources or budget from the next run on, even while a scheduler
    serves it. With any other edit, the new plan replaces the old one. With $PARIBUS_SERVER set, the study and its
    reward functions are sent there.
    """
    asked = Terms()
    if priority is not None:
        asked["priority"] = priority
    if weight is not None:
        asked["weight"] = weight
    if (server := server_for(folder)) is not None:
        done = Submission(**server.submit(pack_study(study, changes), asked, str(study)))
        if as_json:
            click.echo(json.dumps({**asdict(done), "server": server.address}, indent=1))
            return
        show(done, "")
        click.echo(f"It is on {server.address}. Watch: paribus status {done.study}")
        return
    place = (folder or home()).resolve()
    done = submit_file(study, place, asked, changes)
    if as_json:
        click.echo(json.dumps({**asdict(done), "server": None}, indent=1))
        return
    show(done, at_home(place))
    click.echo(next_line(lock_owner(place), done.study, study, place))


def show(done: Submission, option: str) -> None:
    """Print what a submission has done; ``option`` is what other commands need to find its home folder."""
    parts = {name: n for name, n in done.runs.items() if n}
    counted = states_text(parts) if done.again else ", ".join(f"{n} {what}" for what, n in parts.items())
    runs = counted if done.again else f"{plural(sum(parts.values()), 'run')}: {counted}"
    click.echo(f"{done.study}: {runs}; {terms_text(done.priority, done.weight)}")
    if done.paused:
        click.echo(f"It is paused: {done.paused}\nFix it, then: paribus retry {done.study}{option}")


def next_line(owner: LockOwner | None, name: str, file: Path, home: Path) -> str:
    """Return which process serves the study, and what to type next."""
    if owner is not None and owner.is_scheduler:
        return f"{owner} serves it. Watch: paribus status {name}{at_home(home)}"
    other = f" ({owner} trains its own study there)" if owner is not None else ""
    return (
        f"No scheduler serves {home} on this machine{other}. Start one: paribus scheduler{at_home(home)}\n"
        f"Or train this study alone: paribus run {shlex.quote(str(file))}{at_home(home)}"
    )
