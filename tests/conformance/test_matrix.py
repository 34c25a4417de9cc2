"""What capability files call `exact` is compared here with the trainer's own function."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from conformance.row import PLAIN, Row
from conformance.table import ROWS
from paribus_runners.capabilities import Entry, Of, matrices, read_capabilities

FILES = {f"{trainer}-{version}": path for trainer in ("trl", "verl") for version, path in matrices(trainer).items()}
LIBRARY = {"trl": "TRL", "verl": "verl"}


def exact_levels(name: str) -> Iterator[tuple[str, Entry]]:
    """Yield the exact levels of a file that set options; one that sets none is in every row."""
    found = read_capabilities(FILES[name])
    entries = {f"{place}: {level}": e for place, levels in found.levels.items() for level, e in levels.items()}
    entries["auxiliary.entropy"] = found.values["auxiliary.entropy"]
    yield from ((level, e) for level, e in entries.items() if e.level == "exact" and e.set and not e.ours)


def agreeing(name: str, level: str, entry: Entry) -> list[Row]:
    """Return the rows that prove a level: of the same trainer class, with the same options, without a deviation."""
    library = LIBRARY[name.partition("-")[0]]
    rows = [row for row in ROWS if row.library == library and not row.reason and "trainer" not in row.options]
    return [
        row
        for row in rows
        if level in {each.split(" (")[0] for each in row.levels}
        and all(_sets(row, library, option, value) for option, value in entry.set.items())
    ]


def _sets(row: Row, library: str, option: str, value: object) -> bool:
    there = {**PLAIN[library], **row.options}
    if isinstance(value, Of):  # a bound that the row leaves at the trainer's default is compared, too
        return True
    return there.get(option.removeprefix("actor_rollout_ref."), value) == value


CASES = [(name, level) for name in FILES for level, _ in exact_levels(name)]


def test_there_are_files() -> None:
    """The list of cases is not empty by mistake."""
    assert len(CASES) > 15


@pytest.mark.parametrize(("name", "level"), CASES, ids=[f"{n}-{level}".replace(" ", "") for n, level in CASES])
def test_an_exact_level_has_a_row(name: str, level: str) -> None:
    """A level that nothing compares cannot say `exact`."""
    assert agreeing(name, level, dict(exact_levels(name))[level]), (
        f"{name} calls `{level}` exact: add a row, or say less"
    )
