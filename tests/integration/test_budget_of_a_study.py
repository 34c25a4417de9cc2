"""A budget that is too small, with real processes: runs end with a checkpoint, and a raised budget lets them go on."""

import json

import pytest
from click.testing import CliRunner

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.cli import status
from paribus.scheduler import serve
from paribus.scheduler.scheduler import Ending
from paribus.scheduler.serve import Settings, run_study
from paribus.store.states import RunState
from paribus.store.store import Store
from support.lines import Lines
from support.plans import small_plan


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder, on a machine with one pretended GPU."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    monkeypatch.setattr(serve, "mlflow_is_installed", lambda: False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    return tmp_path / "home"


def budget_of(home):
    """Return what `paribus status` tells of the budget, as data and as text."""
    say = [CliRunner().invoke(status.command, ["small", "--home", str(home), *more]) for more in (["--json"], [])]
    assert [s.exit_code for s in say] == [0, 0], say
    (budget,) = json.loads(say[0].output)["budget"]
    return budget, next(line for line in say[1].output.splitlines() if line.startswith("GPU-hours: "))


@pytest.mark.slow
def test_a_study_ends_at_its_budget_and_goes_on_when_it_is_raised(home, monkeypatch):
    """What is in flight is charged by its share of the GPU; nothing is lost and nothing is counted as a failure."""
    monkeypatch.setenv("PARIBUS_FAKE", json.dumps({"step_s": 0.05}))
    settings, display = Settings(home=home, engine="local", slots=2), Lines()
    cap = 2.0 / 3600
    first = run_study(small_plan(steps=1000, gpu_hours=cap), settings, display)
    assert first.ending is Ending.BUDGET
    assert first.counts == {RunState.QUEUED: 4}
    assert any("the budget is used up" in line and "GPU-hours used" in line for line in display.said)
    budget, line = budget_of(home)
    assert cap <= budget["spent"] <= cap + 2 * 0.5 * 90 / 3600
    assert (budget["wasted"], budget["reserved"], budget["allows_another"]) == (0.0, 0.0, False)
    assert "too little left" in line

    monkeypatch.setenv("PARIBUS_FAKE", json.dumps({}))
    second = run_study(small_plan(steps=1000, gpu_hours=1.0), settings, display)
    assert (second.ending, second.counts) == (Ending.COMPLETE, {RunState.SUCCEEDED: 4})
    after, line = budget_of(home)
    assert after["spent"] == after["forecast"] > budget["spent"]
    assert line.endswith("at most 1")
    with Store.open(home) as store:
        assert audit(snapshot(store)) == ()
