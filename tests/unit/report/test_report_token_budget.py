"""Reports of studies whose runs end by ``schedule.tokens``: curves over tokens, runs that ended before, the horizon."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paribus.report.build import build_report
from paribus.report.inputs import RunData, StudyData
from paribus.report.model import Line, ReportModel
from paribus.run_folder.folder import MetricLine
from support.studies import SCORE, Shape, made_up_study

TOKENS = 10_000


def with_budget(*, spent: bool = True, name: str = "tokens") -> StudyData:
    """A study of two arms whose seeds reach the budget at steps 6, 7 and 9 of at most 9, or whose last does not."""
    data = made_up_study(Shape(steps=9, every=3, designs=("add_one",), tricks=("clip_higher",)))
    schedule = {name: TOKENS, "steps": 9}
    arms = tuple(
        replace(a, recipe=a.recipe.model_copy(update={"schedule": a.recipe.schedule.model_copy(update=schedule)}))
        for a in data.plan.arms
    )
    ends = {0: 6, 1: 7, 2: 9}
    runs = tuple(_ending(r, ends[r.seed], TOKENS + 50 * r.seed - (0 if spent else 100)) for r in data.runs)
    return replace(data, plan=replace(data.plan, arms=arms), runs=runs)


def _ending(run: RunData, last: int, tokens: int) -> RunData:
    """The run up to a step, which has its last evaluation, and at which it has generated so many tokens."""
    final = next(x.values[SCORE] for x in run.lines if x.step == 9)
    lines = []
    for line in (x for x in run.lines if x.step <= last):
        paid = tokens * line.step / last
        values = {**line.values, "budget/gen_tokens": paid, "budget/prompts_sampled": paid}
        lines.append(
            MetricLine(
                step=line.step, time_ms=line.time_ms, values=values | ({SCORE: final} if line.step == last else {})
            )
        )
    return replace(run, lines=tuple(lines), evaluations=())


def curve(model: ReportModel, arm: str) -> Line:
    """The score of an arm over generated tokens."""
    panels = (p for f in model.figures for p in f.panels if p.key.endswith("score_by_tokens"))
    return next(line for panel in panels for line in panel.lines if line.arm == arm)


def test_curves_over_tokens_end_where_the_budget_ends() -> None:
    """The last point is the mean of the last evaluations of all seeds, at the mean of what they spent."""
    data = with_budget()
    model = build_report(data)
    line = curve(model, "base")
    assert len(line.mean) == 4  # steps 0, 3 and 6, and the ends
    assert abs(line.x[-1] * (1000 if line.x[-1] < TOKENS / 2 else 1) - (TOKENS + 50)) < 1
    base = [r for r in data.runs if r.arm == data.plan.base]
    ends = [r.lines[-1].values[SCORE] for r in base]
    assert abs(line.mean[-1] - sum(ends) / 3) < 1e-5
    assert list(line.x) == sorted(line.x)


def test_the_report_states_the_horizon_and_shows_evaluations_that_all_seeds_have() -> None:
    """The provenance names the budget, and the table over training has no column for the end of one run."""
    model = build_report(with_budget())
    assert model.provenance["horizon"] == "10,000 generated tokens (at most 9 steps)"
    table = next(t for t in model.tables if t.key == "training")
    assert [c.label for c in table.columns] == ["step 0", "step 3", "step 6", "step 9"]
    assert any("end by their budget" in note for note in table.notes)
    assert not any("schedule.tokens" in text for text in model.warnings)
    assert "horizon" not in build_report(made_up_study()).provenance


@pytest.mark.parametrize("name", ["tokens", "prompts"])
def test_runs_that_ended_before_their_budget_are_named(name: str) -> None:
    """A run that its number of steps has ended has cost less, and the report warns of it."""
    model = build_report(with_budget(spent=False, name=name))
    (text,) = (text for text in model.warnings if f"schedule.{name}" in text)
    assert text == (
        f"4 of 6 runs ended by `schedule.steps` before they had spent `schedule.{name}`, so they cost less than the "
        "others: `base` (2) and `clip_higher` (2)."
    )
