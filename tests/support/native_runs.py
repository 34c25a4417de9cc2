"""What tests read of runs of the native runner, and how they stop one."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paribus.attempt.runner_process import ForkedRunner
from paribus.attempt.supervisor import Pace, Supervisor
from paribus.contract import Checkpoints, Job
from paribus.recipe import factors as f
from paribus.recipe.recipe import ChainTask, Recipe
from paribus.recipe.turns import FunctionTurns
from paribus.run_folder.checkpoints import published
from paribus.run_folder.folder import RunFolder, read_json
from paribus.run_folder.metrics import STEP_METRICS
from paribus.run_folder.phases import Sign, read_signs
from paribus_runners.native import main, runner, trainer
from paribus_runners.native.world import World
from support.ranks import ends_of_ranks, in_ranks
from support.site import until

TOOL = FunctionTurns(
    path="paribus_runners.tasks.tools.running_sum", marks=("?",), most=3, answer_tokens=2, timeout_s=60
)
STATES: dict[str, dict[str, Any]] = {
    "plain": {},
    "critic": {
        "baseline": f.CriticGae(),
        "scale": f.BatchWhiten(unit="token"),
        "auxiliary": {"value": {"pretrain_steps": 1}},
    },
    "reference": {"kl": f.KlInLoss(reference=f.SyncedReference(every=1, mix=0.3))},
    "history": {"baseline": f.History(), "scale": f.HistorySmooth()},
    "ahead": {"schedule": {"staleness": 1}, "correction": f.TokenTruncate()},
    "retired": {"task": ChainTask(problems=14), "schedule": {"retire_at": 0.125, "staleness": 1}},
    "cooling": {"schedule": {"temperature_change": {"kind": "linear", "to": 0.5}, "staleness": 1}},
    "truncated": {"schedule": {"top_p": 0.9, "top_k": 6, "staleness": 1}, "kl": f.KlInLoss()},
    "turns": {"schedule": {"staleness": 1}, "turns": TOOL},
    "surplus": {"filter": f.RefillAsync(metric="correct"), "schedule": {"group_size": 12}, "kl": f.KlInLoss()},
}
"""Recipes by what a run carries from step to step beside the policy and its optimizer."""


SLEEPER = "import time\n\ndef score(prompts, completions, **columns):\n    time.sleep(10_000)\n"
"""A file with a reward function that does not return."""


def changed(recipe: Recipe, **changes: Any) -> Recipe:
    """Return the recipe with other levels; of a schedule only what is given changes."""
    if isinstance(changes.get("schedule"), dict):
        changes["schedule"] = {**recipe.schedule.model_dump(), **changes["schedule"]}
    return Recipe.model_validate({**dict(recipe), **changes})


def lines_of(folder: Path) -> list[dict[str, float]]:
    """Return step and metrics of each line, without what depends on the machine."""
    timing = {m.name for m in STEP_METRICS if m.timing}
    return [
        {"step": line.step} | {k: v for k, v in line.values.items() if k not in timing}
        for line in RunFolder(folder).read_metrics()
    ]


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    """Return the weights in the newest checkpoint."""
    return load_file(published(RunFolder(folder))[0] / "model" / "model.safetensors")


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    """Return whether all weights are equal to the bit."""
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def signal_after(patch: pytest.MonkeyPatch, last: int) -> None:
    """Let the native trainer of this process get SIGTERM when it has written the line of step ``last``."""
    write = trainer.Trainer._write

    def write_and_signal(self: trainer.Trainer, step: int, values: dict[str, float]) -> None:
        write(self, step, values)
        if step == last:
            os.kill(os.getpid(), signal.SIGTERM)

    patch.setattr(trainer.Trainer, "_write", write_and_signal)


def train_until(last: int, folder: Path) -> None:
    """Train the job in a folder until the line of step ``last``, after which it must end by SIGTERM with status 75."""
    with pytest.MonkeyPatch.context() as patch:
        signal_after(patch, last)
        with pytest.raises(SystemExit) as stopped:
            runner.run(folder)
    assert stopped.value.code == 75


def train_in(size: int, folder: Path) -> None:
    """Train the job in a folder, in as many processes."""
    job = Job.model_validate_json((folder / "job.json").read_bytes())
    if size == 1:
        main.train(RunFolder(folder), job)
        return
    samplers = job.recipe.compute.sampling_processes
    in_ranks(size, folder / "ranks", lambda here: main.train(RunFolder(folder), job, here), samplers)


def stopped_and_gone_on(
    recipe: Recipe, job_folder: Callable[..., Path], patch: pytest.MonkeyPatch, first: int, then: int
) -> tuple[Path, Path]:
    """Return the folders of a run of three steps that goes on in ``then`` processes, and of one that was left alone.

    The former was stopped by SIGTERM to all of its ``first`` processes after the second step; the latter has as many.
    """
    cut = job_folder(recipe, name="cut", checkpoint=Checkpoints(every=10))
    job = Job.model_validate_json((cut / "job.json").read_bytes())

    def train(here: World) -> None:
        signal_after(patch, 2)
        main.train(RunFolder(cut), job, here)

    samplers = recipe.compute.sampling_processes
    assert ends_of_ranks(first, cut / "ranks", train, samplers) == [75] * first
    (place,) = published(RunFolder(cut))
    assert place.name == "step-000002"
    on, whole = job_folder(recipe, name="cut", token=2), job_folder(recipe, name="whole")
    train_in(then, on)
    train_in(first, whole)
    assert read_json(on / "result.json")["status"] == "succeeded"
    assert [x["step"] for x in lines_of(on)] == [0, 1, 2, 3]
    return on, whole


def ended(
    folder: Path, ready: Callable[[dict[int, Sign]], bool], end: signal.Signals, who: int
) -> tuple[dict[str, Any], list[int]]:
    """Supervise a run of two processes, end it when both show what is ``ready``; return the report, and their ids.

    SIGTERM goes to all of its processes, another signal to the one with the number ``who``.
    """
    pids = list[int]()

    def there() -> dict[int, Sign] | None:
        signs = read_signs(folder)
        return signs if len(signs) == 2 and ready(signs) else None

    def act() -> None:
        signs = until(there)
        pids.extend(sign.pid for sign in signs.values())
        if end == signal.SIGTERM:
            os.killpg(os.getpgid(signs[who].pid), end)
        else:
            os.kill(signs[who].pid, end)

    thread = threading.Thread(target=act)
    thread.start()
    report = supervised(folder, 600.0)
    thread.join()
    return report, pids


def supervised(folder: Path, grace_s: float = 1.0) -> dict[str, Any]:
    """Supervise a run to its end, with this time for a checkpoint, and return the report."""
    requests: list[dict[str, Any]] = []

    def send(request: dict[str, Any]) -> dict[str, Any]:
        requests.append(request)
        return {"ok": True, "lease_s": 600.0, "cancel": False}

    pace = Pace(tick_s=0.05, grace_s=grace_s)
    assert Supervisor(RunFolder(folder), 1, send, pace=pace).supervise(ForkedRunner) == 0
    return requests[-1]
