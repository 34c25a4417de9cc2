"""Courses of runs, healthy and with a known fault, as five trainers log them: what `health_table.py` judges.

Written from how published runs behave (DAPO, Dr. GRPO, ScaleRL, Skywork-OR1, issues of TRL and verl), not from what
the detectors look at; no code is shared with them, nor with `health_tuning.py` and `health_curves.py`. Each course has
its own length, noise, batch, units and trainer.

Here is the draw; its parts are an ordinary run (`health_course_plan.py`), healthy kinds (`health_course_kinds.py`),
faults (`health_course_faults.py`), and what trainers log of them (`health_course_names.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from health_course_faults import ILL
from health_course_kinds import HEALTHY
from health_course_names import NAMES, TRAINERS, measured
from health_course_plan import LENGTHS, NOISES, base

REPORT_ONLY = frozenset({
    "rewards in other units", "entropy bonus", "reference reset", "few evaluations", "hard prompts", "warm-up",
    "gibberish", "slow decline", "hot sampler", "score below the start",
})  # fmt: skip
"""Kinds and faults that no rule was tuned on."""


@dataclass(frozen=True, kw_only=True)
class Course:
    """A drawn run.

    Attributes:
        kind: the healthy kind, or the kind that a fault was put on.
        fault: what is wrong; empty: nothing.
        names: detectors of which one names the fault.
        onset: step at which the fault begins.
        trainer: whose metric names the records have.
        noise: how the metrics vary from step to step.
        steps: number of steps.
        records: a step and its metrics.
    """

    kind: str
    fault: str
    names: tuple[str, ...]
    onset: int
    trainer: str
    noise: str
    steps: int
    records: list[dict[str, float]]


def draw(seed: int, kind: str, fault: str = "", *, half: int = 0, trainer: str = "") -> Course:
    """Draw a course.

    Args:
        seed: of all draws.
        kind: a key of ``HEALTHY``.
        fault: a key of ``ILL``; empty: none.
        half: 0 to tune on, 1 to report on, 2 fresh: different seeds.
        trainer: whose names the records have; empty: one is drawn. Nothing else of the course depends on it.
    """
    rng = np.random.default_rng([half, seed, list(HEALTHY).index(kind), list(ILL).index(fault) if fault else 999])
    steps, noise = int(rng.choice(LENGTHS)), str(rng.choice(NOISES))
    plan = base(rng, steps, noise)
    HEALTHY[kind](plan)
    onset, names, trainers = 0, (), TRAINERS
    if fault:
        ill = ILL[fault]
        low, high = ill.early or (int(0.3 * steps), int(0.6 * steps))
        onset, names, trainers = int(rng.integers(low, high + 1)), ill.names, ill.trainers
        ill.put(plan, onset)
    chosen = str(rng.choice(trainers))
    trainer = trainer or chosen
    records = NAMES[trainer](measured(plan), plan)
    if fault == "impossible share":
        records = [{k: 1.3 if v != v else v for k, v in r.items()} for r in records]
    if kind == "restart with repeated steps" and steps >= 40:
        at, back = int(rng.integers(steps // 3, steps - 5)), int(rng.integers(3, 15))
        records = records[:at] + records[at - back : at] + records[at:]
    about = {"kind": kind, "fault": fault, "trainer": trainer, "noise": noise, "steps": steps}
    return Course(**about, names=names, onset=onset + 1, records=records)
