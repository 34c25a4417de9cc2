"""``paribus import``: makes finished runs of other trainers runs of a study."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import click

from paribus.cli.console import console, table
from paribus.cli.health import check_trainer, tracking_uri_of
from paribus.cli.options import FilePath, home_option, json_option
from paribus.external.importing import Imported, ReadLog, import_logs, read_logs
from paribus.external.names import EXAMPLE, NamedLog, by_pattern, by_table, checked_study
from paribus.external.plan import Terms
from paribus.health.import_logs import MLFLOW, logged_name, mlflow_runs
from paribus.health.wandb_history import run_name
from paribus.home import at_home, home
from paribus.text import plural

_NOTES = 6
"""How many notes are printed; each log can have some."""


@click.command(name="import")
@click.argument("logs", nargs=-1, metavar="[LOG]...")
@click.option("--study", required=True, metavar="NAME", help="The study; a new one, or one of imported runs.")
@click.option(
    "--name", "pattern", metavar="PATTERN", help=f"Where arm and seed stand in the paths, such as '{EXAMPLE}'."
)
@click.option("--table", "file", type=FilePath(), metavar="CSV", help="Columns path, arm, seed; in place of LOG.")
@click.option(
    "--base", metavar="ARM", help="The arm that the others are compared with. [default: that of the first log]"
)
@click.option("--primary", metavar="METRIC", help="The metric of the tables. [default: held-out accuracy, else reward]")
@click.option(
    "--paired/--unpaired",
    default=None,
    help="Whether equal seeds of two arms had the same prompts in the same order. [default: unpaired]",
)
@click.option("--question", metavar="TEXT", help="What the study asks, for its report.")
@click.option("--trainer", help="The trainer that wrote the logs. [default: guessed from the metric names]")
@click.option("--replace", is_flag=True, help="A log that has changed takes the place of its earlier record.")
@home_option
@json_option
def command(
    logs: tuple[str, ...],
    study: str,
    pattern: str | None,
    file: Path | None,
    base: str | None,
    primary: str | None,
    paired: bool | None,
    question: str | None,
    trainer: str | None,
    replace: bool,
    folder: Path | None,
    as_json: bool,
) -> None:
    """Make finished runs of other trainers runs of a study: tables, health, dashboard.

    LOG is what `paribus health` reads: TRL's output folder, JSON lines, a console log, a CSV, a folder of TensorBoard,
    MLflow or W&B, mlflow:RUN_ID, or mlflow:EXPERIMENT for all its runs. Of runs of MLflow and W&B the pattern reads
    the names, too.
    """
    check_trainer(trainer)
    name = checked_study(study)
    place = folder or home()
    read = read_logs(_named(logs, pattern, file, place), partial(tracking_uri_of, place), trainer)
    terms = Terms(base=base, primary=primary, paired=paired, question=question)
    done = import_logs(place, name, read, terms, replace_changed=replace)
    if as_json:
        click.echo(json.dumps(_as_plain(done), indent=1))
        return
    _show(done, read, at_home(folder))


def _named(logs: tuple[str, ...], pattern: str | None, file: Path | None, place: Path) -> tuple[NamedLog, ...]:
    """Return the logs with their arms and seeds."""
    if file is not None:
        if logs or pattern:
            raise click.UsageError("--table names the logs with arms and seeds: leave LOG and --name out")
        return by_table(file)
    if not logs:
        raise click.UsageError("name a LOG, or a --table of them")
    if pattern is None:
        raise click.UsageError(f"say where arm and seed stand in the paths: --name '{EXAMPLE}', or a --table")
    targets: list[tuple[str, str]] = []
    for log in logs:
        runs = mlflow_runs(log.removeprefix(MLFLOW), tracking_uri_of(place)) if log.startswith(MLFLOW) else None
        shown = "/".join(filter(None, (log.rstrip("/"), run_name(Path(log)))))
        targets += [(log, shown)] if runs is None else [(f"{MLFLOW}{run}", named) for run, named in runs]
    return by_pattern(targets, pattern)


def _as_plain(done: Imported) -> dict[str, object]:
    return {
        "study": done.plan.study,
        "base": done.plan.arm(done.plan.base).label,
        "primary": done.plan.evaluate.primary_metric,
        "added": [_line(each) for each in done.added],
        "known": done.known,
        "replaced": done.replaced,
        "notes": list(done.notes),
    }


def _line(each: ReadLog) -> dict[str, object]:
    mapped = each.log.mapped
    return {
        "log": each.named.target,
        "arm": each.named.arm,
        "seed": each.named.seed,
        "trainer": mapped.trainer,
        "steps": each.last,
        "metrics": sorted(each.metrics),
        "proxies": list(mapped.proxies),
        "fingerprint": each.fingerprint,
    }


def _show(done: Imported, read: tuple[ReadLog, ...], option: str) -> None:
    plan = done.plan
    if done.added:
        shown = table("log", "arm", "seed", "trainer", "steps", "metrics", "proxies")
        for each in done.added:
            mapped = each.log.mapped
            cells = (each.named.arm, str(each.named.seed), mapped.trainer, str(each.last))
            shown.add_row(each.named.shown, *cells, str(len(each.metrics)), str(len(mapped.proxies)))
        console().print(shown)
    parts = [f"{len(done.added)} imported"]
    parts += [f"{done.known} were there already"] if done.known else []
    parts += [f"{done.replaced} in place of earlier records"] if done.replaced else []
    click.echo(f"{plan.study}: {', '.join(parts)}; {plural(len(plan.runs), 'run')} in {len(plan.arms)} arms now")
    metric = plan.evaluate.primary_metric
    names = sorted(
        {f"`{logged_name(name)}`" for each in read for name, (m, _) in each.log.mapped.keys.items() if m == metric}
    )
    click.echo(f"Score: {metric}, the trainer's own {', '.join(names)}; it is not an evaluation by Paribus")
    for note in done.notes[:_NOTES]:
        click.echo(f"note: {note}")
    if len(done.notes) > _NOTES:
        click.echo(f"note: {plural(len(done.notes) - _NOTES, 'more note')}: --json lists them")
    click.echo(f"Next: paribus report {plan.study}{option}")
