"""``paribus up``: run MLflow, scheduler and dashboard of a home folder together."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from paribus.cli.options import serving_options
from paribus.home import home
from paribus.services.stack import UpSettings, bring_up

_PORT = click.IntRange(1, 65535)


@click.command()
@serving_options
@click.option("--mlflow-port", type=_PORT, default=5000, show_default=True, help="Port of MLflow's server.")
@click.option("--dashboard-port", type=_PORT, default=8765, show_default=True, help="Port of the dashboard.")
def command(
    engine: str,
    slots: int | None,
    options: Path | None,
    folder: Path | None,
    reports: Path,
    mlflow_port: int,
    dashboard_port: int,
) -> None:
    """Run MLflow's server, a scheduler and the dashboard on this machine until Ctrl-C.

    They listen on 127.0.0.1 alone. What ends is started again. Ctrl-C, SIGTERM or a closed terminal stops all of them:
    the runs write a checkpoint and are queued again.
    """
    settings = UpSettings(
        home=folder or home(),
        reports=reports,
        engine=engine,
        slots=slots,
        options=options,
        mlflow_port=mlflow_port,
        dashboard_port=dashboard_port,
    )
    bring_up(settings, _say)


def _say(line: str) -> None:
    with suppress(OSError):  # the terminal may be gone
        click.echo(line)
