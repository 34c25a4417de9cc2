"""What the supervisor watches a run for, and the status of a run."""

import math

from hypothesis import given
from hypothesis import strategies as st

from paribus.health.finding import Finding, worst
from paribus.health.liveness import DEAD_AFTER_S, dead_run, nan
from paribus.run_folder.folder import MetricLine


def line(step, **values):
    """Return a metric line; ``_`` stands for ``/``."""
    return MetricLine(step=step, time_ms=0, values={k.replace("_", "/", 1): v for k, v in values.items()})


def test_a_canonical_metric_that_is_not_finite_is_critical_from_its_first_step():
    """The onset is the first such step, the evidence names the metric."""
    found = nan([line(1, policy_entropy=1.0), line(2, policy_entropy=math.nan), line(3, policy_entropy=math.inf)])
    assert (found.state, found.step_onset) == ("critical", 2)
    assert "policy/entropy" in found.evidence
    assert found.remedies


def test_a_metric_of_the_users_own_may_be_anything():
    """Only canonical metrics have a meaning that NaN contradicts."""
    assert nan([line(1, my_own=math.nan)]).state == "ok"


def test_without_lines_nothing_is_known():
    """No verdict from no data."""
    assert nan([]).state == "unknown"


@given(st.floats(0, 1e5), st.lists(st.floats(0, 1e3), max_size=9))
def test_a_run_is_dead_after_ten_minutes_or_ten_median_steps(silent, seconds):
    """The longer of the two counts."""
    median = sorted(seconds)[len(seconds) // 2] if len(seconds) % 2 else None
    found = dead_run(silent_s=silent, step_seconds=seconds)
    if silent <= DEAD_AFTER_S:
        assert found.state == "ok"
    elif median is not None:
        assert (found.state == "critical") == (silent > max(DEAD_AFTER_S, 10 * median))


def test_the_status_of_a_run_is_its_worst_finding():
    """Critical beats all; not applicable says nothing."""
    of = [Finding(detector="a", state=s) for s in ("ok", "critical", "warn")]
    assert worst(of) == "critical"
    assert worst([Finding(detector="a", state="not_applicable")]) == "unknown"
