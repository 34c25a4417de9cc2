"""The newest step of a run, its pace and its health so far, in two small reads."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from paribus.errors import RunFolderError
from paribus.health.finding import Status, read_health
from paribus.run_folder.folder import RunFolder, parse_metric_line

_TAIL_BYTES = 1 << 16  # end of the metrics file that is searched for the newest lines
_PACE_LINES = 20  # metric lines over which the pace is taken


class Raised(NamedTuple):
    """A finding that warns or is critical, and the step from which it holds; ``None`` without a step."""

    detector: str
    status: Status
    onset: int | None


@dataclass(frozen=True, kw_only=True)
class RunNow:
    """What the files of a run say at this moment.

    Attributes:
        step: newest recorded step; 0 without a metric line.
        status: status of the run; ``unknown`` before the first diagnosis.
        detector: detector of the worst finding; empty without a finding.
        judged_step: newest step that the diagnosis covers; 0 before the first diagnosis.
        raised: its findings by onset.
        time_ms: when the newest line was written, milliseconds since 1970 on the clock of its machine; 0 without one.
        per_s: steps per second over the newest lines of this attempt; 0 if unknown.
    """

    step: int = 0
    status: Status = "unknown"
    detector: str = ""
    judged_step: int = 0
    raised: tuple[Raised, ...] = ()
    time_ms: int = 0
    per_s: float = 0.0


def read_now(folder: RunFolder) -> RunNow:
    """Return the state of a run; files that are missing or damaged are left out.

    Raises:
        OSError: the metric lines cannot be read now.
    """
    newest, health = _newest(folder.metrics), read_health(folder)
    if health is None:
        return newest
    return replace(
        newest,
        status=health.status,
        detector=health.detector,
        judged_step=health.step,
        raised=tuple(Raised(f.detector, f.state, f.step_onset) for f in health.raised),
    )


def _newest(path: Path) -> RunNow:
    """Return step, time and pace of the newest complete metric lines of a file; nothing if there are none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            data = file.read()
        lines = data[: data.rindex(b"\n")].split(b"\n")
        last = parse_metric_line(lines[-1], str(path), 0)
    except (FileNotFoundError, ValueError, RunFolderError):
        return RunNow()
    whole = lines if size <= _TAIL_BYTES else lines[1:]  # the first line of a part of a file is cut
    per_s = 0.0
    with suppress(ValueError, RunFolderError):
        before = parse_metric_line(whole[-min(len(whole), _PACE_LINES + 1)], str(path), 0)
        seconds = (last.time_ms - before.time_ms) / 1000
        per_s = (last.step - before.step) / seconds if seconds > 0 and last.step > before.step else 0.0
    return RunNow(step=last.step, time_ms=last.time_ms, per_s=per_s)
