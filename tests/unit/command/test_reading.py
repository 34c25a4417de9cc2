"""What a program writes is read in bounded looks, and a checkpoint is never ahead of the records of its steps."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from paribus.contract import PREEMPTED, Evaluate, Job, Options
from paribus.recipe.resolve import resolve_base
from paribus.run_folder.folder import RunFolder
from paribus_runners.command.given import Given
from paribus_runners.program.lines import MOST_AT_ONCE, Lines
from paribus_runners.program.mapping import LogMapping, read_mapping
from paribus_runners.program.records import Records

NOISE = """
noise = open("log.jsonl", "ab", buffering=0)
text, until = b"noise\\n" * 20000, time.monotonic() + 60
while time.monotonic() < until:
    noise.write(text)
    time.sleep(0.005)
open("finished", "w").close()
"""
"""Writes lines without a step faster than they are read."""

STEP = "step: step\n"


@pytest.fixture
def records(tmp_path: Path) -> tuple[Records, RunFolder, Path]:
    """The records of an attempt, its folder, and the outbox of a program that runs elsewhere."""
    return prepared(tmp_path, None, None)


def prepared(tmp_path: Path, log: str | None, mapping: LogMapping | None) -> tuple[Records, RunFolder, Path]:
    """Return the same for a program with a log and its mapping."""
    recipe = resolve_base("grpo", {"schedule.steps": 3, "optimizer.learning_rate": 0.1}).recipe
    assert recipe is not None
    job = Job(
        run="b" * 64, study="tested", arm="base", runner="command", options=Options(own={"argv": ["x"]}), seed=7,
        token=1, recipe=recipe, evaluate=Evaluate(every=3, problems=2), cache=str(tmp_path / "cache"),
    )  # fmt: skip
    folder = RunFolder(tmp_path / "a1")
    given = Given.of(folder)
    given.write(job, {})
    return Records(folder, job, given, log, mapping, 0), folder, given.out  # step 0 was taken over


def sample(step: int, text: str = "r") -> str:
    """Return a line of samples."""
    return json.dumps({"step": step, "response": text}) + "\n"


def write(path: Path, text: str) -> None:
    """Append to a file."""
    with path.open("a") as file:
        file.write(text)


def test_one_look_reads_a_bounded_part(tmp_path) -> None:
    """The rest comes with the next looks, and all of it at once when nobody writes any more."""
    path = tmp_path / "l"
    path.write_bytes(b"x" * 99 + b"\n")
    with path.open("ab") as file:
        file.write((b"y" * 999 + b"\n") * (3 * MOST_AT_ONCE // 1000))
    lines = Lines(path)
    first = sum(1 for _ in lines.read())
    assert 0 < first * 1000 < 2 * MOST_AT_ONCE
    assert sum(1 for _ in lines.read(drain=True)) == 3 * MOST_AT_ONCE // 1000 + 1 - first


def test_steps_wait_until_all_answers_are_read(tmp_path) -> None:
    """A log is not read ahead of answers that were written before it, however many there are."""
    text = "step: s\nevaluation: {log: answers.jsonl, problem: p, correct: ok, tokens: 1, truncated: 0}\n"
    reading, _, out = prepared(tmp_path, "log.jsonl", read_mapping(text, "m.yaml"))
    program = out.parent / "program"
    row = json.dumps({"s": 1, "p": "a", "ok": True, "text": "x" * 10_000}) + "\n"
    write(program / "answers.jsonl", row * (4 * MOST_AT_ONCE // 10_000))
    write(program / "log.jsonl", '{"s": 1}\n{"s": 2}\n')
    reading.look()
    assert reading.logged == 0
    for _ in range(3):
        reading.look()
    assert (reading.logged, reading.done) == (2, 1)


def test_a_checkpoint_waits_for_all_samples_of_its_steps(records) -> None:
    """Where one look does not reach their end, the step is recorded, and its checkpoint not yet published."""
    reading, folder, out = records
    count = 3 * MOST_AT_ONCE // 10_000
    write(out / "samples.jsonl", sample(1, "x" * 10_000) * count)
    write(out / "metrics.jsonl", '{"step": 1, "values": {}}\n')
    reading.look()
    assert (reading.done, reading.kept) == (1, 0)
    write(out / "metrics.jsonl", '{"step": 2, "values": {}}\n')
    for _ in range(4):
        reading.look()
    assert (reading.done, reading.kept) == (2, 2)
    assert folder.samples.read_text().count("\n") == count


def test_samples_that_come_while_lines_are_read(records, monkeypatch) -> None:
    """A sample that was written before the line of its step is recorded before its checkpoint can be published."""
    reading, folder, out = records
    look = reading._evaluations.look

    def written_meanwhile(**how: bool) -> None:
        if not (out / "metrics.jsonl").exists():
            write(out / "samples.jsonl", sample(1))
            write(out / "metrics.jsonl", '{"step": 1, "values": {}}\n')
        look(**how)

    monkeypatch.setattr(reading._evaluations, "look", written_meanwhile)
    reading.look()
    assert reading.kept == 1
    assert folder.samples.read_text() == sample(1)


def test_samples_of_other_steps_are_left_out(records) -> None:
    """A program that continues may write those before its first step again; they were carried over."""
    reading, folder, out = records
    write(out / "samples.jsonl", "".join(map(sample, (0, 1, 3, 4))) + "no sample\n")
    write(out / "metrics.jsonl", '{"step": 1, "values": {}}\n')
    reading.look()
    assert folder.samples.read_text() == sample(1) + sample(3)
    assert reading.notes() == [
        "1 line of samples.jsonl is no sample, and was left out",
        "2 lines of samples.jsonl are of no step from 1 to 3, and were left out",
    ]


def test_a_fast_writer_is_ended_for_its_patience(attempt) -> None:
    """Lines without a step are no progress, however many there are."""
    own = {"argv": ["python", "p.py"], "log": "log.jsonl", "mapping": "m.yaml", "patience": 1.0}
    end = attempt(NOISE, own=own, sources={"m.yaml": STEP})
    assert "has logged no step for 1 s" in end.reason
    assert not Given.of(end.folder).program.joinpath("finished").exists()


def test_a_fast_writer_can_be_stopped(attempt) -> None:
    """SIGTERM reaches it between two looks."""
    own = {"argv": ["python", "p.py"], "log": "log.jsonl", "mapping": "m.yaml"}
    begin = "open('log.jsonl', 'w').write('{\"step\": 0}\\n{\"step\": 1}\\n{\"step\": 2}\\n')\n"
    begin += "evaluate(0)\n"
    end = attempt(begin + NOISE, own=own, sources={"m.yaml": STEP}, stop_after=1)
    assert end.status == PREEMPTED, os.fsdecode(end.folder.log.read_bytes())
    assert not Given.of(end.folder).program.joinpath("finished").exists()
