"""What a run says of itself: its newest metric line and its verdict so far, in two small reads."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.errors import RunFolderError
from paribus.health.finding import Lamp
from paribus.track.folder import MetricLine, RunFolder, parse_metric_line, read_json

_LAST_BYTES = 1 << 16  # where the newest line is looked for


@dataclass(frozen=True, kw_only=True)
class RunNow:
    """What a run says of itself at this moment.

    Attributes:
        step: the newest recorded one; 0 without any.
        time_ms: when it was written, milliseconds since 1970; 0 without any.
        values: the newest line: metric to value.
        lamp: its verdict so far; ``unknown`` while it was not judged.
        detector: the worst finding; empty if there is none.
        sentence: the verdict in words; empty while it was not judged.
        judged: step of the verdict.
        findings: what is raised, worst first, as ``health.json`` has them
            (:func:`paribus.health.finding.plain`).
    """

    step: int = 0
    time_ms: int = 0
    values: Mapping[str, float]
    lamp: Lamp = "unknown"
    detector: str = ""
    sentence: str = ""
    judged: int = 0
    findings: tuple[Mapping[str, Any], ...] = ()


def read_now(folder: RunFolder) -> RunNow:
    """Return what a run says of itself; nothing where its files cannot be read."""
    line = last_line(folder.metrics)
    known: Mapping[str, Any] = {}
    with suppress(RunFolderError):
        known = read_json(folder.health)
    try:
        verdict = {
            "lamp": known["lamp"],
            "detector": str(known["detector"]),
            "sentence": str(known["sentence"]),
            "judged": int(known["step"]),
            "findings": tuple(known["findings"]),
        }
    except (KeyError, TypeError, ValueError):
        verdict = {}
    if line is None:
        return RunNow(values={}, **verdict)
    return RunNow(step=line.step, time_ms=line.time_ms, values=line.values, **verdict)


def last_line(path: Path) -> MetricLine | None:
    """Return the newest complete metric line of a file; ``None`` if there is none, or it cannot be read."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _LAST_BYTES))
            data = file.read()
        return parse_metric_line(data[: data.rindex(b"\n")].rpartition(b"\n")[2], str(path))
    except (OSError, ValueError, RunFolderError):
        return None
