"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

home_option = click.option(
    "--home", "folder", type=click.Path(path_type=Path), help="Default: $PARIBUS_HOME, else .paribus"
)
"""`--home`, as the parameter ``folder``: the home folder, if not the usual one."""

_Command = TypeVar("_Command", bound=Callable[..., object])
_OPTIONS = (
    click.option(
        "--engine", default="local", show_default=True, help="What starts the runs: local, slurm, ray or inline."
    ),
    click.option("--slots", type=click.IntRange(min=1), help="Runs at a time. [default: GPUs, else CPU cores]"),
    click.option(
        "--engine-options", "options", type=click.Path(path_type=Path), help="Default: engines.yaml in the home folder."
    ),
    home_option,
    click.option(
        "--reports",
        type=click.Path(file_okay=False, path_type=Path),
        default=Path("reports"),
        show_default=True,
        help="Folder in which each study that ends gets a folder with its report.",
    ),
)


def serving_options(command: _Command) -> _Command:
    """Add the options of all commands that serve the studies of a home folder."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
