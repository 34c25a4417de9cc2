"""Reward functions in training: what they add to advantages, what their failures leave, a study from end to end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paribus.contract import PREEMPTED, Checkpoints, Evaluate, EvaluationSet, Options
from paribus.health.detector import Setting, finding_of, initial_state, update
from paribus.health.diagnose import DETECTORS
from paribus.health.profile import load_profile
from paribus.recipe import factors as f
from paribus.recipe.recipe import JsonlTask, Recipe
from paribus.run_folder.checkpoints import published
from paribus.run_folder.folder import MetricLine, RunFolder
from paribus.run_folder.metrics import find_metric
from paribus_runners.native import runner, trainer
from paribus_runners.native.experience import weigh
from paribus_runners.native.objective.advantage import Scored
from paribus_runners.rewards.landlock import version
from paribus_runners.tasks import Chain, Grader, Jsonl, Problem
from paribus_runners.tasks.grader import code
from support.native_runs import changed

MINE = """
from helper import share

def digits(prompts, completions, answer, **columns):
    assert len(set(prompts)) == len(set(answer)) == 1  # one call a group
    return [share(c) for c in completions]

def brevity(completions, **columns):
    if "7" in completions[0]:
        raise ValueError(f"a seven in {completions[0]}")
    return [1.0 - len(c) / 40 for c in completions]
"""
HELPER = "def share(text):\n    return sum(c.isdigit() for c in text) / max(1, len(text))\n"
SOURCES = {"mine.py": MINE, "helper.py": HELPER}
FUNCTIONS = {
    "digits": {"path": "mine.digits", "timeout_s": 60.0},
    "brevity": {"path": "mine.brevity", "weight": -0.5, "on_failure": -3.0, "timeout_s": 60.0},
}


def _scored(functions: int, groups: int = 3, size: int = 4) -> Scored:
    n = groups * size
    draw = np.random.default_rng(0)
    correct = torch.tensor(draw.random(n) < 0.5)
    return Scored(
        group=torch.arange(groups).repeat_interleave(size),
        groups=groups,
        score=2 * correct.double() - 1,
        correct=correct,
        formatted=torch.ones(n, dtype=torch.bool),
        length=torch.full((n,), 3),
        truncated=torch.zeros(n, dtype=torch.bool),
        kl=torch.zeros(n, dtype=torch.float64),
        rewards=torch.tensor(draw.normal(size=(n, functions))),
        faults=torch.zeros(n, 1 + functions, dtype=torch.int8),
    )


@pytest.mark.parametrize("combine", ["sum_then_norm", "norm_then_sum"])
def test_two_functions_with_weights_give_the_advantages_of_an_independent_computation(combine: Any) -> None:
    """GRPO's and GDPO's formulas in numpy, with a verdict, two functions, weights and a factor."""
    from paribus_runners.native.objective.advantage import advantages

    functions = {"a": f.RewardFunction(path="m.a", weight=0.3), "b": f.RewardFunction(path="m.b", weight=-2.0)}
    reward = f.Reward(combine=combine, factor=10.0, weights=f.Weights(correct=0.5), functions=functions)
    scale = f.BatchWhiten(ddof=1, eps=0.0) if combine == "norm_then_sum" else f.GroupStd(ddof=1, eps=0.0)
    recipe, scored = Recipe(reward=reward, scale=scale), _scored(2)
    columns = [10 * scored.score.numpy(), 10 * scored.rewards[:, 0].numpy(), 10 * scored.rewards[:, 1].numpy()]
    weights = [0.5, 0.3, -2.0]

    def standardised(x: Any) -> Any:
        rows = x.reshape(3, 4)
        deviation = rows - rows.mean(1, keepdims=True)
        spread = rows.std(1, ddof=1, keepdims=True)
        return np.divide(deviation, spread, out=np.zeros_like(rows), where=spread > 0).ravel()

    if combine == "sum_then_norm":
        want = standardised(sum(w * x for w, x in zip(weights, columns, strict=True)))
    else:
        total = sum(w * standardised(x) for w, x in zip(weights, columns, strict=True))
        want = (total - total.mean()) / total.std(ddof=1)
    found = advantages(recipe, scored, torch.ones(12, dtype=torch.bool))
    assert found.tolist() == pytest.approx(want.tolist())


def test_a_function_of_weight_zero_changes_no_advantage(made: Any) -> None:
    """It is measured alone."""
    functions = {"a": f.RewardFunction(path="m.a", weight=0.0)}
    plain, measured = Recipe(), Recipe(reward=f.Reward(functions=functions))
    correct = [[True, False], [True, True]]
    one, other = (weigh(recipe, made(recipe, correct)).advantage for recipe in (plain, measured))
    assert torch.equal(one, other)


def _with_functions(recipe: Recipe, **changes: Any) -> Recipe:
    return Recipe.model_validate({**dict(recipe), "reward": {"functions": FUNCTIONS}, **changes})


def test_a_run_rewards_with_the_functions_that_were_planned(
    recipe: Recipe, job_folder: Callable[..., Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Means, failures by name, the declared score, tracebacks in the log, parts in the samples; evaluations as ever."""
    recipe = _with_functions(recipe)
    path = job_folder(recipe, options=Options(sources=SOURCES), evaluate=Evaluate(every=3, problems=10))
    runner.run(path)
    lines = [line.values for line in RunFolder(path).read_metrics()]
    assert all(find_metric(name) for values in lines for name in values)
    assert "reward/failed_frac" not in lines[0]
    failed = [values["reward/failed_frac"] for values in lines[1:]]
    assert any(failed)
    for values, share in zip(lines[1:], failed, strict=True):
        assert 0 <= values["reward/digits/mean"] <= 1
        assert values.get("reward/brevity/failed_exception", 0.0) == share
        known = 2 * values["reward/correct_frac"] - 1 + values["reward/digits/mean"]
        assert values["reward/mean"] == pytest.approx(known - 0.5 * values["reward/brevity/mean"])
    assert "reward function `brevity` (mine.brevity) failed: ValueError: a seven in" in caplog.text
    assert caplog.text.count("failed: ") <= 5
    samples = [json.loads(line) for line in (path / "samples.jsonl").read_text().splitlines()]
    parts = [s["reward_parts"] for s in samples if "reward_parts" in s]
    assert parts
    assert all(p.keys() == {"correct", "digits", "brevity"} for p in parts)
    assert (path / "rewards" / "helper.py").read_text() == HELPER
    confined = f"confined (Landlock {version()}" if version() else "not confined (this kernel has no Landlock)"
    assert json.loads((path / "environment.json").read_text())["rewards"].startswith(confined)


def test_workers_of_an_evaluation_set_alone_are_recorded(
    recipe: Recipe, job_folder: Callable[..., Path], tmp_path: Path
) -> None:
    """Training verifies in its own process, one set in workers: the run still says what these are kept from."""
    pytest.importorskip("math_verify")
    (tmp_path / "sums.jsonl").write_text('{"prompt": "a1b2=", "answer": "3"}\n' * 2)
    task = JsonlTask(train=str(tmp_path / "sums.jsonl"), heldout=str(tmp_path / "sums.jsonl"), verifier="math_verify")
    sets = {"sums": EvaluationSet(task=task, samples=2, problems=2)}
    path = job_folder(recipe, evaluate=Evaluate(every=3, problems=2, sets=sets))
    runner.run(path)
    assert "confined (" in json.loads((path / "environment.json").read_text())["rewards"]


def test_a_queue_keeps_what_functions_returned(recipe: Recipe, job_folder: Callable[..., Path]) -> None:
    """A run with stale rollouts that stops and resumes equals one that does not."""
    schedule = {**recipe.schedule.model_dump(), "steps": 4, "staleness": 1}
    recipe = _with_functions(recipe, schedule=schedule)
    options = Options(sources=SOURCES)
    whole = job_folder(recipe, options=options, name="whole", evaluate=Evaluate(every=2, problems=4))
    runner.run(whole)
    cut = job_folder(recipe, options=options, name="cut", evaluate=Evaluate(every=2, problems=4))
    runner.run(cut)
    lines = (cut / "metrics.jsonl").read_text().splitlines(keepends=True)
    (cut / "metrics.jsonl").write_text("".join(lines))
    again = job_folder(recipe, options=options, name="cut", token=2, evaluate=Evaluate(every=2, problems=4))
    runner.run(again)

    def values(folder: Path) -> list[dict[str, float]]:
        lines = RunFolder(folder).read_metrics()
        return [{k: v for k, v in line.values.items() if not k.startswith("perf/")} for line in lines]

    assert values(again) == values(whole)


def _jsonl(folder: Path, answer: str, verifier: Any = "math_verify") -> Jsonl:
    (folder / "p.jsonl").write_text(json.dumps({"prompt": "p", "answer": answer, "level": 3}) + "\n")
    return Jsonl(JsonlTask(train=str(folder / "p.jsonl"), heldout=str(folder / "p.jsonl"), verifier=verifier))


def test_answers_are_compared_as_mathematics(tmp_path: Path) -> None:
    """By math-verify in worker processes; equal answers count as one in a majority vote."""
    pytest.importorskip("math_verify")
    task = _jsonl(tmp_path, r"\frac{1}{2}")
    (problem,) = task.heldout(1)
    assert problem.columns == {"level": 3}
    with Grader(task) as grader:
        batch = grader.batch()
        batch.submit(problem, ["so 0.5", r"\boxed{\frac{2}{4}}", "$1/3$", "none"], [True] * 4)
        batch.submit(Problem("x", "p", ""), ["4"], [True])
        one, other = batch.collect()
    assert [v.correct for v in one.verdicts] == [True, True, False, False]
    assert one.verdicts[0].answer == one.verdicts[1].answer != one.verdicts[2].answer
    assert one.verdicts[3].answer == ""
    assert one.faults == [[0]] * 4
    assert other.faults == [[code("exception")]]
    assert not other.verdicts[0].correct


def test_a_plan_needs_math_verify_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message has the line that installs it."""
    from paribus_runners.native import runner as module

    level = JsonlTask(train="x", heldout="y", verifier="math_verify")
    recipe = Recipe.model_validate({"task": level, "model": {"name": "elsewhere"}})
    monkeypatch.setattr(sys.modules[type(module).__module__], "versions", lambda *_: {})
    assert any("math_verify` needs a part" in s.reason for s in module.support(recipe, Options()))


def test_evaluations_do_not_call_functions() -> None:
    """A batch without rewards has verdicts alone."""
    functions = {"f": f.RewardFunction(path="builtins.len")}
    with Grader(Chain(), functions) as grader:
        batch = grader.batch(rewards=False)
        batch.submit(Problem("x", "a3b5=", "8"), ["#8", "#7"], [True, True])
        ((verdicts, rewards, faults, steps),) = batch.collect()
    assert [v.correct for v in verdicts] == [True, False]
    assert rewards == [[], []]
    assert faults == [[0], [0]]
    assert steps == [[], []]


def test_failed_rewards_are_a_finding_above_one_percent() -> None:
    """It names the function and how it failed; a burst in few steps counts as a trickle in all."""
    detector = next(d for d in DETECTORS if d.name == "rollout_errors")
    setting = Setting(profile=load_profile("default"), recipe=Recipe(), planned=30)

    def judged(shares: list[float]) -> Any:
        names = ("reward/failed_frac", "reward/my_f/failed_timeout")
        lines = [
            MetricLine(step=k, time_ms=0, values=dict.fromkeys(names[: 1 + (x > 0)], x)) for k, x in enumerate(shares)
        ]
        state, _ = update(detector, setting, initial_state(), lines)
        return finding_of(detector, setting, state)

    assert judged([0.005] * 30).state == "ok"
    warned = judged([0.02] * 30)
    assert warned.state == "warn"
    assert "`my_f` by timeout (2.0%)" in warned.evidence
    assert any("timeout_s" in remedy.text for remedy in warned.remedies)
    assert judged([0.0, 0.0, 0.0, 0.0, 0.2] * 6).state == "warn"
    assert judged([0.5] * 30).state == "critical"


STUDY = """\
study: own_rewards
base:
  preset: grpo
  set:
    model: {model}
    task: chain
    optimizer.learning_rate: 1.0e-3
    schedule: {{steps: 3, prompts_per_step: 4, group_size: 4, max_new_tokens: 12}}
    reward.functions:
      digits: {{path: mine.digits, timeout_s: 60}}
      brevity: {{path: mine.brevity, weight: 0.0, timeout_s: 60}}
tricks:
  short: {{reward.functions.brevity.weight: 0.5}}
designs:
  main: {{kind: add_one}}
seeds: {{n: 2}}
evaluate: {{every: 3, problems: 10}}
"""


@pytest.mark.slow
def test_a_study_with_a_reward_file_beside_it(tmp_path: Path, chain_model: Path) -> None:
    """Two arms, two seeds: the plan names functions, files and hashes, and a later edit of the file changes no run."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in SOURCES.items():
        (folder / name).write_text(text)
    (folder / "study.yaml").write_text(STUDY.format(model=chain_model))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PARIBUS_", "MLFLOW_"))}
    environment = {**kept, "PARIBUS_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}

    def paribus(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "paribus", *arguments],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    planned = paribus("plan", str(folder / "study.yaml"))
    assert "brevity: mine.brevity of mine.py; weight 0 or 0.5, 0 on failure" in planned
    shown = json.loads(paribus("plan", str(folder / "study.yaml"), "--json"))
    assert shown["sources"].keys() == SOURCES.keys()
    assert shown["sources"]["mine.py"][:12] in planned
    paribus("submit", str(folder / "study.yaml"))
    (folder / "mine.py").write_text("raise SystemExit")
    paribus("scheduler", "--until-idle")
    runs = sorted((tmp_path / "home" / "runs").glob("*/a1"))
    assert len(runs) == 4
    for run in runs:
        (*_, last) = RunFolder(run).read_metrics()
        assert last.values["reward/digits/mean"] > 0
        assert "reward/brevity/mean" in last.values
        assert (run / "rewards" / "mine.py").read_text() == MINE


def test_sigterm_while_reward_functions_load_ends_the_run_at_once(
    tmp_path: Path, recipe: Recipe, job_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is trained yet, so nothing is to be saved; loading may take minutes."""
    monkeypatch.setenv("PARIBUS_REWARD_WRITES", str(tmp_path))
    begun = tmp_path / "begun"
    slow = f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(600)\ndef f(completions): return []"
    recipe = changed(recipe, reward={"functions": {"f": {"path": "slow.f"}}})
    folder = job_folder(recipe, options=Options(sources={"slow.py": slow}))

    def stop() -> None:
        while not begun.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    with pytest.raises(SystemExit) as ended:
        runner.run(folder)
    assert ended.value.code == PREEMPTED
    assert not RunFolder(folder).checkpoints.exists()
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


def test_sigterm_in_a_call_of_a_reward_function_saves_the_step_before(
    tmp_path: Path, recipe: Recipe, job_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A judge may take minutes for an answer; who preempts a run gives it seconds."""
    monkeypatch.setenv("PARIBUS_REWARD_WRITES", str(tmp_path))
    begun = tmp_path / "begun"
    judge = f"""import pathlib, time
def f(completions, **columns):
    if pathlib.Path({str(tmp_path / "step")!r}).exists():
        pathlib.Path({str(begun)!r}).touch()
        time.sleep(600)
    return [0.0 for _ in completions]
"""
    recipe = changed(recipe, reward={"functions": {"f": {"path": "judge.f", "timeout_s": 900.0}}})
    folder = job_folder(recipe, options=Options(sources={"judge.py": judge}), checkpoint=Checkpoints(every=10))
    write = trainer.Trainer._write

    def noted(self: trainer.Trainer, step: int, values: dict[str, float]) -> None:
        write(self, step, values)
        if step == 1:
            (tmp_path / "step").touch()

    monkeypatch.setattr(trainer.Trainer, "_write", noted)

    def stop() -> None:
        while not begun.exists():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    start = time.monotonic()
    with pytest.raises(SystemExit) as ended:
        runner.run(folder)
    assert ended.value.code == PREEMPTED
    assert time.monotonic() - start < 300
    assert [path.name for path in published(RunFolder(folder))] == ["step-000001"]
