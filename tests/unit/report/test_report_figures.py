"""Figures beyond the curves: what it costs to reach a score, contributions, tricks against tricks, pass@k, in words."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from paribus.report.build import build_report
from paribus.report.model import Figure, ReportModel, Table
from paribus.report.render.html import to_html
from paribus.report.render.plotly import forest_figure, legend, panel_figure, plotly_script
from paribus.study.expand import make_plan
from paribus.study.load import load_study
from paribus.testing.fake_runner import FakeRunner
from support.studies import Shape, made_up_results, made_up_study

FACTORIAL = """\
study: cells
base: {preset: grpo, set: {kl: off, schedule: {steps: 4, minibatches: 8}}}
tricks: {a: {clip.high: 0.28}, b: {aggregation: token_batch}}
designs: {all: {kind: KIND}}
seeds: {n: 3}
evaluate: {every: 1, problems: 200, samples: 1}
"""


def figure(model: ReportModel, key: str) -> Figure:
    """The figure with this key."""
    return next(f for f in model.figures if f.key == key)


def table(model: ReportModel, key: str) -> Table:
    """The table with this key."""
    return next(t for t in model.tables if t.key == key)


def cells(folder: Path, kind: str) -> ReportModel:
    """A report of two tricks with 0.1, 0.2 and 0.1 more together, and a little noise of seeds."""
    path = folder / "s.yaml"
    path.write_text(FACTORIAL.replace("KIND", kind))
    plan = make_plan(load_study(path), FakeRunner())
    tricks = {row.arm: row.tricks for row in plan.rows}
    size = {(): 0.3, ("a",): 0.4, ("b",): 0.5, ("a", "b"): 0.7}
    return build_report(made_up_results(plan, lambda arm, seed: size[tricks[arm]] + 0.005 * seed))


def test_time_paid_is_that_of_all_devices() -> None:
    """The axis of time adds up step times, times the GPUs that the run holds."""
    data = made_up_study(Shape(seeds=1, steps=4, designs=("cumulative",), tricks=("clip_higher",), noise=0.0))
    model = build_report(replace(data, runs=tuple(replace(r, gpus=8.0) for r in data.runs)))
    panel = next(p for p in figure(model, "curves.ladder").panels if p.key.endswith("by_time"))
    assert panel.x_label == "GPU-seconds"
    assert panel.lines[0].x == pytest.approx(tuple(0.3 * 8 * step for step in range(5)))


def test_a_caption_says_that_points_are_left_out() -> None:
    """Beside bands, points of single seeds are drawn up to a number of runs; above it the caption tells their lack."""
    for seeds in (50, 51):
        study = made_up_study(Shape(seeds=seeds, steps=2, problems=4, designs=("list",), tricks=("clip_higher",)))
        found = figure(build_report(study), "curves.singles")
        assert all(bool(line.seeds) is (seeds == 50) for line in found.panels[0].lines)
        assert ("Above 100 runs the bands of the score have no points" in found.caption) is (seeds == 51)


@pytest.mark.parametrize("kind", ["factorial", "pairs"])
def test_tricks_against_tricks(kind: str, tmp_path: Path) -> None:
    """Effects stand on the diagonal, the interaction below, and the largest has the deepest shade."""
    (matrix,) = figure(cells(tmp_path, kind), "all.matrix.figure").matrices
    assert matrix.names == ("a", "b")
    assert [len(row) for row in matrix.cells] == [1, 2]
    values = [cell.value for row in matrix.cells for cell in row]
    want = {"factorial": [0.15, 0.1, 0.25], "pairs": [0.1, 0.1, 0.2]}[kind]
    assert values == pytest.approx(want, abs=0.006)
    assert max(abs(s) for row in matrix.shades for s in row) == matrix.shades[1][1] == 1


def test_contributions_are_drawn_as_the_table_has_them() -> None:
    """Each bar is a number of the table of contributions, with its interval."""
    model = build_report(made_up_study(Shape(tricks=("soft_overlong", "clip_higher"))))
    found = table(model, "contributions")
    for i, forest in enumerate(figure(model, "contributions.figure").forests):
        drawn = {row.label: (row.value, row.low, row.high) for row in forest.intervals}
        kept = {r.label: r.cells[i] for r in found.rows[:-2]}
        assert drawn == {label: (c.value, c.low, c.high) for label, c in kept.items()}
        assert any(t["type"] == "bar" for t in forest_figure(forest)["data"])


def test_pass_at_k_curves_are_the_table() -> None:
    """A curve has the means of the row; k stands on a logarithmic axis with its own ticks."""
    model = build_report(
        made_up_study(Shape(samples=4, steps=4, designs=("list",), tricks=("token_level",), problems=60))
    )
    found = figure(model, "pass_at_k.figure")
    (panel,) = found.panels
    rows = {r.label: [c.value for c in r.cells[1:]] for r in table(model, "pass_at_k").rows}
    assert {line.arm: [*line.mean] for line in panel.lines} == rows
    axis = panel_figure(panel, legend(found))["layout"]["xaxis"]
    assert (axis["type"], axis["tickvals"]) == ("log", [1.0, 2.0, 4.0])


def test_every_figure_has_words_and_leads_to_its_numbers(tmp_path: Path) -> None:
    """Each plot has a text for readers who cannot see it; links of figures lead to tables of the page."""
    pytest.importorskip("plotly")
    model = cells(tmp_path, "factorial")
    page = to_html(model, plotly_script())
    plots = [p for f in model.figures for p in (*f.panels, *f.forests)]
    assert plots
    assert page.count('role="img" aria-label="') == len(plots)
    assert all(p.alt.startswith(p.title) and re.search(r"\d", p.alt) for p in plots)
    for line, plot in ((x, p) for f in model.figures for p in f.panels for x in p.lines if x.mean):
        assert f"{line.arm} from {float(f'{line.mean[0]:.3g}'):g} at " in plot.alt
        assert f" to {float(f'{line.mean[-1]:.3g}'):g} at {float(f'{line.x[-1]:.3g}'):g} (n={line.n})" in plot.alt
    ids, links = set(re.findall(r'<(?:section|h2)[^>]* id="([^"]*)"', page)), re.findall(r'href="#([^"]*)"', page)
    assert links
    assert set(links) <= ids
    assert 'class="matrix"' in page
    assert 'class="matrix"' in to_html(model, None)


def test_cells_have_the_colours_of_the_plot() -> None:
    """A separated difference is better or worse by the direction of its measure, in tables as in the plot."""
    model = build_report(made_up_study(Shape(seeds=10)))
    cells = {r.label: r.cells for t in model.tables if t.key == "solo.score" for r in t.rows}
    (answer,) = (f for f in model.figures if f.key == "answer")
    sides = {i.label: i.side for i in answer.forests[0].intervals}
    assert sides["soft_overlong"] == "worse"
    assert [c.side for c in cells["soft_overlong"] if c.side] == ["worse"]
    effects = next(t for t in model.tables if t.key == "effects")
    row = next(r for r in effects.rows if r.label == "soft_overlong")
    by_measure = {c.key: cell.side for c, cell in zip(effects.columns, row.cells, strict=True)}
    assert by_measure["truncated"] == "better"  # less of it is better
    assert by_measure["length"] == ""
    page = to_html(model, None)
    assert '<td class="separated worse" title="worse">' in page
    assert "td.separated { color: var(--mark)" not in page


def test_captions_speak_of_the_intervals_that_are_there() -> None:
    """With one or two seeds no caption reads as if rows had intervals; with some such rows it says which have none."""
    shape = Shape(seeds=2, designs=("add_one", "leave_one_out"), tricks=("clip_higher", "soft_overlong"))
    bare = "No row has an interval: fewer than 3 seeds. Grey: nothing is tested."
    for seeds in (1, 2):
        few = build_report(made_up_study(replace(shape, seeds=seeds)))
        found = {f.key: f for f in few.figures if f.forests}
        assert found.keys() == {"answer", "forest", "contributions.figure"}
        assert all(f.caption.endswith(bare) and "as intervals" not in f.title for f in found.values())
    lost = tuple(("clip_higher", seed, "failed") for seed in (0, 1, 2))
    some = build_report(made_up_study(replace(shape, seeds=5, outcomes=lost)))
    assert figure(some, "answer").caption.startswith("95% t intervals; none with fewer than 3 seeds. Blue: better")
    whole = build_report(made_up_study(replace(shape, seeds=5)))
    assert figure(whole, "answer").caption.startswith("95% t intervals. Blue: better")


def test_marks_are_filled_where_a_sentence_claims_the_difference() -> None:
    """In both plots of arms against the base, for the score as for measures of which neither direction is better."""
    model = build_report(made_up_study(Shape(seeds=10)))
    said = {w.partition("`")[2].partition("`")[0]: w for w in model.words}
    names = {"forest.score": "held-out accuracy", "forest.length": "length", "forest.truncated": "truncation"}
    checked = 0
    for key in ("answer", "forest"):
        assert "Filled: shown after correction." in figure(model, key).caption
        for forest in figure(model, key).forests:
            drawn = [symbol == "circle" for symbol in forest_figure(forest)["data"][-1]["marker"]["symbol"]]
            name = names.get(forest.key.replace("answer", "forest"))
            for row, full in zip(forest.intervals, drawn, strict=True):
                if name and row.label in said:
                    claim = rf"(?:raised|lowered) (?:[^:]* and |[^:]*, )?{name} by "
                    assert full is bool(re.search(claim, said[row.label])), (key, row.label, said[row.label])
                    checked += 1
    assert checked > 8
