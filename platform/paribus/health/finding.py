"""A finding: a detector's verdict on a run, with evidence, onset and remedies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from paribus.track.folder import to_json_number

Lamp = Literal["ok", "warn", "critical", "unknown", "not_applicable"]

RAISED: tuple[Lamp, ...] = ("critical", "warn")
"""The lamps that say that something is wrong, the worst first."""

Evidence = Literal["A", "B", "C"]
"""How well a remedy is supported: A ablated in its source, B argued from the mechanism, C practitioners' advice."""


@dataclass(frozen=True, kw_only=True)
class Remedy:
    """Something to try: a suggestion to ablate, not a cure.

    Attributes:
        text: what to do, in one line.
        evidence: how well it is supported.
        source: who says so.
        patch: the patch of the recipe, as a study file would write it; empty where it is no matter of the recipe.
        multiply: path of a number in the recipe to a factor: a patch that depends on the value that is there.
    """

    text: str
    evidence: Evidence
    source: str
    patch: Mapping[str, Any] = field(default_factory=dict)
    multiply: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A detector's verdict.

    Attributes:
        detector: its name, as ``health.stop_on`` of a study lists it.
        state: the lamp; of a whole run, the worst that it showed.
        step_onset: first step at which it holds, as bad as ``state`` says; ``None`` if it does not, or has no step.
        step_detected: step at which it was told.
        step_cleared: step from which it no longer held; ``None`` if it still does.
        evidence: the numbers, in one sentence; where nothing is known, why.
        numbers: values and the thresholds that they were held against.
        remedies: what to try, the best supported first.
        experimental: what it was held against is a proposal that no source gives.
        profile: name, version and hash of the thresholds.
    """

    detector: str
    state: Lamp
    step_onset: int | None = None
    step_detected: int | None = None
    step_cleared: int | None = None
    evidence: str = ""
    numbers: Mapping[str, float] = field(default_factory=dict)
    remedies: tuple[Remedy, ...] = ()
    experimental: bool = False
    profile: str = ""


def plain(finding: Finding) -> dict[str, Any]:
    """Return a finding as JSON has it."""
    return asdict(finding) | {"numbers": {k: to_json_number(v) for k, v in finding.numbers.items()}}


def worst(findings: Iterable[Finding]) -> Lamp:
    """Return the lamp of a run: the worst of its findings."""
    order: tuple[Lamp, ...] = (*RAISED, "unknown", "ok")
    states = {f.state for f in findings}
    return next((s for s in order if s in states), "unknown")
