"""Courses of runs, healthy and with a known fault, as five trainers log them: what `health_table.py` judges.

Written from how published runs behave (DAPO, Dr. GRPO, ScaleRL, Skywork-OR1, issues of TRL and verl), not from what
the detectors look at; no code is shared with them, nor with `health_tuning.py` and `health_curves.py`. Each course has
its own length, noise, batch, units and trainer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Array = np.ndarray
Rng = np.random.Generator

LENGTHS = (60, 100, 150, 300, 600, 1000, 2000)
NOISES = ("independent", "autoregressive", "heavy-tailed", "seasonal")
TRAINERS = ("trl", "verl", "open_instruct", "prime_rl", "native")


@dataclass(frozen=True, kw_only=True)
class Course:
    """A drawn run.

    Attributes:
        kind: the healthy kind, or the kind that a fault was put on.
        fault: what is wrong; empty: nothing.
        names: detectors of which one names the fault.
        onset: step at which the fault begins.
        trainer: whose metric names the records have.
        noise: how the metrics vary from step to step.
        steps: number of steps.
        records: a step and its metrics.
    """

    kind: str
    fault: str
    names: tuple[str, ...]
    onset: int
    trainer: str
    noise: str
    steps: int
    records: list[dict[str, float]]


@dataclass
class Plan:
    """What a run is like before its metrics are drawn.

    Attributes:
        rng: the source of all draws.
        steps: number of steps.
        noise: kind of noise.
        skill: expected share of correct responses at each step.
        heldout: expected held-out score at each step; ``None``: follows the skill.
        curves: expected values of the other metrics; a missing value is NaN.
        responses: responses a step.
        group: responses a prompt.
        every: steps between evaluations.
        problems: problems an evaluation.
        scale: reward of a correct response.
        floor: reward of a wrong response.
        extra: added to the mean reward at each step, such as a format reward.
        rough: relative size of the noise.
    """

    rng: Rng
    steps: int
    noise: str
    skill: Array
    curves: dict[str, Array]
    responses: int = 256
    group: int = 8
    every: int = 20
    problems: int = 200
    scale: float = 1.0
    floor: float = 0.0
    heldout: Array | None = None
    extra: Array | float = 0.0
    rough: float = 1.0
    after: dict[str, Array] = field(default_factory=dict)

    @property
    def t(self) -> Array:
        """Progress from 0 to 1."""
        return np.arange(self.steps) / max(self.steps - 1, 1)


def wave(rng: Rng, kind: str, count: int) -> Array:
    """Return noise of unit variance."""
    if kind == "autoregressive":
        phi = rng.uniform(0.4, 0.85)
        shocks = rng.normal(0, math.sqrt(1 - phi * phi), count)
        found = np.empty(count)
        last = rng.normal()
        for i in range(count):
            last = found[i] = phi * last + shocks[i]
        return found
    if kind == "heavy-tailed":
        return rng.standard_t(3, count) / math.sqrt(3)
    if kind == "seasonal":
        period = rng.uniform(6, 60)
        season = np.sin(2 * np.pi * (np.arange(count) / period + rng.uniform()))
        return 0.9 * season + 0.77 * rng.normal(0, 1, count)
    return rng.normal(0, 1, count)


def ramp(steps: int, onset: int, over: float) -> Array:
    """Return 0 before the onset, then a straight rise to 1."""
    return np.clip((np.arange(steps) - onset) / max(over, 1), 0, 1)


def rise(t: Array, start: float, end: float, middle: float, speed: float) -> Array:
    """Return a sigmoid course (ScaleRL, arXiv 2510.13786)."""
    return start + (end - start) / (1 + np.exp(-speed * (t - middle)))


def base(rng: Rng, steps: int, noise: str) -> Plan:
    """Return an ordinary run: the skill rises and levels off, entropy falls, length drifts."""
    t = np.arange(steps) / max(steps - 1, 1)
    start = rng.uniform(0.1, 0.45)
    end = start + rng.uniform(0.12, 0.4)
    skill = np.clip(rise(t, start, end, rng.uniform(0.15, 0.5), rng.uniform(5, 14)), 0.01, 0.97)
    entropy0 = rng.uniform(0.3, 1.1)
    entropy = entropy0 * (rng.uniform(0.35, 0.8) + (1 - 0.5) * np.exp(-t * rng.uniform(3, 10)))
    length = rng.uniform(120, 4000) * (1 + rng.uniform(-0.15, 0.25) * t)
    ones = np.ones(steps)
    curves = {
        "entropy": entropy,
        "length": length,
        "truncated": rng.uniform(0.0, 0.025) * (1 - 0.5 * t),
        "kl": rng.uniform(2e-4, 4e-3) * (0.02 + t ** rng.uniform(0.5, 1.0)) * 10,
        "grad": rng.uniform(0.05, 1.2) * (1 - 0.3 * t),
        "clip_low": rng.uniform(5e-4, 0.008) * ones,
        "clip_high": rng.uniform(5e-4, 0.012) * ones,
        "mismatch": rng.uniform(0.002, 0.012) * ones,
        "lr": rng.choice([1e-6, 5e-6, 1e-5]) * np.minimum(1, (np.arange(steps) + 1) / max(1, 0.05 * steps)),
        "seconds": rng.uniform(10, 120) * ones,
        "errors": rng.uniform(0, 0.01) * ones,
        "stale": rng.uniform(0.5, 3.5) * ones,
        "moved": rng.uniform(2e-4, 4e-3) * ones,
    }
    every = int(rng.choice([5, 10, 20, 50]))
    responses = int(rng.choice([64, 128, 256, 512, 1024]))
    problems = int(rng.choice([100, 200, 500]))
    every = min(every, max(5, steps // 6))
    known = {"rng": rng, "steps": steps, "noise": noise, "skill": skill, "curves": curves}
    return Plan(**known, responses=responses, every=every, problems=problems)


Change = Callable[[Plan], None]


def _plateau(p: Plan) -> None:
    p.skill = np.clip(rise(p.t, p.skill[0], p.skill[0] + 0.25, 0.12, 25), 0.01, 0.9)


def _slow_start(p: Plan) -> None:
    p.skill = np.clip(rise(p.t, 0.04, p.rng.uniform(0.3, 0.6), p.rng.uniform(0.55, 0.75), 16), 0.01, 0.95)


def _curriculum(p: Plan) -> None:
    cuts = sorted(p.rng.uniform(0.2, 0.9, p.rng.integers(1, 4)))
    for cut in cuts:
        p.skill = np.where(p.t >= cut, p.skill - p.rng.uniform(0.08, 0.2) * np.exp(-(p.t - cut) * 6), p.skill)
        p.curves["length"] = np.where(p.t >= cut, p.curves["length"] * p.rng.uniform(1.05, 1.3), p.curves["length"])
    p.skill = np.clip(p.skill, 0.03, 0.95)


def _mastered(p: Plan) -> None:
    p.skill = np.clip(rise(p.t, p.rng.uniform(0.4, 0.7), 0.985, 0.3, 12), 0.01, 0.99)
    p.curves["entropy"] = p.curves["entropy"] * (1 - 0.5 * p.t)


def _small(p: Plan) -> None:
    p.responses, p.group, p.rough = 16, 4, 1.6
    p.curves["truncated"] = np.full(p.steps, p.rng.uniform(0.01, 0.03))


def _warmup(p: Plan) -> None:
    slow = np.clip(p.t / 0.25, 0, 1)
    p.curves["lr"] = p.curves["lr"].max() * slow
    p.curves["grad"] = p.curves["grad"] * (1 + 2.0 * np.exp(-p.t * 12))
    p.skill = p.skill[0] + (p.skill - p.skill[0]) * slow


def _units(p: Plan) -> None:
    p.scale = float(p.rng.choice([2.0, 5.0, 10.0, 100.0]))


def _penalties(p: Plan) -> None:
    p.scale, p.floor = 1.0, float(p.rng.choice([-1.0, -0.5, -2.0]))


def _cosine(p: Plan) -> None:
    p.curves["lr"] = p.curves["lr"].max() * 0.5 * (1 + np.cos(np.pi * p.t))
    p.curves["grad"] = p.curves["grad"] * (1 + 0.4 * np.sin(3 * p.t))


def _growing(p: Plan) -> None:
    gain = p.skill - p.skill[0]
    p.curves["length"] = p.curves["length"] * (1 + p.rng.uniform(0.6, 2.0) * gain / max(gain.max(), 0.05))
    p.curves["truncated"] = np.linspace(0.005, p.rng.uniform(0.01, 0.035), p.steps)


def _falling(p: Plan) -> None:
    p.curves["length"] = p.curves["length"] * (1 - p.rng.uniform(0.3, 0.55) * np.clip(p.t * 3, 0, 1))
    p.curves["truncated"] = p.curves["truncated"] * (1 - 0.8 * p.t)


def _bonus(p: Plan) -> None:
    p.curves["entropy"] = p.rng.uniform(0.25, 0.5) * (1 + p.rng.uniform(0.1, 0.7) * p.t)


def _low_entropy(p: Plan) -> None:
    p.curves["entropy"] = p.rng.uniform(0.1, 0.28) * (1 - 0.25 * np.clip(p.t * 2, 0, 1))


def _lone_spikes(p: Plan) -> None:
    where = p.rng.choice(p.steps, max(1, p.steps // 150), replace=False)
    p.after["grad"] = np.where(np.isin(np.arange(p.steps), where), p.rng.uniform(4, 12), 1.0)


def _drift(p: Plan) -> None:
    p.curves["kl"] = p.rng.uniform(0.05, 0.4) * p.t**0.7 + 1e-4


def _hard(p: Plan) -> None:
    p.skill = rise(p.t, 0.04, p.rng.uniform(0.12, 0.3), 0.4, 8)


def _format_first(p: Plan) -> None:
    p.extra = 0.2 * np.clip(p.t / 0.1, 0, 1)


def _single_samples(p: Plan) -> None:
    p.problems, p.every = 30, max(5, p.steps // 12)


def _reference_reset(p: Plan) -> None:
    cycle = np.mod(p.t * p.rng.integers(2, 6), 1)
    p.curves["kl"] = p.curves["kl"].max() * (0.05 + cycle)


def _few_evaluations(p: Plan) -> None:
    p.every = max(5, p.steps // int(p.rng.integers(4, 9)))


def _steps_vary(p: Plan) -> None:
    p.after["seconds"] = np.where(p.rng.uniform(size=p.steps) < 0.06, p.rng.uniform(2, 4, p.steps), 1.0)


def _unsteady_scores(p: Plan) -> None:
    wobble = 0.02 * wave(p.rng, "autoregressive", p.steps)
    p.heldout = np.clip(p.skill + wobble, 0.01, 0.99)


def _steady_kl(p: Plan) -> None:
    p.curves["kl"] = p.rng.uniform(0.3, 0.9) * p.t + 1e-4


def _doubled_batch(p: Plan) -> None:
    p.curves["grad"] = p.curves["grad"] * np.where(p.t < 0.5, 1.0, 0.7)
    p.curves["seconds"] = p.curves["seconds"] * np.where(p.t < 0.5, 1.0, 1.9)


HEALTHY: Mapping[str, Change] = {
    "ordinary": lambda p: None,
    "plateau": _plateau,
    "slow start": _slow_start,
    "curriculum with jumps": _curriculum,
    "restart with repeated steps": lambda p: None,
    "mastered tasks": _mastered,
    "small batches": _small,
    "warm-up": _warmup,
    "rewards in other units": _units,
    "penalties": _penalties,
    "cosine schedule": _cosine,
    "growing length": _growing,
    "falling length": _falling,
    "entropy bonus": _bonus,
    "low entropy": _low_entropy,
    "lone gradient spikes": _lone_spikes,
    "KL drifts": _drift,
    "hard prompts": _hard,
    "format first": _format_first,
    "30 problems an evaluation": _single_samples,
    "reference reset": _reference_reset,
    "few evaluations": _few_evaluations,
    "steps of varying time": _steps_vary,
    "unsteady scores": _unsteady_scores,
    "KL in proportion to the steps": _steady_kl,
    "batch doubled half way": _doubled_batch,
}
FRESH_ONLY = frozenset({"unsteady scores", "KL in proportion to the steps", "batch doubled half way"})
"""Kinds of the fresh part alone: written after the rules, and judged once."""

REPORT_ONLY = frozenset({
    "rewards in other units", "entropy bonus", "reference reset", "few evaluations", "hard prompts", "warm-up",
    "gibberish", "slow decline", "oscillating reward", "hot sampler", "score below the start",
})  # fmt: skip
"""Kinds and faults that no rule was tuned on."""

Fault = Callable[[Plan, int], None]


def _frozen(p: Plan, onset: int) -> None:
    """The skill stays where it is from the onset on."""
    at = p.skill[onset]
    p.skill = np.where(np.arange(p.steps) >= onset, at, p.skill)


def _over(p: Plan, least: float = 8, share: float = 0.12) -> float:
    """Return how many steps a slow fault takes."""
    return max(least, min(60.0, share * p.steps))


def _to(p: Plan, name: str, onset: int, target: float, over: float) -> None:
    was = p.curves[name]
    share = ramp(p.steps, onset, over)
    p.curves[name] = np.exp((1 - share) * np.log(np.maximum(was, 1e-9)) + share * math.log(max(target, 1e-9)))


def _entropy_collapse(p: Plan, onset: int) -> None:
    _to(p, "entropy", onset, p.rng.uniform(0.005, 0.03), _over(p))
    _frozen(p, onset + int(_over(p)) // 2)


def _entropy_explosion(p: Plan, onset: int) -> None:
    _to(p, "entropy", onset, p.rng.uniform(2.2, 5.0), _over(p))
    p.skill = p.skill * (1 - p.rng.uniform(0.2, 0.6) * ramp(p.steps, onset + int(_over(p) / 2), _over(p)))


def _gibberish(p: Plan, onset: int) -> None:
    _entropy_explosion(p, onset)
    p.curves["length"] = p.curves["length"] * (1 + 1.0 * ramp(p.steps, onset + 5, _over(p)))
    p.curves["truncated"] = p.curves["truncated"] + 0.3 * ramp(p.steps, onset + 8, _over(p))


def _balloon(p: Plan, onset: int) -> None:
    _frozen(p, onset)
    p.curves["length"] = p.curves["length"] * (1 + p.rng.uniform(0.8, 2.5) * ramp(p.steps, onset, _over(p, 12, 0.3)))


def _short(p: Plan, onset: int) -> None:
    _to(p, "length", onset, p.rng.uniform(4, 15), _over(p))
    p.skill = p.skill * (1 - 0.6 * ramp(p.steps, onset + 3, _over(p)))


def _cut(p: Plan, onset: int) -> None:
    p.curves["truncated"] = p.curves["truncated"] + p.rng.uniform(0.2, 0.6) * ramp(p.steps, onset, _over(p))


def _cut_at_first(p: Plan, onset: int) -> None:
    p.curves["truncated"] = np.full(p.steps, p.rng.uniform(0.4, 1.0))
    p.skill = p.skill * 0.5


def _hack(p: Plan, onset: int) -> None:
    held = p.skill.copy()
    fall = p.rng.uniform(0.1, 0.25)
    share = ramp(p.steps, onset, _over(p, 12, 0.25))
    p.heldout = np.clip(np.where(share > 0, held[onset] - fall * share, held), 0.01, 1)
    p.skill = np.clip(p.skill + 0.25 * share, 0, 0.97)


def _hack_few(p: Plan, onset: int) -> None:
    p.every = max(5, p.steps // int(p.rng.integers(5, 11)))
    p.problems = 200
    _hack(p, onset)


def _below_start(p: Plan, onset: int) -> None:
    share = ramp(p.steps, onset, _over(p))
    p.heldout = np.clip(p.skill * (1 - share) + share * (p.skill[0] - p.rng.uniform(0.1, 0.2)), 0.01, 1)
    p.skill = p.heldout.copy()


def _kl(p: Plan, onset: int) -> None:
    _to(p, "kl", onset, p.rng.uniform(1.0, 8.0), _over(p))
    p.skill = p.skill * (1 - p.rng.uniform(0.3, 0.8) * ramp(p.steps, onset + 4, _over(p)))


def _explode(p: Plan, onset: int) -> None:
    times = np.exp(
        ramp(p.steps, onset, 10) * p.rng.uniform(2.5, 4.0)
        + np.where(np.arange(p.steps) >= onset, p.rng.exponential(0.6, p.steps), 0)
    )
    p.after["grad"] = times
    p.skill = p.skill * (1 - 0.5 * ramp(p.steps, onset + 10, _over(p)))


def _nan(p: Plan, onset: int) -> None:
    p.after["loss"] = np.where(np.arange(p.steps) >= onset, np.nan, 1.0)
    p.after["grad"] = p.after["loss"]


def _dead(p: Plan, onset: int) -> None:
    p.after["grad"] = np.where(np.arange(p.steps) >= onset, 0.0, 1.0)
    _frozen(p, onset)


def _no_update(p: Plan, onset: int) -> None:
    p.skill = np.full(p.steps, p.skill[0])
    for name in ("entropy", "length", "truncated"):
        p.curves[name] = np.full(p.steps, p.curves[name][0])
    p.curves["kl"] = np.zeros(p.steps)
    p.curves["clip_low"] = p.curves["clip_high"] = p.curves["moved"] = np.zeros(p.steps)
    if p.rng.uniform() < 0.5:
        p.curves["lr"] = np.zeros(p.steps)


def _constant(p: Plan, onset: int) -> None:
    p.skill = np.where(np.arange(p.steps) >= onset, 0.0, p.skill)
    p.after["grad"] = np.where(np.arange(p.steps) >= onset, p.rng.uniform(0.0, 0.02), 1.0)


def _too_hard(p: Plan, onset: int) -> None:
    p.skill = np.full(p.steps, p.rng.uniform(0.0005, 0.004))


def _mismatch(p: Plan, onset: int) -> None:
    _to(p, "mismatch", onset, p.rng.uniform(0.08, 0.5), _over(p, 10, 0.2))
    p.skill = p.skill * (1 - 0.5 * ramp(p.steps, onset + int(_over(p, 10, 0.2)), _over(p)))


def _hot(p: Plan, onset: int) -> None:
    p.curves["mismatch"] = np.where(np.arange(p.steps) >= onset, p.rng.uniform(0.15, 0.5), p.curves["mismatch"])


def _clipped(p: Plan, onset: int) -> None:
    for name in ("clip_low", "clip_high"):
        _to(p, name, onset, p.rng.uniform(0.2, 0.45), _over(p))


def _crash(p: Plan, onset: int) -> None:
    p.skill = p.skill * (1 - p.rng.uniform(0.75, 1.0) * ramp(p.steps, onset, p.rng.uniform(1, 6)))


def _decline(p: Plan, onset: int) -> None:
    p.skill = p.skill * (1 - p.rng.uniform(0.7, 1.0) * ramp(p.steps, onset, 0.3 * p.steps))


def _length_reward(p: Plan, onset: int) -> None:
    share = ramp(p.steps, onset, _over(p, 15, 0.4))
    p.curves["length"] = p.curves["length"] * (1 + p.rng.uniform(0.8, 2.0) * share)
    wobble = 1 + 0.08 * wave(p.rng, "independent", p.steps)
    p.after["length"] = wobble
    p.heldout = p.skill.copy()
    p.extra = np.where(
        np.arange(p.steps) >= onset, 0.4 * (p.curves["length"] * wobble / p.curves["length"][0] - 1), 0.0
    )


def _slow(p: Plan, onset: int) -> None:
    p.curves["seconds"] = p.curves["seconds"] * (1 + p.rng.uniform(4, 10) * (np.arange(p.steps) >= onset))


def _errors(p: Plan, onset: int) -> None:
    p.curves["errors"] = np.where(np.arange(p.steps) >= onset, p.rng.uniform(0.25, 0.7), p.curves["errors"])
    p.skill = p.skill * (1 - 0.5 * (np.arange(p.steps) >= onset))


def _stale(p: Plan, onset: int) -> None:
    p.curves["stale"] = np.where(np.arange(p.steps) >= onset, p.rng.uniform(14, 40), p.curves["stale"])


def _oscillates(p: Plan, onset: int) -> None:
    swing = np.where(
        np.arange(p.steps) >= onset, 0.25 * np.sign(np.sin(np.arange(p.steps) * p.rng.uniform(1.2, 3.0))), 0
    )
    p.skill = np.clip(p.skill + swing * (0.7 + 0.6 * p.rng.uniform(size=p.steps)), 0.01, 0.98)


def _huge(p: Plan, onset: int) -> None:
    p.curves["moved"] = np.where(np.arange(p.steps) >= onset, p.rng.uniform(1.5, 10), p.curves["moved"])
    p.skill = p.skill * (1 - 0.9 * ramp(p.steps, onset, 2))
    _to(p, "entropy", onset, p.rng.choice([0.01, 5.0]), 4)


def _impossible(p: Plan, onset: int) -> None:
    p.after["truncated"] = np.where(np.arange(p.steps) >= onset, np.nan, 1.0)  # replaced by a share above 1


@dataclass(frozen=True)
class Ill:
    """A fault.

    Attributes:
        put: puts it on a run from a step on.
        names: detectors that name it.
        trainers: whose logs show it.
        early: the step at which it begins, if it is not drawn.
    """

    put: Fault
    names: tuple[str, ...]
    trainers: tuple[str, ...] = TRAINERS
    early: tuple[int, int] | None = None


ILL: Mapping[str, Ill] = {
    "entropy collapse": Ill(_entropy_collapse, ("entropy_collapse",)),
    "entropy explosion": Ill(_entropy_explosion, ("entropy_explosion",)),
    "gibberish": Ill(_gibberish, ("entropy_explosion",)),
    "length balloon": Ill(_balloon, ("length_balloon",)),
    "length collapse": Ill(_short, ("length_collapse",)),
    "truncation rises": Ill(_cut, ("truncation",)),
    "truncated from the start": Ill(_cut_at_first, ("truncation",), early=(0, 0)),
    "reward hacking": Ill(_hack, ("reward_hacking",)),
    "reward hacking, few evaluations": Ill(_hack_few, ("reward_hacking",)),
    "score below the start": Ill(_below_start, ("eval_regression", "reward_crash")),
    "KL blow-up": Ill(_kl, ("kl_blowup",), ("trl", "verl", "native", "open_instruct")),
    "KL blow-up at once": Ill(_kl, ("kl_blowup",), ("trl", "verl", "native", "open_instruct"), (3, 20)),
    "exploding gradients": Ill(_explode, ("grad_spike",)),
    "not a number": Ill(_nan, ("nan",)),
    "dead gradient": Ill(_dead, ("dead_update",)),
    "no update at all": Ill(_no_update, ("dead_update",), early=(0, 0)),
    "constant reward": Ill(_constant, ("zero_variance", "reward_crash", "dead_update"), ("trl", "native")),
    "prompts too hard": Ill(_too_hard, ("zero_variance",), ("trl", "native"), (0, 0)),
    "mismatch grows": Ill(_mismatch, ("mismatch",)),
    "hot sampler": Ill(_hot, ("mismatch",)),
    "clipping saturates": Ill(_clipped, ("clip_saturation_high", "clip_saturation_low")),
    "reward crash": Ill(_crash, ("reward_crash",)),
    "slow decline": Ill(_decline, ("reward_crash",)),
    "reward is length": Ill(_length_reward, ("length_reward", "reward_hacking")),
    "slow steps": Ill(_slow, ("dead_run",), ("trl", "verl", "prime_rl", "native")),
    "rollouts fail": Ill(_errors, ("rollout_errors",), ("prime_rl", "native")),
    "stale rollouts": Ill(_stale, ("staleness",), ("native",)),
    "oscillating reward": Ill(_oscillates, ("reward_noise",)),
    "huge updates": Ill(_huge, ("huge_update",), ("verl", "native")),
    "impossible share": Ill(_impossible, ("data_bug",)),
}


def draw(seed: int, kind: str, fault: str = "", *, half: int = 0) -> Course:
    """Draw a course.

    Args:
        seed: of all draws.
        kind: a key of ``HEALTHY``.
        fault: a key of ``ILL``; empty: none.
        half: 0 to tune on, 1 to report on, 2 fresh: different seeds.
    """
    rng = np.random.default_rng([half, seed, list(HEALTHY).index(kind), list(ILL).index(fault) if fault else 999])
    steps, noise = int(rng.choice(LENGTHS)), str(rng.choice(NOISES))
    plan = base(rng, steps, noise)
    HEALTHY[kind](plan)
    onset, names, trainers = 0, (), TRAINERS
    if fault:
        ill = ILL[fault]
        low, high = ill.early or (int(0.3 * steps), int(0.6 * steps))
        onset, names, trainers = int(rng.integers(low, high + 1)), ill.names, ill.trainers
        ill.put(plan, onset)
    trainer = str(rng.choice(trainers))
    records = NAMES[trainer](_measured(plan), plan)
    if fault == "impossible share":
        records = [{k: 1.3 if v != v else v for k, v in r.items()} for r in records]
    if kind == "restart with repeated steps" and steps >= 40:
        at, back = int(rng.integers(steps // 3, steps - 5)), int(rng.integers(3, 15))
        records = records[:at] + records[at - back : at] + records[at:]
    about = {"kind": kind, "fault": fault, "trainer": trainer, "noise": noise, "steps": steps}
    return Course(**about, names=names, onset=onset + 1, records=records)


def _measured(p: Plan) -> dict[str, Array]:
    """Return what a trainer measures at each step; NaN stands for a metric that was not measured."""
    rng, count = p.rng, p.steps

    def unit() -> Array:
        return wave(rng, p.noise, count)

    spread = {"entropy": 0.05, "length": 0.04, "kl": 0.15, "grad": 0.18, "clip_low": 0.25, "clip_high": 0.25,
              "mismatch": 0.1, "seconds": 0.06, "stale": 0.1, "moved": 0.25}  # fmt: skip
    found = {n: p.curves[n] * np.exp(np.clip(s * p.rough * unit(), -1.2, 1.2)) for n, s in spread.items()}
    chance = np.clip(p.skill + 0.02 * p.rough * unit(), 0.0, 1.0)
    # prompts differ in difficulty, so that groups agree more often than chance
    prompts = max(1, p.responses // p.group)
    right = np.empty(count)
    equal = np.empty(count)
    all_right = np.empty(count)
    for i, c in enumerate(chance):
        c = min(max(float(c), 1e-6), 1 - 1e-6)
        rates = rng.beta(1.2 * c + 1e-3, 1.2 * (1 - c) + 1e-3, prompts)
        hits = rng.binomial(p.group, rates)
        right[i] = hits.sum() / (prompts * p.group)
        all_right[i] = (hits == p.group).mean()
        equal[i] = all_right[i] + (hits == 0).mean()
    found["right"] = right
    found["all_right"], found["all_wrong"], found["equal"] = all_right, equal - all_right, equal
    found["reward"] = p.floor + (p.scale - p.floor) * right + np.asarray(p.extra) * abs(p.scale)
    for name in ("truncated", "errors"):
        found[name] = rng.binomial(p.responses, np.clip(p.curves[name], 0, 1)) / p.responses
    found["lr"] = p.curves["lr"]
    found["loss"] = rng.normal(0.0, 0.03, count)
    heldout = p.skill if p.heldout is None else p.heldout
    due = np.arange(count) % p.every == 0
    found["score"] = np.where(due, rng.binomial(p.problems, np.clip(heldout, 0, 1)) / p.problems, np.nan)
    for name, times in p.after.items():
        found[name] = found[name] * times
    return found


def _records(found: Mapping[str, Array], names: Mapping[str, str], optional: frozenset[str]) -> list[dict[str, float]]:
    """Return records; a metric that was not measured is left out, one that is NaN as a fault is kept."""
    rows = []
    for i in range(len(found["reward"])):
        row = {"step": i + 1}
        for key, name in names.items():
            x = float(found[key][i])
            if not (math.isnan(x) and key in optional):
                row[name] = x
        rows.append(row)
    return rows


_OPTIONAL = frozenset({"score"})


def _trl(found: dict[str, Array], p: Plan) -> list[dict[str, float]]:
    names = {
        "loss": "loss", "grad": "grad_norm", "lr": "learning_rate", "reward": "reward",
        "length": "completions/mean_length", "truncated": "completions/clipped_ratio",
        "entropy": "entropy", "kl": "kl", "clip_low": "clip_ratio/low_mean",
        "clip_high": "clip_ratio/high_mean", "equal": "frac_reward_zero_std", "seconds": "step_time",
        "mismatch": "sampling/sampling_logp_difference/mean", "score": "eval_reward",
    }  # fmt: skip
    if p.rng.uniform() < 0.5:
        names["right"] = "rewards/accuracy_reward/mean"
    return _records(found, names, _OPTIONAL)


def _verl(found: dict[str, Array], p: Plan) -> list[dict[str, float]]:
    found["both"] = found["clip_low"] + found["clip_high"]
    found["k3"] = found["mismatch"] ** 1.0 / 10
    val = "val-core/openai/gsm8k/reward/mean@1" if p.rng.uniform() < 0.5 else "val-core/math/acc/mean@1"
    names = {
        "loss": "actor/pg_loss", "grad": "actor/grad_norm", "lr": "actor/lr", "reward": "critic/score/mean",
        "length": "response_length/mean", "truncated": "response_length/clip_ratio", "entropy": "actor/entropy",
        "kl": "actor/kl_loss", "both": "actor/pg_clipfrac", "moved": "actor/ppo_kl", "seconds": "timing_s/step",
        "k3": "rollout_corr/k3_kl", "score": val,
    }  # fmt: skip
    return _records(found, names, _OPTIONAL)


def _open_instruct(found: dict[str, Array], p: Plan) -> list[dict[str, float]]:
    found["both"] = found["clip_low"] + found["clip_high"]
    found["stop"] = 1 - found["truncated"]
    names = {
        "loss": "loss/total_avg", "grad": "optim/grad_norm", "lr": "lr", "reward": "scores",
        "length": "val/sequence_lengths", "stop": "val/stop_rate", "entropy": "policy/entropy_avg",
        "both": "policy/clipfrac_avg", "mismatch": "debug/vllm_vs_local_logprob_diff_mean", "kl": "objective/kl_avg",
        "score": "eval/scores",
    }  # fmt: skip
    return _records(found, names, _OPTIONAL)


def _prime_rl(found: dict[str, Array], p: Plan) -> list[dict[str, float]]:
    found["k3"] = found["mismatch"] / 10
    names = {
        "grad": "optim/grad_norm", "lr": "optim/lr", "loss": "loss/mean", "reward": "reward/all/mean",
        "length": "seq_len/all/mean", "truncated": "is_truncated/all/mean", "entropy": "entropy/all/mean",
        "clip_low": "is_masked_low/all/mean", "clip_high": "is_masked_high/all/mean", "k3": "mismatch_kl/all/mean",
        "errors": "error/all/mean", "seconds": "time/step", "score": "eval/aime24/avg@8",
    }  # fmt: skip
    return _records(found, names, _OPTIONAL)


def _native(found: dict[str, Array], p: Plan) -> list[dict[str, float]]:
    found["se"] = np.sqrt(np.maximum(found["score"] * (1 - found["score"]), 0.002) / p.problems)
    names = {
        "loss": "optim/loss", "grad": "optim/grad_norm", "lr": "optim/lr", "reward": "reward/mean",
        "right": "reward/correct_frac", "length": "response/length_mean", "truncated": "response/truncated_frac",
        "entropy": "policy/entropy", "kl": "kl/ref_k3", "clip_low": "clip/low_frac", "clip_high": "clip/high_frac",
        "equal": "group/zero_std_frac", "all_right": "group/all_correct_frac", "all_wrong": "group/all_wrong_frac",
        "seconds": "perf/time_step_s", "mismatch": "mismatch/logp_abs_diff_mean", "stale": "staleness/steps_mean",
        "errors": "signal/rollout_error_frac", "moved": "kl/old_k3", "score": "eval/heldout/avg_at_1",
        "se": "signal/score_se",
    }  # fmt: skip
    return _records(found, names, _OPTIONAL | {"se"})


NAMES: Mapping[str, Callable[[dict[str, Array], Plan], list[dict[str, Any]]]] = {
    "trl": _trl,
    "verl": _verl,
    "open_instruct": _open_instruct,
    "prime_rl": _prime_rl,
    "native": _native,
}
