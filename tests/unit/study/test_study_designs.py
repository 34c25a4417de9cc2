"""Designs: which rows they make, and what each is compared with."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.study.designs import expand, row_count
from paribus.study.plan import Plan
from paribus.study.spec import AddOne, Cumulative, Design, Factorial, Grid, LeaveOneOut, Listed, ListedArm

TRICKS = {"a": {"clip.high": 0.3}, "b": {"aggregation": "token_batch"}, "c": {"scale": "none"}}


def rows(design: Design) -> list[tuple[str, str | None, tuple[str, ...]]]:
    """Return label, parent and tricks of each row."""
    return [(row.label, row.parent, row.tricks) for row in expand("d", design, TRICKS)]


def test_cumulative_adds_one_trick_to_the_row_above() -> None:
    """Each row is compared with the one above it and has its tricks and one more."""
    assert rows(Cumulative(kind="cumulative", order=("c", "a"))) == [
        ("base", None, ()),
        ("+ c", "base", ("c",)),
        ("+ a", "+ c", ("c", "a")),
    ]


def test_add_one_has_each_trick_alone() -> None:
    """Without a list all tricks are taken, in the order of their definition."""
    expected = [("base", None, ()), ("+ a", "base", ("a",)), ("+ b", "base", ("b",)), ("+ c", "base", ("c",))]
    assert rows(AddOne(kind="add_one")) == expected
    assert rows(AddOne(kind="add_one", tricks=("c",))) == [expected[0], expected[3]]


def test_leave_one_out_starts_from_all_tricks_in_the_order_of_their_definition() -> None:
    """The order in which tricks are named does not change what `full` is."""
    assert rows(LeaveOneOut(kind="leave_one_out", tricks=("c", "a"))) == [
        ("full", None, ("a", "c")),
        ("- a", "full", ("c",)),
        ("- c", "full", ("a",)),
    ]


def test_factorial_has_every_subset_once_and_each_row_one_trick_more_than_its_parent() -> None:
    """The 2^k rows are ordered by the number of tricks."""
    found = rows(Factorial(kind="factorial"))
    by_label = {label: tricks for label, _, tricks in found}
    assert len(found) == len({tricks for _, _, tricks in found}) == 8
    assert [len(tricks) for _, _, tricks in found] == sorted(len(tricks) for _, _, tricks in found)
    for _, parent, tricks in found[1:]:
        assert parent is not None
        assert by_label[parent] == tricks[:-1]


def test_grid_has_all_combinations() -> None:
    """Labels show path and value, also of a level with parameters."""
    over = {"clip.high": (0.2, 0.3), "filter": ("none", {"kind": "drop", "metric": "correct"})}
    assert [label for label, _, _ in rows(Grid(kind="grid", over=over))] == [
        "base",
        "clip.high=0.2, filter=none",
        "clip.high=0.2, filter=drop(metric=correct)",
        "clip.high=0.3, filter=none",
        "clip.high=0.3, filter=drop(metric=correct)",
    ]


def test_list_applies_tricks_and_then_its_own_patch() -> None:
    """An arm that is written out may overrule the tricks that it names."""
    design = Listed(kind="list", arms={"mine": ListedArm(tricks=("a", "b"), set={"clip.high": 0.4})})
    _, row = expand("d", design, TRICKS)
    assert [dict(step.patch) for step in row.steps] == [TRICKS["a"], TRICKS["b"], {"clip.high": 0.4}]


@given(st.permutations(sorted(TRICKS)), st.sampled_from(["cumulative", "add_one", "leave_one_out", "factorial"]))
@settings(deadline=None)
def test_labels_are_unique_and_the_first_row_is_the_reference(order: list[str], kind: str) -> None:
    """Every row but the first is compared with an earlier or the first row of its design."""
    designs: dict[str, Design] = {
        "cumulative": Cumulative(kind="cumulative", order=tuple(order)),
        "add_one": AddOne(kind="add_one", tricks=tuple(order)),
        "leave_one_out": LeaveOneOut(kind="leave_one_out", tricks=tuple(order)),
        "factorial": Factorial(kind="factorial", tricks=tuple(order)),
    }
    found = rows(designs[kind])
    labels = [label for label, _, _ in found]
    assert len(set(labels)) == len(labels) == row_count(designs[kind], tuple(TRICKS))
    assert found[0][1] is None
    assert all(parent in labels[:k] for k, (_, parent, _) in enumerate(found) if k)


@pytest.mark.parametrize(("design", "label", "paths"), [
    ("ladder", "+ soft_overlong", {"length.rule.kind", "length.rule.soft_start", "length.rule.hard_cap",
                                   "length.rule.factor"}),
    ("solo", "+ token_level", {"aggregation.kind"}),
    ("knockout", "- clip_higher", {"clip.high"}),
    ("clip", "clip.high=0.24, scale=group_std", {"clip.high"}),
    ("named", "dr_grpo", {"scale.kind", "scale.ddof", "scale.eps", "aggregation.kind", "reward.map"}),
    ("named", "wide", {"aggregation.kind", "clip.high"}),
])  # fmt: skip
def test_rows_of_a_plan_differ_from_their_parent_in_what_they_name(
    plan: Plan, design: str, label: str, paths: set[str]
) -> None:
    """The changes of a row are those of its trick, and nothing else."""
    row = next(row for row in plan.rows if (row.design, row.label) == (design, label))
    assert set(row.changes) >= paths
    assert {path.split(".")[0] for path in row.changes} == {path.split(".")[0] for path in paths}


def test_a_ladder_ends_where_leave_one_out_begins(plan: Plan) -> None:
    """The last row of a ladder over all tricks is the full recipe."""
    ladder = [row for row in plan.rows if row.design == "ladder"]
    full = next(row for row in plan.rows if row.label == "full")
    assert ladder[-1].arm == full.arm
    assert all(after.parent == before.label for before, after in pairwise(ladder))
