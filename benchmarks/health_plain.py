"""What eighteen fixed thresholds say of a run: the rules that one writes oneself in an afternoon."""

from __future__ import annotations

import math
from collections.abc import Iterable

from paribus.health.signals import REWARD, SCORE
from paribus.run_folder.folder import MetricLine

SUCCESSIVE = 5
"""A threshold counts if so many points in a row are beyond it."""

BELOW = {
    "policy/entropy": (0.1, ("entropy_collapse",)),
    "response/length_mean": (20.0, ("length_collapse",)),
    "optim/grad_norm": (1e-6, ("dead_update",)),
    REWARD: (0.01, ("reward_crash", "zero_variance")),
}
ABOVE = {
    "policy/entropy": (2.0, ("entropy_explosion",)),
    "response/truncated_frac": (0.2, ("truncation",)),
    "kl/ref_k3": (0.5, ("kl_blowup",)),
    "optim/grad_norm": (10.0, ("grad_spike",)),
    "clip/high_frac": (0.1, ("clip_saturation_high",)),
    "clip/low_frac": (0.1, ("clip_saturation_low",)),
    "signal/clipped_frac": (0.1, ("clip_saturation_high",)),
    "group/zero_std_frac": (0.8, ("zero_variance",)),
    "mismatch/logp_abs_diff_mean": (0.05, ("mismatch",)),
    "mismatch/k3": (0.01, ("mismatch",)),
    "staleness/steps_mean": (8.0, ("staleness",)),
    "signal/rollout_error_frac": (0.05, ("rollout_errors",)),
}
FALL = 0.1
"""The held-out score below its best by this much, which is the rule of most dashboards for reward hacking."""


def plain_alarms(lines: Iterable[MetricLine]) -> tuple[str, ...]:
    """Return the names of the faults that the thresholds see: those of our detectors for the same fault."""
    found: set[str] = set()
    held: dict[tuple[str, bool], int] = {}
    best = -math.inf
    for line in lines:
        for limits, below in ((BELOW, True), (ABOVE, False)):
            for metric, (limit, names) in limits.items():
                if metric not in line.values:
                    continue
                x = line.values[metric]
                beyond = x < limit if below else x > limit
                held[metric, below] = held.get((metric, below), 0) + 1 if beyond else 0
                found |= set(names) if held[metric, below] >= SUCCESSIVE else set()
        found |= {"nan"} if any(math.isnan(x) for x in line.values.values()) else set()
        score = line.values.get(SCORE, math.nan)
        found |= {"reward_hacking", "eval_regression"} if score < best - FALL else set()
        best = max(best, score) if math.isfinite(score) else best
    return tuple(sorted(found))
