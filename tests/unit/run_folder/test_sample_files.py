"""The index of ``samples.jsonl`` against reading it all."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.run_folder.folder import HELDOUT
from paribus.run_folder.samples import Sample, SampleFile, key_of, parse_sample

TEXT = st.text(max_size=8)
RECORD = st.fixed_dictionaries(
    {"step": st.integers(0, 3), "response": TEXT},
    optional={
        "set": st.sampled_from(["heldout", "train"]),
        "problem": st.sampled_from(["p", "q", "\ud800"]),
        "prompt": TEXT,
        "reward": st.one_of(st.floats(-2, 2), st.just("nan"), st.none()),
        "correct": st.one_of(st.booleans(), st.just("yes")),
        "reward_parts": st.just({"correct": 1.0, "length": "inf", "odd": []}),
        "tokens": st.one_of(st.integers(0, 9), st.booleans()),
    },
)
ODD = st.sampled_from(
    [b"{", b"[1]", b'{"step": 1}', b'{"step": true, "response": ""}', b'{"step": 1e3, "response": "x"}']
)
LINES = st.lists(st.one_of(RECORD.map(lambda r: json.dumps(r).encode()), ODD), max_size=20)


def _group(sample: Sample) -> tuple[int, str, int]:
    return sample.step, sample.set, key_of(sample.problem)


@settings(max_examples=40, deadline=None)
@given(lines=LINES, cuts=st.lists(st.integers(0, 2000), max_size=4))
def test_index_finds_what_reading_all_finds(tmp_path_factory: Any, lines: list[bytes], cuts: list[int]) -> None:
    """However the file grows, the pieces of each group hold its samples, and their sums are those of the samples."""
    path = tmp_path_factory.mktemp("s") / "samples.jsonl"
    whole = b"".join(line + b"\n" for line in lines)
    file = SampleFile(path)
    for cut in [*sorted(c for c in cuts if c < len(whole)), len(whole)]:
        path.write_bytes(b"") if not path.exists() else None
        with path.open("ab") as out:
            out.write(whole[path.stat().st_size : cut])
        file.refresh()
    every = [s for s in map(parse_sample, lines) if s is not None]
    assert file.damaged == len(lines) - len(every)
    expected: dict[tuple[int, str, int], list[Sample]] = {}
    for sample in every:
        expected.setdefault(_group(sample), []).append(sample)
    assert len(file.pieces) == len(list(groupby(every, key=_group)))
    for (step, name, key), samples in expected.items():
        p = file.pieces
        mine = p[(p["step"] == step) & (p["set"] == file.sets.index(name)) & (p["problem"] == np.uint64(key))]
        found = [s for s in file.read(mine) if _group(s) == (step, name, key)]
        rewards = [s.reward for s in samples if s.reward is not None and s.reward == s.reward]
        assert list(map(repr, found)) == list(map(repr, samples))  # NaN is not equal to itself
        assert mine["responses"].sum() == len(samples)
        assert mine["rewards"].sum() == len(rewards)
        assert abs(mine["reward"].sum() - sum(rewards)) < 1e-9
        assert mine["correct"].sum() == sum(s.correct is True for s in samples)


def test_index_goes_on_where_the_time_ended(tmp_path: Path) -> None:
    """An index that had too little time says how far it came, and is whole after some more calls."""
    path = tmp_path / "samples.jsonl"
    line = json.dumps({"step": 1, "problem": "p", "response": "x" * 4000}) + "\n"
    path.write_text(line * 1000)
    file = SampleFile(path)
    file.refresh(0.0)
    assert 0 < file.behind < 1
    for _ in range(8):
        file.refresh(0.0)
    assert file.behind == 0
    assert file.pieces["responses"].tolist() == [1000]


def test_a_replaced_file_is_indexed_again(tmp_path: Path) -> None:
    """A file that was replaced by a shorter one, or is gone, leaves nothing in the index."""
    path = tmp_path / "samples.jsonl"
    path.write_text('{"step": 1, "response": "a"}\n' * 3)
    file = SampleFile(path)
    file.refresh()
    path.write_text('{"step": 2, "response": "b", "prompt": "q"}\n')
    file.refresh()
    assert [(s.step, s.set, s.problem) for s in file.read(file.pieces)] == [(2, HELDOUT, "q")]
    path.unlink()
    file.refresh()
    assert len(file.pieces) == 0
