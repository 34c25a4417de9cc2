"""The verdict on an attempt as ``health.json`` keeps it: written while it trains, read by whoever shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from paribus.errors import RunFolderError
from paribus.health.battery import BATTERY
from paribus.health.diagnose import Diagnosis
from paribus.health.finding import RAISED, Finding, Remedy, plain
from paribus.track.folder import MetricLine, RunFolder, from_json_number, read_json

_ORDER = {d.name: i for i, d in enumerate(BATTERY)}
_FIELDS = frozenset(f.name for f in fields(Finding)) - {"numbers", "remedies"}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A diagnosis and what it was made from.

    Attributes:
        step: the newest step that was judged.
        profile: identity of the thresholds.
        diagnosis: what was found.
    """

    step: int
    profile: str
    diagnosis: Diagnosis


def to_json(diagnosis: Diagnosis, line: MetricLine, profile: str) -> dict[str, Any]:
    """Return the content of ``health.json``.

    Args:
        diagnosis: of the lines so far.
        line: the newest of them.
        profile: identity of the thresholds.
    """
    worst = sorted(diagnosis.raised, key=lambda f: RAISED.index(f.state))
    quiet = [f for f in diagnosis.findings if f.state not in RAISED]
    return {
        "lamp": diagnosis.lamp,
        "detector": worst[0].detector if worst else "",
        "sentence": diagnosis.sentence,
        "step": line.step,
        "time_ms": line.time_ms,
        "profile": profile,
        "findings": [plain(f) for f in diagnosis.raised],
        "others": [{"detector": f.detector, "state": f.state, "evidence": f.evidence} for f in quiet],
    }


def read_verdict(folder: RunFolder) -> Verdict | None:
    """Return the verdict in a run folder; ``None`` if there is none, or none that tells of every detector."""
    try:
        raw = read_json(folder.health)
        raised = tuple(map(_finding, raw["findings"]))
        findings = (*raised, *map(_finding, raw["others"]))
        if {f.detector for f in findings} != _ORDER.keys():
            return None
        ordered = tuple(sorted(findings, key=lambda f: _ORDER[f.detector]))
        diagnosis = Diagnosis(lamp=raw["lamp"], sentence=raw["sentence"], raised=raised, findings=ordered)
        return Verdict(step=int(raw["step"]), profile=str(raw["profile"]), diagnosis=diagnosis)
    except (RunFolderError, KeyError, TypeError, ValueError, AttributeError):
        return None


def _finding(raw: Mapping[str, Any]) -> Finding:
    numbers = {k: from_json_number(v) for k, v in raw.get("numbers", {}).items()}
    remedies = tuple(Remedy(**r) for r in raw.get("remedies", ()))
    return Finding(**{k: v for k, v in raw.items() if k in _FIELDS}, numbers=numbers, remedies=remedies)
