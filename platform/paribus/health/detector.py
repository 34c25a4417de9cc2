"""A detector as a fold over metric lines: what it needs, its rule, and when the rule raises and clears its lamp.

A rule judges each point from a window of points. A lamp is raised when the rule holds in m of the last n points, since
the first of them, and cleared after n points in a row in which it does not: a rule that holds now and then neither
raises nor clears it. The batch form is the fold over all lines at once, so chunks cannot change a verdict
(``docs/decisions/0019-detectors.md``).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from paribus.health.finding import Finding, Lamp
from paribus.health.profile import Profile
from paribus.health.remedies import remedies_of
from paribus.health.view import View, take, window
from paribus.recipe.recipe import Recipe
from paribus.track.folder import MetricLine

State = dict[str, Any]
"""What a detector remembers of a run: plain JSON, some kilobytes."""

_LEAST = 8
"""Points that are kept however short the windows: evaluations are few."""

_RANK: Mapping[str, int] = {"ok": 0, "warn": 1, "critical": 2}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a rule says of one point.

    Attributes:
        state: how bad it is.
        says: the evidence, in one sentence.
        numbers: values and thresholds.
        onset: the step since which it holds, where the rule looks back; absent: that of the point.
    """

    state: Literal["ok", "warn", "critical"]
    says: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    onset: int | None = None


FINE = Verdict(state="ok")


def above(value: float, warn: float, critical: float, says: str, name: str = "share") -> Verdict:
    """Return the verdict on a value that must not exceed two limits.

    Args:
        value: of the metric.
        warn: the lower limit.
        critical: the upper limit.
        says: the evidence, if it exceeds one.
        name: what the value is called in the numbers.
    """
    if value <= warn:
        return FINE
    worse = value > critical
    numbers = {name: value, "limit": critical if worse else warn}
    return Verdict(state="critical" if worse else "warn", says=says, numbers=numbers)


Rule = Callable[[View], Verdict | None]
"""``None``: too little is known to judge."""


def always(recipe: Recipe) -> str:
    """Apply to every recipe."""
    return ""


@dataclass(frozen=True, kw_only=True)
class Detector:
    """One thing that can go wrong, and how it is seen.

    Attributes:
        name: as findings, profiles and ``stop_on`` name it.
        looks_for: what goes wrong, in one line.
        rule: what judges a point.
        needs: metrics that it cannot do without; it judges when a line has all of them.
        any_of: metrics of which one is enough.
        uses: metrics that it looks at if they are there.
        why_not: why it does not apply to a recipe; empty if it does.
        keep: windows of w points that it looks back beyond the newest; for ``uses`` at most five.
        head: windows of w points of the beginning that it remembers.
        confirm: m and n in windows of w points.
        points: m and n in points, in place of ``confirm``.
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

    @property
    def metrics(self) -> tuple[str, ...]:
        """All metrics that it looks at."""
        return (*self.needs, *self.any_of, *self.uses)

    def m_of_n(self, w: int) -> tuple[int, int]:
        """Return in how many of how many points the rule must hold."""
        m, n = self.confirm
        return self.points or (math.ceil(m * w), math.ceil(n * w))


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a run is judged against.

    Attributes:
        profile: the thresholds.
        recipe: what is trained, if it is known.
        planned: points that the run will have, if it is known; sets the length of the windows.
    """

    profile: Profile
    recipe: Recipe | None = None
    planned: int | None = None

    @property
    def w(self) -> int:
        """Points of a rolling median."""
        return window(self.planned)


def begin() -> State:
    """Return what a detector knows of a run before its first line."""
    return {"lamp": "unknown", "series": {}, "recent": [], "calm": 0, "seen": False, "memory": {}, "worst": None}


def update(
    detector: Detector, setting: Setting, state: State, lines: Iterable[MetricLine]
) -> tuple[State, list[Finding]]:
    """Take in more lines of a run, in the order of their steps.

    Returns:
        The new state, and a finding for each change of the lamp: raised, worse, or cleared (``ok``).
    """
    if why_not(detector, setting):
        return state, []
    state = copy.deepcopy(state)
    return state, [f for line in lines if (f := _advance(detector, setting, state, line)) is not None]


def _advance(detector: Detector, setting: Setting, state: State, line: MetricLine) -> Finding | None:
    w = setting.w
    for metric in detector.metrics:
        windows = min(detector.keep, 5.0) if metric in detector.uses else detector.keep
        keep, head = max(_LEAST, math.ceil((windows + 1) * w)), math.ceil(detector.head * w)
        take(state["series"].setdefault(metric, {}), line, metric, keep, head)
    if not _judges(detector, line):
        return None
    state["seen"] = True
    thresholds = setting.profile.of(detector.name)
    found = detector.rule(View(line, state["series"], thresholds, setting.recipe, w, state["memory"]))
    if found is None:
        return None
    if state["lamp"] == "unknown":
        state["lamp"] = "ok"
    m, n = detector.m_of_n(w)
    onset = line.step if found.onset is None else found.onset
    state["recent"] = [*state["recent"], [_RANK[found.state], onset]][-n:]
    state["calm"] = 0 if _RANK[found.state] else state["calm"] + 1
    return _change(detector, setting, state, line, found, m, n)


def _judges(detector: Detector, line: MetricLine) -> bool:
    if detector.any_of and not any(m in line.values for m in detector.any_of):
        return False
    return all(m in line.values for m in detector.needs)


def _change(
    detector: Detector, setting: Setting, state: State, line: MetricLine, found: Verdict, m: int, n: int
) -> Finding | None:
    """Raise or clear the lamp; return the finding if it changed."""
    for lamp in ("critical", "warn"):
        rank = _RANK[lamp]
        held = [onset for level, onset in state["recent"] if level >= rank]
        if _RANK[state["lamp"]] < rank <= _RANK[found.state] and len(held) >= m:
            raised = {
                "state": lamp,
                "step_onset": min(held),
                "step_detected": line.step,
                "step_cleared": None,
                "evidence": found.says,
                "numbers": dict(found.numbers),
            }
            state["lamp"] = lamp
            if state["worst"] is None or rank > _RANK[state["worst"]["state"]]:
                earlier = state["worst"]
                if earlier is not None and earlier["step_cleared"] is None:
                    raised["evidence"] += f"; a warning since step {earlier['step_onset']}"
                state["worst"] = raised
            return _finding(detector, setting, raised)
    if _RANK[state["lamp"]] and state["calm"] >= n:
        state["lamp"] = "ok"
        if state["worst"]["step_cleared"] is None:
            state["worst"]["step_cleared"] = line.step
        return Finding(detector=detector.name, state="ok", step_detected=line.step, profile=setting.profile.identity)
    return None


def lamp(detector: Detector, setting: Setting, state: State) -> Lamp:
    """Return the lamp now."""
    if why_not(detector, setting):
        return "not_applicable"
    shown: Lamp = state["lamp"]
    return shown


def verdict(detector: Detector, setting: Setting, state: State) -> Finding:
    """Return the finding on the run so far: the worst that was raised, also if it was cleared since."""
    quiet = partial(Finding, detector=detector.name, profile=setting.profile.identity)
    if reason := why_not(detector, setting):
        return quiet(state="not_applicable", evidence=reason)
    if state["worst"] is not None:
        return _finding(detector, setting, state["worst"])
    if state["lamp"] == "unknown":
        missing = [m for m in detector.needs if not state["series"].get(m)]
        if not state["seen"]:
            absent = ", ".join(missing) or f"one of {', '.join(detector.any_of)}"
            return quiet(state="unknown", evidence=f"not recorded: {absent}")
        return quiet(state="unknown", evidence="too little is recorded to judge")
    return quiet(state="ok")


def why_not(detector: Detector, setting: Setting) -> str:
    """Return why a detector does not apply; empty if it does, or if the recipe is unknown."""
    return "" if setting.recipe is None else detector.why_not(setting.recipe)


def _finding(detector: Detector, setting: Setting, raised: Mapping[str, Any]) -> Finding:
    return Finding(
        detector=detector.name,
        **raised,
        remedies=remedies_of(detector.name, setting.recipe),
        experimental=setting.profile.experimental(detector.name, raised["numbers"].get("limit")),
        profile=setting.profile.identity,
    )
