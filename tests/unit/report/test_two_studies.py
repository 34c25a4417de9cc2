"""Two studies side by side: the same recipes, what others differ in, and tests only where they mean something."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import ttest_ind

from paribus.errors import ParibusError
from paribus.report.analysis.analysis import Analysis
from paribus.report.inputs import StudyData
from paribus.report.model import ReportModel
from paribus.report.several_studies import compare_all
from paribus.report.two_studies import compare
from paribus.report.write import write_model
from support.studies import Shape, made_up_study

ONE = Shape(steps=4, designs=("list",), tricks=("soft_overlong", "clip_higher"))
TWO = replace(ONE, tricks=("soft_overlong", "token_level"))


def named(data: StudyData, name: str, *, again: bool = True) -> StudyData:
    """The study under another name; with runs of its own, if they are to be trained again."""
    runs = tuple(replace(r, fingerprint=f"{name}{r.fingerprint}" if again else r.fingerprint) for r in data.runs)
    plan = replace(data.plan, study=name, fingerprint=f"{name}{data.plan.fingerprint}")
    return replace(data, plan=plan, runs=runs)


def results(model: ReportModel) -> dict[str, dict[str, str]]:
    """Row to column to text of the first table."""
    found = model.tables[0]
    keys = [c.key for c in found.columns]
    return {r.label: dict(zip(keys, (c.text for c in r.cells), strict=True)) for r in found.rows}


def test_the_same_recipes_are_tested_and_others_set_beside() -> None:
    """An arm that only one study has is listed with the nearest of the other and what it changes."""
    model = compare(named(made_up_study(ONE), "one"), named(made_up_study(TWO), "two"))
    found = results(model)
    assert [found[k]["recipe"] for k in ("base", "soft_overlong", "clip_higher", "token_level")] == [
        "same", "same", "only in one", "only in two",
    ]  # fmt: skip
    assert found["base"]["tested"] == "yes"
    assert "[" in found["base"]["difference"]
    assert found["clip_higher"]["difference"] == "—"
    assert "exact_p" not in found["base"]
    assert any("With 3 and 3 seeds an exact permutation test cannot go below 0.1" in n for n in model.tables[0].notes)
    recipes = {r.label: [c.text for c in r.cells] for r in model.tables[1].rows}
    assert recipes["clip_higher"] == ["base (two)", "clip.high: 0.28 / 0.2", "1"]
    assert model.answer.startswith("2 recipes are in both")
    assert "does not prove that the studies agree" in model.answer


def test_a_real_difference_is_found() -> None:
    """Ten runs each of one recipe whose scores differ: separated, with p over the rows and the exact p of no model."""
    data = made_up_study(replace(ONE, seeds=10))
    base = data.plan.base
    trick = next(a.key for a in data.plan.arms if a.label == "soft_overlong")
    swapped = [replace(r, arm={base: trick, trick: base}.get(r.arm, r.arm)) for r in data.runs]
    model = compare(named(data, "one"), named(replace(data, runs=tuple(swapped)), "two"))
    assert model.tables[0].rows[0].cells[3].verdict == "separated"
    assert results(model)["base"]["exact_p"] == "<0.001"
    assert "2 of 3 differences in held-out accuracy are confirmed" in model.answer


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        (replace(ONE, samples=4), "evaluated differently: samples 1 and 4"),
        (replace(ONE, seeds=2), "fewer than 3 seeds with a score"),
        (ONE, "the same runs"),
    ],
)
def test_what_cannot_be_compared_is_not_tested(other: Shape, reason: str) -> None:
    """The reason stands in the row, and there is neither a difference nor a p."""
    model = compare(made_up_study(ONE), named(made_up_study(other), "two", again=other != ONE))
    row = results(model)["base"]
    assert reason in row["tested"]
    assert (row["difference"], row["p"]) == ("—", "—")
    assert reason in model.answer


def with_margin(data: StudyData, margin: float | None) -> StudyData:
    """The study, which declares a margin."""
    return replace(data, plan=replace(data.plan, margin=margin))


def test_a_margin_of_both_studies_is_tested() -> None:
    """One recipe in two studies: p is that of scipy's two one-sided Welch tests, corrected; other recipes have none."""
    one, two = named(made_up_study(ONE), "one"), named(made_up_study(replace(TWO, seeds=5)), "two")
    model = compare(with_margin(one, 0.2), with_margin(two, 0.2))
    column = next(i for i, c in enumerate(model.tables[0].columns) if c.key == "equivalent")
    cells = {r.label: r.cells[column] for r in model.tables[0].rows}
    a, b = Analysis(one), Analysis(two)
    ps = []
    for label in ("base", "soft_overlong"):
        arms = [next(x.key for x in s.plan.arms if x.label == label) for s in (a, b)]
        x, y = (np.array([*s.values(k, s.score).values()]) for s, k in zip((a, b), arms, strict=True))
        above = ttest_ind(y + 0.2, x, equal_var=False, alternative="greater").pvalue
        below = ttest_ind(y - 0.2, x, equal_var=False, alternative="less").pvalue
        ps.append(max(above, below))
    least, most = sorted(ps)
    expected = [max(2 * least, most) if p == most else 2 * least for p in ps]
    found = [cells[label].p_adjusted for label in ("base", "soft_overlong")]
    assert found == pytest.approx(list(expected), rel=1e-3)
    assert cells["clip_higher"].text == "—"
    shown = sum(p < 0.05 for p in expected)
    assert f"{shown} of 2 recipes that are in both are equivalent within the declared margin of ±0.2" in model.answer
    assert "does not prove" not in model.answer


def test_margins_that_differ_are_not_tested() -> None:
    """Each study's margin is named, and no equivalence is claimed."""
    one, two = named(made_up_study(ONE), "one"), named(made_up_study(TWO), "two")
    model = compare(with_margin(one, 0.2), with_margin(two, None))
    assert "equivalent" not in results(model)["base"]
    assert any("must declare the same `margin`, and `one` ±0.2, `two` none." in n for n in model.tables[0].notes)
    assert "does not prove that the studies agree" in model.answer


def test_other_problems_are_told() -> None:
    """Scores on other held-out problems are shown and not tested."""
    data = made_up_study(ONE)
    runs = [
        replace(r, evaluations=tuple(replace(e, problems=tuple(f"x{p}" for p in e.problems)) for e in r.evaluations))
        for r in data.runs
    ]
    model = compare(data, named(replace(data, runs=tuple(runs)), "two"))
    assert results(model)["base"]["tested"] == "no: different held-out problems"


def test_it_is_written_in_all_formats(tmp_path: Path) -> None:
    """The comparison is a report like any other; a study against itself is refused."""
    one, two = made_up_study(ONE), named(made_up_study(TWO), "two")
    written = write_model(compare(one, two), tmp_path)
    assert len(written.paths) == 6
    with pytest.raises(ParibusError, match="same plan"):
        compare(one, one)


def test_several_studies_stand_in_one_table(tmp_path: Path) -> None:
    """Each recipe has a row for each study, tested against the first, with one correction over the whole table."""
    data = replace(made_up_study(replace(ONE, seeds=10)), published=())
    studies = [named(with_margin(data, 0.5), name) for name in ("one", "two", "three")]
    model = compare_all(studies)
    table = model.tables[0]
    rows = [(r.label, r.cells[0].text) for r in table.rows]
    assert rows[:3] == [("base", "one"), ("base", "two"), ("base", "three")]
    assert [c.text for c in table.rows[0].cells[3:]] == ["—", "—", "—"]
    assert {r.cells[5].text for r in table.rows if r.cells[0].text != "one"} == {"equivalent"}
    assert (
        "`three`: 3 of 3 recipes are equivalent to those of `one` within the declared margin of ±0.5." in model.answer
    )
    pair = compare(studies[0], studies[1]).tables[0].rows[0].cells[4].p_adjusted
    assert table.rows[1].cells[4].p_adjusted is not None
    assert pair is not None
    assert table.rows[1].cells[4].p_adjusted >= pair  # twice as many tests
    assert all(path.is_file() for path in write_model(model, tmp_path).paths)


def test_several_studies_that_cannot_be_compared() -> None:
    """The same plan twice is refused; other problems are not tested, and the reason is below the table."""
    data = made_up_study(ONE)
    with pytest.raises(ParibusError, match="are the same plan"):
        compare_all([data, named(data, "two"), data])
    other = named(made_up_study(replace(ONE, samples=4)), "three")
    model = compare_all([data, named(data, "two"), other])
    assert any(
        n.startswith("`three` is not tested: evaluated differently: samples 1 and 4") for n in model.tables[0].notes
    )
    assert "Equivalence is not tested" in " ".join(model.tables[0].notes)
