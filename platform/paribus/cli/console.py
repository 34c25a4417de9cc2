"""How commands print: with rich in a terminal, as plain text of a fixed width elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import BaseModel
from rich import box
from rich.console import Console
from rich.table import Table

from paribus.recipe.recipe import flatten
from paribus.store.states import RunState
from paribus.study.plan import PlanWarning

WIDTH = 100
"""Columns of output without a terminal."""

NARROWEST = 80
"""Columns below which the tables of a report aren't set."""


def console() -> Console:
    """Return a console on standard output; without a terminal it is plain and :data:`WIDTH` wide."""
    found = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
    if found.is_terminal:
        return found
    return Console(highlight=False, markup=False, emoji=False, width=WIDTH, no_color=True)


def report_width() -> int:
    """Return the columns that a report gets: those of the terminal, 80 at least; without one :data:`WIDTH`."""
    return max(NARROWEST, console().width)


def table(*columns: str, title: str | None = None) -> Table:
    """Return an empty table with these columns, in the style of all commands."""
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style="bold")
    for name in columns:
        made.add_column(name, overflow="fold")
    return made


def print_warnings(warnings: Iterable[PlanWarning], out: Console) -> None:
    """Print the warnings of a plan, each with the code that silences it."""
    out.print("warnings (`allow: [code]` silences one)", style="bold")
    listed = Table.grid(padding=(0, 1), pad_edge=True)
    for warning in warnings:
        listed.add_row(f" [{warning.code}]", warning.message)
    out.print(listed)


def shown(value: object) -> str:
    """Return a value as tables show it."""
    if value is None:
        return "-"
    return str(value).lower() if isinstance(value, bool) else str(value)


def describe(part: BaseModel) -> str:
    """Return a part of a recipe as one line: its level, then its parameters."""
    dumped = flatten(part.model_dump(mode="json"))
    values = {path: value for path, value in dumped.items() if value is not None or "." not in path}
    kind = values.pop("kind", "")
    rest = ", ".join(f"{path.removesuffix('.kind')}={shown(value)}" for path, value in values.items())
    return f"{kind} ({rest})" if kind and rest else kind or rest


def states_text(counts: Mapping[RunState, int] | Mapping[str, int]) -> str:
    """Return e.g. ``3 succeeded, 2 queued``."""
    return ", ".join(f"{n} {state.lower().replace('_', ' ')}" for state, n in counts.items())


def terms_text(priority: int, weight: float) -> str:
    """Return e.g. ``priority 0, weight 1``."""
    return f"priority {priority}, weight {weight:g}"
