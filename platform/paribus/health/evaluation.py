"""Rules on held-out evaluations: a score that falls while the training reward does not, and one below the start."""

from __future__ import annotations

import math
from statistics import NormalDist

from paribus.health.detector import FINE, Detector, Verdict
from paribus.health.primitives import noise
from paribus.health.signals import REWARD, SCORE, SCORE_SE
from paribus.health.view import View


def _hacking(v: View) -> Verdict | None:
    block = round(v.p["block"])
    scores = v.kept(SCORE)
    error = _error(v)
    reward = v.gain(REWARD, v.W // 2)
    if error is None or reward is None:
        return None
    if len(scores) < 2 * block:
        return _below_the_start(v, error)
    blocks = [sum(scores[end - block : end]) / block for end in range(len(scores), block - 1, -block)]
    best = max(blocks[1:])
    fall = best - blocks[0]
    z = fall / (error * math.sqrt(2 / block)) if error else 0.0
    limit = NormalDist().inv_cdf(1 - v.p["level"] / (len(blocks) - 1))
    if z <= limit or fall <= v.p["fall"] or reward < -v.p["reward_fall"]:
        return FINE
    back = blocks.index(best, 1) * block
    says = f"the held-out score fell from {best:.3g} to {blocks[0]:.3g} (z {z:.2g}, limit {limit:.2g}) while the "
    says += "training reward did not"
    numbers = {"fall": fall, "z": z, "limit": limit, "standard error": error}
    return Verdict(state="critical", says=says, numbers=numbers, onset=v.step_ago(SCORE, back))


def _below_the_start(v: View, error: float) -> Verdict | None:
    """Judge where evaluations are too few for blocks: the score is below the start, the training reward above it."""
    first, now = v.first(SCORE, 1), v.value(SCORE)
    reward, before = v.middle(REWARD), v.began(REWARD)
    if first is None or now is None or reward is None or before is None or v.count(SCORE) < 2:
        return None
    fall = first[0] - now
    limit = max(v.p["errors"] * math.sqrt(2) * error, v.p["fall"])
    if fall <= limit or reward - before < v.p["reward_rise"]:
        return FINE
    says = f"the held-out score is {now:.3g}, {_start(v, first[0])}, while the training reward rose from "
    says += f"{before:.3g} to {reward:.3g}"
    return Verdict(state="critical", says=says, numbers={"fall": fall, "limit": limit, "reward gain": reward - before})


def _regression(v: View) -> Verdict | None:
    first, now, error = v.first(SCORE, 1), v.value(SCORE), _error(v)
    if first is None or now is None or error is None or not math.isfinite(now) or v.count(SCORE) < 2:
        return None
    fall = first[0] - now
    limit = v.p["errors"] * math.sqrt(2) * error
    if fall <= max(limit, v.p["fall"]):
        return FINE
    says = f"the held-out score is {now:.3g}, {_start(v, first[0])} (standard error {error:.2g})"
    return Verdict(state="critical", says=says, numbers={"score": now, "before": first[0], "limit": limit})


def _start(v: View, score: float) -> str:
    """Return the first score, and when that was."""
    step = v.since(SCORE)
    return f"{score:.3g} {f'at step {step}' if step else 'before training'}"


def _error(v: View) -> float | None:
    """Return the standard error of a score: of its evaluation, or from the jumps between evaluations."""
    told = v.value(SCORE_SE)
    if told is not None:
        return told
    scores = v.kept(SCORE)[-60:]
    return noise(scores) * (1 + 3 / len(scores)) if len(scores) >= 8 else None


DETECTORS = (
    Detector(
        name="reward_hacking",
        looks_for="the held-out score falls while the training reward does not",
        needs=(SCORE,),
        uses=(REWARD, SCORE_SE),
        rule=_hacking,
        points=(2, 2),
        keep=19.0,
    ),
    Detector(
        name="eval_regression",
        looks_for="the held-out score is below that of the first evaluation",
        needs=(SCORE,),
        uses=(SCORE_SE,),
        rule=_regression,
        points=(2, 2),
    ),
)
