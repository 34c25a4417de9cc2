"""What the verdict of a row would be if lost runs were counted otherwise."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.lost_runs import fragile, is_lost, sensitivity
from paribus.report.build import build_report
from paribus.report.inputs import RunData
from paribus.run_folder.folder import MetricLine
from support.studies import SCORE, Shape, made_up_study


def test_a_seed_that_the_base_lost_is_counted_in_both_directions() -> None:
    """A gain is fragile if the base could have been as good; with its lost seed at the worst score it would not be."""
    shape = Shape(seeds=4, designs=("add_one",), tricks=("clip_higher",), outcomes=(("base", 1, "failed"),))
    data = made_up_study(shape)
    arm = data.plan.arms[1].key
    moved = tuple(replace(r, lines=_raised(r.lines)) if r.arm == arm else r for r in data.runs)
    analysis = Analysis(replace(data, runs=moved))
    cases = {name: e for name, e in sensitivity(analysis, arm).items() if e is not None}
    separated = {name: e.separated for name, e in cases.items()}
    assert separated == {
        "as planned": True,
        "lost seeds count against it": False,
        "lost seeds count for it": True,
        "lost seeds excluded": True,
    }
    assert fragile(analysis, arm)
    seen = [line.values[SCORE] for r in moved for line in r.lines if SCORE in line.values]
    own = analysis.values(arm, analysis.score)[1]
    assert dict(cases["lost seeds count against it"].by_seed)[1] == pytest.approx(own - max(seen))
    assert dict(cases["lost seeds count for it"].by_seed)[1] == pytest.approx(own - min(seen))


def test_a_run_that_ends_without_a_finite_score_is_lost() -> None:
    """It counts as planned with its last finite evaluation, and as lost in the other three ways of counting."""
    data = made_up_study(Shape(seeds=4, designs=("add_one",), tricks=("clip_higher",)))
    arm = data.plan.arms[1].key
    moved = tuple(replace(r, lines=_raised(r.lines)) if r.arm == arm else r for r in data.runs)
    data = replace(data, runs=tuple(replace(r, lines=_broken(r.lines)) if _is(r, arm, 2) else r for r in moved))
    analysis = Analysis(data)
    assert [is_lost(analysis, r) for r in data.runs] == [_is(r, arm, 2) for r in data.runs]
    cases = {name: e for name, e in sensitivity(analysis, arm).items() if e is not None}
    assert cases["as planned"].estimate.n == 4
    assert cases["lost seeds excluded"].estimate.n == 3
    worst = min(line.values[SCORE] for r in moved for line in r.lines if SCORE in line.values)
    base = analysis.values(data.plan.base, analysis.score)[2]
    assert dict(cases["lost seeds count against it"].by_seed)[2] == pytest.approx(worst - base)
    assert fragile(analysis, arm)
    model = build_report(data)
    assert "sensitivity" in {table.key for table in model.tables}
    assert any(text.startswith("Fragile") for text in model.warnings)


def _is(run: RunData, arm: str, seed: int) -> bool:
    return (run.arm, run.seed) == (arm, seed)


def _broken(lines: tuple[MetricLine, ...]) -> tuple[MetricLine, ...]:
    """The lines with a last evaluation that is not a number."""
    last = max(x.step for x in lines if SCORE in x.values)
    return tuple(replace(x, values={**x.values, SCORE: math.nan}) if x.step == last else x for x in lines)


def _raised(lines: tuple[MetricLine, ...]) -> tuple[MetricLine, ...]:
    """The lines with a score that is higher by 0.15 after training."""
    moved = ({k: v + 0.15 * (k == SCORE and x.step > 0) for k, v in x.values.items()} for x in lines)
    return tuple(replace(x, values=v) for x, v in zip(lines, moved, strict=True))
