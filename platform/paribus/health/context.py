"""What a study adds to a finding: what the arm changes, and in how many of its seeds and of the other arm's it stands.

One run does not show its cause. Arms that differ in one thing can, if their seeds agree.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from paribus.study.plan import Plan
from paribus.text import plural

Raised = Mapping[str, Collection[str]]
"""Fingerprint of a run that was judged to the detectors that raised a finding in it."""

ALONE = "The cause is not known: one run does not show it."
"""Beside the findings of a run without a study."""

_SHOWN = 3
"""Changed paths that are listed."""


def context_of(plan: Plan, arm: str, detector: str, raised: Raised) -> str:
    """Return the sentence beside a finding.

    Args:
        plan: the study.
        arm: key of the run's arm.
        detector: the detector of the finding.
        raised: what was found in the runs of the study.
    """
    seeds = _seeds(plan, arm, detector, raised)
    if arm == plan.base:
        return f"{_name(detector)}: {seeds} of the base. The run alone does not show the cause."
    other, changes = _nearest(plan, arm)
    paths = [f"`{path}` ({_text(a)} -> {_text(b)})" for path, (a, b) in changes.items()]
    more = f" and {len(paths) - _SHOWN} more" if len(paths) > _SHOWN else ""
    differs = f"differs from `{plan.arm(other).label}` in {', '.join(paths[:_SHOWN])}{more}"
    return (
        f"The arm {differs}. {_name(detector)}: {seeds} of this arm, {_seeds(plan, other, detector, raised)} of "
        f"`{plan.arm(other).label}`."
    )


def compared(plan: Plan, arm: str) -> tuple[str, ...]:
    """Return the arms whose runs count beside those of an arm: itself, and the one that it is compared with."""
    return (arm,) if arm == plan.base else (arm, _nearest(plan, arm)[0])


def _nearest(plan: Plan, arm: str) -> tuple[str, Mapping[str, tuple[Any, Any]]]:
    """Return the arm that differs in the fewest paths, the base or the row before in a design, and what differs."""
    found = [(plan.base, plan.arm(arm).changes)]
    for row in plan.rows:
        before = next((r for r in plan.rows if r.design == row.design and r.label == row.parent), None)
        if row.arm == arm and before is not None and before.arm != arm and row.changes:
            found.append((before.arm, row.changes))
    return min(found, key=lambda f: len(f[1]))


def _seeds(plan: Plan, arm: str, detector: str, raised: Raised) -> str:
    judged = [raised[run.fingerprint] for run in plan.all_runs if run.arm == arm and run.fingerprint in raised]
    return f"{sum(detector in names for names in judged)} of {plural(len(judged), 'judged seed')}"


def _name(detector: str) -> str:
    return detector.replace("_", " ").capitalize()


def _text(value: Any) -> str:
    """Return a value as a study file has it."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
