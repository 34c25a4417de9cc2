"""Event files: TensorBoard reads back each step once, whatever was killed when."""

import io
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from paribus.mlflow_sync.copies import COMPLETE, unwritten
from paribus.mlflow_sync.event_files import FOLDER, EventFiles
from paribus.run_folder.attempt_files import read_job
from paribus.run_folder.folder import MetricLine, RunFolder, read_json
from paribus.store.reader import Reader
from support.mlflow_case import Case, write

pytest.importorskip("tensorboard")
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter


def _no_mlflow(home):
    raise AssertionError("nothing here is copied to MLflow")


@pytest.fixture
def case(tmp_path):
    """Return a store with one run."""
    made = Case(tmp_path, _no_mlflow)
    yield made
    made.close()


def attempt(case, *mirror):
    """Begin an attempt of a study that wants these copies."""
    folder = case.attempt()
    folder.job.write_text(read_job(folder.job).model_copy(update={"mirror": mirror}).model_dump_json())
    return folder


def turn(case):
    """Write what is new, as a process that knows only what is on disk."""
    files = EventFiles(Reader(case.store.database, case.home))
    return files.turn()


def file_of(case):
    """Return the only event file."""
    [found] = (case.home / FOLDER).rglob("events.out.tfevents.*")
    return found


def read_back(case, metric="reward/mean"):
    """Return step and value of each point as TensorBoard reads it."""
    events = EventAccumulator(str(file_of(case).parent), size_guidance={"scalars": 0})
    events.Reload()
    return [(e.step, e.value) for e in events.Scalars(metric)]


def test_tensorboard_reads_each_step_with_its_time(case):
    """Written in parts, and found under study, arm and seed."""
    folder = attempt(case, "mlflow", "tensorboard")
    files = EventFiles(Reader(case.store.database, case.home))
    for first in (0, 5, 10):
        write(folder, range(first, first + 5))
        assert files.turn() == 0
    assert read_back(case) == [(step, step) for step in range(15)]
    place = file_of(case).relative_to(case.home / FOLDER)
    assert place.parts[:2] == ("small", "arm 0")
    assert place.parts[2] == f"seed-0-{case.run[:12]}"
    events = EventAccumulator(str(file_of(case)))
    events.Reload()
    assert events.Scalars("reward/mean")[7].wall_time == pytest.approx(1.007)


def test_a_study_that_wants_no_event_files_gets_none(case):
    """The default is MLflow alone; the run is not asked for again."""
    folder = case.attempt()
    write(folder, range(3))
    case.finish()
    assert turn(case) == 0
    assert not (case.home / FOLDER).exists()


def test_a_study_that_wants_event_files_alone_never_asks_mlflow(case):
    """And nothing of it counts as missing there."""
    write(attempt(case, "tensorboard"), range(3))
    case.finish()
    sync = case.sync()
    assert sync.turn() == 0
    assert sync.trouble == ""
    assert turn(case) == 0
    assert [step for step, _ in read_back(case)] == [0, 1, 2]


def test_any_end_of_a_file_is_continued(case):
    """A file that was cut at any byte has each step once after the next turn."""
    folder = attempt(case, "tensorboard")
    write(folder, range(4))
    turn(case)
    whole = file_of(case).read_bytes()
    for size in range(len(whole)):
        file_of(case).write_bytes(whole[:size])
        turn(case)
        assert file_of(case).read_bytes() == whole
    file_of(case).write_bytes(whole[:-30] + bytes(64))  # a power cut may leave zeros
    turn(case)
    assert read_back(case) == [(step, step) for step in range(4)]


def test_a_file_that_is_deleted_is_written_again(case):
    """While the process runs, too."""
    folder = attempt(case, "tensorboard")
    files = EventFiles(Reader(case.store.database, case.home))
    write(folder, range(3))
    files.turn()
    file_of(case).unlink()
    write(folder, range(3, 5))
    files.turn()
    assert read_back(case) == [(step, step) for step in range(5)]


def test_the_first_attempt_to_reach_a_step_counts(case):
    """As in MLflow; a later one adds its own."""
    write(attempt(case, "tensorboard"), range(6))
    turn(case)
    case.give_back()
    write(attempt(case, "tensorboard"), range(3, 9), value=lambda step: 100.0 + step)
    case.finish()
    assert unwritten(case.home, EventFiles, {case.run: 2}) == {case.run}
    assert turn(case) == 0
    assert read_back(case) == [(s, s) for s in range(6)] + [(s, 100 + s) for s in range(6, 9)]
    assert unwritten(case.home, EventFiles, {case.run: 2}) == frozenset()
    assert read_json(case.home / FOLDER / COMPLETE) == {case.run: 2}


def test_a_damaged_line_ends_the_copy_of_its_attempt_and_holds_up_nobody(case):
    """What stands before it is there."""
    folder = attempt(case, "tensorboard")
    write(folder, range(3))
    with folder.metrics.open("a") as file:
        file.write("garbage\n")
    write(folder, range(3, 5))
    case.finish()
    assert turn(case) == 0
    assert read_back(case) == [(step, step) for step in range(3)]


PROGRAM = """
import sys
from pathlib import Path
from paribus.mlflow_sync.event_files import EventFiles
from paribus.store.reader import Reader

with Reader.open(Path(sys.argv[1])) as reader:
    files = EventFiles(reader)
    print("ready", flush=True)
    while True:
        files.turn()
"""


@pytest.mark.slow
def test_kills_lose_and_double_nothing(case):
    """The process is killed at random moments while the run writes; the last one completes the file."""
    folder = attempt(case, "tensorboard")
    dice, step = random.Random(0), 0
    for _ in range(4):
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(case.home)], stdout=subprocess.PIPE)
        process.stdout.readline()
        until = time.monotonic() + dice.uniform(0.05, 0.4)
        while time.monotonic() < until:
            lines = [
                MetricLine(step=s, time_ms=s, values={f"m/{k}": float(s + k) for k in range(40)} | {"reward/mean": s})
                for s in range(step, step + 3)
            ]
            for line in lines:
                folder.append_metrics(line)
            step += 3
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    case.finish()
    assert turn(case) == 0
    assert read_back(case) == [(s, s) for s in range(step)]
    assert read_back(case, "m/39") == [(s, s + 39) for s in range(step)]
    assert RunFolder.of(case.home, case.run, 1).metrics.read_text().count("\n") == step


def test_a_run_that_cannot_be_written_is_waited_for_three_times(case):
    """Every end of a scheduler would wait for it otherwise."""
    folder = attempt(case, "tensorboard")
    write(folder, range(3))
    case.finish()
    folder.job.write_text("{")
    files = EventFiles(Reader(case.store.database, case.home))
    assert [files.turn() for _ in range(5)] == [1, 1, 1, 0, 0]
    assert "job.json" in files.trouble


def test_a_damaged_record_is_written_again(case):
    """Its checksums fit: another program wrote it."""
    folder = attempt(case, "tensorboard")
    write(folder, range(3))
    turn(case)
    whole, record = file_of(case).read_bytes(), io.BytesIO()
    RecordWriter(record).write(b"\xff\xff\xff\xff")
    file_of(case).write_bytes(whole + record.getvalue())
    turn(case)
    assert file_of(case).read_bytes() == whole
