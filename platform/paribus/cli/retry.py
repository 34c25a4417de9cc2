"""``paribus retry``: queue runs again that ended without a result."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paribus.cli.cancel import arm_key
from paribus.cli.report import study_name

if TYPE_CHECKING:
    from paribus.store.records import Revival


@click.command()
@click.argument("study")
@click.argument("arm", required=False)
@click.option("--reason", default="asked for", show_default=True, help="Why; kept in the log with your name.")
@click.option("--home", "folder", type=click.Path(path_type=Path), help="Default: $PARIBUS_HOME, else .paribus")
def command(study: str, arm: str | None, reason: str, folder: Path | None) -> None:
    """Queue the runs of STUDY, a name or a study file, again that failed or were cancelled, or those of its ARM alone.

    Runs with a result keep it. A pause of the study is lifted. Earlier attempts are kept, and a run goes on from its
    newest checkpoint.
    """
    from paribus.store.reader import Reader
    from paribus.store.store import Store
    from paribus.study.home import home

    place = folder or home()
    Reader.look(place).close()  # nothing is made for a name that was mistyped
    with Store.open(place) as store:
        record = store.study(study_name(study))
        key = None if arm is None else arm_key(record, arm)
        done = store.retry(record.name, key, author=getpass.getuser(), reason=reason)
    for line in lines(f"{record.name}, {arm}" if arm else record.name, done):
        click.echo(line)


def lines(subject: str, done: Revival) -> list[str]:
    """Return what to say."""
    parts = [
        f"{done.queued} queued again" if done.queued else "",
        f"{done.kept} running go on after all" if done.kept else "",
        "the pause is lifted" if done.lifted else "",
    ]
    said = [f"{subject}: {', '.join(p for p in parts if p) or 'nothing has failed or been cancelled'}"]
    if done.queued or done.lifted:
        said.append("They are trained by the `paribus scheduler`, or by the `paribus run` of this study: start one.")
    return said
