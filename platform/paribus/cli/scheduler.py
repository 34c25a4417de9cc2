"""``paribus scheduler``: serve all studies of a home folder."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from paribus.cli.live import PlainDisplay
from paribus.cli.options import serving_options
from paribus.home import home
from paribus.report.adaptive import grown
from paribus.scheduler.adaptive import Adaptive
from paribus.scheduler.daemon import serve_home
from paribus.scheduler.serve import Settings

FAILED = {"FAILED", "QUARANTINED"}


@click.command()
@serving_options
@click.option("--until-idle", is_flag=True, help="End when nothing is left to do. [default: wait for more]")
def command(
    engine: str, slots: int | None, options: Path | None, folder: Path | None, reports: Path, until_idle: bool
) -> None:
    """Train submitted studies (paribus submit), several at a time, each with its share of the slots.

    Ctrl-C or SIGTERM stops it: the runs write a checkpoint and are queued again. A second Ctrl-C kills them. With
    --until-idle the exit status is 1 if a run failed, or a study was paused or stopped by its budget.
    """
    adaptive = Adaptive(grown)
    settings = Settings(home=folder or home(), engine=engine, slots=slots, options=options, adaptive=adaptive)
    ended = serve_home(settings, PlainDisplay(), reports=reports.resolve(), until_idle=until_idle)
    good = all(e.ending in ("complete", "interrupted") and not e.counts.keys() & FAILED for e in ended)
    sys.exit(int(until_idle and not good))
