"""``paribus.track`` in programs of their own: what is recorded, and that no fault reaches the program."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import paribus
from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.engines.process import Identity
from paribus.errors import StoreError
from paribus.external.spool import Spool
from paribus.run_folder.attempt_files import read_attempt
from paribus.run_folder.folder import MetricLine, RunFolder
from paribus.store.models import RunRecord
from paribus.store.reader import Reader
from paribus.store.states import RunState
from paribus.store.store import Store

STEPS = """
for s in range(1, 13):
    run.log(s, {"reward/mean": s / 20, "response/length_mean": 30, "policy/entropy": 1})
"""
ONCE = "this is said once"


def program(body: str) -> str:
    """Return a script that tracks the arm `a` with seed 1 of the study `live` in the home folder of its argument."""
    head = "import os, signal, sys, time\nimport paribus\nfrom paribus.external import track\nhome = sys.argv[1]\n"
    head += "track.FINISH_S = 200.0\n"  # a slow machine is no fault
    return f'{head}run = paribus.track("live", "a", 1, home=home)\n{textwrap.dedent(body)}'


def train(home: Path, script: str, **variables: str) -> str:
    """Run a script to its end, which must be a good one; return what it wrote on standard error."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(home)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


@contextmanager
def started(body: str, home: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a script; it does not outlive a test that fails."""
    command = [sys.executable, "-c", program(body), str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        except BaseException:
            process.kill()
            raise


def until(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.1)


def runs(home: Path) -> tuple[RunRecord, ...]:
    """Return the runs of the study."""
    try:
        with Reader.open(home) as reader:
            return reader.runs_of(reader.study("live").id)
    except StoreError:  # not there yet, or being made
        return ()


def state(home: Path) -> str:
    """Return the state of the only run; empty before there is one."""
    found = runs(home)
    return str(found[0].state) if found else ""


def lines(home: Path) -> list[MetricLine]:
    """Return the metric lines of the only run."""
    (run,) = runs(home)
    return list(RunFolder.of(home, run.fingerprint, run.token).read_metrics())


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A home folder of which no recorder is left at the end."""
    place = tmp_path / "home"
    yield place
    for folder in place.glob("runs/*/a*"):
        if (folder / "attempt.json").exists():
            recorder = Identity.read(read_attempt(RunFolder(folder))["supervisor"])
            if recorder.alive():
                os.kill(recorder.pid, signal.SIGKILL)


def test_a_program_becomes_a_run_of_a_study(home: Path) -> None:
    """Without scheduler and server: state, metrics, health, and a marked row; all promises of the store hold."""
    assert train(home, program(f"{STEPS}\nrun.finish()")) == ""
    (run,) = runs(home)
    assert (run.state, run.label, run.seed) == (RunState.SUCCEEDED, "a", 1)
    assert [line.step for line in lines(home)] == [*range(1, 13)]
    with Reader.open(home) as reader:
        assert audit(snapshot(reader)) == ()
    results = paribus.results("live", home=home)
    assert results.answer.startswith("Not trained by Paribus: tracked while their program trained.")
    assert results.table("arms")["status"].tolist() == ["tracked"]
    assert not list((home / "tracking").iterdir())


def test_calls_of_one_step_are_one_line_and_names_are_those_of_the_trainer(home: Path) -> None:
    """TRL logs training and evaluation of a step apart; canonical metrics have their sources, the rest its own name."""
    body = """
    for s in range(1, 5):
        run.log(s, {"reward": s / 9, "completions/mean_length": 30.0, "entropy": 1.0, "num_tokens": 100 * s})
        run.log(data={"eval_reward": 0.25}, step=s)  # as verl's Tracking calls its loggers
    run.finish()
    """
    train(home, program(body).replace("home=home", "home=home, trainer='trl', steps=4"))
    found = lines(home)
    assert [line.step for line in found] == [1, 2, 3, 4]
    assert found[1].values["reward/mean"] == 2 / 9 == found[1].values["native/trl/reward"]
    assert found[1].values["native/trl/num_tokens"] == 200
    assert found[1].values["eval/heldout/avg_at_1"] == 0.25
    assert found[1].sources == {"eval/heldout/avg_at_1": "proxy"}


def test_what_is_no_number_and_steps_that_go_back_are_left_out(home: Path) -> None:
    """One warning for all of it; everything else is recorded, NaN and infinity as they are."""
    body = """
    import numpy as np, torch
    run.log(1, {"reward/mean": np.float32(0.5), "x": torch.tensor(2.0), "policy/entropy": float("nan")})
    run.log(2, {"reward/mean": 10**400, "text": "abc", "none": None, "list": [1], "flag": True, "t": torch.ones(3)})
    for wrong in (-1, "three", None, float("nan"), 2**60):
        run.log(wrong, {"reward/mean": 0.1})
    run.log(3, None)
    run.log(4, {"reward/mean": 0.4})
    run.log(3, {"reward/mean": 0.9})
    run.log(5, {1: 5, "reward/mean": 0.5, "\\ud800": 1})
    run.finish()
    """
    said = train(home, program(body))
    assert said.count(ONCE) == 1
    assert said.count("\n") == 1
    found = lines(home)
    assert [line.step for line in found] == [1, 2, 4, 5]
    assert found[0].values["reward/mean"] == 0.5
    assert found[0].values["native/own/x"] == 2.0
    assert str(found[0].values["policy/entropy"]) == "nan"
    assert found[1].values == {"reward/mean": float("inf")}
    with Reader.open(home) as reader:
        assert reader.result(runs(home)[0].fingerprint).payload["dropped"] == 1  # type: ignore[union-attr]


@pytest.mark.slow
def test_a_killed_program_has_failed(home: Path) -> None:
    """After kill -9 its run is failed, with its last step as the reason; started again, it is the next attempt."""
    train_killed(home)
    until(lambda: state(home) == "FAILED")
    assert "ended after step 12" in runs(home)[0].reason
    train(home, program(f"{STEPS}\nrun.finish()"))
    (run,) = runs(home)
    assert (run.state, run.token) == (RunState.SUCCEEDED, 2)
    with Reader.open(home) as reader:
        assert audit(snapshot(reader)) == ()


def train_killed(home: Path, *, recorder: bool = False) -> None:
    """Kill a program that has logged twelve steps; before it its recorder, if asked."""
    with started(f"{STEPS}time.sleep(300)", home) as process:
        until(lambda: state(home) == "RUNNING" and len(lines(home)) == 12)
        if recorder:
            folder = next(home.glob("runs/*/a*"))
            os.kill(read_attempt(RunFolder(folder))["supervisor"]["pid"], signal.SIGKILL)
        process.kill()


@pytest.mark.slow
def test_a_machine_that_stops_leaves_a_lost_run(home: Path) -> None:
    """If the recorder is killed too, every reader sees the run as failed after its lease, and schedulers let it be.

    The next program that is tracked in the home folder records that.
    """
    train_killed(home, recorder=True)
    assert state(home) == "RUNNING"
    later = time.time() + 120
    with Store.open(home, clock=lambda: later) as store:
        number = store.study("live").id
        assert store.runs_of(number)[0].state is RunState.FAILED
        assert store.counts(number) == {RunState.FAILED: 1}
        assert not store.summaries()[0].open
        assert store.expire() == ()
        assert audit(snapshot(store)) == ()
    other = program(f"{STEPS}\nrun.finish()").replace('"a", 1', '"b", 1')
    train(home, other)
    until(lambda: {str(r.state) for r in runs(home)} == {"SUCCEEDED", "FAILED"} and not any(home.glob("tracking/*")))
    with Reader.open(home) as reader:
        assert "without `finish`" in next(r.reason for r in runs(home) if r.label == "a")
        assert audit(snapshot(reader)) == ()


def test_a_full_disk_is_one_warning(home: Path) -> None:
    """The program's file reaches its limit: no exception, one warning, and what was written before is recorded."""
    body = """
    import resource
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    for s in range(1, 201):
        run.log(s, {"reward/mean": s / 400})
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
    run.finish()
    """
    said = train(home, program(body))
    assert said.count(ONCE) == 1
    assert "File too large" in said or "disk is full" in said
    found = lines(home)
    assert 5 < len(found) < 200
    assert [line.step for line in found] == [*range(1, len(found) + 1)]
    assert state(home) == "SUCCEEDED"


@pytest.mark.parametrize("place", ["file/home", "home"])
def test_a_home_that_cannot_be_written_is_one_warning(tmp_path: Path, place: str) -> None:
    """A home folder below a file, or one whose folder for spools is a file: the program does not notice."""
    (tmp_path / "file").write_text("")
    (tmp_path / "home").mkdir()
    (tmp_path / "home/tracking").write_text("")
    said = train(tmp_path / place, program(f"{STEPS}assert not run.should_stop\nrun.finish()"))
    assert said.count(ONCE) == 1
    assert "is not tracked" in said


def test_a_locked_database_holds_nothing_up(home: Path) -> None:
    """While another process holds the write lock, steps are logged; they are recorded when it lets go."""
    with Store.open(home):
        pass
    lock = sqlite3.connect(home / "paribus.db", isolation_level=None)
    lock.execute("BEGIN IMMEDIATE")
    with started(f"{STEPS}time.sleep(2)\nprint('trained', flush=True)\nrun.finish()", home) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "trained\n"
        assert runs(home) == ()
        lock.execute("COMMIT")
        lock.close()
        assert process.wait(120) == 0
    until(lambda: state(home) == "SUCCEEDED")
    assert len(lines(home)) == 12


def test_only_rank_0_writes_and_no_child_does(home: Path, tmp_path: Path) -> None:
    """Another rank makes not even a folder; a forked child of the program, such as a loader of data, adds nothing."""
    assert train(tmp_path / "other", program(f"{STEPS}\nrun.finish()"), RANK="1") == ""
    assert not (tmp_path / "other").exists()
    child = "if os.fork() == 0:\n    run.log(99, {'reward/mean': 1})\n    run.finish()\n    os._exit(0)\nos.wait()\n"
    body = STEPS + child
    train(home, program(f"{body}run.log(13, {{'reward/mean': 0.9}})\nrun.finish()"), RANK="0")
    assert [line.step for line in lines(home)] == [*range(1, 14)]


@pytest.mark.slow
def test_two_programs_with_one_name(home: Path) -> None:
    """While one lives the other is not recorded, and warns; after its end another one takes its place in the table."""
    with started(f"{STEPS}sys.stdin.read()\nrun.finish()", home) as process:
        until(lambda: state(home) == "RUNNING")
        said = train(home, program(f"{STEPS}\nrun.finish()"))
        assert "another program tracks the arm `a` with seed 1 now" in said
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(120) == 0
    assert state(home) == "SUCCEEDED"
    before = runs(home)[0].fingerprint
    train(home, program(f"{STEPS}\nrun.finish()"))
    (run,) = runs(home)
    assert (run.state, run.fingerprint == before) == (RunState.SUCCEEDED, False)


def test_a_finding_asks_the_program_to_stop(home: Path) -> None:
    """`should_stop` becomes true, with the reason; the run counts as stopped early."""
    body = """
    for s in range(1, 100000):
        run.log(s, {"reward/mean": float("nan") if s == 5 else 0.5})
        if run.should_stop:
            break
        time.sleep(0.05)
    assert s > 5 and "nan: not finite at step 5" in run.stop_reason, run.stop_reason
    run.finish()
    """
    train(home, program(body).replace("home=home", "home=home, stop_on=['nan']"))
    (run,) = runs(home)
    assert run.state is RunState.STOPPED_EARLY
    assert "nan: not finite at step 5" in run.reason


@pytest.mark.slow
def test_cancelling_asks_the_program_to_stop(home: Path) -> None:
    """`paribus cancel` reaches it with the next sign of life."""
    with started(f"{STEPS}while not run.should_stop:\n    time.sleep(0.1)\nrun.finish()", home) as process:
        until(lambda: state(home) == "RUNNING")
        with Store.open(home) as store:
            assert store.cancel("live").running == 1
        assert process.wait(120) == 0


@pytest.mark.slow
def test_a_scheduler_lets_it_be(home: Path) -> None:
    """One that starts and ends in the home folder while the program trains takes nothing over and pauses nothing."""
    with started(f"{STEPS}sys.stdin.read()\nrun.finish()", home) as process:
        until(lambda: state(home) == "RUNNING")
        command = [sys.executable, "-m", "paribus", "scheduler", "--home", str(home), "--until-idle"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=home)
        assert done.returncode == 0, done.stderr
        assert "live" not in done.stdout
        assert state(home) == "RUNNING"
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(120) == 0
    (run,) = runs(home)
    assert (run.state, run.token) == (RunState.SUCCEEDED, 1)
    with Reader.open(home) as reader:
        assert reader.study("live").paused == ""


def test_an_exception_fails_the_run_and_goes_on(home: Path) -> None:
    """As a context manager it records the reason, and swallows nothing."""
    body = """
    try:
        with run:
            run.log(1, {"reward/mean": 1})
            1 / 0
    except ZeroDivisionError:
        run.log(2, {"reward/mean": 1})
    """
    train(home, program(body))
    (run,) = runs(home)
    assert (run.state, run.reason) == (RunState.FAILED, "ZeroDivisionError: division by zero")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"study": "Not a name"}, "no name of a study"),
        ({"arm": ""}, "no name of an arm"),
        ({"seed": "1"}, "the seed is '1'"),
        ({"seed": -1}, "the seed is -1"),
        ({"study": None}, "study is None; it must be a text"),
        ({"arm": 0.1}, "arm is 0.1; it must be a text"),
        ({"base": 1}, "base is 1; it must be a text"),
        ({"steps": "30"}, "steps is '30'; it must be a whole number from 1 on"),
        ({"steps": -5}, "steps is -5"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"trainer": "tlr"}, "there is no trainer `tlr`"),
        ({"primary": "reward"}, "is no metric"),
        ({"stop_on": "nan"}, r"such as \['nan'\]"),
        ({"stop_on": ["nana"]}, "there is no detector `nana`"),
    ],
)
def test_wrong_arguments_are_said_before_the_training(home: Path, arguments: dict[str, object], message: str) -> None:
    """They are mistakes in the script, not trouble of the machine: an error before the first step."""
    given = {"study": "live", "arm": "a", "seed": 1, **arguments}
    with pytest.raises(paribus.ParibusError, match=message):
        paribus.track(**given, home=home)  # type: ignore[arg-type]
    assert not home.exists()


def test_a_study_that_is_trained_is_not_joined(home: Path) -> None:
    """The program trains on, and a warning says why nothing is recorded; the reason stays in the home folder."""
    from support.studies import Shape, made_up_study

    with Store.open(home) as store:
        store.add_study(made_up_study(Shape(seeds=2, steps=8, study="live")).plan)
    said = train(home, program(f"{STEPS}\nrun.finish()"))
    assert "is a study that Paribus trains" in said
    (spool,) = (home / "tracking").iterdir()
    assert "is a study that Paribus trains" in Spool(spool).refused.read_text()


TRAINER = """
import sys, torch, paribus
from transformers import Trainer, TrainingArguments

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Linear(1, 1)
    def forward(self, x=None, labels=None):
        y = self.w(x)
        return {"loss": ((y - labels) ** 2).mean(), "logits": y}

rows = [{"x": torch.tensor([float(i)]), "labels": torch.tensor([2.0 * i])} for i in range(8)]
callback = paribus.TrainerCallback("live", "a", home=sys.argv[1], primary="optim/loss", stop_on=sys.argv[3:])
trainer = Trainer(
    model=Net(), train_dataset=rows, eval_dataset=rows, callbacks=[callback],
    args=TrainingArguments(output_dir=sys.argv[2], max_steps=12, logging_steps=1, eval_strategy="steps", eval_steps=6,
                           report_to="none", use_cpu=True, disable_tqdm=True, save_strategy="no", seed=7),
)
trainer.train()
"""


@pytest.mark.slow
def test_the_trainer_of_transformers(home: Path, tmp_path: Path) -> None:
    """One line in a real script: every step that it logs, the seed of its arguments, its length and its end."""
    pytest.importorskip("transformers")
    done = subprocess.run(
        [sys.executable, "-c", TRAINER, str(home), str(tmp_path / "out")],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "paribus" not in done.stderr
    (run,) = runs(home)
    assert (run.state, run.seed) == (RunState.SUCCEEDED, 7)
    found = {line.step: line for line in lines(home)}
    assert set(found) == {*range(1, 13)}
    assert all({"optim/loss", "optim/grad_norm", "optim/lr"} <= line.values.keys() for line in found.values())
    assert "native/trl/eval_loss" in found[6].values
    with Reader.open(home) as reader:
        assert reader.study("live").plan.arms[0].recipe.schedule.steps == 12
