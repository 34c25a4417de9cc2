"""``paribus retry``: requeue the runs that ended without a result."""

from __future__ import annotations

import getpass
import json
from dataclasses import asdict
from pathlib import Path

import click

from paribus.cli.options import home_option, json_option, study_name
from paribus.home import home
from paribus.remote.client import server_for
from paribus.store.models import RetryResult
from paribus.store.reader import Reader
from paribus.store.store import Store


@click.command()
@click.argument("study")
@click.argument("arm", required=False)
@click.option("--reason", default="asked for", show_default=True, help="Why; logged with your name.")
@home_option
@json_option
def command(study: str, arm: str | None, reason: str, folder: Path | None, as_json: bool) -> None:
    """Requeue the failed and cancelled runs of STUDY (a name or a study file), or only those of its ARM.

    Runs with a result keep it. If the study is paused, it continues. Earlier attempts are kept, and a run continues
    from its newest checkpoint.
    """
    if (server := server_for(folder)) is not None:
        name = study_name(study)
        again = RetryResult(**server.retry(name, arm, reason)["runs"])
        if as_json:
            click.echo(json.dumps({"study": name, "arm": arm, "runs": asdict(again)}, indent=1))
            return
        for line in lines(f"{name}, {arm}" if arm else name, again):
            click.echo(line)
        return
    place = folder or home()
    Reader.open(place).close()  # no home folder is created for a mistyped name
    with Store.open(place) as store:
        record = store.study(study_name(study))
        key = None if arm is None else record.arm_key(arm)
        done = store.retry(record.name, key, author=getpass.getuser(), reason=reason)
    if as_json:
        click.echo(json.dumps({"study": record.name, "arm": arm, "runs": asdict(done)}, indent=1))
        return
    for line in lines(f"{record.name}, {arm}" if arm else record.name, done):
        click.echo(line)


def lines(subject: str, done: RetryResult) -> list[str]:
    """Return what to print."""
    parts = [
        f"{done.queued} queued again" if done.queued else "",
        f"{done.kept} running are no longer cancelled" if done.kept else "",
        "the pause is lifted" if done.lifted else "",
    ]
    said = [f"{subject}: {', '.join(p for p in parts if p) or 'nothing has failed or been cancelled'}"]
    if done.queued or done.lifted:
        said.append("`paribus scheduler`, or `paribus run` of this study, trains them: start one.")
    return said
