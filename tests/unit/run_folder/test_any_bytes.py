"""Whatever bytes a file of a run holds, its reader returns checked values or one error that names the file.

``make test-fuzz`` reads more damaged files of each kind.
"""

from __future__ import annotations

import json
import math
import os
import random
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from paribus.cli import paribus
from paribus.engines.launch import read_number
from paribus.engines.process import Identity
from paribus.errors import RunFolderError
from paribus.health.finding import plain, read_health
from paribus.health.judge import read_attempts, saved_diagnosis
from paribus.health.liveness import nan
from paribus.health.signals import with_signals
from paribus.report.collect import read_study
from paribus.run_folder import attempt_files, checkpoints
from paribus.run_folder.folder import MetricLine, RunFolder, Tail, read_evaluation, write_json
from paribus.run_folder.native_names import NamesFile
from paribus.run_folder.samples import SampleFile
from paribus.run_folder.series import Columns
from paribus.run_folder.series_file import PREFIX, AttemptSeries, pack
from paribus.store.reader import Reader
from support.confined import confined
from support.damage import COUNT, DEEP, TEXTS, damaged, dice, other, put
from support.homes import made_up_home
from support.studies import Shape


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with a study whose runs have ended."""
    folder = tmp_path_factory.mktemp("any") / "home"
    make_home(folder)
    return folder


def make_home(folder: Path) -> None:
    """Make a home folder whose runs have all files that are read."""
    made_up_home(folder, Shape(steps=8, designs=("add_one",), tricks=("clip_higher",), seeds=3))
    for path in sorted((folder / "runs").glob("*/a*")):
        complete(RunFolder(path))


def complete(folder: RunFolder) -> None:
    """Add the files that made-up runs lack."""
    here = Identity.of(os.getpid()).to_json()
    write_json(folder.attempt, {"token": 1, "supervisor": here, "runner": here})
    write_json(folder.environment, {"python": "3.11", "packages": {"torch": "2.5", "numpy": "2"}, "gpus": ["none"]})
    write_json(folder.names, {"acc@1": "acc_1", "acc 1": "acc_1-6a7c1a55", "acc_1": "acc_1-1c2d3e4f"})
    write_json(folder.outcome, {"do": "fail", "kind": "program", "reason": "it broke", "signature": "it", "run": 7})
    place = folder.checkpoints / "step-000003"
    (place / "model").mkdir(parents=True)
    (place / "model" / "weights").write_bytes(b"w")
    record = {"run": "f", "step": 3, "spent": {"tokens": 7}, "files": {"model/weights": "0" * 64}}
    write_json(place / checkpoints.MANIFEST, record)
    write_json(folder.checkpoints / checkpoints.INDEX, {"checkpoints": [place.name]})
    pack(folder, ended=True)


# ---- one reader for each kind of file, and what is done with the values that it returns --------------------------


def _use_metrics(folder: RunFolder) -> None:
    tail, found = Tail(folder.metrics), list[MetricLine]()
    try:
        while lines := tail.read():
            found += lines
    finally:
        columns = Columns.of(found)
        for name in columns.names:
            columns.series(name, least=2)
        nan(found)
        copy = RunFolder(folder.path / "copy")
        copy.path.mkdir(exist_ok=True)
        copy.metrics.unlink(missing_ok=True)
        for line in found[:3]:
            copy.append_metrics(line)
        assert repr(list(copy.read_metrics())) == repr(found[:3])  # NaN is not equal to itself
    assert tail.offset == folder.metrics.read_bytes().rfind(b"\n") + 1


def _use_evaluation(folder: RunFolder) -> None:
    evaluation = read_evaluation(folder.evals / "heldout-000004.json")
    line = MetricLine(step=evaluation.step, time_ms=0, values={})
    with_signals([line], evaluations=[evaluation], primary=f"eval/{evaluation.set}/avg_at_{evaluation.samples}")
    np.asarray(evaluation.correct, np.int64)
    written = RunFolder(folder.path / "copy")
    written.path.mkdir(exist_ok=True)
    written.write_evaluation(evaluation)
    assert read_evaluation(written.evaluation(evaluation.set, evaluation.step)) == evaluation
    assert written.evaluation(evaluation.set, evaluation.step).parent == written.evals


def _use_samples(folder: RunFolder) -> None:
    file = SampleFile(folder.samples)
    file.refresh()
    found = file.read(file.pieces)
    steps = sorted({s.step for s in found})
    with_signals([MetricLine(step=s, time_ms=0, values={}) for s in steps], samples=found)
    repr(found).encode()


def _use_health(folder: RunFolder) -> None:
    known = read_health(folder)
    if known is not None:
        saved_diagnosis(known)
        shown = [json.dumps(plain(f)) for f in (*known.raised, *known.others)]
        f"{known.step:06d} {known.time_ms} {known.detector} {known.profile}{shown}".encode()


def _use_result(folder: RunFolder) -> None:
    payload = attempt_files.read_result(folder)
    assert payload["status"] in ("succeeded", "stopped_early")
    json.dumps(payload, allow_nan=False, ensure_ascii=False).encode()


def _use_outcome(folder: RunFolder) -> None:
    report = attempt_files.read_outcome(folder)
    assert report["do"] in ("finish", "fail", "release", "lost", "cancelled")
    assert report.get("kind", "program") in ("program", "infrastructure", "storage")
    assert 0 <= report.get("wait_s", 0) <= 3600
    json.dumps(report, ensure_ascii=False).encode()


def _use_attempt(folder: RunFolder) -> None:
    for process in attempt_files.read_attempt(folder).values():
        Identity.read(process).alive()


def _use_environment(folder: RunFolder) -> None:
    json.dumps(attempt_files.read_environment(folder), ensure_ascii=False).encode()


def _use_names(folder: RunFolder) -> None:
    """A name that was not made of its key isn't taken."""
    kept = NamesFile(folder)
    kept.save()
    for name in (*kept.names.renamed, "acc@1", "acc 1", "acc_1"):
        assert re.fullmatch(r"[A-Za-z0-9_./-]*", kept.names.of(name))


def _use_manifest(folder: RunFolder) -> None:
    place = folder.checkpoints / "step-000003"
    checkpoints.damaged_files(place)
    for name in checkpoints.read_manifest(place).files:
        assert place in Path(os.path.normpath(place / name)).parents


def _use_index(folder: RunFolder) -> None:
    for place in checkpoints.published(folder):
        assert Path(os.path.normpath(place)).parent == folder.checkpoints


def _use_job(folder: RunFolder) -> None:
    attempt_files.read_job(folder.job)


def _use_series(folder: RunFolder) -> None:
    """No bytes in the derived file make metric lines unreadable; a checksum that fits is no proof."""
    expected = Columns.of(folder.read_metrics())
    found = AttemptSeries(folder)
    for name in found.names:
        for width in (1, 16):
            found.series(name, width)
    assert expected.span is not None


def _use_exit_status(folder: RunFolder) -> None:
    code = read_number(folder.path / "job.exit")
    assert code is None or -255 <= code <= 255


@dataclass(frozen=True)
class Kind:
    """A kind of file: where it lies in a run folder, and what reads it."""

    path: str
    use: Callable[[RunFolder], None]


KINDS = {
    "metrics": Kind("metrics.jsonl", _use_metrics),
    "evaluation": Kind("evals/heldout-000004.json", _use_evaluation),
    "samples": Kind("samples.jsonl", _use_samples),
    "health": Kind("health.json", _use_health),
    "result": Kind("result.json", _use_result),
    "outcome": Kind("outcome.json", _use_outcome),
    "attempt": Kind("attempt.json", _use_attempt),
    "environment": Kind("environment.json", _use_environment),
    "names": Kind("names.json", _use_names),
    "manifest": Kind("checkpoints/step-000003/paribus.json", _use_manifest),
    "index of checkpoints": Kind("checkpoints/index.json", _use_index),
    "job": Kind("job.json", _use_job),
    "series": Kind("series.bin", _use_series),
    "exit status": Kind("job.exit", _use_exit_status),
}


@pytest.mark.parametrize("kind", KINDS)
def test_any_bytes_give_values_or_one_error_that_names_the_file(home: Path, tmp_path: Path, kind: str) -> None:
    """Real files with mistakes in their bytes or values, odd texts, and files of other kinds; see also `confined`."""
    confined(lambda: _read_damaged_files(home, tmp_path, kind), tmp_path)


def real_files(home: Path, kind: str) -> list[bytes]:
    """Return files of a kind as they are in a home folder."""
    real = [p.read_bytes() for p in sorted((home / "runs").glob(f"*/a*/{KINDS[kind].path}"))][:6] or [b"0\n", b"-15\n"]
    if kind == "samples":  # a few lines: what is wrong with one shows as well there, ten times as fast
        real = [b"".join(data.splitlines(keepends=True)[:12]) for data in real]
    if kind == "outcome":
        real += [json.dumps(o).encode() for o in OUTCOMES]
    return real


def reader(home: Path, place: Path, kind: str) -> Callable[[bytes], bool]:
    """Return what writes bytes as a file of a run folder, reads them, and returns whether they were refused."""
    folder, file, use = RunFolder(place), place / KINDS[kind].path, KINDS[kind].use
    file.parent.mkdir(parents=True, exist_ok=True)
    folder.metrics.write_bytes(next(iter((home / "runs").glob("*/a*/metrics.jsonl"))).read_bytes())

    def read(data: bytes) -> bool:
        put(file, data)
        try:
            use(folder)
        except RunFolderError as error:
            told = str(error)
            assert str(file) in told, told
            assert told.isprintable(), told
            assert len(told) < 300 + 2 * len(str(file)), told
            return True
        return False

    return read


def _read_damaged_files(home: Path, tmp_path: Path, kind: str) -> None:
    real, read = real_files(home, kind), reader(home, tmp_path, kind)
    refused = 0
    for number in range(-len(TEXTS), COUNT):
        chance = dice(kind, number)
        data = TEXTS[number] if number < 0 else damaged(real, chance)
        if kind == "series" and number % 2:
            data = with_other_header(chance.choice(real), chance)
        try:
            refused += read(data)
        except Exception as error:
            error.add_note(f"{kind} {number}: {data[:500]!r}")
            raise
    assert refused > COUNT / 10 or kind in ("samples", "health", "names", "series", "exit status")


OUTCOMES: tuple[dict[str, Any], ...] = (
    {"do": "finish", "payload": {"status": "succeeded"}, "stopped_early": False, "exit_code": 0, "run": 1, "token": 1},
    {"do": "release", "reason": "asked to stop", "wait_s": 0.0, "exit_code": 75, "step": 9},
    {"do": "cancelled"},
    {"do": "lost", "reason": "another attempt"},
)


def with_other_header(data: bytes, chance: random.Random) -> bytes:
    """Return a series file whose first header has other values, and the checksum that fits them."""
    magic, length, _, body = PREFIX.unpack_from(data)
    header = json.dumps(other(json.loads(data[PREFIX.size : PREFIX.size + length]), chance)).encode()
    rest = data[PREFIX.size + length :]
    return PREFIX.pack(magic, len(header), zlib.crc32(header), body) + header + rest


# ---- the readers one by one ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (DEEP, "nested more than 64 deep"),
        (b"\xff", "not UTF-8: byte 0xff"),
        (b'{"step": "7", "time_ms": 1, "values": {}}', "`step` is '7', not a whole number"),
        (b'{"step": true, "time_ms": 1, "values": {}}', "`step` is True, not a whole number"),
        (b'{"step": -1, "time_ms": 1, "values": {}}', "`step` is -1, not a whole number from 0"),
        (b'{"step": NaN, "time_ms": 1, "values": {}}', "`step` is nan, not a whole number"),
        (b'{"step": 1, "time_ms": 1e300, "values": {}}', "`time_ms` is 1000000"),
        (b'{"step": 1, "time_ms": 1, "values": {"a": true}}', "`a` is True, not a number"),
        (b'{"step": 1, "time_ms": 1, "values": {"a": 1' + b"0" * 400 + b"}}", "not a number"),
        (b'{"step": 1, "time_ms": 1, "values": {"a\\u001b[2J": null}}', "`a\\x1b[2J` is None, not a number"),
        (b'{"step": 1, "time_ms": 1, "values": []}', "[] is not an object"),
        (b'{"step": 1, "time_ms": 1}', "`values` is missing"),
        (b"", "not JSON"),
        (b" " * (1 << 22), "longer than 4194304 bytes"),
    ],
)
def test_a_damaged_line_is_named_and_the_lines_before_it_are_read(tmp_path: Path, line: bytes, told: str) -> None:
    """The error has the file and the line, wherever reading began, and comes again with each call."""
    folder = RunFolder(tmp_path)
    for step in range(3):
        folder.append_metrics(MetricLine(step=step, time_ms=1, values={"a": math.nan}))
    with folder.metrics.open("ab") as file:
        file.write(line + b"\n" + b'{"step": 9, "time_ms": 1, "values": {}}\n')
    whole = Tail(folder.metrics)
    assert [x.step for x in whole.read()] == [0, 1, 2]
    for tail in (whole, whole, Tail(folder.metrics, whole.offset)):
        with pytest.raises(RunFolderError) as caught:
            tail.read()
        assert str(caught.value).startswith(f"{folder.metrics}:4: not a metric line: ")
        assert told in str(caught.value)


def test_numbers_that_trainers_write_are_read(tmp_path: Path) -> None:
    """Steps as ``7.0``, times with a fraction, and numbers that are not finite in both spellings."""
    folder = RunFolder(tmp_path)
    folder.metrics.write_text(
        '{"step": 7.0, "time_ms": 5.75, "values": {"a": NaN, "b": "inf", "c": -Infinity, "d": 3}}\n'
    )
    (line,) = folder.read_metrics()
    assert (line.step, line.time_ms, line.values["b"], line.values["c"], line.values["d"]) == (
        7,
        5,
        math.inf,
        -math.inf,
        3,
    )
    assert math.isnan(line.values["a"])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"correct": 5}, "`correct` is 5, not a list"),
        ({"step": "4"}, "`step` is '4', not a whole number"),
        ({"correct": [True, 0]}, "`correct` is True, not a whole number"),
        ({"samples": 0}, "`samples` is 0, not a whole number from 1"),
        ({"tokens": [1]}, "`tokens` has 1 entries for 2 problems"),
        ({"answers": [{"x": 1.5}, {}]}, "`answers` is 1.5, not a whole number"),
        ({"problems": ["p", 2]}, "`problems` is 2, not a text"),
        ({"set": "../x"}, "'../x' is no name of a problem set"),
        ({"more": 1}, "it has no field 'more'"),
    ],
)
def test_an_evaluation_of_other_types_is_refused(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    """The error names the file and the field."""
    two = [1, 0]
    good = {"step": 4, "set": "heldout", "samples": 2, "problems": ["p", "q"], "correct": two, "truncated": two}
    good |= {"tokens": two, "tokens_correct": two, "answers": [{}, {"x": 1}]}
    path = tmp_path / "heldout-000004.json"
    path.write_text(json.dumps(good))
    assert read_evaluation(path).correct == (1, 0)
    path.write_text(json.dumps(good | change))
    with pytest.raises(RunFolderError) as caught:
        read_evaluation(path)
    assert str(caught.value).startswith(f"{path} is not an evaluation: ")
    assert told in str(caught.value)


# ---- one damaged run of a study -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("metrics.jsonl", DEEP + b"\n"),
        ("evals/heldout-000008.json", b'{"correct": 5}'),
        ("environment.json", DEEP),
        ("samples.jsonl", DEEP + b'\n{"step": 4, "response": "\\ud800' + b"x" * 300 + b'"}\n'),
        ("health.json", b'{"status": ["ok"], "profile": {}, "findings": [{"detector": [], "state": {}}]}'),
        ("job.json", DEEP),
        ("series.bin", b"PSB1" * 9),
    ],
)
def test_one_damaged_run_leaves_status_health_and_report_of_the_others(home: Path, name: str, data: bytes) -> None:
    """Each command ends without a traceback; where the damage matters, it names the file and the line."""
    with Reader.open(home) as reader:
        study = reader.studies()[0]
        run = next(r for r in reader.runs_of(study.id) if r.state == "SUCCEEDED")
        path = RunFolder.of(home, run.fingerprint, run.token).path / name
        before = path.read_bytes()
        path.write_bytes(data)
        try:
            said = [
                CliRunner().invoke(paribus, [*words, "--home", str(home)])
                for words in (
                    ["status", study.name, "--json"],
                    ["health", study.name],
                    ["health", run.fingerprint[:12]],
                )
            ]
            report = read_study(reader, study.name)
            read_attempts([RunFolder(path.parents[name.count("/")])])
        finally:
            path.write_bytes(before)
    for each in said:
        assert each.exit_code == 0, (each.output, each.exception)
    failed = {r.fingerprint: r.reason for r in report.runs if r.outcome == "failed" and "cannot be read" in r.reason}
    if name == "metrics.jsonl" or name.startswith("evals"):
        assert list(failed) == [run.fingerprint]
        assert str(path) in failed[run.fingerprint]
        assert str(path) in said[1].output
        assert f"{path}:1: " in said[0].output or name != "metrics.jsonl"
    else:
        assert not failed
    if name == "environment.json":
        assert f"{path}:1: " in report.provenance["environment"]
