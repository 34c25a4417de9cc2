"""The recorder of a tracked program, in the test's own process: what a machine or a program does loses no records."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from paribus.engines.process import Identity
from paribus.external import recorder
from paribus.external.recorder import Recorder
from paribus.external.spool import About, Spool
from paribus.home import make_home
from paribus.run_folder.folder import RunFolder
from paribus.store import transitions
from paribus.store.reader import Reader
from paribus.store.states import RunState


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    """The spool of a program that has not logged yet, in a home folder of its own."""
    make_home(tmp_path / "home")
    place = Spool(tmp_path / "home/tracking/1")
    place.path.mkdir(parents=True)
    about = About(
        study="live", arm="a", seed=1, trainer="", steps=3, primary="", base="", stop_on=(),
        process=Identity.of(os.getpid()).to_json(),
    )  # fmt: skip
    place.about.write_text(json.dumps(asdict(about)))
    return place


def finished(spool: Spool, *others: str) -> None:
    """Write three steps as a program that has ended well; ``others`` are more names of numbers of the second."""
    with spool.records.open("w") as file:
        for step in (1, 2, 3):
            values = {"reward/mean": step / 4, **dict.fromkeys(others if step == 2 else (), 1.0)}
            file.write(json.dumps({"step": step, "time_ms": step, "values": values}) + "\n")
    spool.end.write_text('{"status": "succeeded"}')


def recorded(spool: Spool, say: Callable[[str], None] = pytest.fail) -> list[int]:
    """Record to the end; return the recorded steps of the run, which has succeeded."""
    assert Recorder(spool, say).record()
    with Reader.open(spool.home) as reader:
        (run,) = reader.runs_of(reader.study("live").id)
    assert run.state is RunState.SUCCEEDED
    return [line.step for line in RunFolder.of(spool.home, run.fingerprint, run.token).read_metrics()]


def test_a_record_of_any_length_is_recorded_and_those_after_it(spool: Spool) -> None:
    """A program may log a step of megabytes."""
    finished(spool, *(f"probability/{'long' * 50}/{i}" for i in range(8000)))
    assert recorded(spool) == [1, 2, 3]


def test_a_run_folder_that_cannot_be_made_yet_is_made_later(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full when the run begins costs no step: the run folder is made once there is room."""
    monkeypatch.setattr(recorder, "RETRY_S", 0.0)
    blocked = spool.home / "runs"
    blocked.write_text("")  # a folder cannot be made below it
    finished(spool)
    said = []

    def say(text: str) -> None:
        said.append(text)
        blocked.unlink()

    assert recorded(spool, say) == [1, 2, 3]
    assert len(said) == 1


def test_a_second_recorder_and_a_second_attempt_record_the_same_names(spool: Spool) -> None:
    """The later of two names that are alike comes first in what the second recorder reads, and the second attempt."""

    def step(number: int, *names: str) -> None:
        values = {"reward/mean": 0.5} | {name: float(name == "acc@1") for name in names}
        with spool.records.open("a") as file:
            file.write(json.dumps({"step": number, "time_ms": number, "values": values}) + "\n")

    def names(status: str) -> list[float | None]:
        spool.end.write_text(json.dumps({"status": status}))
        assert Recorder(spool, pytest.fail).record()
        with Reader.open(spool.home) as reader:
            (run,) = reader.runs_of(reader.study("live").id)
        lines = RunFolder.of(spool.home, run.fingerprint, run.token).read_metrics()
        return [line.values.get("native/own/acc_1") for line in lines]

    step(1, "acc@1")
    step(2)
    Recorder(spool, pytest.fail)._take(over=False)
    step(3, "acc 1")
    step(3, "acc@1")
    assert names("failed") == [1.0, None, 1.0]
    for file in (spool.records, spool.state, spool.end):
        file.unlink()
    step(1, "acc 1")
    step(2, "acc@1")
    assert names("succeeded") == [None, 1.0]


def test_a_run_whose_disk_is_full_still_gives_signs_of_life(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store may be on another disk: the run must not look dead while its records wait."""
    monkeypatch.setattr(recorder, "RETRY_S", 0.0)
    monkeypatch.setattr(recorder, "BEAT_S", 0.0)
    finished(spool)
    spool.end.unlink()
    beats, said = [], list[str]()

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def beat(_: Recorder) -> None:
        beats.append(1)
        if len(beats) == 3:
            monkeypatch.undo()
            spool.end.write_text('{"status": "succeeded"}')

    monkeypatch.setattr(RunFolder, "append_metrics", full)

    def say(text: str) -> None:
        said.append(text)
        if len(said) > 20:
            pytest.fail(text)

    monkeypatch.setattr(Recorder, "_beat", beat)
    assert recorded(spool, say) == [1, 2, 3]
    assert "No space left" in said[0]


def test_a_recorder_whose_log_cannot_be_written_goes_on(spool: Spool) -> None:
    """A full disk takes no line of its log either; here the disk of the runs is full, too, for a while."""
    (spool.home / "runs").write_text("")
    finished(spool)
    with Path("/dev/full").open("w") as full:
        process = subprocess.Popen(
            [sys.executable, "-m", "paribus.external.recorder", str(spool.path)], stdout=full, stderr=full
        )
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(4)
        (spool.home / "runs").unlink()
        process.wait(60)
    finally:
        process.kill()
        process.wait()
    with Reader.open(spool.home) as reader:
        (run,) = reader.runs_of(reader.study("live").id)
    assert run.state is RunState.SUCCEEDED


def test_a_recorder_that_is_killed_right_after_its_claim_has_a_successor(
    spool: Spool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor waits until the claim is over, and records what the program has logged."""
    monkeypatch.setattr(recorder, "RETRY_S", 0.1)
    monkeypatch.setattr(transitions, "LEASE_S", 1.0)
    finished(spool)
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "_write_folder", lambda *_: sys.exit("killed"))
        with pytest.raises(SystemExit):
            Recorder(spool, pytest.fail).record()
    assert not spool.state.exists()
    assert recorded(spool, lambda _: None) == [1, 2, 3]
    assert not spool.refused.exists()
