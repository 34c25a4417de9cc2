"""``paribus delete``: delete a study and the runs that no other study has."""

from __future__ import annotations

import getpass
import json
import sys
from pathlib import Path

import click

from paribus.cli.options import home_option, json_option, study_name
from paribus.errors import ServerError
from paribus.home import home
from paribus.remote.client import server_for
from paribus.retention.deletion import delete, look
from paribus.scheduler.home_lock import lock_home
from paribus.store.reader import Reader
from paribus.store.store import Store
from paribus.text import size_text


@click.command()
@click.argument("study")
@click.option("--yes", is_flag=True, help="Delete it without asking.")
@home_option
@json_option
def command(study: str, yes: bool, folder: Path | None, as_json: bool) -> None:
    """Delete STUDY (a name or a study file): all its plans, and the runs and run folders that no other study has.

    Its runs must have ended, and no scheduler may work in the home folder meanwhile. It shows what goes and what stays,
    then it asks. There is no undo: `paribus archive` hides a study, `paribus export` keeps a copy.
    """
    name = study_name(study)
    if server_for(folder) is not None:
        raise ServerError(
            "studies are deleted on the machine of the server, with --home and the home folder. "
            f"`paribus archive {name}` works from here."
        )
    place = folder or home()
    with Reader.open(place) as reader:
        doomed = look(reader, name)
    if not as_json:
        for line in doomed.lines():
            click.echo(line)
    if not (yes or as_json):
        if not sys.stdin.isatty():
            click.echo("Nothing was deleted: add --yes.", err=True)
            sys.exit(1)
        click.confirm("Delete it?", abort=True)
    freed = 0
    if yes or not as_json:
        with lock_home(place, "paribus delete"), Store.open(place) as store:
            freed = delete(store, doomed, getpass.getuser())
    if as_json:
        click.echo(json.dumps({**doomed.to_json(), "deleted": yes, "freed_bytes": freed}, indent=1))
        return
    click.echo(f"deleted {name}, freed {size_text(freed)}")
