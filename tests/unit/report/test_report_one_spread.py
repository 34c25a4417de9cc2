"""Arms counted under one spread, the check of that assumption, and the declared rule for pairs."""

from __future__ import annotations

import random
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.one_spread import one_spread
from paribus.report.build import build_report
from paribus.report.effect_words import claimed
from paribus.report.inputs import StudyData
from support.studies import Shape, made_up_study

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
from claims import null_study

SHAPE = Shape(seeds=3, steps=4, every=1, problems=1000)
COUNT = re.compile(
    r"Shown to differ from the base: (\d+) of 10 arms if all arms share one spread, (\d+) of 10 without that\."
)


def one_arm_moved(seed: int, *, shared: float = 0.0, seeds: int = 3) -> StudyData:
    """A study of ten arms of which the first moves the score by 0.15, five standard deviations."""
    shape = made_up_study(replace(SHAPE, seeds=seeds))
    return null_study(shape, random.Random(seed), shared=shared, moved=0.15)


@pytest.mark.slow
def test_the_answer_counts_arms_with_and_without_one_spread() -> None:
    """Over studies in which one arm differs, the count finds it much more often than Holm over paired t."""
    found, alone = 0, 0
    for seed in range(12):
        data = one_arm_moved(seed)
        analysis, answer = Analysis(data), build_report(data).answer
        whole = one_spread(analysis)
        assert whole is not None
        said = COUNT.search(answer)
        assert (said is not None) is bool(whole.by_arm)
        if said:
            claims = sum(e is not None and claimed(e, analysis.levels.score) for e in analysis.to_base.values())
            assert (int(said[1]), int(said[2])) == (len(whole.different), claims)
        arm = data.plan.arms[1].key
        effect = analysis.to_base[arm]
        found += arm in whole.different
        alone += effect is not None and claimed(effect, analysis.levels.score)
    assert found >= alone + 4


def test_p_with_one_spread_is_scipys() -> None:
    """Of a study whose seeds are not paired, without evaluation noise: scipy's Dunnett, which integrates otherwise."""
    data = null_study(made_up_study(replace(SHAPE, paired=False)), random.Random(2), moved=0.1)
    data = replace(data, runs=tuple(replace(r, evaluations=()) for r in data.runs))
    analysis = Analysis(data)
    whole = one_spread(analysis)
    assert whole is not None
    control, *arms = ([*analysis.values(a.key, analysis.score).values()] for a in data.plan.arms)
    want = stats.dunnett(*arms, control=control, rng=np.random.default_rng(1)).pvalue
    assert whole.spread.equal
    assert [e.p for e in whole.by_arm.values()] == pytest.approx(list(want), abs=3e-3)


def test_the_check_is_printed_and_decides() -> None:
    """An arm 30 times as noisy takes the count away; the first screen says by how much spreads differ."""
    data = null_study(made_up_study(SHAPE), random.Random(3), noisy=lambda place: 30.0 if place == 2 else 1.0)
    model = build_report(data)
    assert not COUNT.search(model.answer)
    assert re.search(r"No test with one spread for all arms: spreads of arms differ by up to \d", model.totals[0])
    assert "(25% needed)" in model.totals[0]
    assert "If all arms share one spread" not in " ".join(model.summary)


def test_a_lost_run_is_why_there_is_no_count() -> None:
    """With other seeds in one arm there is no count, and the first screen says why."""
    data = one_arm_moved(0)
    lost = tuple(
        replace(r, outcome="failed", lines=(), evaluations=()) if i == 4 else r for i, r in enumerate(data.runs)
    )
    model = build_report(replace(data, runs=lost))
    assert not COUNT.search(model.answer)
    assert "No test with one spread for all arms: every arm needs the same seeds" in model.totals[0]
    assert "seeds correlate by" in model.totals[0]


@pytest.mark.parametrize(("shared", "pairs"), [(0.0, False), (4.0, True)])
def test_pairs_where_the_declared_rule_says_so(shared: float, pairs: bool) -> None:
    """The rule decides by the pooled correlation, for every measure and table; without it seeds are always paired."""
    data = one_arm_moved(5, shared=shared, seeds=5)
    rule = replace(data, plan=replace(data.plan, pairing="where_it_helps"))
    assert Analysis(data).paired
    assert Analysis(rule).paired is pairs
    model = build_report(rule)
    assert (
        "paired by seed, by the declared rule" if pairs else "not paired (Welch), by the declared rule"
    ) in model.totals[0]
    assert model.provenance["tests"].startswith("paired t by seed" if pairs else "Welch t")
    assert ("pairs" in [t.key for t in model.tables]) is pairs
    arm = data.plan.arms[1].key
    effect = Analysis(rule).to_base[arm]
    assert effect is not None
    values = [[*Analysis(rule).values(a, Analysis(rule).score).values()] for a in (arm, data.plan.base)]
    want = stats.ttest_rel(*values) if pairs else stats.ttest_ind(*values, equal_var=False)
    assert effect.estimate.p == pytest.approx(float(want.pvalue), rel=1e-6)
