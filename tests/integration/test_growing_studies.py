"""Studies that add runs by a declared rule, through the fake runner: whatever is killed, the same runs once each."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.report.adaptive import grown
from paribus.report.build import build_report
from paribus.report.collect import read_study
from paribus.scheduler import serve
from paribus.scheduler.adaptive import Adaptive
from paribus.scheduler.daemon import serve_home
from paribus.scheduler.scheduler import Ending
from paribus.scheduler.serve import Settings, run_study
from paribus.store.states import RunState
from paribus.store.store import Store
from paribus.study.adaptive import stage_text
from paribus.study.expand import make_plan
from paribus.study.load import load_study
from paribus.testing.fake_runner import FakeRunner
from support.databases import postgresql
from support.lines import Lines

HEAD = """\
study: growing
runner: fake
base: {preset: grpo, set: {schedule.steps: 3, kl: off}}
tricks: {token_level: {aggregation: token_batch}}
evaluate: {every: 1, problems: 20, samples: 2}
"""
SEARCH = """\
designs: {lr: {kind: search, over: {optimizer.learning_rate: {low: 1.0e-4, high: 1.0e-3, log: true}}, trials: 2}}
seeds: {n: 3}
"""
LOOKS = "designs: {solo: {kind: add_one}}\nseeds: {min: 3, max: 5, looks: [3, 4, 5], until: decided}\n"

WITHOUT_MIRROR = """\
from paribus.cli import main
from paribus.scheduler import serve
serve.mlflow_is_installed = lambda: False
main()
"""


class Killed(BaseException):
    """Ends a process without any clearing up that could hide what a kill leaves."""


@pytest.fixture(autouse=True)
def plain(monkeypatch):
    """A store in a file, without a mirror, and runs that take no time."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    monkeypatch.setattr(serve, "mlflow_is_installed", lambda: False)
    monkeypatch.setenv("PARIBUS_FAKE", json.dumps({}))


@pytest.fixture(params=["sqlite", "postgresql"])
def server(request, plain, monkeypatch):
    """Where the store is."""
    if request.param == "sqlite":
        yield
        return
    with postgresql() as url:
        monkeypatch.setenv("PARIBUS_DATABASE_URL", url.render_as_string(hide_password=False))
        yield


def killed_at(monkeypatch, count):
    """Kill the process before it submits a plan for the ``count``-th time."""
    asked, submit = [], Store.add_study

    def add(store, plan):
        asked.append(plan.fingerprint)
        if len(asked) == count:
            raise Killed
        return submit(store, plan)

    monkeypatch.setattr(Store, "add_study", add)


def planned(tmp_path, text):
    """Return the plan of a study file."""
    (tmp_path / "study.yaml").write_text(HEAD + text)
    return make_plan(load_study(tmp_path / "study.yaml"), FakeRunner())


def growing(home):
    """Return settings in which studies grow."""
    return Settings(home=home, engine="inline", adaptive=Adaptive(grown))


def history(home):
    """Return the fingerprints of the plans and of the runs in the store, which must be in order."""
    with Store.open(home) as store:
        assert audit(snapshot(store)) == ()
        studies = sorted(store.studies(), key=lambda s: s.id)
        newest = store.study("growing")
        runs = store.runs_of(newest.id)
        assert {r.token for r in runs} == {1}
        build_report(read_study(store, "growing"))
        return [s.plan.fingerprint for s in studies], [(r.arm, r.seed) for r in runs], newest.plan


@pytest.mark.parametrize(("text", "submits", "count"), [(LOOKS, 3, 10), (SEARCH, 4, 13)], ids=["looks", "search"])
def test_growth_survives_kills_and_is_the_same_again(server, tmp_path, monkeypatch, text, submits, count):
    """A study that was killed before each of its submits has the plans and runs of one that never was."""
    if text is SEARCH:
        pytest.importorskip("optuna")
    plan, settings = planned(tmp_path, text), growing(tmp_path / "killed")
    for nth in (2, *[3] * (submits - 2)):
        with monkeypatch.context() as patch:
            killed_at(patch, nth)
            with pytest.raises(Killed):
                run_study(plan, settings, Lines())
    again = run_study(plan, settings, Lines())
    assert (again.ending, again.counts) == (Ending.COMPLETE, {RunState.SUCCEEDED: count})
    killed = history(settings.home)
    assert (len(killed[0]), len(killed[1])) == (submits, count)
    if not os.environ.get("PARIBUS_DATABASE_URL"):  # a server has the runs already
        run_study(plan, growing(tmp_path / "whole"), Lines())
        assert history(tmp_path / "whole") == killed


def test_a_cancelled_study_does_not_grow(tmp_path):
    """What somebody cancelled is not brought back by a rule; a retry lets it go on."""
    plan, settings = planned(tmp_path, LOOKS), growing(tmp_path / "home")
    with Store.open(settings.home) as store:
        store.add_study(plan)
        store.cancel("growing", plan.arms[1].key)
    first = run_study(plan, settings, Lines())
    assert first.counts == {RunState.SUCCEEDED: 3, RunState.CANCELLED: 3}
    with Store.open(settings.home) as store:
        store.retry("growing", author="test", reason="after all")
    assert run_study(plan, settings, Lines()).counts == {RunState.SUCCEEDED: 10}


@pytest.mark.slow
def test_a_scheduler_that_serves_many_lets_studies_grow(tmp_path):
    """It asks as `paribus run` does; one that was stopped before it could leaves the question to the next."""
    plan, settings = planned(tmp_path, LOOKS), growing(tmp_path / "home")
    assert run_study(plan, replace(settings, adaptive=Adaptive()), Lines()).counts == {RunState.SUCCEEDED: 6}
    with Store.open(settings.home) as store:
        assert settings.adaptive.submit(store, plan).plan.look == 2
    display = Lines()
    second = serve_home(settings, display, reports=tmp_path / "reports", until_idle=True)
    assert [(e.ending, e.counts) for e in second] == [(Ending.COMPLETE, {RunState.SUCCEEDED: 10})]
    assert sum("ask for 2 more runs" in line for line in display.said) == 1


@pytest.mark.slow
def test_a_kill_in_the_middle_of_a_study_with_looks(tmp_path):
    """`paribus run`, killed with all its processes after it has grown, goes on where it was when typed again."""
    (tmp_path / "study.yaml").write_text(HEAD + LOOKS.replace("max: 5, looks: [3, 4, 5]", "max: 4"))
    environment = {**os.environ, "PARIBUS_HOME": str(tmp_path / "home"), "PARIBUS_FAKE": json.dumps({"step_s": 0.02})}
    of_the_second_look = {"PARIBUS_FAKE": json.dumps({"rules": [{"do": "hang", "at": 1, "seed": 3}]})}
    command = [sys.executable, "-c", WITHOUT_MIRROR, "run", "study.yaml", "--no-report", "--slots", "2"]
    first = subprocess.Popen(
        command,
        cwd=tmp_path,
        env=environment | of_the_second_look,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in first.stdout:
        if "ask for 2 more runs" in line:
            os.killpg(first.pid, signal.SIGKILL)
    first.stdout.close()
    assert first.wait() == -signal.SIGKILL
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    with Store.open(tmp_path / "home") as store:
        assert audit(snapshot(store)) == ()
        study = store.study("growing")
        assert (study.plan.look, dict(store.counts(study.id))) == (2, {RunState.SUCCEEDED: 8})
        assert len(store.studies()) == 2
        assert stage_text(store.study("growing").plan).startswith("look 2 of 2: 4 seeds")
