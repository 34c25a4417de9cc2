"""`paribus cancel` and `paribus retry`: what they say, and what becomes of a study that is run meanwhile."""

import json
import threading

import pytest
from click.testing import CliRunner

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.cli import cancel, retry, status
from paribus.errors import StoreError
from paribus.scheduler import serve
from paribus.scheduler.home_lock import lock_home, note_trouble
from paribus.scheduler.scheduler import Ending
from paribus.scheduler.serve import Settings, run_study
from paribus.store import attempts
from paribus.store.states import RunState
from paribus.store.store import Store
from support.plans import small_plan


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder, on a machine without MLflow."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    monkeypatch.setattr(serve, "mlflow_is_installed", lambda: False)
    return tmp_path / "home"


def say(module, home, *arguments):
    """Run a command; return its output."""
    result = CliRunner().invoke(module.command, [*arguments, "--home", str(home)])
    if isinstance(result.exception, StoreError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def states(home):
    """Return the states of the runs as `paribus status` shows them."""
    return [r["state"] for r in json.loads(say(status, home, "small", "--json"))["runs"]]


class Display:
    """A display that does something when a line is said."""

    def __init__(self, react=lambda line: None):
        self.react = react

    def say(self, line):
        """React."""
        self.react(line)

    def show(self, view):
        """Show nothing."""


def orders(monkeypatch, *rules, step_s=0.0):
    """Tell the fake runner how to behave."""
    monkeypatch.setenv("PARIBUS_FAKE", json.dumps({"step_s": step_s, "rules": rules}))


def test_a_queued_arm_is_cancelled_and_taken_back(home):
    """By its label or its key; the others are left alone; both commands say what became of how many runs."""
    with Store.open(home) as store:
        store.add_study(small_plan())
    said = say(cancel, home, "small", "arm 1")
    assert "small, arm 1: 2 queued cancelled" in said
    assert "paribus retry small 'arm 1'" in said
    assert states(home) == ["QUEUED", "CANCELLED", "QUEUED", "CANCELLED"]
    assert "2 had ended before" in say(cancel, home, "small", "arm1")
    said = say(retry, home, "small", "arm 1", "--reason", "after all")
    assert "small, arm 1: 2 queued again" in said
    assert "`paribus run`" in said
    assert states(home) == ["QUEUED"] * 4
    assert "nothing has failed or been cancelled" in say(retry, home, "small")


def test_what_is_mistyped_is_told_with_the_nearest_name(home, tmp_path):
    """Neither an arm nor a study nor a home folder is made up."""
    with Store.open(home) as store:
        store.add_study(small_plan())
    for module in (cancel, retry):
        with pytest.raises(StoreError, match=r"no arm `arm 7`.*Did you mean `arm 1`.*Arms: arm 0, arm 1\."):
            say(module, home, "small", "arm 7")
        with pytest.raises(StoreError, match=r"no study `smal`.*Did you mean `small`"):
            say(module, home, "smal")
        with pytest.raises(StoreError, match="there is no store"):
            say(module, tmp_path / "none", "small")
    assert not (tmp_path / "none").exists()


def test_what_has_to_wait_for_a_scheduler_or_a_cluster_is_said(home):
    """The cancellation is recorded at once; who carries it out, and when, is said."""
    with Store.open(home) as store:
        study = store.add_study(small_plan())
        store.claim_many(study.id, 1, gpus=1, pool=None, engine="slurm", worker="/here")
    said = say(cancel, home, "small")
    assert "1 running asked to stop" in said
    assert "when the next `paribus run` or `paribus scheduler` starts here" in said
    with lock_home(home, "paribus run", "slurm"):
        said = say(cancel, home, "small")
        assert "within about ten seconds" in said
        assert "does not answer" not in said
        note_trouble(home, "Slurm does not answer (squeue: no reply in 5 s).")
        said = say(cancel, home, "small")
    waits = "The cancellation is recorded; jobs that wait there are cancelled once it answers."
    assert f"Slurm does not answer (squeue: no reply in 5 s). {waits}" in said


def test_a_study_that_is_cancelled_while_it_is_run_comes_to_its_end(home, monkeypatch):
    """Running attempts write a checkpoint at their next heartbeat, and the session is complete."""
    orders(monkeypatch, {"do": "hang", "at": 2})
    monkeypatch.setattr(attempts, "LEASE_S", 2.0)
    asked = []

    def cancel_soon(line):
        if ": attempt 1" in line and not asked:
            asked.append(threading.Timer(1.0, lambda: asked.append(say(cancel, home, "small"))))
            asked[0].start()

    summary = run_study(small_plan(), Settings(home=home, engine="local", slots=2), Display(cancel_soon))
    assert summary.ending is Ending.COMPLETE
    assert summary.counts == {RunState.CANCELLED: 4}
    assert "2 queued cancelled, 2 running asked to stop" in asked[1]
    with Store.open(home) as store:
        assert audit(snapshot(store, deep=True)) == ()
        assert all(a.outcome == "cancel" for a in store.attempts_of(summary.study.id))


def test_a_broken_set_up_pauses_the_study_and_retry_goes_on(home, monkeypatch):
    """Three arms with one error: nothing more is spent; after it was mended every run gets its result."""
    orders(monkeypatch, {"do": "crash", "at": 1})
    plan, settings = small_plan(arms=6, seeds=2), Settings(home=home, engine="inline")
    summary = run_study(plan, settings, Display())
    assert summary.ending is Ending.PAUSED
    assert "3 arms failed with the same error" in summary.paused
    assert summary.counts[RunState.QUEUED] == 10
    again = run_study(plan, settings, Display())
    assert (again.ending, again.trained, again.counts) == (Ending.PAUSED, False, summary.counts)
    assert f"paused: {summary.paused}" in say(status, home, "small")
    assert "small is paused: 3 arms failed" in say(status, home)
    orders(monkeypatch)
    said = say(retry, home, "small")
    assert "paused" not in say(status, home, "small")
    assert "2 queued again, the pause is lifted" in said
    assert run_study(plan, settings, Display()).counts == {RunState.SUCCEEDED: 12}
    with Store.open(home) as store:
        assert audit(snapshot(store, deep=True)) == ()
