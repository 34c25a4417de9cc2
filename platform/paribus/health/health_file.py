"""``health.json``: what the detectors have found in an attempt so far. The only writer and reader of the file's format.

Importing this module loads no detector, so that reports, dashboards and the scheduler can read the file cheaply.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from paribus.errors import RunFolderError
from paribus.health.finding import RAISED, Finding, Remedy, Status, plain, worst
from paribus.run_folder.folder import RunFolder, from_json_number, read_json

if TYPE_CHECKING:
    from paribus.health.diagnose import Diagnosis
    from paribus.run_folder.folder import MetricLine

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
