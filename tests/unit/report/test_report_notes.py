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
