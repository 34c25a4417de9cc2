"""`paribus doctor`: a healthy home is told so, and each trouble with its remedy."""

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing, contextmanager
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from paribus.audit import doctor
from paribus.audit import timed_check as timed_check
from paribus.audit.snapshot import snapshot
from paribus.audit.timed_check import Answer, TimedCheck, main
from paribus.cli.doctor import command
from paribus.engines.process import Identity
from paribus.errors import EngineError
from paribus.run_folder.folder import RunFolder, write_json
from paribus.store.reader import Reader
from paribus.store.store import Store
from support.plans import small_plan


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home folder with a study that has not begun, and no MLflow server named."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with Store.open(tmp_path / "home") as store:
        store.add_study(small_plan())
    return tmp_path / "home"


def doctor_says(home, *flags):
    """Run the command; return its exit status and its checks by name."""
    result = CliRunner().invoke(command, ["--home", str(home), "--json", *flags])
    shown = json.loads(result.output)
    assert shown["healthy"] == (result.exit_code == 0)
    return result.exit_code, {c["name"]: c for c in shown["checks"]}


def test_a_healthy_home_is_told_so_and_left_as_it_is(home):
    """Every part has its line, the exit status is 0, and nothing is written."""
    before = {p: p.stat().st_mtime_ns for p in home.rglob("*") if not p.name.startswith("paribus.db-")}
    status, checks = doctor_says(home)
    assert status == 0, checks
    assert {"disk", "database", "invariants", "processes", "gpu", "mlflow", "engine local", "engine inline"} <= {
        *checks
    }
    assert "revision" in checks["database"]["message"]
    assert "journal mode wal" in checks["database"]["message"]
    assert checks["invariants"]["message"].startswith("11 of 11 hold: 4 runs")
    assert {p: p.stat().st_mtime_ns for p in home.rglob("*") if not p.name.startswith("paribus.db-")} == before
    text = CliRunner().invoke(command, ["--home", str(home)]).output
    assert "ok       engine local: " in text


def test_without_a_store_nothing_is_wrong_yet_but_lost_stores_are_told(tmp_path):
    """Run folders that no store knows of are results that nobody remembers."""
    status, checks = doctor_says(tmp_path / "none")
    assert (status, checks["database"]["level"]) == (0, "unknown")
    (tmp_path / "none" / "runs").mkdir(parents=True)
    status, checks = doctor_says(tmp_path / "none")
    assert (status, checks["database"]["level"]) == (1, "critical")


def test_a_broken_promise_is_critical_and_named(home):
    """The invariant, the folder and what to do."""
    (home / "runs" / ("0" * 12) / "a1").mkdir(parents=True)
    status, checks = doctor_says(home)
    assert status == 1
    assert checks["I4"]["level"] == "critical"
    assert f"runs/{'0' * 12}/a1" in checks["I4"]["message"]
    assert checks["I4"]["remedy"]
    assert checks["invariants"]["message"].startswith("10 of 11")


@contextmanager
def sleeper():
    """A process that leads a group and does nothing."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    try:
        yield process.pid
    finally:
        process.kill()
        process.wait()


def test_a_process_that_outlives_its_attempt_is_told_with_the_command_that_ends_it(tmp_path):
    """While the attempt lives, and shortly after, its processes are at home."""
    now = [1000.0]
    with Store.open(tmp_path, clock=lambda: now[0]) as store, sleeper() as pid:
        study = store.add_study(small_plan())
        claim = store.claim(study.id, engine="local", worker="here")
        folder = RunFolder.of(tmp_path, claim.fingerprint, claim.token)
        folder.path.mkdir(parents=True)
        identity = Identity.of(pid).to_json()
        write_json(folder.attempt, {"token": 1, "supervisor": identity, "runner": identity})
        levels = [doctor.orphans(tmp_path, snapshot(store)).level]
        store.release(claim.run_id, claim.token, "interrupted")
        levels.append(doctor.orphans(tmp_path, snapshot(store)).level)
        now[0] += doctor.ORPHAN_S + 1
        late = doctor.orphans(tmp_path, snapshot(store))
        assert [*levels, late.level] == ["ok", "ok", "critical"]
        assert f"kill -9 -{pid}" in late.remedy


def test_room_on_the_disk(tmp_path, monkeypatch):
    """Little is told in time."""
    for free, level in ((100, "ok"), (5, "warn"), (0.5, "critical")):
        monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _, free=free: SimpleNamespace(free=free * doctor.GIB))
        assert doctor.disk(tmp_path / "not" / "there").level == level


def test_gpus_are_named_and_a_broken_driver_is_told(tmp_path, monkeypatch):
    """Equal ones are counted."""
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho NVIDIA H200\necho NVIDIA H200\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert doctor.gpus().message == "2 x NVIDIA H200"
    program.write_text("#!/bin/sh\nprintf 'NVIDIA\\256 H200\\n'\n")
    assert doctor.gpus().message == "1 x NVIDIA\N{REPLACEMENT CHARACTER} H200"
    program.write_text("#!/bin/sh\nexit 9\n")
    assert doctor.gpus().level == "warn"


def test_runs_that_wait_for_a_replaced_plan_are_told_with_what_ends_them(tmp_path):
    """Runs that the newest plan, or another study, asks for are not among them, and what is told to do helps."""
    with Store.open(tmp_path) as store:
        store.add_study(small_plan(arms=2, seeds=2))
        assert [*doctor.replaced(snapshot(store))] == []
        store.add_study(small_plan(arms=2, seeds=1))
        (told,) = doctor.replaced(snapshot(store))
        assert (told.level, told.message[:24]) == ("warn", "2 runs of small are queu")
        store.add_study(small_plan("other", arms=2, seeds=2))
        assert [*doctor.replaced(snapshot(store))] == []
        store.cancel("other")
        assert "paribus cancel small " in told.remedy
        store.cancel("small")
        assert [*doctor.replaced(snapshot(store))] == []


@pytest.mark.slow
def test_mlflow_is_written_to_and_read_from(home):
    """The latency is measured on what the user has, and leaves nothing to see; a dead server is told."""
    pytest.importorskip("mlflow")
    assert doctor.mlflow_server(home, None).level == "unknown"
    assert doctor.mlflow_server(home, Answer(error="refused")).level == "critical"
    assert doctor.mlflow_server(home, Answer(value={"seconds": 5.0, "doubled": {}})).level == "warn"
    doubled = doctor.mlflow_server(home, Answer(value={"seconds": 0.1, "doubled": {"abc": 3}}))
    assert (doubled.level, "3 steps of 1 run in MLflow have" in doubled.message) == ("warn", True)
    assert f"mv {home / 'mlflow.db'}" in doubled.remedy
    answers = [TimedCheck("mlflow", str(home)).answer(60.0) for _ in range(2)]
    assert [a.error for a in answers] == ["", ""]
    quick = [a for a in answers if a.value["seconds"] < doctor.MLFLOW_SLOW_S]
    assert all(doctor.mlflow_server(home, a).level == "ok" for a in quick)
    with closing(sqlite3.connect(home / "mlflow.db")) as mlflow:
        stages = mlflow.execute("SELECT lifecycle_stage FROM experiments WHERE name = 'paribus-doctor'").fetchall()
    assert stages == [("deleted",)]


def test_an_engine_that_cannot_be_reached_is_no_trouble_unless_it_is_ours(capsys, tmp_path):
    """Slurm is missing on a laptop; the local engine may not be."""
    assert main(["engine", "none", str(tmp_path)]) == 0
    answer = Answer(**json.loads(capsys.readouterr().out))
    assert "there is no engine `none`" in answer.error
    assert doctor.engine("none", answer).level == "unknown"
    assert doctor.engine("local", answer).level == "critical"


def test_an_engine_is_asked_and_not_only_made(capsys, tmp_path, monkeypatch):
    """A cluster whose commands are there but that does not answer cannot be reached."""

    class Silent:
        def __init__(self, settings):
            pass

        def find(self, name):
            raise EngineError("nobody answers")

        def close(self):
            pass

    monkeypatch.setattr(timed_check, "load_engine", lambda name: Silent)
    assert main(["engine", "slurm", str(tmp_path)]) == 0
    assert Answer(**json.loads(capsys.readouterr().out)).error == "EngineError: nobody answers"


def test_a_question_that_hangs_is_given_up(tmp_path):
    """And what it has started is gone."""
    assert "no answer in 0 s" in TimedCheck("engine", "local", str(tmp_path)).answer(0.0).error


def test_a_remote_file_system_is_told(home, monkeypatch):
    """SQLite's locks are not to be trusted there."""
    monkeypatch.setattr(doctor, "_file_system", lambda _: "nfs4")
    with Reader.open(home) as reader:
        check = doctor.database(reader, 0.0)
    assert (check.level, "on nfs4" in check.message) == ("warn", True)
