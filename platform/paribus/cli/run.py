"""``paribus run``: train a study, or go on with it, and write its report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from paribus.cli.console import duration, states_text

if TYPE_CHECKING:
    from paribus.schedule.session import Summary

INTERRUPTED = 130


@click.command()
@click.argument("study", type=click.Path(path_type=Path))
@click.option("--engine", default="local", show_default=True, help="What starts the runs: local, slurm, ray or inline.")
@click.option("--slots", type=click.IntRange(min=1), help="Runs at a time. [default: as many as GPUs and cores allow]")
@click.option(
    "--engine-options", "options", type=click.Path(path_type=Path), help="Default: engines.yaml in the home folder."
)
@click.option("--home", "folder", type=click.Path(path_type=Path), help="Default: $PARIBUS_HOME, else .paribus")
@click.option("--report/--no-report", default=True, show_default=True, help="Write the report at the end.")
def command(
    study: Path, engine: str, slots: int | None, options: Path | None, folder: Path | None, report: bool
) -> None:
    """Train STUDY and write its report. Typed again, it goes on where it was; a finished study is not trained again.

    Where a `paribus scheduler` serves the home folder it trains the study, and this command only follows.
    """
    from paribus.study.expand import make_plan
    from paribus.study.home import home
    from paribus.study.load import load_study
    from paribus.study.runner import load_runner
    from paribus.study.search import refuse_without_optuna

    spec = load_study(study)
    plan = make_plan(spec, load_runner(spec.runner))
    refuse_without_optuna(plan)

    from paribus.cli.live import display_for
    from paribus.report.growth import grown
    from paribus.schedule.session import Settings, run_study

    settings = Settings(home=folder or home(), engine=engine, slots=slots, options=options)
    with display_for(sys.stdout, plan) as display:
        summary = run_study(plan, settings, display, grown)
    for line in closing_lines(summary, settings.home):
        click.echo(line)
    if report and summary.ending not in ("interrupted", "left"):
        write_report(settings.home, plan.study)
    sys.exit(exit_status(summary))


def write_report(folder: Path, study: str) -> None:
    """Write the report of a study and print its table and the paths of its files."""
    from paribus.report.write import write_report as write
    from paribus.store.reader import Reader

    with Reader.look(folder) as reader:
        written = write(reader, study, Path("reports") / study)
    click.echo(written.text)
    for line in (*written.notes, *map(str, written.paths)):
        click.echo(line)


def closing_lines(summary: Summary, folder: Path) -> list[str]:
    """Return what to say when the session has ended."""
    counts = states_text(summary.counts)
    lines = []
    match summary.ending:
        case "interrupted":
            lines.append("Stopped. Type the same command to go on.")
        case "left":
            lines.append(
                f"The scheduler goes on with it. Look: paribus status {summary.study.name} --home {folder}; type the "
                f"same command to follow it again, or end it: paribus cancel {summary.study.name} --home {folder}"
            )
        case "budget":
            lines.append(
                f"Stopped: the budget does not allow another run (paribus status {summary.study.name} shows it). "
                "Raise it in the study file, and type the same command to go on."
            )
        case "paused":
            lines.append(f"Paused: {summary.paused}")
            retry = f"paribus retry {summary.study.name} --home {folder}"
            lines.append(f"Mend it, then `{retry}`, and type the same command to go on.")
        case _ if not summary.trained:
            lines.append("Every run of this study has come to its end before: nothing to train.")
    lines.append(f"{summary.study.name}: {counts} in {duration(summary.seconds)}")
    lines += [summary.mirror] if summary.mirror else []
    if summary.counts.keys() & {"FAILED", "QUARANTINED"}:
        lines.append(f"Some runs have failed. The reasons: paribus status {summary.study.name} --home {folder}")
    return lines


def exit_status(summary: Summary) -> int:
    """Return 130 after Ctrl-C; 1 if a run failed, or the budget or a pause ended the study; else 0."""
    if summary.ending in ("interrupted", "left"):
        return INTERRUPTED
    failed = summary.counts.keys() & {"FAILED", "QUARANTINED"}
    return int(bool(failed) or summary.ending in ("budget", "paused"))
