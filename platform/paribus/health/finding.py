"""Findings and the diagnosis of a run as values, and ``health.json``, which holds those of an attempt so far.

Importing this module loads no detector, so that reports, dashboards and the scheduler can read the file cheaply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal

from paribus.errors import RunFolderError
from paribus.run_folder.folder import MetricLine, RunFolder, from_json_number, read_json, to_json_number

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


def leading(raised: Sequence[Finding]) -> Finding:
    """Return the first critical one of findings by onset, else the first warning."""
    return next((f for f in raised if f.state == "critical"), raised[0])


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What is wrong with a run.

    Attributes:
        status: the worst finding; ``ok`` if none was raised and more than the sanity checks could judge.
        sentence: the diagnosis in words.
        raised: findings that warn or are critical, by onset: the suspected cause first.
        findings: those of all detectors.
    """

    status: Status
    sentence: str
    raised: tuple[Finding, ...]
    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding | None:
        """The earliest of the worst findings; an earlier, less severe finding may be its cause."""
        return leading(self.raised) if self.raised else None


_FIELDS = frozenset(f.name for f in fields(Finding)) - {"numbers", "remedies"}
_REMEDY = frozenset(f.name for f in fields(Remedy))
_QUIET: tuple[Status, ...] = ("ok", "unknown")


@dataclass(frozen=True, kw_only=True)
class HealthFile:
    """The content of ``health.json``, whichever detectors there were when it was written.

    Attributes:
        status: the worst finding; ``ok`` if none was raised and there was enough data to judge, else ``unknown``.
        sentence: the diagnosis in words.
        step: the newest step that was judged.
        time_ms: when that step was recorded, milliseconds since 1970.
        profile: identity of the thresholds.
        raised: findings that warn or are critical, by onset.
        others: the findings of the other detectors.
    """

    status: Status
    profile: str
    sentence: str = ""
    step: int = 0
    time_ms: int = 0
    raised: tuple[Finding, ...] = ()
    others: tuple[Finding, ...] = ()

    @property
    def detector(self) -> str:
        """The detector of the worst finding, of several the one with the earliest onset; empty if none was raised."""
        return next((f.detector for state in RAISED for f in self.raised if f.state == state), "")


def to_json(diagnosis: Diagnosis, line: MetricLine, profile: str) -> dict[str, Any]:
    """Return the content of ``health.json``.

    Args:
        diagnosis: of the lines so far.
        line: the newest of them.
        profile: identity of the thresholds.
    """
    worst_first = sorted(diagnosis.raised, key=lambda f: RAISED.index(f.state))
    quiet = [f for f in diagnosis.findings if f.state not in RAISED]
    return {
        "status": diagnosis.status,
        "detector": worst_first[0].detector if worst_first else "",
        "sentence": diagnosis.sentence,
        "step": line.step,
        "time_ms": line.time_ms,
        "profile": profile,
        "findings": [plain(f) for f in diagnosis.raised],
        "others": [{"detector": f.detector, "state": f.state, "evidence": f.evidence} for f in quiet],
    }


def read_health(folder: RunFolder) -> HealthFile | None:
    """Return what ``health.json`` in a run folder says; ``None`` if it is missing, damaged or contradicts itself.

    Files of earlier versions have the key ``lamp`` instead of ``status``.
    """
    try:
        raw = read_json(folder.health)
        raised = tuple(map(_finding, raw["findings"]))
        found = HealthFile(
            status=raw["status"] if "status" in raw else raw["lamp"],
            sentence=str(raw.get("sentence", "")),
            step=int(raw.get("step", 0)),
            time_ms=int(raw.get("time_ms", 0)),
            profile=str(raw["profile"]),
            raised=raised,
            others=tuple(map(_finding, raw.get("others", ()))),
        )
    except (RunFolderError, KeyError, TypeError, ValueError, AttributeError):
        return None
    sound = all(f.state in RAISED and isinstance(f.step_onset, int | None) for f in raised)
    consistent = sound and (found.status == worst(raised) if raised else found.status in _QUIET)
    return found if consistent and all("step_onset" in f for f in raw["findings"]) else None


def _finding(raw: Mapping[str, Any]) -> Finding:
    numbers = {k: from_json_number(v) for k, v in raw.get("numbers", {}).items()}
    remedies = tuple(_remedies(raw.get("remedies", ())))
    return Finding(**{k: v for k, v in raw.items() if k in _FIELDS}, numbers=numbers, remedies=remedies)


def _remedies(listed: Any) -> list[Remedy]:
    """Return the remedies that this version can show."""
    known = ({k: v for k, v in remedy.items() if k in _REMEDY} for remedy in listed)
    return [Remedy(**remedy) for remedy in known if {"text", "evidence", "source"} <= remedy.keys()]
