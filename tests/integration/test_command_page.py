"""The page about programs of one's own: each command is typed in an empty folder, and prints what the page shows."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from paribus.home import data_root

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "command.md"
TEMPLATES = data_root("ablations") / "templates"
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(kind: str) -> list[str]:
    """Return the blocks of one kind."""
    return [text for found, text in FENCE.findall(PAGE.read_text()) if found == kind]


def test_the_page_shows_the_shipped_files() -> None:
    """What a reader copies from the page is what `paribus init` writes."""
    assert blocks("yaml") == [
        (TEMPLATES / "command.yaml").read_text(),
        (TEMPLATES / "command_script" / "mapping.yaml").read_text(),
    ]
    assert blocks("python") == [(TEMPLATES / "command" / "bandit.py").read_text()]


def typed(line: str, folder: Path) -> str:
    """Type a line in a folder and return what it printed, on both streams."""
    program, *words = shlex.split(line)
    assert program == "paribus"
    where = {k: v for k, v in os.environ.items() if not k.startswith(("PARIBUS_", "MLFLOW_"))}
    shown = subprocess.run(
        [sys.executable, "-m", "paribus", *words], cwd=folder, env=where, capture_output=True, text=True, check=False,
        timeout=300,
    )  # fmt: skip
    assert "Traceback" not in shown.stderr
    return shown.stdout + shown.stderr


@pytest.mark.slow
def test_each_command_of_the_page_works(tmp_path: Path) -> None:
    """From the first to the last; each line of a block of output is in what the commands above it print."""
    printed, checked = "", 0
    for kind, text in FENCE.findall(PAGE.read_text()):
        if kind == "sh":
            printed = "".join(typed(line, tmp_path) for line in text.splitlines())
        elif kind == "text":
            for line in filter(None, text.splitlines()):
                assert " ".join(line.split()) in " ".join(printed.split()), (line, printed)
                checked += 1
    assert checked > 12
