"""``paribus archive``: take a study out of the lists, and back; nothing else changes."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paribus.cli.note import change_remarks
from paribus.cli.options import home_option, json_option, study_name
from paribus.store.remarks import Change


@click.command()
@click.argument("study")
@click.option("--undo", is_flag=True, help="List it again.")
@home_option
@json_option
def command(study: str, undo: bool, folder: Path | None, as_json: bool) -> None:
    """Leave STUDY (a name or a study file) out of lists once its runs have ended. All of it is kept.

    Reports, status and pages of it work as before. `paribus status --archived` lists what is archived.
    """
    name = study_name(study)
    found = change_remarks(name, Change(archived=not undo), folder)
    if as_json:
        click.echo(json.dumps({"study": name, "archived": found["archived"]}, indent=1))
        return
    if undo:
        click.echo(f"{name}: listed again")
    else:
        click.echo(f"{name}: archived. All of it is kept. To undo: paribus archive {name} --undo")
