"""The list of studies."""

from __future__ import annotations

import pytest

from paribus.store.states import RunState
from paribus.store.store import Store
from paribus_dashboards.data.home import Home
from paribus_dashboards.studies.listing import best_of, rows, status_of
from support.plans import small_plan


def test_a_study_has_its_status_best_arm_date_and_runs(home):
    """The best arm has the highest mean newest score over its runs that have ended."""
    (row,) = rows(home, None)
    assert (row.name, row.status, row.done, row.runs) == ("made-up", "running", 7, 9)
    study = home.study("made-up")
    ended = [r for r in study.runs if r.recorded]
    metric = study.record.plan.evaluate.primary_metric
    newest = {r.fingerprint: home.points(r, metric, least=32)[-1][1] for r in ended}
    means = {}
    for label in {r.label for r in ended}:
        own = [newest[r.fingerprint] for r in ended if r.label == label]
        means[label] = (sum(own) / len(own), len(own))
    best = max(means, key=means.get)
    assert (row.best.arm, row.best.value, row.best.n) == (best, pytest.approx(means[best][0]), means[best][1])
    assert row.submitted.endswith("UTC")


def test_the_newest_study_comes_first(new_folder):
    """By the time of submission, whatever its name."""
    folder = new_folder()
    with Store.open(folder, clock=lambda: 4e9) as store:
        store.add_study(small_plan("aaa", arms=2, seeds=1))
    with Store.open(folder, clock=lambda: 5e9) as store:
        store.add_study(small_plan("zzz", arms=2, seeds=1))
    home = Home(folder)
    found = rows(home, None)
    assert [r.name for r in found] == ["zzz", "aaa", "made-up"]
    assert found[0].status == "waiting"
    assert found[0].best.n == 0
    home.close()


def test_a_list_never_takes_long(new_folder):
    """Without time the scores are left for the next request, which asks again; what is read stays."""
    home = Home(new_folder())
    assert rows(home, -1)[0].best is None
    whole = rows(home, None)
    assert whole[0].best is not None
    assert rows(home, -1) == whole
    home.close()


def test_an_arm_counts_with_its_runs_that_have_a_result(home):
    """Without one there is no best arm."""
    assert best_of(home.study("made-up"), {}).n == 0


@pytest.mark.parametrize(
    ("counts", "paused", "wanted"),
    [
        ({RunState.SUCCEEDED: 3}, False, ("done", False)),
        ({RunState.SUCCEEDED: 3, RunState.QUARANTINED: 1, RunState.FAILED: 1}, False, ("done, 2 failed", True)),
        ({RunState.CANCELLED: 2}, False, ("cancelled", False)),
        ({RunState.QUEUED: 2, RunState.RUNNING: 1}, False, ("running", False)),
        ({RunState.QUEUED: 2, RunState.FAILED: 1}, False, ("waiting, 1 failed", True)),
        ({RunState.QUEUED: 2}, True, ("paused", True)),
    ],
)
def test_a_status_is_a_word_and_what_failed(counts, paused, wanted):
    """What needs a look is marked."""
    assert status_of(counts, paused=paused) == wanted
