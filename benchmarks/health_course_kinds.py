"""Healthy kinds of `health_courses.py`: each changes an ordinary run."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from health_course_plan import Plan, rise, wave

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
