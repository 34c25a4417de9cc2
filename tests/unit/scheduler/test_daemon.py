"""What a scheduler does when a study that it serves is submitted again."""

from dataclasses import replace

import pytest

from paribus.contract import Resources
from paribus.errors import TooLarge
from paribus.scheduler import daemon
from paribus.scheduler.adaptive import Adaptive
from paribus.scheduler.daemon import HomeLoop
from paribus.scheduler.scheduler import Ending
from paribus.store.store import Store
from support.lines import Lines
from support.plans import small_plan


class FakeScheduler:
    """Serves one study; what asks for more than two cores is too large."""

    interrupted = False
    idle = False
    pause = True

    def __init__(self, study):
        self.studies = {study.id: study}
        self.asked = []
        self.out_of_budget = self.has_active = False

    def affords(self, name):
        """Allow whatever is asked for, unless a test says otherwise."""
        return not self.out_of_budget

    def has_attempts(self, name):
        """Return whether attempts are in flight, as a test says."""
        return self.has_active

    def drop(self, study_id):
        """Serve it no more."""
        del self.studies[study_id]

    def need(self, study):
        """Ask for nothing."""

    def take_up(self, study):
        """Take over what is new, or refuse it."""
        self.asked.append(study.plan.resources)
        if (study.plan.resources.cpus or 0) > 2:
            raise TooLarge("9 CPU cores", "this machine has 2", "Change `resources`.")
        self.studies[study.id] = study


class NoReports:
    """Nothing is asked for."""

    asked = frozenset()


@pytest.fixture
def site(tmp_path):
    """Return a store, a function that submits again, a scheduler, a function that looks, and what was said."""
    now = [1000.0]
    with Store.open(tmp_path, clock=lambda: now[0]) as store:

        def submit(plan, **terms):
            now[0] += 1
            return store.add_study(plan, **terms)

        scheduler, lines = FakeScheduler(submit(small_plan())), Lines()
        made = HomeLoop(store, scheduler, lines, Adaptive(), None, NoReports(), until_idle=False)
        yield store, submit, scheduler, made._find_studies, lines.said


def test_what_was_edited_counts_at_the_next_look(site):
    """Priority, weight and resources, each told once; a study that nobody submitted again is left alone."""
    _, submit, scheduler, look, said = site
    look()
    assert (scheduler.asked, said) == ([], [])
    submit(small_plan(resources=Resources(cpus=1)), priority=3)
    look()
    look()
    assert scheduler.asked == [Resources(cpus=1)]
    assert said == ["small: priority 3, weight 1 from now on", "small: each run holds 1 CPU core from now on"]
    submit(replace(small_plan(), question="Does it matter?"))
    look()
    assert said[2:] == ["small: each run holds what the engine gives from now on"]


def test_what_never_fits_pauses_the_study_once(site):
    """It goes on when it was mended and tried again."""
    store, submit, scheduler, look, _ = site
    study = submit(small_plan(resources=Resources(cpus=9)))
    look()
    look()
    assert len(scheduler.asked) == 1
    assert "9 CPU cores" in store.paused(study.id)
    submit(small_plan(resources=Resources(cpus=2)))
    store.retry("small", author="me", reason="mended")
    look()
    assert scheduler.studies[study.id].plan.resources == Resources(cpus=2)


@pytest.mark.parametrize("error", [ModuleNotFoundError("No module named 'trainer'"), AttributeError("\0")])
def test_a_runner_whose_code_is_broken_pauses_its_study_alone(site, monkeypatch, error):
    """The code of a runner is anybody's: whatever it raises is told, and the others are served."""
    store, submit, scheduler, look, said = site

    def broken(name):
        raise error

    study = submit(small_plan("broken"))
    monkeypatch.setattr(daemon, "load_runner", broken)
    look()
    assert store.paused(study.id).startswith(f"the runner `fake` cannot be used: {type(error).__name__}: ")
    assert [s.name for s in scheduler.studies.values()] == ["small"]
    assert said[0].startswith("broken: paused: ")


def test_a_plan_that_replaces_another_and_cannot_be_afforded_is_told_once_nothing_is_in_flight(site):
    """Else nobody would ever hear why it is not trained; what is in flight may leave enough of the budget."""
    store, submit, scheduler, look, said = site
    made = look.__self__
    made._alerts[store.study("small").id] = None
    submit(small_plan(steps=9))
    scheduler.out_of_budget = scheduler.has_active = True
    look()
    made._is_done({})
    assert said == ["small: replaced by a plan that was submitted later"]
    scheduler.has_active = False
    for _ in range(2):
        look()
        made._is_done({})
    assert said[1:] == ["small: budget: 4 queued", "small: raise its budget in the study file, and submit it again"]
    assert [(e.study.name, e.ending) for e in made.ended] == [("small", Ending.BUDGET)]
