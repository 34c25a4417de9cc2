"""Makes the plan of a study: rows, distinct arms, distinct runs, notes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from paribus.errors import Problem, StudyFileError, UnsupportedRecipe
from paribus.recipe.recipe import Recipe, difference, fingerprint_of
from paribus.study.designs import Draft, candidates, drafts, tricks_alone
from paribus.study.fingerprint import fingerprints, recipe_key, stops_of
from paribus.study.growth import looks_of
from paribus.study.job import Evaluate
from paribus.study.notes import notes_of
from paribus.study.plan import Arm, Plan, PlannedRun, Row, Screen
from paribus.study.resolve import Resolved, resolve_base, resolve_row
from paribus.study.spec import Search, Study

KEY_DIGITS = 12


class PlanRunner(Protocol):
    """What a plan asks of a runner; a part of :class:`paribus.study.runner.Runner`."""

    def unsupported(self, recipe: Recipe) -> tuple[str, ...]:
        """Return what of the recipe the runner cannot train, one sentence each."""

    def code_fingerprint(self, recipe: Recipe) -> str:
        """Return a hash of the code that the numbers of a run depend on."""

    def data_fingerprint(self, recipe: Recipe) -> str:
        """Return a hash of problems and verifier."""

    def model_fingerprint(self, recipe: Recipe) -> str:
        """Return a hash of the initial model."""


def make_plan(study: Study, runner: PlanRunner) -> Plan:
    """Return the plan of a study that the runner can train.

    Raises:
        UnsupportedRecipe: the runner cannot train some arms; all arms are listed with what is missing.
        StudyFileError: a study that did not come from a file has a patch that is wrong.
    """
    plan = plan_of(study, runner)
    refuse_unsupported(plan, runner)
    return plan


def plan_of(study: Study, runner: PlanRunner) -> Plan:
    """Return the plan of a study, whether or not the runner can train it.

    Raises:
        StudyFileError: a study that did not come from a file has a patch that is wrong.
    """
    base_values = resolve_base(study.base)
    base = _recipe(base_values, study.study)
    resolved = [(row, _recipe(resolve_row(base_values.values, row), study.study)) for row in drafts(study)]
    arms = _arms(base, resolved)
    rows = tuple(_rows(resolved))
    alone = [(row, _recipe(resolve_row(base_values.values, row), study.study)) for row in tricks_alone(study)]
    changes = (*(row for row in rows if row.kind != "fractional"), *_rows(alone))
    recipes = {arm_key(recipe): recipe for _, recipe in (*resolved, *alone)}
    at = study.seeds.at
    seeds = tuple(range(study.seeds.start, study.seeds.start + at[-1]))
    runs = tuple(_runs(study, arms, seeds, runner))
    first = at[0] * len(arms)
    plan = Plan(
        study=study.study,
        fingerprint="",
        question=study.question,
        runner=study.runner,
        base=arms[0].key,
        arms=arms,
        rows=rows,
        runs=runs[:first],
        seeds=seeds[: at[0]],
        paired=study.seeds.paired,
        evaluate=study.evaluate,
        stop_on=study.health.stop_on,
        profile=study.health.profile,
        webhook=(study.health.webhook or "").strip("${}"),
        command=study.health.command or (),
        gpu_hours=study.budget.gpu_hours,
        cpu_hours=study.budget.cpu_hours,
        run_hours=study.budget.run_hours,
        notes=tuple(n for n in notes_of(study, arms, rows, changes, recipes) if n.code not in study.allow),
        preset=study.base.preset,
        margin=study.margin,
        symptom_correction=study.report.symptom_correction,
        published=study.report.published,
        resources=study.resources,
        looks=looks_of(study.seeds),
        later=runs[first:],
        screen=_screen(study, base_values.values),
    )
    return with_fingerprint(plan)


def _screen(study: Study, base: Mapping[str, Any]) -> Screen | None:
    """Return the search of the study with what it tunes, before its first trial; ``None`` without one."""
    for name, design in study.designs.items():
        if isinstance(design, Search):
            found = [(row, _recipe(resolve_row(base, row), study.study)) for row in candidates(name, design, study)]
            rows = tuple(_rows(found))
            return Screen(design=name, rule=design, candidates=rows, untuned=tuple(recipe for _, recipe in found))
    return None


def refuse_unsupported(plan: Plan, runner: PlanRunner) -> None:
    """Do nothing if the runner can train every arm.

    Raises:
        UnsupportedRecipe: it cannot; what is missing is listed with the arms that ask for it.
    """
    missing: dict[str, list[str]] = {}
    for arm in plan.arms:
        for part in runner.unsupported(arm.recipe):
            missing.setdefault(part, []).append(f"`{arm.label}`")
    if missing:
        lines = [f"the runner `{plan.runner}` cannot train this study:"]
        lines += [f"  {part} (arms: {', '.join(labels)})" for part, labels in missing.items()]
        raise UnsupportedRecipe("\n".join(lines))


def arm_key(recipe: Recipe) -> str:
    """Return the key of the arm with this recipe, 12 hexadecimal digits."""
    return fingerprint_of(recipe_key(recipe))[:KEY_DIGITS]


def _recipe(resolved: Resolved, name: str) -> Recipe:
    if resolved.recipe is None:
        problems = [Problem(message=f.message, path=".".join(map(str, f.place))) for f in resolved.faults]
        raise StudyFileError(name, problems)
    return resolved.recipe


def _arms(base: Recipe, resolved: Sequence[tuple[Draft, Recipe]]) -> tuple[Arm, ...]:
    """Return the distinct arms, the base first; a label that two arms would share is qualified by its design."""
    found = {arm_key(base): Arm(key=arm_key(base), label="base", recipe=base, changes={})}
    taken = {"base"}
    for row, recipe in resolved:
        key = arm_key(recipe)
        if key in found:
            continue
        label = row.label if row.label not in taken else f"{row.label} ({row.design})"
        taken.add(label)
        found[key] = Arm(key=key, label=label, recipe=recipe, changes=difference(base, recipe))
    return tuple(found.values())


def _rows(resolved: Sequence[tuple[Draft, Recipe]]) -> Iterator[Row]:
    recipes = {(row.design, row.label): recipe for row, recipe in resolved}
    for row, recipe in resolved:
        parent = recipes[row.design, row.parent] if row.parent is not None else recipe
        yield Row(
            design=row.design,
            kind=row.kind,
            label=row.label,
            arm=arm_key(recipe),
            parent=row.parent,
            tricks=row.tricks,
            changes=difference(parent, recipe),
        )


def identities(
    arms: Iterable[Arm], evaluate: Evaluate, runner: PlanRunner, stops: Mapping[str, Any]
) -> dict[str, Callable[[int], str]]:
    """Return key of each arm to a function from a seed to the fingerprint of the run; see :func:`fingerprints`."""
    return {
        arm.key: fingerprints(
            recipe=arm.recipe,
            evaluate=evaluate,
            code=runner.code_fingerprint(arm.recipe),
            data=runner.data_fingerprint(arm.recipe),
            model=runner.model_fingerprint(arm.recipe),
            stops=stops,
        )
        for arm in arms
    }


def _runs(study: Study, arms: Sequence[Arm], seeds: Sequence[int], runner: PlanRunner) -> Iterator[PlannedRun]:
    """Yield the runs seed by seed, the base arm first, so that a study that is cut short has whole blocks."""
    identify = identities(arms, study.evaluate, runner, stops_of(study.health.stop_on, study.health.profile))
    own = {} if study.seeds.paired else own_seeds([arm.key for arm in arms], study.seeds.start, len(seeds))
    order = 0
    for k, shared in enumerate(seeds):
        for arm in arms:
            seed = shared if study.seeds.paired else own[arm.key][k]
            yield PlannedRun(fingerprint=identify[arm.key](seed), arm=arm.key, seed=seed, order=order)
            order += 1


def own_seeds(arms: Sequence[str], start: int, n: int) -> dict[str, tuple[int, ...]]:
    """Return n seeds for each arm, all distinct, that depend on the arm and not on its place in the study."""
    taken: set[int] = set()
    seeds: dict[str, tuple[int, ...]] = {}
    for arm in sorted(arms):
        chosen = []
        for k in range(start, start + n):
            seed = int.from_bytes(hashlib.sha256(f"{arm}/{k}".encode()).digest()[:4], "big") >> 1
            while seed in taken:
                seed = (seed + 1) % 2**31
            taken.add(seed)
            chosen.append(seed)
        seeds[arm] = tuple(chosen)
    return seeds


def with_fingerprint(plan: Plan) -> Plan:
    """Return the plan with the hash of what it means."""
    meaning = {
        "study": plan.study,
        "runner": plan.runner,
        "runs": [(run.fingerprint, run.arm, run.seed) for run in plan.runs],
        "rows": [(row.design, row.kind, row.label, row.arm, row.parent) for row in plan.rows],
        "evaluate": plan.evaluate.model_dump(mode="json"),
        "stop_on": plan.stop_on,
        **({"profile": plan.profile} if plan.profile != "default" else {}),
        **({"margin": plan.margin} if plan.margin is not None else {}),  # one that is declared after a look is seen
        **({"symptoms": plan.symptom_correction} if plan.symptom_correction != "holm" else {}),
        **({"looks": [plan.looks.at, plan.looks.spending, plan.looks.width]} if plan.looks else {}),
        **({"screen": _meaning_of(plan.screen)} if plan.screen else {}),
        **({"origin": plan.origin} if plan.origin else {}),
    }
    return replace(plan, fingerprint=fingerprint_of(meaning))


def _meaning_of(screen: Screen) -> list[Any]:
    tuned = [(row.label, recipe_key(recipe)) for row, recipe in zip(screen.candidates, screen.untuned, strict=True)]
    runs = [run.fingerprint for run in screen.runs]
    return [screen.design, screen.rule.model_dump(mode="json"), tuned, runs, screen.confirmed]
