"""``paribus recipes``: the presets."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from paribus.recipe.presets import Preset


@click.group(invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List the presets; `show` one, or `diff` two."""
    if ctx.invoked_subcommand is not None:
        return
    from paribus.cli.console import console, table
    from paribus.recipe.presets import load_preset, preset_names

    listed = table("preset", "method", "source")
    for name in preset_names():
        preset = load_preset(name)
        title = f"{preset.title} (= {preset.alias_of})" if preset.alias_of else preset.title
        listed.add_row(name, title, preset.source)
    console().print(listed)


@command.command()
@click.argument("name")
def show(name: str) -> None:
    """Print one preset: its source, the source's hyperparameters, deviations, and every factor."""
    from paribus.cli.console import console, table
    from paribus.recipe.presets import load_preset

    preset = load_preset(name)
    out = console()
    out.print(f"{preset.name}: {preset.title}", style="bold")
    out.print(f"source: {preset.source}")
    if preset.alias_of:
        out.print(f"another name for: {preset.alias_of}")
    if preset.note:
        out.print(f"note: {preset.note}")
    factors = table("factor", "level and parameters")
    for factor, level in _levels(preset):
        factors.add_row(factor, level)
    out.print(factors)
    _lines("the source's hyperparameters (not applied)", [f"{k}: {v}" for k, v in preset.defaults.items()])
    _lines("deviations and open points", list(preset.deviations))


@command.command()
@click.argument("before")
@click.argument("after")
def diff(before: str, after: str) -> None:
    """Print what differs between two presets."""
    from paribus.cli.console import console, shown, table
    from paribus.recipe.presets import load_preset
    from paribus.recipe.recipe import difference

    one, other = load_preset(before), load_preset(after)
    changes = difference(one.recipe, other.recipe)
    if not changes:
        console().print(f"{before} and {after} are the same recipe.{_alias(one)}{_alias(other)}")
        return
    found = table("path", before, after)
    for path, (old, new) in changes.items():
        found.add_row(path, shown(old), shown(new))
    console().print(found)


def _alias(preset: Preset) -> str:
    return f" `{preset.name}` is another name for `{preset.alias_of}`." if preset.alias_of else ""


def _levels(preset: Preset) -> Iterator[tuple[str, str]]:
    """Yield what the preset sets, in the order in which the factors act; of the schedule that is little."""
    from paribus.cli.console import describe, shown
    from paribus.recipe.recipe import FACTORS, flatten

    values = flatten(preset.recipe.model_dump(mode="json"))
    yield "loss", describe(preset.recipe.loss)
    for path, value in values.items():
        if any(path == key or path.startswith(f"{key}.") for key in preset.set if key.startswith("schedule.")):
            yield path.removesuffix(".kind"), shown(value)
    for factor in FACTORS[1:]:
        yield factor, describe(getattr(preset.recipe, factor))


def _lines(title: str, lines: list[str]) -> None:
    from paribus.cli.console import console

    if lines:
        console().print(f"\n{title}:")
        for line in lines:
            console().print(f"  {line}")
