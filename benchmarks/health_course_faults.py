"""Faults of `health_courses.py`: each is put on a run from a step on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from health_course_names import TRAINERS
from health_course_plan import Plan, ramp, wave

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
