"""``paribus run``: train a study, or continue it, and write its report."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from paribus.cli import INTERRUPTED
from paribus.cli.console import console, print_warnings, report_width, states_text
from paribus.cli.live import display_for
from paribus.cli.options import (
    WHAT_STARTS,
    engine_file_option,
    engine_option,
    home_option,
    json_option,
    set_option,
    study_argument,
)
from paribus.home import at_home, home
from paribus.report.adaptive import grown
from paribus.scheduler.adaptive import Adaptive
from paribus.scheduler.serve import Settings, Summary, run_study
from paribus.store.database import Unreachable
from paribus.store.history import recorded_runs
from paribus.store.reader import Reader
from paribus.store.trained import TrainedModels
from paribus.study.expand import draft_file
from paribus.study.plan import Plan
from paribus.study.study_files import keep_report
from paribus.text import duration

if TYPE_CHECKING:
    from paribus.report.write import WrittenReport


@click.command()
@study_argument
@engine_option(WHAT_STARTS)
@click.option("--slots", type=click.IntRange(min=1), help="Runs at a time. [default: as many as GPUs and cores allow]")
@engine_file_option
@home_option
@click.option("--report/--no-report", default=True, show_default=True, help="Write the report at the end.")
@set_option
@json_option
def command(
    study: Path,
    engine: str,
    slots: int | None,
    options: Path | None,
    folder: Path | None,
    report: bool,
    changes: tuple[str, ...],
    as_json: bool,
) -> None:
    """Train STUDY and write its report. Run it again to continue; a finished study isn't trained again.

    If a `paribus scheduler` serves the home folder, the scheduler trains the study, and this command attaches to it.
    """
    draft = draft_file(study, changes, models=TrainedModels(folder or home()))
    plan = draft.checked()
    adaptive = Adaptive(grown)
    made: list[WrittenReport | Exception] = []

    def write(ending: str) -> None:
        if report and ending not in ("interrupted", "detached"):
            made.append(report_of(settings.home, plan.study))

    settings = Settings(
        home=folder or home(),
        engine=engine,
        slots=slots,
        options=options,
        adaptive=adaptive,
        at_end=write,
    )
    if not as_json:
        warn(plan, settings.home)
    with display_for(sys.stderr if as_json else sys.stdout) as display:
        summary = run_study(plan, settings, display)
    if as_json:
        click.echo(json.dumps(as_plain(plan, summary, made), indent=1))
    else:
        for line in closing_lines(summary, settings.home):
            click.echo(line)
    for each in made:
        show_report(each, quiet=as_json)
    sys.exit(exit_status(summary))


def as_plain(plan: Plan, summary: Summary, made: Sequence[WrittenReport | Exception]) -> dict[str, Any]:
    """Return what a run of the command has done as JSON values; a report that could not be written is ``null``."""
    reports = [each.as_plain() for each in made if not isinstance(each, Exception)]
    return {
        "study": summary.study.name,
        "ending": str(summary.ending),
        "trained": summary.trained,
        "states": {str(state): n for state, n in summary.counts.items()},
        "paused": summary.paused,
        "mirror": summary.mirror,
        "seconds": summary.seconds,
        "notes": [vars(note) for note in plan.warnings],
        "report": reports[0] if reports else None,
    }


def warn(plan: Plan, folder: Path) -> None:
    """Print the warnings of a plan, unless every run of it has a result in the store of the home folder."""
    fingerprints = {run.fingerprint for run in plan.runs}
    recorded: frozenset[str] = frozenset()
    with suppress(Unreachable):  # the start waits for the server
        recorded = recorded_runs(folder, fingerprints) if plan.warnings else recorded
    if plan.warnings and recorded < fingerprints:
        print_warnings(plan.warnings, console())


def report_of(folder: Path, study: str) -> WrittenReport | Exception:
    """Write the report of a study; return what was written, or the error, which waits until the copies are made."""
    from paribus.report.write import write_report  # imports much, which training needs not

    out = Path("reports") / study
    try:
        with Reader.open(folder) as reader:
            written = write_report(reader, study, out, width=report_width())
        trouble = keep_report(folder, study, out)
    except Exception as error:  # raised again by show_report
        return error
    return replace(written, notes=(*written.notes, trouble)) if trouble else written


def show_report(written: WrittenReport | Exception, *, quiet: bool = False) -> None:
    """Print the table of a report and the paths of its files; if ``quiet``, only raise what went wrong.

    Raises:
        Exception: it could not be written.
    """
    if isinstance(written, Exception):
        raise written
    if quiet:
        return
    click.echo(written.text)
    for line in (*written.notes, *map(str, written.paths)):
        click.echo(line)


def closing_lines(summary: Summary, folder: Path) -> list[str]:
    """Return what to print at the end."""
    counts = states_text(summary.counts)
    name, at = summary.study.name, at_home(folder)
    lines = []
    match summary.ending:
        case "interrupted":
            lines.append("Stopped. Type the same command to continue.")
        case "detached":
            lines.append(
                f"Detached; the scheduler keeps training. Watch: paribus status {name}{at}; "
                f"type the same command to attach again; end it: paribus cancel {name}{at}"
            )
        case "budget":
            lines.append(
                f"Stopped: the budget does not allow another run (paribus status {name} shows it). "
                "Raise it in the study file, and type the same command to continue."
            )
        case "paused":
            lines.append(f"Paused: {summary.paused}")
            retry = f"paribus retry {name}{at}"
            lines.append(f"Fix it, then `{retry}`, and type the same command to continue.")
        case _ if not summary.trained:
            lines.append("Every run of this study has ended before: nothing to train.")
    lines.append(f"{name}: {counts} in {duration(summary.seconds)}")
    lines += [summary.mirror] if summary.mirror else []
    if summary.counts.keys() & {"FAILED", "QUARANTINED"}:
        lines.append(f"Some runs have failed. The reasons: paribus status {name}{at}")
    return lines


def exit_status(summary: Summary) -> int:
    """Return 130 after Ctrl-C; 1 if a run failed, or the budget or a pause ended the study; else 0."""
    if summary.ending in ("interrupted", "detached"):
        return INTERRUPTED
    failed = summary.counts.keys() & {"FAILED", "QUARANTINED"}
    return int(bool(failed) or summary.ending in ("budget", "paused"))
