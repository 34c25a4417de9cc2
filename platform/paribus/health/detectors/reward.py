"""Rules on the training reward: its noise, its falls, and what it rises with."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np

from paribus.health.detector import OK, Detector, RuleResult
from paribus.health.evaluations import Looked, error_of, evaluations, expected, quantile
from paribus.health.signals import REWARD, SCORE, SCORE_SE, TASK
from paribus.health.window import Window, roughness
from paribus.recipe.analysis.facts import rewards_correctness_alone
from paribus.recipe.recipe import Recipe

_TOTAL, _CORRECT = "reward/mean", "reward/correct_frac"
_LENGTH, _TRUNCATED = "response/length_mean", "response/truncated_frac"
_PARTS = {_CORRECT: "the share of correct responses", TASK: "its part for correct responses"}


def _noise(run: Window) -> RuleResult | None:
    """Compare the noise with its mean over earlier windows, on a scale on which the noise of a share is the same.

    The noise of other rewards than shares may grow with them: they are compared with the largest. As long as the rule
    holds, what it compares with stays as it was.
    """
    count, share, memory = math.ceil(2.5 * run.w), run.is_share(REWARD), run.memory
    last = run.last(REWARD, count)
    if last is None or not math.isfinite(recorded := roughness(last)):
        return None
    now = roughness(np.arcsin(np.sqrt(last))) if share else recorded
    past: list[tuple[float, float]] = [*memory.get("past", []), (now, recorded)]
    memory["past"] = past[-count:]
    if len(past) <= count:
        return None
    windows, mean, most, _ = memory.get("before", [0, 0.0, 0.0, 0])
    mean += (past[0][0] - mean) / (windows + 1)
    memory["before"] = [windows + 1, mean, max(most, past[0][1]), run.step_ago(REWARD, count)]
    windows, mean, most, until = memory.get("held", memory["before"])
    usual = mean if share else most
    # the logarithm of the noise of n points has a standard error of about 0.9 / sqrt(n)
    by_chance = run.sure(run.p["chance"]) * 0.9 * math.sqrt(1 / count + 1 / (count + windows - 1))
    limit = usual * max(run.p["factor"], math.exp(by_chance))
    # where hardly any answer is right, the first right ones are many times the noise before, on any scale
    if now <= limit or recorded <= run.p["least"] * run.scale(REWARD):
        memory.pop("held", None)
        return OK
    memory["held"] = [windows, mean, most, until]
    text = f"from step to step the reward varies by {now:.2g} over {count} points, and by {usual:.2g} "
    text += f"{'in the mean' if share else 'at most'} until step {until}"
    text += " (a share p as arcsin of its root)" if share else ""
    numbers = {"noise": now, "before": usual, "limit": limit}
    return RuleResult(state="warn", evidence=text, numbers=numbers, onset=run.step_ago(REWARD, count // 2))


def _stall(run: Window) -> RuleResult | None:
    count = math.ceil(7.5 * run.w)
    now, then = run.mean(REWARD), run.mean(REWARD, ago=count - run.w)
    if now is None or then is None:
        return None
    gain, error = now.value - then.value, math.hypot(now.error, then.error)
    limit = max(run.p["gain"] * run.scale(REWARD), run.p["errors"] * error)
    if not abs(gain) < limit or (run.scale(REWARD) == 1 and now.value >= run.p["solved"]):
        return OK
    trend = run.trend(REWARD, count)
    if trend is None or trend.p < run.p["p"]:
        return OK
    text = f"the reward is {now.value:.3g} (mean of {run.w} points) and moved by {gain:+.2g}, less than {limit:.2g}, "
    text += f"over the last {count} points"
    numbers = {"gain": gain, "limit": limit, "reward": now.value}
    return RuleResult(state="note", evidence=text, numbers=numbers, onset=run.step_ago(REWARD, count - 1))


_NEAR = 0.1
"""Share of a fall within which the reward is as good as the best mean."""
_FAST = 0.4
"""Share of a fall that lies between the means of two short windows if it is a fast one."""


def _crash(run: Window) -> RuleResult | None:
    """Compare with the best mean so far, beyond falls from which the run has risen again: they are its noise."""
    now, memory = run.mean(REWARD), run.memory
    if now is None:
        return None
    best = memory.setdefault("best", now.value)
    lowest = memory["lowest"] = min(now.value, memory.get("lowest", now.value))
    if now.value >= best:
        usual = max(best - lowest, memory.get("usual", 0.0))
        memory.update(best=now.value, error=now.error, low=run.lowest(REWARD), since=run.step_ago(REWARD, run.w - 1))
        memory.update(usual=usual, lowest=now.value)
        return OK
    fall = best - now.value
    if fall < max(run.p["least"] * run.scale(REWARD), run.p["usual"] * memory.get("usual", 0.0)):
        return OK
    chance = run.sure(run.p["chance"], run.looks) * math.hypot(now.error, memory.get("error", now.error))
    # rewards that are never negative are lost if they go to 0; others, if they are below any step before the best
    never_negative = run.lowest(REWARD) >= 0
    room = best if never_negative else best - memory.get("low", best)
    names = ("warn", "critical") if never_negative else ("warn_other", "critical_other")
    lost = fall / room if room > 0 else 0.0
    if not fall > chance or lost <= run.p[names[0]]:
        return OK
    worse = lost > run.p[names[1]]
    text = f"the reward fell from {best:.3g} to {now.value:.3g} (means of {run.w} points)"
    numbers = {"reward": now.value, "best": best, "lost": lost, "limit": run.p[names[worse]]}
    state: Literal["warn", "critical"] = "critical" if worse else "warn"
    return RuleResult(state=state, evidence=text, numbers=numbers, since=_still_high(run, best, fall))


def _still_high(run: Window, best: float, fall: float) -> int:
    """Return the step from which a fall is looked for: of a fast one the last at the level of the best mean.

    A straight line from the best mean to the lowest fits a fall at once and a slow one behind it better than a step.
    """
    since: int = run.memory.get("since", 0)
    steps, values = run.steps(REWARD), run.values(REWARD)
    high = [i for i, x in enumerate(values) if x >= best - _NEAR * fall]
    if not high or steps[high[-1]] < since:
        return since
    last = high[-1] + 1
    before, after = values[max(0, last - run.w) : last], values[last : last + run.w]
    fast = after and math.fsum(before) / len(before) - math.fsum(after) / len(after) >= _FAST * fall
    return steps[last - 1] if fast else since


def together(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the correlation of the changes from point to point of two series; 0 if one of them does not change."""
    a, b = np.diff(np.asarray(first, dtype=float)), np.diff(np.asarray(second, dtype=float))
    a, b = a - a.mean(), b - b.mean()
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if math.isfinite(scale) and scale > 0 else 0.0


def _length_reward(run: Window) -> RuleResult | None:
    """Judge a reward that rises with the length: it follows it from step to step, or the held-out score does not."""
    reward = _TOTAL if run.count(_TOTAL) else REWARD
    known = evaluations(run, reward)
    count = min(run.count(reward), run.count(_LENGTH), 10 * run.w)
    rewards, lengths = run.last(reward, count), run.last(_LENGTH, count)
    if rewards is None or lengths is None or count < 4 * run.w:
        return None
    return _follows(run, reward, rewards, lengths) or _unearned(run, known, reward) or OK


def _follows(run: Window, reward: str, rewards: list[float], lengths: list[float]) -> RuleResult | None:
    count = len(rewards)
    before, now = (math.fsum(x) / run.w for x in (lengths[: run.w], lengths[-run.w :]))
    rising = run.trend(reward, count)
    if now < run.p["growth"] * before or rising is None or not rising.up():
        return None
    follows = together(rewards, lengths)
    gain = math.fsum(rewards[-run.w :]) / run.w - math.fsum(rewards[: run.w]) / run.w
    known = _score_gain(run)
    if known is not None and known > run.p["score"] * gain / run.scale(reward):
        return None
    least = math.tanh(run.sure(run.p["chance"]) / math.sqrt(0.6 * count))
    limit = max(run.p["follows" if known is None else "follows_alone"], least)
    if follows <= limit:
        return None
    text = f"the reward follows the length from step to step (correlation {follows:.2f}, limit {limit:.2f}); over "
    text += f"{count} points the length grew from {before:.3g} to {now:.3g} tokens and the reward by {gain:.2g}"
    text += "" if known is None else f", while the held-out score moved by {known:+.2g}"
    cut = run.median(_TRUNCATED) or 0.0
    text += f"; {cut:.0%} are truncated" if cut > run.p["truncated"] else ""
    numbers = {"correlation": follows, "limit": limit, "length": now, "reward gain": gain}
    state: Literal["warn", "critical"] = "warn" if known is None and cut <= run.p["truncated"] else "critical"
    return RuleResult(state=state, evidence=text, numbers=numbers, subject=_LENGTH)


def _unearned(run: Window, known: Sequence[Looked], reward: str) -> RuleResult | None:
    """Compare what reward and held-out score have gained between the first and the last third of the evaluations.

    The null hypothesis is that the score gains a share of what the reward gains (``score``); evaluations share the
    chance to reject it (``score_chance``).
    """
    size, begins, length = len(known) // 3, run.first(_LENGTH), run.mean(_LENGTH)
    if not size or begins is None or length is None or length.value < run.p["longer"] * math.fsum(begins) / run.w:
        return None
    early, late = known[:size], known[-size:]
    rewards = [[e.reward for e in part if e.reward is not None] for part in (early, late)]
    if not all(rewards):
        return None
    gain = math.fsum(rewards[1]) / len(rewards[1]) - math.fsum(rewards[0]) / len(rewards[0])
    score = (math.fsum(e.score for e in late) - math.fsum(e.score for e in early)) / size
    error, free = error_of(known)
    unit = run.exchange(reward, SCORE)
    surely = score + quantile(run.p["score_chance"] / expected(run), free) * error * math.sqrt(2 / size)
    if not gain > run.p["gain"] * run.scale(reward) or surely >= run.p["score"] * gain * unit:
        return None
    text = (
        f"responses grew from {math.fsum(begins) / run.w:.3g} to {length.value:.3g} tokens since the beginning; from "
    )
    text += f"the first {size} to the last {size} evaluations" if size > 1 else "the first to the last evaluation"
    text += f" the reward rose by {gain:.2g}, and the held-out score "
    text += f"moved by {score:+.2g}, {surely:+.2g} at most"
    numbers = {"length": length.value, "reward gain": gain, "score gain": score, "limit": run.p["score"] * gain * unit}
    return RuleResult(state="warn", evidence=text, numbers=numbers, subject=_LENGTH)


def _score_gain(run: Window) -> float | None:
    """Return how much the score has moved between the first and the last third of the evaluations that are kept."""
    scores = run.values(SCORE)
    third = len(scores) // 3
    return (math.fsum(scores[-third:]) - math.fsum(scores[:third])) / third if third else None


def _format(run: Window) -> RuleResult | None:
    """Judge a reward that rises without correctness, over a long window or since the beginning."""
    part = _CORRECT if run.count(_CORRECT) else TASK
    total, right = run.trend(_TOTAL, run.W), run.trend(part, run.W)
    gain = run.gain(_TOTAL, run.W - run.w)
    if total is None or right is None or gain is None:
        return None
    moved = right.slope * run.W
    least = run.p["gain"] * run.scale(_TOTAL)
    if not total.up() or gain < least or right.up(0.05) or moved > run.p["right"] * gain:
        return _other_parts(run, part) or OK
    text = f"the reward rose by {gain:.2g} over {run.W} points; {_PARTS[part]} moved by {moved:+.2g}"
    numbers = {"reward gain": gain, "correctness slope": right.slope, "limit": run.p["gain"]}
    return RuleResult(state="warn", evidence=text, numbers=numbers, onset=run.step_ago(_TOTAL, run.W // 2))


def _other_parts(run: Window, part: str) -> RuleResult | None:
    """Judge whether other parts than correctness make the reward: what varies within a batch varies between batches.

    After a third of the run, as the format is usually learned first. The null hypothesis is that the changes of the
    reward from step to step have a correlation of ``follows`` with those of correctness; looks share the chance.
    """
    count = 10 * run.w
    totals, rights, now, right = run.last(_TOTAL, count), run.last(part, count), run.mean(_TOTAL), run.mean(part)
    first, begins = run.first(_TOTAL), run.first(part)
    if totals is None or rights is None or now is None or right is None or first is None or begins is None:
        return None
    gain, gained = now.value - math.fsum(first) / run.w, right.value - math.fsum(begins) / run.w
    if gain < run.p["gain"] * run.scale(_TOTAL) or gained > run.p["part"] * gain:
        return None
    follows = together(totals, rights)
    most = math.tanh(math.atanh(min(follows, 0.99)) + run.sure(run.p["chance"]) / math.sqrt(0.6 * count))
    if most >= run.p["follows"]:
        return None
    text = f"the reward rose by {gain:.2g} since the beginning and {_PARTS[part]} by {gained:+.2g}, whose changes from "
    text += f"step to step it does not follow (correlation {follows:.2f} over {count} points)"
    return RuleResult(
        state="warn", evidence=text, numbers={"reward gain": gain, "limit": run.p["follows"]}, subject=_TOTAL
    )


def _no_other_reward(recipe: Recipe) -> str:
    return "the reward is correctness only" if rewards_correctness_alone(recipe) else ""


LENGTH = Detector(
    name="length_reward",
    looks_for="the reward follows the length of the responses",
    needs=(_LENGTH,),
    any_of=(_TOTAL, REWARD),
    uses=(SCORE, SCORE_SE, _TRUNCATED),
    rule=_length_reward,
    keep=9.0,
)
"""Listed before the rules on responses: that they grow is its effect."""

CRASH = Detector(
    name="reward_crash",
    looks_for="the reward loses most of what it was",
    needs=(REWARD,),
    rule=_crash,
    keep=14.0,
)
"""Listed before truncation: where both come at once, a limit of the length is not what has changed."""

DETECTORS = (
    Detector(
        name="format_hacking",
        looks_for="the reward rises without more correct responses",
        needs=(_TOTAL,),
        any_of=(_CORRECT, TASK),
        rule=_format,
        why_not=_no_other_reward,
        keep=9.0,
    ),
    Detector(
        name="reward_noise",
        looks_for="the reward varies from step to step far more than before",
        needs=(REWARD,),
        rule=_noise,
        confirm=(1.0, 1.25),
    ),
    Detector(
        name="reward_stall",
        looks_for="the reward no longer moves: a note",
        needs=(REWARD,),
        rule=_stall,
        confirm=(1.0, 1.25),
        keep=6.5,
    ),
)
