"""All detectors, and what they find in a run together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paribus.health.detector import Detector, Setting, State, finding_of, initial_state, update
from paribus.health.detectors import (
    clipping,
    drift,
    entropy,
    evaluation,
    gradient,
    group_sampling,
    group_signal,
    integrity,
    responses,
    reward,
)
from paribus.health.finding import Finding
from paribus.run_folder.folder import MetricLine

DETECTORS: tuple[Detector, ...] = (
    *integrity.DETECTORS,
    *group_sampling.DETECTORS,
    *drift.DETECTORS,
    *gradient.DETECTORS,
    *group_signal.DETECTORS,
    *clipping.DETECTORS,
    *entropy.DETECTORS,
    *responses.DETECTORS,
    *reward.DETECTORS,
    *evaluation.DETECTORS,
)
"""All detectors, causes before effects: of two findings with the same onset, the first is the suspected cause."""

States = Mapping[str, State]
"""Detector to its state; plain JSON."""


def initial_states() -> States:
    """Return the states before the first line of a run."""
    return {d.name: initial_state() for d in DETECTORS}


def advance(setting: Setting, states: States, lines: Iterable[MetricLine]) -> tuple[States, list[Finding]]:
    """Judge more lines of a run; return the new states, and a finding for each status that changed."""
    known = tuple(lines)
    changes: list[Finding] = []
    after: dict[str, State] = {}
    for detector in DETECTORS:
        after[detector.name], found = update(detector, setting, states[detector.name], known)
        changes += found
    return after, changes


def findings(setting: Setting, states: States) -> tuple[Finding, ...]:
    """Return the finding of each detector on the run so far."""
    return tuple(finding_of(d, setting, states[d.name]) for d in DETECTORS)


def judge_lines(setting: Setting, lines: Iterable[MetricLine]) -> tuple[Finding, ...]:
    """Return the finding of each detector on a whole run; the lines must be ordered by step and have their signals."""
    return findings(setting, advance(setting, initial_states(), lines)[0])
