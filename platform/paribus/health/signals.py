"""Signals: what detectors use beside the canonical metrics, from evaluations, samples and other trainers' logs."""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Mapping, Sequence

from paribus.run_folder.folder import TRAIN, Evaluation, MetricLine
from paribus.run_folder.samples import Sample
from paribus.stats.evals import accuracy_standard_error

REWARD = "signal/reward"
SCORE = "signal/score"
SCORE_SE = "signal/score_se"
REPETITIVE = "signal/repetitive_frac"
DEGENERATE = "signal/degenerate_frac"
DISTINCT = "signal/distinct_frac"
ROLLOUT_ERRORS = "signal/rollout_error_frac"
CLIPPED = "signal/clipped_frac"
TASK = "signal/task_reward"
EVALUATION_FAULTS = "signal/evaluation_faults"

SIGNALS: Mapping[str, str] = {
    REWARD: "share of correct responses, or the mean reward if a log lacks it",
    SCORE: "held-out score: the study's primary metric, else the first avg@k, else a held-out reward in its own units",
    SCORE_SE: "standard error of this score over problems",
    REPETITIVE: "share of the samples that end in repetition: zlib compresses the last 10,000 characters more than "
    "tenfold, or fewer than a fifth of the 4-grams in the last 1,000 words are distinct",
    DEGENERATE: "share of the samples that repeat a single character",
    DISTINCT: "share of distinct texts among samples of different prompts",
    ROLLOUT_ERRORS: "share of rollouts that were empty, aborted or ended in an error, as the trainer logs it",
    CLIPPED: "share of trained tokens clipped above or below, if the trainer logs only their sum",
    TASK: "part of the reward for correct responses, in its own units, where a log has no share of correct responses",
    EVALUATION_FAULTS: "evaluations on other problems than the first, or with more right answers than samples",
}
"""Signal to definition."""

_WORDS, _CHARACTERS, _SHORT = 1000, 10_000, 200


def with_signals(
    lines: Iterable[MetricLine],
    *,
    primary: str = "",
    evaluations: Sequence[Evaluation] = (),
    samples: Iterable[Sample] = (),
) -> list[MetricLine]:
    """Return the lines with the signals of their steps.

    Args:
        lines: canonical metrics, by step.
        primary: the metric of the score; empty: the first avg@k of each line.
        evaluations: with counts per problem.
        samples: responses; only the first to each evaluated problem is used.
    """
    extra: dict[int, dict[str, float]] = {}
    first: dict[str, Evaluation] = {}
    for evaluation in evaluations:
        known = first.setdefault(evaluation.set, evaluation)
        if not primary or primary.startswith(f"eval/{evaluation.set}/"):
            extra.setdefault(evaluation.step, {}).update(_of_evaluation(evaluation, known))
    texts: dict[int, dict[str, str]] = {}
    for sample in samples:
        if sample.set != TRAIN:
            of_step = texts.setdefault(sample.step, {})
            of_step.setdefault(sample.problem or str(len(of_step)), sample.response)
    for step, found in texts.items():
        extra.setdefault(step, {}).update(of_texts(list(found.values())))
    return [
        MetricLine(
            step=line.step,
            time_ms=line.time_ms,
            values={**line.values, **_of_line(line.values, primary), **extra.get(line.step, {})},
            sources=line.sources,
        )
        for line in lines
    ]


def _of_line(values: Mapping[str, float], primary: str) -> dict[str, float]:
    reward = values.get("reward/correct_frac", values.get("reward/mean"))
    found = {} if reward is None else {REWARD: reward}
    score = primary or next((k for k in sorted(values) if k.startswith("eval/") and "/avg_at_" in k), "")
    return found | ({SCORE: values[score]} if score in values else {})


def _of_evaluation(evaluation: Evaluation, first: Evaluation) -> dict[str, float]:
    right = all(isinstance(c, int) and 0 <= c <= evaluation.samples for c in evaluation.correct)
    faults = float(evaluation.problems != first.problems or not right)
    if not right or len(evaluation.correct) < 2:
        return {EVALUATION_FAULTS: faults}
    return {EVALUATION_FAULTS: faults, SCORE_SE: accuracy_standard_error(evaluation.correct, evaluation.samples)}


def of_texts(texts: Sequence[str]) -> dict[str, float]:
    """Return the signals of one step's samples, one text per prompt."""
    count = len(texts)
    return {
        REPETITIVE: sum(map(repetitive, texts)) / count,
        DEGENERATE: sum(len(t.strip()) > 3 and len(set(t.strip())) == 1 for t in texts) / count,
        DISTINCT: len(set(texts)) / count if count >= 4 else math.nan,
    }


def repetitive(text: str) -> bool:
    """Return whether the end of a text is repetitive.

    Source: zlib ratio above 10 over the last 10,000 characters, as in slime's repetition check (THUDM/slime); for short
    texts the share of distinct 4-grams of words (distinct-n: Li et al. 2016, arXiv 1510.03055).
    """
    tail = text[-_CHARACTERS:].encode(errors="replace")
    if len(tail) < _SHORT:
        return False
    if len(tail) / len(zlib.compress(tail)) > 10:
        return True
    words = text.split()[-_WORDS:]
    runs = [tuple(words[i : i + 4]) for i in range(len(words) - 3)]
    return len(runs) >= 20 and len(set(runs)) / len(runs) < 0.2
