"""``paribus report``: write the tables and figures of a study."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import click

from paribus.cli.console import report_width
from paribus.cli.options import FilePath, home_option, is_file, json_option, study_name
from paribus.home import home
from paribus.remote.client import Server, server_for
from paribus.store.reader import Reader
from paribus.study.load import load_study
from paribus.study.study_files import keep_report


@click.command()
@click.argument("studies", metavar="STUDY...", nargs=-1, required=True)
@click.option("--out", type=FilePath(file_okay=False), help="Folder of the files. [default: reports/<study>]")
@click.option(
    "--published",
    multiple=True,
    metavar="TABLE",
    help="Show a published table, for example dapo_table1; can be repeated. [default: `report.published` of the study]",
)
@click.option("--compare", is_flag=True, help="Compare two or more studies side by side, each with the first.")
@home_option
@json_option
def command(
    studies: tuple[str, ...],
    out: Path | None,
    published: tuple[str, ...],
    compare: bool,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Write the report of STUDY, a name or a study file, finished or not: HTML, Markdown, CSV, LaTeX and JSON."""
    if (len(studies) > 1) != compare:
        raise click.UsageError("name one STUDY, or two or more with --compare")
    study = studies[0]
    if (server := server_for(folder)) is not None:
        if compare:
            raise click.UsageError("--compare works in a home folder of this machine: name it with --home")
        fetch(server, study, out, published, as_json)
        return
    from paribus.report.write import write_comparison, write_report

    with Reader.open(folder or home()) as reader:
        if compare:
            named = [study_name(each) for each in studies]
            place = out or Path("reports") / "-vs-".join(named)
            written = write_comparison(reader, named, place, width=report_width())
        else:
            name = study_name(study)
            named = [name]
            names = published or _stated(study)
            place = out or Path("reports") / name
            written = write_report(reader, name, place, names, width=report_width())
            if trouble := keep_report(reader.home, name, place):
                written = replace(written, notes=(*written.notes, trouble))
    if as_json:
        click.echo(json.dumps({"studies": named, **written.as_plain()}, indent=1))
        return
    click.echo(written.text)
    for path in written.paths:
        click.echo(f"  {path}")
    for note in written.notes:
        click.echo(f"note: {note}", err=True)


def fetch(server: Server, study: str, out: Path | None, published: tuple[str, ...], as_json: bool) -> None:
    """Write the report that a server makes of a study."""
    from paribus.remote.bundle import unpack_report

    name = study_name(study)
    folder = out or Path("reports") / name
    about = unpack_report(server.report(name, published or _stated(study), report_width()), folder)
    if as_json:
        files = [str(folder / path) for path in about["paths"]]
        click.echo(json.dumps({"studies": [name], "files": files, "notes": list(about["notes"])}, indent=1))
        return
    click.echo(about["text"])
    for path in about["paths"]:
        click.echo(f"  {folder / path}")
    for note in about["notes"]:
        click.echo(f"note: {note}", err=True)


def _stated(study: str) -> tuple[str, ...] | None:
    """Return the published tables that a study file lists; ``None`` for a name, so that the plan's tables are used."""
    if not is_file(study):
        return None
    return load_study(Path(study)).spec.report.published
