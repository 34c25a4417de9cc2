"""``paribus audit``: which steps of a published table exceed which noise."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import click

from paribus.cli.console import console, table
from paribus.cli.options import FilePath, home_option, json_option
from paribus.errors import ParibusError
from paribus.home import home
from paribus.published.audit import Audit, audit, conclusions
from paribus.published.page import html_page
from paribus.published.tables import MAX_COUNT, Published, load_published, published_names, read_table
from paribus.published.text import cells, columns, facts
from paribus.text import plural

_SUFFIXES = (".yaml", ".yml", ".csv")
_COUNT = click.IntRange(1, MAX_COUNT)


@click.command()
@click.argument("target", metavar="TABLE", required=False)
@click.option("--list", "listed", is_flag=True, help="List the tables that come with Paribus.")
@click.option("--problems", type=_COUNT, help="Problems of the evaluation, where TABLE states none.")
@click.option("--samples", type=_COUNT, help="Responses to each problem, where TABLE states none.")
@click.option("--seeds", type=_COUNT, help="Training runs behind a row, where TABLE states none.")
@click.option(
    "--seed-sd",
    "spreads",
    type=click.FloatRange(min=0, min_open=True),
    multiple=True,
    help="Assume this standard deviation between seeds, in the unit of TABLE; can be repeated.",
)
@click.option("--seed-sd-from", "study", metavar="STUDY", help="Assume the spread that a study of yours has measured.")
@click.option("--html", "page", type=FilePath(dir_okay=False), help="Write one offline HTML file.")
@home_option
@json_option
def command(
    target: str | None,
    listed: bool,
    problems: int | None,
    samples: int | None,
    seeds: int | None,
    spreads: tuple[float, ...],
    study: str | None,
    page: Path | None,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Show which steps of a published table exceed the noise of its evaluation, and which that of seeds.

    TABLE is a YAML or CSV file, or the name of a table that comes with Paribus, for example dapo_table1. It uses only
    what the table states; nothing is trained.
    """
    if listed == (target is not None):
        raise click.UsageError("name one TABLE, or use --list")
    if target is None:
        return _list()
    found = _read(target)
    stated = {"problems": problems, "samples": samples, "seeds": seeds}
    found = found.model_copy(update={k: v for k, v in stated.items() if v is not None and getattr(found, k) is None})
    if study is not None:
        spreads = (*spreads, _measured(study, folder or home()) * found.top)
    if not all(math.isfinite(sd) for sd in spreads):
        raise click.BadParameter("expects finite numbers", param_hint="--seed-sd")
    result = audit(found, tuple(dict.fromkeys(spreads)))
    if as_json:
        click.echo(json.dumps(_plain(result), indent=1))
    else:
        show(result)
    if page is not None:
        _write(page, html_page(result))
        click.echo(f"page: {page}", err=as_json)
    return None


def _read(target: str) -> Published:
    """Return the table in a file, or the one of this name."""
    if target.lower().endswith(_SUFFIXES):
        return read_table(Path(target))
    if "/" in target or (target and Path(target).exists()):
        raise ParibusError(f"{target}: neither a {', '.join(_SUFFIXES)} file nor the name of a table; see --list")
    return load_published(target)


def _list() -> None:
    shown = table("name", "source", "measure", "rows")
    for name in published_names():
        found = load_published(name)
        shown.add_row(name, found.source, found.measure, str(len(found.rows)))
    console().print(shown)


def _measured(study: str, folder: Path) -> float:
    """Return the standard deviation between the seeds of a study's arms, pooled over arms, as a fraction.

    Raises:
        ParibusError: there is no such study, its score is no fraction, or no arm has two seeds whose scores differ.
    """
    from paribus.cli.options import study_name
    from paribus.report.analysis.analysis import Analysis
    from paribus.report.collect import read_study
    from paribus.store.reader import Reader

    with Reader.open(folder) as reader:
        found = Analysis(read_study(reader, study_name(study)))
        if found.score.unit != "fraction":
            raise ParibusError(
                f"the score of the study `{study}` is `{found.plan.evaluate.primary_metric}`, which is no fraction, so "
                "its spread says nothing about a table of scores: name another study, or use --seed-sd"
            )
        arms = [[*found.values(arm.key, found.score).values()] for arm in found.plan.arms]
    arms = [values for values in arms if len(values) > 1]
    unequal = [values for values in arms if min(values) < max(values)]
    squares, free = 0.0, sum(len(values) - 1 for values in arms)
    for values in unequal:
        mean = sum(values) / len(values)
        squares += math.fsum((v - mean) ** 2 for v in values)
    if not squares:
        raise ParibusError(
            f"the study `{study}` has measured no spread between seeds: it needs an arm with two finished seeds that "
            "differ; use --seed-sd"
        )
    if len(unequal) < len(arms):
        equal = len(arms) - len(unequal)
        click.echo(
            f"note: in {equal} of {plural(len(arms), 'arm')} of `{study}` all seeds have the same score; they "
            "count with a "
            "spread of 0",
            err=True,
        )
    return math.sqrt(squares / free)


def show(result: Audit) -> None:
    """Print the audit: what the table states, its steps, what a reader may conclude."""
    out = console()
    for line in facts(result.table):
        out.print(line)
    shown = table(*columns(result))
    for step in result.steps:
        shown.add_row(*cells(result, step))
    out.print(shown)
    for line in conclusions(result):
        out.print(f"- {line}")


def _plain(result: Audit) -> dict[str, object]:
    table = result.table.model_dump(mode="json")
    steps = [{**asdict(step), "reach": step.reach} for step in result.steps]
    return {"table": table, "assumed": result.assumed, "steps": steps, "conclusions": conclusions(result)}


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ParibusError(f"{path} cannot be written: {error.strerror or error}; name another file") from error
