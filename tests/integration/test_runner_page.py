"""The page about runners of one's own: its package is installed by pip, passes the suite of runners, and trains."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from paribus.contract import Evaluate, EvaluationSet
from paribus.testing.runner_suite import RunnerTestCase

PAGE = Path(__file__).resolve().parents[2] / "docs" / "howto" / "runner.md"
FILE = re.compile(r"`([\w.]+)`[^`\n]*:\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILES = dict(FILE.findall(PAGE.read_text()))


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the folder of the page's files, with their package installed on the path here and in child processes."""
    folder, site = tmp_path_factory.mktemp("coin"), tmp_path_factory.mktemp("site")
    for name, text in FILES.items():
        (folder / name).write_text(text)
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site), str(folder)]
    subprocess.run([sys.executable, "-m", "pip", *install], check=True, timeout=240)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")])))
        yield folder
    sys.modules.pop("coin_runner", None)


class TestCoin(RunnerTestCase):
    """The runner of the page keeps every promise of the contract that it makes, with sets of its own, too."""

    runner = "coin"
    base: ClassVar = {"schedule.steps": 4}
    other_data: ClassVar = {"task": "chain"}
    other_model: ClassVar = {"model": "tiny_moe"}
    resumes = False
    evaluate = Evaluate(every=2, problems=8, sets={"few": EvaluationSet(every=3, problems=3, samples=4)})


def test_the_page_has_four_short_files() -> None:
    """And the runner itself takes less than 40 lines."""
    assert list(FILES) == ["coin_runner.py", "pyproject.toml", "coins.yaml", "test_coin.py"]
    assert len([line for line in FILES["coin_runner.py"].splitlines() if line]) < 40


@pytest.mark.slow
def test_each_command_of_the_page_works(package: Path) -> None:
    """The runs train in processes of their own, both arms stand in the report, and the page's own test passes."""
    printed = ""
    for kind, text in FENCE.findall(PAGE.read_text()):
        for line in text.splitlines() if kind in ("sh", "text") else ():
            program, *words = line.split()
            if kind == "text":
                assert line in printed
            elif program != "pip":  # the fixture has done it
                command = [sys.executable, "-m", program, *words]
                done = subprocess.run(command, cwd=package, capture_output=True, text=True, timeout=240, check=False)
                assert done.returncode == 0, done.stdout + done.stderr
                printed = done.stdout
    report = json.loads((package / "reports" / "coins" / "report.json").read_text())
    (table,) = (t for t in report["tables"] if t["key"] == "solo.score")
    assert [row["label"] for row in table["rows"]] == ["base", "+ clip_higher"]
