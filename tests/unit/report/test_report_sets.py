"""A report of a study with evaluation sets: a column a set, the primary one marked, nothing else tested."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt
from random import Random
from statistics import mean, stdev

import pytest
from scipy import stats

from paribus.contract import Evaluate, EvaluationSet
from paribus.report.analysis.analysis import Analysis
from paribus.report.build import build_report
from paribus.report.inputs import RunData, StudyData
from paribus.report.model import ReportModel, Table
from paribus.report.render.latex import to_latex
from paribus.report.render.text import to_csv, to_markdown
from paribus.report.two_studies import compare
from paribus.run_folder.folder import Evaluation
from support.studies import Shape, made_up_study

CHOSEN = EvaluationSet(every=2, problems=30, samples=4, temperature=0.6, top_p=0.95)
OTHER = EvaluationSet(every=4, problems=10, samples=2)


def _with_sets(data: StudyData, primary: str = "") -> StudyData:
    """Return a made-up study with results on two further sets."""
    evaluate = data.plan.evaluate.model_copy(update={"primary": primary, "sets": {"aime": CHOSEN, "amc": OTHER}})
    return replace(data, plan=replace(data.plan, evaluate=evaluate), runs=tuple(map(_run, data.runs)))


def _run(run: RunData) -> RunData:
    dice, lines, found = Random(run.fingerprint), [], list(run.evaluations)
    for line in run.lines:
        values = dict(line.values)
        for name, chosen in (("aime", CHOSEN), ("amc", OTHER)):
            if line.step % chosen.every == 0:
                made = _evaluation(name, chosen, line.step, dice)
                found.append(made)
                values[f"eval/{name}/avg_at_{chosen.samples}"] = sum(made.correct) / (chosen.samples * chosen.problems)
        lines.append(replace(line, values=values))
    return replace(run, lines=tuple(lines), evaluations=tuple(found))


def _evaluation(name: str, chosen: EvaluationSet, step: int, dice: Random) -> Evaluation:
    zeros = (0,) * chosen.problems
    return Evaluation(
        step=step,
        set=name,
        samples=chosen.samples,
        problems=tuple(f"{name}{i}" for i in range(chosen.problems)),
        correct=tuple(dice.randint(0, chosen.samples) for _ in zeros),
        truncated=zeros,
        tokens=zeros,
        tokens_correct=zeros,
        answers=tuple({"": chosen.samples} for _ in zeros),
    )


def _table(model: ReportModel, key: str) -> Table:
    (found,) = (t for t in model.tables if t.key == key)
    return found


@pytest.fixture(scope="module")
def plain() -> StudyData:
    """A study whose seventh run, of the base, was stopped early."""
    return made_up_study(Shape(tricks=("clip_higher",), steps=8, outcomes=(("base", 2, "stopped_early"),)))


def test_the_table_has_a_column_a_set(plain: StudyData) -> None:
    """Mean over seeds of the last three evaluations, a t interval of at least that width, marks of lost runs."""
    data = _with_sets(plain)
    table = _table(build_report(data), "sets")
    assert [c.label for c in table.columns] == ["seeds", "heldout avg@1 (primary)", "aime avg@4", "amc avg@2"]
    assert (
        "secondary, not tested: up to 30 problems x 4 responses at temperature 0.6, top-p 0.95" in table.columns[2].note
    )
    assert table.main
    assert any("not corrected for the number of sets" in note for note in table.notes)
    arm = next(a for a in data.plan.arms if a.label == "+ clip_higher")
    row = next(r for r in table.rows if r.label == Analysis(data).label(arm.key))
    scores = []
    for run in (r for r in data.runs if r.arm == arm.key):
        last = sorted((e for e in run.evaluations if e.set == "aime" and e.step), key=lambda e: e.step)[-3:]
        scores.append(mean(sum(e.correct) / 120 for e in last))
    cell = row.cells[2]
    assert cell.value == pytest.approx(mean(scores), rel=1e-5)
    assert cell.low is not None
    width = stats.t.ppf(0.975, 2) * stdev(scores) / sqrt(3)
    assert mean(scores) - cell.low >= width * (1 - 1e-4)
    base = next(r for r in table.rows if r.label == "base")
    assert base.cells[0].text == "2/3†"
    assert all(c.p is None and not c.bold for r in table.rows for c in r.cells)


def test_the_score_and_its_tests_stay_as_they_were(plain: StudyData) -> None:
    """With sets beside the held-out problems, every other table is the same."""
    before, after = build_report(plain), build_report(_with_sets(plain))
    kept = [t for t in after.tables if not t.key.startswith("sets")]
    assert kept == [*before.tables]
    assert [t.key for t in after.tables if t not in kept] == ["sets", "sets.heldout", "sets.aime", "sets.amc"]
    assert after.summary == before.summary
    assert after.figures == before.figures
    assert {k: after.provenance[k] for k in before.provenance} == before.provenance
    assert "up to 10 problems x 2 responses" in after.provenance["set amc"]


def test_a_set_can_be_the_primary_one(plain: StudyData) -> None:
    """Tables, tests, noise and provenance are then those of the set."""
    data = _with_sets(plain, "eval/aime/avg_at_4")
    model = build_report(data)
    assert [c.label for c in _table(model, "sets").columns][1:3] == ["heldout avg@1", "aime avg@4 (primary)"]
    ladder = _table(model, "ladder.score")
    assert ladder.columns[1].label == "accuracy on aime"
    rows = zip(ladder.rows, _table(model, "sets").rows, strict=True)
    assert all(a.cells[1].value == b.cells[2].value and a.cells[1].low == b.cells[2].low for a, b in rows)
    provenance = model.provenance
    assert (provenance["responses per problem"], provenance["problems"]) == ("4", "30")
    assert (provenance["evaluation temperature"], provenance["evaluation top-p"]) == ("0.6", "0.95")
    assert _table(model, "pass_at_k").columns[-1].label == "pass@4"


def test_a_primary_metric_beside_the_rates_has_a_column_of_its_own(plain: StudyData) -> None:
    """Such as the length on a set."""
    model = build_report(_with_sets(plain, "eval/aime/length_mean"))
    assert [c.label for c in _table(model, "sets").columns] == [
        "seeds", "aime length_mean (primary)", "heldout avg@1", "aime avg@4", "amc avg@2",
    ]  # fmt: skip


def test_every_format_has_the_table(plain: StudyData) -> None:
    """Markdown, LaTeX and CSV show the sets."""
    model = build_report(_with_sets(plain))
    assert "| Arm | seeds" in to_markdown(model)
    assert "aime avg@4" in to_markdown(model)
    assert "aime avg@4" in to_latex(model)
    assert "sets,base,eval/aime/avg_at_4" in to_csv(model)


def test_two_studies_compare_on_the_set_of_their_primary_metric(plain: StudyData) -> None:
    """Other sets do not keep them apart; another k on the primary one does."""
    made = _with_sets(plain)
    other = replace(made, plan=replace(made.plan, study="other", fingerprint="0" * 64))
    assert "evaluated differently" not in compare(plain, other).answer
    odd = made_up_study(Shape(tricks=("clip_higher",), steps=8, samples=2, study="odd"))
    odd = replace(odd, plan=replace(odd.plan, fingerprint="1" * 64))
    assert "evaluated differently: samples 1 and 2" in compare(plain, odd).answer


def test_studies_without_sets_have_no_such_table(plain: StudyData) -> None:
    """Nothing changes for them."""
    assert plain.plan.evaluate == Evaluate(every=2, problems=200)
    assert not [t for t in build_report(plain).tables if t.key.startswith("sets")]
