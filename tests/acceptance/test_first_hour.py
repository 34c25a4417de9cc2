"""What a new user types in the first hour, from an empty folder, and the example of every command's help."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from itertools import product
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from paribus.cli import COMMANDS, EXAMPLES, GROUPS, paribus
from paribus.cli.studies import shipped_study
from paribus.testing.fake_runner import install
from support.chat_model import save_chat_model

pytest.importorskip("torch")
SMALL = "--set schedule.steps=2 --set seeds.n=1 --set evaluate.problems=20 --set evaluate.every=2"
ONLY_PARSED = {"up", "healthcheck", "dashboard", "doctor", "gradients"}
"""Examples that serve until Ctrl-C, judge the machine, or need another part or a run that was really trained."""


def typed(line: str, folder: Path, code: int = 0) -> str:
    """Type a line in a folder, without a terminal, and return what it printed."""
    words = shlex.split(line.partition(" > ")[0])
    program = {"paribus": [sys.executable, "-m", "paribus"], "python": [sys.executable]}[words[0]]
    where = {k: v for k, v in os.environ.items() if not k.startswith("PARIBUS_")}
    shown = subprocess.run(
        [*program, *words[1:]], cwd=folder, env={**where, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, check=False, timeout=240,
    )  # fmt: skip
    assert shown.returncode == code, (line, shown.stdout, shown.stderr)
    assert "Traceback" not in shown.stderr
    assert "\x1b[" not in shown.stdout  # no colours without a terminal
    return shown.stdout


def refused(study: str, folder: Path) -> str:
    """Return what `paribus plan` answers to a study with a mistake, on one line."""
    command = [sys.executable, "-m", "paribus", "plan", study]
    shown = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=240)
    assert shown.returncode == 2, shown.stdout
    assert "Traceback" not in shown.stderr
    return " ".join(shown.stderr.split())


def test_a_clip_grid_with_and_without_the_standard_deviation(tmp_path: Path) -> None:
    """Two commands to a plan of all six combinations."""
    typed("paribus init --template clip_grid grid.yaml", tmp_path)
    plan = json.loads(typed("paribus plan grid.yaml --json", tmp_path))
    labels = {arm["label"] for arm in plan["arms"]}
    assert {"clip.high=0.28, scale=none", "clip.high=0.24, scale=group_std"} <= labels
    assert len(plan["runs"]) == 18


NOTEBOOK = """
import paribus

results = paribus.results("own-data")
runs = results.runs()
assert len(runs) == 2 and runs["score"].dtype == "float64", runs.dtypes
assert set(results.evaluations()["set"]) == {"heldout"}
assert set(results.effects()["arm"]) and len(results.table("solo"))
entropy = results.curves("policy/entropy")
assert entropy.attrs["units"]["value"] == "nats/token", entropy.attrs
try:
    results.curves("entropy")
except paribus.ParibusError as error:
    print(error)
results.plot("accuracy").write_html("accuracy.html")
"""


@pytest.mark.slow
def test_own_lines_own_reward_and_own_model_are_trained(tmp_path: Path) -> None:
    """From the template to a report in three commands, then DataFrames and a plot; the reward counts in both arms."""
    typed("paribus init --template own_data study.yaml", tmp_path)
    typed("python make_model.py", tmp_path)
    shown = typed(f"paribus run study.yaml {SMALL}", tmp_path)
    assert "reward_digits" in shown
    runs = json.loads(typed("paribus status own-data --json", tmp_path))["runs"]
    assert [run["state"] for run in runs] == ["SUCCEEDED"] * 2
    assert (tmp_path / "reports" / "own-data" / "report.html").is_file()
    again = typed(f"paribus run study.yaml {SMALL}", tmp_path)
    assert "nothing to train" in again
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    shown = typed("python notebook.py", tmp_path)
    assert "Did you mean `policy/entropy`?" in shown
    assert "plotly" in (tmp_path / "accuracy.html").read_text()[:50_000]


CHAT_STUDY = """
study: mine
question: Does a reward for short answers change a chat model of my own?
base:
  preset: grpo
  set:
    model: model
    task: {kind: dataset, train: train.jsonl, heldout: heldout.jsonl, prompt: question, answer: solution,
           system: Answer with a number., template: chat, verifier: last_number}
    kl: off
    reward.functions: {brevity: {path: my_rewards.brevity, weight: 0.0, timeout_s: 60}}
    optimizer.learning_rate: 1.0e-3
    schedule: {steps: 2, prompts_per_step: 2, group_size: 4, max_new_tokens: 4}
tricks:
  short: {reward.functions.brevity.weight: 0.5}
designs: {solo: {kind: add_one}}
seeds: {n: 2}
evaluate: {every: 2, problems: 4, primary: eval/heldout/avg_at_1, checkpoint: final}
"""
MY_REWARDS = """
def brevity(prompts, completions, level, **columns):
    assert all(p.startswith("<|im_start|>system\\nAnswer with a number.<|im_end|>\\n") for p in prompts), prompts
    assert all(p.endswith("<|im_start|>assistant\\n") for p in prompts), prompts
    return [1.0 / (1 + len(text)) + 0 * n for text, n in zip(completions, level)]
"""


@pytest.mark.slow
def test_a_chat_model_of_ones_own_is_compared_in_a_table(tmp_path: Path) -> None:
    """Chat template, columns, reward function and model folder of the user: two arms, two seeds, one table."""
    save_chat_model(tmp_path / "model")
    for name, first in (("train", 0), ("heldout", 10)):
        rows = [{"question": f"{n} + {n}?", "solution": str(2 * n), "level": n} for n in range(first, first + 4)]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "my_rewards.py").write_text(MY_REWARDS)
    (tmp_path / "study.yaml").write_text(CHAT_STUDY)
    plan = typed("paribus plan study.yaml", tmp_path)
    assert "4 training problems in train.jsonl; 4 held out in heldout.jsonl" in " ".join(plan.split())
    assert "my_rewards.py" in plan
    typed("paribus run study.yaml", tmp_path)
    files = list((tmp_path / ".paribus" / "runs").rglob("metrics.jsonl"))
    assert len(files) == 4
    for file in files:
        last = json.loads(file.read_text().splitlines()[-1])["values"]
        assert 0 < last["reward/brevity/mean"] <= 1
        assert last["reward/failed_frac"] == 0
    table = (tmp_path / "reports" / "mine" / "report.md").read_text()
    assert "| base | 2/2 |" in table
    assert "| + short | 2/2 |" in table


def test_dapo_is_taken_apart_into_its_factors(tmp_path: Path) -> None:
    """The template has one row for each factor in which DAPO differs from GRPO, and all of DAPO."""
    typed("paribus init --template leave_one_out dapo.yaml", tmp_path)
    plan = json.loads(typed("paribus plan dapo.yaml --json", tmp_path))
    rows = {row["label"] for row in plan["rows"]}
    assert {"full", "- clip", "- filter", "- aggregation", "- length", "- kl", "- reward"} == rows


DAPO = """
study: dapo
base: {preset: grpo, set: {model: tiny}}
path: {to: dapo, set: {length.rule: {soft_start: 30, hard_cap: 37}}}
designs:
  ladder: {kind: cumulative, order: [clip, filter, aggregation, length, kl, reward]}
  without: {kind: leave_one_out}
"""


def test_a_ladder_and_leave_one_out_of_a_preset_share_a_study(tmp_path: Path) -> None:
    """Six lines by hand; two mistakes on the way are answered with what to write."""
    study = tmp_path / "study.yaml"
    study.write_text("study: dapo\nbase: {preset: dapo}\ndesigns: {without: {kind: leave_one_out}}\n")
    assert "or name a preset whose parts are taken, e.g. `path: {to: dapo}`" in refused("study.yaml", tmp_path)
    study.write_text(DAPO.replace(", set: {length.rule: {soft_start: 30, hard_cap: 37}}", ""))
    assert "Lower length.rule.soft_start and length.rule.hard_cap" in refused("study.yaml", tmp_path)
    study.write_text(DAPO)
    plan = json.loads(typed("paribus plan study.yaml --json", tmp_path))
    rows = [row["label"] for row in plan["rows"]]
    assert {"+ clip", "+ reward", "full", "- clip", "- reward"} <= set(rows)


@pytest.mark.slow
def test_lines_with_columns_of_other_names_are_answered_and_then_read(tmp_path: Path) -> None:
    """A study by hand: first with the tiny model and the columns of the file, then as the answers say."""
    for name, first in (("train", 0), ("test", 50)):
        rows = [{"question": f"{n}+1=", "answer": n + 1} for n in range(first, first + 40)]
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    study = tmp_path / "study.yaml"
    task = "{kind: jsonl, train: train.jsonl, heldout: test.jsonl}"
    study.write_text(
        f"study: mine\nbase: {{preset: grpo, set: {{model: tiny, task: {task}}}}}\n"
        "tricks: {no_std: {scale: none}}\ndesigns: {solo: {kind: add_one}}\n"
    )
    answer = refused("study.yaml", tmp_path)
    assert "`paribus init --template own_data` has a small one" in answer
    assert "`kind: dataset` reads others: `prompt: <column>`" in answer
    typed("paribus init --template own_data other/study.yaml", tmp_path)
    typed("python other/make_model.py", tmp_path)
    text = study.read_text().replace("kind: jsonl", "kind: dataset, prompt: question, template: none")
    study.write_text(text.replace("model: tiny", "model: tiny-model, optimizer.learning_rate: 1.0e-3"))
    plan = json.loads(typed("paribus plan study.yaml --json", tmp_path))
    assert len(plan["runs"]) == 6


def test_every_command_has_a_group_and_an_example() -> None:
    """The groups have every command once; an example begins with its command."""
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS) == sorted(EXAMPLES)
    assert all(shlex.split(line)[:2] == ["paribus", name] for name, line in EXAMPLES.items())


@pytest.mark.parametrize("name", sorted(ONLY_PARSED))
def test_an_example_that_serves_is_understood(name: str) -> None:
    """Its options exist, and their values are allowed."""
    program = click.Context(paribus, **paribus.context_settings)  # commands keep the name of their help option
    command = paribus.get_command(program, name)
    assert command is not None
    command.make_context(name, shlex.split(EXAMPLES[name])[2:], parent=program)


@pytest.mark.slow
def test_the_examples_work_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the groups, with the study of `paribus init` on the runner that only pretends to train."""
    site = str(install(tmp_path / "site"))
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([site, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep))
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("PARIBUS_")]:
        monkeypatch.delenv(name)
    text = shipped_study("first").read_text()
    (tmp_path / "study.yaml").write_text(f"{text}runner: fake\n")
    (tmp_path / "runs").mkdir()
    for arm, seed in product(("grpo", "dr_grpo"), (0, 1)):
        steps = [{"step": n, "reward": 0.1 * n + seed, "entropy": 1.0, "completions/mean_length": 9} for n in range(9)]
        (tmp_path / "runs" / f"{arm}-s{seed}.jsonl").write_text("".join(f"{json.dumps(step)}\n" for step in steps))
    for name, line in EXAMPLES.items():
        if name in ("run", "scheduler"):  # processes of their own, which start others
            typed(line, tmp_path)
        elif name not in ONLY_PARSED:
            words = shlex.split(line.partition(" > ")[0])[1:]
            expanded = [
                path for word in words for path in (map(str, sorted(Path().glob(word))) if "*" in word else [word])
            ]
            shown = CliRunner().invoke(paribus, expanded)
            assert shown.exit_code == 0, (line, shown.output, shown.exception)
    assert (tmp_path / "first.tar").is_file()
    assert (tmp_path / "results" / "report.html").is_file()
