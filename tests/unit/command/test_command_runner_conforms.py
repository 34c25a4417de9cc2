"""The command runner passes the conformance suite with each of its three shipped programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from paribus.contract import Evaluate, Options
from paribus.home import data_root
from paribus.testing.runner_suite import RunnerTestCase

TEMPLATES = data_root("ablations") / "templates"
SLOW = """for step in range(s["first_step"], s["schedule.steps"] + 1):\n"""
"""Where the Python program begins a step."""
SLEEP = """    if "is_asked" in os.getcwd() and "/a1/" in os.getcwd(): __import__("time").sleep(0.5)\n"""
"""Makes the attempt that is to be stopped need half a minute, so that it is asked before its end."""


def shipped(name: str) -> tuple[Options, dict[str, object]]:
    """Return the options of a template, with the files beside it, and what its base sets."""
    study = yaml.safe_load((TEMPLATES / f"{name}.yaml").read_text())
    own = {key: value for key, value in study["runner"].items() if key != "kind"}
    sources = {path.name: path.read_text() for path in (TEMPLATES / name).glob("*.*")}
    return Options(own=own, sources=sources), study["base"]["set"]


class CommandCase(RunnerTestCase):
    """What the three programs have in common."""

    runner = "command"
    preset = "reinforce"
    other_data: ClassVar = {"task": "chain"}
    other_model: ClassVar = {"model": "tiny_moe"}

    @classmethod
    def environment(cls) -> dict[str, str]:
        """Return an environment with a secret, which no program may get."""
        return {**os.environ, "PARIBUS_DATABASE_URL": "postgresql://u:secret@example/db", "HF_TOKEN": "hf_secret"}


class TestPythonProgram(CommandCase):
    """Trains, evaluates, is stopped and continues from its checkpoint with the same numbers."""

    _shipped = shipped("command")
    base: ClassVar = {**_shipped[1], "schedule": {"steps": 60, "prompts_per_step": 16}}
    evaluate = Evaluate(every=25, problems=16, samples=4)
    options: ClassVar = Options(
        own=_shipped[0].own,
        sources={name: text.replace(SLOW, SLOW + SLEEP) for name, text in _shipped[0].sources.items()},
    )


class TestShellProgram(CommandCase):
    """A program in POSIX shell and awk keeps the contract, too; it does not resume."""

    _shipped = shipped("command_shell")
    base: ClassVar = {**_shipped[1], "schedule.steps": 6}
    options: ClassVar = _shipped[0]
    resumes = False


class TestScriptWithMapping(CommandCase):
    """A script that does not know Paribus keeps it through its mapping file."""

    _shipped = shipped("command_script")
    base: ClassVar = {**_shipped[1], "schedule.steps": 6}
    evaluate = Evaluate(every=4, problems=40)
    options: ClassVar = _shipped[0]
    resumes = False

    def test_what_the_mapping_says_is_recorded(self, finished) -> None:
        """A scaled number is canonical, one without a name of ours is native; no text of the study went to a shell."""
        line = list(finished.read_metrics())[-1]
        assert 0 <= line.values["reward/correct_frac"] <= 1
        assert "native/command/best_p" in line.values
        assert not line.sources
        assert Path(finished.path / "command" / "program" / "existing.py").is_file()


@pytest.mark.parametrize("name", ["command", "command_shell", "command_script"])
def test_a_program_in_a_template_is_short(name: str) -> None:
    """Each is an example to copy: about thirty lines of training, and the rest for its task."""
    program = next(path for path in (TEMPLATES / name).iterdir() if path.suffix in (".py", ".sh"))
    assert program.read_text().count("\n") < 50
