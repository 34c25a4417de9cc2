"""``paribus healthcheck``: whether a service works, for whatever restarts it or waits for it."""

from __future__ import annotations

import time
from pathlib import Path

import click

from paribus.cli.options import home_option
from paribus.home import home
from paribus.services.health_checks import CHECKS, check


@click.command()
@click.argument("service", type=click.Choice(list(CHECKS)))
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), default=10.0, show_default=True, help="Seconds."
)
@home_option
def command(service: str, timeout: float, folder: Path | None) -> None:
    """Make one real call to SERVICE. The exit status is 0 if it works, else 1 with the reason in one sentence.

    \b
    mlflow     writes to $MLFLOW_TRACKING_URI and reads it back
    postgres   commits to $PARIBUS_DATABASE_URL and reads the outcome
    scheduler  looks for a scheduler of the home folder, and for its last turn
    dashboard  loads $PARIBUS_DASHBOARD_URL with the token in $PARIBUS_DASHBOARD_TOKEN_FILE
    ray        calls the head at $RAY_ADDRESS
    """  # noqa: D301 - click's mark
    begun = time.perf_counter()
    check(service, folder or home(), timeout)
    click.echo(f"{service} works: {(time.perf_counter() - begun) * 1000:.0f} ms")
