"""What a plan says each design costs and can show, and its notes on the rows of larger designs."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paribus.study.expand import make_plan
from paribus.study.load import LoadedStudy
from paribus.study.plan import Plan
from paribus.study.precision import DesignSummary, design_summaries, order_summaries
from paribus.study.spec import Study
from paribus.testing.fake_runner import FakeRunner

Read = Callable[[str], LoadedStudy]
HEAD = """\
study: s
base: {preset: grpo, set: {kl: off, schedule: {minibatches: 8}}}
tricks:
  a: {clip.high: 0.3}
  b: {aggregation: token_batch}
  c: {scale: none}
  d: {filter: {kind: drop, metric: correct}}
  e: {baseline: group_loo}
seeds: {n: 4, paired: false}
designs:
"""


def planned(read: Read, designs: str) -> tuple[Study, Plan]:
    """Return a study with these designs and its plan."""
    study = read(HEAD + designs)
    return study.spec, make_plan(study, FakeRunner())


def summary(read: Read, design: str) -> DesignSummary:
    """Return the summary of one design."""
    (found,) = design_summaries(*planned(read, f"  x: {design}\n"))
    return found


@pytest.mark.parametrize(("design", "sentence"), [
    ("{kind: factorial}", "resolution V gives all main effects and interactions of two in 16 rows instead of 32"),
    ("{kind: factorial, tricks: [a, b, c, d]}", "resolution IV has 8 rows instead of 16"),
    ("{kind: factorial, tricks: [a, b, c]}", ""),
    ("{kind: pairs}", "resolution V has as many rows and measures every trick"),
    ("{kind: pairs, tricks: [a, b, c, d]}", ""),
    ("{kind: grid, over: {clip.high: [0.24, 0.3, 0.4], clip.low: [0.1, 0.3, 0.4]}}", "has 7 rows instead of 10"),
    ("{kind: grid, over: {clip.high: [0.24, 0.3]}}", ""),
    ("{kind: add_one}", ""),
])  # fmt: skip
def test_cheaper_designs_are_named_only_where_they_exist(read: Read, design: str, sentence: str) -> None:
    """One sentence with the numbers of rows, or nothing."""
    cheaper = summary(read, design).cheaper
    assert (sentence in cheaper) if sentence else cheaper == ""


@pytest.mark.parametrize(("design", "expected"), [
    ("{kind: add_one}", [("trick alone", 5, (2 / 4) ** 0.5)]),
    ("{kind: leave_one_out}", [("trick in full recipe", 5, (2 / 4) ** 0.5)]),
    ("{kind: pairs, tricks: [a, b, c]}", [("one trick more", 6, (2 / 4) ** 0.5), ("interaction", 3, 1.0)]),
    ("{kind: fractional, resolution: 5}", [("main effect", 5, (4 / 64) ** 0.5), ("interaction", 10, (16 / 64) ** 0.5)]),
    ("{kind: grid, over: {clip.high: [0.2, 0.24], clip.low: [0.1, 0.2, 0.3]}}",
     [("difference to base", 5, (2 / 4) ** 0.5), ("between values", 1, (2 / 12) ** 0.5),
      ("between values", 2, (2 / 8) ** 0.5), ("interaction", 2, 1.0)]),
    ("{kind: one_at_a_time, over: {clip.high: [0.2, 0.24]}}", [("difference to base", 1, (2 / 4) ** 0.5)]),
])  # fmt: skip
def test_precision_is_that_of_the_design_matrix(
    read: Read, design: str, expected: list[tuple[str, int, float]]
) -> None:
    """A value that is the base's own makes no difference, and is not counted."""
    found = [(p.effect, p.count, p.se) for p in summary(read, design).precisions]
    assert [f[:2] for f in found] == [e[:2] for e in expected]
    assert [f[2] for f in found] == pytest.approx([e[2] for e in expected])


def test_hours_are_those_of_the_runs_without_a_result(read: Read) -> None:
    """Recorded runs cost nothing; without a prior nothing is said."""
    study, plan = planned(read, "  x: {kind: add_one}\nbudget: {prior: {low: 1.0, expected: 2.0, high: 4.0}}\n")
    recorded = frozenset(run.fingerprint for run in plan.runs[:6])
    (found,) = design_summaries(study, plan, recorded)
    assert (found.cells, found.runs, found.unrecorded) == (6, 24, 18)
    assert found.cost is not None
    assert (found.cost.low, found.cost.expected, found.cost.high) == (18.0, 36.0, 72.0)
    assert summary(read, "{kind: add_one}").cost is None


def test_ladders_over_the_same_tricks_are_taken_together(read: Read) -> None:
    """Also those of two designs; one alone, or one over other tricks, has no mean over orders."""
    ladders = "  x: {kind: cumulative, order: [a, b]}\n  y: {kind: cumulative, order: [b, a]}\n"
    _, plan = planned(read, ladders + "  z: {kind: cumulative, order: [a, c]}\n")
    ((names, (mean,)),) = order_summaries(plan)
    assert names == ("x", "y")
    assert (mean.effect, mean.count, mean.se) == ("mean of 2 orders", 2, pytest.approx(0.5))


def test_arms_of_a_union_are_trained_once(read: Read) -> None:
    """Pairs and the reverse ladder stand in the factorial already, so they add no run."""
    designs = "  all: {kind: factorial, tricks: [a, b, c]}\n  two: {kind: pairs, tricks: [a, b, c]}\n"
    designs += "  half: {kind: fractional, resolution: 3, tricks: [a, b, c]}\n"
    designs += "  up: {kind: cumulative, order: [a, b, c]}\n"
    _, plan = planned(read, designs)
    assert (len(plan.arms), len(plan.runs)) == (8, 32)
    _, plan = planned(read, designs + "  down: {kind: cumulative, order: [c, b, a]}\n")
    assert len(plan.arms) == 8


def test_notes_look_at_the_tricks_of_a_fraction_alone(read: Read) -> None:
    """Its rows change several tricks at once, behind which one that cannot act would hide."""
    text = (
        HEAD.replace("minibatches: 8", "minibatches: 1") + "  x: {kind: fractional, resolution: 3, tricks: [a, b, d]}\n"
    )
    notes = [n.message for n in make_plan(read(text), FakeRunner()).warnings if n.code == "inert"]
    assert len(notes) == 1
    assert notes[0].startswith("x: `+ a`: ")


def test_notes_look_at_the_second_trick_of_a_pair(read: Read) -> None:
    """A pair is compared with its first trick alone, and what cannot act there is told."""
    text = HEAD.replace("minibatches: 8", "minibatches: 1") + "  x: {kind: pairs, tricks: [b, a]}\n"
    (note,) = [n.message for n in make_plan(read(text), FakeRunner()).warnings if n.code == "inert"]
    assert note.startswith("x: `+ a`: ")
    assert len([n for n in make_plan(read(text), FakeRunner()).warnings if n.code == "confounded"]) == 1
