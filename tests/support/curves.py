"""Made-up studies whose scores follow given curves. Nothing here is a measurement."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from paribus.report.inputs import RunData, StudyData
from paribus.run_folder.folder import MetricLine
from support.studies import Shape, made_up_study


def curved_study(shape: Shape, curve: Callable[[str, int], float], *, noise: float = 0.01) -> StudyData:
    """Return a study whose score is a curve of the arm's label and the step, with normal noise of each evaluation."""
    data = made_up_study(shape)
    labels = {a.key: a.label for a in data.plan.arms}
    return replace(data, runs=tuple(_run(r, labels[r.arm], curve, shape.period, noise) for r in data.runs))


def _run(run: RunData, label: str, curve: Callable[[str, int], float], every: int, noise: float) -> RunData:
    dice, lines = random.Random(f"{label}/{run.seed}"), list[MetricLine]()
    for line in run.lines:
        values = {name: v for name, v in line.values.items() if not name.startswith("eval/")}
        if line.step % every == 0:
            values["eval/heldout/avg_at_1"] = curve(label, line.step) + dice.gauss(0, noise)
        lines.append(replace(line, values=values))
    return replace(run, lines=tuple(lines), evaluations=())
