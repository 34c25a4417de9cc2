"""Rules on held-out scores: those that fall while the training reward does not, and those below the first one."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Literal

from paribus.health.detector import OK, Detector, RuleResult
from paribus.health.evaluations import error_of, evaluations, expected, looked, quantile
from paribus.health.signals import REWARD, SCORE, SCORE_SE
from paribus.health.window import Window


def _level(run: Window, fall: float, unit: float, tests: float, free: float) -> tuple[str, float]:
    """Return the worst level that a fall reaches and its limit; empty if it reaches none.

    Args:
        run: what the rule sees.
        fall: of the score.
        unit: its standard error.
        tests: comparisons over the whole run, which share the chance of a false alarm (Bonferroni).
        free: degrees of freedom of the error.
    """
    for state in ("critical", "warn"):
        limit = max(unit * quantile(run.p[state] / tests, free), run.p["fall"] * run.scale(SCORE))
        if fall > limit:
            return state, limit
    return "", math.nan


def _hacking(run: Window) -> RuleResult | None:
    """Compare the last evaluations with the best run of as many earlier ones, if the reward has not fallen since."""
    known = evaluations(run)
    if len(known) < 4:
        return None
    size = min(4, len(known) // 2, max(2, len(known) // 3))
    error, free = error_of(known)
    blocks = [known[i : i + size] for i in range(len(known) - 2 * size + 1)]
    best, last = max(blocks, key=lambda b: fmean(e.score for e in b)), known[-size:]
    before, now = (fmean(e.score for e in b) for b in (best, last))
    # neighbouring blocks overlap: in simulated noise they alarm as often as half as many would that share nothing
    tests = max(1.0, len(blocks) * expected(run) / 2)
    fall, unit = before - now, error * math.sqrt(2 / size)
    rewards = [[e.reward for e in b if e.reward is not None] for b in (best, last)]
    if not all(rewards):
        return None
    then, since = map(fmean, rewards)
    state, limit = _level(run, fall, unit, tests, free)
    due = 0.0
    if not state and expected(run) <= run.p["few"] and fall > unit * quantile(run.p["alone"], free):
        due = max(run.p["earned"] * (since - then) * run.exchange(REWARD, SCORE), 0.0)
        state, limit = _level(run, fall + due, unit, tests, free)
    allowed = run.p["reward_fall"] * fall * run.scale(REWARD) / run.scale(SCORE)
    recent = fmean(run.values(REWARD)[-3:])  # a reward that falls just now shows in the newest points first
    if not state or fall <= run.p["fall"] * run.scale(SCORE) or then - since > allowed or then - recent > 2 * allowed:
        return OK
    shows = next(e for e in known[known.index(best[-1]) + 1 :] if e.score < (before + now) / 2 or e is last[-1])
    text = f"the held-out score fell from {before:.3g} (mean of {size} evaluations until step {best[-1].step}) to "
    text += f"{now:.3g} (the last {size}), " + ("" if due else f"more than {limit:.2g}, which chance explains; ")
    text += f"{'while ' if due else ''}the training reward went from {then:.3g} to {since:.3g}"
    if due:
        text += (
            f": a quarter of that gain and this fall are {fall + due:.2g}, more than {limit:.2g}, which chance explains"
        )
    numbers = {"fall": fall, "limit": limit, "standard error": error, "reward gain": since - then}
    level: Literal["warn", "critical"] = "critical" if state == "critical" and not due else "warn"
    return RuleResult(state=level, evidence=text, numbers=numbers, onset=shows.step)


def _regression(run: Window) -> RuleResult | None:
    """Compare the last two evaluations with the first."""
    known = evaluations(run)
    if len(known) < 3:
        return None
    error, free = error_of(known)
    begun = looked(run.memory["first"])
    first, now = begun.score, fmean(e.score for e in known[-2:])
    state, limit = _level(run, first - now, error * math.sqrt(1.5), expected(run), free)
    if not state:
        return OK
    place = f"at step {begun.step}" if begun.step else "before training"
    text = (
        f"the held-out score is {now:.3g} (the last two evaluations), {first:.3g} {place} (standard error {error:.2g})"
    )
    numbers = {"score": now, "before": first, "limit": limit}
    high = [i for i, e in enumerate(known[:-1]) if e.score > (first + now) / 2]
    since = known[max(high, default=-1) + 1].step
    return RuleResult(state=state, evidence=text, numbers=numbers, onset=since)  # type: ignore[arg-type]


DETECTORS = (
    Detector(
        name="reward_hacking",
        looks_for="the held-out score falls while the training reward does not",
        needs=(SCORE,),
        uses=(REWARD, SCORE_SE),
        rule=_hacking,
        points=(1, 2),
    ),
    Detector(
        name="eval_regression",
        looks_for="the held-out score is below that of the first evaluation",
        needs=(SCORE,),
        uses=(REWARD, SCORE_SE),
        rule=_regression,
        points=(1, 2),
    ),
)
