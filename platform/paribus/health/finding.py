"""Findings and the diagnosis of a run as values, and ``health.json``, which holds those of an attempt so far.

Importing this module loads no detector, so that reports, dashboards and the scheduler can read the file cheaply.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from paribus.errors import RunFolderError
from paribus.run_folder.folder import MetricLine, RunFolder, read_json, to_json_number
from paribus.run_folder.json_text import field_of, listed, number, shown, text, whole
from paribus.run_folder.json_text import fields as fields_in

Status = Literal["ok", "note", "warn", "critical", "unknown", "not_applicable"]

RAISED: tuple[Status, ...] = ("critical", "warn")
"""The states that report a problem, the worst first; a note is information and changes no status."""

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
    """Return the status of a run: its worst finding; a note does not count."""
    order: tuple[Status, ...] = (*RAISED, "unknown", "ok")
    states: set[Status] = {"ok" if f.state == "note" else f.state for f in findings}
    return next((s for s in order if s in states), "unknown")


EFFECTS: Mapping[str, frozenset[str]] = {
    "zero_variance": frozenset(
        {"huge_update", "kl_blowup", "grad_spike", "entropy_explosion", "length_collapse", "degenerate_text"}
    ),
    "reward_hacking": frozenset({"reward_noise"}),
    "eval_regression": frozenset({"reward_noise"}),
}
"""Findings that are the effect of others.

A policy that broke gets the same reward for all responses to a prompt; where the reward swings from step to step, an
evaluation may meet the policy at its low.
"""


def leading(raised: Sequence[Finding]) -> Finding:
    """Return the first critical one of findings by onset, else the first warning.

    Where all that is critical is an effect (``EFFECTS``) and an earlier warning is its cause, the cause leads.
    """
    first = next((f for f in raised if f.state == "critical"), raised[0])
    place = raised.index(first)
    causes = [f for f in raised[:place] if f.detector in EFFECTS.get(first.detector, ()) and _before(f, first)]
    return causes[0] if causes else first


def earlier(raised: Sequence[Finding], finding: Finding) -> list[Finding]:
    """Return the findings that began at an earlier step than this one, in their order."""
    return [f for f in raised if (f.step_onset or 0) < (finding.step_onset or 0)]


def _before(cause: Finding, effect: Finding) -> bool:
    """Return whether a cause has an onset before that of an effect, and was not over by then."""
    if cause.step_onset is None or effect.step_onset is None:
        return False
    over = cause.step_cleared is not None and cause.step_cleared <= effect.step_onset
    return cause.step_onset < effect.step_onset and not over


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """What is wrong with a run.

    Attributes:
        status: the worst finding; ``ok`` if none was raised and more than the sanity checks could judge.
        sentence: the diagnosis in words.
        raised: findings that warn or are critical, by onset.
        findings: those of all detectors.
    """

    status: Status
    sentence: str
    raised: tuple[Finding, ...]
    findings: tuple[Finding, ...]

    @property
    def first(self) -> Finding | None:
        """The finding that leads the verdict (:func:`leading`)."""
        return leading(self.raised) if self.raised else None

    @property
    def notes(self) -> tuple[Finding, ...]:
        """What is worth knowing and no fault, by onset."""
        return tuple(sorted((f for f in self.findings if f.state == "note"), key=lambda f: f.step_onset or 0))


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
        """The detector that leads the verdict; empty if none was raised."""
        return leading(self.raised).detector if self.raised else ""


def to_json(diagnosis: Diagnosis, line: MetricLine, profile: str) -> dict[str, Any]:
    """Return the content of ``health.json``.

    Args:
        diagnosis: of the lines so far.
        line: the newest of them.
        profile: identity of the thresholds.
    """
    quiet = [f for f in diagnosis.findings if f.state not in RAISED]
    return {
        "status": diagnosis.status,
        "detector": diagnosis.first.detector if diagnosis.first else "",
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
        raw = fields_in(read_json(folder.health))
        found = HealthFile(
            status=_status(raw["status"] if "status" in raw else field_of(raw, "lamp")),
            sentence=text(raw.get("sentence", ""), "sentence"),
            step=whole(raw.get("step", 0), "step"),
            time_ms=whole(raw.get("time_ms", 0), "time_ms"),
            profile=text(field_of(raw, "profile"), "profile"),
            raised=tuple(map(_raised, listed(field_of(raw, "findings"), "findings"))),
            others=tuple(map(_finding, listed(raw.get("others", []), "others"))),
        )
    except (RunFolderError, ValueError):
        return None
    consistent = found.status == worst(found.raised) if found.raised else found.status in _QUIET
    return found if consistent else None


def _status(value: Any) -> Status:
    if value not in get_args(Status):
        raise ValueError(f"{shown(value)} is not a status")
    found: Status = value
    return found


def _raised(value: Any) -> Finding:
    found = _finding(value)
    if found.state not in RAISED or "step_onset" not in value:
        raise ValueError(f"{shown(found.detector)} is no finding")
    return found


def _finding(value: Any) -> Finding:
    raw = fields_in(value)
    steps = {k: whole(raw[k], k) for k in ("step_onset", "step_detected", "step_cleared") if raw.get(k) is not None}
    experimental = raw.get("experimental", False)
    if not isinstance(experimental, bool):
        raise ValueError(f"`experimental` is {shown(experimental)}, not true or false")
    return Finding(
        detector=text(field_of(raw, "detector"), "detector"),
        state=_status(field_of(raw, "state")),
        evidence=text(raw.get("evidence", ""), "evidence"),
        numbers={k: number(v, k) for k, v in fields_in(raw.get("numbers", {})).items()},
        remedies=tuple(_remedies(listed(raw.get("remedies", []), "remedies"))),
        experimental=experimental,
        profile=text(raw.get("profile", ""), "profile"),
        **steps,
    )


def _remedies(values: Iterable[Any]) -> list[Remedy]:
    """Return the remedies that this version can show."""
    found = []
    for raw in map(fields_in, values):
        if {"text", "evidence", "source"} <= raw.keys():
            if raw["evidence"] not in get_args(Evidence):
                raise ValueError(f"`evidence` is {shown(raw['evidence'])}, not one of {', '.join(get_args(Evidence))}")
            remedy = Remedy(
                text=text(raw["text"], "text"),
                evidence=raw["evidence"],
                source=text(raw["source"], "source"),
                patch=fields_in(raw.get("patch", {})),
                multiply={k: number(v, k) for k, v in fields_in(raw.get("multiply", {})).items()},
            )
            found.append(remedy)
    return found
