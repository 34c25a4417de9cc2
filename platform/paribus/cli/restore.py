"""``paribus restore``: bring a study back from the file that ``paribus export`` wrote."""

from __future__ import annotations

import json
from pathlib import Path

import click

from paribus.archive.restore import Restored, restore_study
from paribus.cli.options import home_option, json_option
from paribus.home import at_home, home
from paribus.text import plural


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@home_option
@json_option
def command(file: Path, folder: Path | None, as_json: bool) -> None:
    """Restore the study in FILE, all of it or nothing, into the home folder and the database that it uses.

    Every file is checked against its SHA-256 first. Nothing that is here is overwritten: where something of the same
    name differs, nothing is restored. A study that is here already, with equal content, is left as it is.
    """
    done = restore_study(folder or home(), file)
    if as_json:
        counts = {"runs": len(done.rows.runs), "results": len(done.rows.results), "folders": done.folders}
        about = {"study": done.rows.name, "known": done.known, **counts, "paused": done.paused}
        click.echo(json.dumps(about, indent=1))
        return
    for line in lines(done, at_home(folder)):
        click.echo(line)


def lines(done: Restored, place: str) -> list[str]:
    """Return what was restored, and what to do next; ``place`` is the option that the next commands need."""
    name, rows = done.rows.name, done.rows
    if done.known:
        filled = "folder without its trained model or responses", "folders without their trained models or responses"
        back = [plural(done.folders, "run folder")] if done.folders else []
        back += [plural(done.refilled, *(f"run {what}" for what in filled))] if done.refilled else []
        more = ", ".join(back)
        more = f"restored what was missing here: {more}" if more else "nothing to do"
        return [f"`{name}` is in this store already, with equal content: {more}"]
    found = [
        f"restored `{name}`: {plural(len(rows.runs), 'run')}, {len(rows.results)} with a result, "
        f"{rows.unfinished} queued; {plural(done.folders, 'run folder')}"
    ]
    if done.paused:
        found.append(
            "It is paused, because its recipes and reward functions came with the file. To go on: paribus retry "
            f"{name}{place}"
        )
    return [*found, f"next: paribus report {name}{place}"]
