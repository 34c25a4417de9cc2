"""Small plans, for tests of what stands above plans."""

from __future__ import annotations

from paribus.contract import Checkpoints, Evaluate, Hashes, Resources, Timeouts
from paribus.recipe.factors import PpoMin, Schedule
from paribus.recipe.recipe import Recipe, difference, fingerprint_of
from paribus.study.plan import Arm, Plan, PlannedRun, Row


def small_plan(
    study: str = "small",
    *,
    arms: int = 2,
    seeds: int = 2,
    steps: int = 4,
    stop_on: tuple[str, ...] = (),
    gpu_hours: float | None = None,
    cpu_hours: float | None = None,
    run_hours: float | None = None,
    resources: Resources | None = None,
    checkpoint: Checkpoints | None = None,
    timeouts: Timeouts | None = None,
    hashes: Hashes | None = None,
) -> Plan:
    """Return a plan for the runner ``fake``: arms that differ in ``clip.high``; equal arguments give equal runs."""
    recipes = [Recipe(schedule=Schedule(steps=steps), clip=PpoMin(high=0.2 + 0.01 * i)) for i in range(arms)]
    made = tuple(
        Arm(key=f"arm{i}", label=f"arm {i}", recipe=r, changes=difference(recipes[0], r), hashes=hashes)
        for i, r in enumerate(recipes)
    )
    rows = tuple(
        Row(
            design="high",
            kind="grid",
            label=arm.label,
            arm=arm.key,
            parent=None if arm is made[0] else made[0].label,
            tricks=(),
            changes=arm.changes,
        )
        for arm in made
    )
    pairs = [(seed, arm) for seed in range(seeds) for arm in made]
    runs = tuple(
        PlannedRun(
            fingerprint=fingerprint_of([arm.recipe.model_dump(mode="json"), seed]), arm=arm.key, seed=seed, order=order
        )
        for order, (seed, arm) in enumerate(pairs)
    )
    return Plan(
        study=study,
        fingerprint=fingerprint_of([study, arms, seeds, steps, list(stop_on)]),
        question="Does the upper clip bound matter?",
        runner="fake",
        base=made[0].key,
        arms=made,
        rows=rows,
        runs=runs,
        seeds=tuple(range(seeds)),
        paired=True,
        evaluate=Evaluate(every=2, problems=20, samples=2),
        stop_on=stop_on,
        gpu_hours=gpu_hours,
        cpu_hours=cpu_hours,
        run_hours=run_hours,
        resources=resources or Resources(),
        checkpoint=checkpoint or Checkpoints(),
        timeouts=timeouts or Timeouts(),
        warnings=(),
    )
