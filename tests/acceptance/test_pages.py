"""The pages' shell blocks, typed as they stand, in a checkout whose studies are short and whose runner only pretends.

The tutorials train, in their own test. What nothing here can type is listed in :data:`ELSEWHERE`, each with the reason
and the test that does it, or in :data:`NOT_TYPED`.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner

from paribus.cli import paribus
from paribus.store.reader import Reader
from paribus.testing.fake_runner import install

ROOT = Path(__file__).resolve().parents[2]
PAGES = tuple(
    page.relative_to(ROOT).as_posix()
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "decisions" not in page.parts and "tutorials" not in page.parts
)

SHORTER = {"{n: 3}": "{n: 1}", "steps: 40": "steps: 4", "every: 10": "every: 2", "\n  knockout:": "\n  # knockout:"}
"""What is changed in the quickstart's study, beside its runner and its copy in MLflow."""

ELSEWHERE = {
    "CONTRIBUTING.md": "what starts this test",
    "docs/howto/command.md": "tests/integration/test_command_page.py",
    "docs/howto/deploy.md": "Docker Compose: `make test-compose`",
    "docs/howto/gradients.md": "a model that was really trained: tests/unit/native/test_gradients.py",
    "docs/howto/install.md": "package registries: `make test-wheel` and tests/acceptance/other_python.sh",
    "docs/howto/notebook.md": "package registries; the Python on it: tests/integration/test_notebook.py",
    "docs/howto/ray.md": "a Ray cluster: `make test-clusters`",
    "docs/howto/release.md": "tags and builds: tests/repo/test_release.py",
    "docs/howto/runner.md": "a package that is installed: tests/integration/test_runner_page.py",
    "docs/howto/service.md": "systemd, and a group of users; the scheduler: tests/integration/test_service.py",
    "docs/howto/slurm.md": "a Slurm cluster: `make test-clusters`",
    "docs/howto/trl.md": "TRL: `make test-trl`",
    "docs/howto/wandb.md": "W&B's program: `make test-wandb`",
    "docs/reference/three_trainers.md": "TRL, and twenty minutes; its plans: tests/unit/trl/test_trl_plans.py",
}
"""Pages that need more than this test has: what, and which test has it."""

NOT_TYPED = {
    r"apt-get|git clone|pip install": "the network, and root",
    r"make quickstart$": "an NVIDIA GPU; `make quickstart TORCH_INDEX=ADDRESS` above it is typed",
    r"paribus dashboard( --host .*)?$|mlflow ui|tensorboard ": "serve until Ctrl-C; tests/unit/dashboards",
    r"paribus scheduler": "serves until Ctrl-C; tests/integration/test_service.py",
    r"ssh ": "another machine",
    r"paribus healthcheck": "what `paribus up` and the compose file start; tests/unit/services",
    r"createdb|export PARIBUS_DATABASE_URL|export PGPASSWORD": "a PostgreSQL server; tests/unit/store",
    r'mv "\$PARIBUS_HOME': "a copy that was made while a run began; tests/integration/test_backup.py",
    r"_PARIBUS_COMPLETE=fish": "another shell",
}
"""Lines, by pattern, that are not typed: what they need, and which test has it."""

MADE_UP = {"3f2a90c1": "RUN", "3badafb0": "RUN"}
"""Digits of a run on a page: those of a run that is there."""

STATUS = {"paribus delete": {1}, "paribus health": {0, 3, 4}}
"""Exit statuses of commands, where 0 is not the only one: `delete` without a terminal, and findings."""

WRITES = {"paribus import-config trl": "study.yaml"}
"""A file that a command writes, in the place of which the page has another one before and after."""


class Line(NamedTuple):
    """A line of a block, without its comment."""

    page: str
    text: str

    @property
    def reason(self) -> str:
        """Why it is not typed; empty if it is."""
        return next((why for pattern, why in NOT_TYPED.items() if re.match(pattern, self.text)), "")


def lines() -> Iterator[Line]:
    """Yield what the pages show to be typed: blocks of a shell, and what follows `$` in blocks of output."""
    seen = set[str]()
    for page in PAGES:
        language, before = None, ""
        for line in (ROOT / page).read_text().splitlines():
            fence = re.match(r" *```(\w*)$", line)
            if fence:
                language = None if language is not None else fence[1]
            elif language == "sh" or (language == "text" and line.startswith("$ ")):
                whole = before + line.strip().removeprefix("$ ")
                before = whole.removesuffix("\\") if whole.endswith("\\") else ""
                words = re.sub(r"\s+# .*|^# .*", "", whole)
                if words and not before and words not in seen:
                    seen.add(words)
                    yield Line(page, words)


LINES = tuple(lines())
"""Each line once, on the first page that has it."""


def test_nothing_is_listed_in_vain() -> None:
    """Each page, pattern and test of the lists is there, and most lines are typed."""
    for why in (*ELSEWHERE.values(), *NOT_TYPED.values()):
        assert all((ROOT / test).exists() for test in re.findall(r"tests/[\w./]*\w", why)), why
    pages = {line.page for line in LINES}
    assert ELSEWHERE.keys() <= pages
    left = [line.text for line in LINES if line.page not in ELSEWHERE]
    for pattern in NOT_TYPED:
        assert any(re.match(pattern, text) for text in left), pattern
    typed = [line for line in LINES if line.page not in ELSEWHERE and not line.reason]
    assert len(typed) > len(left) * 2 / 3
    assert {"README.md", "docs/quickstart.md", "docs/running.md", "docs/howto/keep.md"} <= {x.page for x in typed}


def quickstart(name: str) -> str:
    """Return the quickstart's study under another name, shortened, for the runner that only pretends to train."""
    text = (ROOT / "ablations/studies/quickstart.yaml").read_text()
    for long, short in SHORTER.items():
        assert long in text, long
        text = text.replace(long, short)
    return text.replace("study: quickstart", f"study: {name}", 1) + "runner: fake\nmirror: []\n"


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of a new user, in which the runner `fake` is installed."""
    where = {name: value for name, value in os.environ.items() if not name.startswith(("PARIBUS_", "MLFLOW_"))}
    site = str(install(tmp_path_factory.mktemp("site")))
    return {
        **where,
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(filter(None, [site, where.get("PYTHONPATH")])),
    }


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str]) -> Path:
    """Return a checkout in which the README's block was typed; its environment was made before."""
    folder = tmp_path_factory.mktemp("pages") / "paribus"
    (folder / ".venv" / "bin").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, folder)
    shutil.copytree(ROOT / "ablations", folder / "ablations")
    shutil.copytree(ROOT / "docs" / "examples" / "coefficients", folder / "docs" / "examples" / "coefficients")
    program = folder / ".venv" / "bin" / "paribus"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m paribus "$@"\n')
    program.chmod(0o755)
    (folder / ".venv" / ".installed").touch()  # newer than what it is made from
    (folder / "ablations/studies/quickstart.yaml").write_text(quickstart("quickstart"))
    (line,) = {x.text for x in LINES if x.page == "README.md" and not x.reason}
    shown = subprocess.run(
        shlex.split(line), cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=240
    )
    assert shown.returncode == 0, (line, shown.stdout, shown.stderr)
    assert (folder / "reports/quickstart/report.html").is_file()
    return folder


def files_of_others(folder: Path) -> None:
    """Write what readers have of their own: studies, configurations, logs of other trainers."""
    for name, study in (("STUDY.yaml", "ladder"), ("study.yaml", "x")):
        (folder / name).write_text(quickstart(study))
    (folder / "config.yaml").write_text("learning_rate: 1.0e-6\nnum_generations: 8\n")
    (folder / "run.sh").write_text("python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=a\n")
    steps = [{"step": n, "reward": 0.1 * n, "entropy": 1.0, "completions/mean_length": 9} for n in range(1, 9)]
    (folder / "trainer_state.json").write_text(json.dumps({"log_history": steps, "global_step": 8}))
    (folder / "runs").mkdir(exist_ok=True)
    for arm in ("grpo", "dr_grpo"):
        for seed in (0, 1):
            log = [{**step, "reward": step["reward"] + seed} for step in steps]
            (folder / "runs" / f"{arm}-s{seed}.jsonl").write_text("".join(f"{json.dumps(x)}\n" for x in log))
    table = ["path,arm,seed", *(f"runs/{a}-s{s}.jsonl,{a},{s}" for a in ("grpo", "dr_grpo") for s in (0, 1))]
    (folder / "runs.csv").write_text("\n".join(table) + "\n")


def type_line(line: str, environment: dict[str, str]) -> None:
    """Type a line here: commands of Paribus in this process, but for `run`, which starts others."""
    if re.match(r"paribus (?!run\b)[^;|&>]*$", line):
        words = [
            w
            for word in shlex.split(line)[1:]
            for w in (sorted(map(str, Path().glob(word))) if "*" in word else [word])
        ]
        shown = CliRunner().invoke(paribus, words)
        status, output = shown.exit_code, f"{shown.output}\n{shown.exception}"
    else:
        ran = subprocess.run(
            ["bash", "-ec", line], env=environment, capture_output=True, text=True, check=False, timeout=240
        )
        status, output = ran.returncode, ran.stdout + ran.stderr
    allowed = next((codes for command, codes in STATUS.items() if line.startswith(command)), {0})
    assert status in allowed, (line, output)
    assert "Traceback" not in output


@pytest.mark.parametrize(
    "page", [p for p in dict.fromkeys(x.page for x in LINES) if p not in {*ELSEWHERE, "README.md"}]
)
def test_what_a_page_shows_can_be_typed(
    page: str, checkout: Path, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Line by line, in a copy of the checkout after its quickstart; files that a page shows are beside it."""
    folder = tmp_path / "paribus"
    shutil.copytree(checkout, folder, symlinks=True)
    monkeypatch.chdir(folder)
    for name in {*os.environ} - {*environment}:
        monkeypatch.delenv(name)
    for name, value in {
        **environment,
        "PATH": f"{folder}/.venv/bin:{environment['PATH']}",
        "PARIBUS_HOME": ".paribus",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(environment["PYTHONPATH"].partition(os.pathsep)[0])
    files_of_others(folder)
    for name, text in re.findall(r"```yaml\n# (\w+\.yaml)\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
        (folder / name).write_text(text)
    mine = [line for line in LINES if line.page == page and not line.reason]
    for study in ("STUDY.yaml", "study.yaml"):
        if not any(f"run {study}" in line.text for line in mine):
            type_line(f"paribus submit {study}", environment)
    type_line("paribus token create --scope read --name reader", environment)
    with Reader.open(folder / ".paribus") as reader:
        run = next(r.fingerprint for r in reader.runs_of(reader.study("quickstart").id))
    for line in mine:
        text = line.text
        for digits in MADE_UP:
            text = text.replace(digits, run[:8])
        if new := next((file for command, file in WRITES.items() if text.startswith(command)), None):
            Path(new).unlink()
        type_line(text, dict(os.environ))
        if new:
            assert Path(new).is_file()
            files_of_others(folder)
