"""``paribus init``: a folder with a first study, or a study file from a template."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import click

from paribus.cli.options import FilePath
from paribus.cli.studies import shipped_study, show_files, write_new
from paribus.errors import ParibusError, did_you_mean, install_command, starts_here
from paribus.home import data_root
from paribus.yaml_file.document import YAML_ENDINGS, plain, read_document

STUDY = "study.yaml"

IGNORED = (".paribus/", "/reports/")
"""The home folder and the reports, which `paribus report` writes again."""

README = f"""# Ablation study

`paribus run {STUDY}` trains the study and writes its report into `reports/`; typed again, it trains only what is new.
"""


MODEL_SCRIPT = "make_model.py"
"""Of a template with data: writes the model that its study names."""


@click.command()
@click.argument("target", metavar="[FOLDER|FILE]", type=FilePath(), required=False)
@click.option("--template", metavar="NAME", help="Write the study of this template to FILE. [default: NAME.yaml]")
@click.option("--list", "listed", is_flag=True, help="List the templates.")
@click.option("--json", "as_json", is_flag=True, help="With --list: print one JSON object.")
def command(target: Path | None, template: str | None, listed: bool, as_json: bool) -> None:
    """Write a first study into FOLDER, by default here, with a README.md and a .gitignore; or start from a template.

    The study trains a tiny model on two CPU cores in about a minute. No file is overwritten: a study.yaml that exists
    is an error, a README.md stays as it is, and a .gitignore gets the lines that it lacks.
    """
    if listed:
        if target is not None or template is not None:
            raise click.UsageError("--list stands alone")
        show_files("template", "templates", templates(), "paribus init --template NAME", as_json=as_json)
    elif as_json:
        raise click.UsageError("--json goes with --list")
    elif template is not None:
        _write_template(template, target)
    elif target is not None and target.suffix in YAML_ENDINGS and not target.is_dir():
        raise click.UsageError(
            f"{target} is the name of a file, and the first study is written into a folder: name a folder, or a "
            f"template for the file: paribus init --template NAME {shlex.quote(str(target))} (--list shows them)"
        )
    else:
        _write_folder(target or Path())


def templates() -> dict[str, Path]:
    """Return the study files of the templates by name, in alphabetical order."""
    return {path.stem: path for path in sorted((data_root("ablations") / "templates").glob("*.yaml"))}


def _write_template(name: str, target: Path | None) -> None:
    """Write the study of a template, and the files that it needs beside it; nothing if one of them exists."""
    found = templates()
    if name not in found:
        raise ParibusError(f"there is no template `{name}`.{did_you_mean(name, found)} There are: {', '.join(found)}.")
    target = target or Path()
    path = target if target.suffix in YAML_ENDINGS else target / f"{name}.yaml"
    _make_folder(path.parent)
    beside = sorted(found[name].with_suffix("").glob("*.*"))
    wanted = {path: found[name], **{path.parent / source.name: source for source in beside}}
    for file in wanted:
        if file.exists():
            raise ParibusError(f"{file} exists and is not overwritten: name a file in another folder")
    for file, source in wanted.items():
        write_new(file, source.read_text(encoding="utf-8"), "name another file")
    click.echo(f"Wrote {', '.join(map(str, wanted))}")
    here = path.parent.resolve() == Path.cwd()
    first = "" if here or not beside else f"cd {shlex.quote(str(path.parent))} && "
    shown = shlex.quote(path.name if first else str(path))
    model = any(source.name == MODEL_SCRIPT for source in beside)
    click.echo(
        f"Next: {first}{f'{_python()} {MODEL_SCRIPT} && ' if model else ''}paribus plan {shown} && paribus run {shown}"
    )
    if not isinstance(plain(read_document(found[name]).root).get("runner"), Mapping):  # a program of its own needs none
        _say_what_is_missing()


def _python() -> str:
    """Return what to type for this Python: its path, unless its environment is activated."""
    return "python" if starts_here("python") else shlex.quote(sys.executable)


def _write_folder(folder: Path) -> None:
    _make_folder(folder)
    write_new(folder / STUDY, shipped_study("first").read_text(encoding="utf-8"), "name another folder")
    written = [STUDY, *_extend(folder / ".gitignore")]
    if not (folder / "README.md").exists():
        write_new(folder / "README.md", README, "name another folder")
        written.append("README.md")
    click.echo(f"Wrote {', '.join(written)} in {folder.resolve()}")
    _say_what_is_missing()
    change = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    click.echo(f"Next: {change}paribus run {STUDY}")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ParibusError(f"the folder {folder} cannot be made: {error.strerror or error}") from error


def _say_what_is_missing() -> None:
    if find_spec("torch") is None:
        click.echo(f"Training needs PyTorch, which is not installed: {install_command('train')}")


def _extend(path: Path) -> list[str]:
    """Append to a .gitignore what it lacks; return its name if it lacked something."""
    text = path.read_bytes() if path.exists() else b""  # in whatever encoding it is
    lacking = [line for line in IGNORED if line.encode() not in text.splitlines()]
    start = "\n" if text and not text.endswith(b"\n") else ""
    with path.open("a", encoding="utf-8") as file:
        file.write(start + "".join(f"{line}\n" for line in lacking))
    return [path.name] if lacking else []
