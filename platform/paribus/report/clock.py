"""What a run has cost up to a step, in time of the devices that it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paribus.report.data import RunData

if TYPE_CHECKING:
    from paribus.report.analysis import Analysis

STEP_TIME = "perf/time_step_s"


def device_seconds(run: RunData, steps: Sequence[int]) -> Mapping[int, float]:
    """Return step to the seconds of the run's GPUs, or of its CPU slot, up to and with this step.

    Step times hold their evaluations; start-up, and steps that a resumed run did twice, are left out. Empty if the run
    has no step times.
    """
    import numpy as np

    found = run.recorded.series(STEP_TIME).finite()
    if not len(found.steps):
        return {}
    spent = np.concatenate([[0.0], np.cumsum(found.last)]) * (run.gpus or 1.0)
    places = np.searchsorted(found.steps, steps, side="right")
    return dict(zip(steps, spent[places].tolist(), strict=True))


def device_time(analysis: Analysis) -> tuple[str, float]:
    """Return the unit that suits the longest run, e.g. ``GPU-hours``, and how many of it a second is."""
    runs = analysis.data.runs
    seconds = {a.key: analysis.values(a.key, analysis.costs["seconds"]) for a in analysis.plan.arms}
    longest = max((seconds[r.arm].get(r.seed, 0.0) * (r.gpus or 1.0) for r in runs), default=0.0)
    devices = {r.gpus > 0 for r in runs}
    device = "GPU" if devices == {True} else "CPU" if devices == {False} else "device"
    name, size = next(((n, s) for n, s in (("hours", 3600.0), ("minutes", 60.0)) if longest >= s), ("seconds", 1.0))
    return f"{device}-{name}", 1 / size
