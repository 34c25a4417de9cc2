"""``paribus report``: write the tables and figures of a study."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from paribus.cli.console import report_width
from paribus.cli.options import home_option
from paribus.home import home
from paribus.remote.client import Server, server_for
from paribus.store.reader import Reader
from paribus.study.load import load_study
from paribus.study.study_files import keep_report_if_possible


@click.command()
@click.argument("study", required=False)
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), help="Folder of the files. [default: reports/<study>]"
)
@click.option(
    "--published",
    multiple=True,
    metavar="TABLE",
    help="Show a published table, for example dapo_table1; can be repeated. [default: `report.published` of the study]",
)
@click.option("--compare", nargs=2, metavar="STUDY_A STUDY_B", help="Compare two studies side by side.")
@home_option
def command(
    study: str | None,
    out: Path | None,
    published: tuple[str, ...],
    compare: tuple[str, str] | None,
    folder: Path | None,
) -> None:
    """Write the report of STUDY, a name or a study file, finished or not: HTML, Markdown, CSV, LaTeX and JSON."""
    if (study is None) == (compare is None):
        raise click.UsageError("name one STUDY, or two studies after --compare")
    if (server := server_for(folder)) is not None:
        if compare:
            raise click.UsageError("--compare works in a home folder of this machine: name it with --home")
        assert study is not None  # else there is a comparison
        fetch(server, study, out, published)
        return
    from paribus.report.write import write_comparison, write_report

    with Reader.open(folder or home()) as reader:
        if compare:
            a, b = map(study_name, compare)
            written = write_comparison(reader, a, b, out or Path("reports") / f"{a}-vs-{b}", width=report_width())
        else:
            assert study is not None  # else there is a comparison
            name = study_name(study)
            names = published or _stated(study)
            place = out or Path("reports") / name
            written = write_report(reader, name, place, names, width=report_width())
            unkept = keep_report_if_possible(reader.home, name, place)
            written = replace(written, notes=(*written.notes, *unkept))
    click.echo(written.text)
    for path in written.paths:
        click.echo(f"  {path}")
    for note in written.notes:
        click.echo(f"note: {note}", err=True)


def fetch(server: Server, study: str, out: Path | None, published: tuple[str, ...]) -> None:
    """Write the report that a server makes of a study."""
    from paribus.remote.bundle import unpack_report

    name = study_name(study)
    folder = out or Path("reports") / name
    about = unpack_report(server.report(name, published or _stated(study), report_width()), folder)
    click.echo(about["text"])
    for path in about["paths"]:
        click.echo(f"  {folder / path}")
    for note in about["notes"]:
        click.echo(f"note: {note}", err=True)


def study_name(study: str) -> str:
    """Return the name of a study, given its name or its file."""
    if not is_file(study):
        return study
    return load_study(Path(study)).spec.study


def is_file(study: str) -> bool:
    """Whether the argument is a study file, not a name."""
    return study.endswith((".yaml", ".yml"))


def _stated(study: str) -> tuple[str, ...] | None:
    """Return the published tables that a study file lists; ``None`` for a name, so that the plan's tables are used."""
    if not is_file(study):
        return None
    return load_study(Path(study)).spec.report.published
