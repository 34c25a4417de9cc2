"""Logs of scripts that do not know Paribus, read through a mapping file."""

from __future__ import annotations

import json
import re

import pytest

from paribus.contract import PREEMPTED, Evaluate

MAPPING = """\
step: {key: i, offset: 1}
metrics:
  acc: {metric: reward/correct_frac, scale: 0.01, source: exact}
  ent: policy/entropy
evaluation: {log: answers.jsonl, step: done, problem: p, correct: ok, answer: said, tokens: n, truncated: cut,
             set: which}
"""
SCRIPT = """\
def log(i, **values):
    with open("log.jsonl", "a") as file: file.write(json.dumps({"i": i, **values}) + "\\n")

def answer(done, p, said_ok, **more):
    row = {"done": done, "p": p, "ok": said_ok, "said": "x" if said_ok else "y", "n": 3, "cut": False}
    row.update({"which": "heldout", **more})
    with open("answers.jsonl", "a") as file: file.write(json.dumps(row) + "\\n")

def test(done, **more):
    for p, ok in (("a", True), ("b", False)): answer(done, p, ok, **more)

"""
GOOD = (
    "test(0)\nfor i in range(3):\n    log(i, acc=50.0, ent=0.1)\n    log(i, lr=0.5, note='text', best=[1])\ntest(3)\n"
)


def mapped(attempt, program: str, mapping: str = MAPPING, **more):
    """Run a script with a mapping file."""
    own = {"argv": ["python", "p.py"], "mapping": "m.yaml", "log": "log.jsonl"}
    return attempt(SCRIPT + program, own=own, sources={"m.yaml": mapping}, **more)


def test_a_log_is_translated(attempt) -> None:
    """Several lines of a step are one, in canonical names and scales; the rest is native, the sources are kept."""
    end = mapped(attempt, "open('log.jsonl', 'w').write('starting\\n')\n" + GOOD)
    assert end.status == 0, end.folder.log.read_text()
    assert [line.step for line in end.lines] == [0, 1, 2, 3]
    values = dict(end.lines[1].values)
    assert values == {"reward/correct_frac": 0.5, "policy/entropy": 0.1, "native/command/lr": 0.5}
    assert end.lines[1].sources == {"policy/entropy": "proxy"}
    (before, after) = end.folder.read_evaluations()
    assert (before.correct, before.tokens, before.answers) == ((1, 0), (3, 3), ({"x": 1}, {"y": 1}))
    assert after.step == 3
    assert "1 line of log.jsonl has no step" in end.folder.log.read_text()


def test_names_that_differ_only_in_other_characters_are_kept_apart(attempt) -> None:
    """One would take the other's place, or end the run with two values of one step; the log names what was renamed."""
    rows = ({"a@1": 1.0}, {"a 1": 2.0}, {"a@1": 1.0})
    both = "".join(f"    log(i, **{row})\n" for row in rows)
    end = mapped(attempt, GOOD.replace("test(3)", f"{both}test(3)"))
    assert end.status == 0, end.folder.log.read_text()
    names = {name: value for name, value in end.lines[3].values.items() if "a_1" in name}
    assert names.pop("native/command/a_1") == 1.0
    ((other, value),) = names.items()
    assert re.fullmatch("native/command/a_1-[0-9a-f]{8}", other)
    assert value == 2.0
    assert f"`a 1` is recorded as `{other}`" in end.folder.log.read_text()


def test_a_resumed_attempt_records_the_same_names(attempt) -> None:
    """The later of two names that are alike comes first in the log of the second attempt."""
    program = """
if not os.environ["PARIBUS_CHECKPOINT"]:
    test(0); log(0, **{"a@1": 1.0}); log(0, **{"a 1": 2.0}); log(1)
    os.mkdir(out + "/checkpoints/new"); open(out + "/checkpoints/new/w", "w").close()
    os.rename(out + "/checkpoints/new", out + "/checkpoints/step-1")
    sys.exit(75)
for i in (1, 2):
    log(i, **{"a 1": 2.0}); log(i, **{"a@1": 1.0})
test(3)
"""
    own = {"argv": ["python", "p.py"], "mapping": "m.yaml", "log": "log.jsonl", "resumes": True}
    first = attempt(SCRIPT + program, own=own, sources={"m.yaml": MAPPING})
    assert first.status == PREEMPTED, first.folder.log.read_text()
    second = attempt(SCRIPT + program, own=own, sources={"m.yaml": MAPPING}, token=2)
    assert second.status == 0, second.folder.log.read_text()
    assert [line.step for line in second.lines] == [0, 1, 2, 3]
    assert [line.values["native/command/a_1"] for line in second.lines[1:]] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (
            GOOD.replace("test(0)", ""),
            "the evaluation of `heldout` is due at step 0, and the script's answers have none",
        ),
        (GOOD.replace("range(3)", "range(2)"), "says that it succeeded after step 2 of 3"),
        (GOOD.replace("range(3)", "(0, 2)"), "log.jsonl:3: step 3 follows step 1"),
        (GOOD.replace("lr=0.5", "acc=60.0"), "`reward/correct_frac` has two values at step 1: 0.5 and 0.6"),
        (GOOD.replace("log(i, acc", "log('x', acc"), "log.jsonl:1: `i` is 'x', which gives no step"),
        (GOOD.replace("test(3)", "test(3, ok=2)"), "answers.jsonl:3: `ok` is 2: it must be true, false, 0 or 1"),
        (GOOD.replace("test(3)", "test(3, n=-1)"), "`n` is -1, which is no number of tokens"),
        (GOOD.replace("test(3)", "test(3, which='hard')"), "`which` is 'hard', which is no set of this study"),
        (GOOD + "answer(3, 'a', True)\n", "problems have different numbers of responses"),
        (GOOD.replace("lr=0.5", "lr=10**400"), "`lr` is 1000"),
        (GOOD.replace("acc=50.0", "acc=10**400"), "which is too large for a number"),
        ("open('log.jsonl', 'w').write('{\\n')\n", "log.jsonl:1: not JSON"),
    ],
)
def test_a_log_that_says_something_else_ends_the_run(attempt, program, expected) -> None:
    """With file and line where there is one; nothing after the mistake is recorded."""
    end = mapped(attempt, program)
    assert end.status == 1, end.folder.log.read_text()
    assert expected in end.reason
    assert not end.folder.result.exists()


def test_several_responses_need_their_answers(attempt) -> None:
    """maj@k is counted from answers, so they are not made up."""
    program = GOOD.replace("test(0)", "test(0); test(0)").replace("test(3)", "test(3); test(3)")
    evaluate = Evaluate(every=3, problems=2, samples=2)
    assert mapped(attempt, program, evaluate=evaluate).status == 0
    without = MAPPING.replace("answer: said, ", "")
    end = mapped(attempt, program, without, evaluate=evaluate, token=2)
    assert "several responses to a problem need `evaluation.answer`" in end.reason


def test_a_log_of_an_earlier_run_is_not_read(attempt) -> None:
    """Logs that came along with the script are removed before it starts, so that it records what it writes itself."""
    old = "".join(json.dumps({"i": i, "acc": 99.0}) + "\n" for i in range(3))
    answers = "".join(
        json.dumps({"done": s, "p": p, "ok": True, "said": "x", "n": 3, "cut": False, "which": "heldout"}) + "\n"
        for s in (0, 3)
        for p in "ab"
    )
    stale = {"m.yaml": MAPPING, "log.jsonl": old, "answers.jsonl": answers}
    own = {"argv": ["python", "p.py"], "mapping": "m.yaml", "log": "./log.jsonl"}
    idle = attempt(own=own, sources=stale)
    assert idle.status == 1
    assert not idle.lines
    end = attempt(SCRIPT + GOOD, own=own, sources=stale, token=2)
    assert end.status == 0, end.folder.log.read_text()
    assert [line.values.get("reward/correct_frac") for line in end.lines] == [None, 0.5, 0.5, 0.5]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (
            "answer(0, 'a', True)\nlog(0)\nlog(1)",
            "could be recorded for 10 s, after no step: step 2 is logged, and waits for the evaluation of `heldout` at "
            "step 0, which has not come in full",
        ),
        ("test(0)\nlog(0)\nlog(1)", "has logged no step for 10 s, after step 2: it hangs"),
    ],
)
def test_a_silent_script_is_told_what_is_waited_for(attempt, program, expected) -> None:
    """Steps that were logged are not said to be missing if it is their evaluation that has not come."""
    own = {"argv": ["python", "p.py"], "mapping": "m.yaml", "log": "log.jsonl", "patience": 10.0}
    end = attempt(f"{SCRIPT}{program}\ntime.sleep(60)", own=own, sources={"m.yaml": MAPPING})
    assert expected in end.reason
