"""A misspelt file of problems is answered with the file that is there."""

from pathlib import Path

import pytest

from paribus_runners.native.examine import nearest_file


@pytest.mark.parametrize(
    ("fault", "answer"),
    [
        ("`task.train`: cannot read trian.jsonl: No such file or directory", " Did you mean `train.jsonl`?"),
        ("`task.train`: there is no trian.jsonl in /x, where relative paths begin", " Did you mean `train.jsonl`?"),
        ("`task.train`: cannot read dta/train.jsonl: No such file or directory", ""),
        ("`task.train`: train.jsonl:1: there is no column `prompt`", ""),
        ("`task.train`: cannot read other.bin: No such file or directory", ""),
    ],
)
def test_the_nearest_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, answer: str) -> None:
    """Of the folder that the path names; nothing where no name is near, or the fault is another."""
    monkeypatch.chdir(tmp_path)
    Path("train.jsonl").touch()
    assert nearest_file(fault) == answer
