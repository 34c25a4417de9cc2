"""The panels of the health page: their metrics, limits, onsets and curves. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from paribus.health.detectors.exploration import CAPPED, DUAL, ENTROPY, HIGH, LOW, SEQUENCE
from paribus.health.detectors.group_signal import RIGHT, WRONG, ZERO
from paribus.health.detectors.responses import LENGTH, TRUNCATED
from paribus.health.detectors.updates import KL, LOGP, NORM, STALE, configured_staleness
from paribus.health.finding import RAISED, Diagnosis, Status
from paribus.health.profile import Profile
from paribus.recipe.analysis.facts import fresh
from paribus.recipe.recipe import Recipe
from paribus.run_folder.series import Floats, Recorded, Series, points, width_for
from paribus_dashboards.smoothing import running_median

LEAST = 300
"""Fewest buckets of a curve that has more points."""

SCORE = "score"
"""Key of the panel of the score, whose metric the study names."""

Draw = Literal["line", "area"]

_ONE_OF_SEVERAL: Mapping[tuple[str, str], str] = {
    ("length_collapse", "tokens"): "length",
    ("dead_update", "norm"): "gradient norm",
}
"""Detector and threshold to the number of its finding. The detectors have several conditions, so that the threshold of
one of them is no limit of a healthy run, nor of one in which another condition holds."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One curve of a panel.

    Attributes:
        name: canonical metric; empty for the study's primary metric.
        label: its label in the panel.
        draw: as a line, or as an area stacked on the areas before it.
    """

    name: str
    label: str
    draw: Draw = "line"


@dataclass(frozen=True, kw_only=True)
class PanelKind:
    """What a panel shows.

    Attributes:
        key: stable name, part of the address of its data.
        title: title.
        unit: label of the y axis.
        metrics: curves; metrics that were not recorded are left out.
        detectors: detectors whose onsets are marked.
        limits: detector, name of a threshold, and the status beyond it.
        numbers: detector, name of a number of its finding, and the label of its line.
        log: whether the y axis is logarithmic.
        smooth: whether to draw the running median.
    """

    key: str
    title: str
    unit: str
    metrics: tuple[Metric, ...]
    detectors: tuple[str, ...]
    limits: tuple[tuple[str, str, Status], ...] = ()
    numbers: tuple[tuple[str, str, str], ...] = ()
    log: bool = False
    smooth: bool = True


def _both(detector: str, warn: str = "warn", critical: str = "critical") -> tuple[tuple[str, str, Status], ...]:
    return ((detector, warn, "warn"), (detector, critical, "critical"))


KINDS = (
    PanelKind(
        key=SCORE,
        title="held-out score",
        unit="score",
        metrics=(Metric(name="", label="score"),),
        detectors=("reward_hacking", "eval_regression"),
        numbers=(("eval_regression", "before", "before training"),),
        smooth=False,
    ),
    PanelKind(
        key="reward",
        title="reward",
        unit="reward",
        metrics=(Metric(name="reward/mean", label="reward"), Metric(name="reward/correct_frac", label="share correct")),
        detectors=("reward_crash", "reward_noise", "reward_stall", "format_hacking", "reward_hacking"),
    ),
    PanelKind(
        key="length",
        title="length of responses",
        unit="tokens",
        metrics=(
            Metric(name=LENGTH, label="all"),
            Metric(name="response/length_mean_correct", label="correct"),
            Metric(name="response/length_mean_incorrect", label="incorrect"),
        ),
        detectors=("length_balloon", "length_collapse", "length_reward"),
        limits=(("length_collapse", "tokens", "critical"),),
    ),
    PanelKind(
        key="entropy",
        title="entropy",
        unit="nats/token",
        metrics=(Metric(name=ENTROPY, label="entropy"),),
        detectors=("entropy_collapse", "entropy_explosion"),
        limits=(*_both("entropy_collapse"), ("entropy_explosion", "level", "warn")),
    ),
    PanelKind(
        key="truncation",
        title="truncated responses",
        unit="share",
        metrics=(Metric(name=TRUNCATED, label="truncated"),),
        detectors=("truncation",),
        limits=_both("truncation"),
    ),
    PanelKind(
        key="clip",
        title="clipped tokens",
        unit="share",
        metrics=(
            Metric(name=HIGH, label="above"),
            Metric(name=LOW, label="below"),
            Metric(name=DUAL, label="dual clip"),
            Metric(name=CAPPED, label="weight capped"),
            Metric(name="clip/chosen_frac", label="by covariance"),
            Metric(name="correction/off_policy_frac", label="off-policy"),
        ),
        detectors=("clip_saturation_high", "clip_saturation_low", "clip_zero"),
        limits=_both("clip_saturation_high"),
    ),
    PanelKind(
        key="groups",
        title="groups without spread",
        unit="share",
        metrics=(
            Metric(name=RIGHT, label="all correct (f+)", draw="area"),
            Metric(name=WRONG, label="all incorrect (f−)", draw="area"),
            Metric(name=ZERO, label="all without spread"),
        ),
        detectors=("zero_variance", "effective_batch"),
        limits=_both("zero_variance"),
    ),
    PanelKind(
        key="mismatch",
        title="mismatch of sampler and learner",
        unit="|Δ log p|, nats",
        metrics=(Metric(name=LOGP, label="mean"),),
        detectors=("mismatch",),
        limits=_both("mismatch", "logp_warn", "logp_critical"),
    ),
    PanelKind(
        key="gradient",
        title="gradient norm",
        unit="L2, logarithmic",
        metrics=(Metric(name=NORM, label="norm"),),
        detectors=("grad_spike", "huge_update", "dead_update"),
        limits=(("dead_update", "norm", "critical"),),
        numbers=(("grad_spike", "limit", "limit of a spike"),),
        log=True,
    ),
    PanelKind(
        key="kl",
        title="KL divergence",
        unit="nats/token",
        metrics=(Metric(name=KL, label="to the reference"), Metric(name="kl/old_k3", label="to the sampler's policy")),
        detectors=("kl_blowup",),
        limits=(("kl_blowup", "least", "warn"),),
        numbers=(("kl_blowup", "limit", "limit"),),
    ),
    PanelKind(
        key="throughput",
        title="sampling speed",
        unit="tokens/s",
        metrics=(Metric(name="perf/gen_tokens_per_s", label="tokens/s"),),
        detectors=("dead_run",),
    ),
    PanelKind(
        key="staleness",
        title="staleness",
        unit="updates",
        metrics=(Metric(name=STALE, label="mean"),),
        detectors=("staleness",),
        limits=(("staleness", "updates", "warn"),),
    ),
)
"""The panels, in the order in which one looks at a run."""

BY_KEY: Mapping[str, PanelKind] = {k.key: k for k in KINDS}


@dataclass(frozen=True, kw_only=True, eq=False)
class Curve:
    """One metric of one run.

    Attributes:
        label: label of the metric, or of the run.
        draw: as a line or as an area.
        raw: recorded values, drawn faint; buckets of several steps as the range of their values. ``None``: not drawn.
        bold: the running median, or the recorded values without smoothing, in the same buckets.
        error: standard error of each value of ``bold``; empty if unknown.
    """

    label: str
    draw: Draw
    raw: Series | None
    bold: Series
    error: Floats


@dataclass(frozen=True)
class Limit:
    """A horizontal line: a detector's threshold, or a number of its finding.

    The status is that of values beyond the line; ``unknown`` if the line is not a threshold.
    """

    value: float
    status: Status
    detector: str
    label: str


@dataclass(frozen=True)
class Onset:
    """The onset of a finding, the step at which it cleared, and whether another panel shows its detector."""

    step: int
    status: Status
    detector: str
    cleared: int | None = None
    elsewhere: bool = False


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A panel of one run or one arm.

    Attributes:
        kind: what it shows.
        curves: the curves of one run, or one curve per seed.
        limits: horizontal lines.
        onsets: vertical lines.
        last: newest step of any run, where the x axes of all panels end unless zoomed.
    """

    kind: PanelKind
    curves: tuple[Curve, ...]
    limits: tuple[Limit, ...]
    onsets: tuple[Onset, ...]
    last: int


def metrics_of(kind: PanelKind, names: Iterable[str], primary: str) -> tuple[Metric, ...]:
    """Return the recorded metrics of a panel, with their canonical names."""
    known = frozenset(names)
    named = (Metric(name=m.name or primary, label=m.label, draw=m.draw) for m in kind.metrics)
    return tuple(m for m in named if m.name in known)


def limits_of(kind: PanelKind, diagnosis: Diagnosis, profile: Profile, recipe: Recipe | None) -> tuple[Limit, ...]:
    """Return the thresholds of the applicable detectors, and numbers of their findings."""
    states = {f.detector: f.state for f in diagnosis.findings}
    whole = recipe is not None and recipe.ratio.kind in SEQUENCE
    found = []
    for detector, name, status in kind.limits:
        if states.get(detector, "not_applicable") == "not_applicable":
            continue
        if (detector, name) in _ONE_OF_SEVERAL and not _beyond(diagnosis, detector, name, profile):
            continue
        if detector == "mismatch" and recipe is not None and not fresh(recipe):
            continue  # the difference includes policy updates, so the detector does not use it
        if detector == "clip_saturation_high" and whole:
            if name != "warn":
                continue
            name = "sequence_warn"
        value = profile.of(detector)[name]
        if detector == "staleness" and recipe is not None:
            value = float(configured_staleness(recipe))
        found.append(Limit(value, status, detector, status))
    known = {(f.detector, name): n for f in diagnosis.raised for name, n in f.numbers.items()}
    lines = [Limit(known[d, n], "unknown", d, label) for d, n, label in kind.numbers if (d, n) in known]
    return (*found, *lines)


def _beyond(diagnosis: Diagnosis, detector: str, name: str, profile: Profile) -> bool:
    """Return whether a finding was raised because its number is below this threshold."""
    found = next((f for f in diagnosis.raised if f.detector == detector), None)
    number = None if found is None else found.numbers.get(_ONE_OF_SEVERAL[detector, name])
    return number is not None and number < profile.of(detector)[name]


def onsets_of(kind: PanelKind, diagnosis: Diagnosis) -> tuple[Onset, ...]:
    """Return the onsets of the panel's findings, and of the first finding if another panel shows it."""
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
        recorded: the run's series.
        metric: the metric.
        w: points of the running median, which looks back as the detectors do; 0: no median.
        first: first step; ``None``: the run's first.
        last: last step; ``None``: the run's last.
        errors: step to the standard error of its value.
        least: fewest buckets if there are more points.
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
