"""Detectors: verdicts on one run, as pure functions of its metric lines and times."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from paribus.track.folder import MetricLine
from paribus.track.metrics import find_metric

Lamp = Literal["ok", "warn", "critical", "unknown", "not_applicable"]

DEAD_AFTER_S = 600.0
DEAD_AFTER_STEPS = 10.0
"""A run is dead after ten minutes without a line, or ten times its median step if that is longer."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A detector's verdict.

    Attributes:
        detector: its name, as ``health.stop_on`` of a study lists it.
        state: the lamp.
        step_onset: first step at which it holds; ``None`` if it does not, or has no step.
        evidence: the numbers, in one sentence.
        remedy: what to try.
    """

    detector: str
    state: Lamp
    step_onset: int | None = None
    evidence: str = ""
    remedy: str = ""


def nan(lines: Iterable[MetricLine]) -> Finding:
    """Judge whether every canonical metric is finite."""
    seen = False
    for line in lines:
        seen = True
        bad = sorted(k for k, v in line.values.items() if not math.isfinite(v) and find_metric(k) is not None)
        if bad:
            return Finding(
                detector="nan",
                state="critical",
                step_onset=line.step,
                evidence=f"not finite at step {line.step}: {', '.join(bad)}",
                remedy="lower the learning rate, clip the gradient, or train in float32",
            )
    return Finding(detector="nan", state="ok" if seen else "unknown")


def dead_run(*, silent_s: float, step_seconds: Sequence[float]) -> Finding:
    """Judge whether a run still makes progress.

    Args:
        silent_s: seconds since its last metric line, or since its start.
        step_seconds: seconds between its lines so far.
    """
    median = statistics.median(step_seconds) if step_seconds else 0.0
    limit = max(DEAD_AFTER_S, DEAD_AFTER_STEPS * median)
    if silent_s <= limit:
        return Finding(detector="dead_run", state="ok")
    return Finding(
        detector="dead_run",
        state="critical",
        evidence=f"no metric line for {silent_s:.0f} s, the limit is {limit:.0f} s",
        remedy="look at the end of stdout.log in the run folder; the run is tried again if `dead_run` is in stop_on",
    )


def worst(findings: Iterable[Finding]) -> Lamp:
    """Return the lamp of a run: the worst of its findings."""
    order: tuple[Lamp, ...] = ("critical", "warn", "unknown", "ok")
    states = {f.state for f in findings}
    return next((s for s in order if s in states), "unknown")
