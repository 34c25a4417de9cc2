"""The table of verdicts and its sentences: counted over the judged runs, never more than was written down."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paribus.health.finding import Finding, HealthFile, Status, read_health, worst
from paribus.report.build import build_report
from paribus.report.inputs import StudyData
from paribus.report.model import ReportModel, Table
from paribus.report.tables.health import STOPPED
from paribus.run_folder.folder import RunFolder, write_json
from support.studies import Shape, made_up_study

ARM = "soft_overlong"
SHAPE = Shape(steps=4, tricks=("soft_overlong",), designs=("cumulative",))


def found(*raised: tuple[str, Status, int | None]) -> HealthFile:
    """A verdict with these findings: detector, state, onset."""
    findings = tuple(Finding(detector=d, state=s, step_onset=o) for d, s, o in raised)
    status: Any = worst(findings) if findings else "ok"
    return HealthFile(status=status, profile="default 1 (abc)", raised=findings)


def with_verdicts(data: StudyData, verdicts: dict[int, HealthFile | None]) -> StudyData:
    """The study with verdicts on the runs of one arm, by seed; those of the base are all ok."""
    base = data.plan.base
    runs = (replace(r, health=found() if r.arm == base else verdicts.get(r.seed)) for r in data.runs)
    return replace(data, runs=tuple(runs))


def health_of(model: ReportModel) -> Table:
    """The table of verdicts."""
    return next(t for t in model.tables if t.key == "health")


def cells(table: Table, arm: str) -> dict[str, str]:
    """Column to text in the row of an arm."""
    (row,) = (r for r in table.rows if r.label == arm)
    return {c.key: cell.text for c, cell in zip(table.columns, row.cells, strict=True)}


def critical_words(model: ReportModel) -> list[str]:
    """The sentences about critical runs."""
    return [w for w in model.words if "critical" in w]


def test_without_verdicts_there_is_no_table(model: ReportModel) -> None:
    """A study of which no run was judged has neither the table nor a sentence."""
    assert "health" not in [t.key for t in model.tables]
    assert critical_words(model) == []


def test_runs_are_counted_by_their_status() -> None:
    """Statuses add up to the judged runs; findings stand the worst first, with the median onset of each state."""
    verdicts: dict[int, HealthFile | None] = {
        0: found(("truncation", "warn", 5), ("entropy_collapse", "critical", 12)),
        1: found(("truncation", "warn", 8)),
        2: found(("truncation", "critical", 20), ("nan", "critical", None)),
    }
    model = build_report(with_verdicts(made_up_study(SHAPE), verdicts))
    table = health_of(model)
    assert [r.label for r in table.rows] == ["base", ARM]
    base = {"seeds": "3/3", "critical": "0", "warn": "0", "ok": "3", "findings": "none"}
    assert cells(table, "base") == base
    row = next(r for r in table.rows if r.label == ARM)
    assert [c.text for c in row.cells[:4]] == ["3/3", "2", "1", "0"]
    assert row.cells[4].text == (
        "critical: nan in 1; entropy_collapse in 1 since step 12; truncation in 1 since step 20"
    )
    assert row.cells[4].note == "warning: truncation in 2 since step 6.5"
    assert critical_words(model) == [
        f"2 of 3 runs of `{ARM}` had critical findings: nan in 1, entropy_collapse in 1 since step 12 and truncation "
        "in 1 since step 20."
    ]
    notes = " ".join(table.notes)
    assert "`default 1 (abc)`" in notes
    assert "does not prove" in notes
    assert "not a statistical test" in notes
    assert "not checked" not in notes


def test_unjudged_runs_are_no_healthy_ones() -> None:
    """A run without a verdict has no status, has a column of its own, and the sentence says how many were judged."""
    model = build_report(with_verdicts(made_up_study(SHAPE), {1: found(("entropy_collapse", "critical", 12))}))
    table = health_of(model)
    got = cells(table, ARM)
    assert (got["critical"], got["warn"], got["ok"], got["not_judged"]) == ("1", "0", "0", "2")
    assert any(n.startswith("not checked: ") for n in table.notes)
    assert critical_words(model) == [
        f"1 of 3 runs of `{ARM}` (1 checked) had a critical finding: entropy_collapse since step 12."
    ]
    unjudged = cells(health_of(build_report(with_verdicts(made_up_study(SHAPE), {}))), ARM)
    assert [unjudged[k] for k in ("critical", "warn", "ok", "not_judged", "findings")] == ["n/a"] * 3 + ["3", "n/a"]


def test_stopped_and_unfinished_runs_are_told_once() -> None:
    """A run that a finding stopped is one critical run, marked as everywhere; a verdict so far is said to be one."""
    shape = replace(SHAPE, outcomes=((f"+ {ARM}", 0, "stopped_early"), (f"+ {ARM}", 1, "pending")))
    data = made_up_study(shape)
    verdicts: dict[int, HealthFile | None] = {
        0: found(("nan", "critical", 2)),
        1: found(),
        2: found(("nan", "critical", 3), ("kl_blowup", "critical", 1)),
    }
    table = health_of(build_report(with_verdicts(data, verdicts)))
    got = cells(table, ARM)
    assert (got["seeds"], got["critical"], got["ok"]) == ("1/3†…", "2", "1")
    assert got["findings"] == "critical: nan in 2 since step 2.5; kl_blowup in 1 since step 1"
    assert any(n.startswith("†") for n in table.notes)
    assert any(n.startswith("…") for n in table.notes)


@pytest.mark.parametrize(
    ("early", "at_end", "status", "notes"),
    [
        (False, 0, "critical", [f"A {STOPPED}"]),
        (False, 0, "warn", []),
        (False, 1, "critical", []),
        (False, None, "critical", []),
        (True, None, "critical", [f"†: a {STOPPED}"]),
        (True, None, "warn", []),
        (True, 2, "critical", [f"†: a {STOPPED}"]),
    ],
)
def test_the_note_on_stopped_runs_stands_where_a_critical_one_was_stopped(
    early: bool, at_end: int | None, status: Status, notes: list[str]
) -> None:
    """Before its last step, where the table has its mark, or at it; not for runs that are critical or stopped alone."""
    data = made_up_study(replace(SHAPE, outcomes=((f"+ {ARM}", 0, "stopped_early"),)) if early else SHAPE)
    stopped = (r.arm != data.plan.base and r.seed == at_end for r in data.runs)
    runs = tuple(replace(r, state="STOPPED_EARLY" if s else r.state) for r, s in zip(data.runs, stopped, strict=True))
    verdicts: dict[int, HealthFile | None] = {0: found(("nan", status, 2)), 1: found(), 2: found()}
    table = health_of(build_report(with_verdicts(replace(data, runs=runs), verdicts)))
    assert [n for n in table.notes if "stopped" in n] == notes
    assert ("†" in cells(table, ARM)["seeds"]) is early


def test_no_more_findings_than_a_cell_holds() -> None:
    """The worst three are named, and how many follow."""
    verdict = found(*((f"d{i}", "warn", i) for i in range(5)))
    table = health_of(build_report(with_verdicts(made_up_study(SHAPE), dict.fromkeys(range(3), verdict))))
    assert cells(table, ARM)["findings"] == (
        "warning: d0 in 3 since step 0; d1 in 3 since step 1; d2 in 3 since step 2; 2 more"
    )


SOUND = {
    "status": "warn",
    "profile": "default 1 (abc)",
    "findings": [{"detector": "made_later", "state": "warn", "step_onset": 3, "remedies": [{"new": 1}]}],
    "others": [],
}


def test_verdict_of_other_detectors_is_read(tmp_path: Path) -> None:
    """A verdict that was written with other detectors than today's is read as it stands."""
    folder = RunFolder(tmp_path)
    write_json(folder.health, SOUND)
    verdict = replace(found(("made_later", "warn", 3)), profile="default 1 (abc)")
    assert read_health(folder) == verdict
    earlier = {"lamp" if k == "status" else k: v for k, v in SOUND.items()}  # as it was named in the first release
    write_json(folder.health, earlier)
    assert read_health(folder) == verdict
    write_json(folder.health, {**SOUND, "status": "unknown", "findings": []})
    unknown = read_health(folder)
    assert unknown is not None
    assert (unknown.status, unknown.detector) == ("unknown", "")


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        '{"status": "ok"',
        "[]",
        "7",
        '{"status": "ok", "findings": []}',
        '{"status": "green", "findings": [], "profile": "p"}',
        '{"status": "critical", "findings": [], "profile": "p"}',
        '{"status": "warn", "findings": {"a": 1}, "profile": "p"}',
        '{"status": "warn", "findings": [{"detector": "a", "state": "warn"}], "profile": "p"}',
        '{"status": "warn", "findings": [{"detector": "a", "state": "warn", "step_onset": "x"}], "profile": "p"}',
        '{"status": "warn", "findings": [{"detector": "a", "state": ["warn"], "step_onset": 1}], "profile": "p"}',
    ],
)
def test_damaged_verdict_is_none(tmp_path: Path, content: str | None) -> None:
    """A verdict that is missing, cut off, of another shape, or contradicts itself is no verdict, and no error."""
    folder = RunFolder(tmp_path)
    if content is not None:
        folder.health.write_text(content)
    assert read_health(folder) is None
