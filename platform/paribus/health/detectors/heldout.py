"""Rules on held-out scores: those that fall while the training reward does not, and those below the first one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from paribus.health.detector import OK, Detector, RuleResult
from paribus.health.signals import REWARD, SCORE, SCORE_SE
from paribus.health.window import Window

_KEPT = 60
"""Evaluations that are remembered beside the first."""

_GUESS = 100
"""Problems of an evaluation whose error is not recorded."""

_WEIGHT, _RECORDED = 4, 2
"""Degrees of freedom of this guess, and of a recorded error, against the differences between evaluations."""


@dataclass(frozen=True)
class Looked:
    """An evaluation.

    Attributes:
        step: its step.
        score: the held-out score.
        error: its recorded standard error; ``None`` if it has none.
        reward: mean of the training reward since the evaluation before, of w points at most; ``None`` if there is none.
    """

    step: int
    score: float
    error: float | None
    reward: float | None


def _evaluations(run: Window) -> list[Looked]:
    """Remember the evaluation of the newest line; return all that are remembered."""
    known: list[list[float | None]] = run.memory.get("evaluations", [])
    score, error = run.newest(SCORE), run.newest(SCORE_SE)
    if score is not None and math.isfinite(score):
        since = known[-1][0] if known else None
        rewards = [
            x for x, step in zip(run.values(REWARD), run.steps(REWARD), strict=True) if since is None or step > since
        ]
        rewards = rewards[-run.w :]
        error = error if error is not None and math.isfinite(error) else None
        newest = [run.line.step, score, error, fmean(rewards) if rewards else None]
        run.memory.setdefault("first", newest)
        known = run.memory["evaluations"] = [*known, newest][-_KEPT:]
    return [_looked(e) for e in known]


def _looked(known: Sequence[float | None]) -> Looked:
    step, score, error, reward = known
    return Looked(int(step or 0), float(score or 0.0), error, reward)


def score_error(scores: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of scores whose errors are not recorded, and its degrees of freedom.

    Second differences give the noise between evaluations whatever the trend: their variance is 6 s^2. Neighbouring ones
    share evaluations, so that their mean square has half the degrees of freedom. As there are few, shares from 0 to 1
    are taken for such of 100 problems with four degrees of freedom; for other units only the differences count.

    Source: von Neumann et al. 1941 (differences); a conjugate prior on the variance.
    """
    squares, free = _bends(scores)
    if all(0 <= x <= 1 for x in scores):
        p = min(max(fmean(scores), 0.05), 0.95)
        squares, free = (squares * free + _WEIGHT * p * (1 - p) / _GUESS) / (free + _WEIGHT), free + _WEIGHT
    return (math.sqrt(squares), free) if free else (math.inf, 1.0)


def _bends(scores: Sequence[float]) -> tuple[float, float]:
    """Return the variance of scores by their second differences, and its degrees of freedom.

    A single break makes two large differences: of six or more the two largest are left out, and the others scaled up
    for what normal noise loses by it.
    """
    bends = sorted((a - 2 * b + c) ** 2 for a, b, c in zip(scores, scores[1:], scores[2:], strict=False))
    if not bends:
        return 0.0, 0.0
    cut, count = (2 if len(bends) >= 6 else 0), len(bends)
    usual = count - 1.85 * cut * math.log(count / cut) if cut else count
    return math.fsum(bends[: count - cut]) / (6 * usual), (count - cut) / 1.94


def quantile(level: float, free: float) -> float:
    """Return the upper quantile of Student's t."""
    if math.isinf(free):
        return NormalDist().inv_cdf(1 - level)
    from scipy import special  # heavy, and a run whose errors are recorded does not need it

    return -float(special.stdtrit(free, level))


def _error(known: Sequence[Looked]) -> tuple[float, float]:
    """Return the standard error of the evaluations and its degrees of freedom.

    The recorded errors are those over problems; if the scores vary more from one evaluation to the next, the policy
    does, too, and this noise counts.
    """
    recorded = [e.error for e in known if e.error is not None]
    if len(recorded) < len(known):
        return score_error([e.score for e in known])
    square = fmean(e * e for e in recorded)
    between, free = _bends([e.score for e in known])
    return math.sqrt(max(square, (_RECORDED * square + free * between) / (_RECORDED + free))), math.inf


def _expected(run: Window) -> float:
    """Return how many evaluations a run of this length will have, at the rate so far."""
    points = max(run.count(REWARD), run.count(SCORE))
    return max(1.0, run.looks * run.w / points) * run.count(SCORE)


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
    known = _evaluations(run)
    if len(known) < 4:
        return None
    size = min(4, len(known) // 2, max(2, len(known) // 3))
    error, free = _error(known)
    blocks = [known[i : i + size] for i in range(len(known) - 2 * size + 1)]
    best, last = max(blocks, key=lambda b: fmean(e.score for e in b)), known[-size:]
    before, now = (fmean(e.score for e in b) for b in (best, last))
    # neighbouring blocks overlap: in simulated noise they alarm as often as half as many would that share nothing
    tests = max(1.0, len(blocks) * _expected(run) / 2)
    fall = before - now
    state, limit = _level(run, fall, error * math.sqrt(2 / size), tests, free)
    rewards = [[e.reward for e in b if e.reward is not None] for b in (best, last)]
    if not all(rewards):
        return None
    then, since = map(fmean, rewards)
    allowed = run.p["reward_fall"] * fall * run.scale(REWARD) / run.scale(SCORE)
    recent = fmean(run.values(REWARD)[-3:])  # a reward that falls just now shows in the newest points first
    if not state or then - since > allowed or then - recent > 2 * allowed:
        return OK
    shows = next(e for e in known[known.index(best[-1]) + 1 :] if e.score < (before + now) / 2 or e is last[-1])
    text = f"the held-out score fell from {before:.3g} (mean of {size} evaluations until step {best[-1].step}) to "
    text += f"{now:.3g} (the last {size}), more than {limit:.2g}, which chance explains; the training reward went from "
    text += f"{then:.3g} to {since:.3g}"
    numbers = {"fall": fall, "limit": limit, "standard error": error, "reward gain": since - then}
    return RuleResult(state=state, evidence=text, numbers=numbers, onset=shows.step)  # type: ignore[arg-type]


def _regression(run: Window) -> RuleResult | None:
    """Compare the last two evaluations with the first."""
    known = _evaluations(run)
    if len(known) < 3:
        return None
    error, free = _error(known)
    begun = _looked(run.memory["first"])
    first, now = begun.score, fmean(e.score for e in known[-2:])
    state, limit = _level(run, first - now, error * math.sqrt(1.5), _expected(run), free)
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
