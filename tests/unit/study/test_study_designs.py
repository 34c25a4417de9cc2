"""Designs: which rows they make, and what each is compared with."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.study.designs import expand, ladders, other_orders, row_count
from paribus.study.plan import Plan
from paribus.study.spec import (
    AddOne,
    Cumulative,
    Design,
    Factorial,
    Fractional,
    Grid,
    LeaveOneOut,
    Listed,
    ListedArm,
    OneAtATime,
    Pairs,
    RandomOrders,
)

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


def test_pairs_have_the_base_each_trick_and_each_two() -> None:
    """A pair is compared with its first trick alone."""
    assert rows(Pairs(kind="pairs", tricks=("c", "a"))) == [
        ("base", None, ()),
        ("+ a", "base", ("a",)),
        ("+ c", "base", ("c",)),
        ("+ a + c", "+ a", ("a", "c")),
    ]


def test_a_half_fraction_of_three_tricks() -> None:
    """The last trick is on where one of the others is: the base and each two of them."""
    assert rows(Fractional(kind="fractional", resolution=3)) == [
        ("base", None, ()),
        ("+ a + c", "base", ("a", "c")),
        ("+ b + c", "base", ("b", "c")),
        ("+ a + b", "base", ("a", "b")),
    ]


def test_one_at_a_time_has_each_value_alone() -> None:
    """The sum of the numbers of values, where a grid has their product."""
    over = {"clip.high": (0.2, 0.3), "scale": ("none",)}
    design = OneAtATime(kind="one_at_a_time", over=over)
    assert [label for label, _, _ in rows(design)] == ["base", "clip.high=0.2", "clip.high=0.3", "scale=none"]
    assert [dict(row.steps[0].patch) for row in expand("d", design, TRICKS)[1:]] == [
        {"clip.high": 0.2}, {"clip.high": 0.3}, {"scale": "none"},
    ]  # fmt: skip


def test_a_ladder_in_several_orders_is_several_ladders() -> None:
    """The first keeps the name of the design; the reverse of each stands beside it."""
    design = Cumulative(kind="cumulative", orders=(("a", "b", "c"), ("b", "a", "c")), reverse=True)
    assert ladders("d", design) == (
        ("d", ("a", "b", "c")), ("d-reverse", ("c", "b", "a")),
        ("d-2", ("b", "a", "c")), ("d-2-reverse", ("c", "a", "b")),
    )  # fmt: skip
    found = expand("d", design, TRICKS)
    assert [row.design for row in found] == [name for name, _ in ladders("d", design) for _ in range(4)]
    assert {row.place[1] for row in found} == {"d"}


def test_random_orders_stay_the_same() -> None:
    """A golden value: no version of Python or of Paribus may change what a seed means."""
    design = Cumulative(kind="cumulative", order=("a", "b", "c"), random=RandomOrders(n=3, seed=7))
    assert [order for _, order in ladders("d", design)] == [
        ("a", "b", "c"),
        ("b", "c", "a"),
        ("c", "b", "a"),
        ("c", "a", "b"),
    ]


@given(st.integers(2, 5), st.integers(0, 50), st.booleans(), st.data())
@settings(deadline=None)
def test_random_orders_are_distinct_and_as_many_as_asked_for(
    k: int, seed: int, reverse: bool, data: st.DataObject
) -> None:
    """Up to all orders that there are; with `reverse` each comes with its reverse."""
    order = tuple("abcde"[:k])
    plain = Cumulative(kind="cumulative", order=order, reverse=reverse)
    each = 2 if reverse else 1
    if other_orders(plain) < each:
        return
    n = data.draw(st.integers(1, other_orders(plain) // each))
    found = [o for _, o in ladders("d", plain.model_copy(update={"random": RandomOrders(n=min(n, 100), seed=seed)}))]
    assert len(set(found)) == len(found) == (min(n, 100) + 1) * each
    assert all(sorted(o) == sorted(order) for o in found)
    assert not reverse or {o[::-1] for o in found} == set(found)


@given(st.permutations(sorted(TRICKS)))
@settings(deadline=None)
def test_the_rows_of_the_larger_designs_are_distinct_and_counted(order: list[str]) -> None:
    """Labels are unique, no subset of tricks comes twice, and the count is known without making them."""
    over = {"clip.high": (0.1, 0.3), "scale": ("none",)}
    designs: list[Design] = [
        Pairs(kind="pairs", tricks=tuple(order)),
        Fractional(kind="fractional", resolution=3, tricks=tuple(order)),
        OneAtATime(kind="one_at_a_time", over=over),
    ]
    for design in designs:
        found = expand("d", design, TRICKS)
        labels = [row.label for row in found]
        assert len(set(labels)) == len(labels) == row_count(design, tuple(TRICKS))
        assert labels[0] == "base"
        if not isinstance(design, OneAtATime):
            assert len({frozenset(row.tricks) for row in found}) == len(found)
