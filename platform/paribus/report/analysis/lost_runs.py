"""What lost runs do to a difference: counted against the arm, for it, and left out."""

from __future__ import annotations

from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import Effect
from paribus.report.analysis.measures import diverged, score_steps, series
from paribus.report.inputs import RunData


def fragile(analysis: Analysis, arm: str) -> bool:
    """Whether "separated from the base", or its sign, depends on how lost and stopped runs are counted.

    A way of counting that leaves fewer than three seeds gives no verdict. Without one as planned nothing depends.
    """
    found = sensitivity(analysis, arm)
    planned = found["as planned"]
    verdicts = {_verdict(e) for e in found.values() if e is not None and e.supported}
    return planned is not None and planned.supported and len(verdicts) > 1


def is_lost(analysis: Analysis, run: RunData) -> bool:
    """Whether a run failed, was stopped early, or finished without a finite score at its last evaluation."""
    return run.outcome in ("failed", "stopped_early") or diverged(run, analysis.score.metric)


def untrained(analysis: Analysis, run: RunData) -> bool:
    """Whether a run was stopped before an evaluation, so that its score is the one before training."""
    steps = [step for step, _ in score_steps(run, analysis.evaluate)] if run.outcome == "stopped_early" else []
    return steps == [0]


def sensitivity(analysis: Analysis, arm: str) -> dict[str, Effect | None]:
    """Return the difference from the base as planned, with lost seeds counted against and for it, and without them.

    Lost are the seeds of :func:`is_lost`. Against the arm: its lost seeds get the worst score and those of the base the
    best; for it, the other way round. Worst and best are taken over all runs of the study, including their evaluations
    before training. Runs that may still finish are not lost.
    """
    both = (arm, analysis.plan.base)
    planned = {a: dict(analysis.values(a, analysis.score)) for a in both}
    lost = {a: {r.seed for r in analysis.runs(a) if is_lost(analysis, r)} for a in both}
    worst, best = _extremes(analysis)
    against, favour = (
        {a: {**planned[a], **dict.fromkeys(lost[a], end)} for a, end in zip(both, ends, strict=True)}
        for ends in ((worst, best), (best, worst))
    )
    without = {a: {s: v for s, v in planned[a].items() if s not in lost[a]} for a in both}
    cases = {
        "as planned": planned,
        "lost seeds count against it": against,
        "lost seeds count for it": favour,
        "lost seeds excluded": without,
    }
    terms = [(1.0, arm, analysis.score), (-1.0, analysis.plan.base, analysis.score)]
    found = {n: analysis.from_values(terms, [c[a] for a in both], paired=analysis.paired) for n, c in cases.items()}
    if any(not without[a] for a in both):  # nothing but assumed scores is left of an arm
        found |= dict.fromkeys([n for n in cases if n != "as planned"])
    return found


def _extremes(analysis: Analysis) -> tuple[float, float]:
    """Return the worst and the best score of any run."""
    scores = [v for run in analysis.data.runs for _, v in series(run, analysis.score.metric)]
    ends = min(scores, default=0.0), max(scores, default=0.0)
    return (ends[1], ends[0]) if analysis.score.better == "lower" else ends


def _verdict(effect: Effect) -> int:
    if not effect.separated:
        return 0
    return 1 if effect.estimate.value > 0 else -1
