"""How a run of the TRL runner ends where its environment is missing, changed or broken; no TRL is needed."""

import signal
import subprocess
import sys
import tempfile
import time

import pytest

from paribus.contract import Evaluate, Hashes, Job, Options, load_runner
from paribus.engines.process import Identity
from paribus.errors import ParibusError
from paribus.recipe.resolve import resolve_base
from paribus.run_folder.attempt_files import read_job, read_result
from paribus.run_folder.checkpoints import damaged_files, publish
from paribus.run_folder.folder import MetricLine, RunFolder, write_json
from paribus_runners.environments import FOLDER, Environment, own_code

RUN = "import sys, pathlib; from paribus.contract import load_runner; load_runner('trl').run(pathlib.Path(sys.argv[1]))"


@pytest.fixture
def job(tmp_path, monkeypatch):
    """Return a function that writes a job; with a program it stands for Python in an environment of one's own."""
    monkeypatch.setenv(FOLDER, str(tmp_path / "environments"))

    def written(program=None, hashes=None, token=1, **own):
        if program is not None:
            python = tmp_path / "venv" / "bin" / "python"
            python.parent.mkdir(parents=True)
            python.write_text(f"#!/bin/sh\n{program}\n")
            python.chmod(0o755)
            own["environment"] = str(tmp_path / "venv")
        recipe = resolve_base("grpo", {"kl": "off", "task": "chain", "schedule.steps": 2}).recipe
        folder = RunFolder(tmp_path / "run" / f"a{token}")
        folder.path.mkdir(parents=True)
        made = Job(
            run="0" * 64, study="ends", arm="base", runner="trl", options=Options(own=own), seed=0, token=token,
            recipe=recipe, evaluate=Evaluate(problems=4), cache=str(tmp_path / "cache"), hashes=hashes,
        )  # fmt: skip
        write_json(folder.job, made.model_dump(mode="json"))
        return folder

    return written


def test_a_missing_environment_ends_a_run_with_its_remedy(job):
    """On a machine without the environment a run fails at once, and says which command installs it."""
    with pytest.raises(ParibusError, match="`paribus runners install trl`"):
        load_runner("trl").run(job().path)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("echo ImportError: no torch; exit 1", "`TRL` ended with exit status 1 after no step: ImportError: no torch"),
        ("exit 0", "ended with exit status 0 after no step of 2 and left no result"),
        ("kill -SEGV $$", "was killed by SIGSEGV after no step"),
    ],
)
def test_a_program_that_ends_badly_is_a_failure_with_its_last_line(job, program, message):
    """Nothing that was not true is recorded."""
    folder = job(program)
    with pytest.raises(ParibusError) as caught:
        load_runner("trl").run(folder.path)
    assert message in str(caught.value)
    assert not folder.result.exists()
    assert not folder.metrics.exists()


@pytest.mark.slow
def test_a_program_that_writes_nothing_is_ended(job):
    """A training that hangs fails after its patience, and leaves no process."""
    folder = job("sleep 1000 & echo $! > pid; wait", patience=10.0)
    with pytest.raises(ParibusError, match="has logged no step for 10 s"):
        load_runner("trl").run(folder.path)
    left = int((folder.path / "trl" / "pid").read_text())
    assert not Identity.of(left).start  # gone, or a zombie that nobody has waited for


def test_what_fails_in_the_environment_is_shown_whatever_its_encoding(tmp_path, monkeypatch):
    """A library may print in the encoding of another language: each way to start the program shows its last line."""
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\nprintf 'kein Speicher f\\374r Gr\\366\\337eres\\n' >&2; exit 1\n")
    python.chmod(0o755)
    shown = "kein Speicher f�r Gr��eres"
    trl, verl = load_runner("trl"), load_runner("verl")
    for runner in (trl, verl):
        mine = Environment(runner.name, runner.here / "requirements.lock", tmp_path)
        monkeypatch.setattr(type(runner), "environment", lambda *_, mine=mine: mine)
    recipe = resolve_base("grpo", {"kl": "off", "task": "chain"}).recipe
    with pytest.raises(ParibusError, match=f"could not be made in TRL's environment: {shown}"):
        trl.prepare(recipe, tmp_path)
    assert list(verl.check()) == [shown]
    monkeypatch.setattr(sys, "executable", str(python))
    assert list(trl.check()) == [f"training ended with exit status 1: {shown}"]


def test_versions_that_changed_after_the_plan_are_refused(job):
    """A run of other versions than those that were planned would put two versions into one table."""
    now = load_runner("trl")
    recipe = resolve_base("grpo", {"kl": "off", "task": "chain", "schedule.steps": 2}).recipe
    planned = now.hashes(recipe, Options())
    folder = job("exit 0", hashes=Hashes(code="f" * 64, data=planned.data, model=planned.model))
    with pytest.raises(ParibusError, match="changed since the study was planned"):
        now.run(folder.path)


def test_a_run_that_was_killed_after_its_last_step_has_its_model(job):
    """The next attempt has no step left to train; its result names the model of the last one all the same."""
    first = job()
    for step in range(3):
        first.append_metrics(MetricLine(step=step, time_ms=step, values={}))
    publish(first, read_job(first.job), 2, lambda place: (place / "model.safetensors").write_bytes(b"weights"))
    second = job('echo \'{"status": "succeeded"}\' > "$5/result.json"', token=2)
    load_runner("trl").run(second.path)
    assert read_result(second) == {"status": "succeeded", "steps": 2, "model": "checkpoints/step-000002"}
    model = second.path / "checkpoints" / "step-000002"
    assert (model / "model.safetensors").read_bytes() == b"weights"
    assert damaged_files(model) == ()


def test_a_stopped_run_passes_the_signal_on(job):
    """SIGTERM reaches the program; the run ends with status 75."""
    folder = job("trap 'exit 75' TERM; touch started; while :; do sleep 0.05; done")
    process = subprocess.Popen([sys.executable, "-c", RUN, str(folder.path)], stdout=subprocess.DEVNULL)
    end = time.monotonic() + 300
    while not (folder.path / "trl" / "started").exists() and time.monotonic() < end:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 75


def test_a_killed_run_leaves_its_folder_of_code_to_the_next(tmp_path, monkeypatch):
    """As the other temporary folders; the packages that its links name stay."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    program = "import os; from paribus_runners.environments import own_code\nwith own_code(): os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    with own_code() as code:
        assert [*tmp_path.iterdir()] == [code]
        assert code != left
        assert {place.name for place in code.iterdir()} == {"paribus", "paribus_runners"}
        assert (code / "paribus" / "scratch.py").is_file()
    assert not any(tmp_path.iterdir())
