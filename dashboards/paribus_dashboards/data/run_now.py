"""The newest step of a run and its health so far, in two small reads."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from paribus.errors import RunFolderError
from paribus.health.finding import Status, read_health
from paribus.run_folder.folder import RunFolder, parse_metric_line

_TAIL_BYTES = 1 << 16  # end of the metrics file that is searched for the newest line


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
    """

    step: int = 0
    status: Status = "unknown"
    detector: str = ""
    judged_step: int = 0
    raised: tuple[Raised, ...] = ()


def read_now(folder: RunFolder) -> RunNow:
    """Return the state of a run; files that are missing or unreadable are left out."""
    step, health = last_step(folder.metrics), read_health(folder)
    if health is None:
        return RunNow(step=step)
    return RunNow(
        step=step,
        status=health.status,
        detector=health.detector,
        judged_step=health.step,
        raised=tuple(Raised(f.detector, f.state, f.step_onset) for f in health.raised),
    )


def last_step(path: Path) -> int:
    """Return the step of the newest complete metric line of a file; 0 if it is missing or cannot be parsed."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            data = file.read()
        return parse_metric_line(data[: data.rindex(b"\n")].rpartition(b"\n")[2], str(path), 0).step
    except (OSError, ValueError, RunFolderError):
        return 0
