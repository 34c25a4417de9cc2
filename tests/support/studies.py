"""Made-up studies with known numbers, for tests of everything that reads results. Nothing here is a measurement."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paribus.contract import Evaluate
from paribus.recipe.recipe import LATER, Recipe, difference, fingerprint_of
from paribus.report.inputs import Outcome, RunData, StudyData
from paribus.run_folder.folder import SHORT, Evaluation, MetricLine
from paribus.study.plan import Arm, Plan, PlannedRun, Row

TRICKS: Mapping[str, Mapping[str, Any]] = {
    "clip_higher": {"clip": {"kind": "ppo_min", "low": 0.2, "high": 0.28}},
    "soft_overlong": {"length": {"rule": {"kind": "soft_overlong", "soft_start": 30, "hard_cap": 37}}},
    "token_level": {"aggregation": {"kind": "token_batch"}},
    "dynamic_sampling": {"filter": {"kind": "refill"}},
}
"""Tricks of the made-up studies: factor to level."""

MOVES: Mapping[str, Mapping[str, float]] = {
    "clip_higher": {"score": 0.005},
    "soft_overlong": {"score": -0.09, "truncated": -0.25, "length": -3.5, "wrong": -9.0},
    "token_level": {"score": -0.05, "truncated": -0.045, "wrong": -3.0, "entropy": 0.056},
    "dynamic_sampling": {"score": 0.02, "tokens": 1.0},
}
"""What each trick is made to do, added up without interaction; tokens as a factor minus one."""

BASE: Mapping[str, float] = {
    "score": 0.63,
    "truncated": 0.3,
    "length": 21.7,
    "wrong": 34.2,
    "entropy": 0.57,
    "zero": 0.31,
    "tokens": 2700.0,
}
START: Mapping[str, float] = {
    "score": 0.46,
    "truncated": 0.08,
    "length": 15.0,
    "wrong": 20.0,
    "entropy": 0.65,
    "zero": 0.2,
}

PROVENANCE: Mapping[str, str] = {
    "paribus": "0.1.0",
    "git commit": "0123abcd",
    "code": "c0de" * 3,
    "data": "da7a" * 3,
    "initial model": "40de" * 3,
    "environment": "python 3.11, torch 2.13.0+cpu, 1 thread",
    "submitted": "2026-01-02 03:04 UTC",
    "last result": "2026-01-02 03:09 UTC",
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What a made-up study looks like.

    Attributes:
        seeds: number of seeds.
        steps: training steps of a run.
        designs: ``cumulative``, ``add_one``, ``leave_one_out``, ``list``.
        tricks: names from :data:`TRICKS`, in the order of the ladder.
        paired: whether seeds are paired.
        noise: scale of the spread over seeds; 1 is that of a small real study, 0 none at all.
        outcomes: label of the arm, seed, and an outcome other than finished.
        problems: held-out problems.
        samples: responses a problem.
        every: steps between evaluations; absent: a quarter of all.
        study: name.
        question: what it asks.
    """

    seeds: int = 3
    steps: int = 8
    designs: tuple[str, ...] = ("cumulative", "add_one", "leave_one_out")
    tricks: tuple[str, ...] = tuple(TRICKS)
    paired: bool = True
    noise: float = 1.0
    outcomes: tuple[tuple[str, int, Outcome], ...] = ()
    problems: int = 200
    samples: int = 1
    every: int | None = None
    study: str = "made-up"
    question: str = "Which trick carries the gain, and does the order matter?"

    @property
    def period(self) -> int:
        """Steps between evaluations."""
        return self.every or max(1, self.steps // 4)


def made_up_study(shape: Shape | None = None) -> StudyData:
    """Return a study of this shape; equal shapes give equal studies."""
    shape = shape or Shape()
    rows, tricks_of = _rows(shape)
    base = Recipe()
    recipes = {key: _recipe(base, tricks) for key, tricks in tricks_of.items()}
    labels = {r.arm: r.label for r in reversed(rows)}
    arms = tuple(Arm(key=k, label=labels[k], recipe=r, changes=difference(base, r)) for k, r in recipes.items())
    seeds = tuple(range(shape.seeds))
    order = [(seed, arm.key) for seed in seeds for arm in arms]
    runs = tuple(
        PlannedRun(fingerprint=fingerprint_of([key, seed]), arm=key, seed=seed, order=i)
        for i, (seed, key) in enumerate(order)
    )
    plan = Plan(
        study=shape.study,
        fingerprint=fingerprint_of([r.fingerprint for r in runs]),
        question=shape.question,
        runner="native",
        base=arms[0].key,
        arms=arms,
        rows=tuple(rows),
        runs=runs,
        seeds=seeds,
        paired=shape.paired,
        evaluate=Evaluate(every=shape.period, problems=shape.problems, samples=shape.samples),
        stop_on=(),
        gpu_hours=None,
        warnings=(),
    )
    outcomes = {(label, seed): outcome for label, seed, outcome in shape.outcomes}
    found = tuple(_run(r, tricks_of[r.arm], outcomes.get((labels[r.arm], r.seed), "finished"), shape) for r in runs)
    return StudyData(plan=plan, runs=found, provenance=PROVENANCE)


def made_up_results(plan: Plan, score: Callable[[str, int], float]) -> StudyData:
    """Return a plan with results: all runs finished, also those of a screen, with the score of their arm and seed.

    Args:
        plan: any plan that evaluates every step up to the fourth, e.g. one with four steps and ``every: 1``.
        score: key of the arm and seed to a score, kept to one of 200 problems.
    """
    shape = Shape(steps=4, noise=0.0, seeds=len(plan.seeds))
    runs, screened = (
        tuple(_finished(r, score, shape) for r in planned)
        for planned in (plan.runs, plan.ranking.runs if plan.ranking else ())
    )
    return StudyData(plan=plan, runs=runs, screened=screened, provenance=PROVENANCE)


def _finished(planned: PlannedRun, score: Callable[[str, int], float], shape: Shape) -> RunData:
    dice = random.Random(planned.seed)
    end = {**BASE, "score": score(planned.arm, planned.seed)}
    steps = range(shape.steps + 1)
    evaluations = tuple(_evaluation(s, end, dice, shape) for s in steps)
    scores = {e.step: sum(e.correct) / (shape.samples * shape.problems) for e in evaluations}
    return RunData(
        fingerprint=planned.fingerprint,
        arm=planned.arm,
        seed=planned.seed,
        outcome="finished",
        state="",
        reason="",
        lines=tuple(_line(s, end, scores, dice, shape, refill=False) for s in steps),
        evaluations=evaluations,
    )


def _rows(shape: Shape) -> tuple[list[Row], dict[str, tuple[str, ...]]]:
    rows: list[Row] = []
    tricks_of: dict[str, tuple[str, ...]] = {}

    def add(design: str, kind: str, label: str, tricks: Sequence[str], parent: str | None) -> None:
        recipe = _recipe(Recipe(), tuple(tricks))
        stated = recipe.model_dump(mode="json", exclude=set(LATER))  # the golden files hold these keys
        key = fingerprint_of(stated)[:SHORT]
        tricks_of.setdefault(key, tuple(tricks))
        row = Row(design=design, kind=kind, label=label, arm=key, parent=parent, tricks=tuple(tricks), changes={})
        rows.append(row)

    names = shape.tricks
    for kind in shape.designs:
        if kind == "cumulative":
            add("ladder", kind, "base", (), None)
            for i, trick in enumerate(names):
                add("ladder", kind, f"+ {trick}", names[: i + 1], rows[-1].label)
        if kind in ("add_one", "list"):
            design = "solo" if kind == "add_one" else "levels"
            add(design, kind, "base", (), None)
            for trick in names:
                add(design, kind, trick, (trick,), "base")
        if kind == "leave_one_out":
            add("knockout", kind, "full", names, None)
            for trick in names:
                add("knockout", kind, f"full - {trick}", [n for n in names if n != trick], "full")
    return rows, tricks_of


def _recipe(base: Recipe, tricks: Sequence[str]) -> Recipe:
    values = base.model_dump()
    for trick in tricks:
        values.update(TRICKS[trick])
    return Recipe.model_validate(values)


def _run(planned: PlannedRun, tricks: Sequence[str], outcome: Outcome, shape: Shape) -> RunData:
    dice = random.Random(f"{planned.seed}/{sorted(tricks)}")
    shared = random.Random(planned.seed)
    end = {
        name: value + sum(MOVES[t].get(name, 0.0) for t in tricks if name != "tokens") for name, value in BASE.items()
    }
    end["tokens"] = BASE["tokens"] * (1 + sum(MOVES[t].get("tokens", 0.0) for t in tricks))
    spread = {"score": 0.012, "truncated": 0.01, "length": 0.3, "wrong": 0.5, "entropy": 0.012, "zero": 0.02}
    for name, scale in spread.items():
        end[name] += shape.noise * scale * (shared.gauss(0, 1) + dice.gauss(0, 1))
    end["tokens"] *= 1 + shape.noise * 0.01 * dice.gauss(0, 1)
    last = {"finished": shape.steps, "stopped_early": max(1, shape.steps // 2)}.get(outcome, shape.steps // 4)
    steps = range(last + 1) if outcome != "pending" or planned.seed % 2 else range(0)
    evaluations = [_evaluation(s, end, dice, shape) for s in steps if s % shape.period == 0 or s == shape.steps]
    scores = {e.step: sum(e.correct) / (shape.samples * shape.problems) for e in evaluations}
    return RunData(
        fingerprint=planned.fingerprint,
        arm=planned.arm,
        seed=planned.seed,
        outcome=outcome,
        state={"failed": "QUARANTINED", "stopped_early": "STOPPED_EARLY"}.get(outcome, ""),
        reason={"failed": "out of memory", "stopped_early": "nan in optim/loss"}.get(outcome, ""),
        lines=tuple(_line(s, end, scores, dice, shape, refill="dynamic_sampling" in tricks) for s in steps),
        evaluations=tuple(evaluations),
    )


def _at(name: str, step: int, end: Mapping[str, float], shape: Shape) -> float:
    return START[name] + (end[name] - START[name]) * min(1.0, 2.0 * step / shape.steps)


def _evaluation(step: int, end: Mapping[str, float], dice: random.Random, shape: Shape) -> Evaluation:
    responses = shape.problems * shape.samples
    right = min(responses, max(0, round(responses * _at("score", step, end, shape))))
    each = [1] * right + [0] * (responses - right)
    dice.shuffle(each)
    correct = [sum(each[i : i + shape.samples]) for i in range(0, responses, shape.samples)]
    zeros = (0,) * shape.problems
    return Evaluation(
        step=step,
        set="heldout",
        samples=shape.samples,
        problems=tuple(f"p{i}" for i in range(shape.problems)),
        correct=tuple(correct),
        truncated=zeros,
        tokens=zeros,
        tokens_correct=zeros,
        answers=tuple({"": shape.samples} for _ in zeros),
    )


def _line(
    step: int, end: Mapping[str, float], scores: Mapping[int, float], dice: random.Random, shape: Shape, *, refill: bool
) -> MetricLine:
    values: dict[str, float] = {}
    if step in scores:
        values[f"eval/heldout/avg_at_{shape.samples}"] = scores[step]
    if step:
        jitter = shape.noise * dice.gauss(0, 0.01)
        tokens = round(end["tokens"] * step)
        values |= {
            "reward/correct_frac": _at("score", step, end, shape) + jitter,
            "response/length_mean": _at("length", step, end, shape) * (1 + jitter),
            "response/length_mean_incorrect": _at("wrong", step, end, shape) * (1 + jitter),
            "response/truncated_frac": max(0.0, _at("truncated", step, end, shape) + jitter),
            "policy/entropy": _at("entropy", step, end, shape) + jitter,
            "group/zero_std_frac": _at("zero", step, end, shape) + jitter,
            "budget/gen_tokens": float(tokens),
            "budget/trained_tokens": float(round(tokens * ((0.5 + jitter) if refill else 1.0))),
            "budget/optimizer_steps": 16.0 * step,
            "perf/time_step_s": 0.3 * (1.1 if refill else 1.0) * (1 + abs(jitter)),
        }
    return MetricLine(step=step, time_ms=1_700_000_000_000 + 300 * step, values=values)


SCORE = "eval/heldout/avg_at_1"


def scored(shape: Shape, score: Callable[[str, int], float | Outcome | None]) -> StudyData:
    """A study without counts per problem, with this score by label of the arm and seed, or without: how the run ended.

    ``None``: the run failed.
    """
    data = made_up_study(shape)
    label = {a.key: a.label for a in data.plan.arms}

    def moved(run: RunData) -> RunData:
        value = score(label[run.arm], run.seed)
        if value is None or isinstance(value, str):
            return replace(run, outcome=value or "failed", lines=(), evaluations=())
        lines = tuple(
            MetricLine(step=x.step, time_ms=x.time_ms, values={**x.values, SCORE: value if x.step else 0.0})
            if SCORE in x.values
            else x
            for x in run.lines
        )
        return replace(run, evaluations=(), lines=lines)

    return replace(data, runs=tuple(map(moved, data.runs)))
