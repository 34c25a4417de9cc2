"""Held-out evaluations as rules see them: the newest ones, and how sure their scores are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean

from paribus.health.signals import REWARD, SCORE, SCORE_SE
from paribus.health.window import Window

_KEPT = 60
"""Evaluations that are remembered beside the first."""

_GUESS = 100
"""Problems of an evaluation whose error is not recorded."""

_WEIGHT, _RECORDED = 8, 2
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


def evaluations(run: Window, reward: str = REWARD) -> list[Looked]:
    """Remember the evaluation of the newest line; return all that are remembered.

    Args:
        run: what the rule sees.
        reward: the metric of the training reward.
    """
    known: list[list[float | None]] = run.memory.get("evaluations", [])
    score, error = run.newest(SCORE), run.newest(SCORE_SE)
    if score is not None and math.isfinite(score):
        since = known[-1][0] if known else None
        rewards = [
            x for x, step in zip(run.values(reward), run.steps(reward), strict=True) if since is None or step > since
        ]
        rewards = rewards[-run.w :]
        error = error if error is not None and math.isfinite(error) else None
        newest = [run.line.step, score, error, fmean(rewards) if rewards else None]
        run.memory.setdefault("first", newest)
        known = run.memory["evaluations"] = [*known, newest][-_KEPT:]
    return [looked(e) for e in known]


def looked(known: Sequence[float | None]) -> Looked:
    """Return an evaluation as it is remembered."""
    step, score, error, reward = known
    return Looked(int(step or 0), float(score or 0.0), error, reward)


def score_error(scores: Sequence[float]) -> tuple[float, float]:
    """Return the standard error of scores whose errors are not recorded, and its degrees of freedom.

    Second differences give the noise between evaluations whatever the trend: their variance is 6 s^2. Neighbouring ones
    share evaluations, so that their mean square has half the degrees of freedom. As there are few, shares from 0 to 1
    are taken for such of 100 problems with eight degrees of freedom; for other units only the differences count.

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


def error_of(known: Sequence[Looked]) -> tuple[float, float]:
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


def expected(run: Window) -> float:
    """Return how many evaluations a run of this length will have, at the rate so far."""
    points = max(run.count(REWARD), run.count(SCORE))
    return max(1.0, run.looks * run.w / points) * run.count(SCORE)
