"""``paribus runners``: lists runners, installs the environments of trainers, shows what they can do, and tries them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Protocol, cast, runtime_checkable

import click

from paribus.cli import Group
from paribus.cli.console import console, table
from paribus.cli.options import json_option
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


@click.group(cls=Group, invoke_without_command=True)
@json_option
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List the installed runners: state and versions of the environment of each."""
    if context.invoked_subcommand is not None:
        return
    found = {entry.name: _about(entry.name) for entry in available()}
    if as_json:
        keys = ("environment", "wrong", "versions")
        runners = [{"name": name, **dict(zip(keys, about, strict=True))} for name, about in found.items()]
        click.echo(json.dumps({"runners": runners}, indent=1))
        return
    listed = table("runner", "environment", "versions")
    for name, (state, wrong, versions) in found.items():
        text = ", ".join(f"{package} {version}" for package, version in versions.items()) or "-"
        listed.add_row(name, f"{state}: {wrong}" if wrong else state, text)
    console().print(listed)


def _about(name: str) -> tuple[str, str, Mapping[str, str]]:
    """Return the state of a runner's environment, what is wrong with it, and the versions of its packages."""
    runner = load_runner(name)
    versions = runner.requirements(Recipe(), Options()).versions
    state, wrong = runner.environment().state() if isinstance(runner, Installed) else ("this one", "")
    return state, wrong, versions


@command.command()
@click.argument("name")
@click.option("--torch-index", metavar="ADDRESS", help="Take PyTorch, and what it needs, from another package index.")
def install(name: str, torch_index: str | None) -> None:
    """Make the environment of runner NAME from its lock file."""
    _installed(name).environment().install(click.echo, torch_index)


@command.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show what the trainer of runner NAME can do of a recipe, and under which options."""
    matrix = _installed(name).matrix()
    found = matrix.capabilities
    if as_json:
        keys = ("level", "options", "reason")
        rows = [{"recipe": place, **dict(zip(keys, _row(entry), strict=True))} for place, entry in _entries(found)]
        about = {"runner": name, "trainer": found.trainer, "version": matrix.version, "file": str(matrix.path)}
        rest = {"conventions": dict(found.conventions), "passed_on": sorted(found.free)}
        click.echo(json.dumps({**about, "levels": rows, **rest}, indent=1))
        return
    out = console()
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
@json_option
def check(name: str, as_json: bool) -> None:
    """Compare the environment of runner NAME with its lock file, and try it: `trl` trains two steps there."""
    runner = _installed(name)
    state, wrong = runner.environment().state()
    if wrong:
        raise ParibusError(f"{name}: {state}: {wrong}")
    packages = len(runner.environment().locked)
    if not as_json:
        click.echo(f"{name}: {packages} packages as in the lock file")
    if faults := list(runner.check()):
        raise ParibusError(f"{name}: {'; '.join(faults)}")
    click.echo(
        json.dumps({"runner": name, "packages": packages, "tried": runner.tried}, indent=1)
        if as_json
        else f"{name}: {runner.tried}"
    )


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
