"""What a scheduler does when a study that it serves is submitted again."""

import json
from contextlib import contextmanager
from dataclasses import replace

import pytest
from click.testing import CliRunner

from paribus.cli.scheduler import command
from paribus.contract import Resources
from paribus.errors import TooLarge
from paribus.scheduler import daemon, serve
from paribus.scheduler.adaptive import Adaptive
from paribus.scheduler.daemon import HomeLoop, serve_home
from paribus.scheduler.scheduler import Ending
from paribus.scheduler.serve import Settings, run_study
from paribus.store import database
from paribus.store.database import Unreachable
from paribus.store.states import RunState
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


def test_a_study_that_was_deleted_is_no_longer_looked_at(site, monkeypatch):
    """Another one may be deleted between the look at the list and the look at its plan."""
    store, submit, scheduler, look, said = site
    store.cancel("small")
    store.delete_study(store.what_goes("small"), "me")
    look()
    other = submit(small_plan("other"))
    listed = store.summaries()
    store.cancel("other")
    store.delete_study(store.what_goes("other"), "me")
    monkeypatch.setattr(store, "summaries", lambda *_: listed)
    look()
    assert other.id not in scheduler.studies
    assert said == []


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


@pytest.fixture
def quick(monkeypatch):
    """Without MLflow, reports and long waits."""
    monkeypatch.setenv("PARIBUS_FAKE", json.dumps({}))
    monkeypatch.setattr(serve, "mlflow_is_installed", lambda: False)
    monkeypatch.setattr(serve, "LOOK_S", 0.01)
    monkeypatch.setattr(database, "TRIES", 1)
    monkeypatch.setattr(HomeLoop, "_obstacle", lambda self, study: "")
    monkeypatch.setattr(daemon.ReportJobs, "ask", lambda self, study: None)


class Outage:
    """Lets the transactions with these numbers fail, as a server does that is away."""

    def __init__(self, monkeypatch):
        self.count, self.away = 0, range(0)
        begin = database.Database._begin

        @contextmanager
        def beginning(made, options):
            self.count += 1
            if self.count - 1 in self.away:
                raise Unreachable("the server is away.")
            with begin(made, options) as connection:
                yield connection

        monkeypatch.setattr(database.Database, "_begin", beginning)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "scheduler"])
def test_a_database_that_stops_while_a_scheduler_starts_is_waited_for(server, quick, tmp_path, monkeypatch, command):
    """Wherever it stops: one sentence, then the study is trained as if nothing had been."""
    outage = Outage(monkeypatch)
    plan = small_plan(arms=1, seeds=1)

    def start(home):
        outage.count = 0
        settings, display = Settings(home=home, engine="inline"), Lines()
        if command == "run":
            return run_study(plan, settings, display).counts, display.said
        return serve_home(settings, display, reports=tmp_path / "r", until_idle=True)[-1].counts, display.said

    with Store.open(tmp_path) as store:
        for number in (0, 1, 3, 7):
            plan = small_plan(arms=1, seeds=1, steps=number + 1)
            store.add_study(plan)
            outage.away = range(number, number + 2)
            counts, said = start(tmp_path)
            assert counts == {RunState.SUCCEEDED: 1}
            told = sum(line == "the server is away. Trying again; Ctrl-C stops." for line in said)
            assert (number > 3) <= told + 1 <= 3


@pytest.mark.parametrize("ending", [Ending.PAUSED, Ending.BUDGET])
def test_a_service_that_ends_when_idle_names_what_it_leaves(server, quick, tmp_path, monkeypatch, ending):
    """A study that was paused before it started has queued runs: the exit status is 1, and the reason is said."""
    with Store.open(tmp_path) as store:
        study = store.add_study(
            small_plan(arms=1, seeds=2, cpu_hours=None if ending is Ending.PAUSED else 1e-9, run_hours=1.0)
        )
        if ending is Ending.PAUSED:
            store.pause(study.id, "no such data")
    display = Lines()
    settings = Settings(home=tmp_path, engine="inline")
    ended = serve_home(settings, display, reports=tmp_path / "r", until_idle=True)
    assert [(e.study.name, e.ending, e.counts) for e in ended] == [("small", ending, {RunState.QUEUED: 2})]
    assert display.said[-1] == "nothing is left that can be done now"
    assert display.said[-2].startswith("small: 2 runs are left: ")
    monkeypatch.setattr("paribus.cli.scheduler.serve_home", lambda *_, **__: ended)
    assert CliRunner().invoke(command, ["--until-idle", "--home", str(tmp_path)]).exit_code == 1
