"""``paribus cancel``: cancel a study, or one of its arms, at any time."""

from __future__ import annotations

from pathlib import Path

import click

from paribus.cli.report import study_name
from paribus.errors import StoreError, did_you_mean
from paribus.home import home
from paribus.scheduler.home_lock import LockOwner, lock_owner
from paribus.store.models import CancelResult, StudyRecord
from paribus.store.reader import Reader
from paribus.store.store import Store


@click.command()
@click.argument("study")
@click.argument("arm", required=False)
@click.option("--home", "folder", type=click.Path(path_type=Path), help="Default: $PARIBUS_HOME, else .paribus")
def command(study: str, arm: str | None, folder: Path | None) -> None:
    """Cancel the runs of STUDY (a name or a study file), or only those of its ARM as `paribus status STUDY` lists it.

    Queued runs are cancelled at once. Running ones write a checkpoint and stop; a run that finishes first keeps its
    result. A run that another study needs, too, goes on for that study.
    """
    place = folder or home()
    Reader.open(place).close()  # no home folder is created for a mistyped name
    with Store.open(place) as store:
        record = store.study(study_name(study))
        done = store.cancel(record.name, None if arm is None else arm_key(record, arm))
    for line in lines(record.name, arm, done, lock_owner(place.resolve())):
        click.echo(line)


def arm_key(study: StudyRecord, named: str) -> str:
    """Return the key of an arm, given by label or key.

    Raises:
        StoreError: the study has no such arm; the message lists its arms.
    """
    keys = {arm.label: arm.key for arm in study.plan.arms} | {arm.key: arm.key for arm in study.plan.arms}
    if named not in keys:
        labels = [arm.label for arm in study.plan.arms]
        near = did_you_mean(named, labels)
        raise StoreError(f"the study `{study.name}` has no arm `{named}`.{near} Arms: {', '.join(labels)}.")
    return keys[named]


def lines(study: str, arm: str | None, done: CancelResult, owner: LockOwner | None) -> list[str]:
    """Return what to print.

    Args:
        study: name of the study.
        arm: the arm that was named.
        done: what the cancellation has changed in the store.
        owner: the process of this machine that starts runs in the home folder.
    """
    parts = [
        f"{done.queued} queued cancelled" if done.queued else "",
        f"{done.running} running asked to stop" if done.running else "",
        f"{done.shared} left to other studies that need them" if done.shared else "",
        f"{done.ended} had ended before" if done.ended else "",
    ]
    subject = f"{study}, {arm}" if arm else study
    said = [f"{subject}: {', '.join(p for p in parts if p) or 'it has no runs'}"]
    if done.running and owner is None:
        said.append("They stop, with a checkpoint, when the next `paribus run` or `paribus scheduler` starts here.")
    elif done.running:
        said.append("Running ones stop after their next heartbeat, within about ten seconds, with a checkpoint.")
    if done.running and owner is not None and owner.trouble:
        waits = "The cancellation is recorded; jobs that wait there are cancelled once it answers."
        said.append(f"{owner.trouble} {waits}")
    if done.queued or done.running or done.shared:
        said.append(f"To undo: paribus retry {study}{f' {arm!r}' if arm else ''}")
    return said
