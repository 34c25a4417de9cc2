"""``paribus export``: write a study into one file."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from paribus.archive.export import export_study
from paribus.cli.options import FilePath, home_option, json_option, study_name
from paribus.errors import ParibusError
from paribus.home import home
from paribus.store.reader import Reader
from paribus.text import plural, size_text


@click.command()
@click.argument("study")
@click.option("--to", "target", type=FilePath(dir_okay=False), help="File. [default: <study>.tar]")
@click.option("--no-checkpoints", is_flag=True, help="Leave out checkpoints and trained models.")
@home_option
@json_option
def command(study: str, target: Path | None, no_checkpoints: bool, folder: Path | None, as_json: bool) -> None:
    """Write STUDY (a name or a study file) into one tar file, which `paribus restore` reads on any machine.

    It holds the study's rows of the store, the folders of its runs, and its report. A study may run meanwhile: its
    live runs are written as queued.
    """
    with Reader.open(folder or home()) as reader:
        name = study_name(study)
        place = target or Path(f"{name}.tar")
        done = export_study(reader, name, place, partial(_write_report, reader, name), checkpoints=not no_checkpoints)
    if as_json:
        counts = {"runs": len(done.rows.runs), "results": len(done.rows.results), "files": done.files}
        about = {"study": name, "file": str(done.path), **counts, "bytes": done.size, "notes": list(done.notes)}
        click.echo(json.dumps(about, indent=1))
        return
    runs = f"{plural(len(done.rows.runs), 'run')}, {len(done.rows.results)} with a result"
    click.echo(f"wrote {done.path}: {runs}, {plural(done.files, 'file')}, {size_text(done.size)}")
    for note in done.notes:
        click.echo(f"note: {note}", err=True)


def _write_report(reader: Reader, study: str, out: Path) -> list[str]:
    """Write the report; return why there is none, if it cannot be built."""
    from paribus.report.write import write_report

    try:
        return list(write_report(reader, study, out).notes)
    except ParibusError as error:
        return [f"the archive has no report: {error}"]
