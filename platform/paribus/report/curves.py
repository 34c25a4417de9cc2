"""Curves and forest plots as values: raw points of every seed, means and t bands over seeds. Nothing is smoothed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from paribus.report.analysis import MIN_SEEDS, Analysis
from paribus.report.data import RunData
from paribus.report.details import Single, effect_measures, effects, singles
from paribus.report.measures import GENERATED, series
from paribus.report.model import Figure, Forest, Interval, Line, Panel, stored
from paribus.stats.intervals import Estimate, mean_interval
from paribus.track.metrics import find_metric

PANELS = (
    "reward/correct_frac",
    "response/length_mean",
    "response/length_mean_incorrect",
    "response/truncated_frac",
    "policy/entropy",
    "group/zero_std_frac",
)

Named: TypeAlias = Sequence[tuple[str, str]]
"""Label and arm of each line."""

CAPTION = (
    "One line an arm: the mean over seeds while all its seeds are there, with a 95% t band from 3 seeds on; below "
    "that, one thin line a seed. Values are as recorded, not smoothed."
)


def figures(analysis: Analysis) -> list[Figure]:
    """Return a forest plot of the single changes, and curves of each ladder and of the single changes."""
    found = [_forests(analysis)]
    base = (analysis.label(analysis.plan.base), analysis.plan.base)
    for design in dict.fromkeys(r.design for r in analysis.plan.rows if r.kind == "cumulative"):
        named = [(r.label, r.arm) for r in analysis.plan.rows if r.design == design]
        found.append(_curves(analysis, f"curves.{design}", f"Ladder `{design}` over training", named))
    ladders = {r.arm for r in analysis.plan.rows if r.kind == "cumulative"}
    alone = singles(analysis)
    if not ladders or any(s.arm not in ladders for s in alone):
        named = [base, *((s.name, s.arm) for s in alone)]
        found.append(_curves(analysis, "curves.singles", "Single changes over training", named))
    return [f for f in found if f is not None]


def _curves(analysis: Analysis, key: str, title: str, named: Named) -> Figure | None:
    score = analysis.score
    tokens = analysis.costs["generated"]
    y_label = f"{score.label} ({score.unit})" if score.unit else score.label
    panels = [
        _panel(analysis, f"{key}.score", score.label, "training steps", y_label, score.metric, named, points=True),
        _token_panel(analysis, f"{key}.score_by_tokens", f"generated {tokens.unit}", y_label, named, tokens.scale),
    ]
    for name in PANELS:
        metric = find_metric(name)
        assert metric is not None
        label = f"{metric.label} ({metric.unit})"
        panels.append(_panel(analysis, f"{key}.{name}", metric.label, "training steps", label, name, named))
    shown = tuple(p for p in panels if p.lines)
    return Figure(key=key, title=title, caption=CAPTION, panels=shown) if shown else None


def _panel(
    analysis: Analysis,
    key: str,
    title: str,
    x_label: str,
    y_label: str,
    metric: str,
    named: Named,
    *,
    points: bool = False,
) -> Panel:
    lines = []
    for label, arm in named:
        by_run = {r.seed: {float(s): (float(s), v) for s, v in series(r, metric)} for r in _shown(analysis.runs(arm))}
        lines.append(_line(label, by_run, _settled(analysis.runs(arm)), points=points))
    return Panel(key=key, title=title, x_label=x_label, y_label=y_label, lines=tuple(x for x in lines if x))


def _token_panel(analysis: Analysis, key: str, x_label: str, y_label: str, named: Named, scale: float) -> Panel:
    lines = []
    for label, arm in named:
        by_run = {}
        for run in _shown(analysis.runs(arm)):
            tokens: Mapping[int, float] = {0: 0.0, **dict(series(run, GENERATED))}
            points = series(run, analysis.score.metric)
            by_run[run.seed] = {float(s): (tokens[s] * scale, v) for s, v in points if s in tokens}
        lines.append(_line(label, by_run, _settled(analysis.runs(arm)), points=True))
    title = f"{analysis.score.label}, by tokens paid"
    return Panel(key=key, title=title, x_label=x_label, y_label=y_label, lines=tuple(x for x in lines if x))


def _line(
    label: str, by_run: Mapping[int, Mapping[float, tuple[float, float]]], settled: frozenset[int], *, points: bool
) -> Line | None:
    """Return one arm's line from seed to step to (x, value); ``None`` without a point."""
    runs = {seed: found for seed, found in by_run.items() if found}
    if not runs:
        return None
    means = {seed: found for seed, found in runs.items() if seed in settled}
    common = sorted(set.intersection(*(set(f) for f in means.values()))) if means else []
    estimates = [mean_interval([f[step][1] for f in means.values()]) for step in common]
    x = tuple(_kept(sum(f[step][0] for f in means.values()) / len(means)) for step in common)
    band = len(means) >= MIN_SEEDS
    each = tuple(
        (seed, tuple(_kept(f[s][0]) for s in sorted(f)), tuple(_kept(f[s][1]) for s in sorted(f)))
        for seed, f in runs.items()
    )
    return Line(
        arm=label,
        n=len(means),
        x=x,
        mean=tuple(_kept(e.value) for e in estimates),
        low=tuple(_kept(e.value if e.low is None else e.low) for e in estimates) if band else (),
        high=tuple(_kept(e.value if e.high is None else e.high) for e in estimates) if band else (),
        seeds=each if points or not band else (),
    )


def _forests(analysis: Analysis) -> Figure | None:
    alone = singles(analysis)
    if not any(analysis.to_base.values()):
        return None
    found = effects(analysis)
    columns = [(analysis.score, {s.arm: analysis.to_base.get(s.arm) for s in alone})]
    columns += [(m, {s.arm: found[s.arm, m.key] for s in alone}) for m in effect_measures(analysis)]
    forests = []
    for measure, by_arm in columns:
        label = "tokens generated" if measure.key == "generated" else measure.label
        rows = [_interval(s, e.estimate, e.separated) for s in alone if (e := by_arm[s.arm]) is not None]
        unit = f" ({measure.unit})" if measure.unit else ""
        forests.append(
            Forest(key=f"forest.{measure.key}", title=label, x_label=f"Δ {label}{unit}", intervals=tuple(rows))
        )
    base = analysis.label(analysis.plan.base)
    paired = "paired by seed" if analysis.plan.paired else "seeds not paired"
    return Figure(
        key="forest",
        title="What each change moves, as intervals",
        caption=f"Difference to `{base}`, {paired}, with 95% t interval; without interval below 3 seeds. Filled: the "
        "interval leaves out 0, before any correction.",
        forests=tuple(f for f in forests if f.intervals),
    )


def _interval(single: Single, estimate: Estimate, separated: bool) -> Interval:
    known = estimate.n >= MIN_SEEDS and bool(estimate.sd)
    return Interval(
        label=single.name,
        value=_kept(estimate.value),
        low=stored(estimate.low) if known else None,
        high=stored(estimate.high) if known else None,
        n=estimate.n,
        separated=separated,
    )


def _shown(runs: Iterable[RunData]) -> list[RunData]:
    return [r for r in runs if r.lines]


def _settled(runs: Iterable[RunData]) -> frozenset[int]:
    return frozenset(r.seed for r in runs if r.outcome in ("finished", "stopped_early"))


def _kept(value: float) -> float:
    return float(f"{value:.6g}")
