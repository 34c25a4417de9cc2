"""The figure of a search: its settings as parallel coordinates, and how much each path mattered."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from paribus.report.adaptive import trial_scores
from paribus.report.analysis.analysis import Analysis
from paribus.report.model import Axis, Figure, Forest, Interval, Parallel, Setting, rounded
from paribus.report.tables.cells import number
from paribus.report.tables.search import DECIMALS
from paribus.study.designs import value_label
from paribus.study.plan import SearchRanking, Trial
from paribus.study.spec import Range

Scores = Mapping[tuple[str, int], float | None]


def search_figure(analysis: Analysis) -> Figure | None:
    """Return the settings of each tuned arm, and the importance of the paths; ``None`` without a score of a search."""
    ranking = analysis.plan.ranking
    scores: Scores = trial_scores(analysis.data)
    if ranking is None or not any(score is not None for score in scores.values()):
        return None
    rated = "" if not ranking.importance else (
        f" Bars: importance by Optuna's {ranking.rule.importance}, without an interval; it describes where the search "
        "looked."
    )  # fmt: skip
    return Figure(
        key=f"{ranking.design}.search",
        title=f"Settings of the search `{ranking.design}`",
        caption="Each line is a setting: where it crosses an axis is its value, on the last axis its score. The "
        "stronger the blue, the better; orange: the best of its arm; dotted: no score. Biased upwards, and nothing is "
        f"tested.{rated}",
        parallels=tuple(_parallels(analysis, ranking, scores)),
        forests=tuple(_importance(ranking)),
        table=f"{ranking.design}.screen",
    )


def _parallels(analysis: Analysis, ranking: SearchRanking, scores: Scores) -> Iterator[Parallel]:
    known = [score for score in scores.values() if score is not None]
    ends = min(known), max(known)
    axes = [Axis(label=path, low=value_label(r.low), high=value_label(r.high)) for path, r in ranking.rule.over.items()]
    axes.append(Axis(label=analysis.score.label, low=number(ends[0], DECIMALS), high=number(ends[1], DECIMALS)))
    for row in ranking.candidates:
        trials = [t for t in ranking.trials if t.candidate == row.label]
        trials.sort(key=lambda t: (_of(scores, t) is not None, _of(scores, t) or 0.0, -t.number))
        if trials:
            yield Parallel(
                key=f"{ranking.design}.{row.label}.settings",
                title=row.label,
                axes=tuple(axes),
                settings=tuple(_setting(ranking, t, _of(scores, t), ends, t is trials[-1]) for t in trials),
            )


def _setting(
    ranking: SearchRanking, trial: Trial, score: float | None, ends: tuple[float, float], last: bool
) -> Setting:
    values = [(within, trial.values[path]) for path, within in ranking.rule.over.items()]
    width = ends[1] - ends[0]
    height = None if score is None else rounded((score - ends[0]) / width if width else 0.5)
    reached = "no score" if score is None else number(score, DECIMALS)
    return Setting(
        label=f"trial {trial.number}",
        places=(*(rounded(_place(value, within)) for within, value in values), height),
        texts=(*(value_label(value) for _, value in values), reached),
        chosen=last and score is not None,
    )


def _place(value: float, within: Range) -> float:
    """Return where a value lies in its range, 0 to 1; the value of the untuned recipe may lie outside."""
    low, high = float(within.low), float(within.high)
    if within.log:
        low, high, value = math.log(low), math.log(high), math.log(value) if value > 0 else math.log(low)
    return min(max((value - low) / (high - low), 0.0), 1.0)


def _importance(ranking: SearchRanking) -> Iterator[Forest]:
    for label, shares in ranking.importance.items():
        rows = (
            Interval(label=path, value=rounded(share), low=None, high=None, n=ranking.rule.trials, separated=False)
            for path, share in shares.items()
        )
        yield Forest(
            key=f"{ranking.design}.{label}.importance",
            title=f"{label}: importance",
            x_label="share of importance (fraction)",
            intervals=tuple(rows),
            bars=True,
        )


def _of(scores: Scores, trial: Trial) -> float | None:
    return scores[trial.candidate, trial.number]
