"""A study as a new user writes it: own JSON lines, own model folder with a chat template; planned, run, reported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from paribus import cli
from paribus.home import data_root
from support.chat_model import save_chat_model
from support.hub import gsm8k, write_lines

STUDY = """
study: mine
base:
  preset: grpo
  set:
    model: model
    task: {kind: dataset, train: train.jsonl, heldout: test.jsonl, format: gsm8k, system: Think.}
    kl: off
    optimizer.learning_rate: 1.0e-5
    schedule: {steps: 3, prompts_per_step: 4, group_size: 4, minibatches: 2, max_new_tokens: 6}
tricks:
  token_level: {aggregation: token_batch}
designs: {solo: {kind: add_one}}
seeds: {n: 2}
evaluate: {every: 3, problems: 6, samples: 2}
"""
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def paribus(tmp_path: Path) -> Run:
    """Run a command beside the study, with an empty cache of the hub and no way to it."""
    environment = os.environ | {
        "HF_HOME": str(tmp_path / "hf"), "HF_HUB_OFFLINE": "1", "PARIBUS_HOME": str(tmp_path / "home"),
    }  # fmt: skip

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "paribus", *words]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=300)

    save_chat_model(tmp_path / "model")
    write_lines(tmp_path / "train.jsonl", gsm8k(0, 20))
    write_lines(tmp_path / "test.jsonl", gsm8k(500, 6))
    (tmp_path / "study.yaml").write_text(STUDY)
    return run


@pytest.fixture
def here(paribus: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run a command in this process, which loads the libraries once for all tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PARIBUS_HOME", str(tmp_path / "home"))
    return lambda *words: CliRunner().invoke(cli.paribus, words)


@pytest.mark.slow
def test_own_lines_and_an_own_model_are_planned_run_and_reported(
    paribus: Run, here: Callable[..., Result], tmp_path: Path
) -> None:
    """Two arms, two seeds; the table has a row each, and the samples hold the prompts that the model got."""
    plan = here("plan", "study.yaml")
    assert plan.exit_code == 0, plan.exception
    assert "data: 20 training problems in train.jsonl; 6 held out in test.jsonl" in plan.stdout
    assert "first prompt: <|im_start|>system\\nThink.<|im_end|>" in " ".join(plan.stdout.split())
    assert json.loads(here("plan", "--json", "study.yaml").stdout)["data"][0].startswith("data: 20 training")
    done = paribus("run", "study.yaml")
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "reports" / "mine" / "report.json").read_text())
    assert "token_level" in json.dumps(report)
    folders = sorted((tmp_path / "home" / "runs").rglob("samples.jsonl"))
    assert len(folders) == 4
    prompts = [json.loads(line)["prompt"] for line in folders[0].read_text().splitlines()]
    assert len(prompts) >= 12
    assert all(p.startswith("<|im_start|>system\nThink.<|im_end|>\n<|im_start|>user\nAnn has ") for p in prompts)
    assert all(p.endswith("<|im_end|>\n<|im_start|>assistant\n") for p in prompts)


@pytest.mark.slow
def test_runs_on_data_that_were_edited_meanwhile_fail(paribus: Run, tmp_path: Path) -> None:
    """The first run ends on the data that were planned; the others would be recorded as what they are not."""
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(paribus, "run", "study.yaml", "--slots", "1")
        while not list((tmp_path / "home" / "runs").glob("*/a1/metrics.jsonl")) and not running.done():
            time.sleep(0.02)
        write_lines(tmp_path / "test.jsonl", gsm8k(700, 6))
        edited = running.result()
    assert edited.returncode != 0
    assert "changed since the study was planned" in (tmp_path / "reports" / "mine" / "report_appendix.md").read_text()
    assert 0 < len(list((tmp_path / "home" / "runs").glob("*/a*/result.json"))) < 4
    problems = {tuple(json.loads(p.read_text())["problems"]) for p in (tmp_path / "home").rglob("heldout-*.json")}
    assert len(problems) == 1


@pytest.mark.slow
def test_everything_that_is_wrong_is_shown_at_once(paribus: Run, here: Callable[..., Result], tmp_path: Path) -> None:
    """A missing column, an empty file, a model that cannot end: one message each, no traceback, and nothing is run."""
    save_chat_model(tmp_path / "model", end=False)
    write_lines(tmp_path / "train.jsonl", [{"q": "a", "answer": "#### 1"}])
    (tmp_path / "test.jsonl").write_text("")
    planned, done = here("plan", "study.yaml").exception, paribus("run", "study.yaml")
    assert done.returncode == 2
    assert "error P111:" in done.stderr
    assert "Traceback" not in done.stderr
    for said in (str(planned), done.stderr):
        for text in (
            "`task.train`: train.jsonl:1: there is no column `question`", "by `prompt: <column>`",
            "`task.heldout`: test.jsonl holds no problems", "`model.name: model` names no end-of-sequence token",
        ):  # fmt: skip
            assert text in said
    assert not list(tmp_path.rglob("metrics.jsonl"))


@pytest.mark.slow
def test_the_shipped_study_of_the_hub_is_planned_and_says_how_to_get_its_data(paribus: Run) -> None:
    """Without network and cache the plan is shown, then the command that downloads the dataset."""
    done = paribus("plan", str(data_root("ablations") / "studies" / "dapo_qwen2.5_1.5b_gsm8k.yaml"))
    assert done.returncode == 2
    assert "+ dynamic_sampling" in done.stdout
    assert "hf download --repo-type dataset openai/gsm8k" in done.stderr
    assert "Traceback" not in done.stderr
