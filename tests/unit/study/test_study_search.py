"""Search designs: the same records give the same trials, each candidate as many; fresh seeds alone confirm."""

import importlib.util
import math
import re
from dataclasses import replace

import pytest

from paribus.errors import MissingExtra, StudyFileError, install_command
from paribus.report.adaptive import next_block, trial_scores
from paribus.report.analysis.analysis import Analysis
from paribus.report.build import build_report
from paribus.report.render.plotly import parallel_figure
from paribus.store.models import PLAN
from paribus.study.adaptive import runs_between
from paribus.study.expand import make_plan
from paribus.study.load import load_study
from paribus.study.search import SEED, refuse_without_optuna
from paribus.testing.fake_runner import FakeRunner
from support.studies import made_up_results

TEXT = """\
study: tuned
runner: fake
base: {preset: grpo, set: {kl: off, schedule.steps: 4}}
tricks: {token_level: {aggregation: token_batch}}
designs:
  lr:
    kind: search
    over: {optimizer.learning_rate: {low: 1.0e-5, high: 1.0e-3, log: true}, clip.high: {low: 0.2, high: 0.4}}
    trials: 6
    seeds: 2
    parallel: 2
    importance: ped_anova
seeds: {n: 3}
evaluate: {every: 1, problems: 20, samples: 1}
"""


@pytest.fixture
def load(tmp_path):
    """A function from a change of the text to the study."""

    def of(old="", new=""):
        (tmp_path / "study.yaml").write_text(TEXT.replace(old, new))
        return load_study(tmp_path / "study.yaml")

    return of


@pytest.fixture
def blocks(load):
    """A function from a score by recipe to the plans of a study, from the first to the last."""
    pytest.importorskip("optuna")

    def of(score, **change):
        plan = make_plan(load(**change), FakeRunner())
        plans = [plan]
        while (plan := next_block(results(plan, score), FakeRunner())) is not None:
            plans.append(plan)
            assert len(plans) < 20
        return plans

    return of


def results(plan, score):
    """Return a plan with made-up results."""
    return made_up_results(plan, lambda arm, seed: score(plan.arm(arm).recipe))


def hill(recipe):
    """Return a score that is best at a learning rate of 1e-4 and a low bound."""
    rate = recipe.optimizer.learning_rate
    return 0.7 - 0.1 * abs(rate - 1e-4) / 1e-3 - 0.2 * recipe.clip.high


def test_the_same_records_give_the_same_trials(blocks):
    """Plans are equal to the last digit when everything is asked again, and survive the store."""
    plans = blocks(hill)
    assert plans == blocks(hill)
    assert [len(p.ranking.trials) for p in plans] == [0, 4, 8, 12, 12]
    assert len({p.fingerprint for p in plans}) == 5
    assert {p.origin for p in plans} == {"", plans[0].fingerprint}
    assert all(PLAN.validate_json(PLAN.dump_json(p)) == p for p in plans)


def test_candidates_have_equal_budgets_between_the_same_bounds(blocks):
    """As many trials, the untuned setting first, all within the declared ranges."""
    *_, plan = blocks(hill)
    for row, untuned in zip(plan.ranking.candidates, plan.ranking.untuned, strict=True):
        trials = [t for t in plan.ranking.trials if t.candidate == row.label]
        assert [t.number for t in trials] == [1, 2, 3, 4, 5, 6]
        assert trials[0].values == {"optimizer.learning_rate": untuned.optimizer.learning_rate, "clip.high": 0.2}
        for t in trials:
            assert 1e-5 <= t.values["optimizer.learning_rate"] <= 1e-3
            assert 0.2 <= t.values["clip.high"] <= 0.4
    assert [r.label for r in plan.ranking.candidates] == ["base", "+ token_level"]
    least, most = runs_between(blocks(hill)[0])
    assert least <= len(plan.all_runs) <= most == 3 + 2 * (6 * 2 + 3)


def test_only_fresh_seeds_enter_tables_of_effects(blocks):
    """The chosen settings are those that ranked first, and no run of the screen counts for them."""
    *_, plan = blocks(hill)
    data = results(plan, hill)
    scores = trial_scores(data)
    best = {
        row.label: max((t for t in plan.ranking.trials if t.candidate == row.label),
                       key=lambda t: (scores[t.candidate, t.number], -t.number))
        for row in plan.ranking.candidates
    }  # fmt: skip
    assert [(r.label, r.arm) for r in plan.rows] == [(f"{label}, tuned", t.arm) for label, t in best.items()]
    assert {run.seed for run in plan.ranking.runs} == {SEED, SEED + 1}
    assert all(run.seed < SEED for run in plan.runs)
    analysis = Analysis(data)
    assert all(set(analysis.values(row.arm, analysis.score)) == {0, 1, 2} for row in plan.rows)
    report = build_report(data)
    assert report.complete
    tables = {t.key: t for t in report.tables}
    screen, confirmed = tables["lr.screen"], tables["lr.score"]
    assert {r.label for r in confirmed.rows} == {"base, tuned", "+ token_level, tuned"}
    assert len(screen.rows) == 12
    assert all(c.low is None and c.p is None and not c.bold for r in screen.rows for c in r.cells)
    assert sum(c.text == "confirmed" for r in screen.rows for c in r.cells) == 2
    assert any("ped_anova" in note and "not an attribution" in note for note in screen.notes)


def test_a_report_before_the_end_says_so(blocks):
    """Whatever has come, the report is incomplete until the confirmation."""
    for plan in blocks(hill)[:-1]:
        report = build_report(results(plan, hill))
        assert not report.complete
        assert "screen: " in report.status


def test_a_failed_trial_is_never_chosen(blocks, load):
    """A candidate of which every trial failed has no row; the other is confirmed all the same."""

    def failing(plan):
        data = results(plan, hill)
        lost = {t.arm for t in plan.ranking.trials if t.candidate == "base" or t.number != 2}
        runs = tuple(type(r)(**{**vars(r), "outcome": "failed"}) if r.arm in lost else r for r in data.screened)
        return type(data)(**{**vars(data), "screened": runs})

    plan = make_plan(load(), FakeRunner())
    while (found := next_block(failing(plan), FakeRunner())) is not None:
        plan = found
    (row,) = plan.rows
    (second,) = (t for t in plan.ranking.trials if (t.candidate, t.number) == ("+ token_level", 2))
    assert (row.label, row.arm, row.parent) == ("+ token_level, tuned", second.arm, None)
    (table,) = (t for t in build_report(failing(plan)).tables if t.key == "lr.screen")
    assert any(note.startswith("Not confirmed") and note.endswith(": base.") for note in table.notes)


def test_another_seed_or_sampler_tries_something_else(blocks):
    """The rule is part of the plan, and decides about the trials."""
    plans = [
        blocks(hill, old="parallel: 2", new=f"parallel: 2\n    {more}")[-1] for more in ("seed: 1", "sampler: random")
    ]
    tried = [{(t.candidate, *t.values.values()) for t in p.ranking.trials} for p in (*plans, blocks(hill)[-1])]
    assert tried[0] != tried[1] != tried[2] != tried[0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("low: 0.2, high: 0.4", "low: 0.4, high: 0.2", r"clip.high.high: `low` must be below `high`"),
        ("low: 0.2,", "low: -0.2,", r":8:94: designs.lr.over.clip.high.low: .*must be"),
        ("clip.high: {", "clip.hihg: {", r":8:77: designs.lr.over.clip.hihg: .*Did you mean `high`"),
        ("clip.high: {", "schedule.steps: {", r"schedule.steps.low: expects a whole number"),
        ("    trials: 6\n", "", r"designs.lr: `trials` is missing"),
        ("sampler: tpe", "", None),
        ("parallel: 2", "sampler: grid", r"`grid` is not allowed. .*Allowed: `tpe`, `random`"),
        ("{n: 3}", "{min: 3, max: 5, until: decided}", r":13:8: seeds: a search confirms on a stated number of seeds"),
        ("samples: 1}", "samples: 1, primary: eval/heldout/length_mean}", r"evaluate.primary: a search needs a metric"),
        ("seeds: {n", "  again: {kind: search, over: {clip.low: {low: 0.1, high: 0.2}}, trials: 2}\nseeds: {n",
         r":13:3: designs.again: a study has one search, and `lr` is one"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_its_place(load, old, new, message):
    """File, line, column, and what is allowed."""
    if message is None:
        assert load(old, new).spec.designs["lr"].sampler == "tpe"
        return
    with pytest.raises(StudyFileError, match=message):
        load(old, new)


def test_without_optuna_the_user_is_told_what_to_install(load, monkeypatch):
    """Before anything is run; a study without a search does not need it."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(MissingExtra, match=re.escape(install_command("search"))):
        refuse_without_optuna(make_plan(load(), FakeRunner()))
    other = TEXT[TEXT.index("designs:") : TEXT.index("seeds: {n")]
    refuse_without_optuna(make_plan(load(other, "designs: {solo: {kind: add_one}}\n"), FakeRunner()))


def test_settings_are_drawn_as_parallel_coordinates(blocks):
    """Each arm has a line a trial; it crosses each axis at its value's place in the range, the best one last."""
    plan = blocks(hill)[-1]
    data = results(plan, hill)
    drawn = next(f for f in build_report(data).figures if f.key == "lr.search")
    assert [p.title for p in drawn.parallels] == ["base", "+ token_level"]
    scores = trial_scores(data)
    known = [s for s in scores.values() if s is not None]
    for plot in drawn.parallels:
        trials = {f"trial {t.number}": t for t in plan.ranking.trials if t.candidate == plot.title}
        assert [a.label for a in plot.axes] == ["optimizer.learning_rate", "clip.high", "held-out accuracy"]
        assert {s.label for s in plot.settings} == trials.keys()
        for line in plot.settings:
            trial = trials[line.label]
            rate, high = trial.values["optimizer.learning_rate"], trial.values["clip.high"]
            reached = scores[trial.candidate, trial.number]
            places = (math.log(rate / 1e-5) / math.log(100), (high - 0.2) / 0.2,
                      (reached - min(known)) / (max(known) - min(known)))  # fmt: skip
            assert line.places == pytest.approx(places, abs=1e-5)
        assert [s.chosen for s in plot.settings] == [False] * 5 + [True]
        assert plot.settings[-1].places[-1] == max(s.places[-1] for s in plot.settings)
        assert f"Best, {plot.settings[-1].label}: " in plot.alt
    assert [f.title for f in drawn.forests] == [f"{label}: importance" for label in plan.ranking.importance]
    for bars, shares in zip(drawn.forests, plan.ranking.importance.values(), strict=True):
        assert {i.label: i.value for i in bars.intervals} == pytest.approx(dict(shares))


def test_a_sentence_names_the_path_that_mattered_most_or_how_to_ask(blocks):
    """With Optuna's evaluator: its path and share, and that few trials are too few; without: how to name one."""
    plan = blocks(hill)[-1]
    found = [t for t in build_report(results(plan, hill)).summary if t.startswith("Search")]
    assert len(found) == 2
    for text, (label, shares) in zip(found, plan.ranking.importance.items(), strict=True):
        path = max(shares, key=shares.get)
        assert f"for `{label}`: `{path}` mattered most" in text
        assert f"with {100 * shares[path]:.0f}% of the importance (Optuna's ped_anova, no test)" in text
        assert "6 trials are too few" in text
    plain = blocks(hill, old="    importance: ped_anova\n")[-1]
    (text,) = (t for t in build_report(results(plain, hill)).summary if t.startswith("Search"))
    assert "`importance: ped_anova`" in text


def test_paths_of_trials_that_tie_cannot_be_rated(blocks):
    """The evaluator was named and has nothing to rate: the sentence does not ask for what the design has."""
    plan = blocks(lambda _: 0.5)[-1]
    (text,) = (t for t in build_report(results(plan, lambda _: 0.5)).summary if t.startswith("Search"))
    assert text == "Search `lr`: which path mattered can't be rated, because the scores of its trials tie."


def test_a_trial_without_a_score_ends_before_the_last_axis(blocks):
    """Its line is dotted and has no point on the axis of the score; the plot is drawn all the same."""
    plan = blocks(hill)[-1]
    data = results(plan, hill)
    broken = plan.ranking.trials[0].arm
    screened = tuple(replace(r, outcome="failed") if r.arm == broken else r for r in data.screened)
    drawn = next(f for f in build_report(replace(data, screened=screened)).figures if f.key == "lr.search")
    first = drawn.parallels[0].settings[0]
    assert (first.places[-1], first.texts[-1], first.chosen) == (None, "no score", False)
    trace = parallel_figure(drawn.parallels[0])["data"][0]
    assert (len(trace["x"]), trace["line"]["dash"]) == (2, "dot")
