"""``paribus doctor``: find problems of a home folder and its machine, each with a remedy."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import click

from paribus.audit.doctor import Check, examine
from paribus.cli.options import home_option, json_option
from paribus.home import home
from paribus.mlflow_sync.offsets import replay
from paribus.mlflow_sync.process import SyncProcess
from paribus.scheduler.home_lock import lock_owner
from paribus.text import plural

_COLOURS = {"ok": "green", "warn": "yellow", "critical": "red", "unknown": "bright_black"}


@click.command()
@home_option
@click.option("--deep", is_flag=True, help="Check the hashes of all checkpoints, not only of those in use.")
@click.option("--replay", "again", is_flag=True, help="Send MLflow again what it has refused, then check.")
@json_option
def command(folder: Path | None, deep: bool, again: bool, as_json: bool) -> None:
    """Check the disk, the database and its invariants, leftover processes, GPUs, MLflow and the engines.

    Without --replay it changes nothing. The exit status is 1 if a check is critical.
    """
    if again:
        click.echo(send_again(folder or home()), err=as_json)
    checks = []
    for check in examine(folder or home(), deep=deep):
        checks.append(check)
        if not as_json:
            show(check)
    critical = any(check.level == "critical" for check in checks)
    if as_json:
        click.echo(json.dumps({"healthy": not critical, "checks": [asdict(check) for check in checks]}, indent=1))
    sys.exit(int(critical))


def send_again(place: Path) -> str:
    """Send MLflow again what it has refused, or leave it to the process that works in the home folder."""
    if not (count := replay(place)):
        return "MLflow has refused nothing: there is nothing to send again"
    if (owner := lock_owner(place)) is not None:
        return f"{owner} sends {plural(count, 'run')} to MLflow again"
    sync = SyncProcess(place)
    try:
        trouble = sync.drain(lambda: time.sleep(0.2))
    finally:
        sync.close()
    return trouble or f"{plural(count, 'run was', 'runs were')} sent to MLflow again, and it has all of them"


def show(check: Check) -> None:
    """Print one check, with its remedy on the next line."""
    click.echo(f"{click.style(f'{check.level:<9}', fg=_COLOURS[check.level])}{check.name}: {check.message}")
    if check.remedy:
        click.echo(f"{'':<9}{check.remedy}")
