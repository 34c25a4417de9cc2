"""W&B's own program reads the files and uploads each step once, whatever was killed when."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from paribus.health.import_logs import open_log
from paribus.health.wandb_history import run_name
from paribus.mlflow_sync.copies import unwritten
from paribus.mlflow_sync.wandb_files import FOLDER, SYNCED, WandbFiles
from paribus.mlflow_sync.wandb_upload import Uploads, is_online
from paribus.run_folder.attempt_files import read_job
from paribus.run_folder.folder import MetricLine, write_json
from paribus.store.reader import Reader
from support.mlflow_case import Case, write
from support.wandb_server import KEY, upload

CRITICAL = {"detector": "entropy_collapse", "state": "critical", "step_onset": 2, "evidence": "entropy is 0.01"}


@pytest.fixture
def case(tmp_path):
    """A store with one run."""
    made = Case(tmp_path / "home", lambda home: pytest.fail("nothing here is copied to MLflow"))
    yield made
    made.close()


def attempt(case, *mirror):
    """Begin an attempt of a study that wants these copies."""
    folder = case.attempt()
    folder.job.write_text(read_job(folder.job).model_copy(update={"mirror": mirror or ("wandb",)}).model_dump_json())
    return folder


def turn(case):
    """Write what is new, as a process that knows only what is on disk."""
    files = WandbFiles(Reader(case.store.database, case.home))
    left = files.turn()
    assert files.trouble == ""
    return left


def file_of(case):
    """Return the only file."""
    [found] = (case.home / FOLDER).glob("offline-run-*/run-*.wandb")
    return found


def uploaded(case, server):
    """Upload the only run, and return its id."""
    upload(file_of(case).parent, cwd=case.home)
    return file_of(case).stem.removeprefix("run-")


def test_wandb_uploads_each_step_with_its_arm_study_and_alert(case, server):
    """Group, job type, tag, name, settings, summary, exit status; infinities and NaN are W&B's."""
    folder = attempt(case)
    write(folder, range(5))
    folder.append_metrics(MetricLine(step=5, time_ms=2000, values={"kl/ref_k3": float("inf"), "x": float("nan")}))
    state = {"status": "critical", "profile": "p", "step": 5, "time_ms": 5, "sentence": "", "findings": [CRITICAL]}
    write_json(folder.health, state)
    case.finish()
    assert unwritten(case.home, WandbFiles, {case.run: 1}) == {case.run}
    assert turn(case) == 0
    assert unwritten(case.home, WandbFiles, {case.run: 1}) == frozenset()
    run = uploaded(case, server)
    assert server.points(run) == [(step, step) for step in range(5)]
    last = server.history[run][5]
    assert (last["_step"], last["_timestamp"], last["kl/ref_k3"]) == (5, 2.0, float("inf"))
    sent = server.runs[run]
    assert (sent["groupName"], sent["jobType"], sent["tags"], sent["project"]) == ("arm 0", "small", ["small"], "small")
    assert sent["displayName"] == "arm 0, seed 0"
    config = json.loads(sent["config"])
    assert (config["seed"]["value"], config["runner"]["value"]) == (0, "fake")
    assert server.summaries[run]["reward/mean"] == 4
    assert server.alerts == [(run, "critical: entropy_collapse", "entropy is 0.01 since step 2")]
    assert server.exits[run] == 0


def test_a_study_that_wants_none_gets_none(case):
    """The default is MLflow alone."""
    write(case.attempt(), range(3))
    case.finish()
    assert turn(case) == 0
    assert not (case.home / FOLDER).exists()


def test_any_end_of_a_file_is_continued(case):
    """A file that was cut anywhere is the same after the next turn, with the end of the run, too."""
    write(attempt(case), range(4))
    turn(case)
    going = file_of(case).read_bytes()
    for size in range(0, len(going), 7):
        file_of(case).write_bytes(going[:size])
        turn(case)
        assert file_of(case).read_bytes() == going
    case.finish()
    turn(case)
    whole = file_of(case).read_bytes()
    for size in range(len(going), len(whole), 3):
        file_of(case).write_bytes(whole[:size])
        (case.home / FOLDER / "complete.json").unlink()
        turn(case)
        assert file_of(case).read_bytes() == whole
    file_of(case).write_bytes(whole[:-30] + bytes(64))  # a power cut may leave zeros
    (case.home / FOLDER / "complete.json").unlink()
    turn(case)
    assert file_of(case).read_bytes() == whole


def test_a_run_that_goes_on_after_its_end_and_upload_is_uploaded_again(case, server):
    """Each step once; the first attempt to reach a step counts; the exit status is the newest."""
    for _ in range(2):
        write(attempt(case), range(4))
        case.store.fail(case.claim.run_id, case.claim.token, "program", "x")
    turn(case)
    run = uploaded(case, server)
    assert (server.points(run), server.exits[run]) == ([(s, s) for s in range(4)], 1)
    assert file_of(case).with_suffix(SYNCED).exists()
    case.store.retry("small", author="ada", reason="mended")
    write(attempt(case), range(6), value=lambda step: 10.0 + step)
    turn(case)
    assert not file_of(case).with_suffix(SYNCED).exists()
    case.finish()
    turn(case)
    assert uploaded(case, server) == run
    assert server.points(run) == [*((s, s) for s in range(4)), (4, 14.0), (5, 15.0)]
    assert server.exits[run] == 0


PROGRAM = """
import sys
from pathlib import Path
from paribus.mlflow_sync.wandb_files import WandbFiles
from paribus.store.reader import Reader

with Reader.open(Path(sys.argv[1])) as reader:
    files = WandbFiles(reader)
    print("ready", flush=True)
    while True:
        files.turn()
"""


def test_kills_lose_and_double_nothing(case, server):
    """The process is killed at random moments while the run writes, over several blocks of the file."""
    folder = attempt(case)
    dice, step = random.Random(0), 0
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(case.home)], stdout=subprocess.PIPE)
        process.stdout.readline()
        until = time.monotonic() + dice.uniform(0.05, 0.4)
        while time.monotonic() < until or step < 50:
            values = {f"m/{k}": float(step + k) for k in range(40)} | {"reward/mean": step}
            folder.append_metrics(MetricLine(step=step, time_ms=step, values=values))
            step += 1
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    case.finish()
    assert turn(case) == 0
    assert file_of(case).stat().st_size > 2 * 32768
    run = uploaded(case, server)
    assert server.points(run) == [(s, s) for s in range(step)]
    assert server.points(run, "m/39") == [(s, s + 39) for s in range(step)]


def test_an_upload_needs_a_key_and_the_mode_online_and_leaves_no_key(case, server, monkeypatch):
    """Then it runs by itself, is tried again after a failure, and uploads what has changed since."""
    assert not is_online()
    monkeypatch.setenv("WANDB_MODE", "online")
    assert is_online()
    write(attempt(case), range(3))
    case.finish()
    turn(case)
    now = [0.0]
    uploads = Uploads(case.home, clock=lambda: now[0])
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")

    def wait():
        until = time.monotonic() + 100
        while uploads.turn() and uploads._running is not None:
            assert time.monotonic() < until
            time.sleep(0.1)

    monkeypatch.setenv("WANDB_API_KEY", "short")  # refused before anything is sent
    wait()
    assert uploads.trouble
    assert "short" not in uploads.trouble
    assert uploads.turn() == 1
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", server.address)
    now[0] += 1000
    wait()
    assert (uploads.turn(), uploads.trouble) == (0, "")
    run = file_of(case).stem.removeprefix("run-")
    assert server.points(run) == [(s, s) for s in range(3)]
    uploads.close()
    for path in case.home.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes()


STUDY = """
study: mirrored
runner: fake
mirror: [wandb]
base:
  preset: grpo
  set: {schedule.steps: 6, kl: off}
designs:
  one: {kind: list, arms: {other: {set: {scale: none}}}}
seeds: {n: 1}
evaluate: {every: 3, problems: 20, samples: 2}
"""


def test_a_study_is_written_by_the_command_and_uploaded_by_wandb(tmp_path, server, monkeypatch):
    """Both runs, each step once, under their arms; the mode is offline without a word."""
    (tmp_path / "study.yaml").write_text(STUDY)
    monkeypatch.setenv("PARIBUS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PARIBUS_FAKE", json.dumps({"step_s": 0.01, "rules": []}))
    done = subprocess.run(
        [sys.executable, "-m", "paribus", "run", "study.yaml", "--no-report", "--slots", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert server.runs == {}
    upload(*(tmp_path / "home" / FOLDER).glob("offline-run-*"), cwd=tmp_path)
    assert {sent["groupName"] for sent in server.runs.values()} == {"base", "other"}
    for run in server.runs:
        assert [step for step, _ in server.points(run)] == [1, 2, 3, 4, 5, 6]
        assert server.exits[run] == 0


OFFLINE = """
import wandb
for arm in ("grpo", "drgrpo"):
    run = wandb.init(project="p", name=f"{arm}-s1", mode="offline", settings=wandb.Settings(silent=True))
    for step in range(1, 13):
        run.log({"train/reward": step / 20, "train/entropy": 0.5, "train/grad_norm": 0.1, "train/global_step": step,
                 "train/completions/mean_length": 20.0, "nested": {"x": 1}, "note": "hello"})
        run.log({"eval/reward": step / 20, "train/global_step": step})
    run.finish()
"""


def test_runs_of_the_library_itself_are_read(tmp_path):
    """W&B's own offline folders, and what they hold, to the last number; a run that is killed, too."""
    killed = OFFLINE.replace("run.finish()", "import os, time; time.sleep(3); os._exit(1)").replace("13)", "2000)")
    for place, program in (("whole", OFFLINE), ("killed", killed)):
        (tmp_path / place).mkdir()
        done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path / place, check=False, capture_output=True)
        assert done.returncode == (place == "killed"), done.stderr.decode()
    whole = sorted((tmp_path / "whole" / "wandb").glob("offline-run-*"))
    assert {run_name(folder) for folder in whole} == {"grpo-s1", "drgrpo-s1"}
    for folder in (*whole, tmp_path / "killed"):
        log = open_log(str(folder), str)
        assert log is not None
        steps = [line.step for line in log.lines]
        assert steps == list(range(1, len(steps) + 1))
        assert len(steps) == 12 if folder in whole else len(steps) > 50
        assert [line.values["reward/mean"] for line in log.lines] == [step / 20 for step in steps]
        assert log.raw[12]["nested.x"] == 1
