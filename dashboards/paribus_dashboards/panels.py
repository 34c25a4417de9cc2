"""The small multiples of the health page: what each panel shows, which limits it has, and its curves. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from paribus.health.clipping import HIGH, LOW, SEQUENCE
from paribus.health.diagnose import Diagnosis
from paribus.health.drift import KL, LOGP, STALE, configured_staleness
from paribus.health.entropy import ENTROPY
from paribus.health.finding import RAISED, Lamp
from paribus.health.gradient import NORM
from paribus.health.groups import RIGHT, WRONG, ZERO
from paribus.health.length import LENGTH, TRUNCATED
from paribus.health.profile import Profile
from paribus.recipe.analysis.facts import fresh
from paribus.recipe.recipe import Recipe
from paribus.track.series import Floats, Recorded, Series, points, width_for

LEAST = 300
"""Buckets that a curve has at least, where it had more points."""

SCORE = "score"
"""Key of the panel of evaluations, whose metric a study names."""

Draw = Literal["line", "area"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One curve of a panel.

    Attributes:
        name: canonical metric; empty: the study's primary one.
        label: what it is called beside others of the panel.
        draw: as a line, or as an area on those below it.
    """

    name: str
    label: str
    draw: Draw = "line"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a panel shows.

    Attributes:
        key: stable name, part of its address.
        title: heading.
        unit: what is on the y axis.
        metrics: curves; those that were not recorded are left out.
        detectors: whose onsets are marked.
        limits: detector, name of its threshold, and the lamp that lies beyond it.
        told: detector, name of a number of its finding, and what that is called.
        log: whether the y axis is logarithmic.
        smooth: whether the running median is drawn.
    """

    key: str
    title: str
    unit: str
    metrics: tuple[Metric, ...]
    detectors: tuple[str, ...]
    limits: tuple[tuple[str, str, Lamp], ...] = ()
    told: tuple[tuple[str, str, str], ...] = ()
    log: bool = False
    smooth: bool = True


def _both(detector: str, warn: str = "warn", critical: str = "critical") -> tuple[tuple[str, str, Lamp], ...]:
    return ((detector, warn, "warn"), (detector, critical, "critical"))


KINDS = (
    Kind(
        key=SCORE,
        title="held-out score",
        unit="score",
        metrics=(Metric(name="", label="score"),),
        detectors=("reward_hacking", "eval_regression"),
        told=(("eval_regression", "before", "before training"),),
        smooth=False,
    ),
    Kind(
        key="reward",
        title="reward",
        unit="reward",
        metrics=(Metric(name="reward/mean", label="reward"), Metric(name="reward/correct_frac", label="right")),
        detectors=("reward_noise", "reward_stall", "format_hacking", "reward_hacking"),
    ),
    Kind(
        key="length",
        title="length of responses",
        unit="tokens",
        metrics=(
            Metric(name=LENGTH, label="all"),
            Metric(name="response/length_mean_correct", label="right"),
            Metric(name="response/length_mean_incorrect", label="wrong"),
        ),
        detectors=("length_balloon", "length_collapse"),
        limits=(("length_collapse", "tokens", "critical"),),
    ),
    Kind(
        key="entropy",
        title="entropy",
        unit="nats/token",
        metrics=(Metric(name=ENTROPY, label="entropy"),),
        detectors=("entropy_collapse", "entropy_explosion"),
        limits=(*_both("entropy_collapse"), ("entropy_explosion", "level", "warn")),
    ),
    Kind(
        key="truncation",
        title="truncated responses",
        unit="share",
        metrics=(Metric(name=TRUNCATED, label="truncated"),),
        detectors=("truncation",),
        limits=_both("truncation"),
    ),
    Kind(
        key="clip",
        title="clipped tokens",
        unit="share",
        metrics=(Metric(name=HIGH, label="above"), Metric(name=LOW, label="below")),
        detectors=("clip_saturation_high", "clip_saturation_low", "clip_zero"),
        limits=_both("clip_saturation_high"),
    ),
    Kind(
        key="groups",
        title="groups without spread",
        unit="share",
        metrics=(
            Metric(name=RIGHT, label="all right (f+)", draw="area"),
            Metric(name=WRONG, label="all wrong (f−)", draw="area"),
            Metric(name=ZERO, label="all without spread"),
        ),
        detectors=("zero_variance", "effective_batch"),
        limits=_both("zero_variance"),
    ),
    Kind(
        key="mismatch",
        title="sampler against learner",
        unit="|Δ log p|, nats",
        metrics=(Metric(name=LOGP, label="mean"),),
        detectors=("mismatch",),
        limits=_both("mismatch", "logp_warn", "logp_critical"),
    ),
    Kind(
        key="gradient",
        title="gradient norm",
        unit="L2, logarithmic",
        metrics=(Metric(name=NORM, label="norm"),),
        detectors=("grad_spike", "dead_update"),
        limits=(("dead_update", "norm", "critical"),),
        told=(("grad_spike", "limit", "limit of a spike"),),
        log=True,
    ),
    Kind(
        key="kl",
        title="KL divergence",
        unit="nats/token",
        metrics=(Metric(name=KL, label="to the reference"), Metric(name="kl/old_k3", label="to the sampler's policy")),
        detectors=("kl_blowup",),
        limits=(("kl_blowup", "least", "warn"),),
        told=(("kl_blowup", "limit", "limit"),),
    ),
    Kind(
        key="throughput",
        title="sampling speed",
        unit="tokens/s",
        metrics=(Metric(name="perf/gen_tokens_per_s", label="tokens/s"),),
        detectors=("dead_run",),
    ),
    Kind(
        key="staleness",
        title="staleness",
        unit="updates",
        metrics=(Metric(name=STALE, label="mean"),),
        detectors=("staleness",),
        limits=(("staleness", "updates", "warn"),),
    ),
)
"""The panels, in the order in which people look at a run."""

BY_KEY: Mapping[str, Kind] = {k.key: k for k in KINDS}


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """One metric of one run.

    Attributes:
        label: what it is, or whose.
        draw: as a line, or as an area.
        raw: what was recorded, drawn faint; wider buckets as the range between their smallest and largest value.
            ``None``: not drawn.
        bold: the running median, or the recorded values where nothing is smoothed, in the same buckets.
        error: standard error of each value of ``bold``; empty where it is not known.
    """

    label: str
    draw: Draw
    raw: Series | None
    bold: Series
    error: Floats


@dataclass(frozen=True)
class Limit:
    """A horizontal line: a detector's threshold, or a number of its finding that is called so.

    The lamp is what lies beyond; ``unknown`` where nothing does.
    """

    value: float
    lamp: Lamp
    detector: str
    label: str


@dataclass(frozen=True)
class Onset:
    """Where a finding begins, and where it ended if it did."""

    step: int
    lamp: Lamp
    detector: str
    cleared: int | None = None
    elsewhere: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A panel that is drawn.

    Attributes:
        kind: what it shows.
        curves: curves, of one run or one a seed.
        limits: horizontal lines.
        onsets: vertical ones.
        last: the newest step of any run; the x axis goes there in all panels, unless a part is looked at.
    """

    kind: Kind
    curves: tuple[Curve, ...]
    limits: tuple[Limit, ...]
    onsets: tuple[Onset, ...]
    last: int


def metrics_of(kind: Kind, names: Iterable[str], primary: str) -> tuple[Metric, ...]:
    """Return the metrics of a panel that were recorded, with their names."""
    known = frozenset(names)
    named = (Metric(name=m.name or primary, label=m.label, draw=m.draw) for m in kind.metrics)
    return tuple(m for m in named if m.name in known)


def limits_of(kind: Kind, diagnosis: Diagnosis, profile: Profile, recipe: Recipe) -> tuple[Limit, ...]:
    """Return the thresholds of the detectors that apply, and what their findings tell."""
    states = {f.detector: f.state for f in diagnosis.findings}
    whole = recipe.ratio.kind in SEQUENCE
    found = []
    for detector, name, lamp in kind.limits:
        if states.get(detector, "not_applicable") == "not_applicable":
            continue
        if detector == "mismatch" and not fresh(recipe):
            continue  # the difference holds updates, too: the rule does not look at it
        if detector == "clip_saturation_high" and whole:
            if name != "warn":
                continue
            name = "sequence_warn"
        value = profile.of(detector)[name] if detector != "staleness" else float(configured_staleness(recipe))
        found.append(Limit(value, lamp, detector, lamp))
    told = {(f.detector, name): n for f in diagnosis.raised for name, n in f.numbers.items()}
    lines = [Limit(told[d, n], "unknown", d, label) for d, n, label in kind.told if (d, n) in told]
    return (*found, *lines)


def onsets_of(kind: Kind, diagnosis: Diagnosis) -> tuple[Onset, ...]:
    """Return where the panel's findings begin, and where the suspected cause does if that is another."""
    cause = diagnosis.raised[0].detector if diagnosis.raised else ""
    return tuple(
        Onset(f.step_onset, f.state, f.detector, f.step_cleared, elsewhere=f.detector not in kind.detectors)
        for f in diagnosis.raised
        if f.step_onset is not None and f.state in RAISED and (f.detector in kind.detectors or f.detector == cause)
    )


def curve_of(
    recorded: Recorded,
    metric: Metric,
    *,
    w: int,
    first: int | None,
    last: int | None,
    errors: Mapping[int, float] | None = None,
    least: int = LEAST,
) -> Curve:
    """Return a curve from step ``first`` to ``last``, raw and as a running median.

    Args:
        recorded: the run.
        metric: what is drawn.
        w: points of the running median, which looks back as the detectors do; 0: none is drawn.
        first: first step; ``None``: that of the run.
        last: last step, likewise.
        errors: step to the standard error of its value.
        least: buckets where there are more points.
    """
    if not w:
        bold = recorded.series(metric.name, first=first, last=last, least=least).finite()
        error = np.array([errors.get(int(s), np.nan) for s in bold.steps]) if errors else np.empty(0)
        return Curve(label=metric.label, draw=metric.draw, raw=None, bold=bold, error=error)
    span = recorded.span or (0, 0)
    width = width_for(span[0] if first is None else first, span[1] if last is None else last, least)
    before = None if first is None else max(0, first - 4 * w)
    every = recorded.series(metric.name, first=before, last=last).finite()
    raw = every.between(first, last).bucketed(width)
    medians = points(every.steps[w - 1 :], running_median(every.last, w)).between(first, last).bucketed(width)
    return Curve(label=metric.label, draw=metric.draw, raw=raw, bold=medians, error=np.empty(0))


def running_median(values: Floats, w: int) -> Floats:
    """Return the median of each value and the w - 1 before it; shorter than ``values`` by w - 1."""
    if len(values) < w:
        return np.empty(0)
    return np.asarray(np.median(np.lib.stride_tricks.sliding_window_view(values, w), axis=-1))
