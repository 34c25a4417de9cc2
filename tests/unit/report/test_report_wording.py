"""Sentences, cells and captions where an edge of the data would make the usual wording false."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from scipy import special

from paribus.external.plan import ExternalRun, Terms, external_plan
from paribus.health.finding import Finding, HealthFile
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import Effect
from paribus.report.answer import answer, totals
from paribus.report.build import build_report
from paribus.report.declared import Declared
from paribus.report.figures.forests import answer_figure
from paribus.report.follow_up import _verdict
from paribus.report.inputs import External, Outcome, RunData, StudyData
from paribus.report.sentences import _ladders, _learning, _not_compared, warnings
from paribus.report.several_studies import compare_all
from paribus.report.tables.appendix import seeds_table
from paribus.report.tables.ceilings import ratio_text
from paribus.report.tables.cells import interval_text, p_text, p_words
from paribus.report.tables.scores import score_table
from paribus.run_folder.folder import MetricLine
from paribus.stats.intervals import Estimate
from paribus.study.expand import make_plan
from paribus.study.load import load_study
from paribus.study.plan import InterimRule
from paribus.testing.fake_runner import FakeRunner
from support.studies import PROVENANCE, SCORE, Shape, made_up_results, made_up_study, scored

SOLO = Shape(seeds=5, designs=("add_one",), tricks=("clip_higher", "soft_overlong"))
BASE = (0.50, 0.54, 0.58, 0.52, 0.56)
SPREAD = (-0.001, 0.0055, -0.001, 0.0135, -0.017)


def shifted(by: float) -> StudyData:
    """A study in which `clip_higher` moves the score by so much, with the same spread, and `soft_overlong` does not."""
    other = {"base": BASE, "soft_overlong": (0.49, 0.57, 0.55, 0.54, 0.57)}
    clip = [b + by + s for b, s in zip(BASE, SPREAD, strict=True)]
    return scored(SOLO, lambda label, seed: other.get(label, clip)[seed])


def test_nothing_is_said_of_tests_that_two_seeds_do_not_have() -> None:
    """No correction over 0 comparisons, no interval that isn't there, no p values, and no range of equal numbers."""
    shape = replace(SOLO, seeds=2, designs=("add_one", "leave_one_out"))
    model = build_report(scored(shape, lambda label, _: 0.3 if label == "base" else 0.5))
    assert "Mean differences from the base in held-out accuracy: +0.200 for each arm with a score." in model.answer
    tables = {table.key: table for table in model.tables}
    notes = tables["contributions"].notes
    assert "Differences in held-out accuracy; no comparison with the base could be tested." in notes
    assert not any("over all 0" in note for note in notes)
    (column,) = (column for column in tables["pairs"].columns if column.key == "difference")
    assert (column.label, column.note) == ("differences", "too few pairs for a mean with an interval")
    assert not any("p values" in note for note in tables["pairs"].notes)
    (column,) = (column for column in tables["solo.score"].columns if column.key == "to_base")
    assert column.note == "difference from `base`; paired by seed"
    rules = {name: model.provenance[name] for name in ("intervals", "tests", "power")}
    assert set(rules.values()) == {"none: no arm has 3 runs that ended with values"}
    curves = [f.caption for f in model.figures if f.panels]
    assert curves
    assert all(text.startswith("One thin line per seed: a mean with a band takes 3 seeds.") for text in curves)
    lost = build_report(made_up_study(replace(shape, outcomes=(("full", 0, "failed"),))))
    (note,) = (n for t in lost.tables if t.key == "contributions" for n in t.notes if "is missing" in n)
    assert note.endswith("These count as without losses.")


def test_a_score_before_training_is_no_difference_in_the_answer() -> None:
    """An arm whose runs all stopped before an evaluation is named as such, and is no extreme of the differences."""
    data = scored(replace(SOLO, seeds=1), lambda label, _: 0.5 if label == "base" else 0.6)
    arm = next(a.key for a in data.plan.arms if a.label == "clip_higher")
    runs = tuple(replace(r, outcome="stopped_early", lines=r.lines[:2]) if r.arm == arm else r for r in data.runs)
    said = answer(Analysis(replace(data, runs=runs)))
    assert "Differences from the base in held-out accuracy: `soft_overlong` +0.100." in said
    assert said.endswith("Stopped before an evaluation, so that the score before training counts: `clip_higher`.")


@pytest.mark.parametrize("seeds", [1, 2])
def test_an_answer_without_tests_names_the_arms_that_it_does_not_compare(seeds: int) -> None:
    """Arms without a score, and those that count with the evaluations of stopped runs, as in an answer with tests."""
    ends: dict[str, Outcome | float] = {"base": 0.5, "clip_higher": "failed", "soft_overlong": math.nan}
    shape = replace(SOLO, seeds=seeds, tricks=("clip_higher", "soft_overlong", "token_level", "dynamic_sampling"))
    data = scored(shape, lambda label, _: ends.get(label, 0.6))
    stopped = next(a.key for a in data.plan.arms if a.label == "token_level")
    runs = tuple(replace(r, outcome="stopped_early") if r.arm == stopped else r for r in data.runs)
    said = answer(Analysis(replace(data, runs=runs)))
    assert said.startswith("No difference from the base is tested")
    assert "Not compared, because every run was lost: `clip_higher`." in said
    assert "Not compared, because no run has a finite score: `soft_overlong`." in said
    assert said.endswith("Every run stopped early, and counts with its last evaluation: `token_level`.")


def test_the_interval_of_a_single_run_has_a_note() -> None:
    """A table with the evaluation noise of one run says what it is; one of three seeds needs no such words."""
    for seeds in (1, 3):
        (table,) = (t for t in build_report(made_up_study(replace(SOLO, seeds=seeds))).tables if t.key == "solo.score")
        there = any("evaluation noise only" in cell.note for row in table.rows for cell in row.cells)
        told = any(note.startswith("[low, high] evaluation noise only: 95%") for note in table.notes)
        assert there is told is (seeds == 1)


def test_the_rule_of_claims_speaks_of_tests_that_are_there() -> None:
    """No level of a count of arms under one spread where the report has no such count."""
    whole = made_up_study(SOLO)
    lost = made_up_study(replace(SOLO, outcomes=(("clip_higher", 0, "failed"),)))
    for data in (whole, lost):
        model = build_report(data)
        (rule,) = (w for w in model.words if w.startswith("A sentence says"))
        assert ("a count of arms under one spread" in rule) is ("if all arms share one spread" in model.answer)


def between(low: float, high: float) -> StudyData:
    """A shifted study in which p of the first arm after correction lies between two limits."""
    for thousandths in range(50):
        data = shifted(thousandths / 1000)
        effect = next(iter(Analysis(data).to_base.values()))
        if effect is not None and effect.p_adjusted is not None and low < effect.p_adjusted < high:
            return data
    raise AssertionError("no such shift")


def with_two_more(short: StudyData) -> StudyData:
    """The study with two more tricks alone."""
    long = made_up_study(Shape(seeds=5, designs=("add_one",)))
    more = ("token_level", "dynamic_sampling")
    arms = tuple(a for a in long.plan.arms if a.label in more)
    rows = (*short.plan.rows, *(r for r in long.plan.rows if r.label in more))
    runs = (*short.runs, *(r for r in long.runs if r.arm in {a.key for a in arms}))
    return replace(short, runs=runs, plan=replace(short.plan, rows=rows, arms=(*short.plan.arms, *arms)))


@pytest.mark.parametrize(("design", "whole"), [("cumulative", "`ladder`"), ("leave_one_out", "the full recipe")])
def test_tricks_that_are_not_all_are_named(monkeypatch: pytest.MonkeyPatch, design: str, whole: str) -> None:
    """Two tricks together beside four single ones: "both tricks" would be read as the two just named."""
    short = made_up_study(Shape(seeds=5, designs=("add_one", design), tricks=("clip_higher", "soft_overlong")))
    assert "Both tricks together" in answer(Analysis(short))
    both = Analysis(with_two_more(short))
    assert "`clip_higher` and `soft_overlong` together lowered it" in answer(both)
    monkeypatch.setattr("paribus.report.answer.SHOWN", 1)
    assert f"The 2 tricks of {whole} together lowered it" in answer(both)


def test_a_follow_up_settles_only_what_the_report_claims() -> None:
    """Between the level of a sentence and 5% an arm is undecided in the report, and gets its seeds."""
    analysis = Analysis(between(0.031, 0.049))
    (arm, effect), *_ = analysis.to_base.items()
    assert effect is not None
    assert effect.confirmed
    assert "Undecided at 5 seeds: `clip_higher`" in answer(analysis)
    assert "is undecided" in _verdict(analysis, arm, effect, 100).reason


def test_rounding_puts_nothing_on_the_limit_that_it_passed() -> None:
    """A p below a level, and an interval that leaves out 0, or a ratio's 1, are printed so."""
    assert [p_text(p) for p in (0.0498, 0.02996, 0.0302, 0.0504, 0.04999)] == [
        "0.0498",
        "0.02996",
        "0.030",
        "0.050",
        "0.04999",
    ]
    assert p_words(0.05) == "p = 0.050"
    error = 0.0116
    half = float(special.stdtrit(2, 0.975)) * error
    wide = Estimate(value=0.0003 + half, n=3, sd=error * math.sqrt(3), se=error, low=0.0003, high=0.0003 + 2 * half)
    assert interval_text(wide, signed=True) == "+0.0502 [0.0003, 0.1001]"
    log = Estimate(value=math.log(0.92), n=5, sd=0.1, se=0.03, low=math.log(0.849), high=math.log(0.997), p=0.04)
    assert ratio_text(Effect(estimate=log, by_seed=(), paired=True)) == "0.920 [0.849, 0.997]"


def test_runs_with_seeds_of_their_own_are_all_shown(tmp_path: Path) -> None:
    """Without pairs each run has another seed: "every run" shows them, and says of none that it is not finished."""
    file = tmp_path / "unpaired.yaml"
    file.write_text(
        "study: unpaired\nbase: {preset: grpo, set: {kl: off, schedule: {steps: 4, minibatches: 8}}}\n"
        "tricks: {a: {aggregation: token_batch}}\ndesigns: {solo: {kind: add_one}}\n"
        "seeds: {n: 3, paired: false}\nevaluate: {every: 1, problems: 200}\n"
    )
    data = made_up_results(make_plan(load_study(file), FakeRunner()), lambda _, seed: 0.4 + 0.001 * (seed % 7))
    table = seeds_table(Analysis(data))
    assert [c.label for c in table.columns] == ["run 1", "run 2", "run 3"]
    assert all(cell.value is not None for row in table.rows for cell in row.cells)


def test_a_budget_that_no_run_spent_makes_none_cheaper() -> None:
    """Runs that ended before their budget cost less than others only if there are others."""
    data = made_up_study(SOLO)
    schedule = data.plan.arms[0].recipe.schedule.model_copy(update={"tokens": 10**9})
    arms = tuple(replace(a, recipe=a.recipe.model_copy(update={"schedule": schedule})) for a in data.plan.arms)
    (said,) = [w for w in warnings(Analysis(replace(data, plan=replace(data.plan, arms=arms)))) if "schedule" in w]
    assert said.startswith(
        "15 of 15 runs ended by `schedule.steps` before they had spent `schedule.tokens`: `base` (5)"
    )


def test_intervals_of_an_interim_analysis_state_their_level() -> None:
    """Sentences and captions of figures, as the notes of tables do."""
    data = made_up_study(SOLO)
    rule = InterimRule(at=(5, 8), spending="obrien_fleming", width=None)
    analysis = Analysis(replace(data, plan=replace(data.plan, interim=rule)))
    level = analysis.gain(analysis.plan.base).estimate.level  # type: ignore[union-attr]
    assert 0.95 < level < 1
    text, figure = build_report(analysis.data).summary[0], answer_figure(analysis)
    assert f"{100 * level:.4g}% t intervals" in text
    assert figure is not None
    assert figure.caption.startswith(f"{100 * level:.4g}% t intervals")


def test_both_ends_of_learning_are_of_the_same_runs() -> None:
    """A run with a score before training alone moves neither end."""
    data = made_up_study(SOLO)

    def ends(run: RunData) -> RunData:
        if run.arm != data.plan.base:
            return run
        start, end = (0.1, math.nan) if run.seed == 0 else (0.5, 0.6 + 0.01 * run.seed)
        lines = tuple(
            replace(x, values={**x.values, SCORE: end if x.step else start}) if SCORE in x.values else x
            for x in run.lines
        )
        return replace(run, lines=lines, evaluations=())

    analysis = Analysis(replace(data, runs=tuple(map(ends, data.runs))))
    assert "went from 0.500 to 0.625" in _learning(analysis)
    assert "a change of +0.125" in _learning(analysis)


def test_a_stopped_run_without_an_evaluation_counts_nowhere() -> None:
    """It is not said to count with its last evaluation, of which it has none."""
    data = made_up_study(replace(SOLO, outcomes=(("clip_higher", 0, "stopped_early"), ("base", 1, "stopped_early"))))
    clip = next(a.key for a in data.plan.arms if a.label == "clip_higher")

    def bare(run: RunData) -> RunData:
        if run.outcome != "stopped_early" or run.arm != clip:
            return run
        lines = (replace(x, values={n: v for n, v in x.values.items() if "eval/" not in n}) for x in run.lines)
        return replace(run, lines=tuple(lines), evaluations=())

    said = warnings(Analysis(replace(data, runs=tuple(map(bare, data.runs)))))
    assert "1 of 15 runs stopped early (counted with the last evaluation): `base`." in said
    assert "1 of 15 runs stopped early without an evaluation (left out of the means): `clip_higher`." in said


def test_findings_that_are_as_frequent_are_all_named() -> None:
    """Two detectors were critical in one run each: neither was critical most often alone."""
    data = made_up_study(SOLO)

    def critical(detector: str) -> HealthFile:
        found = Finding(detector=detector, state="critical", step_onset=5)
        return HealthFile(status="critical", profile="default 1 (abc)", raised=(found,))

    runs = [*data.runs]
    runs[0], runs[1] = replace(runs[0], health=critical("nan")), replace(runs[1], health=critical("truncation"))
    said = totals(Analysis(replace(data, runs=tuple(runs))))[-1]
    assert said.endswith("Critical most often: nan and truncation, in 1 each.")


def test_a_ladder_that_ends_at_the_base_says_so() -> None:
    """Not that its seeds are too few."""
    data = made_up_study(Shape(seeds=5, designs=("cumulative",), tricks=("clip_higher",)))
    rows = tuple(replace(r, arm=data.plan.base) for r in data.plan.rows)
    runs = tuple(r for r in data.runs if r.arm == data.plan.base)
    analysis = Analysis(replace(data, runs=runs, plan=replace(data.plan, rows=rows, arms=data.plan.arms[:1])))
    assert _ladders(analysis) == ["Ladder `ladder`: its last row is the base."]


def test_a_late_rule_for_pairs_is_not_called_declared() -> None:
    """Seeds are paired as without a rule, and the line says so."""
    data = made_up_study(SOLO)
    late = Declared(at=1.0, known=3, late_terms=frozenset({"pairing"}), planned_by={})
    analysis = Analysis(replace(data, declared=late, plan=replace(data.plan, pairing="where_it_helps")))
    assert totals(analysis)[0].startswith("Tests: paired by seed, as without a rule")


# ---- runs that Paribus did not train ---------------------------------------------------------------


def external(
    seeds: Mapping[str, Sequence[int]],
    score: Callable[[str, int], float],
    *,
    trainer: Callable[[str], str] = lambda _: "verl",
    timed: Callable[[str], bool] = lambda _: True,
) -> Analysis:
    """Imported runs: a million tokens a line and, where it is known, an hour a line."""
    listed = [
        ExternalRun(arm=arm, seed=s, fingerprint=f"{arm}{s}", steps=10) for arm, own in seeds.items() for s in own
    ]
    plan = external_plan("imported", listed, Terms(primary=SCORE), None)
    label = {a.key: a.label for a in plan.arms}
    runs = []
    for planned in plan.runs:
        arm = label[planned.arm]
        cost = {"budget/gen_tokens": 1e6, **({"perf/time_step_s": 3600.0} if timed(arm) else {})}
        lines = tuple(
            MetricLine(
                step=step,
                time_ms=0,
                values={**cost, SCORE: score(arm, planned.seed) if step else 0.1},
                sources={SCORE: "proxy"},
            )
            for step in (0, 5, 10)
        )
        origin = External(origin="imported", trainer=trainer(arm), score="val/acc")
        run = RunData(fingerprint=planned.fingerprint, arm=planned.arm, seed=planned.seed, outcome="finished")
        runs.append(replace(run, lines=lines, external=origin))
    return Analysis(StudyData(plan=plan, runs=tuple(runs), provenance=PROVENANCE))


def test_arms_of_another_trainer_are_not_compared_and_not_counted() -> None:
    """Their score means something else; that they lack a seed of the base would be wrong."""
    trainers = {"c": "TRL"}
    seeds = {"a": [0, 1, 2], "b": [0, 1, 2], "c": [0, 1, 2]}
    found = external(
        seeds, lambda a, s: 0.5 + 0.1 * (a != "a") + 0.01 * s * s, trainer=lambda a: trainers.get(a, "verl")
    )
    assert "Not compared, because trainers measure the score in other ways: `c`." in answer(found)
    assert "Shown to differ from the base: 1 of 1 arm if all arms share one spread, 1 of 1 without that." in answer(
        found
    )
    assert _not_compared(found, next(a.key for a in found.plan.arms if a.label == "c")) == (
        "cannot be compared, because its trainer and that of the base measure the score in other ways"
    )


def test_nothing_of_imported_runs_was_planned() -> None:
    """Neither their number nor their end."""
    report = build_report(external({"a": [0, 1, 2], "b": [0, 1, 2]}, lambda a, s: 0.5 + 0.01 * s * s).data)
    assert "planned" not in report.status
    assert "planned" not in report.provenance["runs"]
    notes = {c.note for table in report.tables for c in table.columns if c.key == "seeds" and c.note}
    assert notes == {"finished / all"}


def test_runs_with_seeds_of_their_own_list_no_common_ones() -> None:
    """The numbers of blocks are no seeds."""
    data = made_up_study(SOLO)
    report = build_report(replace(data, plan=replace(data.plan, paired=False)))
    assert report.provenance["seeds"] == "each run has its own"


def test_imported_runs_are_counted_as_there_are() -> None:
    """Seeds of the arms differ, and nobody has planned a number of them."""
    one = external({"a": [0], "b": [1]}, lambda _, s: 0.5 + 0.01 * s)
    assert "planned" not in answer(one)
    assert any(s.startswith("Each arm is a single run") for s in build_report(one.data).summary)
    more = external({"a": [0, 1, 2], "b": [0, 1, 2], "c": [3]}, lambda a, s: 0.5 + 0.1 * (a == "b") + 0.01 * s * s)
    assert "With 1 to 3 seeds per arm" in build_report(more.data).summary[-1]


def test_the_time_of_imported_runs_is_of_no_named_device() -> None:
    """Their logs do not say what they ran on; runs without times are not counted as if they took none."""
    seeds = {"a": [0, 1, 2], "b": [0, 1, 2]}

    def cost(**more: Callable[[str], bool]) -> str:
        return next(t for t in totals(external(seeds, lambda _, s: 0.5 + 0.01 * s, **more)) if t.startswith("Cost: "))

    assert "device-hours of training" in cost()
    assert cost(timed=lambda _: False).endswith("generated; their time is not known.")
    assert cost(timed=lambda arm: arm == "a").endswith("(of 3 runs; of the others it is not known).")


def test_rows_that_were_never_compared_have_no_best() -> None:
    """Scores of two trainers: no test says that the lower one is not significantly worse."""
    means = {"a": 0.5, "b": 0.7, "c": 0.9}
    analysis = external(
        {arm: [0, 1, 2] for arm in means},
        lambda arm, s: means[arm] + 0.01 * s,
        trainer=lambda arm: "trl" if arm == "c" else "verl",
    )
    table = score_table(analysis, "arms", analysis.plan.rows)
    assert "No bold: not all rows can be compared with each other." in table.notes
    assert not any(cell.bold for row in table.rows for cell in row.cells)


# ---- several studies -------------------------------------------------------------------------------


def named(name: str, margin: float, by: float = 0.0, *, other: bool = False) -> StudyData:
    """A study of its own runs; with ``other``, its `clip_higher` is another recipe."""
    data = shifted(by)
    runs = tuple(replace(r, fingerprint=name + r.fingerprint) for r in data.runs)
    plan = replace(data.plan, study=name, margin=margin, fingerprint=name)
    if other:
        clip = next(a for a in plan.arms if a.label == "clip_higher")
        level = clip.recipe.clip.model_copy(update={"high": 0.6})
        changed = replace(clip, key=f"{clip.key}x", recipe=clip.recipe.model_copy(update={"clip": level}))
        plan = replace(
            plan,
            arms=tuple(changed if a is clip else a for a in plan.arms),
            rows=tuple(replace(r, arm=changed.key) if r.arm == clip.key else r for r in plan.rows),
            runs=tuple(replace(r, arm=changed.key) if r.arm == clip.key else r for r in plan.runs),
        )
        runs = tuple(replace(r, arm=changed.key) if r.arm == clip.key else r for r in runs)
    return replace(data, plan=plan, runs=runs)


def test_only_the_same_recipes_count_among_several_studies() -> None:
    """An arm with the same label and another recipe is no difference "to the same recipe", nor in its correction."""
    studies = [named("one", 0.05), named("two", 0.05), named("three", 0.05, 0.3, other=True)]
    model = compare_all(studies)
    assert "0 of 5 differences in held-out accuracy to the same recipe in `one` are confirmed" in model.answer
    tested = [row for row in model.tables[0].rows if row.cells[3].value is not None]
    assert len(tested) == 5


@pytest.mark.parametrize("last", [0.05, 0.1])
def test_equivalence_is_claimed_where_the_table_tests_it(last: float) -> None:
    """With margins that differ the table tests none, and the answer claims none."""
    model = compare_all([named("one", 0.05), named("two", 0.05), named("three", last)])
    untested = any(note.startswith("Equivalence is not tested") for note in model.tables[0].notes)
    assert ("equivalent" in model.answer) is not untested
    assert untested is (last != 0.05)
