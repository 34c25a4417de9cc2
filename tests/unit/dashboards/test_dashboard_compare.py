"""The compare page: the report's numbers in curves against steps, tokens and time, in effects and settings."""

from __future__ import annotations

import re
from dataclasses import replace
from statistics import fmean, median

import numpy as np
import pytest

from paribus.health.window import window_size
from paribus.report.analysis.analysis import Analysis
from paribus.report.build import build_report
from paribus.report.figures.curves import curves
from paribus.report.model import Line
from paribus.stats.intervals import difference_interval, welch_interval
from paribus_dashboards.arm_chart import is_share, within_shares
from paribus_dashboards.chart_style import arm_styles
from paribus_dashboards.compare.curves import (
    ChartSpec,
    alone,
    compare_figure,
    compared,
    effect_forest,
    ranked,
    scored,
    settings,
)
from paribus_dashboards.compare.page import part
from paribus_dashboards.compare.view import MAX_ARMS, choose
from paribus_dashboards.data.home import NotFound
from paribus_dashboards.health.page import study_health
from support.studies import SCORE, Shape, made_up_study

PAGE = "/study/made-up/compare"
ENTROPY = "policy/entropy"


def study(**shape):
    """Return the analysis of a made-up study with one ladder."""
    shape = {"designs": ("cumulative",), "tricks": ("clip_higher", "soft_overlong"), "steps": 8, **shape}
    return Analysis(made_up_study(Shape(**shape)))


def spec(analysis, metric=SCORE, **more):
    """Return a chart of all arms."""
    return ChartSpec(metric=metric, arms=tuple(a.key for a in analysis.plan.arms), **more)


@pytest.mark.parametrize("seeds", [2, 3])
@pytest.mark.parametrize("metric", [SCORE, ENTROPY])
def test_curves_are_those_of_the_report(seeds, metric):
    """Means, bands and seeds: nothing is computed another way."""
    analysis = study(seeds=seeds)
    (printed,) = curves(analysis)
    key = "score" if metric == SCORE else metric
    panel = next(p for p in printed.panels if p.key == f"curves.ladder.{key}")
    named = zip(analysis.plan.arms, panel.lines, strict=True)  # the dashboard names rows of the ladder as the plan does
    lines = tuple(replace(line, arm=arm.label) for arm, line in named)
    assert compared(analysis, spec(analysis, metric, raw=True)).lines == lines


@pytest.mark.parametrize("paired", [True, False])
def test_a_difference_is_that_of_the_arms_at_each_step(paired):
    """With the interval of paired differences, or Welch's where seeds are not paired."""
    analysis = study(seeds=4, paired=paired)
    base, arm = analysis.plan.base, analysis.plan.arms[2].key
    lines = compared(analysis, spec(analysis, ENTROPY, show="difference", raw=True)).lines
    assert [x.arm for x in lines] == [a.label for a in analysis.plan.arms[1:]]
    line = lines[1]
    at = {k: [r.recorded.series(ENTROPY).at(5) for r in analysis.runs(k)] for k in (arm, base)}
    differences = [a - b for a, b in zip(at[arm], at[base], strict=True)]
    wanted = difference_interval(differences) if paired else welch_interval([(1, at[arm]), (-1, at[base])])
    place = line.x.index(5)
    assert line.n == 4
    got = line.mean[place], line.low[place], line.high[place]
    assert got == pytest.approx((wanted.value, wanted.low, wanted.high), rel=1e-4)


def test_each_seed_is_a_running_median_unless_recorded_values_are_wanted():
    """The mean is over the medians of the seeds' newest points; scores stay as they were recorded."""
    analysis = study(steps=60, seeds=3)
    line = compared(analysis, spec(analysis, ENTROPY)).lines[0]
    runs = analysis.runs(analysis.plan.base)
    w = window_size(analysis.plan.arm(analysis.plan.base).recipe.schedule.steps)
    own = [
        dict(zip(s.steps.tolist(), s.last.tolist(), strict=True)) for s in (r.recorded.series(ENTROPY) for r in runs)
    ]
    wanted = fmean(median(run[step] for step in range(31 - w, 31)) for run in own)
    assert line.mean[line.x.index(30)] == pytest.approx(wanted, rel=1e-4)
    recorded = compared(analysis, spec(analysis, ENTROPY, raw=True)).lines[0]
    assert np.std(np.diff(line.mean)) < 0.7 * np.std(np.diff(recorded.mean))
    assert compared(analysis, spec(analysis)) == compared(analysis, spec(analysis, raw=True))


def test_a_zoom_does_not_change_a_running_median():
    """The first points of a part look back at the steps before it."""
    analysis = study(steps=60, seeds=3)
    whole = compared(analysis, spec(analysis, ENTROPY)).lines[0]
    zoomed = compared(analysis, spec(analysis, ENTROPY, first=30, last=50)).lines[0]
    assert zoomed.x[0] == 30
    assert zoomed.mean == pytest.approx(whole.mean[whole.x.index(30) : whole.x.index(50) + 1], rel=1e-4)


def test_bands_of_shares_end_at_0_and_1():
    """Whatever Student's interval says; means and other units are not cut."""
    wide = Line(arm="a", n=3, x=(0, 1), mean=(0.1, 0.9), low=(-0.2, 0.6), high=(0.4, 1.2), seeds=())
    assert within_shares(wide) == replace(wide, low=(0.0, 0.6), high=(0.4, 1.0))
    assert [is_share(m) for m in (SCORE, "response/truncated_frac", "reward/mean", ENTROPY)] == [
        True,
        True,
        False,
        False,
    ]


def test_every_arm_has_a_mean_to_point_at():
    """Also arms whose single seeds are drawn in its place, and arms of which no seed has ended."""
    few = study(seeds=2, outcomes=(("base", 0, "pending"), ("base", 1, "pending")))
    figure = compare_figure(compared(few, spec(few)), {a.label: s for a, s in named(few)})
    listed = {t["name"]: t for t in figure["data"] if t.get("meta")}
    assert {n: t["meta"] for n, t in listed.items()} == {
        "base": "n=1, not ended", "+ clip_higher": "n=2", "+ soft_overlong": "n=2",
    }  # fmt: skip
    assert all(t["x"] and t["opacity"] == 0 and t["hoverinfo"] == "none" for t in listed.values())
    assert all(t["hoverinfo"] == "skip" and "hovertemplate" not in t for t in figure["data"] if "meta" not in t)
    assert figure["tip"] == "training steps"


def test_below_three_seeds_there_is_no_band():
    """One thin line a seed, of values as of differences."""
    analysis = study(seeds=2)
    for kind in ("value", "difference"):
        lines = compared(analysis, spec(analysis, ENTROPY, show=kind)).lines
        assert all(not line.low and len(line.seeds) == 2 for line in lines)


def test_the_x_axis_is_what_was_paid():
    """Tokens and device time at each step are those that were recorded until then, means over seeds."""
    analysis = study()
    base = analysis.plan.base
    by_tokens = compared(analysis, spec(analysis, ENTROPY, x="tokens")).lines[0]
    tokens = [r.recorded.series("budget/gen_tokens").at(3) for r in analysis.runs(base)]
    assert by_tokens.x[2] == pytest.approx(fmean(tokens), rel=1e-5)
    by_time = compared(analysis, spec(analysis, x="gpu_hours"))
    assert by_time.lines[0].x[0] == 0
    assert by_time.x_label.startswith("CPU-")
    assert list(by_time.lines[0].x) == sorted(by_time.lines[0].x)


def test_seeds_that_go_on_are_drawn_beside_the_mean():
    """The mean is over those that ended; its n says how many."""
    analysis = study(seeds=4, outcomes=(("base", 1, "pending"),))
    line = compared(analysis, spec(analysis, ENTROPY)).lines[0]
    assert (line.n, [seed for seed, _, _ in line.seeds]) == (3, [1])


def test_a_zoom_shows_its_part_finely():
    """Whole buckets of the steps that are looked at, narrower ones than before."""
    analysis = study(steps=900, seeds=3)
    part = compared(analysis, spec(analysis, ENTROPY, first=100, last=150)).lines[0]
    whole = compared(analysis, spec(analysis, ENTROPY)).lines[0]
    assert len(part.x) == 51
    assert (min(part.x), max(part.x)) == (100, 150)
    assert 200 <= len(whole.x) < 500


def test_a_zoom_of_other_axes_shows_what_is_there():
    """Only of steps is more known; the browser cuts the rest. Hours have decimals."""
    by_step, by_time = ChartSpec(metric=SCORE, arms=("a",)), ChartSpec(metric=SCORE, arms=("a",), x="gpu_hours")
    assert (part(by_step, 3.2, 7.5).first, part(by_step, 3.2, 7.5).last) == (3, 8)
    assert part(by_step, None, 7.5) is by_step
    assert part(by_time, 0.376, 0.691) is by_time


def test_arms_apart_share_their_axes():
    """One chart an arm has the base behind it and the y axis of all; more than a hundred seeds are one grey line."""
    analysis = study()
    panel, styles = compared(analysis, spec(analysis)), {a.label: s for a, s in named(analysis)}
    both = compare_figure(panel, styles)
    one = compare_figure(alone(panel, "+ clip_higher", "base"), styles)
    assert {t["name"] for t in one["data"]} == {"base", "+ clip_higher"}
    low, high = both["layout"]["yaxis"]["range"]
    assert low <= min(y for line in panel.lines for y in line.low) < max(panel.lines[0].high) <= high
    many = study(seeds=33)
    crowded = compare_figure(compared(many, spec(many)), {a.label: s for a, s in named(many)})
    assert len(crowded["data"]) <= 100
    assert crowded["data"][0]["name"] == "single seeds"


def named(analysis):
    """Return the arms with their styles."""
    styles = arm_styles(analysis.plan)
    return [(a, styles[a.key]) for a in analysis.plan.arms]


def test_scores_and_effects_are_the_cells_of_the_report():
    """The best arm first, arms without a score last; the forest has the printed intervals."""
    analysis = study(outcomes=tuple(("+ clip_higher", s, "failed") for s in range(3)))
    plan, model = analysis.plan, build_report(analysis.data)
    found = ranked(scored(plan, model, [a.key for a in plan.arms]), lower=False)
    assert [plan.arm(f.arm).label for f in found] == ["base", "+ soft_overlong", "+ clip_higher"]
    table = next(t for t in model.tables if t.key == "ladder.score")
    assert found[1].cells["score"] is table.rows[2].cells[1]
    forest = effect_forest(plan, found, "Δ")
    cell = found[1].cells["to_base"]
    assert [(i.label, i.value, i.low, i.high) for i in forest.intervals] == [
        ("+ soft_overlong", cell.value, cell.low, cell.high)
    ]


def test_settings_are_the_paths_that_differ():
    """What all arms share is left out; what is not as in the first arm is marked."""
    plan = study().plan
    found = {s.path: s.values for s in settings(plan.arms)}
    assert found["clip.high"] == (("0.2", False), ("0.28", True), ("0.28", True))
    assert found["length.rule.hard_cap"] == (("—", False), ("—", False), ("37", True))
    assert "clip.low" not in found
    assert settings(plan.arms[:1]) == ()


def test_an_address_is_a_choice():
    """Missing choices get defaults; unknown ones are refused."""
    plan = study().plan
    usual = choose(plan, {}, [SCORE, ENTROPY])
    assert (usual.arms, usual.metrics, usual.x) == (tuple(a.key for a in plan.arms), (SCORE, ENTROPY), "step")
    chosen = choose(plan, {"arm": [plan.arms[2].key, plan.base], "x": ["tokens"], "metric": ["no/such"]}, [SCORE])
    assert (chosen.arms, chosen.metrics, chosen.x) == ((plan.base, plan.arms[2].key), (), "tokens")
    assert len(usual.arms) <= MAX_ARMS
    for wrong in ({"arm": ["x"]}, {"x": ["hours"]}, {"show": ["all"]}):
        with pytest.raises(NotFound):
            choose(plan, wrong, [])


def test_the_page_and_all_that_it_asks_for(client, home):
    """Charts together and apart, the polled table with links to health, the forest; reload gives the same."""
    home.report(home.study("made-up"), wait_s=None)
    for query in ("", "?split=yes&show=difference&x=gpu_hours"):
        page = client.get(PAGE + query)
        assert page.text == client.get(PAGE + query).text
        named_there = re.findall(r'(?:data-src|data-poll)="(/[^"]*)"', page.text)
        assert len(named_there) > 7
        for address in named_there:
            assert client.get(address.replace("&amp;", "&")).status_code == 200, address
    effects = client.get(f"{PAGE}/effects").text
    assert effects.count("/health?run=") == 9
    assert "held-out accuracy" in effects


def test_one_arm_in_a_chart_has_the_axis_of_all(client, home):
    """The range does not depend on which arm is drawn."""
    arms = [a.key for a in study_health(home, home.study("made-up")).table.arms]
    address = f"/data{PAGE}/curve.json?metric={ENTROPY}&" + "&".join(f"arm={a}" for a in arms)
    whole, one = client.get(address).json(), client.get(f"{address}&only={arms[1]}").json()
    assert one["layout"] == whole["layout"]
    assert len(one["data"]) < len(whole["data"])
