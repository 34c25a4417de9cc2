"""Tricks that need each other or conflict: which rows there are, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paribus.errors import StudyFileError
from paribus.study.dependencies import Dependencies, dependency_faults
from paribus.study.design_faults import design_faults
from paribus.study.designs import expand, row_count
from paribus.study.load import LoadedStudy
from paribus.study.spec import AddOne, Base, Cumulative, Design, LeaveOneOut, Study

Read = Callable[[str], LoadedStudy]
HEAD = """\
study: s
base: {preset: grpo, set: {kl: off}}
tricks:
  a: {clip.high: 0.28}
  b: {aggregation: token_batch}
  c: {scale: none}
"""
TRICKS: dict[str, dict[str, Any]] = {
    "a": {"clip.high": 0.3},
    "b": {"aggregation": "token_batch"},
    "c": {"scale": "none"},
    "d": {"kl": "off"},
}


def rows_of(study: LoadedStudy, design: str) -> list[tuple[str, str | None, tuple[str, ...]]]:
    """Return label, parent and tricks of each row of a design."""
    return [(row.label, row.parent, row.tricks) for row, _ in study.rows if row.design == design]


def lines(read: Read, content: str) -> list[str]:
    """Return the messages of a refused study, without the folder of the file."""
    with pytest.raises(StudyFileError) as caught:
        read(content)
    folder = f"{Path(caught.value.file).parent}/"
    return [line.removeprefix(folder) for line in str(caught.value).splitlines()]


def test_a_trick_that_needs_another_is_added_to_it(read: Read) -> None:
    """`add_one` compares it with the row of what it needs, and adds this row where no trick of the design makes it."""
    study = read(HEAD + "needs: {b: [a], c: [b]}\ndesigns: {d: {kind: add_one}, e: {kind: add_one, tricks: [c]}}\n")
    assert rows_of(study, "d") == [
        ("base", None, ()),
        ("+ a", "base", ("a",)),
        ("+ a + b", "+ a", ("a", "b")),
        ("+ a + b + c", "+ a + b", ("a", "b", "c")),
    ]
    assert rows_of(study, "e") == [
        ("base", None, ()),
        ("+ a + b", "base", ("a", "b")),
        ("+ a + b + c", "+ a + b", ("a", "b", "c")),
    ]


def test_what_needs_a_trick_goes_with_it(read: Read) -> None:
    """The label of a row of `leave_one_out` says all that is gone."""
    study = read(HEAD + "needs: {b: [a]}\ndesigns: {d: {kind: leave_one_out}}\n")
    assert rows_of(study, "d") == [
        ("full", None, ("a", "b", "c")),
        ("- a - b", "full", ("c",)),
        ("- b", "full", ("a", "c")),
        ("- c", "full", ("a", "b")),
    ]


def test_a_trick_is_applied_and_checked_after_what_it_needs(read: Read) -> None:
    """A parameter of a level that another trick chooses is right only with that trick, wherever it is defined."""
    text = """\
study: s
base: {preset: grpo, set: {kl: off}}
tricks: {c: {clip.c: 5.0}, dual: {clip: ppo_dual}}
designs: {d: {kind: add_one}, full: {kind: leave_one_out}}
"""
    study = read(text + "needs: {c: [dual]}\n")
    recipes = {(row.design, row.label): recipe for row, recipe in study.rows}
    assert recipes["d", "+ dual + c"] == recipes["full", "full"]
    assert recipes["full", "full"].clip.model_dump()["c"] == 5.0
    assert any("has no parameter `c`" in line for line in lines(read, text))


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("needs: {b: [aa]}\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:7:13: needs.b.1: there is no trick `aa`. Did you mean `a`? Tricks of this study: a, b, c."),
        ("needs: {bb: [a]}\ndesigns: {d: {kind: add_one}}\n", "study.yaml:7:9: needs.bb: there is no trick `bb`."),
        ("needs: {b: [b]}\ndesigns: {d: {kind: add_one}}\n", "study.yaml:7:13: needs.b.1: `b` needs itself"),
        ("needs: {b: a}\ndesigns: {d: {kind: add_one}}\n", "study.yaml:7:12: needs.b: expects a list"),
        ("needs:\n  b: [a]\n  a: [c]\n  c: [b]\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:8:3: needs.b: a circle: `b` -> `a` -> `c` -> `b`. Make one trick of b, a, c, or leave one"),
        ("needs: {b: [a]}\nconflicts: [[c, a, b]]\ndesigns: {d: {kind: add_one}}\n",
         "study.yaml:7:9: needs.b: `b` can be in no row: with all that it needs, `a` and `b` conflict"),
        ("conflicts: [[a, x]]\ndesigns: {d: {kind: add_one}}\n", "study.yaml:7:17: conflicts.1.2: there is no trick"),
        ("conflicts: [[a]]\ndesigns: {d: {kind: add_one}}\n", "study.yaml:7:13: conflicts.1: "),
        ("needs: {a: [b]}\ndesigns: {d: {kind: cumulative, order: [a, c, b]}}\n",
         "study.yaml:8:41: designs.d.order.1: `a` needs `b`, which this order adds later. This order would do: [c, b, "
         "a]"),
        ("needs: {a: [b]}\ndesigns: {d: {kind: cumulative, orders: [[b, a], [a, b]]}}\n",
         "study.yaml:8:51: designs.d.orders.2.1: `a` needs `b`, which this order adds later."),
        ("needs: {a: [b]}\ndesigns: {d: {kind: cumulative, order: [a, c]}}\n",
         "study.yaml:8:41: designs.d.order.1: `a` needs `b`, which this order lacks: add it, or leave `a` out"),
        ("needs: {b: [a]}\ndesigns: {d: {kind: cumulative, order: [a, b], reverse: true}}\n",
         "study.yaml:8:48: designs.d.reverse: orders may have `b` before `a`, which it needs"),
        ("conflicts: [[a, b]]\ndesigns: {d: {kind: cumulative, order: [a, b]}}\n",
         "study.yaml:8:44: designs.d.order.2: `a` and `b` conflict, and a ladder keeps each trick: write two ladders"),
        ("conflicts: [[a, b]]\ndesigns: {d: {kind: leave_one_out}}\n",
         "study.yaml:8:14: designs.d: `a` and `b` conflict, and `full` would have both: name tricks that go together, "
         "e.g. `tricks: [a, c]`"),
        ("needs: {b: [a]}\ndesigns: {d: {kind: leave_one_out, tricks: [c, b]}}\n",
         "study.yaml:8:48: designs.d.tricks.2: `b` needs `a`, which this design lacks"),
        ("needs: {b: [a]}\ndesigns: {d: {kind: factorial}}\n",
         "study.yaml:8:14: designs.d: `b` needs `a`. `factorial` has rows with and without each trick, in any "
         "combination: name tricks that allow this, e.g. `tricks: [a, c]`, write what belongs together as one trick"),
        ("conflicts: [[a, c]]\ndesigns: {d: {kind: fractional, resolution: 3}}\n", "study.yaml:8:14: designs.d: `a` "),
        ("conflicts: [[a, c]]\ndesigns: {d: {kind: pairs, tricks: [a, c]}}\n", "study.yaml:8:36: designs.d.tricks: "),
        ("needs: {b: [a]}\ndesigns: {d: {kind: list, arms: {x: {tricks: [b]}}}}\n",
         "study.yaml:8:47: designs.d.arms.x.tricks.1: `b` needs `a`, which this arm lacks: add it, or leave `b` out"),
        ("conflicts: [[b, a]]\ndesigns: {d: {kind: list, arms: {x: {tricks: [a, b]}}}}\n",
         "study.yaml:8:50: designs.d.arms.x.tricks.2: `a` and `b` conflict: leave one out"),
        ("needs: {b: [a]}\ndesigns: {d: {kind: search, over: {clip.low: {low: 0.1, high: 0.2}}, trials: 2}}\n",
         "study.yaml:8:14: designs.d: `b` needs `a`. A search tunes each trick by itself"),
    ],
)  # fmt: skip
def test_what_breaks_the_rules_is_refused(read: Read, content: str, line: str) -> None:
    """With its place, what is allowed, and a remedy; and nothing else is said."""
    [message] = lines(read, HEAD + content)
    assert message.startswith(line), message


def test_all_faults_come_at_once(read: Read) -> None:
    """Of several designs and several rules; where rules are wrong, what follows from them is not reported."""
    found = lines(
        read, HEAD + "needs: {b: [a]}\nconflicts: [[a, c]]\ndesigns:\n  d: {kind: pairs}\n  e: {kind: leave_one_out}\n"
    )
    assert [line.split(": ")[1] for line in found] == ["designs.d", "designs.e"]
    found = lines(read, HEAD + "needs: {b: [x]}\nconflicts: [[y, c]]\ndesigns:\n  d: {kind: pairs}\n")
    assert [line.split(": ")[1] for line in found] == ["needs.b.1", "conflicts.1.1"]


NAMES = st.permutations(sorted(TRICKS))
PAIRS = st.lists(st.sampled_from([*combinations(sorted(TRICKS), 2)]), max_size=3, unique=True)
DESIGNS = st.one_of(
    st.just(AddOne(kind="add_one")),
    st.just(LeaveOneOut(kind="leave_one_out")),
    st.lists(st.sampled_from(sorted(TRICKS)), min_size=1, unique=True).map(
        lambda tricks: LeaveOneOut(kind="leave_one_out", tricks=tuple(tricks))
    ),
    st.lists(st.sampled_from(sorted(TRICKS)), min_size=1, unique=True).map(
        lambda tricks: AddOne(kind="add_one", tricks=tuple(tricks))
    ),
    NAMES.map(lambda order: Cumulative(kind="cumulative", order=tuple(order))),
)


def study_with(design: Design, needs: dict[str, tuple[str, ...]], conflicts: tuple[tuple[str, ...], ...]) -> Study:
    """Return a study with one design."""
    base = Base(preset="grpo", set={"kl": "off"})
    return Study(study="s", base=base, tricks=TRICKS, designs={"d": design}, needs=needs, conflicts=conflicts)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(design=DESIGNS, order=NAMES, needed=PAIRS, apart=PAIRS)
def test_no_row_breaks_a_rule(
    design: Design, order: list[str], needed: list[tuple[str, str]], apart: list[tuple[str, str]]
) -> None:
    """Of a design that is not refused: checked here with the written rules, one need at a time."""
    place = {name: k for k, name in enumerate(order)}
    needs: dict[str, tuple[str, ...]] = {}
    for pair in needed:
        before, after = sorted(pair, key=place.__getitem__)  # never a circle
        needs[after] = (*needs.get(after, ()), before)
    study = study_with(design, needs, tuple(apart))
    if dependency_faults(study, tuple(TRICKS)):
        return
    rules = Dependencies.of(study)
    if design_faults("d", study, tuple(TRICKS), rules):
        return
    ordered = {name: TRICKS[name] for name in rules.in_order(TRICKS)}
    rows = expand("d", design, ordered, rules)
    labels = [row.label for row in rows]
    assert len({*labels}) == len(labels) == row_count(design, tuple(TRICKS), rules)
    for row in rows:
        assert row.parent is None or row.parent in labels[: labels.index(row.label)]
        for k, trick in enumerate(row.tricks):
            assert {*needs.get(trick, ())} <= {*row.tricks[:k]}
        assert not any({*pair} <= {*row.tricks} for pair in apart)


@given(design=DESIGNS)
def test_without_rules_rows_are_those_of_before(design: Design) -> None:
    """One row for each trick, under the names and with the parents that they have always had."""
    study = study_with(design, {}, ())
    rows = [(row.label, row.parent, row.tricks) for row in expand("d", design, TRICKS, Dependencies.of(study))]
    if isinstance(design, Cumulative):
        order = design.order or ()
        above = ["base", *(f"+ {name}" for name in order)]
        steps = [(f"+ {name}", above[k], order[: k + 1]) for k, name in enumerate(order)]
        assert rows == [("base", None, ()), *steps]
        return
    assert isinstance(design, (AddOne, LeaveOneOut))
    chosen = design.tricks or tuple(TRICKS)
    full = tuple(name for name in TRICKS if name in chosen)
    if isinstance(design, AddOne):
        assert rows == [("base", None, ()), *((f"+ {name}", "base", (name,)) for name in chosen)]
    else:
        left = {name: tuple(other for other in full if other != name) for name in full}
        assert rows == [("full", None, full), *((f"- {name}", "full", left[name]) for name in full)]


@pytest.mark.parametrize("written", ["strong, a", "a, strong"])
def test_an_arm_applies_a_trick_after_what_it_needs(read: Read, written: str) -> None:
    """Whatever the order in the arm, the level comes first and then its parameter, as in a generated row."""
    study = read(
        "study: s\nbase: {preset: grpo, set: {kl: off}}\n"
        "tricks:\n  a: {kl: {kind: loss, beta: 0.05, estimator: k3}}\n  strong: {kl.beta: 0.5}\nneeds: {strong: [a]}\n"
        f"designs: {{d: {{kind: list, arms: {{x: {{tricks: [{written}]}}}}}}, e: {{kind: add_one}}}}\n"
    )
    recipes = {(row.design, row.label): recipe for row, recipe in study.rows}
    assert recipes["d", "x"] == recipes["e", "+ a + strong"]
    assert recipes["d", "x"].model_dump()["kl"]["beta"] == 0.5
