"""The answer of a report, what it claims, and what it says where nothing can be claimed."""

from __future__ import annotations

import math
import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from paribus.health.finding import HealthFile, Status
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.lost_runs import fragile
from paribus.report.analysis.names import arm_names
from paribus.report.build import build_report
from paribus.report.model import Cell, ReportModel
from paribus.run_folder.folder import MetricLine
from support.studies import SCORE, Shape, made_up_study, scored

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from claims import claims, null_study


def cell(model: ReportModel, key: str, row: str, column: str) -> Cell:
    """One cell."""
    found = next(t for t in model.tables if t.key == key)
    place = [c.key for c in found.columns].index(column)
    return next(r for r in found.rows if r.label == row).cells[place]


ONE = Shape(seeds=5, steps=4, designs=("add_one",), tricks=("clip_higher",))


@pytest.mark.slow
def test_at_most_a_few_reports_of_null_studies_claim_anything() -> None:
    """Of 40 studies in which no arm differs, 5% may have a sentence with a verb; six would be a probability of 1.4%."""
    data = made_up_study(Shape(seeds=3, steps=4, every=1, problems=60))
    models = (build_report(null_study(data, random.Random(i))) for i in range(40))
    assert sum(bool(claims(model)) for model in models) < 6


def test_levels_of_claims_add_up_to_five_percent() -> None:
    """Whatever designs a study has, the families of its tests share the 5%."""
    for designs in (("add_one",), ("cumulative", "add_one", "leave_one_out")):
        for tricks in (ONE.tricks, ("clip_higher", "token_level")):
            analysis = Analysis(made_up_study(replace(ONE, designs=designs, tricks=tricks)))
            levels = (analysis.levels.score, analysis.levels.symptom, analysis.levels.curve, analysis.levels.one_spread)
            assert sum(levels) == pytest.approx(0.05)
            assert (levels[-1] > 0) is (len(analysis.plan.arms) > 2)


def test_what_never_varies_is_told_and_not_tested() -> None:
    """Base 0 and arm 1 in 5 of 5 seeds: the scores, the difference and why there is no test, never "no difference"."""
    model = build_report(scored(ONE, lambda label, _: float(label != "base")))
    (said,) = (w for w in model.words if w.startswith("`clip_higher`"))
    assert "+1 in every seed pair (5)" in said
    assert "no spread to compare with: no p" in said
    assert re.search(r"0\.000 in all seeds of the base, 1\.000 in all seeds of the arm", said)
    assert model.answer.endswith("so without a test: `clip_higher` +1.")
    assert "no difference" not in model.to_json()
    same = build_report(scored(ONE, lambda *_: 0.3))
    (said,) = (w for w in same.words if w.startswith("`clip_higher`"))
    assert "held-out accuracy the same in every seed pair (5)" in said


def test_equal_scores_have_no_interval() -> None:
    """Scores that differ by rounding alone are equal: 0.3 and no 0.300000 [0.300000, 0.300000]."""
    scores = (0.3, 0.1 + 0.2, 0.3, 0.1 + 0.2, 0.3)
    model = build_report(scored(ONE, lambda _, seed: scores[seed]))
    assert cell(model, "solo.score", "base", "score").text == "0.300"


def test_seeds_follow_from_the_interval_or_the_margin_never_from_the_difference() -> None:
    """Two studies with the same spread and other differences promise the same seeds; a margin gives its own."""
    noise = {0: 0.01, 1: -0.01, 2: 0.02, 3: -0.015, 4: 0.0}

    def model(shift: float, margin: float | None = None) -> ReportModel:
        data = scored(ONE, lambda label, seed: 0.5 + (label != "base") * (shift + noise[seed]))
        return build_report(replace(data, plan=replace(data.plan, margin=margin)))

    said = [re.findall(r"takes (?:about|more than) \d+ seeds per arm", " ".join(model(s).words)) for s in (0.0, 0.005)]
    assert said[0] == said[1] != []
    assert "of 0.005, the declared margin, takes" in " ".join(model(0.0, 0.005).words)


@pytest.mark.parametrize(("shift", "first"), [(0.0, "No trick is shown"), (0.05, "`clip_higher` (+0.05")])
def test_the_answer_names_what_the_margin_decides(shift: float, first: str) -> None:
    """An arm within the declared margin is equivalent, not undecided; one that also differs is called both."""
    noise = {0: 0.001, 1: -0.001, 2: 0.002, 3: -0.0015, 4: 0.0}
    data = scored(ONE, lambda label, seed: 0.5 + (label != "base") * (shift + noise[seed]))
    said = [build_report(replace(data, plan=replace(data.plan, margin=m))).answer for m in (0.1, None)]
    assert all(text.startswith(first) for text in said)
    assert "Equivalent to the base within ±0.1: `clip_higher`." in said[0]
    assert "Equivalent" not in said[1]
    assert ["Undecided at 5 seeds: `clip_higher`" in text for text in said] == [False, not shift]


def test_not_shown_claims_nothing_of_an_arm_that_differs() -> None:
    """The note below the column holds for every arm in it, also for one whose difference is shown."""
    data = scored(ONE, lambda label, seed: 0.5 + (label != "base") * (0.3 + seed / 100))
    model = build_report(replace(data, plan=replace(data.plan, margin=0.1)))
    table = next(t for t in model.tables if t.key == "comparisons")
    assert cell(model, "comparisons", "clip_higher", "equivalent").text == "not shown"
    assert any(note.startswith("not shown: no statement about a difference") for note in table.notes)


def test_detectable_is_not_doubled_where_the_evaluation_rules() -> None:
    """Evaluation noise is known from hundreds of answers: its spread is not taken at the bound of a few seeds."""
    quiet = made_up_study(Shape(seeds=3, noise=0.0, problems=200))
    analysis = Analysis(quiet)
    effect = next(e for e in analysis.to_base.values() if e is not None)
    assert effect.estimate.noise is not None
    assert effect.estimate.se == effect.estimate.noise[0]
    wide = replace(effect, estimate=replace(effect.estimate, noise=None))
    assert wide.detectable / effect.detectable == pytest.approx(2.1, abs=0.05)  # type: ignore[operator]


def test_every_name_is_that_of_one_arm() -> None:
    """No two arms have one name, rows of a ladder have their place, and single tricks are named as such everywhere."""
    data = made_up_study()
    names = arm_names(data.plan)
    assert len(set(names.values())) == len(data.plan.arms)
    assert {"base", "clip_higher", "ladder 3: ... + token_level", "token_level"} <= set(names.values())
    model = build_report(data)
    (ladder,) = (t for t in model.tables if t.key == "ladder.score")
    assert [r.label for r in ladder.rows][:3] == ["base", "ladder 1: + clip_higher", "ladder 2: ... + soft_overlong"]


def test_one_difference_has_one_p() -> None:
    """A trick that is added to the base has the same p in its own table and beside its contribution."""
    model = build_report(made_up_study(Shape(seeds=4)))
    for trick in ("soft_overlong", "token_level"):
        p = {
            cell(model, "contributions", trick, "alone").p_adjusted,
            cell(model, "solo.score", trick, "to_base").p_adjusted,
            cell(model, "solo.score", trick, "p").p_adjusted,
        }
        assert len(p) == 1
        assert cell(model, "contributions", trick, "alone").correction == "holm"


@pytest.mark.parametrize("seeds", [1, 2])
def test_digits_of_single_runs_are_those_that_the_evaluation_knows(seeds: int) -> None:
    """200 right-or-wrong answers tell two decimals, also where two runs agree by luck."""
    model = build_report(made_up_study(Shape(seeds=seeds, steps=4)))
    for row in ("base", "ladder 1: + clip_higher"):
        for column in ("score", "to_base") if row != "base" else ("score",):
            text = cell(model, "ladder.score", row, column).text
            assert all(re.fullmatch(r"[+−]?0\.\d\d", part) for part in text.split(", ")), text


def test_lost_arms_and_a_lost_base_are_said_to_be_lost() -> None:
    """A lost arm has no interval in any table, and a lost base ends the comparison: neither is "not finished yet"."""
    shape = replace(ONE, tricks=("clip_higher", "soft_overlong"))
    arm = build_report(scored(shape, lambda label, s: None if label == "clip_higher" else 0.5 + 0.01 * s))
    (said,) = (w for w in arm.words if w.startswith("`clip_higher`"))
    assert "every run of the arm was lost: failed (5)" in said
    rows = [(t.key, r) for t in arm.tables for r in t.rows if r.label in ("clip_higher", "+ clip_higher")]
    assert rows
    assert [key for key, r in rows if any(c.low is not None for c in r.cells)] == []
    base = build_report(scored(shape, lambda label, s: None if label == "base" else 0.5 + 0.01 * s))
    assert base.answer == "No arm can be compared with the base, because every run of the base was lost: failed (5)."
    assert "yet" not in " ".join((base.answer, *base.summary, *base.words))


def test_many_undecided_tricks_are_counted_as_tricks(monkeypatch) -> None:
    """The same answer counts all arms in another sentence, and the two numbers may differ."""
    monkeypatch.setattr("paribus.report.answer.SHOWN", 1)

    def score(label: str, seed: int) -> float:
        return 0.5 + random.Random(f"{label}{seed}").gauss(0, 0.01)

    model = build_report(scored(replace(ONE, tricks=("clip_higher", "token_level")), score))
    assert "Undecided at 5 seeds: 2 of 2 tricks." in model.answer


def test_the_answer_names_what_is_shown_and_what_is_undecided() -> None:
    """A large gain and a large loss are claimed with their sizes, the rest is undecided; tests decide, not sizes."""
    move = {"clip_higher": 0.2, "soft_overlong": -0.2, "token_level": 0.0}
    shape = replace(ONE, tricks=tuple(move))

    def score(label: str, seed: int) -> float:
        return 0.5 + move.get(label, 0.0) + random.Random(f"{label}{seed}").gauss(0, 0.01)

    model = build_report(scored(shape, score))
    assert re.match(r"`clip_higher` \(\+0\.\d+ \[.*\]\) raised held-out accuracy\.", model.answer)
    assert re.search(r"`soft_overlong` \(−0\.\d+ \[.*\]\) lowered it\.", model.answer)
    assert "Undecided at 5 seeds: `token_level`." in model.answer
    lead = [t for t in model.tables if t.lead]
    assert [t.key for t in lead] == ["solo.score"]
    (figure,) = (f for f in model.figures if f.lead)
    sides = {i.label: (i.side, i.filled) for i in figure.forests[0].intervals}
    assert sides["clip_higher"] == ("better", True)
    assert sides["soft_overlong"] == ("worse", True)
    assert sides["token_level"][1] is False


def test_changes_name_paths_and_values() -> None:
    """Each arm has its paths with both values, and the base its learning rate."""
    model = build_report(made_up_study())
    assert "optimizer.learning_rate = " in cell(model, "changes", "base", "changes").text
    assert cell(model, "changes", "clip_higher", "changes").text == "clip.high: 0.2 → 0.28"
    assert "length.rule.soft_start: none → 30" in cell(model, "changes", "soft_overlong", "changes").text


TWO = replace(ONE, tricks=("clip_higher", "token_level"))


def spread(label: str, seed: int, move: float = 0.1) -> float:
    """A score around 0.5, with a move of all arms beside the base, and a spread of 0.01."""
    return 0.5 + move * (label != "base") + random.Random(f"{label}{seed}").gauss(0, 0.01)


def test_seeds_of_the_answer_are_those_compared() -> None:
    """Five seeds were planned, but two or three have both runs: the answer states these, and how many were planned."""
    two = build_report(scored(TWO, lambda label, s: spread(label, s) if s < 2 else None))
    assert two.answer.startswith("No difference from the base is tested: 2 of 5 planned seeds are too few.")
    three = build_report(scored(TWO, lambda label, s: spread(label, s, 0) if label == "base" or s < 3 else None))
    assert "Undecided at 3 of 5 planned seeds: `clip_higher` and `token_level`." in three.answer
    one = build_report(
        scored(TWO, lambda label, s: spread(label, s) if (s < 3 if label == "base" else s > 1) else None)
    )
    assert one.answer.startswith("No difference from the base is tested: 1 of 5 planned seeds is too few.")
    assert any("(one seed pair, too few for a test)" in w for w in one.words)
    assert "single run" not in " ".join((one.answer, *one.summary, *one.words))


def test_the_answer_of_an_incomplete_study_says_so() -> None:
    """It begins with how far the study is and what no correction covers, and names the arms that are to come."""
    data = scored(TWO, lambda label, s: "pending" if label == "token_level" else spread(label, s))
    answer = build_report(data).answer
    assert answer.startswith(
        "So far (10 of 15 runs), corrected over 1 of 2 comparisons, not for looking early: `clip_higher` ("
    )
    assert answer.endswith("Not finished yet: `token_level`.")
    half = build_report(scored(TWO, lambda label, s: spread(label, s) if s < 4 else "pending")).answer
    assert half.startswith("So far (12 of 15 runs), not corrected for looking early: `clip_higher`")
    none = build_report(scored(TWO, lambda *_: "pending")).answer
    assert none.startswith("So far (0 of 15 runs): no arm can be compared with the base, because the base has no")


def test_a_p_with_a_star_and_without_a_verb_says_what_a_claim_takes() -> None:
    """Undecided at p = 0.03 reads like a mistake, so the sentence names its level; above 5% it does not."""
    shape = replace(TWO, seeds=3, designs=("cumulative", "add_one"))
    near = 0
    for move in (0.03, 0.1, 0.15):
        model = build_report(scored(shape, lambda label, s, move=move: spread(label, s, move)))
        (level,) = (int(x) for w in model.words for x in re.findall(r"correction is below (\d)% for held-out", w))
        for text in [model.answer, *model.summary, *model.words]:
            for p, after in re.findall(r"undecided[^(]*\(?[^(]*p = (0\.\d+) after ([^).]*)", text):
                assert (f"a claim takes p below {level}%" in after) == (level / 100 <= float(p) < 0.05), text
                near += "a claim takes" in after
    assert near >= 3


def test_all_tricks_without_spread_are_not_undecided() -> None:
    """Base 0 and arms 1 in all seeds: neither the answer nor the ladder calls a difference of 1 undecided."""
    shape = replace(TWO, seeds=3, designs=("cumulative", "add_one"))
    model = build_report(scored(shape, lambda label, _: float(label != "base")))
    assert model.answer.endswith("Both tricks together, without a test: +1.")
    (ladder,) = (s for s in model.summary if s.startswith("Ladder"))
    assert "without a test, because every seed has the same difference in held-out accuracy: +1." in ladder
    assert "undecided" not in model.answer + ladder
    unpaired = build_report(scored(replace(TWO, paired=False), lambda label, _: 0.5 + 0.1 * (label != "base")))
    assert unpaired.answer.startswith("All seeds of an arm agree in held-out accuracy, so without a test: ")


def test_arms_without_a_common_seed_have_scores() -> None:
    """The base has other seeds than its arms: the answer does not say that they have no score."""
    model = build_report(scored(TWO, lambda label, s: 0.5 if (s < 3) == (label == "base") else None))
    assert model.answer == "No arm can be compared with the base: none has a score in a seed of the base."


def test_without_a_verdict_as_planned_nothing_is_fragile() -> None:
    """Two seed pairs give no verdict, so none depends on how the lost runs are counted."""
    data = scored(TWO, lambda label, s: spread(label, s) if s < 2 else None)
    assert not any(fragile(Analysis(data), arm) for arm in Analysis(data).to_base)
    assert "Fragile" not in " ".join(build_report(data).warnings)


def test_scores_that_are_not_finite() -> None:
    """Runs that finish without any are not lost, and a score from the evaluations before one has a caution."""
    never = build_report(scored(TWO, lambda label, s: math.nan if label == "clip_higher" else spread(label, s)))
    assert any("no run of the arm has a finite score: finished (5)" in w for w in never.words)
    assert "Not compared, because no run has a finite score: `clip_higher`." in never.answer
    data = scored(replace(TWO, every=1), spread)
    arm = data.plan.arms[1].key
    lines = {
        r.fingerprint: [MetricLine(step=4, time_ms=9, values={SCORE: math.nan})] for r in data.runs if r.arm == arm
    }
    runs = tuple(replace(r, lines=(*r.lines, *lines.get(r.fingerprint, ()))) for r in data.runs)
    (caution,) = (w for w in build_report(replace(data, runs=runs)).warnings if "not a finite number" in w)
    assert "where their score is taken: 5 of 15." in caution
    assert caution.endswith("finite evaluations before it count: `clip_higher`.")


def test_no_size_of_a_fraction_is_above_one() -> None:
    """Accuracies of 0 and 1 at three seeds: no sentence states a difference of 1.4 or 4 that could be shown."""
    flips = build_report(scored(replace(TWO, seeds=3), lambda label, s: float(label != "base" and s > 0)))
    (said,) = (w for w in flips.words if w.startswith("`clip_higher`"))
    assert "by itself, no difference of 1 or less could be detected." in said
    assert "To show one of" not in said
    detectable = cell(flips, "comparisons", "clip_higher", "detectable")
    assert detectable.text == "> 1"
    assert detectable.value is not None
    assert detectable.value > 1


def test_a_fragile_difference_is_marked_behind_its_interval(model: ReportModel) -> None:
    """Name, interval and mark in one parenthesis, so that the verb has a subject."""
    assert re.search(r"`soft_overlong` \(−0\.\d+ \[[^\]]*\]; fragile\) lowered it\.", model.answer)


def test_totals_say_what_they_leave_out() -> None:
    """The line of costs names failed runs and repeated attempts; that of health adds up, without zeros."""
    data = scored(TWO, lambda label, s: None if (label, s) == ("token_level", 0) else spread(label, s))
    status: list[Status] = ["ok", "ok", "warn", "unknown"]
    files = [HealthFile(status=s, profile="default 1 (abc)", raised=()) for s in status]
    runs = [replace(r, health=h) for r, h in zip(data.runs[:4], files, strict=True)]
    again = replace(data.runs[4], attempts=2)
    _, cost, health = build_report(replace(data, runs=(*runs, again, *data.runs[5:]))).totals
    assert cost.startswith("Cost: 14 of 15 runs (without failed runs and repeated attempts), ")
    assert health == "Health: of 3 checked runs 1 with a warning and 2 ok; 12 not checked."


def test_an_arm_has_one_name_in_every_table_of_arms() -> None:
    """Costs, single runs, training and differences name a row of a ladder by its place, and a trick by its name."""
    model = build_report(made_up_study(Shape(designs=("cumulative", "add_one"), tricks=("clip_higher", "token_level"))))
    labels = {t.key: {r.label for r in t.rows} - {"base"} for t in model.tables}
    same = [labels[key] for key in ("cost", "seeds", "training", "pairs", "comparisons")]
    assert all(names == {"clip_higher", "ladder 2: ... + token_level", "token_level"} for names in same)
