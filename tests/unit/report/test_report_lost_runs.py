"""What the verdict of a row would be if lost runs were counted otherwise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paribus.report.analysis.analysis import Analysis
from paribus.run_folder.folder import MetricLine
from support.studies import Shape, made_up_study

SCORE = "eval/heldout/avg_at_1"


def test_a_seed_that_the_base_lost_is_counted_in_both_directions() -> None:
    """A gain is fragile if the base could have been as good; with its lost seed at the worst score it would not be."""
    shape = Shape(seeds=4, designs=("add_one",), tricks=("clip_higher",), outcomes=(("base", 1, "failed"),))
    data = made_up_study(shape)
    arm = data.plan.arms[1].key
    moved = tuple(replace(r, lines=_raised(r.lines)) if r.arm == arm else r for r in data.runs)
    analysis = Analysis(replace(data, runs=moved))
    cases = {name: e for name, e in analysis.sensitivity(arm).items() if e is not None}
    separated = {name: e.separated for name, e in cases.items()}
    assert separated == {
        "as planned": True,
        "lost seeds count against it": False,
        "lost seeds count for it": True,
        "lost seeds excluded": True,
    }
    assert analysis.fragile(arm)
    seen = [line.values[SCORE] for r in moved for line in r.lines if SCORE in line.values]
    own = analysis.values(arm, analysis.score)[1]
    assert dict(cases["lost seeds count against it"].by_seed)[1] == pytest.approx(own - max(seen))
    assert dict(cases["lost seeds count for it"].by_seed)[1] == pytest.approx(own - min(seen))


def _raised(lines: tuple[MetricLine, ...]) -> tuple[MetricLine, ...]:
    """The lines with a score that is higher by 0.15 after training."""
    moved = ({k: v + 0.15 * (k == SCORE and x.step > 0) for k, v in x.values.items()} for x in lines)
    return tuple(replace(x, values=v) for x, v in zip(lines, moved, strict=True))
