"""``paribus init``: a folder with a first study."""

from __future__ import annotations

import shlex
from importlib.util import find_spec
from pathlib import Path

import click

from paribus.cli.studies import shipped_study, write_new
from paribus.errors import ParibusError, install_command

STUDY = "study.yaml"

IGNORED = (".paribus/", "/reports/")
"""The home folder and the reports, which `paribus report` writes again."""

README = f"""# Ablation study

`paribus run {STUDY}` trains the study and writes its report into `reports/`; typed again, it trains only what is new.
"""


@click.command()
@click.argument("folder", type=click.Path(path_type=Path), default=".")
def command(folder: Path) -> None:
    """Write a first study into FOLDER, by default here, with a README.md and a .gitignore.

    The study trains a tiny model on two CPU cores in about a minute. No file is overwritten: a study.yaml that exists
    is an error, a README.md stays as it is, and a .gitignore gets the lines that it lacks.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ParibusError(f"the folder {folder} cannot be made: {error.strerror or error}") from error
    write_new(folder / STUDY, shipped_study("first").read_text(encoding="utf-8"), "name another folder")
    written = [STUDY, *_extend(folder / ".gitignore")]
    if not (folder / "README.md").exists():
        write_new(folder / "README.md", README, "name another folder")
        written.append("README.md")
    click.echo(f"Wrote {', '.join(written)} in {folder.resolve()}")
    if find_spec("torch") is None:
        click.echo(f"Training needs PyTorch, which is not installed: {install_command('train')}")
    change = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    click.echo(f"Next: {change}paribus run {STUDY}")


def _extend(path: Path) -> list[str]:
    """Append to a .gitignore what it lacks; return its name if it lacked something."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    lacking = [line for line in IGNORED if line not in text.splitlines()]
    start = "\n" if text and not text.endswith("\n") else ""
    with path.open("a", encoding="utf-8") as file:
        file.write(start + "".join(f"{line}\n" for line in lacking))
    return [path.name] if lacking else []
