"""`--json` of the commands that write something: one object on standard output, and nothing else there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from paribus.cli import paribus
from paribus.cli.studies import shipped_study
from paribus.store.migrate import HEAD


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a study for the fake runner, and with no settings of Paribus."""
    for name in [name for name in os.environ if name.startswith("PARIBUS_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "study.yaml").write_text(f"{shipped_study('first').read_text()}runner: fake\nmirror: []\n")
    return tmp_path


def said(*arguments: str) -> Any:
    """Type a command and return what it printed, read as JSON."""
    shown = CliRunner().invoke(paribus, [*arguments, "--json"])
    assert shown.exit_code == 0, (arguments, shown.output, shown.exception)
    return json.loads(shown.stdout)


@pytest.mark.slow
def test_run_and_report_print_one_object(folder: Path) -> None:
    """Progress and warnings are not in it; the files are those of the report."""
    ran = subprocess.run(
        [sys.executable, "-m", "paribus", "run", "study.yaml", "--slots", "2", "--json"],
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    done = json.loads(ran.stdout)
    assert (done["study"], done["ending"], done["trained"], done["paused"]) == ("first", "complete", True, "")
    assert set(done["states"]) == {"SUCCEEDED"}
    assert "runs done" in ran.stderr
    assert {note["code"] for note in done["notes"]} >= {"seeds"}
    assert "reports/first/report.html" in done["report"]["files"]
    written = said("report", "study.yaml", "--out", "elsewhere")
    assert written["studies"] == ["first"]
    assert all(Path(file).is_file() for file in written["files"])
    assert said("db", "upgrade") == {"database": str(Path(".paribus/paribus.db")), "before": HEAD, "revision": HEAD}
    copy = said("db", "backup", "--to", "copy.db")
    assert copy == {"file": "copy.db", "command": None}
    assert (folder / "copy.db").is_file()


@pytest.mark.usefixtures("folder")
def test_tokens_print_one_object() -> None:
    """The secret is in it, this once."""
    made = said("token", "create", "--name", "laptop", "--scope", "run")
    assert (made["name"], made["scope"]) == ("laptop", "run")
    assert made["token"].startswith("paribus_")
    assert said("token", "revoke", "laptop") == {"name": "laptop", "scope": "run"}


SERVE = {"scheduler", "up", "dashboard", "healthcheck", "schema", "runners install"}
"""Commands without `--json`: they serve until Ctrl-C, answer a supervisor by their status, print JSON, or download."""


def test_every_other_command_has_the_option() -> None:
    """Also those of packages beside the platform, and the commands of groups."""

    def lacking(command: click.Command, name: str) -> Iterator[str]:
        if isinstance(command, click.Group) and command is not paribus:
            for each in command.list_commands(click.Context(command)):
                yield from lacking(command.commands[each], f"{name} {each}")
        types = not isinstance(command, click.Group) or command.invoke_without_command
        if types and not any("--json" in each.opts for each in command.params):
            yield name

    context = click.Context(paribus)
    commands = {name: paribus.get_command(context, name) for name in paribus.list_commands(context)}
    assert {x for name, command in commands.items() if command for x in lacking(command, name)} == SERVE


@pytest.mark.usefixtures("folder")
def test_configurations_and_runners_print_one_object() -> None:
    """What has no counterpart is in it; runners have state and versions."""
    made = said("import-config", "trl", "--loss_type", "dapo", "--foo", "3", "--to", "new.yaml")
    assert (made["file"], made["options"], "foo" in made["lost"]) == ("new.yaml", 2, True)
    assert Path("new.yaml").is_file()
    runners = {each["name"]: each for each in said("runners")["runners"]}
    assert (runners["command"]["environment"], runners["command"]["wrong"]) == ("this one", "")
    shown = said("runners", "show", "trl")
    assert (shown["runner"], shown["levels"][0]["level"]) == ("trl", "exact")
