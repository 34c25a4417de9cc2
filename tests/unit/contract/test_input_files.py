"""Hashes of data and models: equal to those of the content at all times, and a large file is read once."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paribus.contract import files, input_hash
from paribus.errors import ParibusError
from paribus.study.expand import draft_file
from support.confined import confined

CHANGES = st.lists(
    st.tuples(st.sampled_from(["write", "append", "replace", "back"]), st.binary(max_size=2)), max_size=6
)


@given(CHANGES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_hash_is_that_of_the_content(tmp_path: Path, changes: list[tuple[str, bytes]]) -> None:
    """However a file is changed, also to the same size, and with its times set back."""
    path, old = tmp_path / "file", 1_700_000_000_000_000_000
    path.write_bytes(b"begin")
    for how, content in changes:
        match how:
            case "write":
                path.write_bytes(content)
            case "append":
                path.write_bytes(path.read_bytes() + content)
            case "replace":
                (tmp_path / "other").write_bytes(content)
                (tmp_path / "other").replace(path)
            case "back":
                path.write_bytes(content)
                os.utime(path, ns=(old, old))
        for _ in range(2):
            assert input_hash(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_file_that_rests_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The arms of a study share data and model; a change is seen all the same."""
    path, read = tmp_path / "weights", []
    content_hash = files.file_hash
    monkeypatch.setattr(files, "file_hash", lambda p: read.append(p) or content_hash(p))
    monkeypatch.setattr(files, "_SETTLED_NS", 0)
    path.write_bytes(b"some")
    first = {input_hash(path) for _ in range(5)}
    assert (len(first), len(read)) == (1, 1)
    path.write_bytes(b"some more")
    assert input_hash(path) not in first
    path.unlink()
    with pytest.raises(FileNotFoundError):
        input_hash(path)


@pytest.mark.parametrize("runner", ["native", "trl", "verl"])
def test_a_study_whose_data_have_no_end_is_refused(tmp_path: Path, runner: str) -> None:
    """A device gives zeros for as long as somebody reads; a plan on a server must not."""
    file = tmp_path / "x.yaml"
    task = "{kind: jsonl, train: /dev/zero, heldout: /dev/zero}"
    file.write_text(
        f"study: x\nrunner: {runner}\nbase: {{preset: grpo, set: {{task: {task}}}}}\n"
        "designs: {solo: {kind: list, arms: {a: {}}}}\nseeds: {n: 1}\nevaluate: {every: 1}\n"
    )

    def plan() -> None:
        with pytest.raises(ParibusError, match="cannot read /dev/zero: it is a device or a pipe, not a file"):
            draft_file(file).checked()

    confined(plan, tmp_path, memory=1 << 29)
