"""What a report measures, one number per run: the score by the declared rule, symptoms late in training, costs."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from paribus.contract import Evaluate
from paribus.evaluate import HELDOUT
from paribus.report.inputs import RunData
from paribus.run_folder.folder import Evaluation
from paribus.run_folder.metrics import GENERATED, TRAINED, Better, find_metric
from paribus.stats.evals import accuracy_standard_error, pass_at_k

LATE = 0.25
"""Share of the training steps, at the end of a run, over which symptoms are averaged."""


LATE_NOTE = (
    "Length, truncation, entropy and zero-spread groups are measured on training rollouts: mean over the last quarter "
    "of each run's training steps, then over seeds."
)


Rule = Literal["score", "start", "late", "last", "sum", "waste", "gain_per_token"]


@dataclass(frozen=True, kw_only=True)
class Measure:
    """One number per run.

    Attributes:
        key: stable name, the key of its column.
        label: short name.
        metric: canonical metric that it is computed from.
        rule: how the metric's values over steps become one number.
        unit: printed unit; empty for pure numbers, and for counts of what the label says.
        scale: stored to printed unit, for example 0.001 for thousands of tokens.
        better: direction of improvement.
        note: definition, for footnotes.
    """

    key: str
    label: str
    metric: str
    rule: Rule
    unit: str = ""
    scale: float = 1.0
    better: Better = "neither"
    note: str = ""


def score_measure(evaluate: Evaluate, runs: Iterable[RunData] = (), *, external: bool = False) -> Measure:
    """Return the study's primary metric under its checkpoint rule.

    Args:
        evaluate: how runs are evaluated.
        runs: those whose scores the note is about.
        external: whether other programs than Paribus have measured it.
    """
    name = evaluate.primary_metric
    metric = find_metric(name)
    rule = f"{_rule(evaluate, runs)}; the rule was declared before the run"
    if external:
        rule = f"as the trainer measured it, {_rule(evaluate, runs).replace('evaluation', 'value')}"
    label = metric.label if metric else name
    if metric and name.startswith("eval/"):
        chosen = evaluate.primary_set
        label = f"held-out {label}" if chosen == HELDOUT else f"{label} on {chosen}"
    return Measure(
        key="score",
        label=label,
        metric=name,
        rule="score",
        unit=metric.unit if metric else "",
        better=metric.better if metric else "higher",
        note=f"`{name}`, {rule}",
    )


def _rule(evaluate: Evaluate, runs: Iterable[RunData]) -> str:
    """Return which evaluations make up a score, and how many where runs have fewer than the rule takes."""
    if evaluate.checkpoint == "final":
        return "the last evaluation of each run"
    counts = {len(score_steps(r, evaluate)) for r in runs if r.outcome == "finished"} - {0}
    few = " or ".join(map(str, sorted(counts - {3})))
    if 3 in counts or not few:
        return f"mean of the last 3 evaluations of each run{f', or of {few} where it has no more' if few else ''}"
    there = f"{'is' if few == '1' else 'are'} only {few}"
    return f"mean of the last 3 evaluations of each run, of which there {there}"


def start_measure(evaluate: Evaluate) -> Measure:
    """Return the primary metric before training."""
    return replace(score_measure(evaluate), key="start", rule="start", note="the evaluation at step 0")


def set_measures(evaluate: Evaluate, name: str) -> tuple[Measure, ...]:
    """Return what a report states of one evaluation set under the checkpoint rule: avg@k, then the rest."""
    chosen = evaluate.all_sets[name]
    found = []
    for short in (*chosen.rates, "truncated_frac", "length_mean"):
        metric, k = find_metric(f"eval/{name}/{short}"), short.rpartition("_at_")[2]
        assert metric is not None
        found.append(
            Measure(
                key=f"{name}.{short}",
                label=short.replace("_at_", "@") if short in chosen.rates else metric.label,
                metric=metric.name,
                rule="score",
                unit=metric.unit,
                better=metric.better,
                note=_definition(metric.definition, k),
            )
        )
    return tuple(found)


def _definition(definition: str, k: str) -> str:
    """Return the definition of a metric of the evaluation with the number of responses in place of ``k``."""
    for text in ("over k ", "of k "):
        definition = definition.replace(text, text.replace("k", k))
    return definition.replace("at least one response", f"at least one of {k} responses")


def symptom_measures() -> tuple[Measure, ...]:
    """Return the training-side measures of the ladder and of the table of effects."""
    return (
        _late("length", "response/length_mean"),
        _late("length_wrong", "response/length_mean_incorrect"),
        _late("truncated", "response/truncated_frac"),
        _late("entropy", "policy/entropy"),
        _late("zero_spread", "group/zero_std_frac"),
    )


def cost_measures(largest: float) -> dict[str, Measure]:
    """Return the measures of cost by key, tokens in a unit that suits the largest number of tokens."""
    scale, unit = next(((s, u) for s, u in ((1e-9, "G"), (1e-6, "M"), (1e-3, "k")) if largest * s >= 10), (1.0, ""))
    tokens = f"{unit} tokens".strip()
    found = (
        Measure(
            key="generated",
            label="generated",
            metric=GENERATED,
            rule="last",
            unit=tokens,
            scale=scale,
            better="lower",
            note="tokens generated for training, whole run",
        ),
        Measure(
            key="trained",
            label="trained on",
            metric=TRAINED,
            rule="last",
            unit=tokens,
            scale=scale,
            note="tokens that entered the loss, each rollout counted once",
        ),
        Measure(
            key="waste",
            label="thrown away",
            metric=GENERATED,
            rule="waste",
            unit="fraction",
            better="lower",
            note="1 - tokens trained on / tokens generated, whole run",
        ),
        Measure(
            key="updates",
            label="updates",
            metric="budget/optimizer_steps",
            rule="last",
            note="optimizer updates, whole run",
        ),
        Measure(
            key="seconds",
            label="time",
            metric="perf/time_step_s",
            rule="sum",
            unit="s/run",
            better="lower",
            note="sum of the step times with their evaluations; excludes start-up, includes other load on the machine",
        ),
    )
    return {m.key: m for m in found}


def gain_measure(evaluate: Evaluate) -> Measure:
    """Return the gain in the primary metric per million generated tokens."""
    return replace(
        score_measure(evaluate),
        key="gain_per_token",
        label="gain per M tokens",
        rule="gain_per_token",
        note="(score after - before training) / million tokens generated",
    )


def meaning_of(runs: Iterable[RunData], measure: Measure) -> frozenset[str]:
    """Return whose numbers the values of a measure are in external runs; empty if Paribus trained them.

    Values that are exact mean the same everywhere. Others mean what their trainer means by its own name.
    """
    found = set[str]()
    for run in runs:
        if run.external is not None and (sources := run.recorded.sources_of(measure.metric)):
            own = run.external.score if measure.rule == "score" else ""
            found.add(f"{run.external.trainer} {own}" if sources != {"exact"} else "exact")
    return frozenset(found)


def series(run: RunData, metric: str, *, first: int | None = None) -> list[tuple[int, float]]:
    """Return the finite values of a metric as step and value, from step ``first`` on."""
    found = run.recorded.series(metric, first=first).finite()
    return list(zip(found.steps.tolist(), found.last.tolist(), strict=True))


def last_value(run: RunData, metric: str) -> float | None:
    """Return the newest finite value of a metric; ``None`` without one."""
    found = run.recorded.series(metric, least=2).last  # the widest buckets: each knows its last value
    if len(found) and math.isfinite(found[-1]):
        return float(found[-1])
    points = series(run, metric)
    return points[-1][1] if points else None


def mean_value(run: RunData, metric: str) -> float | None:
    """Return the mean of a metric over all steps that have it; ``None`` without one, or if a value is not finite."""
    found = run.recorded.series(metric, least=2)
    total, count = _sum(run, metric), int(found.count.sum())
    return None if total is None or not count or found.nans.sum() else total / count


FAILED_REWARDS = 0.01
"""Share of failed rewards above which a report speaks of them, as the detector `rollout_errors` does."""


def failed_rewards(run: RunData) -> float | None:
    """Return the share of the run's responses whose reward failed, if it is one that a report speaks of."""
    share = mean_value(run, "reward/failed_frac") if run.outcome in ("finished", "stopped_early") else None
    return share if share is not None and share > FAILED_REWARDS else None


def value_of(run: RunData, measure: Measure, evaluate: Evaluate) -> float | None:
    """Return the run's number in the printed unit; ``None`` if it has none.

    A run that was stopped early counts with its last valid evaluation; failed and unfinished runs have no number.
    """
    if run.outcome not in ("finished", "stopped_early"):
        return None
    raw = _raw_value(run, measure, evaluate)
    return None if raw is None else raw * measure.scale


def diverged(run: RunData, metric: str) -> bool:
    """Whether a run finished without a finite number at its last evaluation."""
    found = run.recorded.series(metric).last
    return run.outcome == "finished" and not (len(found) and math.isfinite(found[-1]))


def score_steps(run: RunData, evaluate: Evaluate, metric: str = "") -> list[tuple[int, float]]:
    """Return the evaluations, as step and value, that make up the run's score by the declared rule.

    ``metric`` is that of an evaluation set; absent: the primary metric.
    """
    points = series(run, metric or evaluate.primary_metric)
    if run.outcome == "stopped_early":
        return points[-1:]
    after = [p for p in points if p[0] > 0]
    return after[-1:] if evaluate.checkpoint == "final" else after[-3:]


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Correct responses per problem behind one number of a run, summed over the evaluations that make it up.

    Attributes:
        problems: identity of each problem.
        correct: correct responses per problem.
        samples: responses per problem.
    """

    problems: tuple[str, ...]
    correct: tuple[int, ...]
    samples: int


def counts_of(run: RunData, measure: Measure, evaluate: Evaluate) -> Counts | None:
    """Return the counts behind the run's score, or its score before training; ``None`` without counts.

    Counts of several evaluations are added problem by problem, so that they are not treated as independent.
    """
    if measure.rule not in ("score", "start"):
        return None
    return _counts(_evaluations(run, evaluate, measure.metric, start=measure.rule == "start"), measure.metric)


def _counts(used: Sequence[Evaluation], metric: str) -> Counts | None:
    if not used or len({e.problems for e in used}) != 1:
        return None
    if not metric.endswith(f"/avg_at_{used[0].samples}"):
        return None
    summed = tuple(sum(counts) for counts in zip(*(e.correct for e in used), strict=True))
    return Counts(problems=used[0].problems, correct=summed, samples=used[0].samples * len(used))


def evaluation_error(run: RunData, measure: Measure, evaluate: Evaluate) -> float | None:
    """Return the standard error of a run's score over the choice of problems; ``None`` without counts.

    This is evaluation noise alone, not the variance of training.
    """
    return _error(counts_of(run, measure, evaluate))


def error_at(run: RunData, metric: str, step: int) -> float | None:
    """Return the standard error of one evaluation over the choice of problems; ``None`` without counts."""
    return _error(_counts(_evaluations_at(run, metric, {step}), metric))


def _error(found: Counts | None) -> float | None:
    return accuracy_standard_error(found.correct, found.samples) if found and len(found.correct) > 1 else None


def pass_rates(run: RunData, evaluate: Evaluate, ks: Sequence[int]) -> tuple[float, ...] | None:
    """Return pass@k for each k, averaged over the evaluations that make up the score; ``None`` without counts."""
    used = _evaluations(run, evaluate, evaluate.primary_metric, start=False)
    if not used or min(e.samples for e in used) < max(ks):
        return None
    return tuple(math.fsum(pass_at_k(e.correct, e.samples, k) for e in used) / len(used) for k in ks)


def _evaluations(run: RunData, evaluate: Evaluate, metric: str, *, start: bool) -> list[Evaluation]:
    """Return the evaluations behind a score, or the one before training; empty if one of them has no counts."""
    return _evaluations_at(run, metric, {0} if start else {step for step, _ in score_steps(run, evaluate, metric)})


def _evaluations_at(run: RunData, metric: str, steps: Collection[int]) -> list[Evaluation]:
    prefix = metric.rpartition("/")[0]
    used = [e for e in run.evaluations if f"eval/{e.set}" == prefix and e.step in steps]
    return used if len(used) == len(steps) else []


def _raw_value(run: RunData, measure: Measure, evaluate: Evaluate) -> float | None:
    match measure.rule:
        case "score":
            return _mean(v for _, v in score_steps(run, evaluate, measure.metric))
        case "start":
            return _start(run, measure.metric)
        case "late":
            before = math.floor(run.last_step * (1 - LATE))
            found = run.recorded.series(measure.metric, first=before + 1).finite().last
            return float(found.mean()) if len(found) else None
        case "last":
            return last_value(run, measure.metric)
        case "sum":
            return _sum(run, measure.metric)
        case "waste":
            trained, generated = last_value(run, TRAINED), last_value(run, measure.metric)
            return 1 - trained / generated if trained is not None and generated and generated > 0 else None
        case "gain_per_token":
            before_training, tokens = _start(run, measure.metric), last_value(run, GENERATED)
            after = _mean(v for _, v in score_steps(run, evaluate))
            if before_training is None or after is None or not tokens or tokens <= 0:
                return None
            return (after - before_training) / (tokens / 1e6)


def _sum(run: RunData, metric: str) -> float | None:
    found = run.recorded.series(metric, least=2)  # the widest buckets; one with a value that is not finite hides others
    sums = (found.mean * (found.count - found.nans)).tolist()
    if not all(map(math.isfinite, sums)):
        sums = [v for _, v in series(run, metric)]
    return math.fsum(sums) if sums else None


def _start(run: RunData, metric: str) -> float | None:
    points = run.recorded.series(metric, first=0, last=0).last.tolist()
    return points[0] if points and math.isfinite(points[0]) else None


def _late(key: str, metric: str) -> Measure:
    known = find_metric(metric)
    assert known is not None
    return Measure(
        key=key,
        label=known.label,
        metric=metric,
        rule="late",
        unit=known.unit,
        better=known.better,
        note=known.definition,
    )


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return math.fsum(found) / len(found) if found else None


STEP_TIME = "perf/time_step_s"


def device_seconds(run: RunData, steps: Sequence[int]) -> Mapping[int, float]:
    """Return step to the seconds of the run's GPUs, or of its CPU slot, up to and including this step.

    Step times include evaluations; start-up and steps that a resumed run repeated are left out. Empty if the run has
    no step times.
    """
    import numpy as np

    found = run.recorded.series(STEP_TIME).finite()
    if not len(found.steps):
        return {}
    spent = np.concatenate([[0.0], np.cumsum(found.last)]) * (run.gpus or 1.0)
    places = np.searchsorted(found.steps, steps, side="right")
    return dict(zip(steps, spent[places].tolist(), strict=True))
