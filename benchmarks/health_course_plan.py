"""What a run of `health_courses.py` is like before its metrics are drawn: an ordinary run, and the shapes of others."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

Array = np.ndarray
Rng = np.random.Generator

LENGTHS = (60, 100, 150, 300, 600, 1000, 2000)
NOISES = ("independent", "autoregressive", "heavy-tailed", "seasonal")


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
