"""Warnings and limits of a plan stand in the report if they bear on its numbers."""

from __future__ import annotations

from dataclasses import replace

from paribus.contract import Support
from paribus.report.build import build_report
from paribus.report.inputs import RunData
from paribus.study.plan import PlanWarning
from support.studies import Shape, made_up_study


def test_a_report_repeats_what_bears_on_its_numbers() -> None:
    """A confounded pair is told as a sentence; an estimate of costs is not, since costs are measured."""
    data = made_up_study(Shape(steps=4))
    notes = (
        PlanWarning(code="confounded", message="d: `+ a`: why", arm="+ a"),
        PlanWarning(code="cost", message="about twice"),
    )
    told = build_report(replace(data, plan=replace(data.plan, warnings=notes))).warnings
    assert "d: `+ a`: why." in told
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


def test_the_note_of_a_score_says_how_many_evaluations_it_took() -> None:
    """With fewer than 3 evaluations no note says that the score is the mean of 3."""
    said = {
        1: "mean of the last 3 evaluations of each run",
        4: "mean of the last 3 evaluations of each run, of which there are only 2",
        8: "mean of the last 3 evaluations of each run, of which there is only 1",
    }
    for every, text in said.items():
        data = made_up_study(Shape(steps=8, every=every))
        model = build_report(data)
        notes = {c.note for t in model.tables for c in t.columns if c.key == "score"}
        assert notes == {f"`eval/heldout/avg_at_1`, {text}; the rule was declared before the run"}
    short = replace(data.runs[0], lines=made_up_study(Shape(steps=8, every=1)).runs[0].lines)
    mixed = build_report(replace(data, runs=(short, *data.runs[1:])))
    assert "of each run, or of 1 where it has no more;" in next(
        c.note for t in mixed.tables for c in t.columns if c.key == "score"
    )


def test_arms_whose_rewards_failed_are_named() -> None:
    """Rewards that failed are named with their share, also as the status of runs that finished; 1% is not."""
    data = made_up_study(Shape(steps=8, designs=("add_one",), tricks=("clip_higher", "token_level")))
    labels = {a.key: a.label for a in data.plan.arms}
    shares = {"clip_higher": 1.0, "token_level": 0.996, "base": 0.01}

    def failing(run: RunData) -> RunData:
        more = {"reward/failed_frac": shares[labels[run.arm].removeprefix("+ ")]}
        lines = tuple(replace(x, values={**x.values, **more}) if x.step else x for x in run.lines)
        return replace(run, lines=lines)

    model = build_report(replace(data, runs=tuple(map(failing, data.runs))))
    (text,) = (text for text in model.warnings if "reward" in text)
    assert text == (
        "In 6 of 9 runs the reward of more than 1% of the responses failed: `clip_higher` (100%) and `token_level` "
        "(99%). A failed reward function scored `on_failure`, and a failed verifier counted as wrong. The first "
        "errors are in `stdout.log` of the run folder."
    )
    (table,) = (t for t in model.tables if t.key == "solo.score")
    statuses = {row.label: row.cells[-1].text for row in table.rows}
    assert statuses == {
        "base": "ok",
        "clip_higher": "rewards failed (100%)",
        "token_level": "rewards failed (99%)",
    }
    assert not any("reward" in text for text in build_report(data).warnings)


def test_a_status_says_in_how_many_runs_rewards_failed() -> None:
    """One bad run of three is not the whole arm."""
    data = made_up_study(Shape(steps=8, designs=("add_one",), tricks=("clip_higher",)))
    bad = next(run for run in data.runs if run.arm != data.plan.base)
    lines = tuple(replace(x, values={**x.values, "reward/failed_frac": 0.5}) if x.step else x for x in bad.lines)
    runs = tuple(replace(run, lines=lines) if run is bad else run for run in data.runs)
    (table,) = (t for t in build_report(replace(data, runs=runs)).tables if t.key == "solo.score")
    assert [row.cells[-1].text for row in table.rows] == ["ok", "rewards failed in 1 of 3 (50%)"]


def test_intervals_are_said_to_be_held_to_the_evaluations_only_where_they_are() -> None:
    """Without counts of the score (pass@k) nothing is known of the noise of evaluations, and nothing is said."""
    data = made_up_study(Shape(steps=8))
    said = "than evaluation noise alone implies"
    assert said in build_report(data).to_json()
    uncounted = replace(data, runs=tuple(replace(run, evaluations=()) for run in data.runs))
    model = build_report(uncounted)
    assert said not in model.to_json()
    assert "noise of the evaluations" not in model.provenance["intervals"]


def test_approximate_training_is_noted_below_the_scores() -> None:
    """The note names what is approximate, the arms and the reason; an exact study has no such note."""
    data = made_up_study(Shape(steps=4, designs=("list",), tricks=("clip_higher", "token_level")))
    exact = {t.key: t.notes for t in build_report(data).tables}
    support = Support(feature="clip.kind", level="approximate", reason="The ratio is averaged over a sequence.")
    arms = tuple(replace(a, approximate=(support,)) if a.label == "clip_higher" else a for a in data.plan.arms)
    noted = {t.key: t.notes for t in build_report(replace(data, plan=replace(data.plan, arms=arms))).tables}
    text = "Trained approximately: `clip.kind` in `clip_higher`. The ratio is averaged over a sequence."
    assert text in noted["levels.score"]
    assert text in noted["cost"]
    assert not any("approximately" in note for notes in exact.values() for note in notes)


def test_sources_of_values_are_noted_if_not_all_are_exact() -> None:
    """A table says which of its measures are derived or a proxy, and in which arms; others say nothing."""
    data = made_up_study(Shape(steps=4, designs=("list",), tricks=("clip_higher",)))
    base, name = data.plan.base, "policy/entropy"
    runs = tuple(
        replace(r, lines=tuple(replace(x, sources={name: "proxy"} if name in x.values else {}) for x in r.lines))
        if r.arm != base
        else r
        for r in data.runs
    )
    notes = {t.key: " ".join(t.notes) for t in build_report(replace(data, runs=runs)).tables}
    assert "Not all values are exact: entropy (exact in `base`; proxy in `clip_higher`)." in notes["levels.behaviour"]
    assert "Not all values are exact: entropy (" in notes["effects"]
    assert "Not all values are exact" not in notes["levels.score"] + notes["cost"]
