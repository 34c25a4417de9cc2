"""A study to change, and its plan."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paribus.study.expand import make_plan
from paribus.study.load import LoadedStudy, load_study
from paribus.study.plan import Plan
from paribus.testing.fake_runner import FakeRunner

TEXT = """\
study: ladder
question: Which trick?
base:
  preset: grpo
  set: {model: tiny, task: search, kl: off, schedule: {minibatches: 8, epochs: 2}}
tricks:
  clip_higher: {clip.high: 0.28}
  soft_overlong: {length.rule: {kind: soft_overlong, soft_start: 30, hard_cap: 37}}
  token_level: {aggregation: token_batch}
designs:
  ladder: {kind: cumulative, order: [clip_higher, soft_overlong, token_level]}
  solo: {kind: add_one}
  knockout: {kind: leave_one_out}
  clip: {kind: grid, over: {clip.high: [0.2, 0.24], scale: [group_std, none]}}
  all: {kind: factorial, tricks: [clip_higher, token_level]}
  named:
    kind: list
    arms:
      dr_grpo: {preset: dr_grpo}
      wide: {tricks: [token_level], set: {clip.high: 0.5}}
"""


@pytest.fixture
def text() -> str:
    """The text of a study with every kind of design."""
    return TEXT


@pytest.fixture
def read(tmp_path: Path) -> Callable[[str], LoadedStudy]:
    """A function from the text of a study file to the study."""

    def from_text(content: str) -> LoadedStudy:
        path = tmp_path / "study.yaml"
        path.write_text(content)
        return load_study(path)

    return from_text


@pytest.fixture
def plan(read: Callable[[str], LoadedStudy], text: str) -> Plan:
    """The plan of the study with every kind of design."""
    return make_plan(read(text), FakeRunner())
