"""The numbers of an audit as text, the same in a terminal, in Markdown and in HTML."""

from __future__ import annotations

from collections.abc import Iterator

from paribus.published.audit import REACH_WORDS, Audit, SeedTest, Step, conclusions
from paribus.published.tables import NOT_STATED, Published
from paribus.stats.power import CAP
from paribus.stats.proportions import Difference

HEADINGS = {
    "change": "difference of the printed values",
    "these problems": "95% interval if the same problems are asked again (responses as trials, rows fully correlated)",
    "problems like these": "95% interval if other problems like these are asked (problems as trials, rows independent)",
    "exceeds evaluation": "whether the step exceeds the noise of its evaluation, after Holm's correction over steps",
    "seed sd below": "the step exceeds the spread between seeds if their standard deviation is below this",
}
"""Columns of an audit, and what each shows."""

SPREADS = "whether the step exceeds this standard deviation between seeds (Holm); seeds a row that it needs"
"""What the columns after these show, one for each spread."""

NOT_KNOWN = "not known"


def facts(table: Published) -> Iterator[str]:
    """Yield what a table is and states, a line each."""
    if table.title or table.source:
        yield "; ".join(part for part in (table.title, table.source) if part)
    if table.measure or table.setting:
        yield "; ".join(part for part in (table.measure, table.setting) if part)
    rows = [table.filled(row) for row in table.rows]
    counts = []
    for name, words in (("problems", "problems"), ("samples", "samples a problem"), ("seeds", "training runs a row")):
        values = dict.fromkeys(getattr(row, name) for row in rows)
        counts.append(f"{words}: {', '.join(NOT_STATED if v is None else str(v) for v in values)}")
    yield "; ".join(counts)


def change_text(value: float, unit: str) -> str:
    """Return a difference with its sign, e.g. ``+8.0`` points or ``-0.030``."""
    return f"{value:+.{_digits(unit)}f}".replace("-", "\u2212")


def interval_text(found: Difference | None, unit: str) -> str:
    """Return ``[low, high]``, or that it is not known."""
    return NOT_KNOWN if found is None else f"[{change_text(found.low, unit)}, {change_text(found.high, unit)}]"


def seeds_text(test: SeedTest) -> str:
    """Return whether a step exceeds a spread, and the seeds a row that it needs."""
    needed = f"> {CAP}" if test.needed is None else str(test.needed)
    return f"{'yes' if test.exceeds else 'no'}; {needed}"


def columns(result: Audit) -> tuple[str, ...]:
    """Return the headings of an audit's table; the first says what its steps are compared with."""
    others = dict.fromkeys(step.against for step in result.steps)
    first = f"row, against {next(iter(others))}" if len(others) == 1 else "row, against the row above"
    if len(others) > 1 and not all_above(result):
        first = "row, against another"
    spreads = [f"sd {sd:.3g}; seeds" for sd in result.assumed]
    return (first, *HEADINGS, *(["stated sd; seeds"] if _any_stated(result) else []), *spreads)


def cells(result: Audit, step: Step) -> tuple[str, ...]:
    """Return a step as the cells below :func:`columns`."""
    unit = result.table.unit
    plain = all_above(result) or len({s.against for s in result.steps}) == 1
    found = (
        step.label if plain else f"{step.label}, against {step.against}",
        change_text(step.value, unit),
        interval_text(step.same, unit),
        interval_text(step.like, unit),
        REACH_WORDS[step.reach],
        f"{step.survives:.2g}",
    )
    stated = [seeds_text(test) for test in step.seeds if test.stated]
    assumed = [seeds_text(test) for test in step.seeds if not test.stated] or ["-"] * len(result.assumed)
    return (*found, *((stated or ["-"]) if _any_stated(result) else []), *assumed)


def _any_stated(result: Audit) -> bool:
    return any(test.stated for step in result.steps for test in step.seeds)


def all_above(result: Audit) -> bool:
    """Whether each step compares a row with the one above it."""
    labels = [row.label for row in result.table.rows]
    return all(labels.index(s.label) == labels.index(s.against) + 1 for s in result.steps)


def markdown(result: Audit) -> str:
    """Return an audit as a section of a page, without its title."""
    names = columns(result)
    lines = [*(f"{line}.  " for line in facts(result.table)), result.table.stated, ""]
    lines += [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
    for step in result.steps:
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells(result, step))} |")
    return "\n".join([*lines, "", *(f"* {line}" for line in conclusions(result))])


def _digits(unit: str) -> int:
    return 1 if unit == "%" else 3
