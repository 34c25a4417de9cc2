"""The plan of an external study: its arms are names, and its runs are known only when they are imported or tracked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from paribus.contract import EXTERNAL, Evaluate, Hashes, Job, Options
from paribus.errors import ParibusError, did_you_mean
from paribus.recipe.recipe import Recipe, fingerprint_of
from paribus.study.expand import KEY_DIGITS, with_fingerprint
from paribus.study.plan import Arm, Plan, PlannedRun, Row

DESIGN = "arms"
"""Name and only design of an external study."""

IMPORTED = "imported"
"""In place of an engine: the run is from a finished log. The other way is :data:`~paribus.store.states.TRACKED`."""

NOT_KNOWN = Hashes(code="not recorded", data="not recorded", model="not recorded")


@dataclass(frozen=True, kw_only=True)
class ExternalRun:
    """A run that Paribus did not start.

    Attributes:
        arm: name of its arm.
        seed: its seed.
        fingerprint: its identity, 64 hexadecimal digits.
        steps: number of its steps, as far as that is known; at least 1.
    """

    arm: str
    seed: int
    fingerprint: str
    steps: int = 1


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What a user says of an external study; ``None``: as in its newest plan, else the default.

    Attributes:
        base: name of the arm that the others are compared with; by default the first.
        primary: canonical metric of the tables.
        paired: whether equal seeds of two arms saw the same prompts in the same order; by default not.
        question: what the study asks.
    """

    base: str | None = None
    primary: str | None = None
    paired: bool | None = None
    question: str | None = None


def external_plan(study: str, runs: Sequence[ExternalRun], terms: Terms, known: Plan | None) -> Plan:
    """Return the plan of an external study with these runs, beside those that it has.

    A run with arm and seed of one that is known takes its place.

    Args:
        study: name.
        runs: at least one, all with different arm or seed.
        terms: of the user.
        known: the newest plan of this name.

    Raises:
        ParibusError: the newest plan is that of a trained study, or there is no such base.
    """
    if known is not None:
        refuse_trained(known)
    every = {(run.arm, run.seed): run for run in [*(_runs_of(known) if known else ()), *runs]}
    labels = list(dict.fromkeys(arm for arm, _ in every))
    base = terms.base or (known.arm(known.base).label if known else labels[0])
    if base not in labels:
        raise ParibusError(f"there is no arm `{base}`.{did_you_mean(base, labels)} Arms: {', '.join(labels)}.")
    labels = [base, *(label for label in labels if label != base)]
    steps = {label: max(run.steps for run in every.values() if run.arm == label) for label in labels}
    arms = tuple(_arm(label, steps[label]) for label in labels)
    seeds = tuple(sorted({seed for _, seed in every}))
    ordered = sorted(every.values(), key=lambda run: (run.seed, labels.index(run.arm)))
    plan = Plan(
        study=study,
        fingerprint="",
        question=terms.question if terms.question is not None else known.question if known else "",
        runner=EXTERNAL,
        base=arms[0].key,
        arms=arms,
        rows=tuple(_row(arm, base) for arm in arms),
        runs=tuple(
            PlannedRun(fingerprint=run.fingerprint, arm=arm_key(run.arm), seed=run.seed, order=order)
            for order, run in enumerate(ordered)
        ),
        seeds=seeds,
        paired=terms.paired if terms.paired is not None else known.paired if known else False,
        evaluate=_evaluate(terms, known, max(steps.values())),
        stop_on=(),
        gpu_hours=None,
        warnings=(),
    )
    return with_fingerprint(plan)


def refuse_trained(plan: Plan) -> None:
    """Refuse a plan whose runs Paribus trains.

    Raises:
        ParibusError: it is one.
    """
    if not plan.external:
        raise ParibusError(
            f"`{plan.study}` is a study that Paribus trains. Its scores are evaluations by Paribus and those of other "
            "programs are not, so they do not stand in one table: choose another name."
        )


def _runs_of(plan: Plan) -> list[ExternalRun]:
    labels = {arm.key: arm for arm in plan.arms}
    return [
        ExternalRun(
            arm=labels[run.arm].label,
            seed=run.seed,
            fingerprint=run.fingerprint,
            steps=labels[run.arm].recipe.schedule.steps,
        )
        for run in plan.runs
    ]


def arm_key(label: str) -> str:
    """Return the key of an arm, which depends on its name alone."""
    return fingerprint_of(["external arm", label])[:KEY_DIGITS]


def _arm(label: str, steps: int) -> Arm:
    return Arm(key=arm_key(label), label=label, recipe=steps_alone(steps), changes={}, hashes=NOT_KNOWN)


def steps_alone(steps: int) -> Recipe:
    """Return a recipe of which only the number of steps has a meaning."""
    recipe = Recipe()
    return recipe.model_copy(update={"schedule": recipe.schedule.model_copy(update={"steps": steps})})


def external_job(
    plan: Plan,
    run: ExternalRun,
    recipe: Recipe,
    token: int,
    home: Path,
    about: Mapping[str, str],
    stop_on: Sequence[str] = (),
) -> Job:
    """Return the job of a run that Paribus did not start, for its run folder.

    Args:
        plan: the plan that it stands in.
        run: the run.
        recipe: of which the number of steps is known.
        token: number of the attempt.
        home: home folder.
        about: where its numbers come from.
        stop_on: detectors that end it.
    """
    return Job(
        run=run.fingerprint,
        study=plan.study,
        arm=run.arm,
        runner=EXTERNAL,
        options=Options(own=dict(about)),
        seed=run.seed,
        token=token,
        recipe=recipe,
        evaluate=plan.evaluate,
        cache=str(home / "cache"),
        stop_on=tuple(stop_on),
    )


def _row(arm: Arm, base: str) -> Row:
    parent = None if arm.label == base else base
    return Row(design=DESIGN, kind="list", label=arm.label, arm=arm.key, parent=parent, tricks=(), changes={})


def _evaluate(terms: Terms, known: Plan | None, steps: int) -> Evaluate:
    """Return how scores are read off; what is not the primary metric is not known, and no report shows it."""
    primary = terms.primary or (known.evaluate.primary if known else "")
    return Evaluate(primary=primary, every=steps)
