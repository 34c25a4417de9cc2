"""Makes the plan of a study: rows, distinct arms, distinct runs, warnings."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from pathlib import Path
from typing import Any

from paribus.contract import (
    Evaluate,
    Examination,
    Hashes,
    Options,
    Requirements,
    Resources,
    Runner,
    Support,
    load_runner,
)
from paribus.errors import ParibusError, UnreadableInput, UnsupportedRecipe
from paribus.recipe.recipe import Recipe, difference, fingerprint_of
from paribus.study.adaptive import interim_rule
from paribus.study.evaluation import arm_hashes, unreadable_sets
from paribus.study.fingerprint import fingerprints, recipe_key, stops_of
from paribus.study.lint import lint
from paribus.study.load import LoadedStudy, ResolvedRow, load_study
from paribus.study.places import asked_at, written_at
from paribus.study.plan import Arm, Plan, PlannedRun, Row, SearchRanking, Stage
from paribus.study.spec import Search, Study
from paribus.study.stages import Models, find_stages, names
from paribus.study.study_files import without_secrets
from paribus.text import plural
from paribus.yaml_file.document import Fault
from paribus.yaml_file.write import whole_text

KEY_DIGITS = 12

UNREAD = Hashes(code="unread", data="unread", model="unread")
"""In place of the hashes of an arm whose data or model cannot be read: such a plan is shown, but not run."""


@dataclass(frozen=True, kw_only=True)
class PlanDraft:
    """A plan, and what keeps it from being run.

    Attributes:
        study: the study.
        plan: its plan; fingerprints of runs have a meaning only if ``unread`` is empty.
        unsupported: why the runner cannot train the study, all reasons in one message; empty if it can.
        unread: messages about data and models that cannot be read, or that no run could use.
        facts: what the runner has seen of data and model, in lines.
        native: the training library's own options of each arm that can be trained, by its key; empty if it has none.
    """

    study: LoadedStudy
    plan: Plan
    unsupported: str
    unread: tuple[str, ...]
    facts: tuple[str, ...] = ()
    native: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def checked(self) -> Plan:
        """Return the plan if it can be run.

        Raises:
            UnsupportedRecipe: the runner cannot train some arms, or not on so many GPUs.
            UnreadableInput: data or a model cannot be read.
        """
        unread = "this study cannot be run yet:\n  " + "\n  ".join(self.unread) if self.unread else ""
        if self.unsupported:
            raise UnsupportedRecipe("\n".join(filter(None, (self.unsupported, unread))))
        if unread:
            raise UnreadableInput(unread)
        return self.plan


def draft_file(
    path: Path, changes: Sequence[str] = (), *, sent: bool = False, models: Models | None = None
) -> PlanDraft:
    """Return the plan of a study file, whether or not it can be run.

    Args:
        path: the file.
        changes: values of ``--set``, as in :func:`paribus.study.load.read_study`.
        sent: the file comes from another machine, as there.
        models: finds models that runs of other studies have trained; ``None``: a study that names one is not run.

    Raises:
        StudyFileError: the file is not a valid study; every problem is listed with its place.
    """
    study = load_study(path, changes, installed=True, sent=sent)
    draft = draft_plan(study, load_runner(study.spec.runner.kind), models)
    assert study.root is not None  # it came from a file
    return replace(draft, plan=replace(draft.plan, text=without_secrets(whole_text(path, study.root))))


def make_plan(study: LoadedStudy, runner: Runner, models: Models | None = None) -> Plan:
    """Return the plan of a study that can be run.

    Raises:
        StudyFileError: options of the runner are wrong.
        UnsupportedRecipe: the runner cannot train some arms; all reasons are listed with the arms.
        UnreadableInput: data or a model cannot be read.
    """
    return draft_plan(study, runner, models).checked()


def draft_plan(loaded: LoadedStudy, runner: Runner, models: Models | None = None) -> PlanDraft:
    """Return the plan of a study, whether or not it can be run; ``models`` as in :func:`draft_file`.

    Raises:
        StudyFileError: options of the runner are wrong, or it cannot evaluate a set.
    """
    study, options = loaded.spec, loaded.options
    _refuse_wrong_options(loaded, runner)
    distinct, rows = _arms_and_rows(loaded.base, loaded.rows)
    sets = unreadable_sets(runner, [arm.recipe for arm in distinct], options, study.evaluate)
    if faults := [*sets, *_tuned_stages(study, distinct)]:
        raise loaded.error(faults)
    at = study.seeds.at
    seeds = tuple(range(study.seeds.start, study.seeds.start + at[-1]))
    seeds_of = _seeds_of(study, distinct, seeds)
    stages = find_stages(distinct, seeds_of, runner, options, models)
    unread: dict[str, None] = dict.fromkeys(stages.faults)
    support = {key: tuple(runner.support(recipe, options)) for key, recipe in stages.recipes.items()}
    arms = tuple(_examined(arm, runner, loaded, support[arm.key], unread) for arm in distinct)
    seen, problems = _seen(stages.recipes, runner, study.evaluate, options)
    unread |= dict.fromkeys(seen.faults)
    runs = tuple(_runs(study, options, arms, seeds_of, stages.of))
    first = at[0] * len(arms)
    plan = Plan(
        study=study.study,
        fingerprint="",
        question=study.question,
        runner=study.runner.kind,
        base=arms[0].key,
        arms=arms,
        rows=rows,
        runs=runs[:first],
        seeds=seeds[: at[0]],
        paired=study.seeds.paired,
        evaluate=study.evaluate,
        stop_on=study.health.stop_on,
        profile=study.health.profile,
        rules=loaded.rules,
        mirror=study.mirror,
        webhook=(study.health.webhook or "").strip("${}"),
        command=study.health.command or (),
        gpu_hours=study.budget.gpu_hours,
        cpu_hours=study.budget.cpu_hours,
        run_hours=study.budget.run_hours,
        warnings=lint(
            study,
            arms,
            rows,
            changes=(*(row for row in rows if row.kind != "fractional"), *_rows(loaded, loaded.alone)),
            recipes={arm_key(recipe): recipe for _, recipe in (*loaded.rows, *loaded.alone)},
            samples_itself=lambda recipe: runner.requirements(recipe, options).samples_with_training_code,
            seen=seen.warnings,
            problems=problems,
        ),
        preset=study.base.preset,
        margin=study.margin,
        symptom_correction=study.report.symptom_correction,
        pairing=study.report.pairing,
        published=study.report.published,
        resources=_resources(study.resources, [runner.requirements(arm.recipe, options) for arm in arms]),
        checkpoint=study.checkpoint,
        timeouts=study.timeouts,
        interim=interim_rule(study.seeds),
        later=runs[first:],
        ranking=_ranking(loaded),
        options=options,
        stages={r.fingerprint: stages.of[r.arm, r.seed] for r in runs if (r.arm, r.seed) in stages.of},
    )
    return PlanDraft(
        study=loaded,
        plan=with_fingerprint(plan),
        unsupported=_unsupported(loaded, plan, runner, support),
        unread=tuple(unread),
        facts=(*stages.facts, *seen.facts),
        native=_native(stages.recipes, support, runner, options),
    )


def _native(
    recipes: Mapping[str, Recipe], support: Mapping[str, Sequence[Support]], runner: Runner, options: Options
) -> Mapping[str, Mapping[str, Any]]:
    """Return the training library's own options of each arm that can be trained, by its key."""
    return {
        key: found
        for key, recipe in recipes.items()
        if all(s.level != "unsupported" for s in support[key]) and (found := runner.native_options(recipe, options))
    }


def _tuned_stages(study: Study, arms: Sequence[Arm]) -> Iterator[Fault]:
    """Yield a fault if a search tunes what begins with a model of a study: its later arms are planned without one."""
    found = next((name for arm in arms for _, name in names(arm.recipe)), "")
    for label, design in study.designs.items():
        if found and isinstance(design, Search):
            message = f"a search has no base of another study (`{found}`): tune the earlier stage, or name a folder"
            yield Fault(place=("designs", label), message=message, at_key=True)


def _seen(
    recipes: Mapping[str, Recipe], runner: Runner, evaluate: Evaluate, options: Options
) -> tuple[Examination, Mapping[str, int | None]]:
    """Return what the runner sees of the data and models of all arms, each message once, and the problems of each."""
    distinct: dict[tuple[object, ...], Examination] = {}
    problems: dict[str, int | None] = {}
    for arm, recipe in recipes.items():
        key = (recipe.model, recipe.task, recipe.turns, recipe.compute, recipe.schedule.max_new_tokens)
        if key not in distinct:
            distinct[key] = runner.examine(recipe, evaluate, options)
        problems[arm] = distinct[key].problems
    found = distinct.values()
    whole = Examination(
        facts=tuple(dict.fromkeys(x for each in found for x in each.facts)),
        warnings=tuple(dict.fromkeys(x for each in found for x in each.warnings)),
        faults=tuple(dict.fromkeys(x for each in found for x in each.faults)),
    )
    return whole, problems


def _refuse_wrong_options(loaded: LoadedStudy, runner: Runner) -> None:
    kind = loaded.spec.runner.kind
    faults = [
        Fault(place=(kind if p.passthrough else "runner", *p.path), message=p.message, at_key=p.at_key)
        for p in runner.check_options(loaded.options)
    ]
    if faults:
        raise loaded.error(faults)


def _examined(
    arm: Arm, runner: Runner, loaded: LoadedStudy, support: Sequence[Support], unread: dict[str, None]
) -> Arm:
    """Return the arm with its hashes; note in ``unread`` why there are none, unless ``support`` says so already."""
    try:
        return _with_support(arm, runner, loaded.options, loaded.spec.evaluate, support)
    except ParibusError as error:
        if not any(str(error) in each.reason for each in support if each.level == "unsupported"):
            unread[str(error)] = None
        return replace(arm, hashes=UNREAD)


def examined(arm: Arm, runner: Runner, options: Options, evaluate: Evaluate) -> Arm:
    """Return the arm with its hashes, and with what its runner trains approximately.

    Raises:
        ParibusError: a file of data or model cannot be read.
    """
    return _with_support(arm, runner, options, evaluate, runner.support(arm.recipe, options))


def _with_support(arm: Arm, runner: Runner, options: Options, evaluate: Evaluate, support: Sequence[Support]) -> Arm:
    return replace(
        arm,
        hashes=arm_hashes(runner, arm.recipe, options, evaluate),
        approximate=tuple(s for s in support if s.level == "approximate"),
    )


def _resources(declared: Resources, needs: Sequence[Requirements]) -> Resources:
    """Return what each run holds: what the study declares, else what the runner cannot do without."""
    gpus, cpus, nodes, cores = declared.gpus, declared.cpus, declared.nodes, max(need.least_cpus for need in needs)
    if gpus is None and any(need.most_gpus == 0 for need in needs):
        gpus = 0.0  # else an engine with GPUs would give one that the run cannot use
    if gpus is None:
        gpus = float(ceil(max(need.least_gpus for need in needs))) or None
    if cpus is None and cores > 1:
        cpus = nodes * ceil(cores / nodes)
    return Resources(gpus=gpus, cpus=cpus, nodes=nodes)


def _unsupported(loaded: LoadedStudy, plan: Plan, runner: Runner, support: Mapping[str, Sequence[Support]]) -> str:
    """Return why the runner cannot train the plan, each reason with the arms that it holds for; empty if it can.

    A reason begins with the place in the file where the first of these arms asks for what cannot be trained.
    """
    reasons: dict[str, list[str]] = {}
    places: dict[str, str] = {}
    for arm in plan.arms:
        found = [(s.feature, s.reason) for s in support[arm.key] if s.level == "unsupported"]
        need = runner.requirements(arm.recipe, plan.options)
        for budget in ("tokens", "prompts"):
            if getattr(arm.recipe.schedule, budget) is not None and not getattr(runner, f"ends_by_{budget}", False):
                path = f"schedule.{budget}"
                reason = f"It does not end a run by `{path}`: remove the budget; `schedule.steps` ends a run."
                found.append((path, reason))
        found += [(f"resources.{key}", reason) for key, reason in _misfits(plan.resources, need)]
        for feature, reason in found:
            if reason not in reasons:
                places[reason] = written_at(loaded, asked_at(loaded, arm, feature))
            reasons.setdefault(reason, []).append(f"`{arm.label}`")
    lines = [
        f"  {places[reason]}{': ' * bool(places[reason])}{reason} (arms: {', '.join(labels)})"
        for reason, labels in reasons.items()
    ]
    return "\n".join([f"the runner `{plan.runner}` cannot train this study:", *lines]) if lines else ""


def _misfits(resources: Resources, need: Requirements) -> Iterator[tuple[str, str]]:
    """Yield which of the resources that a study declares a runner cannot train on, and why."""
    asked, nodes = resources.gpus, resources.nodes
    if asked is not None and asked < need.least_gpus:
        least = f"at least {plural(need.least_gpus, 'GPU')}" if need.least_gpus >= 1 else "a GPU, or a part of one"
        yield "gpus", f"A run needs {least}, and `resources.gpus` is {asked:g}."
    if asked and need.most_gpus == 0:
        yield "gpus", f"A run with these options trains on CPUs alone, and `resources.gpus` is {asked:g}."
    elif asked is not None and need.most_gpus is not None and asked > need.most_gpus:
        yield "gpus", f"A run uses at most {plural(need.most_gpus, 'GPU')}, and `resources.gpus` is {asked:g}."
    if resources.cpus is not None and resources.cpus < need.least_cpus:
        cores = plural(need.least_cpus, "CPU core")
        yield "cpus", f"A run needs {cores} or more, and `resources.cpus` is {resources.cpus}."
    if nodes > 1 and need.processes == 1:
        yield "nodes", "It trains on one node: remove `nodes` from `resources`."
    elif nodes > 1 and need.processes is None and not asked:
        yield "nodes", "On several nodes it trains in one process a GPU: declare `gpus` in `resources`, too."
    elif need.processes is not None and need.processes % nodes:
        yield "nodes", f"Its {need.processes} processes cannot be dealt out equally to {nodes} nodes."


def _ranking(loaded: LoadedStudy) -> SearchRanking | None:
    """Return the search of the study with what it tunes, before its first trial; ``None`` without one."""
    for name, design in loaded.spec.designs.items():
        if isinstance(design, Search):
            rows, untuned = _rows(loaded, loaded.tuned), tuple(recipe for _, recipe in loaded.tuned)
            return SearchRanking(design=name, rule=design, candidates=rows, untuned=untuned)
    return None


def _rows(loaded: LoadedStudy, resolved: Sequence[ResolvedRow]) -> tuple[Row, ...]:
    return _arms_and_rows(loaded.base, resolved)[1]


def arm_key(recipe: Recipe) -> str:
    """Return the key of the arm with this recipe, 12 hexadecimal digits."""
    return fingerprint_of(recipe_key(recipe))[:KEY_DIGITS]


def _arms_and_rows(base: Recipe, resolved: Sequence[ResolvedRow]) -> tuple[tuple[Arm, ...], tuple[Row, ...]]:
    """Return the distinct arms, the base first, and the rows; a label that two arms would share names its design."""
    arms = {arm_key(base): Arm(key=arm_key(base), label="base", recipe=base, changes={})}
    rows = []
    taken = {"base"}
    recipes = {(row.design, row.label): recipe for row, recipe in resolved}
    for row, recipe in resolved:
        key = arm_key(recipe)
        if key not in arms:
            label = row.label if row.label not in taken else f"{row.label} ({row.design})"
            taken.add(label)
            arms[key] = Arm(key=key, label=label, recipe=recipe, changes=difference(base, recipe))
        parent = recipes[row.design, row.parent] if row.parent is not None else recipe
        rows.append(
            Row(
                design=row.design,
                kind=row.kind,
                label=row.label,
                arm=key,
                parent=row.parent,
                tricks=row.tricks,
                changes=difference(parent, recipe),
            )
        )
    return tuple(arms.values()), tuple(rows)


def run_fingerprints(arm: Arm, evaluate: Evaluate, options: Options, stops: Mapping[str, Any]) -> Callable[[int], str]:
    """Return a function from a seed to the fingerprint of the arm's run; the arm is an examined one."""
    assert arm.hashes is not None  # see above
    return fingerprints(recipe=arm.recipe, evaluate=evaluate, hashes=arm.hashes, options=options, stops=stops)


def matches(plan: Plan, arm: Arm, hashes: Hashes) -> bool:
    """Return whether runs of an arm still have the fingerprints under which they were planned.

    Args:
        plan: any plan, also one of version 0.1, which keeps no hashes.
        arm: an arm of the plan.
        hashes: of code, data and initial model as they are now.
    """
    if arm.hashes is not None:
        return arm.hashes == hashes
    run = next((run for run in plan.all_runs if run.arm == arm.key), None)
    now = replace(arm, hashes=hashes)
    stops = stops_of(plan.stop_on, plan.profile)
    return run is None or run_fingerprints(now, plan.evaluate, plan.options, stops)(run.seed) == run.fingerprint


def _seeds_of(study: Study, arms: Sequence[Arm], seeds: Sequence[int]) -> Mapping[str, Sequence[int]]:
    """Return the seeds of each arm, by its key."""
    keys = [arm.key for arm in arms]
    return dict.fromkeys(keys, seeds) if study.seeds.paired else own_seeds(keys, study.seeds.start, len(seeds))


def _runs(
    study: Study,
    options: Options,
    arms: Sequence[Arm],
    seeds: Mapping[str, Sequence[int]],
    stages: Mapping[tuple[str, int], Stage],
) -> Iterator[PlannedRun]:
    """Yield the runs seed by seed, the base arm first, so that a study that is cut short has whole blocks."""
    stops = stops_of(study.health.stop_on, study.health.profile)
    identify = {arm.key: run_fingerprints(arm, study.evaluate, options, stops) for arm in arms}
    order = 0
    for k in range(len(seeds[arms[0].key])):
        for arm in arms:
            seed = seeds[arm.key][k]
            if stage := stages.get((arm.key, seed)):
                assert arm.hashes is not None  # it was examined
                begun = replace(arm, hashes=replace(arm.hashes, model=stage.model_hash))
                fingerprint = run_fingerprints(begun, study.evaluate, options, stops)(seed)
            else:
                fingerprint = identify[arm.key](seed)
            yield PlannedRun(fingerprint=fingerprint, arm=arm.key, seed=seed, order=order)
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
        **({"pairing": plan.pairing} if plan.pairing != "always" else {}),
        **({"looks": [plan.interim.at, plan.interim.spending, plan.interim.width]} if plan.interim else {}),
        **({"screen": _meaning_of(plan.ranking)} if plan.ranking else {}),
        **({"origin": plan.origin} if plan.origin else {}),
        **({"options": plan.options.said} if plan.options.said else {}),
    }
    return replace(plan, fingerprint=fingerprint_of(meaning))


def _meaning_of(screen: SearchRanking) -> list[Any]:
    tuned = [(row.label, recipe_key(recipe)) for row, recipe in zip(screen.candidates, screen.untuned, strict=True)]
    runs = [run.fingerprint for run in screen.runs]
    return [screen.design, screen.rule.model_dump(mode="json"), tuned, runs, screen.confirmed]
