"""A study file goes into the store with its text, also where the home folder can only be read."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa

from paribus.remote.submission import submit_file
from paribus.store.models import Terms
from paribus.store.reader import Reader
from support.databases import server

__all__ = ["server"]

STUDY = """
study: faked
question: see https://ada:c4nary@host/x
runner: fake
base: {preset: grpo, set: {kl: {kind: "off"}, schedule.steps: 4}}
designs: {solo: {kind: list, arms: {plain: {}}}}
seeds: {n: 1}
"""


def a_file_in_the_way(home: Path) -> None:
    """Make writing below `study_files` fail, also for root: a read-only mount needs more than a test has."""
    (home / "study_files").write_text("")


def a_full_disk(home: Path) -> None:
    """Make each write of the study's files by this process end with ENOSPC."""
    folder = home / "study_files" / "faked"
    folder.mkdir(parents=True)
    for name in ("study.yaml", f".study.yaml.{os.getpid()}", "report", f".report.{os.getpid()}"):
        (folder / name).symlink_to("/dev/full")


@pytest.mark.parametrize("spoil", [a_file_in_the_way, a_full_disk])
def test_a_submitted_study_is_no_failure(server: sa.URL | None, tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    """Beside the store nothing needs to be written, and MLflow finds the file in the plan, without credentials."""
    home = tmp_path / "home"
    home.mkdir()
    spoil(home)
    file = tmp_path / "faked.yaml"
    file.write_text(STUDY)
    for again in (False, True):
        done = submit_file(file, home, Terms())
        assert (done.study, done.again) == ("faked", again)
    with Reader.open(home) as reader:
        text = reader.study("faked").plan.text
    assert "https://ada:***@host/x" in text
    assert "c4nary" not in text
