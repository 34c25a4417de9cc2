"""Faults of designs: each is told at once, where it stands, with a remedy."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paribus.errors import StudyFileError
from paribus.study.load import LoadedStudy

Read = Callable[[str], LoadedStudy]
HEAD = """\
study: s
base: {preset: grpo, set: {kl: off}}
tricks: {a: {clip.high: 0.3}, b: {aggregation: token_batch}, c: {scale: none}}
designs:
"""
CASES = {
    "unknown trick in a second order": (
        "  d: {kind: cumulative, orders: [[a, b], [b, x]]}",
        "5:46: designs.d.orders.2.2: there is no trick `x`.",
    ),
    "another set of tricks": (
        "  d: {kind: cumulative, orders: [[a, b], [b, c]]}",
        "5:42: designs.d.orders.2: has other tricks than the first order",
    ),
    "an order twice": (
        "  d: {kind: cumulative, orders: [[a, b], [a, b]]}",
        "5:42: designs.d.orders.2: this order appears twice",
    ),
    "no order": (
        "  d: {kind: cumulative}",
        "5:3: designs.d: `order` is missing, or `orders`: write the tricks as they are added, e.g. `order: [",
    ),
    "both": (
        "  d: {kind: cumulative, order: [a], orders: [[a]]}",
        "5:37: designs.d.orders: `order` and `orders` exclude",
    ),
    "too many random orders": (
        "  d: {kind: cumulative, order: [a, b], reverse: true, random: {n: 1, seed: 0}}",
        "5:67: designs.d.random.n: asks for 2 orders beside those written out; 2 tricks have 0 more: leave `random`",
    ),
    "a name that is taken": (
        "  d: {kind: cumulative, order: [a, b], reverse: true}\n  d-reverse: {kind: add_one}",
        "6:3: designs.d-reverse: a further ladder of the design `d` already has the name `d-reverse`",
    ),
    "too few tricks for pairs": (
        "  d: {kind: pairs, tricks: [a]}",
        "5:6: designs.d: `pairs` needs 2 tricks or more, and there are 1: use `add_one`",
    ),
    "too few tricks for a fraction": (
        "  d: {kind: fractional, resolution: 3, tricks: [a, b]}",
        "5:6: designs.d: `fractional` needs 3 tricks or more, and there are 2: use `factorial`",
    ),
    "no such fraction": (
        "  d: {kind: fractional, resolution: 4}",
        "5:37: designs.d.resolution: no fraction of 3 tricks has resolution IV: use `resolution: 3`, 4 rows, "
        "or `factorial` without `resolution`, 8 rows",
    ),
    "a resolution that is none": ("  d: {kind: fractional, resolution: 2}", "5:37: designs.d.resolution: "),
    "no resolution": ("  d: {kind: fractional}", "5:3: designs.d: `resolution` is missing"),
    "unknown trick in a fraction": (
        "  d: {kind: fractional, resolution: 3, tricks: [a, b, bb]}",
        "5:55: designs.d.tricks.3: there is no trick `bb`.",
    ),
    "a value twice": (
        "  d: {kind: one_at_a_time, over: {clip.high: [0.3, 0.3]}}",
        "5:52: designs.d.over.clip.high.2: the value 0.3 appears twice",
    ),
    "a value that is wrong": (
        "  d: {kind: one_at_a_time, over: {clip.high: [0.3, wide]}}",
        "5:52: designs.d.over.clip.high.2: expects a number",
    ),
    "rows without asking": (
        "  d: {kind: grid, over: {clip.high: [" + ", ".join(f"0.{k}" for k in range(100, 230)) + "]}}",
        "5:6: designs.d: makes 131 rows; more than 128 have to be asked for: `budget: {rows: 131}`",
    ),
    "more rows than asked for": (
        "  d: {kind: factorial}\nbudget: {rows: 7}",
        "5:6: designs.d: makes 8 rows; more than 7 have to be asked for: `budget: {rows: 8}`",
    ),
    "a prior upside down": (
        "  d: {kind: factorial}\nbudget: {prior: {low: 2.0, expected: 1.0, high: 3.0}}",
        "6:38: budget.prior.expected: `low`, `expected` and `high` must stand in this order of size, and 2, 1 and 3",
    ),
    "a rule for pairs without pairs": (
        "  d: {kind: add_one}\nseeds: {paired: false}\nreport: {pairing: where_it_helps}",
        "7:19: report.pairing: `where_it_helps` decides about pairs of seeds, and `seeds.paired: false` makes none",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_faults_of_designs_have_place_and_remedy(read: Read, name: str) -> None:
    """Line, column, path and what to do."""
    text, expected = CASES[name]
    with pytest.raises(StudyFileError) as caught:
        read(HEAD + text + "\n")
    assert expected in str(caught.value)


def test_many_rows_may_be_asked_for(read: Read) -> None:
    """`budget.rows` says that a large design is meant."""
    values = ", ".join(f"0.{k}" for k in range(100, 230))
    read(HEAD + f"  d: {{kind: grid, over: {{clip.high: [{values}]}}}}\nbudget: {{rows: 131}}\n")


def test_a_broken_trick_does_not_hide_a_fraction(read: Read) -> None:
    """Its own fault is told; the fraction is not blamed for having a trick less."""
    with pytest.raises(StudyFileError) as caught:
        read(HEAD.replace("{scale: none}", "3") + "  d: {kind: fractional, resolution: 3}\n")
    assert "tricks.c" in str(caught.value)
    assert "designs.d" not in str(caught.value)
