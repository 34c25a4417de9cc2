"""``paribus runners``: lists runners, installs the environments of trainers, shows what they can do, and tries them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol, cast, runtime_checkable

import click

from paribus.cli.console import console, table
from paribus.contract import Options, available, load_runner
from paribus.contract.runner import unknown_runner
from paribus.errors import ParibusError
from paribus.recipe.recipe import Recipe
from paribus_runners.capabilities import Capabilities, Entry, Matrix
from paribus_runners.environments import Environment


@runtime_checkable
class Installed(Protocol):
    """A runner with an environment of its own."""

    name: str
    tried: str
    """What :meth:`check` does, as a message says it once it is done."""

    def environment(self) -> Environment:
        """Return its environment."""

    def matrix(self) -> Matrix:
        """Return what its trainer can do."""

    def check(self) -> Iterator[str]:
        """Try the environment; yield what is wrong."""


@click.group(invoke_without_command=True)
@click.pass_context
def command(context: click.Context) -> None:
    """List the installed runners: state and versions of the environment of each."""
    if context.invoked_subcommand is None:
        listed = table("runner", "environment", "versions")
        for entry in available():
            listed.add_row(entry.name, *_about(entry.name))
        console().print(listed)


def _about(name: str) -> tuple[str, str]:
    """Return state and versions of a runner, as text."""
    runner = load_runner(name)
    versions = runner.requirements(Recipe(), Options()).versions
    text = ", ".join(f"{package} {version}" for package, version in versions.items()) or "-"
    if not isinstance(runner, Installed):
        return "this one", text
    state, wrong = runner.environment().state()
    return (f"{state}: {wrong}" if wrong else state), text


@command.command()
@click.argument("name")
@click.option("--torch-index", metavar="ADDRESS", help="Take PyTorch, and what it needs, from another package index.")
def install(name: str, torch_index: str | None) -> None:
    """Make the environment of runner NAME from its lock file."""
    _installed(name).environment().install(click.echo, torch_index)


@command.command()
@click.argument("name")
def show(name: str) -> None:
    """Show what the trainer of runner NAME can do of a recipe, and under which options."""
    matrix = _installed(name).matrix()
    out, found = console(), matrix.capabilities
    out.print(f"{found.trainer} {matrix.version}  ({matrix.path})", style="bold")
    listed = table("in a recipe", "level", "options", "reason")
    for place, entry in _entries(found):
        listed.add_row(place, *_row(entry))
    out.print(listed)
    numbers = table("numbers of its own", "what they mean", title="\nconventions")
    for key, text in found.conventions.items():
        numbers.add_row(key, text)
    out.print(numbers)
    out.print(f"a study passes on, in its section `{name}:`  {', '.join(sorted(found.free))}")


def _entries(found: Capabilities) -> Iterator[tuple[str, Entry]]:
    for place, levels in found.levels.items():
        yield from ((f"{place}: {level}", entry) for level, entry in levels.items())
    yield from found.values.items()


def _row(entry: Entry) -> tuple[str, str, str]:
    """Return level, options and reason of an entry, as text."""
    options = [f"{k}={v.of if not isinstance(v, bool | int | float | str | None) else v}" for k, v in entry.set.items()]
    options += [f"{name}=..." for name in entry.computed]
    if entry.ours:
        options.append("by Paribus")
    reasons = [f"{entry.reason}{f'; nearest: {entry.nearest}' if entry.nearest else ''}"] if entry.reason else []
    for limit in entry.limits:
        needs = " and ".join(f"{k} in {', '.join(map(str, v))}" for k, v in limit.needs.items())
        reasons.append(f"{limit.level} unless {needs}: {limit.reason}")
    return entry.level, ", ".join(options), "\n".join(reasons)


@command.command()
@click.argument("name")
def check(name: str) -> None:
    """Compare the environment of runner NAME with its lock file, and try it: `trl` trains two steps there."""
    runner = _installed(name)
    state, wrong = runner.environment().state()
    if wrong:
        raise ParibusError(f"{name}: {state}: {wrong}")
    click.echo(f"{name}: {len(runner.environment().locked)} packages as in the lock file")
    if faults := list(runner.check()):
        raise ParibusError(f"{name}: {'; '.join(faults)}")
    click.echo(f"{name}: {runner.tried}")


def _installed(name: str) -> Installed:
    """Return a runner that has an environment of its own.

    Raises:
        ParibusError: there is no such runner, or it has none.
    """
    if problem := unknown_runner(name):
        raise ParibusError(problem)
    runner = load_runner(name)
    if not isinstance(runner, Installed):
        having = [e.name for e in available() if isinstance(load_runner(e.name), Installed)]
        raise ParibusError(f"`{name}` runs in this environment. With one of their own: {', '.join(having)}")
    return cast(Installed, runner)
