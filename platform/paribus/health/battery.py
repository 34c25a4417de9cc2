"""All detectors, and what they say of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paribus.health import (
    clipping,
    drift,
    entropy,
    evaluation,
    gradient,
    grouping,
    groups,
    integrity,
    length,
    reward,
    text,
)
from paribus.health.detector import Detector, Setting, State, begin, update, verdict
from paribus.health.finding import Finding
from paribus.track.folder import MetricLine

BATTERY: tuple[Detector, ...] = (
    *integrity.DETECTORS,
    *grouping.DETECTORS,
    *drift.DETECTORS,
    *gradient.DETECTORS,
    *groups.DETECTORS,
    *clipping.DETECTORS,
    *entropy.DETECTORS,
    *length.DETECTORS,
    *text.DETECTORS,
    *reward.DETECTORS,
    *evaluation.DETECTORS,
)
"""Causes before effects: where two begin at the same step, the first is taken for the cause."""

States = Mapping[str, State]
"""Detector to what it remembers of a run; plain JSON."""


def start() -> States:
    """Return what is known of a run before its first line."""
    return {d.name: begin() for d in BATTERY}


def advance(setting: Setting, states: States, lines: Iterable[MetricLine]) -> tuple[States, list[Finding]]:
    """Take in more lines of a run; return the new states, and a finding for each lamp that changed."""
    known = tuple(lines)
    told: list[Finding] = []
    after: dict[str, State] = {}
    for detector in BATTERY:
        after[detector.name], found = update(detector, setting, states[detector.name], known)
        told += found
    return after, told


def findings(setting: Setting, states: States) -> tuple[Finding, ...]:
    """Return the finding of each detector on the run so far."""
    return tuple(verdict(d, setting, states[d.name]) for d in BATTERY)


def judge(setting: Setting, lines: Iterable[MetricLine]) -> tuple[Finding, ...]:
    """Return the finding of each detector on a whole run; the lines with their signals, by step."""
    return findings(setting, advance(setting, start(), lines)[0])
