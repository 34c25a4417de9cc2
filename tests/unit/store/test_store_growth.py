"""Plans that have grown from the plan of a study file, as the store finds them again."""

from dataclasses import replace

import pytest

from paribus.study.adaptive import next_interim
from paribus.study.expand import with_fingerprint
from paribus.study.plan import InterimRule
from support.plans import small_plan


@pytest.fixture
def chain():
    """A plan with looks, and those that grow from it."""
    whole = small_plan(seeds=5)
    looks = InterimRule(at=(3, 4, 5), spending="pocock", width=None)
    plans = [
        with_fingerprint(replace(whole, interim=looks, seeds=(0, 1, 2), runs=whole.runs[:6], later=whole.runs[6:]))
    ]
    while (found := next_interim(plans[-1])) is not None:
        plans.append(with_fingerprint(replace(found, origin=plans[0].fingerprint)))
    return plans


def test_a_study_goes_on_with_the_largest_plan_that_was_submitted(store, chain):
    """Whatever was submitted last; a plan that grew from another file's does not count."""
    assert store.latest_version(chain[0]) == chain[0]
    for plan in (chain[0], chain[1], chain[0]):
        store.add_study(plan)
    assert store.latest_version(chain[0]) == chain[1]
    other = with_fingerprint(replace(chain[0], margin=0.5))
    assert store.latest_version(other) == other
    store.add_study(chain[2])
    assert store.latest_version(chain[0]) == chain[2]


def test_a_grown_study_has_the_new_terms_of_its_file(store, chain):
    """A raised budget counts for what has grown, and for what will grow."""
    for plan in chain[:2]:
        store.add_study(plan)
    raised = replace(chain[0], gpu_hours=7.0, question="Why?")
    study = store.add_study(store.latest_version(raised))
    assert (study.plan.look, study.plan.gpu_hours, study.plan.question) == (2, 7.0, "Why?")
    assert store.budget(raised.study, "gpu").cap == 7.0 * 3600
    assert next_interim(study.plan).gpu_hours == 7.0


def test_a_grown_plan_shares_the_runs_before(store, chain):
    """No run is made twice; the new ones are queued behind."""
    first, second = store.add_study(chain[0]), store.add_study(chain[1])
    before, after = store.runs_of(first.id), store.runs_of(second.id)
    assert [r.id for r in after[: len(before)]] == [r.id for r in before]
    assert len(after) == len(before) + 2
