"""Evaluation on held-out problems: counts per problem, and the metrics that follow from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from paribus.stats.evals import avg_at_k, maj_at_k, pass_at_k
from paribus.study.job import Job
from paribus.track.folder import Evaluation
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.torch import sample
from paribus_runners.native.seeds import uniforms
from paribus_runners.native.task import Problem, Task, Verdict

SET = "heldout"
SHOWN = 8
"""Responses of each evaluation that are kept as text, for reading."""


@dataclass(frozen=True)
class Outcome:
    """One evaluation.

    Attributes:
        evaluation: counts per problem.
        values: canonical metrics, ``eval/heldout/...``.
        samples: some responses, as records for ``samples.jsonl``.
    """

    evaluation: Evaluation
    values: dict[str, float]
    samples: tuple[dict[str, Any], ...]


def evaluate(job: Job, policy: Policy, task: Task, step: int) -> Outcome:
    """Sample and judge ``evaluate.samples`` responses to each held-out problem."""
    k, settings = job.evaluate.samples, job.evaluate
    problems = task.heldout(settings.problems)
    prompts = policy.encode([p.prompt for p in problems])
    numbers = uniforms(len(problems) * k, job.recipe.schedule.max_new_tokens, job.seed, "evaluate", SET, step)
    responses = sample(policy, prompts, k, numbers, settings.temperature)
    texts = policy.decode(responses.tokens())
    finished = (~responses.truncated).tolist()
    verdicts = [task.verify(problems[i // k], t, e) for i, (t, e) in enumerate(zip(texts, finished, strict=True))]
    correct = torch.tensor([v.correct for v in verdicts])
    evaluation = _evaluation(step, k, problems, verdicts, correct, responses.length, responses.truncated)
    samples = tuple(
        {
            "step": step,
            "problem": problems[i].identity,
            "prompt": problems[i].prompt,
            "response": texts[i * k],
            "finished": finished[i * k],
            "correct": verdicts[i * k].correct,
        }
        for i in range(min(SHOWN, len(problems)))
    )
    return Outcome(evaluation, metrics(evaluation, responses.length, correct), samples)


def _evaluation(
    step: int,
    k: int,
    problems: Sequence[Problem],
    verdicts: Sequence[Verdict],
    correct: Tensor,
    length: Tensor,
    truncated: Tensor,
) -> Evaluation:
    def per_problem(x: Tensor) -> tuple[int, ...]:
        return tuple(x.long().view(-1, k).sum(1).tolist())

    groups = [verdicts[i : i + k] for i in range(0, len(verdicts), k)]
    return Evaluation(
        step=step,
        set=SET,
        samples=k,
        problems=tuple(p.identity for p in problems),
        correct=per_problem(correct),
        truncated=per_problem(truncated),
        tokens=per_problem(length),
        tokens_correct=per_problem(length * correct),
        answers=tuple(dict(sorted(Counter(v.answer for v in g).items())) for g in groups),
        right=tuple(tuple(sorted({v.answer for v in g if v.correct})) for g in groups),
    )


def metrics(evaluation: Evaluation, length: Tensor, correct: Tensor) -> dict[str, float]:
    """Return the canonical metrics of an evaluation; pass@ at all powers of two up to k, and at k."""
    k, count = evaluation.samples, len(length)
    values = {
        f"avg_at_{k}": avg_at_k(evaluation.correct, k),
        f"maj_at_{k}": maj_at_k(evaluation.answers, [frozenset(r) for r in evaluation.right]),
        "truncated_frac": sum(evaluation.truncated) / count,
        "length_mean": float(length.double().mean()),
    }
    for n in sorted({k, *(2**i for i in range(k.bit_length()))}):
        values[f"pass_at_{n}"] = pass_at_k(evaluation.correct, k, n)
    for name, rows in (("correct", correct), ("incorrect", ~correct)):
        if rows.any():
            values[f"length_mean_{name}"] = float(length[rows].double().mean())
    return {f"eval/{SET}/{name}": value for name, value in values.items()}
