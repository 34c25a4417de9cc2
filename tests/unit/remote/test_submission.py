"""The text that the plan of a submitted study keeps: what runs, without credentials."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paribus.cli import paribus, run
from paribus.store.reader import Reader
from paribus.study.load import load_study
from paribus.study.plan import Plan

STUDY = """# why
include: base.yaml
study: composed
question: of ${WHO}, at ${PLACE:-postgres://ada:c4nary-1@host/db}, password=${KEY_NUMBER}
tricks: {wide: {clip.high: 0.28}}
designs: {solo: {kind: add_one}}
"""
BASE = """base: {preset: grpo, set: {model: tiny, task: search}}
seeds: {n: 1}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder beside a study of two files, and variables."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARIBUS_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("WHO", "me")
    monkeypatch.setenv("KEY_NUMBER", "c4nary-2")
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "study.yaml").write_text(STUDY)
    return tmp_path / "home"


def typed(*arguments: str) -> Result:
    """Type a command."""
    shown = CliRunner().invoke(paribus, list(arguments))
    assert shown.exit_code == 0, (shown.output, shown.exception)
    return shown


def kept_text(home: Path, study: str) -> str:
    """Return the text that the store keeps of a study."""
    with Reader.open(home) as reader:
        return reader.study(study).plan.text


def test_the_kept_study_is_what_was_submitted(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Included values, variables and changes stand in it, so that it is planned elsewhere; credentials do not."""
    pytest.importorskip("torch")
    typed("submit", "study.yaml", "--set", "clip.high=0.3", "--set", "seeds.n=2")
    text = kept_text(home, "composed")
    kept = tmp_path / "kept.yaml"
    kept.write_text(text)
    assert "c4nary" not in text
    assert "postgres://ada:***@host/db" in text
    monkeypatch.delenv("WHO")
    there = load_study(kept)
    assert (there.spec.seeds.n, there.base.clip.model_dump()["high"]) == (2, 0.3)
    assert there.spec.question.startswith("of me, at ")


def test_a_study_of_one_file_is_kept_as_it_is_written(home: Path) -> None:
    """With its comments."""
    pytest.importorskip("torch")
    text = "# why\nstudy: plain\n" + BASE + "designs: {a: {kind: list, arms: {b: {}}}}\n"
    Path("plain.yaml").write_text(text)
    assert json.loads(typed("submit", "plain.yaml", "--json").output)["study"] == "plain"
    assert kept_text(home, "plain") == text


def test_run_keeps_what_it_trains(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As submit does."""
    pytest.importorskip("torch")
    texts = []

    def stop(plan: Plan, _settings: object, _display: object) -> None:
        texts.append(plan.text)
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "run_study", stop)
    CliRunner().invoke(paribus, ["run", "study.yaml", "--set", "clip.high=0.3"])
    assert "clip:\n      high: 0.3" in texts[0]
    assert "include" not in texts[0]
