"""A session puts the parts together: without MLflow, with a home folder that is taken, with a budget."""

import json
import os

import pytest

from paribus.errors import StoreError
from paribus.schedule import session
from paribus.schedule.ask import ask
from paribus.schedule.office import Office, answer_to
from paribus.schedule.scheduler import Ending
from paribus.schedule.session import Settings, run_study
from paribus.store.states import RunState
from paribus.store.store import Store
from paribus.testing.plans import small_plan


class Lines:
    """A display that remembers."""

    def __init__(self):
        self.said = []

    def say(self, line):
        """Remember a line."""
        self.said.append(line)

    def show(self, view):
        """Show nothing."""


@pytest.fixture
def no_mlflow(monkeypatch):
    """An installation without the extra."""
    monkeypatch.setattr(session, "mlflow_is_installed", lambda: False)


def test_without_mlflow_a_study_runs_and_the_user_is_told_once(no_mlflow, tmp_path, monkeypatch):
    """The mirror is optional; what to install is said."""
    monkeypatch.setenv("PARIBUS_FAKE", json.dumps({}))
    display = Lines()
    summary = run_study(small_plan(), Settings(home=tmp_path / "home", engine="inline"), display)
    assert (summary.ending, summary.trained, summary.mirror) == (Ending.COMPLETE, True, "")
    assert summary.counts == {RunState.SUCCEEDED: 4}
    assert sum("pip install 'paribus[mlflow]'" in line for line in display.said) == 1
    assert not (tmp_path / "home" / "shipper.log").exists()


def test_a_home_folder_that_is_taken_is_told_with_the_process(no_mlflow, tmp_path):
    """Two schedulers would write one SQLite file."""
    with session.only_one(tmp_path), pytest.raises(StoreError, match=f"process {os.getpid()}"):
        run_study(small_plan(), Settings(home=tmp_path), Lines())


def test_the_office_answers_over_its_socket(tmp_path):
    """A heartbeat is taken, a stale one is told that the run is lost, nonsense gets no answer and does no harm."""
    with Store.open(tmp_path) as store:
        study = store.add_study(small_plan())
        claim = store.claim(study.id, engine="test", worker="here")
        office = Office(store)
        try:
            request = {"run": claim.run_id, "token": claim.token}
            assert ask(office.address, {**request, "do": "start"}) == {"ok": True, "lease_s": 60.0, "cancel": False}
            assert ask(office.address, {**request, "token": 0, "do": "renew"})["lost"] is True
            assert ask(office.address, {**request, "do": "dance"})["ok"] is False
            with pytest.raises(ValueError, match="Expecting value"):
                ask(office.address, {"do": "renew"})
            assert ask(office.address, {**request, "do": "renew"})["ok"] is True
        finally:
            office.close()
        with pytest.raises(OSError, match="No such file"):
            ask(office.address, {**request, "do": "renew"})


@pytest.mark.parametrize("kind", ["program", "infrastructure"])
def test_the_office_passes_reports_on(tmp_path, kind):
    """What a supervisor reports is in the store."""
    with Store.open(tmp_path) as store:
        study = store.add_study(small_plan(arms=1, seeds=1))
        claim = store.claim(study.id, engine="test", worker="here")
        request = {"run": claim.run_id, "token": claim.token, "reason": "why"}
        assert answer_to(store, {**request, "do": "fail", "kind": kind, "signature": "s"}) == {"ok": True}
        run = store.runs_of(study.id)[0]
        assert (run.program_failures, run.infrastructure_failures) == (kind == "program", kind != "program")
        assert answer_to(store, {**request, "do": "release", "wait_s": 0.0})["lost"] is True
