"""A home folder with a made-up study in every state that a page can show. Nothing here is a measurement.

Files and store are written by the platform's own writers: metric lines, evaluations, samples, verdicts, results.
"""

from __future__ import annotations

import json
import math
import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from paribus.contract import Job
from paribus.health.judge import LiveJudge
from paribus.recipe.factors import Schedule
from paribus.report.inputs import RunData, StudyData
from paribus.run_folder.folder import Evaluation, MetricLine, RunFolder, write_json
from paribus.store.models import Claim
from paribus.store.store import Store
from support.studies import Shape, made_up_study

SHAPE = Shape(
    seeds=4, steps=80, every=8, designs=("cumulative", "add_one"), problems=40, samples=8, noise=0.7,
    outcomes=(("+ dynamic_sampling", 2, "failed"),),
)  # fmt: skip
RUNNING, WAITING = 2, 1
"""Runs at the end of the queue: running ones, two thirds done, and queued ones."""

ILL: Mapping[tuple[str, int], str] = {("+ token_level", 1): "collapses", ("soft_overlong", 2): "truncates"}
"""Label of the arm and seed of a failing run, and how it fails."""

SAID = '<b id="said">bold?</b>'
"""Part of a response: markup that a page must not interpret."""

STEP_S = 2
SHOWN, GROUPS = 8, 5
"""Seconds per step; problems of each evaluation with a response as text, and with a group of training."""


def made_up_home(home: Path, shape: Shape = SHAPE) -> StudyData:
    """Write a store and the folders of all its runs; :data:`SHAPE`, or another shape, says how they end.

    Args:
        home: folder that does not exist yet.
        shape: what the study looks like.

    Returns:
        The study as it was made up.
    """
    data = with_steps(made_up_study(shape), shape.steps)
    runs = {r.fingerprint: (order, r) for order, r in enumerate(data.runs)}
    count, pace = len(runs) - WAITING, STEP_S * shape.steps + 10
    now = [time.time() - pace * count]
    alive = []
    with Store.open(home, clock=lambda: now[0]) as store:
        study = store.add_study(data.plan)
        while (claim := store.claim(study.id, engine="local", worker="made-up")) is not None:
            order, run = runs[claim.fingerprint]
            if order >= count:
                store.release(claim.run_id, claim.token, "it waits")
                break
            store.start(claim.run_id, claim.token)
            last = shape.steps * 2 // 3 if order >= count - RUNNING else run.last_step
            job = _job(home, data, claim)
            folder = RunFolder.of(home, claim.fingerprint, claim.token)
            _write(folder, job, run, last, 1000 * now[0])
            now[0] += pace
            if run.outcome == "failed":
                store.fail(claim.run_id, claim.token, "program", run.reason, run.reason)
            elif order < count - RUNNING:
                write_json(folder.result, {"status": "succeeded", "steps": last})
                store.finish(claim.run_id, claim.token, {"status": "succeeded", "steps": last})
            else:
                alive.append(claim)
        for claim in alive:
            store.renew(claim.run_id, claim.token)
    return data


def fill(home: Path, data: StudyData) -> None:
    """Write the runs of a made-up study as a real one would have left them."""
    runs = {r.fingerprint: r for r in data.runs}
    with Store.open(home) as store:
        study = store.add_study(data.plan)
        while (claim := store.claim(study.id, engine="inline", worker="test")) is not None:
            run = runs[claim.fingerprint]
            if run.outcome == "pending":
                continue
            store.start(claim.run_id, claim.token)
            write_folder(RunFolder.of(home, claim.fingerprint, claim.token), run)
            if run.outcome == "failed":
                store.fail(claim.run_id, claim.token, "program", "out of memory")
            else:
                early = run.outcome == "stopped_early"
                store.finish(claim.run_id, claim.token, {"status": "done", "reason": run.reason}, stopped_early=early)


def write_folder(folder: RunFolder, run: RunData) -> None:
    """Write the files of one attempt."""
    folder.path.mkdir(parents=True)
    for line in run.lines:
        folder.append_metrics(line)
    for evaluation in run.evaluations:
        folder.write_evaluation(evaluation)
    write_json(
        folder.environment, {"git_commit": "abc123", "python": "3.11", "torch": {"version": "2.13", "threads": 1}}
    )


def with_steps(data: StudyData, steps: int) -> StudyData:
    """Return the study with recipes that plan as many steps as the runs have."""
    arms = (
        replace(arm, recipe=arm.recipe.model_copy(update={"schedule": Schedule(steps=steps)})) for arm in data.plan.arms
    )
    return replace(data, plan=replace(data.plan, arms=tuple(arms)))


def _job(home: Path, data: StudyData, claim: Claim) -> Job:
    plan, arm = data.plan, data.plan.arm(claim.arm)
    return Job(
        run=claim.fingerprint, study=plan.study, arm=arm.label, runner=plan.runner, seed=claim.seed, token=claim.token,
        recipe=arm.recipe, evaluate=plan.evaluate, cache=str(home / "cache"),
    )  # fmt: skip


def _write(folder: RunFolder, job: Job, run: RunData, last: int, begun_ms: float) -> None:
    folder.path.mkdir(parents=True)
    folder.job.write_text(job.model_dump_json(indent=1))
    dice = random.Random(f"{job.arm}/{job.seed}")
    ill = ILL.get((job.arm, job.seed), "")
    evaluations = [_by_problem(e, dice) for e in run.evaluations if e.step <= last]
    for evaluation in evaluations:
        folder.write_evaluation(evaluation)
    samples = [s for e in evaluations for s in _samples(e, dice)]
    folder.samples.write_text("".join(json.dumps(s) + "\n" for s in samples), encoding="utf-8")
    scores = {e.step: sum(e.correct) / (e.samples * len(e.correct)) for e in evaluations}
    lines = [
        _dressed(x, dice, ill, begun_ms, job.recipe.schedule.steps, {job.evaluate.primary_metric: scores.get(x.step)})
        for x in run.lines
        if x.step <= last
    ]
    for line in lines:
        folder.append_metrics(line)
    LiveJudge(folder, job).take(lines)


def _dressed(
    line: MetricLine, dice: random.Random, ill: str, begun_ms: float, steps: int, score: Mapping[str, float | None]
) -> MetricLine:
    """Return the line with the metrics that made-up studies lack, and with the failure of the run."""
    values = dict(line.values) | {k: v for k, v in score.items() if v is not None}
    if line.step:
        done = line.step / steps
        right = values["reward/correct_frac"] - 0.2 * (1 - done)
        values |= {
            "reward/mean": right,
            "reward/correct_frac": right,
            "response/truncated_frac": 0.05 * values["response/truncated_frac"],
            "budget/trained_tokens": values["budget/gen_tokens"],
            "group/all_correct_frac": max(0.0, right - 0.45 + dice.gauss(0, 0.02)),
            "group/all_wrong_frac": max(0.0, 0.3 - 0.3 * right + dice.gauss(0, 0.02)),
            "optim/grad_norm": 0.4 * math.exp(dice.gauss(0, 0.15)),
            "clip/high_frac": 0.004 * math.exp(dice.gauss(0, 0.3)),
            "clip/low_frac": 0.003 * math.exp(dice.gauss(0, 0.3)),
            "kl/ref_k3": 0.02 * done**0.7 * math.exp(dice.gauss(0, 0.05)) + 1e-4,
            "mismatch/logp_abs_diff_mean": 0.004 * math.exp(dice.gauss(0, 0.08)),
        }
        # made-up studies give reward and length the same noise, and a reward that follows the length is a finding
        values["response/length_mean"] *= math.exp(random.Random(repr(line.values)).gauss(0, 0.05))
        late = max(0.0, line.step - steps / 2)
        if ill == "collapses":
            values["policy/entropy"] *= math.exp(-late / 9)
            values["clip/high_frac"] *= math.exp(min(late, 30) / 9)
        if ill == "truncates":
            values["response/truncated_frac"] = min(1.0, values["response/truncated_frac"] + 0.96 * late / steps)
    return replace(line, time_ms=int(begun_ms + 1000 * STEP_S * line.step), values=values)


def _by_problem(found: Evaluation, dice: random.Random) -> Evaluation:
    """Return the evaluation with a stable difficulty of each problem and realistic noise."""
    problems, k = len(found.problems), found.samples
    right = min(problems * k, max(0, round(sum(found.correct) + dice.gauss(0, 0.4) * math.sqrt(problems * k))))
    ease = sorted((i / problems + dice.gauss(0, 0.18), i) for i in range(problems) for _ in range(k))
    correct = [0] * problems
    for _, i in ease[:right]:
        correct[i] += 1
    return replace(
        found,
        correct=tuple(correct),
        tokens=(20 * k,) * problems,
        tokens_correct=tuple(18 * c for c in correct),
        answers=tuple({"right": c, "": k - c} for c in correct),
        right=(("right",),) * problems,
    )


def _samples(found: Evaluation, dice: random.Random) -> Iterator[Mapping[str, Any]]:
    """Yield a response to some held-out problems, and groups with rewards of the training step before."""
    prompts = random.Random(0)
    for number in range(SHOWN):
        i = number * len(found.problems) // SHOWN
        digits = [prompts.randrange(10) for _ in range(6)]
        prompt = "".join(f"{k}{d}" for k, d in zip("abcdef", digits, strict=True)) + f"={sum(digits) % 10}"
        chance = found.correct[i] / found.samples
        same: dict[str, Any] = {"step": found.step, "problem": found.problems[i], "prompt": prompt}
        said = _response(digits, dice) if number else f"{SAID} {_response(digits, dice)}"
        right = dice.random() < chance
        yield same | {"response": said, "finished": right or dice.random() < 0.7, "correct": right}
        if found.step and number < GROUPS:
            yield from _group(same | {"set": "train"}, digits, chance, dice)


def _group(
    same: dict[str, Any], digits: Sequence[int], chance: float, dice: random.Random
) -> Iterator[Mapping[str, Any]]:
    """Yield eight responses to a prompt, with rewards, and advantages over mean and standard deviation."""
    texts = [_response(digits, dice) for _ in range(8)]
    correct = [dice.random() < chance for _ in texts]
    parts = [{"correct": float(c), "length": -0.01 * len(t.split())} for c, t in zip(correct, texts, strict=True)]
    rewards = [math.fsum(p.values()) for p in parts]
    mean, spread = statistics.fmean(rewards), statistics.stdev(rewards)
    for number, (text, reward) in enumerate(zip(texts, rewards, strict=True)):
        yield same | {
            "sample": number,
            "response": text,
            "finished": True,
            "correct": correct[number],
            "reward": reward,
            "reward_parts": parts[number],
            "advantage": (reward - mean) / (spread + 1e-4),
            "tokens": len(text),
            "logp_abs_diff_mean": abs(dice.gauss(0.004, 0.002)),
        }


def _response(digits: Sequence[int], dice: random.Random) -> str:
    tries = [dice.sample(range(len(digits)), 2) for _ in range(dice.randint(2, 5))]
    return " ".join(f"{'abcdef'[i]}{digits[i]}+{'abcdef'[j]}{digits[j]}={digits[i] + digits[j]}" for i, j in tries)
