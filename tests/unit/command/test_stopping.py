"""A program that is stopped or killed continues from its own checkpoint, and only from one that is whole."""

from __future__ import annotations

import json
import time

from paribus.contract import PREEMPTED
from paribus.run_folder.checkpoints import published, read_manifest
from support.site import until

LOOP = """\
import signal
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
first, before = int(os.environ["PARIBUS_FIRST_STEP"]), os.environ["PARIBUS_CHECKPOINT"]
state = json.load(open(before + "/state.json")) if before else []

def keep(step):
    os.mkdir(out + "/checkpoints/new")
    json.dump(state, open(out + "/checkpoints/new/state.json", "w"))
    os.rename(out + "/checkpoints/new", f"{out}/checkpoints/step-{step}")

for step in range(first, last + 1):
    state.append(step)
    if step % 3 == 0: evaluate(step)
    line(step, {"native/command/states": len(state)})
    until = time.monotonic() + PAUSE
    while time.monotonic() < until and not asked: time.sleep(0.01)
    if asked:
        keep(step); sys.exit(75)
finish()
"""


def test_a_stopped_program_continues_where_it_was(attempt) -> None:
    """SIGTERM goes to it; what it keeps is published, the next attempt gets it, and its records are carried over."""
    first = attempt(LOOP.replace("PAUSE", "60"), own={"resumes": True}, stop_after=1)
    assert first.status == PREEMPTED, first.folder.log.read_text()
    (place,) = published(first.folder)
    assert read_manifest(place).step == 0
    second = attempt(LOOP.replace("PAUSE", "0"), own={"resumes": True}, token=2)
    assert second.status == 0, second.folder.log.read_text()
    assert [line.values["native/command/states"] for line in second.lines] == [1, 2, 3, 4]
    assert second.lines[:1] == first.lines
    assert len(second.folder.read_evaluations()) == 2


def test_a_program_that_does_not_resume_begins_again(attempt) -> None:
    """Without `resumes: true` no attempt gets a checkpoint; a stop is a stop all the same."""
    first = attempt(LOOP.replace("PAUSE", "60"), stop_after=1)
    assert first.status == PREEMPTED
    assert published(first.folder)
    second = attempt(
        LOOP.replace("PAUSE", "0") + "json.dump({'first': first}, open(out + '/environment.json', 'w'))", token=2
    )
    assert second.status == 0, second.folder.log.read_text()
    assert json.loads(second.folder.environment.read_text())["first"] == 0


def test_a_damaged_checkpoint_is_not_continued_from(attempt) -> None:
    """Its hash is compared; the log says so, and the attempt begins anew."""
    first = attempt(LOOP.replace("PAUSE", "60"), own={"resumes": True}, stop_after=1)
    (published(first.folder)[0] / "state.json").write_text("[0, 1, 2]")
    second = attempt(LOOP.replace("PAUSE", "0"), own={"resumes": True}, token=2)
    assert second.status == 0
    assert [line.values["native/command/states"] for line in second.lines] == [1, 2, 3, 4]
    assert "state.json is damaged" in second.folder.log.read_text()


def test_a_kill_after_the_last_step_costs_no_step(attempt) -> None:
    """If the newest checkpoint is of the last step, the program starts behind it and has its result left to write."""
    program = LOOP.replace("PAUSE", "0").replace("finish()", "keep(last); os.kill(os.getpid(), 9)")
    first = attempt(program, own={"resumes": True})
    assert first.status == 128 + 9
    second = attempt(LOOP.replace("PAUSE", "0"), own={"resumes": True}, token=2)
    assert second.status == 0, second.folder.log.read_text()
    assert json.loads(second.folder.result.read_text()) == {"status": "succeeded", "steps": 3}
    assert [line.step for line in second.lines] == [0, 1, 2, 3]


def test_a_failure_after_the_last_step_stays_a_failure(attempt) -> None:
    """No attempt takes a program for succeeded that has not said so, whatever checkpoint an earlier one has left."""
    failing = LOOP.replace("PAUSE", "0").replace("finish()", "if not before: keep(last)\nsys.exit('not exported')")
    for token in (1, 2, 3):
        end = attempt(failing, own={"resumes": True}, token=token)
        assert end.status == 1
        assert "ended with exit status 1 after step 3: not exported" in end.reason
        assert not end.folder.result.exists()


def test_a_program_can_ask_to_be_resumed(attempt) -> None:
    """Exit status 75 with a checkpoint is a release; a checkpoint ahead of its lines is not published."""
    asking = "evaluate(0); line(0); os.mkdir(out + '/x'); open(out + '/x/w', 'w').close()\n"
    ahead = attempt(asking + "os.rename(out + '/x', out + '/checkpoints/step-2'); sys.exit(75)", own={"resumes": True})
    assert "asks to be resumed, and wrote no checkpoint" in ahead.reason
    assert not published(ahead.folder)
    asking += "os.rename(out + '/x', out + '/checkpoints/step-0'); sys.exit(75)"
    good = attempt(asking, own={"resumes": True}, token=2)
    assert good.status == PREEMPTED


def test_a_program_that_ends_on_sigterm_by_itself_is_stopped(attempt) -> None:
    """One that knows nothing of signals dies of it, which is no failure."""
    end = attempt("evaluate(0); line(0); time.sleep(600)", stop_after=1)
    assert end.status == PREEMPTED
    assert not end.folder.result.exists()


def test_a_killed_runner_takes_its_program_along(attempt, tmp_path) -> None:
    """After `kill -9` of the runner the program does not train on, and the next attempt continues."""
    keeping = LOOP.replace("PAUSE", "(0.3 if step < last else 600)").replace(
        "    until =", "    keep(step)\n    until ="
    )
    beating = "import threading\n" + (
        f"threading.Thread(target=lambda: [(open({str(tmp_path / 'beat')!r}, 'w').write(str(time.time())), "
        "time.sleep(0.02)) for _ in range(30_000)], daemon=True).start()\n"
    )
    first = attempt(beating + keeping, own={"resumes": True}, kill_after=3)
    assert first.status == -9

    def silent() -> bool:
        last = (tmp_path / "beat").read_text()
        time.sleep(0.3)
        return (tmp_path / "beat").read_text() == last

    until(silent)
    second = attempt(LOOP.replace("PAUSE", "0"), own={"resumes": True}, token=2)
    assert second.status == 0, second.folder.log.read_text()
    assert [line.values["native/command/states"] for line in second.lines] == [1, 2, 3, 4]
    assert second.lines[0] == first.lines[0]
