"""The runs on which detectors are measured: a policy with a skill, prompts with difficulties, answers that are drawn.

Nothing is shared with `health_tuning.py`, on whose curves thresholds were set. There, each metric is a smooth shape
with autoregressive Gaussian noise. Here, what a trainer logs follows from one latent skill that walks upwards at
random: counts of right responses are binomial in groups over prompts of different difficulty, so reward, groups without
spread and evaluations have the noise and the dependence that they have in training; lengths and norms are
multiplicative with heavy tails (Student's t with 4 degrees of freedom), levels drift (a random walk, pulled back).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from paribus.run_folder.folder import MetricLine

STEPS, SIZE = 600, 8
"""Steps of a run, and responses of a group."""
SHAPES = (
    "plain",
    "entropy rises",
    "entropy falls by 75%",
    "length grows with reward",
    "small noisy batch",
    "gap after a resume",
    "metrics missing",
    "frequent evaluations",
)
"""Courses of runs without a fault."""

EFFECTS: Mapping[str, tuple[float, float, float]] = {
    "entropy_collapse": (0.15, 0.03, 0.005),
    "entropy_explosion": (1.1, 1.6, 2.5),
    "length_balloon": (0.3, 0.6, 1.2),
    "length_collapse": (0.35, 0.2, 0.06),
    "truncation": (0.07, 0.15, 0.5),
    "reward_noise": (0.5, 1.2, 2.0),
    "reward_stall": (0.3, 0.0, 0.0),
    "reward_crash": (0.45, 0.2, 0.05),
    "length_reward": (0.4, 0.8, 1.6),
    "format_hacking": (0.1, 0.3, 0.6),
    "reward_hacking": (0.06, 0.12, 0.2),
    "eval_regression": (0.08, 0.15, 0.25),
    "mixed_groups": (0.8, 1.0, 1.0),
    "copied_responses": (1.0, 1.0, 1.0),
    "zero_variance": (0.55, 0.7, 0.9),
    "effective_batch": (0.23, 0.15, 0.05),
    "clip_saturation_high": (0.12, 0.2, 0.4),
    "clip_saturation_low": (0.12, 0.2, 0.4),
    "clip_zero": (0.0, 0.0, 0.0),
    "mismatch": (0.024, 0.04, 0.1),
    "staleness": (9.0, 16.0, 40.0),
    "kl_blowup": (6.0, 20.0, 60.0),
    "huge_update": (0.04, 0.15, 2.0),
    "grad_spike": (6.0, 20.0, 100.0),
    "dead_update": (0.0, 0.0, 0.0),
    "repetition": (0.06, 0.2, 0.5),
    "degenerate_text": (0.3, 0.6, 1.0),
    "rollout_errors": (0.07, 0.12, 0.4),
    "dead_run": (3.5, 6.0, 30.0),
    "nan": (1.0, 1.0, 1.0),
    "data_bug": (1.0, 1.0, 1.0),
}
"""Detector to the small, medium and large effect that it must see; units are those of its metric, or factors."""


@dataclass(frozen=True)
class Drawn:
    """A run, its fault, the step at which it begins and its prompts a step; no fault: an empty name."""

    lines: tuple[MetricLine, ...]
    fault: str
    onset: int
    prompts: int


def wander(rng: np.random.Generator, scale: float, pull: float = 0.05) -> np.ndarray:
    """A random walk that is pulled back to 0, with this standard deviation in the long run."""
    found, x = np.zeros(STEPS), 0.0
    for i, e in enumerate(rng.normal(0, scale * math.sqrt(2 * pull), STEPS)):
        x += -pull * x + e
        found[i] = x
    return found


def heavy(rng: np.random.Generator, scale: float) -> np.ndarray:
    """Multiplicative noise with heavy tails."""
    return np.exp(scale * rng.standard_t(4, STEPS))


def toward(onset: int, over: float) -> np.ndarray:
    """0 before the onset, then towards 1: half way after 0.7 times as many steps as ``over`` says."""
    return 1 - np.exp(-np.clip(np.arange(STEPS) - onset, 0, None) / over)


def draw(rng: np.random.Generator, shape: str = "plain", fault: str = "", effect: float = 0.0) -> Drawn:
    """Draw one run.

    Args:
        rng: source of chance.
        shape: course of its healthy part, of :data:`SHAPES`.
        fault: detector whose fault it has, of :data:`EFFECTS`; empty: none.
        effect: how large the fault is.
    """
    onset = int(rng.integers(180, 320)) if fault else STEPS
    t = np.arange(STEPS)
    skill = _skill(rng, fault, effect, onset)
    curves = _rollouts(rng, shape, fault, effect, onset, skill) | _levels(rng, shape, onset)
    curves |= _evaluations(rng, shape, fault, effect, onset, skill)
    if fault in FAULTS:
        FAULTS[fault](rng, curves, effect, onset)
    keep = (t < 240) | (t >= 300) if shape == "gap after a resume" else np.full(STEPS, True)
    if shape == "metrics missing":
        for name in rng.choice(sorted(curves), 5, replace=False):
            del curves[name]
    lines = [
        MetricLine(step=int(i) + 1, time_ms=0, values={k: float(c[i]) for k, c in curves.items() if c[i] != MISSING})
        for i in t[keep]
    ]
    return Drawn(tuple(lines), fault, onset + 1, prompts_of(shape))


def prompts_of(shape: str) -> int:
    """Prompts a step."""
    return 8 if shape == "small noisy batch" else 48


MISSING = -12345.0
"""Marks a step at which a metric is not logged."""


def _skill(rng: np.random.Generator, fault: str, effect: float, onset: int) -> np.ndarray:
    """Log-odds of a right answer to a prompt of difficulty 0: upwards all the time, by chance, without a plateau."""
    speed = rng.uniform(1.4, 2.6) / STEPS * np.ones(STEPS)
    if fault in ("reward_stall", "length_balloon", "length_collapse", "format_hacking"):
        speed[onset:] *= effect if fault == "reward_stall" else 0.0
    if fault == "entropy_explosion":
        speed[onset:] = -0.004
    return rng.uniform(-1.4, -0.6) + np.cumsum(speed * rng.gamma(2.0, 0.5, STEPS)) + wander(rng, 0.05)


def _rollouts(
    rng: np.random.Generator, shape: str, fault: str, effect: float, onset: int, skill: np.ndarray
) -> dict[str, np.ndarray]:
    """What is counted over groups of 8 responses to prompts drawn again at each step."""
    prompts, size = prompts_of(shape), SIZE
    jitter = rng.normal(0, effect, STEPS) * (np.arange(STEPS) >= onset) if fault == "reward_noise" else 0.0
    spread = np.full(STEPS, rng.uniform(0.7, 1.2))
    difficulty = rng.normal(0, 1, (STEPS, prompts)) * spread[:, None]
    chance = 1 / (1 + np.exp(-(skill + jitter)[:, None] + difficulty))
    if fault == "zero_variance":
        sure = rng.random((STEPS, prompts)) < (effect * toward(onset, 20))[:, None]
        chance = np.where(sure, rng.random((STEPS, prompts)) < chance, chance)
    right = rng.binomial(size, chance)
    if fault == "mixed_groups":
        responses = rng.random((STEPS, prompts, size)) < chance[:, :, None]
        share = round(effect * prompts)
        responses[onset:, :share] = responses[onset:, :share].transpose(0, 2, 1).reshape(-1, share, size)
        right = responses.sum(2)
    if fault == "copied_responses":
        right[onset:] = size * rng.binomial(1, chance[onset:])
    correct = right.mean(1) / size
    return {
        "reward/correct_frac": correct,
        "reward/mean": correct.copy(),
        "signal/reward": correct,
        "group/all_correct_frac": (right == size).mean(1),
        "group/all_wrong_frac": (right == 0).mean(1),
        "group/zero_std_frac": ((right == size) | (right == 0)).mean(1),
    }


def _levels(rng: np.random.Generator, shape: str, onset: int) -> dict[str, np.ndarray]:
    """What drifts around a level of its own."""
    t = np.arange(STEPS)
    start = rng.uniform(0.3, 1.0)
    entropy = start * (0.45 + 0.55 * np.exp(-t / rng.uniform(80, 400)))
    if shape == "entropy rises":
        entropy = rng.uniform(0.3, 0.5) * (1 + rng.uniform(0.2, 0.9) * t / STEPS)
    if shape == "entropy falls by 75%":
        entropy = rng.uniform(0.85, 1.2) * (0.25 + 0.75 * np.exp(-t / rng.uniform(60, 150)))
    grown = rng.uniform(0.6, 1.2) if shape == "length grows with reward" else rng.uniform(-0.1, 0.4)
    length = rng.uniform(150, 1500) * (1 + grown * t / STEPS) * np.exp(wander(rng, 0.02)) * heavy(rng, 0.02)
    wrong = length * rng.uniform(1.0, 1.4)
    responses = 256
    cut = rng.binomial(responses, np.clip(rng.uniform(0.0, 0.02) * np.exp(wander(rng, 0.2)), 0, 0.03)) / responses
    tokens = np.cumsum(length * responses)
    return {
        "policy/entropy": entropy * np.exp(wander(rng, 0.04)) * heavy(rng, 0.02),
        "response/length_mean": length,
        "response/length_mean_incorrect": wrong * heavy(rng, 0.04),
        "response/length_mean_correct": length * heavy(rng, 0.03) * 0.95,
        "response/truncated_frac": cut,
        "clip/low_frac": np.minimum(rng.beta(2, 400, STEPS) * heavy(rng, 0.2) + 1e-5, 1.0),
        "clip/high_frac": np.minimum(rng.beta(2, 300, STEPS) * heavy(rng, 0.2) + 1e-5, 1.0),
        "kl/ref_k3": 1e-4 + rng.uniform(1e-4, 4e-4) * t**0.7 * np.exp(wander(rng, 0.1)) * heavy(rng, 0.05),
        "optim/grad_norm": rng.uniform(0.05, 1.5) * np.exp(wander(rng, 0.15)) * heavy(rng, 0.12),
        "mismatch/logp_abs_diff_mean": rng.uniform(0.002, 0.011) * np.exp(wander(rng, 0.08)) * heavy(rng, 0.05),
        "correction/effective_frac": rng.beta(60, 3, STEPS),
        "correction/weight_mean": 1 + rng.normal(0, 0.004, STEPS),
        "staleness/steps_mean": rng.uniform(2, 6, STEPS),
        "signal/rollout_error_frac": rng.binomial(responses, 0.01, STEPS) / responses,
        "perf/time_step_s": rng.uniform(20, 90) * np.exp(wander(rng, 0.1)) * rng.gamma(40, 1 / 40, STEPS),
        "budget/gen_tokens": tokens,
        "optim/loss": rng.normal(0, 0.02, STEPS) + 0.05,
        "kl/old_k3": rng.uniform(5e-4, 0.01) * np.exp(wander(rng, 0.2)) * heavy(rng, 0.2),
    }


def _evaluations(
    rng: np.random.Generator, shape: str, fault: str, effect: float, onset: int, skill: np.ndarray
) -> dict[str, np.ndarray]:
    """Held-out scores of 400 problems, and signals of 20 samples."""
    every = 5 if shape == "frequent evaluations" else 20
    ability = 1 / (1 + np.exp(-skill))
    fall = toward(onset, 60)
    if fault == "reward_hacking":
        ability = np.where(fall > 0, ability[min(onset, STEPS - 1)] - effect * fall, ability)
    if fault == "eval_regression":
        fall = toward(onset, 15)
        ability = ability * (1 - fall) + (ability[0] - effect) * fall
    ability = np.clip(ability, 0.01, 0.99)
    score = rng.binomial(400, ability) / 400
    logged = np.arange(STEPS) % every == 0
    found = {
        "signal/score": score,
        "signal/score_se": np.sqrt(np.maximum(score * (1 - score), 0.002) / 400),
        "signal/repetitive_frac": rng.binomial(20, 0.0005, STEPS) / 20,
        "signal/degenerate_frac": np.zeros(STEPS),
        "signal/distinct_frac": np.ones(STEPS),
    }
    return {name: np.where(logged, curve, MISSING) for name, curve in found.items()}


Curves = dict[str, np.ndarray]
Change = Callable[[np.random.Generator, Curves, float, int], None]


def _to(name: str, over: float) -> Change:
    """The metric goes to the value of the effect; the noise that it has stays."""

    def change(rng: np.random.Generator, curves: Curves, effect: float, onset: int) -> None:
        share = toward(onset, over)
        level = np.median(curves[name][max(0, onset - 50) : onset])
        curves[name] = curves[name] * np.exp(share * math.log(max(effect, 1e-9) / max(level, 1e-9)))

    return change


def _times(name: str, over: float) -> Change:
    def change(rng: np.random.Generator, curves: Curves, effect: float, onset: int) -> None:
        curves[name] = curves[name] * np.exp(toward(onset, over) * math.log(effect))

    return change


def _constant(effect_of: Mapping[str, float]) -> Change:
    def change(rng: np.random.Generator, curves: Curves, effect: float, onset: int) -> None:
        for name, value in effect_of.items():
            curves[name][onset:] = value

    return change


def _balloon(rng: np.random.Generator, curves: Curves, effect: float, onset: int) -> None:
    growth = 1 + effect * np.clip(np.arange(STEPS) - onset, 0, None) / 100
    for name in ("response/length_mean", "response/length_mean_incorrect"):
        curves[name] = curves[name] * growth


def _share(name: str, of: int) -> Change:
    def change(rng: np.random.Generator, curves: Curves, effect: float, onset: int) -> None:
        drawn = rng.binomial(of, np.clip(effect * toward(onset, 15), 0, 1)) / of
        curves[name] = np.where(curves[name] == MISSING, MISSING, np.maximum(curves[name], drawn))

    return change


def _spikes(rng: np.random.Generator, curves: Curves, effect: float, onset: int) -> None:
    at = [onset, *(onset + rng.choice(np.arange(3, 40), 3, replace=False))]
    curves["optim/grad_norm"][at] *= effect


def _format(rng: np.random.Generator, curves: Curves, effect: float, onset: int) -> None:
    curves["reward/mean"] = curves["reward/mean"] + effect * toward(onset, 60) + rng.normal(0, 0.01, STEPS)


def _pays_length(rng: np.random.Generator, curves: Curves, effect: float, onset: int) -> None:
    wobble = rng.normal(0, 0.08, STEPS)
    growth = (1 + effect * toward(onset, 100)) * (1 + wobble)
    curves["response/length_mean"] = curves["response/length_mean"] * growth
    curves["reward/mean"] = curves["signal/reward"] + 0.8 * (growth - 1) * (np.arange(STEPS) >= onset)


def _stall_kl(rng: np.random.Generator, curves: Curves, effect: float, onset: int) -> None:
    curves["kl/ref_k3"] = np.maximum(curves["kl/ref_k3"] * np.exp(toward(onset, 60) * math.log(effect)), 1e-4)


def _nan(rng: np.random.Generator, curves: Curves, effect: float, onset: int) -> None:
    curves["optim/loss"][onset] = math.nan


def _crash(rng: np.random.Generator, curves: Curves, effect: float, onset: int) -> None:
    """All that a trainer logs of the reward falls, under whichever name it is read."""
    for name in ("signal/reward", "reward/mean", "reward/correct_frac"):
        _times(name, 10)(rng, curves, effect, onset)


def _bug(rng: np.random.Generator, curves: Curves, effect: float, onset: int) -> None:
    curves["group/all_wrong_frac"][onset:] = 1.0 + 0.1


FAULTS: Mapping[str, Change] = {
    "entropy_collapse": _to("policy/entropy", 40),
    "entropy_explosion": _to("policy/entropy", 40),
    "length_balloon": _balloon,
    "length_collapse": _times("response/length_mean", 40),
    "truncation": _share("response/truncated_frac", 256),
    "format_hacking": _format,
    "reward_crash": _crash,
    "length_reward": _pays_length,
    "effective_batch": _to("correction/effective_frac", 20),
    "clip_saturation_high": _to("clip/high_frac", 40),
    "clip_saturation_low": _to("clip/low_frac", 40),
    "clip_zero": _constant({"clip/low_frac": 0.0, "clip/high_frac": 0.0}),
    "mismatch": _to("mismatch/logp_abs_diff_mean", 40),
    "staleness": _to("staleness/steps_mean", 20),
    "kl_blowup": _stall_kl,
    "huge_update": _to("kl/old_k3", 20),
    "grad_spike": _spikes,
    "dead_update": _constant({"optim/grad_norm": 0.0}),
    "repetition": _share("signal/repetitive_frac", 20),
    "degenerate_text": _share("signal/degenerate_frac", 20),
    "rollout_errors": _share("signal/rollout_error_frac", 256),
    "dead_run": _times("perf/time_step_s", 5),
    "nan": _nan,
    "data_bug": _bug,
}
"""Faults that change a metric; the others act on skill, rollouts and evaluations."""
