"""Which W&B files are uploaded, when, and what stops them; the program ``wandb`` is a stub that follows orders."""

import json
import os
import subprocess
import sys
import time

import pytest

from paribus.engines.process import Identity
from paribus.mlflow_sync.wandb_files import SYNCED, WANTED
from paribus.mlflow_sync.wandb_upload import COPIES, TIMEOUT_S, Uploads

STUB = """
import json, os, pathlib, sys, time
orders = json.loads(pathlib.Path(__file__).with_name("orders.json").read_text())
[file] = pathlib.Path(sys.argv[-1]).glob("run-*.wandb")
with open(pathlib.Path(__file__).with_name("sent.txt"), "a") as log:
    print(file.stem.removeprefix("run-"), file.read_text(), file=log)
pathlib.Path(__file__).with_name("pid.txt").write_text(f"{os.getpid()} ")
order = orders.get(file.stem.removeprefix("run-"), "")
if order.startswith("append to "):
    with open(order.removeprefix("append to "), "a") as original:
        original.write("+more")
if order == "hang":
    time.sleep(600)
if order == "refuse":
    print("400 bad request")
else:
    file.with_suffix(".wandb.synced").touch()
    print("Syncing: http://127.0.0.1/x ... done.")
"""


class Case:
    """A home folder with files, and the stub."""

    def __init__(self, home, monkeypatch):
        self.home, self.now = home, 0.0
        self.program = home / "site" / "wandb"
        self.program.mkdir(parents=True)
        (self.program / "__init__.py").touch()
        (self.program / "__main__.py").write_text(STUB)
        self.order()
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(home / "site"), os.environ.get("PYTHONPATH", "")]))
        self.uploads = Uploads(home, clock=lambda: self.now)

    def order(self, **orders):
        """Say what the stub does with the files of these runs."""
        (self.program / "orders.json").write_text(json.dumps(orders))

    def file(self, name):
        """Return the file of a run."""
        return self.home / "wandb" / f"offline-run-20250101_000000-{name}" / f"run-{name}.wandb"

    def write(self, name, text, *, wanted=False):
        """Append to the file of a run as its copy does, with an alert or its end if the upload need not wait."""
        file = self.file(name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as out:
            out.write(text)
        file.with_suffix(SYNCED).unlink(missing_ok=True)
        if wanted:
            file.with_suffix(WANTED).touch()

    def turn(self, seconds=0.0):
        """Take a turn, wait for what it has started, and return how many are left."""
        self.now += seconds
        left = self.uploads.turn()
        if self.uploads._running is not None:
            self.uploads._running.process.wait()
        return left

    def sent(self):
        """Return what was sent: runs, and what their files held."""
        log = self.program / "sent.txt"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def case(tmp_path, monkeypatch):
    """Return a home folder."""
    made = Case(tmp_path, monkeypatch)
    yield made
    made.uploads.close()


def test_a_file_that_cannot_be_uploaded_stops_no_other(case):
    """It waits by itself, longer each time, and is named; the others are sent at once, and it when it can be."""
    for name in "abc":
        case.write(name, "x", wanted=True)
    case.order(a="refuse")
    lefts = [case.turn() for _ in range(4)]
    assert (case.sent(), lefts) == (["a x", "b x", "c x"], [3, 3, 2, 1])
    assert case.uploads.trouble == "run-a.wandb: 400 bad request"
    for seconds in (1, 1, 1, 4, 3):  # pauses of 1, 2 and 4 seconds: sent at 1 and 7, and not before 14
        case.turn(seconds)
    assert case.sent()[3:] == ["a x"] * 2
    case.order()
    case.turn(400)
    assert (case.turn(), case.uploads.trouble) == (0, "")
    assert case.file("a").with_suffix(SYNCED).exists()


def test_a_run_with_an_alert_is_uploaded_once_until_the_next_alert_or_its_end(case):
    """Lines that it adds meanwhile and later start no upload; its end does, with all of them."""
    case.write("a", "1", wanted=True)
    for i in range(2, 6):
        case.turn(30)
        case.write("a", str(i))
    assert case.sent() == ["a 1"]
    case.write("a", "6", wanted=True)
    case.turn(30)
    case.turn(30)
    assert case.sent() == ["a 1", "a 123456"]
    assert case.turn(30) == 0


def test_a_file_that_changes_while_it_is_uploaded_is_no_failure(case):
    """What was copied is sent; the file counts as not uploaded, and is sent again when that is wanted."""
    case.write("a", "x", wanted=True)
    case.order(a=f"append to {case.file('a')}")
    case.turn()
    assert (case.turn(), case.uploads.trouble) == (0, "")
    assert not case.file("a").with_suffix(SYNCED).exists()
    case.order()
    case.write("a", "!", wanted=True)
    case.turn()
    assert case.turn() == 0
    assert case.sent() == ["a x", "a x+more!"]
    assert case.file("a").with_suffix(SYNCED).exists()


def test_an_end_during_an_upload_is_uploaded_after_it(case):
    """The mark that was set meanwhile stays."""
    case.write("a", "x", wanted=True)
    case.turn()
    time.sleep(0.01)
    case.write("a", "end", wanted=True)
    case.turn()
    assert case.turn() == 0
    assert case.sent() == ["a x", "a xend"]


def test_an_upload_that_hangs_is_ended_and_tried_again(case):
    """After the limit; what was started is closed with its output, and leaves no copy."""
    case.write("a", "x", wanted=True)
    case.order(a="hang")
    assert case.uploads.turn() == 1
    running = case.uploads._running
    case.now += TIMEOUT_S + 1
    assert case.uploads.turn() == 1
    running.process.wait()
    assert case.uploads.turn() == 1
    assert (case.uploads.trouble, running.output.closed) == ("run-a.wandb: wandb sync: no end within 600 s", True)
    case.now += 2
    case.uploads.turn()
    running = case.uploads._running
    case.uploads.close()
    assert running.output.closed
    assert running.process.poll() is not None
    assert not (case.home / "wandb" / COPIES).exists()
    case.order()
    assert case.turn() == 1
    assert case.turn() == 0


PROGRAM = """
import sys, time
from pathlib import Path
from paribus.mlflow_sync.wandb_upload import Uploads

uploads = Uploads(Path(sys.argv[1]))
uploads.turn()
time.sleep(600)
"""


def until(condition):
    """Wait until a condition holds, and return what it has returned."""
    end = time.monotonic() + 60
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def test_no_upload_outlives_a_sync_process_that_is_killed(case):
    """It would go on sending an older copy beside the next process, whose own copy is newer."""
    case.write("a", "x", wanted=True)
    case.order(a="hang")
    pid = case.program / "pid.txt"
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(case.home)]) as process:
        until(lambda: pid.exists() and pid.read_text().endswith(" "))
        upload = Identity.of(int(pid.read_text()))
        assert upload.alive()
        process.kill()
    until(lambda: not upload.alive())


def test_the_mark_of_an_earlier_upload_marks_no_later_one(case):
    """Each upload has a copy of its own: a mark that comes late at the older one says nothing of the newer one."""
    case.write("a", "x", wanted=True)
    case.order(a="hang")
    case.uploads.turn()
    earlier = case.uploads._running.copy
    case.uploads.close()
    case.write("a", "end", wanted=True)
    case.order(a="refuse")
    case.uploads.turn()
    running = case.uploads._running
    assert [path.read_text() for path in (case.home / "wandb" / COPIES).rglob("*.wandb")] == ["xend"]
    earlier.parent.mkdir(parents=True, exist_ok=True)
    earlier.with_suffix(SYNCED).touch()
    running.process.wait()
    assert (case.uploads.turn(), case.uploads.trouble) == (1, "run-a.wandb: 400 bad request")
    assert not case.file("a").with_suffix(SYNCED).exists()
