"""A finding: what one detector says about a run, with evidence, onset and remedies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from paribus.run_folder.folder import to_json_number

Status = Literal["ok", "warn", "critical", "unknown", "not_applicable"]

RAISED: tuple[Status, ...] = ("critical", "warn")
"""The states that report a problem, the worst first."""

Evidence = Literal["A", "B", "C"]
"""How well a remedy is supported: A ablated in its source, B argued from the mechanism, C practitioners' advice."""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """Something to try: a suggestion to ablate, not a cure.

    Attributes:
        text: what to do, in one line.
        evidence: how well it is supported.
        source: where it comes from.
        patch: the patch of the recipe, as in a study file; empty if the remedy doesn't change the recipe.
        multiply: path of a number in the recipe to a factor: a patch that depends on the current value.
    """

    text: str
    evidence: Evidence
    source: str
    patch: Mapping[str, Any] = field(default_factory=dict)
    multiply: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a detector found.

    Attributes:
        detector: its name, as in ``health.stop_on`` of a study.
        state: the status; for a whole run, the worst so far.
        step_onset: first step at which the rule held, as bad as ``state``; ``None`` without a finding or a step.
        step_detected: step at which it was detected.
        step_cleared: step from which the rule no longer held; ``None`` if it still does.
        evidence: the numbers, in one sentence; the reason if the state is ``unknown`` or ``not_applicable``.
        numbers: values and the thresholds they were compared with.
        remedies: what to try, the best supported first.
        experimental: whether the threshold is our proposal, without a source.
        profile: name, version and hash of the thresholds.
    """

    detector: str
    state: Status
    step_onset: int | None = None
    step_detected: int | None = None
    step_cleared: int | None = None
    evidence: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    remedies: tuple[Remedy, ...] = ()
    experimental: bool = False
    profile: str = ""


def plain(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON."""
    return asdict(finding) | {"numbers": {k: to_json_number(v) for k, v in finding.numbers.items()}}


def worst(findings: Iterable[Finding]) -> Status:
    """Return the status of a run: its worst finding."""
    order: tuple[Status, ...] = (*RAISED, "unknown", "ok")
    states = {f.state for f in findings}
    return next((s for s in order if s in states), "unknown")
