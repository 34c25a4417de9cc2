"""A runner that trains nothing and supports everything, for tests of what stands above runners.

Like any runner it is found by its entry point. Paribus installs none for it: a test calls :func:`install` and puts the
folder on the path. Instead of training, it writes plausible files with made-up numbers.

The environment variable ``PARIBUS_FAKE`` holds JSON: ``{"step_s": 0.01, "prepare_s": 2.0, "rules": [{"do": "crash",
"at": 5, "seed": 1, "token": 1}]}``. A rule applies to the runs that its ``arm``, ``seed`` and ``token`` name (absent:
all), when step ``at`` would be written. ``do`` is ``crash``, ``import`` (of a module that is not there), ``memory``
(more than there is), ``segfault``, ``exit`` (status 0 without a result), ``requeue`` (status 75), ``hang``, ``deaf``
(like ``hang``, and SIGTERM is not heard), ``wait`` (until the file that the rule names as ``for`` is there, or SIGTERM
comes, which ends the run with a checkpoint), ``fork`` (a child of its group, and two in sessions of their own, that
write the time into a file of the run folder as long as they live), ``fill`` (the disk, until it is full), ``eio``,
``erofs`` (what a disk says that is broken or read-only), ``nan``, ``impossible`` (a share above 1), ``garbage`` (a
line that is no metric line) or ``kill`` (SIGKILL to itself).
"""

from __future__ import annotations

import ctypes
import errno
import importlib
import json
import math
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from paribus.contract import PREEMPTED, EvaluationSet, Hashes, Job, Options, Requirements, RunnerBase, Support
from paribus.evaluate import HELDOUT
from paribus.recipe.recipe import Recipe, fingerprint_of
from paribus.run_folder.checkpoints import publish, published, read_manifest
from paribus.run_folder.folder import Evaluation, MetricLine, RunFolder, write_json

TOKENS = 2048
"""Tokens that a step generates."""

VARIABLE = "PARIBUS_FAKE"


@dataclass(frozen=True, kw_only=True)
class FakeRunner(RunnerBase):
    """Implements :class:`paribus.contract.Runner` with hashes that depend on their subject alone.

    Attributes:
        name: the runner's name.
        evaluates_sets: whether studies may have sets.
        ends_by_tokens: whether recipes may have a budget of generated tokens.
        ends_by_prompts: the same of sampled prompts.
        missing: pairs of a ``clip.kind`` and why recipes with it are unsupported.
        approximate: pairs of a ``clip.kind`` and why recipes with it are trained approximately.
        gpus: least and most GPUs of a run.
        processes: as in :class:`paribus.contract.Requirements`.
        samples_with_training_code: as in :class:`paribus.contract.Requirements`.
        version: changes the hash of the code, as a new version of a trainer would.
    """

    name: str = "fake"
    evaluates_sets: bool = True
    ends_by_tokens: bool = True
    ends_by_prompts: bool = True
    missing: tuple[tuple[str, str], ...] = ()
    approximate: tuple[tuple[str, str], ...] = ()
    gpus: tuple[float, float | None] = (0.0, None)
    processes: int | None = 1
    samples_with_training_code: bool = True
    version: str = "1"

    def warm(self) -> None:
        """Import the detectors: in tests leases are short, and on a slow machine the import outlasts one."""
        import paribus.health.judge  # noqa: F401

    def support(self, recipe: Recipe, options: Options) -> tuple[Support, ...]:
        """Return what :attr:`missing` and :attr:`approximate` say of the recipe's clip rule."""
        kind = recipe.clip.kind
        return (
            *(Support(feature="clip.kind", level="unsupported", reason=r) for k, r in self.missing if k == kind),
            *(Support(feature="clip.kind", level="approximate", reason=r) for k, r in self.approximate if k == kind),
        )

    def requirements(self, recipe: Recipe, options: Options) -> Requirements:
        """Return :attr:`gpus`, :attr:`processes` and :attr:`samples_with_training_code`."""
        least, most = self.gpus
        return Requirements(
            least_gpus=least,
            most_gpus=most,
            processes=self.processes,
            samples_with_training_code=self.samples_with_training_code,
        )

    def hashes(self, recipe: Recipe, options: Options) -> Hashes:
        """Return hashes of :attr:`version`, of the task, and of the model with the task that warms it up."""
        return Hashes(
            code=fingerprint_of(["code", self.version]),
            data=fingerprint_of(["data", recipe.task.model_dump(mode="json")]),
            model=fingerprint_of(["model", recipe.model.model_dump(mode="json"), recipe.task.kind]),
        )

    def prepare(self, recipe: Recipe, cache: Path) -> None:
        """Make nothing, in the time that the environment says."""
        time.sleep(json.loads(os.environ.get(VARIABLE, "{}")).get("prepare_s", 0.0))

    def run(self, folder: Path) -> None:
        """Write made-up numbers, or misbehave as the environment says."""
        train(folder)


runner = FakeRunner()
"""What an entry point names."""


def install(folder: Path) -> Path:
    """Write into ``folder`` what makes Python find the runner ``fake``; put the folder on ``PYTHONPATH``.

    Returns:
        The folder.
    """
    information = folder / "fake-0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: fake\nVersion: 0\n")
    (information / "entry_points.txt").write_text(f"[paribus.runners]\nfake = {__name__}:runner\n")
    return folder


# ---- training that is made up ------------------------------------------------------------------------


def train(path: Path) -> None:
    """Write what a run of ``path/job.json`` would write, step by step, and ``result.json`` last."""
    folder = RunFolder(path)
    job = Job.model_validate_json(folder.job.read_bytes())
    orders = json.loads(os.environ.get(VARIABLE, "{}"))
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopping.append(number))
    write_json(folder.environment, {"fake": True})
    first = _resume(folder)
    schedule = job.recipe.schedule
    last = next(step for step in count(1) if schedule.spent(step, TOKENS * step, schedule.prompts_per_step * step))
    for step in range(first, last + 1):
        time.sleep(orders.get("step_s", 0.0))
        if stopping:
            if step > 0:
                publish(folder, job, step - 1, lambda place: write_json(place / "state.json", {"fake": True}))
            sys.exit(PREEMPTED)
        values = _values(job, step)
        for rule in orders.get("rules", ()):
            if rule["at"] != step or not _applies(rule, job):
                continue
            if rule["do"] == "wait":
                while not (stopping or Path(rule["for"]).exists()):
                    time.sleep(0.02)
            else:
                _misbehave(rule["do"], folder, values)
        for name, chosen in job.evaluate.due(step, last).items():
            values |= _evaluate(folder, job, step, name, chosen)
        folder.append_metrics(MetricLine(step=step, time_ms=time.time_ns() // 1_000_000, values=values))
    write_json(folder.result, {"status": "succeeded", "steps": last})


def _resume(folder: RunFolder) -> int:
    """Return the first step: after the newest checkpoint of an earlier attempt, whose records are carried over."""
    token = int(folder.path.name[1:])
    for earlier in (RunFolder(folder.path.with_name(f"a{t}")) for t in range(token - 1, 0, -1)):
        if places := published(earlier):
            done = read_manifest(places[0]).step
            for line in earlier.read_metrics():
                if line.step <= done:
                    folder.append_metrics(line)
            for evaluation in earlier.read_evaluations():
                if evaluation.step <= done:
                    folder.write_evaluation(evaluation)
            return done + 1
    return 0


def _applies(rule: Mapping[str, Any], job: Job) -> bool:
    return all(rule.get(k, getattr(job, k)) == getattr(job, k) for k in ("arm", "seed", "token"))


def _misbehave(what: str, folder: RunFolder, values: dict[str, float]) -> None:
    match what:
        case "crash":
            raise ValueError(f"made to fail in process {os.getpid()}")
        case "hang" | "deaf":
            if what == "deaf":
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            else:
                signal.signal(signal.SIGTERM, lambda *_: sys.exit(PREEMPTED))
            while True:
                time.sleep(0.05)
        case "fork":
            _fork(folder.path)
        case "fill":
            with folder.path.joinpath("filling").open("wb") as file:
                while True:
                    file.write(bytes(1 << 16))
        case "nan" | "impossible":
            values |= _VALUES[what]
        case "garbage":
            with folder.metrics.open("ab") as file:
                file.write(b"step 3: loss 0.5\n")
        case _:
            _ENDS[what]()


_VALUES: Mapping[str, Mapping[str, float]] = {
    "nan": {"policy/entropy": math.nan},
    "impossible": {"reward/correct_frac": 1.5},
}


def _disk(number: int) -> None:
    raise OSError(number, os.strerror(number), "checkpoint")


_ENDS: Mapping[str, Callable[[], object]] = {
    "import": lambda: importlib.import_module("paribus.testing.not_there"),
    "memory": lambda: bytearray(1 << 62),
    "segfault": lambda: ctypes.string_at(0),
    "exit": lambda: sys.exit(0),
    "requeue": lambda: sys.exit(PREEMPTED),
    "eio": lambda: _disk(errno.EIO),
    "erofs": lambda: _disk(errno.EROFS),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
}


def _fork(folder: Path) -> None:
    """Start three processes that outlive a supervisor that misses them."""
    for name in ("group", "session", "daemon"):
        if os.fork():
            continue
        if name != "group":
            os.setsid()
        if name == "daemon" and os.fork():
            os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        with (folder / f"left-{name}-{os.getpid()}").open("w", buffering=1) as file:
            while True:
                file.write(f"{time.time()}\n")
                time.sleep(0.01)


def _values(job: Job, step: int) -> dict[str, float]:
    if step == 0:
        return {}
    noise = random.Random(f"{job.run} {step}")  # noqa: S311 - made-up numbers
    done = step / job.recipe.schedule.steps
    reward = 0.3 + 0.4 * done + noise.uniform(-0.02, 0.02)
    return {
        "reward/mean": reward,
        "reward/correct_frac": reward,
        "policy/entropy": 1.2 - 0.5 * done + noise.uniform(-0.02, 0.02),
        "response/length_mean": 16.0 + 6.0 * done + noise.uniform(-0.5, 0.5),
        "response/truncated_frac": 0.1,
        "group/zero_std_frac": 0.2,
        "budget/gen_tokens": float(TOKENS * step),
        "budget/trained_tokens": float(TOKENS * step),
    }


def _evaluate(folder: RunFolder, job: Job, step: int, name: str, chosen: EvaluationSet) -> dict[str, float]:
    problems, samples = chosen.problems, chosen.samples
    place = f"{job.run} evaluation {step}" + (f" {name}" if name != HELDOUT else "")
    chance = random.Random(place)  # noqa: S311 - made-up numbers
    skill = 0.3 + 0.4 * step / job.recipe.schedule.steps
    correct = tuple(sum(chance.random() < skill for _ in range(samples)) for _ in range(problems))
    folder.write_evaluation(
        Evaluation(
            step=step,
            set=name,
            samples=samples,
            problems=tuple(f"p{i}" for i in range(problems)),
            correct=correct,
            truncated=(0,) * problems,
            tokens=(16 * samples,) * problems,
            tokens_correct=tuple(16 * c for c in correct),
            answers=tuple({"right": c, "wrong": samples - c} for c in correct),
        )
    )
    return {f"eval/{name}/avg_at_{samples}": sum(correct) / (problems * samples)}
