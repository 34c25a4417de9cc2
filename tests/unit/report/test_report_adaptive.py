"""What a declared rule asks for: whole blocks, the same again when asked again, nothing once it is enough."""

from dataclasses import replace

import pytest

from paribus.report.adaptive import BIASED, enough
from paribus.report.adaptive import next_block as next_block_of
from paribus.report.analysis.analysis import Analysis
from paribus.report.build import build_report
from paribus.stats.multiple_testing import ALPHA
from paribus.study.expand import with_fingerprint
from paribus.study.plan import InterimRule
from paribus.testing.fake_runner import FakeRunner
from support.studies import Shape, made_up_study

DECIDED = InterimRule(at=(3, 5, 8), spending="pocock", width=None)


def next_block(data):
    """Return the next plan of a study that needs no new fingerprints."""
    return next_block_of(data, FakeRunner())


def looking(looks=DECIDED, *, at=3, noise=1.0, margin=None, outcomes=()):
    """Return a made-up study of eight seeds that stands at a look."""
    whole = made_up_study(Shape(seeds=8, designs=("add_one",), noise=noise, outcomes=outcomes))
    count = at * len(whole.plan.arms)
    plan = replace(
        whole.plan, interim=looks, margin=margin, seeds=whole.plan.seeds[:at], runs=whole.plan.runs[:count],
        later=whole.plan.runs[count:],
    )  # fmt: skip
    return replace(whole, plan=with_fingerprint(plan), runs=whole.runs[:count])


def test_a_look_that_is_not_enough_asks_for_whole_blocks():
    """All arms get the new seeds, in queue order; asked again the answer is the same plan."""
    data = looking()
    plan = next_block(data)
    assert plan == next_block(data)
    assert (len(plan.seeds), plan.look, plan.origin) == (5, 2, data.plan.fingerprint)
    assert plan.runs[: len(data.plan.runs)] == data.plan.runs
    assert {(r.arm, r.seed) for r in plan.runs} == {(a.key, s) for a in plan.arms for s in range(5)}
    assert (*plan.runs, *plan.later) == (*data.plan.runs, *data.plan.later)
    assert plan.fingerprint != data.plan.fingerprint


@pytest.mark.parametrize("outcome", ["pending", "cancelled"])
def test_open_or_cancelled_runs_ask_for_nothing(outcome):
    """A block is complete before it is looked at, and a rule does not bring back what somebody cancelled."""
    assert next_block(looking(outcomes=(("base", 1, outcome),))) is None


def test_a_failed_run_is_an_outcome():
    """It is counted as everywhere, and the study goes on."""
    assert next_block(looking(outcomes=(("base", 1, "failed"),))) is not None


def test_the_last_look_is_the_last():
    """No more seeds than declared, whatever the results."""
    data = looking(at=8)
    assert not enough(Analysis(data))
    assert next_block(data) is None
    assert "Ended at interim analysis 3 of 3, at 8 seeds, the last" in build_report(data).summary[-1]


def test_a_width_that_is_reached_ends_the_study():
    """The rule reads the interval that is printed, at the level of the look."""
    widest = max(2 * e.estimate.half_width for e in Analysis(looking(at=5)).to_base.values())
    for factor, ended in ((1.01, True), (0.99, False)):
        data = looking(InterimRule(at=(3, 5, 8), spending="pocock", width=factor * widest), at=5)
        assert enough(Analysis(data)) is ended
        assert (next_block(data) is None) is ended


def test_decided_takes_every_arm():
    """Separated after correction or equivalent within the margin, each at this look's share of the 5%."""
    data = looking(at=5, margin=10.0)
    assert enough(Analysis(data))
    assert not enough(Analysis(looking(at=5)))


def test_the_report_prints_what_the_look_allows():
    """Each interval is wider, each p larger than without looks, and the tables state the declared rule."""
    data = looking(at=5, noise=0.3)
    alone = replace(data, plan=replace(data.plan, interim=None))
    look, free = Analysis(data), Analysis(alone)
    assert 0 < look.share < 1
    for arm, effect in look.to_base.items():
        other = free.to_base[arm].estimate
        assert effect.estimate.half_width > other.half_width
        assert effect.estimate.p == pytest.approx(min(1, other.p / look.share))
        assert effect.confirmed == (effect.p_adjusted < ALPHA)
    (table,) = (t for t in build_report(data).tables if t.key == "solo.score")
    assert "looks at 3, 5 and 8 seeds an arm, Pocock spending" in table.notes[-1]
    assert BIASED in table.notes[-1]
