"""What a run is watched for by its supervisor: numbers that are none, and silence. Nothing heavy is imported here."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence

from paribus.health.finding import Finding, Remedy
from paribus.track.folder import MetricLine
from paribus.track.metrics import find_metric

DEAD_AFTER_S = 600.0
DEAD_AFTER_STEPS = 10.0
"""A run is dead after ten minutes without a line, or ten times its median step if that is longer."""

_NAN_REMEDY = Remedy(
    text="lower the learning rate, clip the gradient, or train in float32",
    evidence="C",
    source="practice",
    multiply={"optimizer.learning_rate": 0.3},
)
_DEAD_REMEDY = Remedy(
    text="look at the end of stdout.log in the run folder; the run is tried again if `dead_run` is in stop_on",
    evidence="C",
    source="practice",
)


def not_finite(values: Mapping[str, float]) -> list[str]:
    """Return the canonical metrics that are not finite, sorted; a metric of the user's own may be anything."""
    return sorted(k for k, v in values.items() if not math.isfinite(v) and find_metric(k) is not None)


def nan(lines: Iterable[MetricLine]) -> Finding:
    """Judge whether every canonical metric is finite."""
    seen = False
    for line in lines:
        seen = True
        if bad := not_finite(line.values):
            return Finding(
                detector="nan",
                state="critical",
                step_onset=line.step,
                step_detected=line.step,
                evidence=f"not finite at step {line.step}: {', '.join(bad)}",
                remedies=(_NAN_REMEDY,),
            )
    return Finding(detector="nan", state="ok" if seen else "unknown")


def silence_limit(step_seconds: Sequence[float]) -> float:
    """Return the seconds after which a run without a line is dead."""
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
        remedies=(_DEAD_REMEDY,),
    )
