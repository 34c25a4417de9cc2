"""The two checks that the supervisor makes by itself: non-finite metrics, and a run that stopped making progress.

This module must import neither numpy nor the detectors: they would double the memory and the start time of every
supervisor. The detectors ``nan`` and ``dead_run`` use the functions here.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence

from paribus.health.finding import Finding, Remedy
from paribus.run_folder.folder import MetricLine
from paribus.run_folder.metrics import find_metric

DEAD_AFTER_S = 600.0
DEAD_AFTER_STEPS = 10.0
"""A run is dead after ten minutes without a metric line, or ten times its median step time if that is longer."""


def not_finite(line: MetricLine) -> str:
    """Return which canonical metrics of a line are not finite, as evidence; empty if all are.

    Other metrics may have any value.
    """
    bad = sorted(k for k, v in line.values.items() if not math.isfinite(v) and find_metric(k) is not None)
    return f"not finite at step {line.step}: {', '.join(bad)}" if bad else ""


def nan(lines: Iterable[MetricLine]) -> Finding:
    """Judge whether every canonical metric is finite."""
    seen = False
    for line in lines:
        seen = True
        if evidence := not_finite(line):
            return Finding(
                detector="nan",
                state="critical",
                step_onset=line.step,
                step_detected=line.step,
                evidence=evidence,
                remedies=_remedies("nan"),
            )
    return Finding(detector="nan", state="ok" if seen else "unknown")


def silence_limit(step_seconds: Sequence[float]) -> float:
    """Return the seconds after which a run without a new line is dead."""
    median = statistics.median(step_seconds) if step_seconds else 0.0
    return max(DEAD_AFTER_S, DEAD_AFTER_STEPS * median)


def dead_run(*, silent_s: float, step_seconds: Sequence[float]) -> Finding:
    """Judge whether a run still makes progress.

    Args:
        silent_s: seconds since its last metric line, or since its start.
        step_seconds: seconds between its lines so far.
    """
    limit = silence_limit(step_seconds)
    if silent_s <= limit:
        return Finding(detector="dead_run", state="ok")
    return Finding(
        detector="dead_run",
        state="critical",
        evidence=f"no metric line for {silent_s:.0f} s, the limit is {limit:.0f} s",
        remedies=_remedies("dead_run"),
    )


def _remedies(detector: str) -> tuple[Remedy, ...]:
    from paribus.health.remedies import catalogue  # reads YAML: only when there is a finding

    return catalogue()[detector]
