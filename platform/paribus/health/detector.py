"""What a detector is, and how its rule becomes a finding.

A rule judges each point from a window of points. A finding is raised if the rule holds in m of the last n points, with
the first of them as its onset, and cleared after n consecutive points in which the rule does not hold. The state of a
detector is folded over metric lines, so splitting the lines into chunks does not change the result
(``docs/decisions/0019-detectors.md``).
"""

from __future__ import annotations

import copy
import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal

from paribus.health.finding import Finding, Remedy
from paribus.health.profile import Profile
from paribus.health.remedies import fitted, remedies_of
from paribus.health.window import Window, add_point, change_point, window_size
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import MetricLine
from paribus.run_folder.metrics import find_metric

State = dict[str, Any]
"""What a detector remembers of a run: plain JSON, a few kilobytes."""

_EXPLAINED = 0.35
"""Share of the variance that a change must explain to count as one."""

_SUP_F = 12.35
"""What the F statistic of a change must exceed, too: by chance, the best place of a few points explains much.

Source: Andrews 1993, Table I (one parameter, 1%).
"""

_MANY_TIMES = 10.0

_NEAR_ONE = 0.99
"""Highest share whose odds count: from 0.06 to 0.12 is little on the way to 1."""

_BACK = 4.0
"""How far every detector looks back for the onset, in windows."""

_LEAST = 8
"""Points that are kept even if the windows are shorter: there are few evaluations."""

_RANK: Mapping[str, int] = {"unknown": 0, "ok": 0, "note": 1, "warn": 2, "critical": 3}


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """What a rule says about one point.

    Attributes:
        state: how bad it is.
        evidence: the numbers in one sentence.
        numbers: values and thresholds.
        onset: the step since which the rule holds, if it knows; ``None``: the step of the point, or where the metric
            changed if the rule judges medians.
        subject: the metric whose change counts for the onset; empty: the first that the detector needs.
        since: the step from which on the change is looked for; ``None``: in all points that are kept.
    """

    state: Literal["ok", "note", "warn", "critical"]
    evidence: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    onset: int | None = None
    subject: str = ""
    since: int | None = None


OK = RuleResult(state="ok")


def above(value: float, warn: float, critical: float, evidence: str, name: str = "share") -> RuleResult:
    """Return the result for a value that must not exceed two limits.

    Args:
        value: of the metric.
        warn: the lower limit.
        critical: the upper limit.
        evidence: the sentence, if the value exceeds a limit.
        name: name of the value in ``numbers``.
    """
    if value <= warn:
        return OK
    worse = value > critical
    numbers = {name: value, "limit": critical if worse else warn}
    return RuleResult(state="critical" if worse else "warn", evidence=evidence, numbers=numbers)


Rule = Callable[[Window], RuleResult | None]
"""Judges the newest point; ``None``: too little data to judge."""


def always(recipe: Recipe) -> str:
    """Apply to every recipe."""
    return ""


@dataclass(frozen=True, kw_only=True)
class Detector:
    """One thing that can go wrong, and how to see it.

    Attributes:
        name: the name in findings, profiles and ``stop_on``.
        looks_for: what goes wrong, in one line.
        rule: judges a point.
        needs: metrics that it requires; it judges the lines that have all of them.
        any_of: metrics of which it requires one.
        uses: metrics that it uses if they are there.
        why_not: returns why it does not apply to a recipe; empty if it does.
        keep: how far it looks back beyond the newest window, in windows of w points; for ``uses`` at most five.
        head: how much of the beginning it remembers, in windows of w points.
        confirm: m and n in windows of w points.
        points: m and n in points, instead of ``confirm``.
        window: points of its own window in place of w; 0: w.
        remedies: what to try; ``None``: what the catalogue lists for its name.
        version: what a detector of one's own was when it judged; empty for those of Paribus, whose profile says it.
        missing: why it cannot judge here; empty if it can.
    """

    name: str
    looks_for: str
    rule: Rule
    needs: tuple[str, ...] = ()
    any_of: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    why_not: Callable[[Recipe], str] = always
    keep: float = 0.0
    head: float = 1.0
    confirm: tuple[float, float] = (0.75, 1.0)
    points: tuple[int, int] | None = None
    window: int = 0
    remedies: tuple[Remedy, ...] | None = None
    version: str = ""
    missing: str = ""

    @property
    def metrics(self) -> tuple[str, ...]:
        """All metrics that it reads."""
        return (*self.needs, *self.any_of, *self.uses)

    def m_of_n(self, w: int) -> tuple[int, int]:
        """Return m and n: the rule must hold in m of n points."""
        m, n = self.confirm
        return self.points or (math.ceil(m * w), math.ceil(n * w))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a run is judged against.

    Attributes:
        profile: the thresholds.
        recipe: what is trained; ``None`` if unknown.
        planned: number of points that the run will have, which sets the size of the windows; ``None`` if unknown.
        own: detectors beside those of Paribus.
    """

    profile: Profile
    recipe: Recipe | None = None
    planned: int | None = None
    own: tuple[Detector, ...] = ()

    @property
    def w(self) -> int:
        """Points of a rolling median."""
        return window_size(self.planned)

    @cached_property
    def identity(self) -> str:
        """Name, version and hash of the thresholds, and the detectors of one's own with their versions."""
        return ", ".join([self.profile.identity, *(f"{d.name} ({d.version})" for d in self.own)])


def initial_state() -> State:
    """Return the state of a detector before the first line of a run."""
    return {"status": "unknown", "series": {}, "recent": [], "calm": 0, "seen": False, "memory": {}, "worst": None}


def update(
    detector: Detector, setting: Setting, state: State, lines: Iterable[MetricLine]
) -> tuple[State, list[Finding]]:
    """Judge more lines of a run, in the order of their steps.

    Returns:
        The new state, and a finding for each change of the status: raised, worse, or cleared (``ok``).
    """
    if detector.missing:
        return state, []
    if detector.version:
        return _update_own(detector, setting, state, lines)
    if why_not(detector, setting):
        return state, []
    state = copy.deepcopy(state)
    return state, [f for line in lines if (f := _advance(detector, setting, state, line)) is not None]


def _update_own(
    detector: Detector, setting: Setting, state: State, lines: Iterable[MetricLine]
) -> tuple[State, list[Finding]]:
    """Judge by a detector of one's own: where it fails, it judges no further, and the other detectors do."""
    state, at = copy.deepcopy(state), ""
    found: list[Finding] = []
    try:
        if state.get("failed") or why_not(detector, setting):
            return state, []
        for line in lines:
            at = f" at step {line.step}"
            if (change := _advance(detector, setting, state, line)) is not None:
                found.append(change)
    except Exception as error:  # a program of the user: its error is the user's to mend
        state = {**initial_state(), "failed": f"the detector failed{at}: {error!r}"}
    return state, found


def _advance(detector: Detector, setting: Setting, state: State, line: MetricLine) -> Finding | None:
    w = detector.window or setting.w
    for metric in detector.metrics:
        back = max(detector.keep, 0.0 if detector.points else _BACK)
        windows = min(detector.keep, 5.0) if metric in detector.uses else back
        keep, head = max(_LEAST, math.ceil((windows + 1) * w)), math.ceil(detector.head * w)
        add_point(state["series"].setdefault(metric, {}), line, metric, keep, head)
    if not _judges(detector, line):
        return None
    state["seen"] = True
    thresholds = setting.profile.of(detector.name)
    window = Window(line, state["series"], thresholds, setting.recipe, w, state["memory"], setting.planned)
    found = detector.rule(window)
    if found is None:
        return None
    m, n = detector.m_of_n(w)
    onset = line.step if found.onset is None else found.onset
    state["recent"] = [*state["recent"], [_RANK[found.state], onset]][-n:]
    state["calm"] = 0 if _RANK[found.state] else state["calm"] + 1
    if state["status"] == "unknown" and (not detector.version or len(state["recent"]) >= m):
        state["status"] = "ok"
    return _change(detector, setting, state, window, found)


def _onset(detector: Detector, window: Window, found: RuleResult, held: int) -> int:
    """Return the step at which the metric changed, at the latest the first at which the rule held.

    Where no change explains the values, the window in which the rule held first is half over, or begins the run.
    """
    subject = found.subject or next((m for m in (*detector.needs, *detector.any_of) if m in window.line.values), "")
    steps = window.steps(subject)
    if found.onset is not None or detector.points is not None or held not in steps:
        return held
    values = window.values(subject)
    if found.since is not None:
        begin = min(bisect_left(steps, found.since), steps.index(held))
        steps, values = steps[begin:], values[begin:]
    if 0 < _MANY_TIMES * min(values) < max(values):  # what grows by a factor grows early, a share as far as its odds do
        metric = find_metric(subject)
        share = metric is not None and metric.unit == "fraction"
        values = [math.log(x / (1 - min(x, _NEAR_ONE)) if share else x) for x in values]
    place, explained = change_point(values)
    if explained >= max(_EXPLAINED, _SUP_F / (_SUP_F + len(values) - 2)):
        return min(held, steps[place])
    at = steps.index(held)
    begins = window.count(subject) == len(steps) and at < window.w
    return steps[0] if begins else steps[max(0, at - window.w // 2)]


def _judges(detector: Detector, line: MetricLine) -> bool:
    if detector.any_of and not any(m in line.values for m in detector.any_of):
        return False
    return all(m in line.values for m in detector.needs)


def _change(detector: Detector, setting: Setting, state: State, window: Window, found: RuleResult) -> Finding | None:
    """Raise or clear the status in place; return the finding if the status changed."""
    if not _RANK[found.state] and not _RANK[state["status"]]:
        return None
    line = window.line
    m, n = detector.m_of_n(window.w)
    for status in ("critical", "warn", "note"):
        rank = _RANK[status]
        held = [onset for level, onset in state["recent"] if level >= rank]
        if _RANK[state["status"]] < rank <= _RANK[found.state] and len(held) >= m:
            raised: dict[str, Any] = {
                "state": status,
                "step_onset": _onset(detector, window, found, min(held)),
                "step_detected": line.step,
                "step_cleared": None,
                "evidence": found.evidence,
                "numbers": dict(found.numbers),
            }
            state["status"] = status
            if state["worst"] is None or rank > _RANK[state["worst"]["state"]]:
                earlier = state["worst"]
                before = earlier is not None and earlier["step_onset"] < raised["step_onset"]
                if before and earlier["state"] == "warn" and earlier["step_cleared"] is None:
                    raised["evidence"] += f"; a warning since step {earlier['step_onset']}"
                state["worst"] = raised
            return _raised(detector, setting, raised)
    if _RANK[state["status"]] and state["calm"] >= n:
        state["status"] = "ok"
        if state["worst"]["step_cleared"] is None:
            state["worst"]["step_cleared"] = line.step
        return Finding(detector=detector.name, state="ok", step_detected=line.step, profile=setting.identity)
    return None


def finding_of(detector: Detector, setting: Setting, state: State) -> Finding:
    """Return the finding on the run so far: the worst that was raised, even if it was cleared since."""
    quiet = partial(Finding, detector=detector.name, profile=setting.identity)
    if detector.missing:
        return quiet(state="unknown", evidence=detector.missing)
    if state.get("failed"):
        return quiet(state="unknown", evidence=state["failed"])
    if reason := why_not(detector, setting):
        return quiet(state="not_applicable", evidence=reason)
    if state["worst"] is not None:
        return _raised(detector, setting, state["worst"])
    if state["status"] == "unknown":
        missing = [m for m in (*detector.needs, *detector.any_of) if not state["series"].get(m)]
        if not state["seen"]:
            absent = ", ".join(m for m in missing if m in detector.needs) or f"one of {', '.join(detector.any_of)}"
            return quiet(state="unknown", evidence=f"not recorded: {absent}")
        lacking = f" without {', '.join(missing)}" if missing else ""
        return quiet(state="unknown", evidence=f"too few points to judge{lacking}")
    return quiet(state="ok")


def why_not(detector: Detector, setting: Setting) -> str:
    """Return why a detector does not apply; empty if it does, or if the recipe is unknown."""
    return "" if setting.recipe is None else detector.why_not(setting.recipe)


def _raised(detector: Detector, setting: Setting, raised: Mapping[str, Any]) -> Finding:
    return Finding(
        detector=detector.name,
        **raised,
        remedies=_remedies(detector, setting.recipe),
        experimental=setting.profile.experimental(detector.name, raised["numbers"].get("limit")),
        profile=setting.identity,
    )


def _remedies(detector: Detector, recipe: Recipe | None) -> tuple[Remedy, ...]:
    return remedies_of(detector.name, recipe) if detector.remedies is None else fitted(detector.remedies, recipe)
