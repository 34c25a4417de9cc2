"""Options that several commands have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import click

from paribus.errors import ParibusError, did_you_mean
from paribus.yaml_file.document import plain, read_document

home_option = click.option(
    "--home", "folder", type=click.Path(path_type=Path), help="Default: $PARIBUS_HOME, else .paribus"
)
"""`--home`, as the parameter ``folder``: the home folder, if not the usual one."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
"""`--json`, as the parameter ``as_json``: facts for programs, documented in ``docs/reference/json.md``."""

set_option = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change a value of the study for this command, e.g. clip.high=0.28 or seeds.n=5; can be repeated.",
)
"""`--set`, as the parameter ``changes``: values on top of those of the study file."""


def study_file(context: click.Context, parameter: click.Parameter, value: str) -> Path:
    """Return the path of a study file, given its path or, for one in this folder, the study's name.

    Raises:
        ParibusError: there is no such file, and no file here holds a study of this name.
    """
    path = Path(value)
    if path.exists() or path.suffix in (".yaml", ".yml") or path.parent != Path():
        return path
    found: dict[str, Path] = {}
    for each in sorted(Path().glob("*.y*ml")):
        with suppress(ParibusError):
            root = plain(read_document(each).root)
            if isinstance(root, dict) and isinstance(root.get("study"), str):
                found[root["study"]] = each
    if value in found:
        return found[value]
    files = ", ".join(map(str, found.values())) or "none; `paribus init` writes one"
    raise ParibusError(
        f"there is no file `{value}`, and no study file here is of a study `{value}`.{did_you_mean(value, found)} "
        f"Study files here: {files}."
    )


study_argument = click.argument("study", callback=study_file)
"""The argument STUDY of commands that need its file, as the parameter ``study``."""

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
