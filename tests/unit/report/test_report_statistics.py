"""What a report says: estimates, differences, wording by number of seeds, lost runs, sentences."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.contract import Evaluate
from paribus.errors import ParibusError
from paribus.published.tables import Published, PublishedRow
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effects import contributions, singles
from paribus.report.analysis.measures import evaluation_error, score_measure, score_steps, symptom_measures, value_of
from paribus.report.build import build_report
from paribus.report.inputs import RunData, StudyData
from paribus.report.model import Cell, ReportModel, Table
from paribus.report.tables.cells import decimals_for, interval_text, number
from paribus.run_folder.folder import Evaluation, MetricLine
from paribus.stats.intervals import mean_interval
from support import studies
from support.studies import MOVES, PROVENANCE, TRICKS, Shape, made_up_study

EVALUATE = Evaluate(every=1, problems=4, samples=1)


def run_of(values: dict[int, dict[str, float]], outcome: str = "finished") -> RunData:
    """A run with these metric values by step."""
    lines = tuple(MetricLine(step=s, time_ms=s, values=v) for s, v in values.items())
    return RunData(fingerprint="f", arm="a", seed=0, outcome=outcome, lines=lines)  # type: ignore[arg-type]


def table(model: ReportModel, key: str) -> Table:
    """The table with this key."""
    return next(t for t in model.tables if t.key == key)


def cell(model: ReportModel, key: str, row: str, column: str) -> Cell:
    """One cell."""
    found = table(model, key)
    place = [c.key for c in found.columns].index(column)
    return next(r for r in found.rows if r.label == row).cells[place]


def everything(model: ReportModel) -> str:
    """All text that the report prints."""
    return model.to_json()


def scores(**by_step: float) -> dict[int, dict[str, float]]:
    """Evaluations at steps s0, s1, ..."""
    return {int(k[1:]): {"eval/heldout/avg_at_1": v} for k, v in by_step.items()}


def test_checkpoint_rules() -> None:
    """Mean of the last three evaluations, never the one before training; or the final one; as declared."""
    run = run_of(scores(s0=0.9, s1=0.1, s2=0.2, s3=0.3, s4=0.4))
    score = Analysis(made_up_study()).score
    assert value_of(run, score, EVALUATE) == pytest.approx(0.3)
    assert value_of(run, score, EVALUATE.model_copy(update={"checkpoint": "final"})) == 0.4
    assert value_of(run_of(scores(s0=0.9, s1=0.1, s2=0.2)), score, EVALUATE) == pytest.approx(0.15)


def test_stopped_runs_count_with_their_last_valid_evaluation() -> None:
    """A diverged run keeps the last evaluation that is a number, before training if there is no other."""
    score = Analysis(made_up_study()).score
    assert value_of(run_of(scores(s0=0.5, s1=0.4, s2=math.nan), "stopped_early"), score, EVALUATE) == 0.4
    assert value_of(run_of(scores(s0=0.5, s1=math.nan), "stopped_early"), score, EVALUATE) == 0.5
    for outcome in ("failed", "pending", "cancelled"):
        assert value_of(run_of(scores(s0=0.5, s1=0.4), outcome), score, EVALUATE) is None


def test_symptoms_are_means_over_the_last_quarter() -> None:
    """Of 8 steps the last two count; a value that is not finite or absent is left out."""
    entropy = next(m for m in symptom_measures() if m.key == "entropy")
    values = {s: {"policy/entropy": float(s)} for s in range(1, 9)}
    assert value_of(run_of(values), entropy, EVALUATE) == 7.5
    assert value_of(run_of({**values, 8: {"policy/entropy": math.nan}}), entropy, EVALUATE) == 7
    assert value_of(run_of({**values, 7: {}}), entropy, EVALUATE) == 8


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_costs_skip_what_is_not_finite(lost: float) -> None:
    """The newest number counts, and all finite ones are summed, also where one of their neighbours is none."""
    costs = Analysis(made_up_study()).costs
    values = {s: {"budget/optimizer_steps": float(s), "perf/time_step_s": float(s)} for s in range(1, 40)}
    run = run_of({**values, 20: {"perf/time_step_s": lost}, 40: {"budget/optimizer_steps": lost}})
    assert value_of(run, costs["updates"], EVALUATE) == 39
    assert value_of(run, costs["seconds"], EVALUATE) == sum(range(40)) - 20


def test_costs() -> None:
    """Tokens in thousands, the share thrown away, seconds summed, and the gain for a million tokens."""
    analysis = Analysis(made_up_study())
    assert analysis.costs["generated"].unit == "k tokens"
    run = run_of(
        {
            0: {"eval/heldout/avg_at_1": 0.2},
            1: {"budget/gen_tokens": 4e3, "budget/trained_tokens": 4e3, "perf/time_step_s": 2.0},
            2: {
                "budget/gen_tokens": 1e4,
                "budget/trained_tokens": 2.5e3,
                "perf/time_step_s": 3.0,
                "eval/heldout/avg_at_1": 0.5,
            },
        }
    )
    want = {"generated": 10.0, "trained": 2.5, "waste": 0.75, "seconds": 5.0}
    assert {k: value_of(run, analysis.costs[k], EVALUATE) for k in want} == pytest.approx(want)


def test_effects_without_noise_are_exact() -> None:
    """Without noise every difference is what the study was made with, alone, in the full recipe and on average."""
    analysis = Analysis(made_up_study(Shape(noise=0.0, problems=2000)))
    for c in contributions(analysis):
        for effect in (c.alone, c.in_full, c.mean):
            assert effect is not None
            assert effect.estimate.value == pytest.approx(MOVES[c.trick]["score"], abs=1e-3)
            assert effect.separated == (abs(effect.estimate.value) > 0.015)  # the noise of the evaluations remains
    for single in singles(analysis):
        for measure in symptom_measures():
            effect = analysis.effect(single.arm, analysis.plan.base, measure)
            move = {"length": "length", "length_wrong": "wrong", "truncated": "truncated", "entropy": "entropy"}
            expected = MOVES[single.name].get(move.get(measure.key, ""), 0.0)
            assert effect is not None
            assert effect.estimate.value == pytest.approx(expected, abs=1e-6)


def test_large_effects_are_found_and_small_ones_are_not_claimed() -> None:
    """Ten seeds: soft overlong punishment separates, clip-higher does not; the words follow the tests."""
    model = build_report(made_up_study(Shape(seeds=10)))
    by_trick = {re.split("`", w)[1]: w for w in model.words if "`" in w}
    assert "lowered held-out accuracy by 0.0" in by_trick["soft_overlong"]
    assert re.search(r"lowered .*truncation by 0\.2\d", by_trick["soft_overlong"])
    assert re.search(r"undecided in held-out accuracy, .*be detected from 0\.0\d+ on", by_trick["clip_higher"])
    assert cell(model, "effects", "soft_overlong", "truncated").verdict == "separated"
    assert cell(model, "effects", "soft_overlong", "truncated").note == "separated*"
    assert "raised generated tokens" in by_trick["dynamic_sampling"]
    assert "no effect" not in everything(model)


def test_family_of_the_correction_is_all_arms_against_the_base() -> None:
    """Holm runs over every distinct arm but the base, whatever table it stands in."""
    analysis = Analysis(made_up_study())
    assert analysis.family == len(analysis.plan.arms) - 1 == 10
    raw = sorted(e.estimate.p for e in analysis.to_base.values() if e and e.estimate.p is not None)
    adjusted = sorted(e.p_adjusted for e in analysis.to_base.values() if e and e.p_adjusted is not None)
    assert adjusted[0] == pytest.approx(raw[0] * 10)
    assert "over 10 comparisons" in everything(build_report(made_up_study()))


def test_one_seed_makes_no_claim() -> None:
    """A single seed: no interval over training, no test, no bold, no star, and the sentence that says so."""
    model = build_report(made_up_study(Shape(seeds=1)))
    text = everything(model)
    assert "training variance unknown" in text
    cells = [c for t in model.tables for r in t.rows for c in r.cells]
    assert not any(c.bold or c.p is not None or c.p_adjusted is not None or c.low is not None for c in cells)
    assert not any("*" in c.text + c.note or "±" in c.text for c in cells)
    assert not any(c.verdict in ("separated", "not_separated") for c in cells)
    assert "evaluation noise only" in cell(model, "ladder.score", "base", "score").note
    assert "it supports no ranking" in text
    assert all(not line.low for f in model.figures for p in f.panels for line in p.lines)
    assert all(i.low is None for f in model.figures for x in f.forests for i in x.intervals)


def test_two_seeds_show_both_values() -> None:
    """Two seeds: both values, no interval, no test, no bold."""
    model = build_report(made_up_study(Shape(seeds=2)))
    base = cell(model, "ladder.score", "base", "score")
    assert len(base.text.split(", ")) == 2
    assert base.low is None
    assert cell(model, "ladder.score", "ladder 1: + clip_higher", "p").text == "—"
    assert not any(c.bold for t in model.tables for r in t.rows for c in r.cells)
    assert "2 runs" in " ".join(model.summary)


def test_three_seeds_are_indicative() -> None:
    """With three or four seeds the report says that it is indicative, with five it does not."""
    assert "indicative" in everything(build_report(made_up_study(Shape(seeds=3))))
    assert "indicative" not in everything(build_report(made_up_study(Shape(seeds=5))))


def test_bold_is_the_best_and_what_is_not_told_from_it() -> None:
    """The best arm is bold; an arm that a corrected test tells from it is not; all cells of an arm agree."""
    model = build_report(made_up_study(Shape(seeds=8, designs=("list",))))
    bold = {r.label: r.cells[1].bold for r in table(model, "levels.score").rows}
    assert bold["dynamic_sampling"]
    assert not bold["soft_overlong"]
    assert not bold["token_level"]


def test_bold_skips_no_better_row() -> None:
    """A precise row that is told from the best is a leader where a noisy row below it is not told from the best.

    Here these are all rows: bold would choose nothing, and is left out with the reason.
    """
    data = made_up_study(Shape(seeds=3, designs=("list",), tricks=("clip_higher", "token_level"), noise=0.1))
    label = {a.key: a.label for a in data.plan.arms}
    move = {"base": (0.3, 0.3, 0.3), "clip_higher": (0.2, 0.201, 0.202), "token_level": (0.3, 0.0, 0.2)}
    runs = tuple(replace(r, evaluations=(), lines=_shifted(r.lines, move[label[r.arm]][r.seed])) for r in data.runs)
    shown = table(build_report(replace(data, runs=runs)), "levels.score")
    rows = shown.rows
    scores, p = [r.cells[1].value for r in rows], [r.cells[3].value for r in rows]
    assert scores[0] > scores[1] > scores[2]  # type: ignore[operator]
    assert p[1] < 0.05 < p[2]  # type: ignore[operator]
    assert not any(r.cells[1].bold for r in rows)
    assert any(n.startswith("No bold: even the worst row is not significantly worse") for n in shown.notes)


def test_unpaired_studies_use_welch() -> None:
    """Where seeds are not paired there is no table of pairs, and the tests are named Welch's."""
    model = build_report(made_up_study(Shape(paired=False)))
    assert "pairs" not in [t.key for t in model.tables]
    assert "Welch" in model.provenance["tests"]
    assert cell(model, "contributions", "soft_overlong", "mean").verdict == "separated"


def test_lost_runs_never_vanish(model: ReportModel) -> None:
    """Failed and stopped runs are listed with their reason, marked in their row, counted, and told in the warnings."""
    rows = {r.label: [c.text for c in r.cells] for r in table(model, "losses").rows}
    assert rows["clip_higher"][1].startswith("failed")
    assert rows["clip_higher"][4] == "out of memory"
    assert rows["soft_overlong"][1].startswith("stopped early")
    assert cell(model, "solo.score", "clip_higher", "seeds").text == "2/3✗"
    row = "ladder 1: + soft_overlong"
    assert cell(model, "ladder.score", row, "seeds").text == "2/3†"
    assert cell(model, "ladder.score", row, "score").n == 3
    assert "(n=3)" in cell(model, "ladder.score", row, "score").text
    assert len(model.warnings) >= 2
    assert "10 as planned" in model.status


def test_verdicts_that_hang_on_lost_runs_are_fragile() -> None:
    """If another count of a failed seed changes the verdict, the row says fragile; untouched rows do not."""
    data = made_up_study(Shape(seeds=4, outcomes=(("+ clip_higher", 0, "failed"), ("+ soft_overlong", 0, "failed"))))
    moved = [
        replace(r, lines=_shifted(r.lines, 0.1)) if r.arm == data.plan.arms[1].key else r for r in data.runs
    ]  # clip_higher made clearly better, but for the seed that it lost
    model = build_report(replace(data, runs=tuple(moved)))
    assert cell(model, "sensitivity", "clip_higher", "as_planned").verdict == "separated"
    assert cell(model, "sensitivity", "clip_higher", "verdict").text == "fragile"
    assert "fragile" in cell(model, "ladder.score", "ladder 1: + clip_higher", "status").text
    assert cell(model, "ladder.score", "ladder 3: ... + token_level", "status").text == "ok"
    assert any(w.startswith("Fragile") for w in model.warnings)


def test_all_at_once_is_held_to_the_evaluation_where_pairs_agree() -> None:
    """An arm with the scores of the base has no spread of differences, but evaluations that could have differed."""
    data = made_up_study(Shape(seeds=3, noise=0.1))
    base, arm = data.plan.arms[:2]
    lines = {r.seed: r.lines for r in data.runs if r.arm == base.key}
    runs = tuple(replace(r, lines=lines[r.seed]) if r.arm == arm.key else r for r in data.runs)
    model = build_report(replace(data, runs=runs))
    single, among = (cell(model, "comparisons", "clip_higher", c) for c in ("difference", "at_once"))
    assert single.value == 0
    assert single.high is not None
    assert among.high is not None
    assert among.high > single.high > 0


def _shifted(lines: tuple[MetricLine, ...], by: float) -> tuple[MetricLine, ...]:
    """The lines with a better score after training."""
    name = "eval/heldout/avg_at_1"
    moved = ({k: v + by * (k == name and x.step > 0) for k, v in x.values.items()} for x in lines)
    return tuple(replace(x, values=v) for x, v in zip(lines, moved, strict=True))


@pytest.mark.parametrize("outcome", ["pending", "failed", "cancelled"])
def test_no_finished_run_at_all(outcome: str) -> None:
    """A study with no finished run gives a report that says so, not a crash."""
    data = made_up_study()
    none = replace(data, runs=tuple(replace(r, outcome=outcome, lines=(), evaluations=()) for r in data.runs))  # type: ignore[arg-type]
    model = build_report(none)
    why = "has no finished run yet" if outcome == "pending" else f"was lost: {outcome} (3)"
    assert re.fullmatch(f"No arm can be compared with the base, because .*base.* {re.escape(why)}.", model.summary[0])
    assert model.complete == (outcome != "pending")
    assert cell(model, "ladder.score", "base", "score").text == "n/a"


def test_running_study_is_marked_incomplete() -> None:
    """Unfinished runs are counted, marked, and kept out of the means."""
    data = made_up_study(Shape(seeds=4, outcomes=(("base", 3, "pending"), ("+ clip_higher", 2, "pending"))))
    model = build_report(data)
    assert not model.complete
    assert model.status.startswith("incomplete: 42 of 44 runs")
    assert cell(model, "ladder.score", "base", "seeds").text == "3/4…"
    assert cell(model, "ladder.score", "base", "score").n == 3


def test_base_arm_learns(model: ReportModel) -> None:
    """The first table and sentence give the base arm before and after, and the gain within runs."""
    gain = cell(model, "learning", "base", "gain")
    assert gain.verdict == "separated"
    assert gain.value == pytest.approx(0.17, abs=0.05)
    assert model.summary[0].startswith("The base arm `base` went from 0.46")


def test_provenance_is_demanded(lossy: StudyData) -> None:
    """Without provenance the report is refused, and the message names what is missing."""
    lacking = {k: v for k, v in PROVENANCE.items() if k != "git commit"}
    with pytest.raises(ParibusError, match="git commit"):
        build_report(replace(lossy, provenance=lacking))


def test_provenance_states_how_numbers_were_made(model: ReportModel) -> None:
    """Seeds, checkpoint rule, tests, alpha, correction, sampling and fingerprints are stated."""
    text = " ".join(f"{k}: {v}" for k, v in model.provenance.items())
    for part in ("mean_of_last_3", "0, 1, 2", "Holm", "0.05", "temperature: 1", "max new tokens: 37", "c0dec0de"):
        assert part in text
    assert re.search(r"12 planned: (?=.*10 finished)(?=.*1 failed)(?=.*1 stopped early)", text)


def test_lack_of_fit_of_the_additive_estimate_is_told() -> None:
    """The sum of the order-free estimates is checked against the whole difference, with its interval."""
    notes = " ".join(table(build_report(made_up_study()), "contributions").notes)
    assert "three-way interactions" in notes
    assert re.search(r"Check: .* is [+−]?0\.\d+ \[", notes)


def test_no_interval_of_a_score_beats_its_evaluation() -> None:
    """Seeds that agree by luck keep the binomial noise of their answers, in means and differences; symptoms do not."""
    model = build_report(made_up_study(Shape(noise=0.0, problems=200)))
    one = math.sqrt(0.63 * 0.37 / (3 * 3 * 200))  # 3 seeds, 3 evaluations each
    base, effect = cell(model, "ladder.score", "base", "score"), cell(model, "solo.score", "clip_higher", "to_base")
    assert base.high - base.low == pytest.approx(2 * 1.96 * one, rel=0.1)  # type: ignore[operator]
    assert effect.high - effect.low == pytest.approx(2 * 1.96 * one * math.sqrt(2), rel=0.1)  # type: ignore[operator]
    assert effect.verdict == "not_separated"
    assert cell(model, "ladder.behaviour", "base", "entropy").low is None
    assert "than evaluation noise alone implies" in " ".join(table(model, "ladder.score").notes)


def test_arms_with_other_problems_have_no_known_evaluation_noise() -> None:
    """Where an arm answered other problems its counts are not compared problem by problem."""
    data = made_up_study(Shape(noise=0.0))
    other = [
        replace(r, evaluations=tuple(replace(e, problems=tuple(f"x{p}" for p in e.problems)) for e in r.evaluations))
        if r.arm == data.plan.arms[1].key
        else r
        for r in data.runs
    ]
    analysis = Analysis(replace(data, runs=tuple(other)))
    assert analysis.answers(data.plan.base, analysis.score)
    assert not analysis.answers(data.plan.arms[1].key, analysis.score)
    effect = analysis.effect(data.plan.arms[1].key, data.plan.base, analysis.score)
    assert effect is not None
    assert len(effect.estimate.errors) == 0


DAPO = {
    "base": 0.30,
    "+ overlong_filtering": 0.36,
    "+ clip_higher": 0.38,
    "+ soft_overlong": 0.41,
    "+ token_level": 0.42,
    "+ dynamic_sampling": 0.50,
}
"""Table 1 of Yu et al. 2025, arXiv 2503.14476: AIME24 avg@32 of Qwen2.5-32B, each row on top of those above it."""


def test_published_single_runs_are_not_ranked(monkeypatch: pytest.MonkeyPatch) -> None:
    """DAPO's Table 1 as it was published, one run a row: no bold, no stars, no test, training variance unknown."""
    filtering = {"length": {"truncated": "mask_loss"}}
    monkeypatch.setattr(studies, "TRICKS", {**TRICKS, "overlong_filtering": filtering})
    monkeypatch.setattr(studies, "MOVES", {**MOVES, "overlong_filtering": {}})
    tricks = tuple(label.removeprefix("+ ") for label in DAPO if label != "base")
    data = made_up_study(Shape(seeds=1, designs=("cumulative",), tricks=tricks))
    published = {a.key: DAPO[a.label] for a in data.plan.arms}
    assert len(published) == len(DAPO)
    name = "eval/heldout/avg_at_1"
    runs = [
        replace(
            r,
            evaluations=(),
            lines=tuple(replace(x, values={name: published[r.arm]}) for x in r.lines if x.step and name in x.values),
        )
        for r in data.runs
    ]
    model = build_report(replace(data, runs=tuple(runs)))
    assert cell(model, "ladder.score", "ladder 5: ... + dynamic_sampling", "to_base").value == pytest.approx(0.20)
    cells = [c for t in model.tables for r in t.rows for c in r.cells]
    assert not any(c.bold or "*" in c.text + c.note or c.p is not None or c.low is not None for c in cells)
    assert not any(c.verdict in ("separated", "not_separated") for c in cells)
    text = " ".join((*model.summary, *model.words))
    assert (
        "Each arm is a single run, so training variance is unknown and differences between arms are not tested." in text
    )
    assert "comparisons" not in [t.key for t in model.tables]


def test_seeds_that_are_not_paired_have_an_exact_test_from_four_on() -> None:
    """The permutation test stands beside Welch's where it can reach 5%; below, the note says how far it reaches."""
    shape = Shape(paired=False, tricks=("soft_overlong",), designs=("add_one",), steps=4)
    few, more = (build_report(made_up_study(replace(shape, seeds=n))) for n in (3, 4))
    assert cell(more, "comparisons", "soft_overlong", "exact_p").value == pytest.approx(2 / 70)
    assert "exact_p" not in [c.key for c in table(few, "comparisons").columns]
    assert any("3 and 3 seeds" in note for note in table(few, "comparisons").notes)
    paired = build_report(made_up_study(replace(shape, seeds=4, paired=True)))
    assert "exact_p" not in [c.key for c in table(paired, "comparisons").columns]


def test_symptoms_may_be_corrected_for_a_share_of_false_marks() -> None:
    """What was declared is told where it counts, adds marks and takes none, and leaves the scores to Holm."""
    data = made_up_study(Shape(seeds=4, noise=3.0))
    screening = replace(data, plan=replace(data.plan, symptom_correction="benjamini_hochberg"))
    strict, loose = build_report(data), build_report(screening)
    marks = [{(r.label, i) for r in table(m, "effects").rows for i, c in enumerate(r.cells) if c.note == "separated*"}
             for m in (strict, loose)]  # fmt: skip
    assert marks[0] < marks[1]
    assert any("*: q < 0.05 (Benjamini and Hochberg over 24 tests)" in n for n in table(loose, "effects").notes)
    assert "what each arm moves: Benjamini and Hochberg" in loose.provenance["correction"]
    assert [t for t in loose.tables if t.key != "effects"] == [t for t in strict.tables if t.key != "effects"]


def test_published_values_stand_beside_and_are_never_judged() -> None:
    """A published table has a column where tricks have its names, and a table of its own: no test, bold or star."""
    data = made_up_study(Shape(tricks=("soft_overlong", "clip_higher")))
    alone = build_report(data)
    rows = tuple(PublishedRow(label=label, value=v, tricks=t) for label, v, t in (
        ("Naive", 30.0, ()), ("+ Soft", 41.5, ("soft_overlong",)), ("+ Other", 99.0, ("soft_overlong", "other")),
    ))  # fmt: skip
    paper = Published(
        name="p", title="P", source="S 2025", measure="AIME", unit="%", setting="32B", rows=rows, note="One ladder."
    )
    model = build_report(replace(data, published=(paper,)))
    score = table(model, "ladder.score")
    assert [r.cells[-1].text for r in score.rows] == ["30", "41.5", "—"]
    whole = {r.label: [c.text for c in r.cells] for r in table(model, "published.p").rows}
    assert whole["+ Soft"] == ["41.5", "ladder 1: + soft_overlong"]
    assert whole["+ Other"] == ["99", "—"]
    cells = [r.cells[-1] for r in score.rows] + [c for r in table(model, "published.p").rows for c in r.cells]
    assert not any(c.bold or c.verdict or c.low is not None or c.p is not None or "*" in c.text for c in cells)
    assert any("training variance is unknown" in note for note in score.notes)
    assert [t.key for t in alone.tables] == [t.key for t in model.tables if not t.key.startswith("published")]
    assert (alone.summary, alone.words) == (model.summary, model.words)


def test_score_over_training_is_thinned_and_ends_with_the_last() -> None:
    """Every evaluation up to seven of them; of more, the first, the last and those evenly between."""
    data = made_up_study(Shape(steps=4))
    found = table(build_report(data), "training")
    assert [c.label for c in found.columns] == [f"step {s}" for s in range(5)]
    base = [r for r in data.runs if r.arm == data.plan.base]
    last = [r.lines[-1].values["eval/heldout/avg_at_1"] for r in base]
    assert found.rows[0].cells[-1].value == pytest.approx(sum(last) / 3, abs=1e-6)
    plan = replace(data.plan, evaluate=data.plan.evaluate.model_copy(update={"primary": "reward/correct_frac"}))
    runs = tuple(
        replace(r, lines=tuple(MetricLine(step=s, time_ms=s, values={"reward/correct_frac": 0.5}) for s in range(61)))
        for r in data.runs
    )
    many = table(build_report(replace(data, plan=plan, runs=runs)), "training")
    assert [c.label for c in many.columns] == [f"step {s}" for s in range(0, 61, 10)]
    assert "7 of 61 evaluations" in " ".join(many.notes)


@pytest.mark.parametrize("seeds", [1, 2])
def test_scores_of_few_seeds_over_training_have_the_digits_that_are_known(seeds: int) -> None:
    """Equal scores of two seeds are not printed as if they were exact: each is as sure as its evaluation."""
    data = made_up_study(Shape(steps=4, seeds=seeds, noise=0.0, problems=200))
    shown = [c.text for row in table(build_report(data), "training").rows for c in row.cells]
    assert all(re.fullmatch(r"0\.\d\d(, 0\.\d\d)?", text) for text in shown), shown
    bare = replace(data, runs=tuple(replace(run, evaluations=()) for run in data.runs))
    assert any(re.search(r"0\.\d\d\d", c.text) for row in table(build_report(bare), "training").rows for c in row.cells)


def test_no_heading_says_its_unit_twice() -> None:
    """A column of updates is headed `updates`, not `updates (updates)`."""
    columns = [c for t in build_report(made_up_study(Shape(steps=4))).tables for c in t.columns]
    assert [c.label for c in columns if c.key == "updates"] == ["updates"]
    assert [c.label for c in columns if c.unit == c.label] == []


def test_lack_of_fit_and_shapley_rows() -> None:
    """The sums are checked in rows of their own; Shapley values need all cells, and then nothing is left."""
    four = table(build_report(made_up_study()), "contributions")
    assert [r.label for r in four.rows[-2:]] == ["full recipe - base", "not explained by the sum"]
    assert "shapley" not in [c.key for c in four.columns]
    model = build_report(made_up_study(Shape(tricks=("soft_overlong", "clip_higher"))))
    assert cell(model, "contributions", "not explained by the sum", "shapley").text == "—"
    both = [cell(model, "contributions", t, "shapley").value for t in ("soft_overlong", "clip_higher")]
    assert sum(both) == pytest.approx(cell(model, "contributions", "full recipe - base", "shapley").value)  # type: ignore[arg-type]
    alone = cell(model, "contributions", "not explained by the sum", "alone")
    assert alone.value == pytest.approx(-cell(model, "contributions", "not explained by the sum", "in_full").value)  # type: ignore[operator]


def test_a_ladder_alone_has_no_attribution() -> None:
    """Without tricks added alone or removed from a full recipe nothing is attributed."""
    assert "contributions" not in [t.key for t in build_report(made_up_study(Shape(designs=("cumulative",)))).tables]


def test_all_at_once_only_where_spreads_are_alike() -> None:
    """Dunnett's column stands where spreads may be pooled; a bistable arm takes it away, and the note says why."""
    data = made_up_study(Shape(seeds=5))
    assert "at_once" in [c.key for c in table(build_report(data), "comparisons").columns]
    wild = [
        replace(r, lines=_shifted(r.lines, 0.3 * (r.seed % 2))) if r.arm == data.plan.arms[1].key else r
        for r in data.runs
    ]
    refused = table(build_report(replace(data, runs=tuple(wild))), "comparisons")
    assert "at_once" not in [c.key for c in refused.columns]
    assert any(n.startswith("No intervals for all arms at once: spreads of arms differ by") for n in refused.notes)


def test_comparisons_by_number_of_seeds() -> None:
    """Other problems never narrow an interval; interquartile means and P(higher) wait for ten seeds."""
    few, many = (build_report(made_up_study(Shape(seeds=n))) for n in (3, 10))
    keys = [[c.key for c in table(m, "comparisons").columns] for m in (few, many)]
    assert "iqm" not in keys[0]
    assert {"iqm", "higher"} <= set(keys[1])
    row = "soft_overlong"
    fixed, other = (cell(many, "comparisons", f"{row}", k) for k in ("difference", "problems"))
    assert other.value == fixed.value
    assert other.high - other.low > fixed.high - fixed.low  # type: ignore[operator]
    assert cell(many, "comparisons", row, "higher").value == 0
    for row in (r.label for r in table(few, "comparisons").rows):
        fixed, other = (cell(few, "comparisons", row, k) for k in ("difference", "problems"))
        assert other.low <= fixed.low < fixed.high <= other.high  # type: ignore[operator]


def test_equivalence_needs_a_declared_margin() -> None:
    """Without a margin nothing is called equivalent; with one, the arms that two one-sided tests put inside are."""
    data = made_up_study(Shape(seeds=10, noise=0.1, problems=4000))
    assert "equivalent" not in everything(build_report(data))
    model = build_report(replace(data, plan=replace(data.plan, margin=0.02)))
    assert cell(model, "comparisons", "clip_higher", "equivalent").text == "equivalent"
    assert cell(model, "comparisons", "soft_overlong", "equivalent").text == "not shown"
    said = next(w for w in model.words if w.startswith("`clip_higher`"))
    assert "equivalent to the base within the declared margin of ±0.02" in said
    assert "declared in the study file" in model.provenance["equivalence"]


def test_pass_at_k_is_averaged_over_evaluations_and_seeds() -> None:
    """With more responses a problem there is a table of pass@k; k = 1 is the score, and it never falls with k."""
    data = made_up_study()
    assert "pass_at_k" not in [t.key for t in build_report(data).tables]
    plan = replace(data.plan, evaluate=data.plan.evaluate.model_copy(update={"samples": 4}))
    runs = [
        replace(
            r,
            lines=tuple(
                replace(x, values={k.replace("avg_at_1", "avg_at_4"): v for k, v in x.values.items()}) for x in r.lines
            ),
            evaluations=tuple(
                replace(e, samples=4, correct=tuple(4 * c if i % 2 else 2 * c for i, c in enumerate(e.correct)))
                for e in r.evaluations
            ),
        )
        for r in data.runs
    ]
    model = build_report(replace(data, plan=plan, runs=tuple(runs)))
    cells = [cell(model, "pass_at_k", "base", f"pass_at_{k}").value for k in (1, 2, 4)]
    assert cells[0] < cells[1] < cells[2]  # type: ignore[operator]
    correct = [e.correct for r in Analysis(data).runs(data.plan.base) for e in r.evaluations[-3:]]
    assert cells[2] == pytest.approx(sum(sum(c) for c in correct) / (9 * 200))


def test_single_run_noise_adds_counts_by_problem() -> None:
    """The noise of a score over three evaluations uses each problem once, not three times."""
    correct = ((1, 0, 1, 0), (1, 0, 1, 0), (1, 0, 1, 0))
    evaluations = tuple(
        Evaluation(
            step=s,
            set="heldout",
            samples=1,
            problems=("a", "b", "c", "d"),
            correct=c,
            truncated=(0,) * 4,
            tokens=(0,) * 4,
            tokens_correct=(0,) * 4,
            answers=({},) * 4,
        )
        for s, c in zip((1, 2, 3), correct, strict=True)
    )
    run = replace(run_of(scores(s0=0.1, s1=0.5, s2=0.5, s3=0.5)), evaluations=evaluations)
    assert [s for s, _ in score_steps(run, EVALUATE)] == [1, 2, 3]
    assert evaluation_error(run, score_measure(EVALUATE), EVALUATE) == pytest.approx(math.sqrt(4 * 0.25 / 12))


def test_curves_are_the_raw_points(lossy: StudyData, model: ReportModel) -> None:
    """A mean line is the plain mean of its seeds at each step; a stopped run shortens it, not its points."""
    panel = next(p for f in model.figures for p in f.panels if p.key == "curves.ladder.score")
    base = next(line for line in panel.lines if line.arm == "base")
    runs = Analysis(lossy).runs(lossy.plan.base)
    for x, mean in zip(base.x, base.mean, strict=True):
        at = [line.values["eval/heldout/avg_at_1"] for r in runs for line in r.lines if line.step == x]
        assert mean == pytest.approx(sum(at) / 3, rel=1e-5)
    stopped = next(line for line in panel.lines if line.arm == "soft_overlong")
    assert max(stopped.x) < max(max(x) for _, x, _ in stopped.seeds)


@given(st.lists(st.floats(-1e4, 1e4), min_size=3, max_size=6), st.booleans())
def test_printed_intervals_are_rounded_values(values: list[float], signed: bool) -> None:
    """Value and ends are the estimate's, rounded to the same decimals; never a negative zero; n/a never appears."""
    estimate = mean_interval(values)
    text = interval_text(estimate, signed=signed)
    found = [float(x.replace("−", "-").replace("+", "")) for x in re.findall(r"[+−]?\d+(?:\.\d+)?", text)]
    step = 10.0 ** -decimals_for(estimate.se, estimate.value)
    assert found[0] == pytest.approx(estimate.value, abs=0.51 * step + 1e-9)
    if len(found) == 3:
        assert found[1] <= found[0] <= found[2]
    assert not re.search(r"−0(\.0+)?(?![\d.])", text)


@pytest.mark.parametrize(
    ("value", "decimals", "signed", "text"),
    [(0.6312, 2, False, "0.63"), (-0.004, 2, True, "0.00"), (0.05, 2, True, "+0.05"), (1234.0, -2, False, "1200")],
)
def test_number(value: float, decimals: int, signed: bool, text: str) -> None:
    """Hand values of rounding, signs and zeros."""
    assert number(value, decimals, signed=signed) == text
