"""``paribus cancel``: cancel a study, or one of its arms, at any time."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from paribus.cli.options import home_option, json_option, study_name
from paribus.home import home
from paribus.remote.client import server_for
from paribus.scheduler.home_lock import serving as serving_process
from paribus.store.models import CancelResult
from paribus.store.reader import Reader
from paribus.store.store import Store


@click.command()
@click.argument("study")
@click.argument("arm", required=False)
@home_option
@json_option
def command(study: str, arm: str | None, folder: Path | None, as_json: bool) -> None:
    """Cancel the runs of STUDY (a name or a study file), or only those of its ARM as `paribus status STUDY` lists it.

    Queued runs are cancelled at once. Running ones write a checkpoint and stop; a run that finishes first keeps its
    result. A run that another study needs, too, goes on for that study.
    """
    if (server := server_for(folder)) is not None:
        name = study_name(study)
        found = server.cancel(name, arm)
        if as_json:
            click.echo(json.dumps({"study": name, "arm": arm, "runs": found["runs"]}, indent=1))
            return
        for line in lines(name, arm, CancelResult(**found["runs"]), found["serving"], found["trouble"]):
            click.echo(line)
        return
    place = folder or home()
    Reader.open(place).close()  # no home folder is created for a mistyped name
    with Store.open(place) as store:
        record = store.study(study_name(study))
        done = store.cancel(record.name, None if arm is None else record.arm_key(arm))
    if as_json:
        click.echo(json.dumps({"study": record.name, "arm": arm, "runs": asdict(done)}, indent=1))
        return
    owner = serving_process(place.resolve())
    for line in lines(record.name, arm, done, owner is not None, "" if owner is None else owner.trouble):
        click.echo(line)


def lines(study: str, arm: str | None, done: CancelResult, serving: bool, trouble: str) -> list[str]:
    """Return what to print.

    Args:
        study: name of the study.
        arm: the arm that was named.
        done: what the cancellation has changed in the store.
        serving: whether a process starts runs in the home folder.
        trouble: why its engine can't reach its cluster now; empty if it can.
    """
    parts = [
        f"{done.queued} queued cancelled" if done.queued else "",
        f"{done.running} running asked to stop" if done.running else "",
        f"{done.shared} left to other studies that need them" if done.shared else "",
        f"{done.ended} had ended before" if done.ended else "",
    ]
    subject = f"{study}, {arm}" if arm else study
    said = [f"{subject}: {', '.join(p for p in parts if p) or 'it has no runs'}"]
    if done.running and not serving:
        said.append("They stop, with a checkpoint, when the next `paribus run` or `paribus scheduler` starts here.")
    elif done.running:
        said.append("Running ones stop after their next heartbeat, within about ten seconds, with a checkpoint.")
    if done.running and serving and trouble:
        waits = "The cancellation is recorded; jobs that wait there are cancelled once it answers."
        said.append(f"{trouble} {waits}")
    if done.queued or done.running or done.shared:
        said.append(f"To undo: paribus retry {study}{f' {arm!r}' if arm else ''}")
    return said
