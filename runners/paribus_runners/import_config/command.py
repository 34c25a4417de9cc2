"""``paribus import-config``: a study from the configuration of another trainer."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from paribus.cli.options import FilePath, json_option
from paribus.cli.studies import write_new
from paribus.errors import ParibusError
from paribus.study.load import load_study
from paribus.text import printable
from paribus.yaml_file.document import parse_document, plain, read_document, read_text
from paribus.yaml_file.write import yaml_text
from paribus_runners.capabilities import matrix_for
from paribus_runners.environments import locked_versions
from paribus_runners.import_config import trl, verl
from paribus_runners.import_config.given import Translated
from paribus_runners.import_config.hydra import options_of_file, options_of_script, options_of_words

WIDTH = 118
VARIABLE = re.compile(r"""'([^'"\n\\]*\$\{[A-Za-z_]\w*\}[^'"\n\\]*)'""")
"""A text with a variable of the shell: a study replaces it between double quotes."""


@dataclass(frozen=True)
class Source:
    """A configuration that was read.

    Attributes:
        title: what it is, e.g. ``GRPOConfig of TRL 1.16.0``.
        count: how many options it gives.
        found: what became of them.
        slug: the study's name where its file has none that fits.
    """

    title: str
    count: int
    found: Translated
    slug: str


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("trainer", type=click.Choice(["trl", "verl"]))
@click.argument("words", metavar="[FILE]... [OPTION]...", nargs=-1, type=click.UNPROCESSED, required=True)
@click.option("--to", "target", type=FilePath(), default=Path("study.yaml"), show_default=True,
              help="Write the study to this file, which must not exist.")  # fmt: skip
@click.option("--processes", type=click.IntRange(min=1), default=1, show_default=True,
              help="Processes that train: TRL counts batches for each.")  # fmt: skip
@json_option
def command(trainer: str, words: tuple[str, ...], target: Path, processes: int, as_json: bool) -> None:
    """Write a study whose base does what a configuration of TRL or verl does, and say what has no counterpart.

    trl: FILE is the YAML file of a script's `--config`; an option is `--loss_type dapo` or `--loss_type=dapo`, as for
    TRL's GRPOConfig. verl: FILE is a shell script that calls `verl.trainer.main_ppo`, or a YAML file of Hydra, such as
    `.hydra/config.yaml` of a training; an option is `data.train_batch_size=64`.

    Options replace those of files. What is not given is at the trainer's own defaults.
    """
    source = _trl(words, processes) if trainer == "trl" else _verl(words)
    write_new(target, study_text(target.stem, trainer, source), "name another file: --to FILE")
    if as_json:
        load_study(target)
        found = {"file": str(target), "read": source.title, "options": source.count, "lost": source.found.lost}
        click.echo(json.dumps(found, indent=1))
        return
    click.echo(
        f"Wrote {target}: its base does what {source.title} does with {source.count} options and its own defaults"
    )
    if source.found.lost:
        click.echo("What is not in it:")
        for name, reason in source.found.lost.items():
            click.echo(textwrap.fill(f"{name}: {reason}", WIDTH, initial_indent="  ", subsequent_indent="    "))
    load_study(target)
    click.echo(f"Next: paribus plan {target}")


def _version(trainer: str) -> str:
    return locked_versions(Path(__file__).parents[1] / trainer / "requirements.lock")[trainer]


def _trl(words: Sequence[str], processes: int) -> Source:
    version, given = _version("trl"), read_settings(words)
    found = trl.translate(given, matrix_for("trl", version).capabilities, processes)
    return Source(f"GRPOConfig of TRL {version}", len(given), found, "from-trl")


def _verl(words: Sequence[str]) -> Source:
    version, (given, branches) = _version("verl"), read_overrides(words)
    found = verl.translate(given, matrix_for("verl", version).capabilities)
    if branches:
        found.lost["conditions of the script"] = "not decided: of several values of a variable the last one counts"
    return Source(f"the PPO trainer of verl {version}", len(given), found, "from-verl")


def read_overrides(words: Sequence[str]) -> tuple[dict[str, Any], bool]:
    """Return verl's options by dotted name, of files first, and whether a script's conditions were passed over.

    Raises:
        ParibusError: a file or a word has none.
    """
    files, rest, passed_over = dict[str, Any](), list[str](), False
    for word in words:
        path = Path(word)
        if "=" in word or word.startswith("-") or not path.suffix:
            rest.append(word)
        elif path.suffix in (".yaml", ".yml"):
            found = options_of_file(plain(read_document(path).checked()), word)
            verl.refuse_others(found, word)
            files |= found
        else:
            found, branches = options_of_script(read_text(path), word)
            files, passed_over = files | found, passed_over or branches
    return files | options_of_words(rest), passed_over


def read_settings(words: Sequence[str]) -> dict[str, Any]:
    """Return TRL's options by name: of files first, then of the command line, in its order.

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


def study_text(name: str, trainer: str, source: Source) -> str:
    """Return the text of the study: the base, one trick as an example, and comments on what is lost."""
    found = source.found
    trick: dict[str, Any] = {"no_std": {"scale": "none"}}
    if found.recipe["scale"] == "none":
        trick = {"with_std": {"scale": {"kind": "group_std", "eps": 1e-4}}}
    elif found.recipe["baseline"] != "group_mean":
        trick = {"twice_the_rate": {"optimizer.learning_rate": 2 * found.recipe["optimizer"]["learning_rate"]}}
    does = {"trl": "trains with TRL itself", "verl": "plans its arms as options of verl"}[trainer]
    parts: list[tuple[str, dict[str, Any]]] = [
        (f"Written by `paribus import-config {trainer}`: the base is {source.title}, with its defaults.", {}),
        ("", {"study": _slug(name) or source.slug, "question": "Write here what you want to know."}),
        ("", {"base": {"preset": "grpo", "set": found.recipe}}),
        (f"An example: write your own tricks. `runner: {trainer}` {does}.", {"tricks": trick}),
        ("", {"designs": {"solo": {"kind": "add_one"}}}),
        ("", {"seeds": {"n": 3}}),
        ("", {"evaluate": {"every": 20, "problems": 200, "samples": 4, "checkpoint": "final"} | found.study}),
    ]
    blocks = [_comment(comment) + (yaml_text(values, 100) if values else "") for comment, values in parts]
    if trainer == "verl":
        blocks = [VARIABLE.sub(r'"\1"', block) for block in blocks]
    if found.lost:
        lines = "".join(_comment(f"  {option}: {reason}") for option, reason in found.lost.items())
        blocks.append(_comment("Not in this study:") + lines)
    return "\n".join(blocks)


def _comment(text: str) -> str:
    indent = len(text) - len(text.lstrip())
    # a comment must not end: YAML has line breaks beside \n
    lines = textwrap.wrap(printable(text, " ").strip(), WIDTH - indent)
    return "".join(f"# {' ' * indent}{line}\n" for line in lines)


def _slug(name: str) -> str:
    return "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "-" for c in name.lower()).strip("-_")
