"""``paribus import-config``: a study from the configuration of another trainer."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from paribus.cli.studies import write_new
from paribus.errors import ParibusError
from paribus.study.load import load_study
from paribus.yaml_file.document import parse_document, plain, read_document
from paribus.yaml_file.write import yaml_text
from paribus_runners.capabilities import matrix_for
from paribus_runners.environments import locked_versions
from paribus_runners.import_config import trl
from paribus_runners.import_config.trl import Translated

LOCK = Path(__file__).parents[1] / "trl" / "requirements.lock"
WIDTH = 118


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("trainer", type=click.Choice(["trl"]))
@click.argument("words", metavar="[FILE] [--OPTION VALUE]...", nargs=-1, type=click.UNPROCESSED, required=True)
@click.option("--to", "target", type=click.Path(path_type=Path), default=Path("study.yaml"), show_default=True,
              help="Write the study to this file, which must not exist.")  # fmt: skip
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True,
              help="Processes that train: TRL counts batches for each.")  # fmt: skip
def command(trainer: str, words: tuple[str, ...], target: Path, processes: int) -> None:
    """Write a study whose base does what a configuration of TRL does, and say what has no counterpart.

    FILE is the YAML file of a script's `--config`; options stand as on the script's command line, and replace those of
    the file. Options that are not given are at TRL's defaults. Of TRL this reads GRPOConfig.
    """
    version = locked_versions(LOCK)["trl"]
    given = read_settings(words)
    found = trl.translate(given, matrix_for(trainer, version).capabilities, processes)
    write_new(target, study_text(target.stem, version, found), "name another file: --to FILE")
    click.echo(f"Wrote {target}: its base does what TRL {version} does with {len(given)} options and its own defaults")
    if found.lost:
        click.echo("What is not in it:")
        for name, reason in found.lost.items():
            click.echo(textwrap.fill(f"{name}: {reason}", WIDTH, initial_indent="  ", subsequent_indent="    "))
    load_study(target)
    click.echo(f"Next: paribus plan {target}")


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """Return options by name: of files first, then of the command line, in its order.

    Raises:
        ParibusError: a file is no mapping of options, or a word is no option.
    """
    files, found, rest = dict[str, Any](), dict[str, Any](), list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") and not equals:
            content = plain(read_document(Path(word)).checked())
            if not isinstance(content, dict) or any(isinstance(v, dict) for v in content.values()):
                raise ParibusError(f"{word}: TRL's file is a mapping of options to values, without sections")
            files |= content
        elif equals:
            found[_name(name)] = _value(value)
        elif rest and not rest[0].startswith("--"):
            found[_name(name)] = _value(rest.pop(0))
        else:
            found[_name(name)] = True
    return files | found


def _name(text: str) -> str:
    return text.replace("-", "_")


def _value(text: str) -> Any:
    return plain(parse_document(text, "the command line").root) if text else ""


def study_text(name: str, version: str, found: Translated) -> str:
    """Return the text of the study: the base, one trick as an example, and comments on what is lost."""
    scale = found.recipe["scale"]
    trick = (
        {"with_std": {"scale": {"kind": "group_std", "eps": 1e-4}}}
        if scale == "none"
        else {"no_std": {"scale": "none"}}
    )
    parts: list[tuple[str, dict[str, Any]]] = [
        (f"Written by `paribus import-config trl`: the base is GRPOConfig of TRL {version}, with its defaults.", {}),
        ("", {"study": _slug(name), "question": "Write here what you want to know."}),
        ("", {"base": {"preset": "grpo", "set": found.recipe}}),
        ("An example: write your own tricks. `runner: trl` trains with TRL itself.", {"tricks": trick}),
        ("", {"designs": {"solo": {"kind": "add_one"}}}),
        ("", {"seeds": {"n": 3}}),
        ("", {"evaluate": {"every": 20, "problems": 200, "samples": 4, "checkpoint": "final"} | found.study}),
    ]
    blocks = [_comment(comment) + (yaml_text(values, 100) if values else "") for comment, values in parts]
    if found.lost:
        lines = "".join(_comment(f"  {option}: {reason}") for option, reason in found.lost.items())
        blocks.append(_comment("Not in this study:") + lines)
    return "\n".join(blocks)


def _comment(text: str) -> str:
    indent = len(text) - len(text.lstrip())
    lines = textwrap.wrap(text.strip(), WIDTH - indent)
    return "".join(f"# {' ' * indent}{line}\n" for line in lines)


def _slug(name: str) -> str:
    kept = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in name.lower()).strip("-_")
    return kept or "from-trl"
