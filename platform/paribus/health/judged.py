"""What ``health.json`` says of an attempt, for those who count verdicts: no detector is loaded to read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from paribus.errors import RunFolderError
from paribus.health.finding import RAISED, Finding, worst
from paribus.track.folder import RunFolder, read_json


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A verdict as it was written while the attempt trained, whatever detectors there were then.

    Attributes:
        lamp: the worst finding; green if some detector could judge and none raised.
        profile: identity of the thresholds.
        raised: findings that warn or are critical, with state and onset alone.
    """

    lamp: Literal["ok", "warn", "critical"]
    profile: str
    raised: tuple[Finding, ...] = ()


def read_judged(folder: RunFolder) -> Judged | None:
    """Return the verdict in a run folder; ``None`` if there is none, none that can be read, or nothing is known."""
    try:
        raw = read_json(folder.health)
        raised = tuple(map(_finding, raw["findings"]))
        lamp, profile = raw["lamp"], raw["profile"]
    except (RunFolderError, KeyError, TypeError):
        return None
    sound = all(f.state in RAISED and isinstance(f.step_onset, int | None) for f in raised)
    if not sound or lamp != (worst(raised) if raised else "ok"):
        return None
    return Judged(lamp=lamp, profile=str(profile), raised=raised)


def _finding(raw: Mapping[str, Any]) -> Finding:
    return Finding(detector=str(raw["detector"]), state=raw["state"], step_onset=raw["step_onset"])
