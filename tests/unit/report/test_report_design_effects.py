"""The tables of main effects, interactions and orders: from plans with made-up results to printed numbers."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from paribus.report.analysis.effect import contrast
from paribus.report.build import build_report
from paribus.report.model import ReportModel, Table
from paribus.report.render.latex import to_latex
from paribus.report.render.text import to_markdown
from paribus.stats.intervals import difference_interval
from paribus.study.expand import make_plan
from paribus.study.load import load_study
from paribus.study.plan import Plan
from paribus.testing.fake_runner import FakeRunner
from support.studies import made_up_results

STUDY = """\
study: effects
base: {preset: grpo, set: {kl: off, schedule: {steps: 4, minibatches: 8}}}
tricks:
  a: {clip.high: 0.28}
  b: {aggregation: token_batch}
  c: {scale: none}
  d: {filter: {kind: drop, metric: correct}}
designs: DESIGN
seeds: {n: SEEDS, paired: PAIRED}
evaluate: {every: 1, problems: 200}
"""


Lost = Callable[[tuple[str, ...], int], bool]
"""Whether the run with these tricks and the k-th seed of its arm failed."""


@pytest.fixture
def report(tmp_path: Path) -> Callable[..., ReportModel]:
    """A function from a design to the report of made-up results: a adds 0.1, b 0.05, both together 0.1 more."""

    def build(
        design: str,
        *,
        seeds: int = 4,
        paired: bool = True,
        spread: float = 0.01,
        c: str = "none",
        lost: Lost = lambda tricks, k: False,
    ) -> ReportModel:
        path = tmp_path / "s.yaml"
        text = STUDY.replace("DESIGN", design).replace("SEEDS", str(seeds)).replace("PAIRED", str(paired).lower())
        path.write_text(text.replace("scale: none}\n  d", f"scale: {c}}}\n  d"))
        plan = make_plan(load_study(path), FakeRunner())
        data = made_up_results(plan, lambda arm, seed: score(plan, arm, seed, spread))
        kth = dict[str, int]()
        runs = []
        for run in data.runs:
            kth[run.arm] = kth.get(run.arm, -1) + 1
            tricks = next(row.tricks for row in plan.rows if row.arm == run.arm)
            runs.append(replace(run, outcome="failed") if lost(tricks, kth[run.arm]) else run)
        return build_report(replace(data, runs=tuple(runs)))

    return build


def score(plan: Plan, arm: str, seed: int, spread: float) -> float:
    """Return the true score of an arm, with noise of the seed and of the run."""
    on = next(set(row.tricks) for row in plan.rows if row.arm == arm)
    true = 0.4 + 0.1 * ("a" in on) + 0.05 * ("b" in on) + 0.1 * ({"a", "b"} <= on)
    return true + 0.03 * (seed % 5) + random.Random(f"{arm}/{seed}").gauss(0, spread)


def table(report: ReportModel, key: str) -> Table:
    """Return the table with this key."""
    return next(t for t in report.tables if t.key == key)


def values(found: Table, column: str = "effect") -> dict[str, float | None]:
    """Return the numbers of a column by row."""
    k = [c.key for c in found.columns].index(column)
    return {row.label: row.cells[k].value for row in found.rows}


def test_a_factorial_shows_main_effects_and_interactions(report: Callable[..., ReportModel]) -> None:
    """Without noise the numbers are those of the truth: half of an interaction is in each main effect."""
    found = table(report("{all: {kind: factorial, tricks: [a, b, c]}}", spread=0.0), "all.effects")
    expected = {"a": 0.15, "b": 0.1, "c": 0.0, "a x b": 0.1, "a x c": 0.0, "b x c": 0.0}
    assert values(found) == pytest.approx(expected, abs=1e-6)
    assert [c.key for c in found.columns] == ["effect", "p"]


def test_a_fraction_names_what_is_confounded(report: Callable[..., ReportModel]) -> None:
    """Of resolution III the third trick shows the interaction of the others, with half of it and the opposite sign."""
    found = table(report("{half: {kind: fractional, resolution: 3, tricks: [a, b, c]}}", spread=0.0), "half.effects")
    assert values(found) == pytest.approx({"a": 0.15, "b": 0.1, "c": -0.05}, abs=1e-6)
    assert [row.cells[2].text for row in found.rows] == ["− b x c", "− a x c", "− a x b"]
    assert any(note.startswith("Resolution III") for note in found.notes)


def test_pairs_show_the_interaction_beside_its_parts(report: Callable[..., ReportModel]) -> None:
    """Both less each alone."""
    found = table(report("{two: {kind: pairs, tricks: [a, b, c]}}", spread=0.0), "two.interactions")
    assert values(found) == pytest.approx({"a x b": 0.1, "a x c": 0.0, "b x c": 0.0}, abs=1e-6)
    assert values(found, "both")["a x b"] == pytest.approx(0.25)
    assert values(found, "second") == pytest.approx({"a x b": 0.05, "a x c": 0.0, "b x c": 0.0}, abs=1e-6)


def test_main_effects_and_interactions_in_words(report: Callable[..., ReportModel]) -> None:
    """Each sentence follows its test: what was found, or what could have been; a fraction says what is in it, too."""
    found = report("{all: {kind: factorial, tricks: [a, b, c]}}")
    (summary,) = (s for s in found.summary if s.startswith("Factorial"))
    assert re.search(r"over 6 effects: main effects that differ from 0: 2 of 3, `a` \+0\.15.*`b` \+0\.09", summary)
    assert re.search(r"interactions that differ from 0: 1 of 3, `a x b` \+0\.09", summary)
    words = {w.partition(" in `all`")[0]: w for w in found.words if " in `all`" in w}
    assert re.search(r"averaged over the other tricks, raised held-out accuracy by 0\.1.*Holm over 6", words["`a`"])
    assert re.search(r": undecided in held-out accuracy, .* could be detected from 0\.0\d+ on", words["`c`"])
    (quiet,) = (w for w in found.words if w.startswith("Interactions in held-out accuracy undecided in `all`"))
    assert re.search(r"`a x c` and `b x c`; by itself, each could be detected from 0\.0\d+ (to 0\.0\d+ )?on", quiet)
    assert re.search(r"together they give 0\.\d+ \[.* more held-out accuracy", words["`a` and `b`"])
    half = report("{half: {kind: fractional, resolution: 3, tricks: [a, b, c]}}").words
    assert any("cannot separate it from minus `a x b`, half of which would be included in it" in w for w in half)


def test_several_orders_show_each_step_and_the_mean(report: Callable[..., ReportModel]) -> None:
    """What a trick adds depends on the order, and the mean of both orders splits the interaction."""
    design = "{ladder: {kind: cumulative, order: [a, b], reverse: true}}"
    found = table(report(design, spread=0.0), "ladder.orders")
    assert values(found, "ladder") == pytest.approx({"a": 0.1, "b": 0.15}, abs=1e-6)
    assert values(found, "ladder-reverse") == pytest.approx({"a": 0.2, "b": 0.05}, abs=1e-6)
    assert values(found) == pytest.approx({"a": 0.15, "b": 0.1}, abs=1e-6)


def test_values_one_at_a_time_are_compared_with_the_base(report: Callable[..., ReportModel]) -> None:
    """The table of a list serves."""
    found = report("{levels: {kind: one_at_a_time, over: {clip.high: [0.24, 0.3], scale: [none]}}}")
    assert [r.label for r in table(found, "levels.score").rows] == [
        "base", "clip.high=0.24", "clip.high=0.3", "scale=none",
    ]  # fmt: skip


@pytest.mark.parametrize(("seeds", "paired"), [(1, True), (2, True), (3, False), (4, True)])
def test_every_format_prints_the_effects(report: Callable[..., ReportModel], seeds: int, paired: bool) -> None:
    """Below three seeds without interval and test, above with p over the rows of the table."""
    design = "{half: {kind: fractional, resolution: 4}, two: {kind: pairs, tricks: [a, b]}, "
    design += "ladder: {kind: cumulative, order: [a, b, c], random: {n: 2, seed: 0}}}"
    found = report(design, seeds=seeds, paired=paired)
    for key in ("half.effects", "two.interactions", "ladder.orders"):
        effects = table(found, key)
        assert effects.main
        for row in effects.rows:
            assert (row.cells[0].low is None) == (seeds < 3)
            assert (row.cells[1].value is None) == (seeds < 3)
        assert effects.title in to_markdown(found)
    assert "confounded with" in to_latex(found)


def test_a_trick_that_changes_nothing_has_no_effect_to_show(report: Callable[..., ReportModel]) -> None:
    """Its cells are the same arms, so its weights cancel."""
    found = table(report("{all: {kind: factorial, tricks: [a, b, c]}}", c="group_std"), "all.effects")
    assert values(found)["c"] is None
    assert values(found)["a"] is not None


LOST: dict[str, Lost] = {
    "a run": lambda tricks, k: tricks == ("a", "b") and k == 1,
    "an arm": lambda tricks, k: tricks == ("a", "b"),
}


@pytest.mark.parametrize("paired", [True, False])
@pytest.mark.parametrize("what", LOST)
def test_a_lost_run_or_arm_of_a_factorial_leaves_the_tests(
    report: Callable[..., ReportModel], paired: bool, what: str
) -> None:
    """Effects come from the runs that there are, as without losses; the table and Shapley values say so."""
    found = report("{all: {kind: factorial}}", seeds=3, paired=paired, lost=LOST[what])
    effects = table(found, "all.effects")
    assert all(row.cells[0].low is not None and row.cells[1].value is not None for row in effects.rows)
    assert all(row.cells[0].n == 3 for row in effects.rows)
    assert effects.rows[0].cells[0].low < 0.15 < effects.rows[0].cells[0].high  # type: ignore[operator]
    some = "1 of 48 runs is missing" if what == "a run" else "3 of 48 runs are missing"
    assert some in str(effects.notes)
    assert ("stand in by a fit" in str(effects.notes)) is (paired or what == "an arm")
    shares = table(found, "contributions")
    assert some in str(shares.notes)
    assert all(v is not None for v in [*values(shares, "shapley").values()][:4])
    assert "no assumption" not in shares.columns[-1].note
    matrix = next(f for f in found.figures if f.key == "all.matrix.figure").matrices[0]
    assert matrix.cells[0][0].text == effects.rows[0].cells[0].text


def test_a_lost_run_gives_no_certainty(report: Callable[..., ReportModel]) -> None:
    """Seeds without losses count as before, so one lost run of 48 leaves degrees of freedom and widths about as before.

    A fit with one spread for all 47 runs would have 34 degrees of freedom in place of 2, and intervals a third as long.
    """
    design = "{all: {kind: factorial}}"
    whole, lossy = (
        table(report(design, seeds=3, spread=0.05, lost=lost), "all.effects")
        for lost in (lambda tricks, k: False, LOST["a run"])
    )
    for before, after in zip(whole.rows, lossy.rows, strict=True):
        assert dict(after.cells[0].seeds).keys() == dict(before.cells[0].seeds).keys()
        same = [before.cells[0].seeds[k] == after.cells[0].seeds[k] for k in range(3)]
        assert same.count(False) <= 1  # only the seed of the lost run
    lengths = [[r.cells[0].high - r.cells[0].low for r in t.rows] for t in (whole, lossy)]  # type: ignore[operator]
    assert sum(lengths[1]) > 0.7 * sum(lengths[0])


def test_a_fit_refuses_what_the_runs_do_not_determine(report: Callable[..., ReportModel]) -> None:
    """A half fraction of three tricks has as many cells as terms: without one of them nothing is left to say."""
    design = "{half: {kind: fractional, resolution: 3, tricks: [a, b, c]}}"
    found = table(report(design, seeds=3, lost=lambda tricks, k: tricks == ("a", "b")), "half.effects")
    assert [row.cells[0].text for row in found.rows] == ["n/a"] * 3
    crossed = "{all: {kind: factorial, tricks: [a, b]}}"
    shares = table(report(crossed, seeds=3, lost=lambda tricks, k: tricks == ("a",)), "contributions")
    assert "The available runs don't determine the Shapley values." in shares.notes
    assert "stand in by a fit" not in str(shares.notes)
    alone = report("{all: {kind: factorial, tricks: [a]}}", seeds=4, lost=lambda tricks, k: tricks == ("a",) and k == 1)
    assert "Shapley values" not in str(table(alone, "contributions").notes)


def test_complete_factorials_are_contrasts(report: Callable[..., ReportModel]) -> None:
    """Whether no run is missing or a whole block: nothing is fitted where all cells have the same seeds."""
    for lost in (lambda tricks, k: False, lambda tricks, k: k == 3):
        found = table(report("{all: {kind: factorial, tricks: [a, b, c]}}", lost=lost), "all.effects")
        assert "missing" not in str(found)
        assert len(found.rows[0].cells[0].seeds) == (3 if lost((), 3) else 4)


def test_a_contrast_of_two_arms_is_their_difference() -> None:
    """Paired and not; seeds that one arm lacks are left out where they are paired."""
    after, before = {0: 0.5, 1: 0.7, 2: 0.65, 3: 0.1}, {0: 0.4, 1: 0.5, 2: 0.6}
    paired = contrast([(1.0, after), (-1.0, before)], paired=True)
    assert paired is not None
    assert paired.estimate == difference_interval([0.5 - 0.4, 0.7 - 0.5, 0.65 - 0.6])
    assert contrast([(1.0, after), (-1.0, {})], paired=True) is None
    assert contrast([(1.0, after), (-1.0, {})], paired=False) is None


def test_a_lost_base_leaves_the_effects_of_a_design(report: Callable[..., ReportModel]) -> None:
    """The answer says that no arm has a base, and what the design shows; the rule of claims is printed."""
    found = report("{all: {kind: factorial, tricks: [a, b, c]}}", lost=lambda tricks, _: tricks == ())
    why = "No arm can be compared with the base, because every run of the base was lost: failed (4). Factorial `all`, "
    assert found.answer.startswith(why)
    assert "main effects that differ from 0: 2 of 3, `a` +0.15" in found.answer
    assert any(w.startswith("`a` in `all`") and "raised" in w for w in found.words)
    assert any(w.startswith("A sentence says raised, lowered, together they give") for w in found.words)


def test_effects_with_aliases_have_no_verb(report: Callable[..., ReportModel]) -> None:
    """Of resolution III, that of c is half of minus a x b here: words and summary name both, and neither lowered it."""
    found = report("{half: {kind: fractional, resolution: 3, tricks: [a, b, c]}}")
    said = [w for w in found.words if " in `half`" in w]
    assert said[2].startswith("`c`, or minus `a x b`, in `half` differs from 0 in held-out accuracy: −0.0")
    assert not any(re.search("raised|lowered", w) for w in said)
    (summary,) = (s for s in found.summary if s.startswith("Fractional"))
    assert "`c`, or minus `a x b`, −0.0" in summary
