"""Each bad end of a program is one classified failure with a remedy; nothing hangs, nothing wrong is recorded."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from paribus.failures import KILLED
from paribus_runners.program.process import MOST_LAST, MOST_PRINTED

from .conftest import GOOD

CASES = {
    "crashes": ("import signal; os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV after no step"),
    "ends without a result": ("evaluate(0); line(0)", "ended with exit status 0 after step 0 of 3 and left no result"),
    "fails": ("sys.exit('my message')", "ended with exit status 1 after no step: my message"),
    "raises": ("evaluate(0); line(0); raise ValueError('so')", "exit status 1 after step 0: ValueError: so"),
    "steps back": ("evaluate(0); line(0); line(1); line(0)", "metrics.jsonl:3: step 0 comes after step 1"),
    "leaves a step out": ("evaluate(0); line(0); line(2)", "metrics.jsonl:2: step 2 follows step 0"),
    "goes beyond the end": (GOOD + "line(4)", "step 4 is beyond the last, 3"),
    "stops before the end": ("evaluate(0); line(0); line(1); finish()", "says that it succeeded after step 1 of 3"),
    "writes a long line": (
        "open(out + '/metrics.jsonl', 'w').write('x' * 10_000_000); time.sleep(60)",
        "metrics.jsonl:1: a line of more than 1,048,576 bytes",
    ),
    "writes no JSON": ("open(out + '/metrics.jsonl', 'w').write('loss 0.5\\n')", "metrics.jsonl:1: not JSON"),
    "writes a list": ("open(out + '/metrics.jsonl', 'w').write('[1]\\n')", "[1] is not an object"),
    "misspells a metric": (
        "evaluate(0); line(0, {'policy/entropi': 1.0})",
        "`policy/entropi` is no metric. Did you mean `policy/entropy`?",
    ),
    "writes a text": ("evaluate(0); line(0, {'reward/mean': 'high'})", "`reward/mean` is 'high', not a number"),
    "misspells a field": ("evaluate(0); line(0, value={})", "it has no field `value`"),
    "does not evaluate": ("line(0)", "write evals/heldout-000000.json before the line of its step"),
    "evaluates too little": (
        "evaluate(0, problems=['a'], correct=[1], truncated=[0], tokens=[1], tokens_correct=[1], answers=[{'x': 1}])\n"
        "line(0)",
        "has 1 problem, and the study asks for 2: set `evaluate.problems`",
    ),
    "counts too much": ("evaluate(0, correct=[2, 0]); line(0)", "counts 2 correct and 0 truncated responses of 1"),
    "forgets answers": ("evaluate(0, answers=[{}, {'y': 1}]); line(0)", "counts 0 answers to problem 'a'"),
    "has a problem twice": ("evaluate(0, problems=['a', 'a']); line(0)", "has a problem twice"),
    "is of another step": ("evaluate(0, step=3); line(0)", "says that it is of `heldout` at step 3"),
    "changes its problems": (
        "evaluate(0); line(0); line(1); line(2); evaluate(3, problems=['b', 'a']); line(3)",
        "has other problems, or another order, than the one before",
    ),
    "claims another score": (
        "evaluate(0); line(0, {'eval/heldout/avg_at_1': 0.9})",
        "the counts of the evaluation give 0.5",
    ),
    "writes a wrong result": (GOOD + "finish(status='great')", "its status is 'great', not succeeded or stopped_early"),
    "writes NaN as its result": (GOOD + "finish(status='succeeded', x=float('nan'))", "which is not finite"),
    "stops early without a reason": ("finish(status='stopped_early')", "`stopped_early` without a `reason`"),
    "replaces its lines": (
        "evaluate(0); line(0)\n"
        "while not os.path.exists(out + '/../../metrics.jsonl'): time.sleep(0.01)  # that of the attempt\n"
        "open(out + '/metrics.jsonl', 'w').close(); time.sleep(60)",
        "metrics.jsonl was cut or replaced after line 1",
    ),
    "makes a folder of its lines": ("os.mkdir(out + '/metrics.jsonl'); time.sleep(60)", "metrics.jsonl"),
    "makes a pipe of its lines": ("os.mkfifo(out + '/metrics.jsonl'); time.sleep(60)", "is no file"),
    "makes a pipe of its evaluation": (
        "os.mkfifo(out + '/evals/heldout-000000.json'); line(0); time.sleep(60)",
        "heldout-000000.json is no plain file",
    ),
    "makes a pipe of its result": (
        GOOD.replace("finish()", "os.mkfifo(out + '/result.json')"),
        "result.json is no plain file",
    ),
    "writes a long result": (GOOD + "finish(status='succeeded', x='x' * 5_000_000)", "more than 4,194,304: keep long"),
    "asks to be resumed in vain": ("sys.exit(75)", "the study does not say `runner.resumes: true`"),
    "writes an empty checkpoint": (
        "evaluate(0); line(0); os.mkdir(out + '/checkpoints/step-000000'); time.sleep(60)",
        "the checkpoint step-000000 is empty",
    ),
    "names a file of its checkpoint in no UTF-8": (
        "evaluate(0); line(0); os.mkdir(out + '/checkpoints/x'); os.mkdir(out + '/checkpoints/x/model')\n"
        "open(os.fsencode(out) + b'/checkpoints/x/model/gr\\xfc\\xdf', 'w').close()\n"
        "os.rename(out + '/checkpoints/x', out + '/checkpoints/step-000000'); time.sleep(60)",
        r"'model/gr\udcfc\udcdf' in the checkpoint step-000000 is no name in UTF-8",
    ),
    "links in its checkpoint": (
        "evaluate(0); line(0); os.mkdir(out + '/checkpoints/x'); os.symlink('/etc/passwd', out + '/checkpoints/x/w')\n"
        "os.rename(out + '/checkpoints/x', out + '/checkpoints/step-000000'); time.sleep(60)",
        "is no plain file",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_bad_end_says_what_to_do(attempt, name) -> None:
    """The reason names the place and the remedy; no result is recorded, and what was recorded is in order."""
    program, expected = CASES[name]
    end = attempt(program)
    assert end.status == 1, end.folder.log.read_text()
    assert expected in end.reason
    assert "(" in end.failure.signature  # a place in the code, so that equal failures are equal
    assert not end.folder.result.exists()
    assert [line.step for line in end.lines] == list(range(len(end.lines)))
    assert all(0 <= c <= e.samples for e in end.folder.read_evaluations() for c in e.correct)


def test_a_good_end_is_recorded(attempt) -> None:
    """The program of which the others are variations succeeds."""
    end = attempt(GOOD)
    assert end.status == 0, end.folder.log.read_text()
    assert json.loads(end.folder.result.read_text()) == {"status": "succeeded", "steps": 3}
    assert [line.values.get("eval/heldout/avg_at_1") for line in end.lines] == [0.5, None, None, 0.5]


def test_a_result_is_how_the_program_ended(attempt) -> None:
    """Its status and reason are recorded; steps and findings are not for a program to say."""
    said = "steps=999, finding={'detector': 'nan'}"
    good = attempt(GOOD.replace("finish()", f"finish(status='succeeded', {said})"))
    assert json.loads(good.folder.result.read_text()) == {"status": "succeeded", "steps": 3}
    early = f"evaluate(0); line(0); line(1); finish(status='stopped_early', reason='flat', {said})"
    stopped = attempt(early, token=2)
    assert json.loads(stopped.folder.result.read_text()) == {"status": "stopped_early", "reason": "flat", "steps": 1}


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["no-such-program"], "there is no program `no-such-program`"),
        (["/no/such/program"], "there is no program `/no/such/program`"),
        (["p.py"], "a file beside the study: write `./p.py`"),
        (["./p.py"], "A script needs a first line such as `#!/bin/sh`"),
    ],
)
def test_a_command_that_cannot_be_started(attempt, argv, expected) -> None:
    """The reason says what the study should say in its place."""
    end = attempt(GOOD, own={"argv": argv})
    assert end.status == 1
    assert expected in end.reason


def test_nan_is_recorded_as_what_it_is(attempt) -> None:
    """A metric that is not finite is a named value, which the detector `nan` judges; it is not dropped or replaced."""
    end = attempt(
        "evaluate(0); line(0, {'reward/mean': float('nan')}); line(1); line(2); evaluate(3); line(3); finish()"
    )
    assert end.status == 0
    assert '"reward/mean": "nan"' in end.folder.metrics.read_text()


def test_a_gigabyte_of_output_is_bounded(attempt) -> None:
    """The log keeps the beginning and the end, and says how much is missing."""
    printing = "block = b'y' * 65535 + b'\\n'\nfor _ in range(1600): os.write(1, block)\nprint('the last words')\n"
    end = attempt(printing + GOOD)
    assert end.status == 0, end.reason
    text = end.folder.log.read_bytes()
    assert len(text) < MOST_PRINTED + 2 * MOST_LAST
    assert b"bytes are left out" in text
    assert text.rstrip().endswith(b"the last words")


@pytest.mark.slow
def test_silence_has_a_limit(attempt) -> None:
    """A program that logs no step for its patience is ended; one that prints meanwhile, too."""
    end = attempt(
        "evaluate(0); line(0)\nwhile True: print('busy', flush=True); time.sleep(0.05)", own={"patience": 10.0}
    )
    assert "has logged no step for 10 s, after step 0" in end.reason


def test_what_forks_and_leaves_is_ended(attempt, tmp_path: Path) -> None:
    """Children in other sessions are found by a mark in their environment; their output keeps nothing open."""
    leaving = (
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork():\n        os._exit(0)\n"
        f"    open({str(tmp_path / 'new')!r}, 'w').write(str(os.getpid()))\n"
        f"    os.rename({str(tmp_path / 'new')!r}, {str(tmp_path / 'pid')!r})\n    time.sleep(600)\n"
        f"while not os.path.exists({str(tmp_path / 'pid')!r}): time.sleep(0.01)\n"
    )
    end = attempt(leaving + "os._exit(0)")
    assert "left no result" in end.reason
    pid = int((tmp_path / "pid").read_text())
    state = Path(f"/proc/{pid}/stat")
    assert not state.exists() or state.read_text().rpartition(")")[2].split()[0] == "Z"


def test_a_program_that_is_killed_is_not_at_fault(attempt) -> None:
    """The exit status says that a signal from outside killed a process of the run, and the log ends with its name."""
    end = attempt("import signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert end.status == KILLED + 9
    assert end.folder.log.read_text().rstrip().endswith("was killed by SIGKILL after no step")


def test_secrets_stay_outside(attempt) -> None:
    """A program gets its places and what the study names, and nothing else that may be secret."""
    program = GOOD + "json.dump(dict(os.environ), open(out + '/environment.json', 'w'))\n"
    secret = {
        "PARIBUS_DATABASE_URL": "postgresql://u:p@h/d",
        "HF_TOKEN": "hf_x",
        "MY_KEY": "k",
        "MY_MODE": "m",
        "PYTHONPATH": "/far",
    }
    end = attempt(program, own={"environment": ["MY_MODE"]}, environment=secret)
    found = json.loads(end.folder.environment.read_text())
    assert found["MY_MODE"] == "m"
    assert not {"PARIBUS_DATABASE_URL", "HF_TOKEN", "MY_KEY", "PYTHONPATH"} & set(found)
    assert {"PARIBUS_SEED", "PARIBUS_OUT", "PARIBUS_RECIPE", "PARIBUS_EVALUATE", "PATH"} <= set(found)
    missing = attempt(
        program,
        token=2,
        own={"environment": ["MY_MODE"]},
        environment={k: v for k, v in os.environ.items() if k != "MY_MODE"},
    )
    assert "the environment variable MY_MODE, which `runner.environment` names, is not set" in missing.reason


def test_a_full_disk_is_a_failure_of_the_disk(attempt) -> None:
    """What the program says of it counts, so that the machine is looked at and not the program."""
    end = attempt("raise OSError(28, 'No space left on device', 'weights.bin')")
    assert end.failure.signature == "storage"


def test_all_runs_evaluate_the_same_problems(attempt) -> None:
    """A program that draws its problems by the seed is found by its second run, however good each looks alone."""
    assert attempt(GOOD, run="r1").status == 0
    assert attempt(GOOD, run="r2").status == 0
    both = "{'problems': ['a', 'c']} if 'r3' in out else {}"
    program = GOOD.replace("evaluate(0)", f"evaluate(0, **({both}))").replace("evaluate(3)", f"evaluate(3, **({both}))")
    assert attempt(program, run="r4").status == 0  # another program, whose problems are those of no other run yet
    assert "all runs of a study evaluate the same problems" in attempt(program, run="r3").reason


@pytest.mark.parametrize(
    ("writes", "expected"),
    [
        ("json.dump({'a': float('nan')}, open(path, 'w'))", "environment.json is left out"),
        ("json.dump([1], open(path, 'w'))", "is not an object"),
        ("open(path, 'w').write('{')", "environment.json is left out"),
        ("open(path, 'w').write('[' * 100_000)", "environment.json is left out"),
        ("os.mkfifo(path)", "environment.json is no plain file"),
        ("json.dump({'a': 'x' * 5_000_000}, open(path, 'w'))", "more than 4,194,304"),
    ],
)
def test_an_environment_that_cannot_be_used_costs_no_run(attempt, writes, expected) -> None:
    """It is optional, so the run succeeds, and its log says that it was left out."""
    end = attempt(f"path = out + '/environment.json'\n{writes}\n{GOOD}")
    assert end.status == 0, end.reason
    assert expected in end.folder.log.read_text()
    assert set(json.loads(end.folder.environment.read_text())) == {"command", "program", "system"}


def test_a_step_is_recorded_as_a_whole_or_not_at_all(attempt) -> None:
    """The evaluation of a line that is refused is no record of the run."""
    end = attempt("evaluate(0); line(0, {'eval/heldout/avg_at_1': 0.9})")
    assert end.status == 1
    assert not end.lines
    assert not list(end.folder.read_evaluations())
