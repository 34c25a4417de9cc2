"""Scores of one evaluation from the counts per problem. Pure Python: runners import it at every evaluation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set

from paribus.errors import ParibusError


def avg_at_k(correct: Sequence[int], samples: int) -> float:
    """Return avg@k: the share of correct responses to each problem, averaged over problems.

    Args:
        correct: correct responses per problem, each 0 to ``samples``.
        samples: responses per problem, k.

    Raises:
        ValueError: no problems, or a count outside 0 to ``samples``.
    """
    _check(correct, samples)
    return sum(correct) / (samples * len(correct))


def pass_at_k(correct: Sequence[int], samples: int, k: int) -> float:
    """Return the unbiased pass@k: the probability that one of k responses, drawn without replacement, is correct.

    Source: Chen et al. 2021, arXiv 2107.03374, Eq. 1, in the product form of its Figure 3:
    ``1 - prod_{i = K - c + 1}^{K} (1 - k / i)`` with K responses of which c are correct.

    Args:
        correct: correct responses per problem, each 0 to ``samples``.
        samples: responses per problem, K.
        k: responses drawn, 1 to K.

    Raises:
        ParibusError: ``k`` exceeds ``samples``; pass@k has no unbiased estimate for more responses than were sampled.
        ValueError: no problems, ``k`` below 1, or a count outside 0 to ``samples``.
    """
    _check(correct, samples)
    if k < 1:
        raise ValueError(f"pass@k needs k >= 1, got {k}")
    if k > samples:
        raise ParibusError(
            f"pass@{k} cannot be computed from {samples} responses per problem: set `evaluate.samples` to {k} or more, "
            f"or use pass@{samples}"
        )
    missed = {c: math.prod(1 - k / i for i in range(samples - c + 1, samples + 1)) for c in set(correct)}
    return 1 - sum(missed[c] for c in correct) / len(correct)


def maj_at_k(answers: Sequence[Mapping[str, int]], right: Sequence[str | Set[str]]) -> float:
    """Return maj@k for k = all responses: the probability that the most frequent answer is correct.

    Ties are split evenly over the most frequent answers, so the order of the responses does not matter. Responses
    without an answer (key ``""``) are no class and cannot win.

    Args:
        answers: per problem, extracted answer to number of responses.
        right: per problem, the correct answer, or the set of all correct ones.

    Raises:
        ValueError: no problems, or lists of different lengths.
    """
    if not answers or len(answers) != len(right):
        raise ValueError(f"maj@k needs one right answer per problem: {len(answers)} problems, {len(right)} answers")
    return sum(_majority(a, r) for a, r in zip(answers, right, strict=True)) / len(answers)


def accuracy_standard_error(correct: Sequence[int], samples: int) -> float:
    """Return the standard error of avg@k over the choice of problems, clustered by problem.

    Source: Miller 2024, arXiv 2411.00640, section 2.2, with the problem as the cluster:
    ``sqrt(sum_q (m_q - mean)^2 / (Q (Q - 1)))`` with ``m_q`` the share of correct responses of problem q. It is the
    noise of one evaluation of one checkpoint and says nothing about the spread between training runs.

    Args:
        correct: correct responses per problem, each 0 to ``samples``.
        samples: responses per problem, k.

    Raises:
        ValueError: fewer than two problems, or a count outside 0 to ``samples``.
    """
    _check(correct, samples)
    problems = len(correct)
    if problems < 2:
        raise ValueError("a standard error needs two problems or more")
    mean = sum(correct) / (samples * problems)
    return math.sqrt(math.fsum((c / samples - mean) ** 2 for c in correct) / (problems * (problems - 1)))


def _majority(answers: Mapping[str, int], right: str | Set[str]) -> float:
    counts = {a: n for a, n in answers.items() if a and n > 0}
    if not counts:
        return 0.0
    most = max(counts.values())
    winners = [a for a, n in counts.items() if n == most]
    accepted = {right} if isinstance(right, str) else right
    return sum(a in accepted for a in winners) / len(winners)


def _check(correct: Sequence[int], samples: int) -> None:
    if not correct:
        raise ValueError("an evaluation needs one problem or more")
    if samples < 1 or min(correct) < 0 or max(correct) > samples:
        raise ValueError(f"counts of correct responses must lie in 0..{samples}, got {min(correct)}..{max(correct)}")
