"""Detectors of one's own: made of rule files, or brought by installed packages.

A rule compares the mean of a window with a number, or with the mean of an earlier window. Its finding needs more than
the limit: noise alone passes it in at most ``chance`` of the runs, shared among the looks at a run of this length, with
the autocorrelation of the metric (``docs/decisions/0062-rules-of-ones-own.md``).
"""

from __future__ import annotations

import copy
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from typing import get_args, get_type_hints

import numpy as np

from paribus.contract.rule import Above, Below, HealthRule, OwnRule, Rules
from paribus.errors import ParibusError
from paribus.health.detector import OK, Detector, Rule, RuleResult
from paribus.health.evaluations import quantile
from paribus.health.finding import Remedy
from paribus.health.profile import Profile, load_profile
from paribus.health.window import Window, standard_error
from paribus.recipe.recipe import fingerprint_of
from paribus.study.rules import find_installed

_UPWARDS = ("above", "grows", "rises")

_NOISE_POINTS = 100
"""Points at least, if there are as many, that the noise around a window is taken from."""


def setting_of(profile: str, rules: Rules) -> tuple[Profile, tuple[Detector, ...]]:
    """Return what runs of a study are judged by: the thresholds, and the detectors of its rules.

    A detector that is not installed here any more, or cannot be loaded, says so as a finding that is ``unknown``.
    So does one named ``profile`` if the thresholds cannot be read here, as those of a profile that this version lacks;
    then the default ones count.

    Args:
        profile: name of a profile.
        rules: the study's own.
    """
    own = own_detectors(rules)
    try:
        return load_profile(profile), own
    except ParibusError as error:
        reason = f"the profile cannot be used, so the default thresholds count: {' '.join(str(error).split())}"
        return load_profile("default"), (*own, _missing("profile", reason))


def own_detectors(rules: Rules) -> tuple[Detector, ...]:
    """Return the detectors of rules, and those that are named; one that is missing says so, with ``unknown``."""
    found = []
    for rule in rules:
        try:
            found.append(load_detector(rule))
        except ParibusError as error:
            found.append(_missing(rule if isinstance(rule, str) else rule.name, str(error)))
    return tuple(found)


def load_detector(rule: OwnRule) -> Detector:
    """Return the detector of a rule, or one that is named and installed.

    Raises:
        ParibusError: the detector is not installed here, or its package does not bring a `Detector`.
    """
    return _loaded(find_installed(rule)) if isinstance(rule, str) else detector_of(rule)


def _missing(name: str, reason: str) -> Detector:
    return Detector(name=name, looks_for="nothing: missing", rule=lambda _: None, version="missing", missing=reason)


_STATES: tuple[str, ...] = get_args(get_type_hints(RuleResult)["state"])


def _guarded(rule: Rule) -> Rule:
    """Return the rule with results that can be shown and kept; another result is an error."""

    def judge(run: Window) -> RuleResult | None:
        found = rule(run)
        copy.deepcopy(run.memory)  # it is copied before the next lines, where no step could be named
        if found is None:
            return None
        if not isinstance(found, RuleResult):
            raise TypeError(f"the rule returns {found!r:.80}, not a RuleResult or None")
        if found.state not in _STATES:
            raise ValueError(f"`state` is {found.state!r:.80}, not one of {', '.join(_STATES)}")
        if not (isinstance(found.evidence, str) and isinstance(found.subject, str)):
            raise TypeError("`evidence` and `subject` must be texts")
        numbers = {str(name): float(value) for name, value in found.numbers.items()}
        if not all(map(math.isfinite, numbers.values())):
            raise ValueError(f"`numbers` must be finite: {numbers!r:.80}")
        return replace(found, numbers=numbers, onset=None if found.onset is None else operator.index(found.onset))

    return judge


def detector_of(rule: HealthRule) -> Detector:
    """Return the detector that a rule states."""
    remedies: tuple[Remedy, ...] = ()
    if rule.remedy is not None:
        remedies = (Remedy(text=rule.remedy.text, evidence="C", source="your rule", patch=rule.remedy.patch),)
    over = getattr(rule.test, "over", None) or 0
    return Detector(
        name=rule.name,
        looks_for=rule.looks_for or f"`{rule.metric}` {rule.test.kind}, by a rule of yours",
        needs=(rule.metric,),
        rule=_guarded(_judge(rule)),
        window=rule.window,
        confirm=(1.25, 1.5),  # an outlier is in the means of one window of points: it alone raises nothing
        keep=(over + max(_NOISE_POINTS, 5 * rule.window)) / rule.window,
        remedies=remedies,
        version=fingerprint_of(rule.model_dump(mode="json", exclude={"remedy", "looks_for"}))[:8],
    )


# ---- rule files ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Mean:
    """The mean of a window.

    Attributes:
        value: the mean.
        count: points of the window.
        around: the points that give its noise.
    """

    value: float
    count: int
    around: Sequence[float]

    @classmethod
    def of(cls, values: Sequence[float], around: Sequence[float]) -> _Mean | None:
        """Return the mean of values; ``None`` if their sum overflows."""
        try:
            return cls(math.fsum(values) / len(values), len(values), around)
        except OverflowError:
            return None

    def noise(self) -> tuple[float, float]:
        """Return the standard error, and its degrees of freedom.

        Differences of neighbours share points, so that they count half, and autocorrelated
        ones less, by the ratio of the error to what it would be for independent noise.
        """
        error = standard_error(self.around, self.count)
        with np.errstate(over="ignore", invalid="ignore"):
            steps = np.diff(np.asarray(self.around, dtype=float))
            alone = math.sqrt(float(steps @ steps) / max(len(steps), 1) / 2 / self.count)
        known = min(1.0, alone / error) if 0 < error < math.inf and alone > 0 else 1.0
        return error, max(2.0, len(self.around) / 2 * known)


@dataclass(frozen=True)
class _Limit:
    """What the newest mean is compared with, in words, and what gives its standard error and degrees of freedom."""

    value: float
    text: str
    noise: Callable[[], tuple[float, float]]


def _around(run: Window) -> int:
    return max(_NOISE_POINTS, run.W)


def _judge(rule: HealthRule) -> Rule:
    sign = 1.0 if rule.test.kind in _UPWARDS else -1.0
    limit_of = _limit(rule)

    def judge(run: Window) -> RuleResult | None:
        values = run.last(rule.metric, run.w)
        limit = None if values is None else limit_of(run)
        if values is None or limit is None:
            return None
        now = _Mean.of(values, run.values(rule.metric)[-_around(run) :])
        if now is None:
            return None
        beyond = sign * (now.value - limit.value)
        if not beyond > 0:
            return OK
        (error, free), (other, others_free) = now.noise(), limit.noise()
        by_chance = quantile(rule.chance / run.looks, min(free, others_free)) * math.hypot(error, other)
        if not beyond > by_chance:
            return OK
        evidence = f"{rule.metric} is {now.value:.3g} (mean of {run.w} points), {limit.text}; noise explains up to "
        numbers = {"value": now.value, "limit": limit.value, "noise": by_chance}
        return RuleResult(state=rule.level, evidence=f"{evidence}{by_chance:.2g} beyond it", numbers=numbers)

    return judge


def _limit(rule: HealthRule) -> Callable[[Window], _Limit | None]:
    test = rule.test
    if isinstance(test, Above | Below):
        fixed = _Limit(test.limit, f"the limit is {test.limit:g}", lambda: (0.0, math.inf))
        return lambda run: fixed
    factor = test.factor if test.kind in ("grows", "shrinks") else 1.0
    by = {"rises": 1.0, "falls": -1.0}.get(test.kind, 0.0) * getattr(test, "by", 0.0)

    def limit(run: Window) -> _Limit | None:
        found = _first(run, rule.metric) if test.over is None else _earlier(run, rule.metric, test.over)
        if found is None:
            return None
        then, where = found
        if factor != 1.0 and then.value < 0:
            return None  # a multiple of a negative number is no growth
        value = factor * then.value + by

        def noise() -> tuple[float, float]:
            error, free = then.noise()
            return factor * error, free

        return _Limit(value, f"{then.value:.3g} {where}; the limit is {value:.3g}", noise)

    return limit


def _first(run: Window, metric: str) -> tuple[_Mean, str] | None:
    """Return the mean of the first window, once the newest one shares no point with it."""
    begins = run.first(metric)
    if begins is None or run.count(metric) < 2 * run.w:
        return None
    count = run.count(metric)
    if "around" not in run.memory or count <= _around(run):
        run.memory["around"] = run.values(metric)[: _around(run)]
    mean = _Mean.of(begins, run.memory["around"])
    return None if mean is None else (mean, f"in the first {run.w}, from step {run.first_step(metric)} on")


def _earlier(run: Window, metric: str, over: int) -> tuple[_Mean, str] | None:
    """Return the mean of the window that ended so many steps before the newest point, if they share no point."""
    steps, values = run.steps(metric), run.values(metric)
    end = sum(step <= run.line.step - over for step in steps)
    if not run.w <= end <= len(values) - run.w:
        return None
    mean = _Mean.of(values[end - run.w : end], values[max(0, end - _around(run)) : end])
    return None if mean is None else (mean, f"up to step {steps[end - 1]}")


# ---- installed detectors -------------------------------------------------------------------------


def _loaded(entry: EntryPoint) -> Detector:
    """Return the detector of a package."""
    try:
        detector = entry.load()
    except Exception as error:  # whatever the package does when it is imported
        raise ParibusError(f"the detector `{entry.name}` ({entry.value}) cannot be loaded: {error!r}") from error
    if not isinstance(detector, Detector) or detector.name != entry.name:
        wanted = "a `paribus.health.detector.Detector`, and its name that of the entry point"
        raise ParibusError(f"the detector `{entry.name}` ({entry.value}) must be {wanted}")
    version = entry.dist.version if entry.dist is not None else "1"
    return replace(detector, rule=_guarded(detector.rule), remedies=detector.remedies or (), version=version)
