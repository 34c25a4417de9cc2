"""Options that several commands have."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from paribus.engines.base import find_engine
from paribus.errors import ParibusError, StudyFileError, did_you_mean
from paribus.home import home
from paribus.study.load import load_study, read_study
from paribus.yaml_file.document import YAML_ENDINGS, plain, yaml_files


class FilePath(click.Path):
    """A path that is not empty: an empty one, such as a script's variable that is not set, would be the folder here."""

    def __init__(self, *, file_okay: bool = True, dir_okay: bool = True) -> None:
        super().__init__(file_okay=file_okay, dir_okay=dir_okay, path_type=Path)

    def convert(
        self, value: str | os.PathLike[str], param: click.Parameter | None, ctx: click.Context | None
    ) -> str | bytes | os.PathLike[str]:
        """Return the path.

        Raises:
            click.BadParameter: it is empty, or a file or a folder where the other is needed.
        """
        if not os.fspath(value):
            self.fail("the path is empty.", param, ctx)
        return super().convert(value, param, ctx)


def _home_folder(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    place, named = (home(), "$PARIBUS_HOME") if value is None else (value, "--home")
    if place.is_file():
        raise click.BadParameter(f"`{place}` is a file: name a folder.", param_hint=named)
    return value


home_option = click.option(
    "--home",
    "folder",
    type=FilePath(),
    callback=_home_folder,
    help="Default: $PARIBUS_HOME, else .paribus",
)
"""`--home`, as the parameter ``folder``: the home folder, if not the usual one."""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
"""`--json`, as the parameter ``as_json``: facts for programs; ``docs/howto/command_line.md`` has the keys."""


def pass_json_on(context: click.Context, as_json: bool) -> None:
    """Give the `--json` of a group to the command in it: `paribus recipes --json show grpo`."""
    if as_json:
        context.default_map = {str(context.invoked_subcommand): {"as_json": True}}


set_option = click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="PATH=VALUE",
    help="Change a value of the study for this command, e.g. clip.high=0.28 or seeds.n=5; can be repeated.",
)
"""`--set`, as the parameter ``changes``: values on top of those of the study file."""


def is_file(study: str) -> bool:
    """Whether the argument STUDY is a file and not a name: it ends so, has a folder before it, or there is one."""
    path = Path(study)
    if path.suffix in YAML_ENDINGS or path.parent != Path():
        return True
    try:
        return path.exists() and not path.is_dir()
    except OSError:  # a text that is too long for the name of a file
        return True


def study_name(study: str) -> str:
    """Return the name of a study, given its name or its file.

    Raises:
        ParibusError: there is neither.
        StudyFileError: the file is not a valid study.
    """
    if not study:
        raise ParibusError("the STUDY is empty: name a study or its file; `paribus status` lists the studies.")
    return load_study(Path(study)).spec.study if is_file(study) else study


def study_file(study: str) -> Path:
    """Return the path of a study file, given its path or, for one in this folder, the study's name.

    Raises:
        ParibusError: no file here holds a study of this name, or several do.
    """
    if not study:  # else it would be the folder here
        raise ParibusError("the STUDY is empty: name a study file, or the study of a file here.")
    if is_file(study):
        return Path(study)
    files, unread = _study_files()
    if study not in files and Path(study).is_dir():  # whose error is that of a folder
        return Path(study)
    if len(found := files.get(study, [])) == 1:
        return found[0]
    if found:
        listed = f"{', '.join(map(str, found[:-1]))} and {found[-1]}"
        both = "both" if len(found) == 2 else "all"
        raise ParibusError(f"{listed} are {both} of a study `{study}`: name one of the files.")
    listed = ", ".join(str(each) for same in files.values() for each in same) or "none; `paribus init` writes one"
    damaged = f" These cannot be read as YAML: {', '.join(unread)}." if unread else ""
    raise ParibusError(
        f"there is no file `{study}`, and no study file here is of a study `{study}`.{did_you_mean(study, files)} "
        f"Study files here: {listed}.{damaged}"
    )


def _study_files() -> tuple[dict[str, list[Path]], list[str]]:
    """Return the study files of this folder by the name of their study, and the YAML files that cannot be read."""
    found: dict[str, list[Path]] = {}
    unread = []
    for file in yaml_files(Path()):
        try:
            root = plain(read_study(file).root)
        except StudyFileError:
            unread.append(str(file))
            continue
        if isinstance(root, dict) and isinstance(root.get("study"), str):
            found.setdefault(root["study"], []).append(file)
    return found, unread


def _read_argument(context: click.Context, parameter: click.Parameter, value: str) -> Path:
    return study_file(value)


study_argument = click.argument("study", callback=_read_argument)
"""The argument STUDY of commands that need its file, as the parameter ``study``."""

_Command = TypeVar("_Command", bound=Callable[..., object])


def _known_engine(context: click.Context, parameter: click.Parameter, value: str) -> str:
    return find_engine(value).name


def engine_option(text: str) -> Callable[[_Command], _Command]:
    """Return the option `--engine` with this help; a name that no engine has is refused before anything is done."""
    return click.option("--engine", default="local", show_default=True, callback=_known_engine, help=text)


WHAT_STARTS = "What starts the runs: local, slurm, ray or inline."
"""Help of `--engine` for commands that train."""

engine_file_option = click.option(
    "--engine-options",
    "options",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Default: engines.yaml in the home folder.",
)
"""`--engine-options`, as the parameter ``options``: a file that exists, also for an engine that reads nothing of it."""

_OPTIONS = (
    engine_option(WHAT_STARTS),
    click.option("--slots", type=click.IntRange(min=1), help="Runs at a time. [default: GPUs, else CPU cores]"),
    engine_file_option,
    home_option,
    click.option(
        "--reports",
        type=FilePath(file_okay=False),
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
