"""``paribus studies``: the studies that come with Paribus, and copies of them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from pathlib import Path

import click
from rich.text import Text

from paribus.cli import Group
from paribus.cli.console import console, table
from paribus.cli.options import FilePath, json_option, pass_json_on
from paribus.errors import ParibusError, did_you_mean
from paribus.home import data_root
from paribus.yaml_file.document import plain, read_document


@click.group(cls=Group, invoke_without_command=True)
@json_option
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the studies that come with Paribus; `copy` one to change it."""
    if ctx.invoked_subcommand is not None:
        pass_json_on(ctx, as_json)
        return
    show_files("study", "studies", shipped_studies(), "paribus studies copy NAME", as_json=as_json)


@command.command()
@click.argument("name")
@click.argument("to", type=FilePath(), default=".")
@json_option
def copy(name: str, to: Path, as_json: bool) -> None:
    """Copy the study NAME to the file or folder TO, by default here; no file is overwritten."""
    source = shipped_study(name)
    path = to / source.name if to.is_dir() else to
    write_new(path, source.read_text(encoding="utf-8"), "name another file after the study's name")
    if as_json:
        click.echo(json.dumps({"study": name, "file": str(path)}, indent=1))
        return
    click.echo(f"Wrote {path}. Look at it: paribus plan {shlex.quote(str(path))}")


def shipped_studies() -> dict[str, Path]:
    """Return the files of the studies that come with Paribus by name, in alphabetical order."""
    return {path.stem: path for path in sorted((data_root("ablations") / "studies").glob("*.yaml"))}


def show_files(one: str, many: str, files: Mapping[str, Path], take: str, *, as_json: bool) -> None:
    """Print name, question and comment of study files, and the command that takes one; or the first three as JSON.

    Args:
        one: what a file is, the head of the table.
        many: what they are, the key in JSON.
        files: by name.
        take: the command.
        as_json: print JSON.
    """
    about = [(name, plain(read_document(path).root)["question"], comment_of(path)) for name, path in files.items()]
    if as_json:
        listed = [dict(zip(("name", "question", "about"), each, strict=True)) for each in about]
        click.echo(json.dumps({many: listed}, indent=1))
        return
    shown = table(one, "question, and what it takes")
    for name, question, comment in about:
        shown.add_row(name, Text(question).append(f"\n{comment}", style="dim"))
    console().print(shown)
    click.echo(f"Take one: {take}")


def shipped_study(name: str) -> Path:
    """Return the file of a study that comes with Paribus.

    Raises:
        ParibusError: there is no study of this name.
    """
    studies = shipped_studies()
    if name not in studies:
        listed = ", ".join(studies)
        raise ParibusError(f"no study `{name}` comes with Paribus.{did_you_mean(name, studies)} There are: {listed}.")
    return studies[name]


def write_new(path: Path, text: str, remedy: str) -> None:
    """Write a file that does not exist yet.

    Args:
        path: the file; its folder must exist.
        text: what it holds.
        remedy: what the user can do where a file exists already, or none can be written.

    Raises:
        ParibusError: the file exists, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ParibusError(f"{path} exists and is not overwritten: {remedy}") from error
    except OSError as error:
        raise ParibusError(f"{path} cannot be written: {error.strerror or error}; {remedy}") from error


def comment_of(path: Path) -> str:
    """Return the comment above a study on one line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    above = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
    return " ".join(line.lstrip("# ") for line in above)
