"""Ceiling or efficiency: what a report says of curves whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

import pytest

from paribus.report.analysis import ceilings as module
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.ceilings import Ceilings
from paribus.report.build import build_report
from paribus.report.inputs import StudyData
from paribus.report.model import Cell, ReportModel, Table
from paribus.stats.sigmoid import Sigmoid, fit_sigmoid
from support.curves import curved_study
from support.studies import Outcome, Shape

TRICKS = ("clip_higher", "token_level", "soft_overlong")
SHAPE = Shape(seeds=5, steps=100, every=4, designs=("add_one",), tricks=TRICKS, problems=2)


def curve(label: str, step: int) -> float:
    """The base; the same twice as fast; a higher ceiling; a line."""
    if label == "soft_overlong":
        return 0.2 + 0.004 * step
    top, middle = {"clip_higher": (0.6, 9), "token_level": (0.7, 18)}.get(label, (0.6, 18))
    return 0.2 + (top - 0.2) / (1 + (middle / step) ** 2) if step else 0.2


@cache
def model(seeds: int = 5, outcomes: tuple[tuple[str, int, Outcome], ...] = ()) -> ReportModel:
    """The report of that study."""
    return build_report(study(seeds, outcomes))


def study(seeds: int = 5, outcomes: tuple[tuple[str, int, Outcome], ...] = ()) -> StudyData:
    """That study."""
    return curved_study(Shape(**{**vars(SHAPE), "seeds": seeds, "outcomes": outcomes}), curve)


def table(report: ReportModel) -> Table:
    """The table of ceilings."""
    return next(t for t in report.tables if t.key == "ceilings")


def cell(report: ReportModel, arm: str, key: str) -> Cell:
    """A cell by arm and column."""
    found = table(report)
    row = next(r for r in found.rows if r.label == arm)
    return row.cells[[c.key for c in found.columns].index(key)]


def said(report: ReportModel) -> str:
    """The sentence about curves."""
    return next(s for s in report.summary if s.startswith("Ceiling or efficiency"))


@pytest.mark.parametrize(("arm", "truth"), [("base", 0.6), ("clip_higher", 0.6), ("token_level", 0.7)])
def test_ceilings_hold_the_truth(arm: str, truth: float) -> None:
    """Each interval holds the ceiling that the curve was made with, and is a small part of the rise."""
    found = cell(model(), arm, "ceiling")
    assert found.low is not None
    assert found.high is not None
    assert found.low < truth < found.high
    assert found.high - found.low < 0.1


def test_a_line_has_no_ceiling() -> None:
    """An arm whose curve identifies none is named with the reason, and is not compared."""
    found = model()
    assert cell(found, "soft_overlong", "ceiling").text == "not identified"
    assert cell(found, "soft_overlong", "to_base").value is None
    (note,) = (n for n in table(found).notes if n.startswith("The curve does not identify a ceiling"))
    assert "`soft_overlong`: " in note
    assert "not identified: `soft_overlong`" in said(found)


def test_faster_and_higher_are_kept_apart() -> None:
    """Twice as fast to the same ceiling is sooner and not higher; a higher ceiling is said where a test shows it."""
    found = model()
    faster = cell(found, "clip_higher", "steps_ratio")
    assert faster.value == pytest.approx(0.5, rel=0.15)
    assert faster.note == "separated*"
    assert cell(found, "clip_higher", "to_base").verdict == "not_separated"
    assert cell(found, "token_level", "to_base").note == "separated*"
    assert "`clip_higher` reached half of the base's gain sooner, at 0." in said(found)
    assert "`clip_higher` raised" not in said(found)


def test_tests_are_corrected_over_the_whole_table() -> None:
    """Each p after correction is that of Holm over every test of the table, computed here a second time."""
    cells = [c for row in table(model()).rows for c in row.cells if c.p_adjusted is not None]
    ranked = sorted(cells, key=lambda c: c.p or 0)
    largest = 0.0
    for k, each in enumerate(ranked):
        assert each.p is not None
        largest = max(largest, min(1.0, each.p * (len(ranked) - k)))
        assert each.p_adjusted == pytest.approx(largest, rel=1e-4)
    assert f"Holm's correction over the {len(cells)} tests" in " ".join(table(model()).notes)


def test_claims_share_the_level_of_the_symptoms() -> None:
    """What sentences claim of curves takes half of the symptoms' 1% where the plan has such tests, else nothing."""
    analysis = Analysis(study())
    data = study()
    evaluate = data.plan.evaluate.model_copy(update={"every": 10**6})
    few = Analysis(replace(data, plan=replace(data.plan, evaluate=evaluate)))
    assert (analysis.levels.curve, analysis.levels.symptom) == pytest.approx((0.005, 0.005))
    assert (few.levels.curve, few.levels.symptom) == pytest.approx((0.0, 0.01))
    assert analysis.levels.score == few.levels.score


def test_the_rule_lists_what_curves_may_claim() -> None:
    """The sentence about verbs names those of curves, with their level, where a plan has such tests."""
    (rule,) = (w for w in model().words if w.startswith("A sentence says raised or lowered only"))
    assert "for a ceiling, and for reached half of the base's gain sooner or later, below 0.5%" in rule
    data = study()
    evaluate = data.plan.evaluate.model_copy(update={"every": 10**6})
    few = build_report(replace(data, plan=replace(data.plan, evaluate=evaluate)))
    assert not any("reached half" in w for w in few.words)


@pytest.mark.parametrize("outcome", ["failed", "stopped_early"])
def test_a_lost_run_reached_the_score_if_its_own_curve_did(outcome: Outcome) -> None:
    """A lost run that had crossed the score before it ended did reach it; one that had not counts as never."""
    found = model(5, (("clip_higher", 1, outcome), ("soft_overlong", 2, "failed")))
    assert cell(found, "clip_higher", "cost").note == "1 lost run reached it too"
    assert cell(found, "soft_overlong", "cost").note == "1 lost run: never"
    assert any("Lost: `clip_higher` 1 of 5 runs and `soft_overlong` 1 of 5 runs." in n for n in table(found).notes)


def test_an_arm_with_lost_runs_is_not_tested() -> None:
    """Its ceiling and difference are those of the runs that are left, without p, star, verdict or verb."""
    whole, found = model(), model(5, (("token_level", 1, "failed"),))
    assert "`token_level` raised the ceiling" in said(whole)
    assert "`token_level` raised" not in said(found)
    assert "Not compared with the base, because runs were lost: `token_level` (1 of 5)." in said(found)
    delta = cell(found, "token_level", "to_base")
    assert (delta.note, delta.verdict, delta.p, delta.p_adjusted) == ("runs lost, no test", "untested", None, None)
    assert delta.low is not None
    assert cell(found, "token_level", "steps_ratio").value is None
    assert cell(found, "token_level", "ceiling").value == pytest.approx(0.7, abs=0.03)
    assert cell(found, "clip_higher", "steps_ratio").note == "separated*"


def test_a_base_with_lost_runs_is_not_compared() -> None:
    """No arm is tested then, and the sentence says why and how many runs the ceiling is of."""
    found = model(5, (("base", 1, "failed"),))
    assert all(c.p_adjusted is None for row in table(found).rows for c in row.cells)
    assert "No arm is compared with the base, which lost 1 of 5 runs." in said(found)
    assert "over 4 of 5 runs" in said(found)
    assert "raised" not in said(found)
    assert "sooner" not in said(found)


@pytest.mark.parametrize(("arm", "from_step", "note"), [("base", 4, "never"), ("clip_higher", 40, "too")])
def test_a_run_that_diverges_is_lost_and_cuts_no_curve(arm: str, from_step: int, note: str) -> None:
    """A finished run that goes to NaN is in no curve: the others keep all their evaluations, and a note names it."""
    found = build_report(diverged(arm, from_step))
    assert cell(found, arm, "ceiling").value == pytest.approx(0.6, abs=0.03)
    assert cell(found, arm, "ceiling").n == 4
    assert cell(found, arm, "cost").note.endswith(note)
    assert cell(found, "token_level", "cost").value == pytest.approx(
        cell(model(), "token_level", "cost").value, rel=0.1
    )
    assert any(f"Lost: `{arm}` 1 of 5 runs." in n for n in table(found).notes)
    assert not any("left out, because" in n for n in table(found).notes)


def test_a_gap_in_one_run_is_said() -> None:
    """An evaluation that one run lacks, but not its last one, is left out of the curve of its arm, with a note."""
    found = build_report(diverged("clip_higher", 40, 44))
    assert any("not all runs of a curve have them: `clip_higher` 2 of 26." in n for n in table(found).notes)
    assert cell(found, "clip_higher", "steps_ratio").note == "separated*"


def test_an_arm_without_a_whole_run_says_so() -> None:
    """An arm whose runs all diverged has no curve, and the reason is not the number of evaluations."""
    found = build_report(diverged("clip_higher", 40, seeds=range(5)))
    assert any("`clip_higher`: no run finished with a finite score" in n for n in table(found).notes)
    assert cell(found, "clip_higher", "cost").text == "n/a"


def diverged(arm: str, first: int, last: int = 100, seeds: Iterable[int] = (1,)) -> StudyData:
    """That study, where the score of these runs is NaN from one step to another."""
    data = study()
    key = next(a.key for a in data.plan.arms if a.label == arm)
    name = data.plan.evaluate.primary_metric
    chosen, runs = set(seeds), list(data.runs)
    for i, run in enumerate(runs):
        if run.arm == key and run.seed in chosen:
            lines = (
                replace(x, values={**x.values, name: math.nan}) if name in x.values and first <= x.step <= last else x
                for x in run.lines
            )
            runs[i] = replace(run, lines=tuple(lines))
    return replace(data, runs=tuple(runs))


@pytest.mark.parametrize("seeds", [1, 2])
def test_few_seeds_have_no_interval(seeds: int) -> None:
    """With one or two seeds ceilings are stated, and nothing is tested."""
    found = model(seeds)
    assert cell(found, "base", "ceiling").value == pytest.approx(0.6, abs=0.05)
    assert all(c.low is None and c.p is None for row in table(found).rows for c in row.cells)
    assert "too few seeds for an interval" in said(found)
    assert "sooner" not in said(found)


def test_few_evaluations_say_so() -> None:
    """With fewer evaluations than a fit needs there is no table, and the sentence has the number."""
    found = build_report(curved_study(Shape(steps=8, problems=2), curve))
    assert not [t for t in found.tables if t.key == "ceilings"]
    assert "no curve identifies a ceiling (the base: 5 evaluations" in said(found)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_scores_of_any_size(scale: float) -> None:
    """Scores as large or as small as numbers go give the same table, with ceilings of that size."""
    data = curved_study(Shape(**{**vars(SHAPE), "seeds": 3}), lambda arm, step: curve(arm, step) * scale, noise=0)
    found = Ceilings(Analysis(data))
    ceiling = found.ceiling(data.plan.base)
    assert ceiling is not None
    assert ceiling.value == pytest.approx(0.6 * scale, rel=0.01)


def test_whether_a_base_rises_is_no_matter_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """A base that stays where it is gives no score to reach, whatever the sentence about its curve says."""

    def other_words(costs: Sequence[float], values: Sequence[float], *, better: int = 1) -> Sigmoid | None:
        found = fit_sigmoid(costs, values, better=better)
        return found and replace(found, why="other words")

    monkeypatch.setattr(module, "fit_sigmoid", other_words)
    flat = curved_study(SHAPE, lambda label, step: 0.4 if label == "base" else curve(label, step))
    assert Ceilings(Analysis(flat)).level is None
    assert Ceilings(Analysis(study())).level is not None


def test_no_run_has_to_rise() -> None:
    """A base that does not rise gives no cost to compare with, and no verb."""
    found = build_report(curved_study(SHAPE, lambda arm, step: 0.3))
    assert "no curve identifies a ceiling" in said(found)
    assert "cost" not in [c.key for c in table(found).columns]


def test_long_curves_cost_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run of 400 evaluations enters each fit with at most 60 points, and an axis takes a fit more than seeds."""
    shape = Shape(seeds=3, steps=400, every=1, designs=("add_one",), tricks=("clip_higher",), problems=2)
    data = curved_study(shape, lambda arm, step: curve(arm, math.ceil(step / 4)))
    _, sizes = counted_fits(monkeypatch, data)
    assert max(sizes) <= 60
    assert len(sizes) <= 2 * 3 * 4


def counted_fits(monkeypatch: pytest.MonkeyPatch, data: StudyData) -> tuple[Ceilings, list[int]]:
    """The ceilings of a study with every comparison made, and the points of each fit that this took."""
    made: list[int] = []

    def counted(costs: Sequence[float], values: Sequence[float], *, better: int = 1) -> Sigmoid | None:
        made.append(len(costs))
        return fit_sigmoid(costs, values, better=better)

    monkeypatch.setattr(module, "fit_sigmoid", counted)
    found = Ceilings(Analysis(data))
    assert found.effects
    return found, made


def test_what_is_not_shown_is_not_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Curves without a ceiling and without a cost take one fit an arm, and none without one of its seeds."""
    found, fits = counted_fits(monkeypatch, curved_study(SHAPE, lambda arm, step: 0.3))
    assert len(fits) == len(found.arms)


def test_costs_in_proportion_to_steps_take_the_fit_of_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """They give the ratios that a fit of their own gives, without one."""
    data = curved_study(replace(SHAPE, noise=0.0), curve)
    found, fits = counted_fits(monkeypatch, data)
    assert len(fits) == len(found.arms) * (1 + SHAPE.seeds)
    own = found.fit(data.plan.arms[1].key, "tokens")
    again = fit_sigmoid(*(module._mean(each) for each in zip(*own.rows.values(), strict=True)))
    assert own.whole is not None
    assert again is not None
    assert own.whole.middle == pytest.approx(again.middle, rel=1e-9)
    assert own.whole.ceiling == pytest.approx(again.ceiling, rel=1e-9)
