"""`paribus init --template`: each template is planned, its files come with it, and nothing is overwritten."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from paribus.cli import paribus
from paribus.cli.init import templates
from paribus.errors import ParibusError
from paribus.study.expand import draft_file

RUNS = {
    "clip_grid": 18, "command": 4, "command_script": 4, "command_shell": 4, "compare": 9, "ladder": 15,
    "learning_rate": 20, "leave_one_out": 24, "own_data": 4,
}  # fmt: skip


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """A function that runs the command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(paribus, list(arguments))


def test_the_list_names_every_template(typed):
    """Each with its question; as JSON with the comment, too."""
    shown = typed("init", "--list")
    assert shown.exit_code == 0, shown.output
    assert all(name in shown.output for name in RUNS)
    listed = json.loads(typed("init", "--list", "--json").output)["templates"]
    assert [each["name"] for each in listed] == sorted(RUNS) == sorted(templates())
    assert all(each["question"] and each["about"] for each in listed)


@pytest.mark.parametrize("name", sorted(RUNS))
def test_each_template_is_planned(typed, tmp_path, name):
    """It has no fault, as many runs as its comment says, and the command that `init` prints names its file."""
    shown = typed("init", "--template", name)
    assert shown.exit_code == 0, shown.output
    assert f"paribus run {name}.yaml" in shown.output
    draft = draft_file(tmp_path / f"{name}.yaml")
    assert not draft.unsupported
    assert len(draft.plan.runs) == RUNS[name]
    assert f"= {RUNS[name]} runs" in (tmp_path / f"{name}.yaml").read_text()


@pytest.mark.parametrize("activated", [True, False])
def test_the_files_of_a_template_lie_beside_the_study(typed, tmp_path, monkeypatch, activated):
    """In another folder, too; the printed command goes there first, as paths of data begin in the current folder."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent) if activated else str(tmp_path))
    shown = typed("init", "--template", "own_data", "my studies/x.yaml")
    assert shown.exit_code == 0, shown.output
    names = {path.name for path in (tmp_path / "my studies").iterdir()}
    assert names == {"x.yaml", "train.jsonl", "heldout.jsonl", "my_rewards.py", "make_model.py"}
    python = "python" if activated else sys.executable
    assert f"cd 'my studies' && {python} make_model.py && paribus plan x.yaml" in shown.output


def test_no_file_is_overwritten_and_none_is_half_written(typed, tmp_path):
    """One file that exists ends the command before anything is written."""
    (tmp_path / "my_rewards.py").write_text("mine\n")
    shown = typed("init", "--template", "own_data")
    assert isinstance(shown.exception, ParibusError)
    assert "my_rewards.py exists and is not overwritten" in str(shown.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["my_rewards.py"]


def test_a_mistyped_template_gets_the_nearest(typed):
    """The message names it and all others."""
    message = str(typed("init", "--template", "leder").exception)
    assert "Did you mean `ladder`?" in message
    assert "own_data" in message
