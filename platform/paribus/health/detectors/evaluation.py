"""Rules on held-out evaluations: a score that falls while the reward does not, and one below the first score."""

from __future__ import annotations

import math
from statistics import NormalDist

from paribus.health.detector import OK, Detector, RuleResult
from paribus.health.signals import REWARD, SCORE, SCORE_SE
from paribus.health.statistics import noise
from paribus.health.window import Window


def _hacking(run: Window) -> RuleResult | None:
    block = round(run.p["block"])
    scores = run.values(SCORE)
    error = _error(run)
    reward = run.gain(REWARD, run.W // 2)
    if error is None or reward is None:
        return None
    if len(scores) < 2 * block:
        return _below_the_start(run, error)
    blocks = [sum(scores[end - block : end]) / block for end in range(len(scores), block - 1, -block)]
    best = max(blocks[1:])
    fall = best - blocks[0]
    z = fall / (error * math.sqrt(2 / block)) if error else 0.0
    limit = NormalDist().inv_cdf(1 - run.p["level"] / (len(blocks) - 1))
    if z <= limit or fall <= run.p["fall"] or reward < -run.p["reward_fall"]:
        return OK
    back = blocks.index(best, 1) * block
    text = f"the held-out score fell from {best:.3g} to {blocks[0]:.3g} (z {z:.2g}, limit {limit:.2g}) while the "
    text += "training reward did not"
    numbers = {"fall": fall, "z": z, "limit": limit, "standard error": error}
    return RuleResult(state="critical", evidence=text, numbers=numbers, onset=run.step_ago(SCORE, back))


def _below_the_start(run: Window, error: float) -> RuleResult | None:
    """Judge runs with too few evaluations for blocks: the score fell below its start while the reward rose."""
    first, now = run.first(SCORE, 1), run.newest(SCORE)
    reward, before = run.median(REWARD), run.first_median(REWARD)
    if first is None or now is None or reward is None or before is None or run.count(SCORE) < 2:
        return None
    fall = first[0] - now
    limit = max(run.p["errors"] * math.sqrt(2) * error, run.p["fall"])
    if fall <= limit or reward - before < run.p["reward_rise"]:
        return OK
    text = f"the held-out score is {now:.3g}, {_start(run, first[0])}, while the training reward rose from "
    text += f"{before:.3g} to {reward:.3g}"
    return RuleResult(
        state="critical", evidence=text, numbers={"fall": fall, "limit": limit, "reward gain": reward - before}
    )


def _regression(run: Window) -> RuleResult | None:
    first, now, error = run.first(SCORE, 1), run.newest(SCORE), _error(run)
    if first is None or now is None or error is None or not math.isfinite(now) or run.count(SCORE) < 2:
        return None
    fall = first[0] - now
    limit = run.p["errors"] * math.sqrt(2) * error
    if fall <= max(limit, run.p["fall"]):
        return OK
    text = f"the held-out score is {now:.3g}, {_start(run, first[0])} (standard error {error:.2g})"
    return RuleResult(state="critical", evidence=text, numbers={"score": now, "before": first[0], "limit": limit})


def _start(run: Window, score: float) -> str:
    """Return the first score and its step as text."""
    step = run.first_step(SCORE)
    return f"{score:.3g} {f'at step {step}' if step else 'before training'}"


def _error(run: Window) -> float | None:
    """Return the standard error of a score: that of its evaluation, else an estimate from the noise between them."""
    recorded = run.newest(SCORE_SE)
    if recorded is not None:
        return recorded
    scores = run.values(SCORE)[-60:]
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
