"""Grids: effects of values, interactions and the score by two paths, against sums made by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest

from paribus.report.analysis.analysis import Analysis
from paribus.report.build import build_report
from paribus.report.model import ReportModel, Table
from paribus.report.render.html import to_html
from paribus.study.expand import make_plan
from paribus.study.grids import grid_of
from paribus.study.load import load_study
from paribus.testing.fake_runner import FakeRunner
from support.studies import made_up_results

STUDY = """\
study: grid
base: {preset: grpo, set: {kl: off, schedule: {steps: 4, minibatches: 8}}}
designs:
  levels: {kind: grid, over: OVER}
seeds: {n: SEEDS}
evaluate: {every: 1, problems: 200}
budget: {prior: {low: 1.0, expected: 1.0, high: 2.0}}
"""
TWO = "{clip.high: [0.2, 0.25, 0.3], scale: [none, group_std]}"
GAIN = {"0.2": 0.0, "0.25": 0.05, "0.3": 0.10}


def report(folder: Path, over: str = TWO, seeds: int = 4) -> tuple[ReportModel, dict[str, dict[int, float]]]:
    """The report of a grid, and label of each row to the scores by seed."""
    path = folder / "grid.yaml"
    path.write_text(STUDY.replace("OVER", over).replace("SEEDS", str(seeds)))
    plan = make_plan(load_study(path), FakeRunner())
    label = {row.arm: row.label for row in plan.rows if row.parent is not None}

    def score(arm: str, seed: int) -> float:
        name = label.get(arm, "")
        high = next((g for v, g in GAIN.items() if f"clip.high={v}," in f"{name},"), 0.0)
        both = 0.1 if "clip.high=0.3" in name and "group_std" in name else 0.0
        return 0.4 + high + both + random.Random(f"{arm}/{seed}").gauss(0, 0.01)

    data = made_up_results(plan, score)
    model = build_report(data)
    found: dict[str, dict[int, float]] = {}
    for run in data.runs:
        last = [line.values["eval/heldout/avg_at_1"] for line in run.lines if line.step][-3:]
        found.setdefault(label.get(run.arm, "base"), {})[run.seed] = sum(last) / 3
    return model, found


def table(model: ReportModel, key: str) -> Table:
    """A table by key."""
    return next(t for t in model.tables if t.key == key)


def test_effects_are_differences_of_means(tmp_path: Path) -> None:
    """Main effects are means over the other path, interactions are differences of differences, corrected by Holm."""
    model, scores = report(tmp_path)
    mean = {name: sum(v.values()) / len(v) for name, v in scores.items()}

    def at(high: str, scale: str) -> float:
        return mean[f"clip.high={high}, scale={scale}"]

    rows = {r.label: r.cells[0] for r in table(model, "levels.effects").rows}
    by_hand = (at("0.3", "none") + at("0.3", "group_std") - at("0.2", "none") - at("0.2", "group_std")) / 2
    assert rows["clip.high: 0.2 → 0.3"].value == pytest.approx(by_hand, rel=1e-4)
    crossed = at("0.3", "group_std") - at("0.2", "group_std") - at("0.3", "none") + at("0.2", "none")
    assert rows["clip.high=0.3 x scale=group_std"].value == pytest.approx(crossed, rel=1e-4)
    assert len(rows) == 2 + 1 + 2
    assert rows["clip.high=0.3 x scale=group_std"].correction == "holm"
    assert rows["clip.high=0.3 x scale=group_std"].verdict == "separated"


def test_the_two_way_table_and_its_heat_map(tmp_path: Path) -> None:
    """Each cell is the mean of its arm; the heat map is darkest where the score is farthest from the mean."""
    model, scores = report(tmp_path)
    found = table(model, "levels.clip.high.scale")
    assert [r.label for r in found.rows] == ["0.2", "0.25", "0.3"]
    cell = found.rows[2].cells[1]
    values = scores["clip.high=0.3, scale=group_std"].values()
    assert cell.value == pytest.approx(sum(values) / len(values), rel=1e-4)
    assert cell.low is not None
    (heat,) = next(f for f in model.figures if f.key == "levels.heat").matrices
    assert heat.shades[2][1] == 1.0
    assert heat.cells[2][1].text == cell.text
    page = to_html(model, None)
    assert '<th scope="col">clip.high</th><th scope="col">scale=none</th>' in page


def test_three_paths_have_a_table_of_each_pair(tmp_path: Path) -> None:
    """Cells of a pair are means over the third path, and say so."""
    model, _ = report(tmp_path, "{clip.high: [0.2, 0.3], scale: [none, group_std], clip.low: [0.1, 0.2]}")
    pairs = [t for t in model.tables if t.key.startswith("levels.") and "Means over all values of" in " ".join(t.notes)]
    assert len(pairs) == 3
    assert not any(t.main for t in pairs)


def test_one_path_is_a_list(tmp_path: Path) -> None:
    """A grid of one path has no such tables."""
    model, _ = report(tmp_path, "{clip.high: [0.25, 0.3]}")
    assert not [t for t in model.tables if t.key == "levels.effects"]


def test_two_seeds_are_not_tested(tmp_path: Path) -> None:
    """With two seeds the values stand there without an interval or a test."""
    model, _ = report(tmp_path, seeds=2)
    cells = [c for row in table(model, "levels.effects").rows for c in row.cells]
    assert all(c.low is None and c.p is None for c in cells)


def test_a_sentence_says_whether_values_interact(tmp_path: Path) -> None:
    """A grid has the sentences of a factorial: effects that a corrected test shows get a verb, the others do not."""
    model, _ = report(tmp_path, seeds=8)
    (said,) = (s for s in model.summary if s.startswith("Grid `levels`, after Holm's correction over 5 effects"))
    assert "interactions that differ from 0: 1 of 2, `clip.high=0.3 x scale=group_std` +0." in said
    assert any("`clip.high=0.3` and `scale=group_std` in `levels`: together they give 0." in w for w in model.words)
    (other,) = (w for w in model.words if "`clip.high=0.25` and `scale=group_std` in `levels`" in w)
    assert "interaction: undecided" in other


def test_a_grid_takes_its_share_of_the_claims(tmp_path: Path) -> None:
    """Its family halves the level of the score, as that of a factorial does; a grid of one path has none."""
    levels = []
    for over in (TWO, "{clip.high: [0.25, 0.3]}"):
        path = tmp_path / "grid.yaml"
        path.write_text(STUDY.replace("OVER", over).replace("SEEDS", "4"))
        plan = make_plan(load_study(path), FakeRunner())
        levels.append(Analysis(made_up_results(plan, lambda arm, seed: 0.4)).levels.score)
    assert levels == pytest.approx([0.015, 0.03])


def test_values_may_hold_commas(tmp_path: Path) -> None:
    """Which values an arm has follows from what it changes, and a comma in a value is no further path."""
    path = tmp_path / "grid.yaml"
    path.write_text(STUDY.replace("OVER", "{clip.high: [0.2, 0.3], scale: [none, group_std]}").replace("SEEDS", "3"))
    plan = make_plan(load_study(path), FakeRunner())
    rows = [replace(r, label=r.label.replace("clip.high=0.3", "clip.high=0.3, b=1, c")) for r in plan.rows]
    found = grid_of(rows, {arm.key: arm for arm in plan.arms})
    assert found is not None
    assert dict(found.levels) == {"clip.high": ("0.2", "0.3, b=1, c"), "scale": ("none", "group_std")}
    assert len(set(found.arms.values())) == 4


def test_the_base_is_one_row(tmp_path: Path) -> None:
    """The place of a grid that is the base stands there once, under the base's name, and a note says which it is."""
    model, _ = report(tmp_path, "{clip.high: [0.2, 0.3], scale: [group_std, none]}")
    for key in ("levels.score", "levels.behaviour"):
        found = table(model, key)
        assert [r.label for r in found.rows].count("base") == 1
        assert len(found.rows) == 4
        assert "`clip.high=0.2, scale=group_std` is `base`: the same arm, shown once." in found.notes
