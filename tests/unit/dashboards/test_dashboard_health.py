"""The health page: verdicts from the records, curves with the detectors' medians, limits and onsets."""

from __future__ import annotations

import errno
import html
import json
import re
import statistics
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.contract.rule import HealthRule
from paribus.errors import RunFolderError
from paribus.health.diagnose import DETECTORS, diagnose
from paribus.health.finding import Finding, Remedy, to_json, worst
from paribus.health.judge import judge_run, read_run
from paribus.health.own_rules import detector_of
from paribus.health.profile import load_profile
from paribus.recipe.factors import Schedule
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import SHORT, MetricLine, write_json
from paribus.run_folder.series import Columns, points
from paribus_dashboards.data import verdicts
from paribus_dashboards.data.home import Home
from paribus_dashboards.data.run_now import Raised, RunNow
from paribus_dashboards.data.verdicts import RunDiagnosis, Verdicts
from paribus_dashboards.health.arm_curves import charts, title_of
from paribus_dashboards.health.figure import panel_figure, panel_text, y_range
from paribus_dashboards.health.matrix import matrix, sickest
from paribus_dashboards.health.panels import (
    BY_KEY,
    KINDS,
    Metric,
    Panel,
    curve_of,
    limits_of,
    onsets_of,
    running_median,
)
from paribus_dashboards.health.view import arm_headline, headline, patch_text, verdict_view
from paribus_dashboards.server.access import Access
from paribus_dashboards.server.app import make_app
from support.plans import small_plan

PAGE = "/study/made-up/health"

CLIP = Remedy(text="raise the upper clip bound", evidence="A", source="DAPO", patch={"clip.high": 0.28})
COLLAPSE = Finding(
    detector="entropy_collapse",
    state="critical",
    step_onset=212,
    step_detected=230,
    evidence="entropy 0.03",
    remedies=(CLIP,),
)
MISMATCH = Finding(detector="mismatch", state="warn", step_onset=90, step_detected=99, evidence="k3", step_cleared=120)


def diagnosis(*raised):
    """Diagnose these findings; all other detectors are ok."""
    known = {f.detector: f for f in raised}
    return diagnose([known.get(d.name, Finding(detector=d.name, state="ok")) for d in DETECTORS])


def recorded(**columns):
    """Return a run of 1,000 steps that recorded these values."""
    steps = np.arange(1, 1001)
    return Columns(span=(1, 1000), by_name={n.replace("__", "/"): points(steps, v) for n, v in columns.items()})


def entropy_panel(values, found, **limits):
    """Return the entropy panel of a run that recorded these values."""
    curve = curve_of(
        recorded(policy__entropy=values), Metric(name="policy/entropy", label="entropy"), w=20, first=None, last=None
    )
    kind, profile, recipe = BY_KEY["entropy"], load_profile("default"), Recipe()
    return Panel(
        kind=kind,
        curves=(curve,),
        limits=limits_of(kind, found, profile, recipe),
        onsets=onsets_of(kind, found),
        last=1000,
    )


def test_the_headline_says_what_since_when_and_what_the_study_adds():
    """The first finding that is as bad as the run, and what came before it; a run alone has no known cause."""
    alone = "The cause is not known: one run does not show it."
    assert headline(diagnosis(COLLAPSE)) == f"Critical: entropy collapse since step 212. {alone}"
    both = headline(diagnosis(COLLAPSE, MISMATCH), "The arm differs.")
    assert both == "Critical: entropy collapse since step 212, after mismatch. The arm differs."
    healthy = diagnosis()
    assert headline(healthy) == healthy.sentence


def test_a_patch_reads_as_in_a_study_file():
    """Flat, quoted where YAML needs it."""
    assert (
        patch_text({"schedule.minibatches": 1, "schedule.epochs": 1}) == "schedule.minibatches: 1, schedule.epochs: 1"
    )
    assert patch_text({"kl": "off"}) == "kl: 'off'"


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=60), st.integers(1, 25))
def test_the_running_median_is_that_of_the_last_points(values, w):
    """As the detectors take it: of each point and those before it, none while there are fewer."""
    found = running_median(np.array(values), w)
    assert found.tolist() == [statistics.median(values[i - w : i]) for i in range(w, len(values) + 1)]


def test_a_zoom_shows_the_same_median_at_more_steps():
    """The part that is looked at knows the points before it; at full resolution each step has its own."""
    values = np.sin(np.arange(1000) / 9)
    run, metric = recorded(policy__entropy=values), Metric(name="policy/entropy", label="entropy")
    whole = curve_of(run, metric, w=20, first=None, last=None, least=100)
    part = curve_of(run, metric, w=20, first=400, last=460, least=100)
    assert (whole.raw.width, part.raw.width) == (8, 1)
    fine = dict(zip(part.bold.steps.tolist(), part.bold.last.tolist(), strict=True))
    assert set(fine) == set(range(400, 461))
    coarse = dict(zip(whole.bold.steps.tolist(), whole.bold.last.tolist(), strict=True))
    shared = set(fine) & set(coarse)
    assert shared
    assert all(fine[s] == coarse[s] for s in shared)


def test_a_panel_draws_raw_faint_median_bold_limits_and_onsets():
    """Limits that are near the curve are on the axis, others are not; a marker stands at the onset."""
    found = diagnosis(COLLAPSE, MISMATCH)
    panel = entropy_panel(np.linspace(0.5, 0.02, 1000), found)
    figure = panel_figure(panel)
    json.dumps(figure, allow_nan=False)
    raw, bold = figure["data"]
    assert raw["fill"] == "toself"
    assert (bold["line"]["width"], bold["x"][-1]) == (2, 1000)
    shapes = {s["name"]: s for s in figure["layout"]["shapes"]}
    assert shapes["entropy_collapse, critical"]["y0"] == 0.05
    assert "entropy_explosion, warn" not in shapes
    assert shapes["entropy_collapse"]["x0"] == 212
    assert shapes["mismatch"]["line"]["dash"] == "dot"  # the suspected cause, whose own panel is another
    assert [a["x"] for a in figure["layout"]["annotations"]] == [212]
    assert "entropy_collapse, critical, since step 212" in panel_text(panel)
    low, high = y_range(entropy_panel(np.full(1000, 5.0), diagnosis()))
    assert low > 1 < high


def test_limits_are_those_that_the_rules_look_at():
    """None of a detector that does not apply; the configured staleness, not the profile's."""
    profile, recipe = load_profile("default"), Recipe(schedule=Schedule(staleness=2))
    off = diagnose([Finding(detector=d.name, state="not_applicable") for d in DETECTORS])
    assert all(limits_of(k, off, profile, recipe) == () for k in KINDS)
    (limit,) = limits_of(BY_KEY["staleness"], diagnosis(), profile, recipe)
    assert limit.value == 2 * recipe.schedule.updates_per_rollout
    assert limits_of(BY_KEY["mismatch"], diagnosis(), profile, recipe) == ()  # stale: the difference holds updates


def test_a_limit_of_one_of_several_conditions_is_drawn_where_it_was_crossed():
    """Not in a healthy run, and not where another condition raised the finding."""
    profile, recipe = load_profile("default"), Recipe()
    crossed = {
        "length": ("length_collapse", {"length": 12.0}, {"length": 60.0}, 20.0),
        "gradient": ("dead_update", {"gradient norm": 1e-12}, {"updates": 0.0}, 1e-8),
    }
    for panel, (detector, below, above, value) in crossed.items():
        sick = Finding(detector=detector, state="critical", step_onset=5, evidence="", numbers=below)
        assert [x.value for x in limits_of(BY_KEY[panel], diagnosis(sick), profile, recipe)] == [value]
        assert limits_of(BY_KEY[panel], diagnosis(replace(sick, numbers=above)), profile, recipe) == ()
        assert limits_of(BY_KEY[panel], diagnosis(), profile, recipe) == ()


def test_a_crash_of_the_reward_is_marked_in_its_panel():
    """And comes before what it brings about: findings are in the order of their onsets."""
    crash = Finding(detector="reward_crash", state="critical", step_onset=100, evidence="")
    later = Finding(detector="reward_hacking", state="critical", step_onset=140, evidence="")
    found = diagnosis(later, crash)
    assert headline(found).startswith("Critical: reward crash since step 100.")
    assert [f.detector for f in found.raised] == ["reward_crash", "reward_hacking"]
    marks = [(x.detector, x.elsewhere) for x in onsets_of(BY_KEY["reward"], found)]
    assert marks == [("reward_crash", False), ("reward_hacking", False)]


def test_an_arm_is_as_sick_as_its_worst_seed(home):
    """The line above the seeds counts them and names what most of the worst have."""
    profile = load_profile("default")
    run = next(iter(run_views(home)))
    sick = replace(run, verdict=verdict_view(RunDiagnosis(diagnosis=diagnosis(COLLAPSE)), profile, Recipe()))
    well = replace(run, verdict=verdict_view(RunDiagnosis(diagnosis=diagnosis()), profile, Recipe()))
    found = arm_headline([sick, well, sick])
    assert (found.status, found.text) == ("critical", "3 seeds: 2 critical, 1 healthy; entropy collapse in 2.")


def run_views(home):
    """Yield the runs of the study as the page shows them."""
    from paribus_dashboards.health.page import run_view

    study = home.study("made-up")
    return (run_view(home, study, r) for r in study.runs)


def test_a_run_without_a_whole_verdict_is_judged_from_its_records(home):
    """As `paribus health` does it: the file of the first run does not cover all detectors."""
    study = home.study("made-up")
    run, plan = study.runs[0], study.record.plan
    found = home.verdict(plan, run)
    records = read_run(home.folder, run.fingerprint, run.token)
    recipe = plan.arm(run.arm).recipe
    wanted = judge_run(load_profile("default"), records, recipe=recipe, primary=plan.evaluate.primary_metric)
    assert found.diagnosis == wanted
    assert found is home.verdict(plan, run)


def test_the_diagnosis_of_the_supervisor_is_used(new_folder):
    """If the file covers all detectors and the last step; not if it has other thresholds."""
    home = Home(new_folder())
    study = home.study("made-up")
    run, plan = study.runs[1], study.record.plan
    saved = diagnosis(COLLAPSE)
    line = MetricLine(step=8, time_ms=0, values={})
    known = to_json(saved, line, load_profile("default").identity)
    write_json(home.run_folder(run).health, known)
    found = home.verdict(plan, run)
    assert (found.diagnosis.sentence, found.step) == (saved.sentence, 8)
    for other in ({**known, "profile": "mine 3"}, {**known, "step": 5}):
        write_json(home.run_folder(run).health, other)
        assert Verdicts(home.folder).of(plan, run, 8, 8).diagnosis.sentence != saved.sentence
    home.close()


def test_a_study_with_other_rules_has_other_verdicts(home):
    """Runs are shared by studies, and a study is submitted again with other rules; neither writes into a run."""
    study = home.study("made-up")
    run, plan = study.runs[0], study.record.plan
    rule = HealthRule(name="mine", metric="policy/entropy", test={"kind": "above", "limit": 9.0}, level="warn")
    assert "mine" not in [f.detector for f in home.verdict(plan, run).diagnosis.findings]
    for limit in (9.0, 8.0):
        mine = rule.model_copy(update={"test": rule.test.model_copy(update={"limit": limit})})
        found = home.verdict(replace(plan, rules=(mine,)), run)
        own = next(f for f in found.diagnosis.findings if f.detector == "mine")
        assert own.profile.endswith(f"mine ({detector_of(mine).version})")
    moe = home.verdict(replace(plan, profile="moe"), run).diagnosis
    assert {f.profile for f in moe.findings} == {load_profile("moe").identity}


def test_a_long_run_is_judged_while_pages_go_on(home, monkeypatch):
    """At first there is no verdict; later there is the same."""
    study = home.study("made-up")
    run, plan = study.runs[0], study.record.plan
    wanted, gate = verdicts.judge(home.folder, plan, run), threading.Event()
    monkeypatch.setattr(verdicts, "INLINE_BYTES", 0)
    monkeypatch.setattr(verdicts, "judge", lambda *_: wanted if gate.wait(60) else None)
    beside = Verdicts(home.folder)
    assert beside.of(plan, run, 8, 8).diagnosis is None
    gate.set()
    for _ in range(1000):
        if beside.of(plan, run, 8, 8).diagnosis:
            break
        time.sleep(0.02)
    assert beside.of(plan, run, 8, 8) == wanted
    beside.close()


@pytest.mark.parametrize(
    ("inline_bytes", "error"),
    [
        (verdicts.INLINE_BYTES, OSError(errno.ESTALE, "away")),
        (verdicts.INLINE_BYTES, RunFolderError("away")),
        (0, OSError(errno.ESTALE, "away")),
        (0, MemoryError("away")),
    ],
)
def test_a_run_whose_records_could_not_be_read_is_judged_again(home, monkeypatch, inline_bytes, error):
    """After a while, not with each request; until then the page says what was wrong."""
    study = home.study("made-up")
    run, plan = study.runs[0], study.record.plan
    wanted, tries, real = verdicts.judge(home.folder, plan, run), [], verdicts.read_run

    def read(*given):
        tries.append(1)
        if len(tries) == 1:
            raise error
        return real(*given)

    def asked(ready):
        end = time.monotonic() + 60
        while not ready(found := beside.of(plan, run, 8, 8)):
            assert time.monotonic() < end, found
            time.sleep(0.01)
        return found

    monkeypatch.setattr(verdicts, "INLINE_BYTES", inline_bytes)
    monkeypatch.setattr(verdicts, "read_run", read)
    beside = Verdicts(home.folder)
    monkeypatch.setattr(verdicts, "AGAIN_S", 600.0)
    assert "away" in asked(lambda found: found.trouble).trouble
    assert beside.of(plan, run, 8, 8).diagnosis is None
    assert len(tries) == 1
    beside.close()
    monkeypatch.setattr(verdicts, "AGAIN_S", 0.0)
    tries.clear()
    beside = Verdicts(home.folder)
    assert asked(lambda found: found.diagnosis) == wanted
    assert len(tries) == 2
    beside.close()


def test_the_page_of_a_run(client, home):
    """All detectors in a table, recorded panels as charts, the others in one line; links to what shows more."""
    study = home.study("made-up")
    page = client.get(PAGE, params={"run": study.runs[0].fingerprint[:SHORT]}).text
    assert set(re.findall(r'id="d-(\w+)"', page)) == {d.name for d in DETECTORS}
    assert "Compare with the base" not in page  # this is the base
    other = next(r for r in study.runs if r.arm != study.record.plan.base)
    page_of_other = client.get(PAGE, params={"run": other.fingerprint[:SHORT]}).text
    assert f"/study/made-up/compare?arm={study.record.plan.base}&amp;arm={other.arm}" in page_of_other
    assert set(re.findall(r'href="#(d-\w+)"', page)) <= set(re.findall(r'id="(d-\w+)"', page))
    charts = re.findall(r'data-src="([^"]*)"', page)
    assert len(charts) == 6
    absent = re.search(r"Not recorded: (.*?)\.</p>", page)[1]
    assert "staleness" in absent
    assert "entropy" not in absent
    for address in charts:
        figure = client.get(f"{address}&first=2&last=5").json()
        assert all(2 <= x <= 5 for t in figure["data"] for x in t["x"])


def test_the_page_of_an_arm_and_of_all(client, home):
    """An arm has its seeds side by side; without a choice there is a table of all, and a chart for each metric."""
    study = home.study("made-up")
    arm = study.record.plan.arms[1].key
    page = client.get(PAGE, params={"arm": arm}).text
    assert len(re.findall(r'href="/study/made-up/health\?run=\w+"', page)) == 3
    figure = client.get(f"/data{PAGE}/entropy.json", params={"arm": arm}).json()
    assert [t["name"] for t in figure["data"]] == ["seed 0", "seed 1"]  # the third recorded too few steps for a median
    every = client.get(PAGE).text
    assert every.count("?run=") == len(study.runs) + 1  # each seed, and the finding of one of them
    assert 'aria-label="base: entropy collapse (critical) in 1 of 1 seed, from step 2"' in every
    charts = [html.unescape(at) for at in re.findall(r'data-src="([^"]*)"', every)]
    assert [at.partition("?")[0].rpartition("/")[2] for at in charts] == [
        f"{key}.json" for key in ("score", "reward", "entropy", "length", "truncation")
    ]
    figures = {at.partition("?")[0].rpartition("/")[2]: client.get(at).json() for at in charts}
    [mark] = figures["entropy.json"]["layout"]["annotations"]
    assert (mark["x"], mark["text"]) == (2, "■")
    assert mark["hovertext"] == "base: entropy collapse in 1 of 3 seeds, from step 2"
    assert mark["hovertext"] in figures["entropy.json"]["text"]
    assert not figures["length.json"]["layout"]["annotations"]
    assert client.get(f"/data{PAGE}/arms/gradient.json").status_code == 404
    assert client.get(f"/data{PAGE}/arms/reward.json", params={"arm": "nobody"}).status_code == 404
    assert client.get(f"{PAGE}/now", params={"arm": arm}).status_code == 200
    assert "<h1" in client.get(f"{PAGE}/verdict", params={"arm": arm}).text


@pytest.mark.parametrize(
    ("chart", "recorded", "drawn", "title"),
    [
        ("clip", {"clip/low_frac", "clip/dual_frac"}, "clip/low_frac", "clipped tokens: below"),
        ("clip", {"clip/low_frac", "clip/high_frac"}, "clip/high_frac", "clipped tokens"),
        ("reward", {"reward/correct_frac"}, "reward/correct_frac", "reward: share correct"),
        ("score", {"eval/heldout/avg_at_1"}, "eval/heldout/avg_at_1", "held-out score"),
        ("kl", {"kl/old_k3"}, None, ""),
    ],
)
def test_a_small_chart_draws_the_first_metric_that_was_recorded(chart, recorded, drawn, title):
    """And names it if it is not the panel's first; the KL to the old policy is none to the reference."""
    [*found] = charts(frozenset(recorded), "eval/heldout/avg_at_1")
    by_key = {kind.key: (metric.name, title_of(kind, metric)) for kind, metric in found}
    assert by_key == ({} if drawn is None else {chart: (drawn, title)})


def test_a_run_that_goes_on_is_followed(new_folder):
    """What it records is in the next answer: the step, the curve and the verdict."""
    home = Home(new_folder())
    browser = TestClient(make_app(home, access=Access(), keep_s=0), base_url="http://localhost")
    run = next(r for r in home.study("made-up").runs if r.state == "RUNNING")
    asked = {"run": run.fingerprint[:SHORT]}
    before = [browser.get(at, params=asked) for at in (f"{PAGE}/now", f"/data{PAGE}/truncation.json")]
    for step in range(5, 21):
        values = {"response/truncated_frac": 0.9, "policy/entropy": 0.5}
        home.run_folder(run).append_metrics(MetricLine(step=step, time_ms=step, values=values))
    assert "step 20 of 40" in browser.get(f"{PAGE}/now", params=asked, headers=tag(before[0])).text
    figure = browser.get(f"/data{PAGE}/truncation.json", params=asked, headers=tag(before[1])).json()
    assert max(figure["data"][0]["x"]) == 20
    assert "truncation since step 5" in browser.get(f"{PAGE}/verdict", params=asked).text
    home.close()


def tag(answer):
    """Return the header by which a browser says what it has."""
    return {"if-none-match": answer.headers["etag"]}


@pytest.mark.parametrize("at", [f"{PAGE}?run=abc", f"{PAGE}?arm=<b>", f"/data{PAGE}/nothing.json?run=ffffffff"])
def test_what_is_not_there_is_said(client, at):
    """An unknown run, arm or panel gets an error page, with nothing of the address in it unescaped."""
    answer = client.get(at)
    assert answer.status_code == 404
    assert "<b>`" not in answer.text


def test_a_note_is_shown_and_raises_nothing(new_folder):
    """The page of a run whose reward has reached a plateau; a critical finding links to its samples."""
    home = Home(new_folder())
    sick, noted = home.study("made-up").runs[:2]
    note = Finding(detector="reward_stall", state="note", evidence="the reward has not risen for 5 points")
    line, profile = MetricLine(step=8, time_ms=0, values={}), load_profile("default").identity
    write_json(home.run_folder(noted).health, to_json(diagnosis(note), line, profile))
    write_json(home.run_folder(sick).health, to_json(diagnosis(replace(COLLAPSE, step_onset=2)), line, profile))
    browser = TestClient(make_app(home, access=Access(), keep_s=0), base_url="http://localhost")
    page = browser.get(PAGE, params={"run": noted.fingerprint[:SHORT]}).text
    assert "reward stall</span>: the reward has not risen for 5 points" in " ".join(page.split())
    assert "Findings and remedies" not in page
    page = browser.get(PAGE, params={"run": sick.fingerprint[:SHORT]}).text
    assert f'/study/made-up/samples?run={sick.fingerprint[:SHORT]}&amp;set=train&amp;step=2"' in page
    home.close()


def test_many_findings_leave_the_curves_in_sight(new_folder):
    """The finding of the headline and the earliest other one stand open, the rest is folded and named; none is lost."""
    home = Home(new_folder())
    names = ("clip_zero", "grad_spike", "entropy_collapse", "truncation", "zero_variance")
    found = [replace(COLLAPSE, detector=n, state="warn", step_onset=i + 1) for i, n in enumerate(names)]
    found[3] = replace(found[3], state="critical")
    run, line = home.study("made-up").runs[0], MetricLine(step=8, time_ms=0, values={})
    write_json(home.run_folder(run).health, to_json(diagnosis(*found), line, load_profile("default").identity))
    browser = TestClient(make_app(home, access=Access(), keep_s=0), base_url="http://localhost")
    page = browser.get(PAGE, params={"run": run.fingerprint[:SHORT]}).text
    begin, fold = page.index("Findings and remedies"), page.index('<details class="more">')
    assert re.findall(r'<article class="finding \w+" id="d-(\w+)"', page[begin:fold]) == ["clip_zero", "truncation"]
    assert re.findall(r'<article class="finding \w+" id="d-(\w+)"', page[fold:]) == [names[i] for i in (1, 2, 4)]
    assert "<summary>3 more " in page[fold:]
    home.close()


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.lists(st.tuples(st.sampled_from(["truncation", "kl_blowup", "own_rule"]),
        st.sampled_from(["warn", "critical"]), st.none() | st.integers(1, 90)), max_size=3, unique_by=lambda f: f[0])),
        max_size=12,
    )
)  # fmt: skip
def test_the_table_counts_what_the_seeds_have(drawn):
    """Each cell against a count by hand; a detector that found nothing has no column."""
    plan = small_plan("counted", arms=4, seeds=3)
    runs = {a.key: [] for a in plan.arms}
    for seed, (place, found) in enumerate(drawn):
        key = plan.arms[place].key
        raised = tuple(Raised(*f) for f in found)
        status = worst(Finding(detector=f.detector, state=f.status) for f in raised) if raised else "ok"
        run = SimpleNamespace(seed=seed, fingerprint=f"{seed:064x}", arm=key)
        runs[key].append((run, RunNow(step=9, status=status, raised=raised)))
    table = matrix(plan.arms, runs)
    names = [name for name in ("kl_blowup", "truncation", "own_rule") if any(f[0] == name for _, x in drawn for f in x)]
    assert table.detectors == tuple(name.replace("_", " ") for name in names)
    for place, row in enumerate(table.arms):
        mine = [found for where, found in drawn if where == place]
        for name, cell in zip(names, row.cells, strict=True):
            hits = [f for found in mine for f in found if f[0] == name]
            assert (cell is None) == (not hits)
            if cell is not None:
                onsets = [f[2] for f in hits if f[2] is not None]
                assert (cell.sick, cell.seeds, cell.onset) == (len(hits), len(mine), min(onsets, default=None))
                assert cell.status == ("critical" if any(f[1] == "critical" for f in hits) else "warn")
    assert matrix(plan.arms, runs, of=99).counts.startswith(f"{len(drawn)} of 99 runs" if drawn else "No run yet.")
    sick = sickest(plan.arms, runs, plan.base, 2)
    assert plan.base in sick
    assert len(sick) == 2
