"""Rules on the training reward, and on held-out scores that do not follow it."""

from __future__ import annotations

import math
from statistics import NormalDist

from paribus.health.detector import OK, Detector, RuleResult
from paribus.health.signals import REWARD, SCORE, SCORE_SE
from paribus.health.window import Window, noise
from paribus.recipe.analysis.facts import rewards_correctness_alone
from paribus.recipe.recipe import Recipe

_TOTAL, _CORRECT = "reward/mean", "reward/correct_frac"


def _noise(run: Window) -> RuleResult | None:
    count = math.ceil(2.5 * run.w)
    last, first = run.last(REWARD, count), run.first(REWARD, count)
    if last is None or first is None or run.count(REWARD) < 2 * count:
        return None
    now, before = noise(last), noise(first)
    if not (math.isfinite(now) and math.isfinite(before)):
        return None
    numbers = {"noise": now, "at the beginning": before, "limit": max(run.p["factor"] * before, run.p["least"])}
    if now <= numbers["limit"]:
        return OK
    text = f"the reward's noise from step to step is {now:.2g}, {before:.2g} at the beginning"
    return RuleResult(state="warn", evidence=text, numbers=numbers, onset=run.step_ago(REWARD, count // 2))


def _stall(run: Window) -> RuleResult | None:
    count = math.ceil(7.5 * run.w)
    gain, now = run.gain(REWARD, count - run.w), run.median(REWARD)
    if gain is None or now is None:
        return None
    if gain >= run.p["gain"] or now >= run.p["solved"]:
        return OK
    trend = run.trend(REWARD, count)
    if trend is not None and trend.up(run.p["p"]):
        return OK
    began = run.first_median(REWARD)
    never = began is not None and now - began < run.p["gain"]
    text = f"the reward is {now:.3g} and moved by {gain:+.2g} over {count} points"
    text += "; it has never risen" if never else ""
    onset = run.step_ago(REWARD, count - 1)
    return RuleResult(
        state="warn", evidence=text, numbers={"gain": gain, "limit": run.p["gain"], "reward": now}, onset=onset
    )


def _format(run: Window) -> RuleResult | None:
    total, right = run.trend(_TOTAL, run.W), run.trend(_CORRECT, run.W)
    gain = run.gain(_TOTAL, run.W - run.w)
    if total is None or right is None or gain is None:
        return None
    if not total.up() or gain < run.p["gain"] or right.up(0.05) or right.slope * run.W > run.p["right"] * gain:
        return OK
    text = f"the reward rose by {gain:.2g} while the share of correct responses did not ({right.slope * run.W:+.2g})"
    numbers = {"reward gain": gain, "correctness slope": right.slope, "limit": run.p["gain"]}
    return RuleResult(state="warn", evidence=text, numbers=numbers, onset=run.step_ago(_TOTAL, run.W // 2))


def _no_other_reward(recipe: Recipe) -> str:
    return "the reward is correctness only" if rewards_correctness_alone(recipe) else ""


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
        name="reward_noise",
        looks_for="the reward varies from step to step far more than at the beginning",
        needs=(REWARD,),
        rule=_noise,
        head=2.5,
        confirm=(1.0, 1.25),
        keep=1.5,
    ),
    Detector(
        name="reward_stall",
        looks_for="the reward stalls below its maximum, or has never risen",
        needs=(REWARD,),
        rule=_stall,
        confirm=(1.0, 1.25),
        keep=6.5,
    ),
    Detector(
        name="format_hacking",
        looks_for="the reward rises without more correct responses",
        needs=(_TOTAL, _CORRECT),
        rule=_format,
        why_not=_no_other_reward,
        keep=4.0,
    ),
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
