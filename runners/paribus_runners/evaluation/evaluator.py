"""The evaluator: samples and verifies responses to the problems of a set, and returns records and metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from paribus.contract import EvaluationSet
from paribus.evaluate import HELDOUT, reachable
from paribus.run_folder.folder import Evaluation
from paribus.stats.evals import avg_at_k, maj_at_k, pass_at_k
from paribus_runners.rewards.verifiers import Verdict
from paribus_runners.tasks import Grader, Problem

SHOWN = 8
"""Responses of each evaluation that are kept as text."""


class Sampled(NamedTuple):
    """One sampled response.

    Attributes:
        text: the response without its end mark.
        tokens: tokens that the model wrote, the end mark included.
        finished: whether the model ended the response; False where it hit a limit.
        given: parts of the text that an environment wrote: first character, and the one behind the last; ``None``
            without one, and for a response that is not shown.
    """

    text: str
    tokens: int
    finished: bool
    given: Sequence[tuple[int, int]] | None = None


def is_shown(place: int, number: int) -> bool:
    """Return whether an evaluation keeps the text of response ``number`` to the problem at a place of its set."""
    return place < SHOWN and number == 0


Sampler = Callable[[Sequence[Problem], Sequence[int]], Sequence[Sampled]]
"""Takes problems and their places in the set, and returns k responses to each, next to each other."""


@dataclass(frozen=True)
class Outcome:
    """One evaluation.

    Attributes:
        evaluation: counts per problem.
        values: canonical metrics, ``eval/<set>/...``.
        samples: some responses, as records for ``samples.jsonl``.
    """

    evaluation: Evaluation
    values: dict[str, float]
    samples: tuple[dict[str, Any], ...]


class Answered(NamedTuple):
    """A problem with its k responses and what the verifier says of them."""

    place: int
    problem: Problem
    responses: tuple[Sampled, ...]
    verdicts: tuple[Verdict, ...]
    failed: int


def answered(
    chosen: EvaluationSet,
    grader: Grader,
    sample: Sampler,
    share: Callable[[int], Sequence[int]] = range,
    progress: Callable[[], None] = lambda: None,
) -> list[Answered]:
    """Sample and verify ``chosen.samples`` responses to each of the first ``chosen.problems`` problems of a set.

    Reward functions are not called: an evaluation counts right answers, whatever is rewarded in training.

    Args:
        chosen: how many problems and responses; the sampler applies temperature, top-p and length limit.
        grader: verifies the responses to the held-out problems of its task.
        sample: the model; not called without a problem.
        share: takes the number of problems, and returns the places of those that are wanted.
        progress: called when the responses to a problem are verified.
    """
    k, problems = chosen.samples, grader.task.heldout(chosen.problems)
    places = share(len(problems))
    if not places:
        return []
    responses = sample([problems[place] for place in places], places)
    groups = [tuple(responses[i * k : (i + 1) * k]) for i in range(len(places))]
    batch = grader.batch(rewards=False)
    for place, group in zip(places, groups, strict=True):
        batch.submit(problems[place], [r.text for r in group], [r.finished for r in group])
    return [
        Answered(place, problems[place], group, tuple(graded.verdicts), sum(fault != 0 for (fault,) in graded.faults))
        for place, group, graded in zip(places, groups, batch.collect(progress), strict=True)
    ]


def evaluated(name: str, chosen: EvaluationSet, answers: Iterable[Answered], step: int) -> Outcome:
    """Return the evaluation of a set from the answers to all of its problems, in any order.

    Args:
        name: the set.
        chosen: what was sampled.
        answers: what :func:`answered` returned, of all shares.
        step: training steps before this evaluation.
    """
    k, ordered = chosen.samples, sorted(answers, key=lambda x: x.place)
    problems = [x.problem for x in ordered]
    responses, verdicts = [r for x in ordered for r in x.responses], [v for x in ordered for v in x.verdicts]
    evaluation = _counts(name, step, k, problems, responses, verdicts)
    samples = tuple(
        {
            "step": step,
            **({"set": name} if name != HELDOUT else {}),
            "problem": x.problem.identity,
            "prompt": x.problem.prompt,
            "response": x.responses[0].text,
            "finished": x.responses[0].finished,
            "correct": x.verdicts[0].correct,
            **({} if x.responses[0].given is None else {"given": x.responses[0].given}),
        }
        for x in ordered
        if is_shown(x.place, 0)
    )
    values = metrics(evaluation)
    if failed := sum(x.failed for x in ordered):
        values[f"eval/{evaluation.set}/failed_frac"] = failed / len(verdicts)
    return Outcome(evaluation, values, samples)


def _counts(
    name: str, step: int, k: int, problems: Sequence[Problem], responses: Sequence[Sampled], verdicts: Sequence[Verdict]
) -> Evaluation:
    def per_problem(values: Iterable[int]) -> tuple[int, ...]:
        listed = list(values)
        return tuple(sum(listed[i : i + k]) for i in range(0, len(listed), k))

    groups = [verdicts[i : i + k] for i in range(0, len(verdicts), k)]
    return Evaluation(
        step=step,
        set=name,
        samples=k,
        problems=tuple(p.identity for p in problems),
        correct=per_problem(v.correct for v in verdicts),
        truncated=per_problem(not r.finished for r in responses),
        tokens=per_problem(r.tokens for r in responses),
        tokens_correct=per_problem(r.tokens * v.correct for r, v in zip(responses, verdicts, strict=True)),
        answers=tuple(dict(sorted(Counter(v.answer for v in g).items())) for g in groups),
        right=tuple(tuple(sorted({v.answer for v in g if v.correct})) for g in groups),
    )


def metrics(evaluation: Evaluation) -> dict[str, float]:
    """Return the canonical metrics of an evaluation; pass@ at k and all powers of two below; maj@k with `right`."""
    k = evaluation.samples
    responses, correct = k * len(evaluation.problems), sum(evaluation.correct)
    tokens, tokens_correct = sum(evaluation.tokens), sum(evaluation.tokens_correct)
    values = {
        f"avg_at_{k}": avg_at_k(evaluation.correct, k),
        "truncated_frac": sum(evaluation.truncated) / responses,
        "length_mean": tokens / responses,
    }
    if evaluation.right:
        values[f"maj_at_{k}"] = maj_at_k(evaluation.answers, [frozenset(r) for r in evaluation.right])
    for n in reachable(k):
        values[f"pass_at_{n}"] = pass_at_k(evaluation.correct, k, n)
    if correct:
        values["length_mean_correct"] = tokens_correct / correct
    if correct < responses:
        values["length_mean_incorrect"] = (tokens - tokens_correct) / (responses - correct)
    return {f"eval/{evaluation.set}/{name}": value for name, value in values.items()}
