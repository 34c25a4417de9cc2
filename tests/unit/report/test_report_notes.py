"""What a plan told before the launch stands in the report as far as it bears on the numbers."""

from __future__ import annotations

from dataclasses import replace

from paribus.report.build import build_report
from paribus.study.plan import Note
from paribus.testing.studies import Shape, made_up_study


def test_a_report_repeats_what_bears_on_its_numbers() -> None:
    """A confounded pair is told below the table; an estimate of costs is not, since costs are measured."""
    data = made_up_study(Shape(steps=4))
    notes = (Note(code="confounded", message="d: `+ a`: why", arm="+ a"), Note(code="cost", message="about twice"))
    told = build_report(replace(data, plan=replace(data.plan, notes=notes))).warnings
    assert "d: `+ a`: why" in told
    assert not any("about twice" in text for text in told)


def test_a_score_that_is_not_made_by_the_declared_rule_is_told() -> None:
    """Fewer evaluations than the rule asks for, and runs stopped before the first one."""
    full = made_up_study(Shape(steps=8, every=2))
    assert not any("evaluation" in text for text in build_report(full).warnings)
    short = build_report(made_up_study(Shape(steps=8, every=4)))
    assert any("fewer than 3 evaluations after step 0" in text for text in short.warnings)
    early = replace(full.runs[0], outcome="stopped_early", lines=full.runs[0].lines[:1])
    told = build_report(replace(full, runs=(early, *full.runs[1:]))).warnings
    assert any("score before training" in text for text in told)


def test_intervals_are_said_to_be_held_to_the_evaluations_only_where_they_are() -> None:
    """Without counts of the score (pass@k) nothing is known of the noise of evaluations, and nothing is said."""
    data = made_up_study(Shape(steps=8))
    said = "the sampling of the evaluations alone demands"
    assert said in build_report(data).to_json()
    uncounted = replace(data, runs=tuple(replace(run, evaluations=()) for run in data.runs))
    model = build_report(uncounted)
    assert said not in model.to_json()
    assert "noise of the evaluations" not in model.provenance["intervals"]
