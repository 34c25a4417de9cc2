"""Every command of the documentation exists as it is typed there: its name, its options, and the values of choices."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from paribus.cli import paribus

ROOT = Path(__file__).resolve().parents[2]
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks/README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
)
HISTORY = ROOT / "docs/decisions"
"""Decisions keep the words of their time."""

FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`(paribus [^`]*)`")
SHELL = ("sh", "bash", "console", "")
PLACEHOLDER = re.compile(r"\.\.\.|…|[A-Z][A-Z_-]*|<.*>|\$.*|\{.*\}")
"""A word that the reader replaces."""


class Typed(NamedTuple):
    """A command with its place in a page."""

    place: str
    words: tuple[str, ...]


def commands_of(line: str) -> Iterator[tuple[str, ...]]:
    """Yield the words of each call of `paribus` in a line of a shell."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="();<>|&")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    try:
        words = [*lexer, ";"]
    except ValueError:  # a quote over several lines
        return
    part: list[str] = []
    for word in words:
        if not set(word) <= set("();<>|&"):
            part.append(word)
            continue
        while part and re.match(r"^([A-Za-z_]\w*=|\$$|exec$|nohup$|sudo$)", part[0]):
            del part[0]
        if part and part[0].rpartition("/")[2] == "paribus":
            yield tuple(part[1:])
        part = [] if not set(word) <= set("<>") else ["redirected"]


def typed() -> Iterator[Typed]:
    """Yield every command of the pages: in blocks, and in running text."""
    for page in PAGES:
        if page.is_relative_to(HISTORY):
            continue
        text = page.read_text()
        for block in FENCED.finditer(text):
            if block[2] in SHELL:
                for line in block[3].replace("\\\n", " ").splitlines():
                    number = text[: block.start()].count("\n") + 1
                    yield from (Typed(f"{page.relative_to(ROOT)}:{number}", words) for words in commands_of(line))
        rest = FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)
        for span in SPAN.finditer(rest):
            number = rest[: span.start()].count("\n") + 1
            line = " ".join(span[1].split())
            yield from (Typed(f"{page.relative_to(ROOT)}:{number}", words) for words in commands_of(line))


TYPED = tuple(dict.fromkeys(typed()))


def checked(words: tuple[str, ...]) -> None:
    """Parse a command as the program does, without running it.

    Raises:
        click.ClickException: no such command or option, a word too many, or a value that a choice has not.
    """
    command, rest = paribus, list(words)
    context = click.Context(command, info_name="paribus", **command.context_settings)
    while (
        isinstance(command, click.Group) and rest and not rest[0].startswith("-") and not PLACEHOLDER.fullmatch(rest[0])
    ):
        name = rest.pop(0)
        found = command.get_command(context, name)
        if found is None:
            raise click.UsageError(f"no such command: {name}")
        command, context = found, click.Context(found, info_name=name, parent=context, **found.context_settings)
    if isinstance(command, click.Group) and not rest:
        return
    if context.info_name == "tag":  # it takes `-TAG` for an argument
        rest = [word.replace("-", "+", 1) if re.fullmatch(r"-[^-].+", word) else word for word in rest]
    if rest and rest[-1].startswith("--"):  # running text names an option without its value
        rest += ["X"] * max(
            (p.nargs for p in command.params if rest[-1] in p.opts and not getattr(p, "is_flag", False)), default=0
        )
    given, left, _ = command.make_parser(context).parse_args([word for word in rest if word not in ("...", "…")])
    if left and not isinstance(command, click.Group):
        raise click.UsageError(f"too much: {' '.join(left)}")
    for param in command.params:
        values = given.get(param.name)
        for value in values if isinstance(values, list | tuple) else [values]:
            numeric = isinstance(param.type, click.Choice | click.types.IntParamType | click.types.FloatParamType)
            if isinstance(value, str) and numeric and not PLACEHOLDER.fullmatch(value):
                param.type.convert(value, param, context)


def test_there_are_many_commands() -> None:
    """Those of blocks and those of running text are found, in most pages."""
    assert len(TYPED) > 200
    assert len({command.place.rpartition(":")[0] for command in TYPED}) > 35


@pytest.mark.parametrize("command", TYPED, ids=lambda c: f"{c.place} {' '.join(c.words)}"[:90])
def test_a_command_of_the_documentation_is_understood(command: Typed) -> None:
    """Its name and options exist, and numbers and choices are allowed ones."""
    try:
        checked(command.words)
    except click.ClickException as error:
        pytest.fail(f"{command.place}: paribus {' '.join(command.words)}: {error.format_message()}")


@pytest.mark.parametrize(
    "line", ["paribus plna", "paribus plan x --sett a=1", "paribus run a b", "paribus import-config verll a=1"]
)
def test_a_wrong_command_is_found(line: str) -> None:
    """A misspelt name, a misspelt option, a word too many and an unknown choice."""
    (words,) = commands_of(f"$ X=1 {line} > file  # comment")
    with pytest.raises(click.ClickException):
        checked(words)
