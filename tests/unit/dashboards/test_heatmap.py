"""The map of prompts and steps: its order, its counts, its drawing."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from starlette.datastructures import QueryParams

from paribus_dashboards.choices import spread_out
from paribus_dashboards.data.sample_index import Counts, KeptGroups, Problems
from paribus_dashboards.heatmap.data import Heatmap, Measured, heatmap, of_evaluations, of_kept
from paribus_dashboards.heatmap.figure import COLOURS, draw, levels
from paribus_dashboards.heatmap.page import view


def _evaluated(correct: NDArray[np.int64], k: int) -> Measured:
    """Return problems x evaluations as they would be read."""
    rows, columns = correct.shape
    problems = Problems(names=tuple(f"p{i}" for i in range(rows)), keys=np.arange(rows, dtype=np.uint64))
    counts = {10 * j: Counts(problems=problems, k=k, correct=correct[:, j].astype(np.uint16)) for j in range(columns)}
    return of_evaluations(counts)


def test_prompts_stand_in_the_order_in_which_they_were_solved() -> None:
    """The first solved is on top, the hopeless at the bottom, and each kind of prompt is counted."""
    correct = np.array([[0, 0, 0], [0, 1, 2], [4, 4, 4], [0, 2, 4], [4, 1, 0], [1, 0, 1]])
    found = heatmap(_evaluated(correct, 4))
    assert [r.keys[0] for r in found.rows] == [2, 4, 3, 1, 5, 0]
    assert [r.solved for r in found.rows] == [0, 0, 1, 2, None, None]
    assert (found.mastered, found.later, found.lost, found.hopeless) == (2, 2, 1, 1)
    assert found.rows[0].flat.tolist() == [True, True, True]
    assert found.rows[2].flat.tolist() == [True, False, True]


def test_a_map_of_single_responses_says_that_its_staircase_is_sorting() -> None:
    """Chance draws one, too; with several responses a problem the sentence is not there."""
    correct = np.random.default_rng(0).integers(0, 2, (12, 6))
    for k in (1, 4):
        found = view(heatmap(_evaluated(correct, k)), {}, [], "/study/x/heatmap", QueryParams())
        assert any("the staircase is the sorting" in s for s in found.summary) == (k == 1)


def test_groups_of_one_are_never_without_spread() -> None:
    """With one response a problem nothing is hatched, and the page says why."""
    found = heatmap(_evaluated(np.array([[0, 1], [1, 1]]), 1))
    assert not any(r.flat.any() for r in found.rows)
    shown = view(found, {}, [], "", QueryParams())
    assert shown.hatch == ""
    assert "one response" in shown.about[-1]


@settings(max_examples=30, deadline=None)
@given(rows=st.integers(1, 40), columns=st.integers(1, 6), most=st.integers(1, 12), seed=st.integers(0, 99))
def test_every_prompt_and_cell_is_drawn_once(rows: int, columns: int, most: int, seed: int) -> None:
    """Rows that share prompts hold each one once, in order; the paths of the colours cover all cells with a value."""
    correct = np.random.default_rng(seed).integers(0, 3, (rows, columns))
    found = heatmap(_evaluated(correct, 2), most=most)
    assert [k for r in found.rows for k in r.keys] == [int(i) for i in found.order]
    assert len(found.rows) <= most
    drawing = draw(found, [""] * len(found.rows))
    area = sum(_area(path) for _, path in drawing.fills) - columns * drawing.cell * max(drawing.row, 10.0)
    assert abs(area - len(found.rows) * columns * drawing.cell * drawing.row) < 1e-6
    assert abs(_area(drawing.hatched) - sum(r.flat.sum() for r in found.rows) * drawing.cell * drawing.row) < 1e-6


def _area(path: str) -> float:
    return sum(float(w) * float(h) for w, h in re.findall(r"M[\d.]+ [\d.]+h([\d.]+)v([\d.]+)h-[\d.]+z", path))


def test_long_runs_share_columns() -> None:
    """Groups of ten thousand steps come in few columns of equal width, each with the mean of its groups."""
    step = np.repeat(np.arange(1, 10_001), 2)
    key = np.tile(np.array([1, 2], np.uint64), 10_000)
    mean = np.where(key == 1, step / 5000 - 1, -1.0)
    none = np.full(len(step), np.nan)
    kept = KeptGroups(
        step=step,
        key=key,
        mean=mean,
        low=mean,
        high=mean + (key == 1),
        n=np.full(len(step), 8),
        correct=none,
        judged=np.zeros(len(step), int),
    )
    measured = of_kept(kept)
    assert measured.spans[0] == (1, 125)
    assert measured.mean.shape == (2, 80)
    assert abs(measured.mean[0, 0] - (63 / 5000 - 1)) < 1e-9
    assert measured.flat.all(axis=1).tolist() == [False, True]
    assert (measured.low, measured.high) == (mean.min(), 2.0)
    assert not measured.judged
    assert heatmap(measured).hopeless == 1
    assert spread_out(range(10_001), 80)[::79] == (0, 10_000)


def test_colours_can_be_told_apart_by_lightness() -> None:
    """Each colour is lighter than the one before by a similar amount, and values without a number have none."""
    light = [_luminance(c) ** (1 / 3) for c in COLOURS]
    steps = np.diff(light)
    assert steps.min() > 0.03
    assert steps.max() < 4 * steps.min()
    assert levels(np.array([np.nan, 0.0, 0.5, 1.0]), 0.0, 1.0).tolist() == [-1, 0, 5, 10]


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_table_has_the_numbers_of_the_map() -> None:
    """Each row of the table has the prompt, when it was solved, and one number a column; no spread is marked."""
    found: Heatmap = heatmap(_evaluated(np.array([[0, 1, 2], [2, 2, 2]]), 2))
    shown = view(found, {0: "first", 1: "second"}, ["said"], "", QueryParams("run=abc"))
    assert shown.columns == ("0", "10", "20")
    assert [(line.name, line.solved) for line in shown.lines] == [("second", "step 0"), ("first", "step 10")]
    assert [(c.text, c.flat) for c in shown.lines[1].cells] == [("0", True), ("0.5", False), ("1", True)]
    many = view(heatmap(_evaluated(np.zeros((300, 2), int), 2)), {}, [], "", QueryParams("run=abc"))
    assert many.per_row == 2
    assert many.lines[1].name == "3 to 4"
    assert many.lines[1].within == "?run=abc&from=2&rows=2"
    assert [link.text for link in many.links] == ["all 300 prompts", "1 to 160", "161 to 300"]
