"""``paribus doctor``: find problems of a home folder and its machine, each with a remedy."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from paribus.audit.doctor import Check, examine
from paribus.home import home

_COLOURS = {"ok": "green", "warn": "yellow", "critical": "red", "unknown": "bright_black"}


@click.command()
@click.option("--home", "folder", type=click.Path(path_type=Path), help="Default: $PARIBUS_HOME, else .paribus")
@click.option("--deep", is_flag=True, help="Check the hashes of all checkpoints, not only of those in use.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
def command(folder: Path | None, deep: bool, as_json: bool) -> None:
    """Check the disk, the database and its invariants, leftover processes, GPUs, MLflow and the engines.

    It changes nothing. The exit status is 1 if a check is critical.
    """
    checks = []
    for check in examine(folder or home(), deep=deep):
        checks.append(check)
        if not as_json:
            show(check)
    critical = any(check.level == "critical" for check in checks)
    if as_json:
        click.echo(json.dumps({"healthy": not critical, "checks": [asdict(check) for check in checks]}, indent=1))
    sys.exit(int(critical))


def show(check: Check) -> None:
    """Print one check, with its remedy on the next line."""
    click.echo(f"{click.style(f'{check.level:<9}', fg=_COLOURS[check.level])}{check.name}: {check.message}")
    if check.remedy:
        click.echo(f"{'':<9}{check.remedy}")
