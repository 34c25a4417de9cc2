"""``paribus plan``: shows the designs, arms, runs and costs of a study before anything is run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from paribus.cli.console import console, describe, print_warnings, shown, table
from paribus.cli.design_table import designs_as_plain, hours_text, orders_as_plain, print_design_summaries
from paribus.cli.options import engine_file_option, engine_option, home_option, json_option, set_option, study_argument
from paribus.contract import Checkpoints, Timeouts
from paribus.engines.base import refuse_too_large
from paribus.engines.options import engine_settings
from paribus.home import home
from paribus.recipe.compute import Compute
from paribus.recipe.rollout import Rollout
from paribus.store.history import past_runs, recorded_runs
from paribus.store.trained import TrainedModels
from paribus.study.adaptive import interim_text, levels_text, ranking_text, runs_between
from paribus.study.costs import Cost, run_costs, total
from paribus.study.evaluation import evaluation_share, set_sizes
from paribus.study.expand import PlanDraft, draft_file
from paribus.study.path import PathTricks
from paribus.study.pilot import Pilot, cost_of, kinds_without
from paribus.study.plan import Plan, Row
from paribus.study.spec import Study
from paribus.text import every, plural

if TYPE_CHECKING:
    from paribus.cli.cluster_plan import OnPaper


_MOST_ARMS = 4
"""How many arms are named that have a reward function which the base has not."""


@click.command()
@study_argument
@json_option
@engine_option("Engine that will run the study; the plan checks that `resources` fit.")
@engine_file_option
@click.option("--probe", is_flag=True, help="Train a few steps of each kind of run that has no recorded cost.")
@click.option("--cluster", metavar="NODESxGPUSxKIND", help="Play the study on this cluster, e.g. 64x8xH100 or 1x2xCPU.")
@click.option(
    "--failure-hours",
    type=click.FloatRange(min=0),
    help="With --cluster: device hours between two failures; 0: none. Default: 50000 on GPUs, none on CPU cores.",
)
@click.option(
    "--preemption-hours",
    type=click.FloatRange(min=0),
    help="With --cluster: hours of an attempt between two preemptions. Default: none.",
)
@click.option("--draw", type=int, default=0, help="With --cluster: seed of what is drawn.  [default: 0]")
@home_option
@set_option
def command(
    study: Path,
    folder: Path | None,
    as_json: bool,
    engine: str,
    options: Path | None,
    probe: bool,
    cluster: str | None,
    failure_hours: float | None,
    preemption_hours: float | None,
    draw: int,
    changes: tuple[str, ...],
) -> None:
    """Show the designs, arms and runs of STUDY, and what to know before you spend compute."""
    stated, where = (failure_hours, preemption_hours, draw), folder or home()
    on_paper = None if cluster is None else _read_cluster(cluster)
    if on_paper is None and stated != (None, None, 0):
        raise click.UsageError("--failure-hours, --preemption-hours and --draw need --cluster")
    draft = draft_file(study, changes, models=TrainedModels(where))
    plan, spec, of_path = draft.plan, draft.study.spec, draft.study.path
    recorded = recorded_runs(where, [run.fingerprint for run in plan.runs])
    left = any(run.fingerprint not in recorded for run in plan.runs)
    past = past_runs(where) if left else ()
    costs = run_costs(plan, spec.budget.prior, past)
    found: Sequence[Pilot] | None = None
    if probe:
        _refuse(draft, left, engine, options, where)
        found = _train_pilots(plan, recorded, run_costs(plan, None, past), engine, options, where)
        costs |= _pilot_costs(plan, found)
    if on_paper is not None:
        on_paper.play(draft.checked(), costs, past, recorded, stated)
    if as_json:
        more: dict[str, Any] = {"data": draft.facts, "path": of_path and vars(of_path), "native": draft.native}
        more["cluster"] = None if on_paper is None else on_paper.as_plain(plan)
        click.echo(json.dumps({**as_plain(spec, plan, recorded, costs, found), **more}, indent=1))
    else:
        print_plan(spec, plan, recorded, costs, found, draft.facts, of_path, draft.native)
    if on_paper is None:
        _refuse(draft, left, engine, options, where)
    elif not as_json:
        on_paper.print(plan, console())


def _read_cluster(text: str) -> OnPaper:
    from paribus.cli.cluster_plan import OnPaper  # with SQLAlchemy, which a plan needs for nothing else

    return OnPaper(text)


def _refuse(draft: PlanDraft, left: bool, engine: str, options: Path | None, where: Path) -> None:
    """Raise the error that keeps the study from being run, if there is one."""
    plan = draft.checked()
    if plan.resources.declared and left:
        refuse_too_large(plan.resources, engine, engine_settings(plan.runner, where, options=options))


def as_plain(
    study: Study, plan: Plan, recorded: frozenset[str], costs: Mapping[str, Cost], found: Sequence[Pilot] | None = None
) -> dict[str, Any]:
    """Return the plan as JSON values."""
    return {
        "study": plan.study,
        "fingerprint": plan.fingerprint,
        "question": plan.question,
        "runner": plan.runner,
        "base": plan.base,
        "arms": [{"key": a.key, "label": a.label, "changes": a.changes} for a in plan.arms],
        "rows": [
            {"design": r.design, "kind": r.kind, "label": r.label, "arm": r.arm, "parent": r.parent,
             "tricks": r.tricks, "changes": r.changes}
            for r in plan.rows
        ],
        "runs": [
            {"fingerprint": r.fingerprint, "arm": r.arm, "seed": r.seed, "recorded": r.fingerprint in recorded}
            for r in plan.runs
        ],
        "designs": designs_as_plain(study, plan, recorded, costs),
        "orders": orders_as_plain(plan),
        "reward_functions": reward_functions(plan),
        "sources": source_hashes(plan),
        "resources": plan.resources.model_dump(mode="json", exclude_none=True),
        "sets": [vars(size) for size in set_sizes(plan.evaluate, plan.arm(plan.base).recipe)],
        "checkpoint": plan.checkpoint.model_dump(mode="json"),
        "timeouts": plan.timeouts.model_dump(mode="json"),
        "looks": plan.interim and vars(plan.interim),
        "search": plan.ranking and {"design": plan.ranking.design, **plan.ranking.rule.model_dump(mode="json")},
        "later": [{"fingerprint": r.fingerprint, "arm": r.arm, "seed": r.seed} for r in plan.later],
        "evaluate": {**plan.evaluate.model_dump(mode="json"), "primary": plan.evaluate.primary_metric},
        "notes": [vars(note) for note in plan.warnings],
        "webhook": {"variable": plan.webhook, "trouble": _webhook_trouble(plan)} if plan.webhook else None,
        "probes": None if found is None else _pilots_as_plain(found),
    }  # fmt: skip


def print_plan(
    study: Study,
    plan: Plan,
    recorded: frozenset[str],
    costs: Mapping[str, Cost],
    found: Sequence[Pilot] | None = None,
    facts: Sequence[str] = (),
    of_path: PathTricks | None = None,
    native: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Print the plan as tables.

    Args:
        study: the study.
        plan: its plan.
        recorded: fingerprints of runs that have a result.
        costs: what is known of the cost of each arm.
        found: pilot runs.
        facts: lines about data and model.
        of_path: the tricks of a path.
        native: the training library's own options of each arm, by its key.
    """
    out = console()
    out.print(f"study {plan.study}  (runner {plan.runner})", style="bold")
    if plan.question:
        out.print(plan.question)
    _print_base(plan, out)
    for fact in facts:
        out.print(fact)
    _print_tricks(study, of_path, out)
    _print_designs(plan, out)
    _print_native(plan, native or {}, out)
    print_design_summaries(study, plan, recorded, costs, out)
    _print_counts(plan, recorded, out)
    _print_hours(plan, recorded, costs, out)
    if found is not None:
        for line in _pilot_lines(found):
            out.print(line)
    if trouble := _webhook_trouble(plan):
        out.print(trouble)
    if plan.warnings:
        out.print()
        print_warnings(plan.warnings, out)


def _webhook_trouble(plan: Plan) -> str:
    """Return why findings would go to no webhook from here; empty if they would, or the study has none."""
    if not plan.webhook:
        return ""
    from paribus.monitor.alerts import no_webhook  # with SQLAlchemy, which a plan needs for nothing else

    return no_webhook(plan)


def _print_native(plan: Plan, native: Mapping[str, Mapping[str, Any]], out: Console) -> None:
    """Print in which options of the training library each arm differs from the base; all others are equal."""
    if plan.base not in native:
        return
    base = native[plan.base]
    listed = table("arm", "differs from the base in", "equal", title=f"\noptions of {plan.runner}: {len(base)} are set")
    for arm in plan.arms[1:]:
        if arm.key not in native:
            continue
        mine = native[arm.key]
        differing = {k: (base.get(k), mine.get(k)) for k in sorted({*base, *mine}) if base.get(k) != mine.get(k)}
        text = "; ".join(f"{k}: {shown(old)} -> {shown(new)}" for k, (old, new) in differing.items())
        around = "none: it differs in what Paribus does around the trainer"
        listed.add_row(arm.label, text or around, f"all {len({*base, *mine}) - len(differing)} others")
    if listed.row_count:
        out.print(listed)
    else:
        out.print(f"\noptions of {plan.runner}: {len(base)} are set (--json lists them)")


def _print_base(plan: Plan, out: Console) -> None:
    recipe = plan.arm(plan.base).recipe
    s = recipe.schedule
    model = recipe.model.name
    if recipe.model.lora is not None:
        model += f" with adapters ({describe(recipe.model.lora)})"
    out.print(f"\nbase: model {model}, task {describe(recipe.task)}, arm {plan.base}")
    each = "of" if s.tokens is None else "with steps of"
    out.print(
        f"  {s.horizon} {each} {plural(s.prompts_per_step, 'prompt')} x {plural(s.group_size, 'response')}, "
        f"{plural(s.updates_per_rollout, 'update')} each ({plural(s.minibatches, 'minibatch')} x "
        f"{plural(s.epochs, 'epoch')}), "
        f"up to {plural(s.max_new_tokens, 'new token')}"
    )
    out.print(f"  {'optimizer':<13}{describe(recipe.optimizer)}")
    factors = ("reward", "length", "filter", "baseline", "scale", "ratio", "clip", "aggregation", "kl", "correction",
               "token_weight", "auxiliary")  # fmt: skip
    plain = recipe.model_copy(update={"reward": recipe.reward.model_copy(update={"functions": {}})})
    for name in factors:
        out.print(f"  {name:<13}{describe(getattr(plain, name))}")
    if recipe.turns.kind != "single":
        out.print(f"  {'turns':<13}{describe(recipe.turns)}")
    if recipe.rollout != Rollout():
        out.print(f"  {'rollout':<13}{describe(recipe.rollout)}")
    if recipe.compute != Compute():
        out.print(f"  {'compute':<13}{describe(recipe.compute)}")
    _print_reward_functions(plan, out)


def _print_reward_functions(plan: Plan, out: Console) -> None:
    """Print the functions of all arms, who has those that the base has not, and the files beside the study."""
    base = plan.arm(plan.base).label
    for each in reward_functions(plan):
        weights = " or ".join(f"{weight:g}" for weight in each["weights"])
        terms = f"weight {weights}, {each['on_failure']:g} on failure, at most {each['timeout_s']:g} s a call"
        where = each["file"] or "an installed module"
        arms = [f"`{label}`" for label in each["arms"]]
        more = f" and {len(arms) - _MOST_ARMS} more" if len(arms) > _MOST_ARMS else ""
        alone = "" if base in each["arms"] else f"; not in the base, but in {', '.join(arms[:_MOST_ARMS])}{more}"
        out.print(f"  {'function':<13}{each['name']}: {each['path']} of {where}; {terms}{alone}")
    if plan.options.sources:
        files = ", ".join(f"{path} (sha256 {digest[:12]})" for path, digest in source_hashes(plan).items())
        out.print(f"  {'source':<13}{files}")


def reward_functions(plan: Plan) -> list[dict[str, Any]]:
    """Return the reward functions of all arms: each with its arms, its weights and its file beside the study.

    What differs between arms beside the weight makes an entry of its own; of an installed module the file is empty.
    """
    found: dict[tuple[str, str], dict[float, None]] = {}
    terms: dict[tuple[str, str], dict[str, Any]] = {}
    arms: dict[tuple[str, str], list[str]] = {}
    for arm in plan.arms:
        for name, function in arm.recipe.reward.functions.items():
            values = function.model_dump()
            weight = values.pop("weight")
            key = name, json.dumps(values)
            found.setdefault(key, {})[weight] = None
            arms.setdefault(key, []).append(arm.label)
            terms[key] = {"name": name, **values, "file": _file_of(function.path, plan.options.sources)}
    return [{**terms[key], "weights": list(weights), "arms": arms[key]} for key, weights in found.items()]


def _file_of(path: str, sources: Collection[str]) -> str:
    module = path.rpartition(".")[0].replace(".", "/")
    return next((file for file in (f"{module}/__init__.py", f"{module}.py") if file in sources), "")


def source_hashes(plan: Plan) -> dict[str, str]:
    """Return the SHA-256 of each file beside the study that a reward function comes from."""
    return {path: hashlib.sha256(text.encode()).hexdigest() for path, text in plan.options.sources.items()}


def _print_tricks(study: Study, of_path: PathTricks | None, out: Console) -> None:
    """Print the tricks of a path with what each sets, and which tricks of the study go together."""
    if of_path is not None:
        count = len(of_path.changes)
        out.print(f"\npath from {of_path.start} to {of_path.to}: {plural(count, 'trick')}", style="bold")
        width = max(map(len, of_path.changes))
        for name, changes in of_path.changes.items():
            out.print(f"  {name:<{width}}  {change_text(changes)}")
    for trick, needed in study.needs.items():
        out.print(f"{trick} needs {', '.join(needed)}")
    for names in study.conflicts:
        out.print(f"at most one of {', '.join(names)}")


def _print_designs(plan: Plan, out: Console) -> None:
    for design in dict.fromkeys(row.design for row in plan.rows):
        rows = [row for row in plan.rows if row.design == design]
        if rows[0].kind == "fractional":  # the label names the tricks, and so the changes
            _print_fraction(rows, out)
            continue
        compared, named = _compared(rows)
        listed = table("row", "arm", f"changes against {compared}", title=f"\n{design} ({rows[0].kind})")
        for row in rows:
            changes = "-" if row.parent is None else change_text(row.changes) or "nothing"
            listed.add_row(
                row.label, row.arm, f"{changes}  (against {row.parent})" if named and row.parent else changes
            )
        out.print(listed)


def _print_fraction(rows: Sequence[Row], out: Console) -> None:
    listed = table("row", "arm", title=f"\n{rows[0].design} ({rows[0].kind})")
    for row in rows:
        listed.add_row(row.label, row.arm)
    out.print(listed)


def _compared(rows: Sequence[Row]) -> tuple[str, bool]:
    """Return what the rows of a design are compared with, and whether each row has to name it."""
    if all(row.parent == rows[0].label for row in rows[1:]):
        return f"`{rows[0].label}`", False
    if all(row.parent == above.label for above, row in pairwise(rows)):
        return "the row above", False
    return "the row named", True


def change_text(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """Return the changes of a row in one line; a new level is followed by its parameters in parentheses."""
    levels = {path.removesuffix(".kind") for path in changes if path.endswith(".kind")}
    parts = []
    for path, (before, after) in changes.items():
        owner, _, name = path.rpartition(".")
        if any(owner.startswith(f"{level}.") for level in levels):
            continue  # printed with its level
        if name == "kind":
            inner = [
                f"{other.removeprefix(owner + '.').removesuffix('.kind')}={shown(new)}"
                for other, (_, new) in changes.items()
                if other.startswith(f"{owner}.") and other != path and new is not None
            ]
            parts.append(f"{owner}: {before} -> {after}" + (f"({', '.join(inner)})" if inner else ""))
        elif owner not in levels:
            parts.append(f"{path}: {shown(before)} -> {shown(after)}")
    return "; ".join(parts)


def _print_counts(plan: Plan, recorded: frozenset[str], out: Console) -> None:
    listed = len(plan.rows) * len(plan.seeds)
    known = sum(run.fingerprint in recorded for run in plan.runs)
    seeds = ", ".join(map(str, plan.seeds[:8])) + (", ..." if len(plan.seeds) > 8 else "")
    how = f"{seeds} in every arm (paired)" if plan.paired else "its own in every arm"
    e = plan.evaluate
    out.print(f"\n{plural(len(plan.arms), 'distinct arm')}; {plural(len(plan.seeds), 'seed')}: {how}")
    out.print(f"runs: {listed} listed, {len(plan.runs)} distinct, {known} already recorded (reused)")
    _print_adaptive(plan, out)
    out.print(
        f"evaluation: {every(e.every, 'step')} on {plural(e.problems, 'held-out problem')} x "
        f"{plural(e.samples, 'sample')} at temperature "
        f"{e.temperature}; score {e.primary_metric}, {e.checkpoint}"
    )
    _print_sets(plan, out)
    caps = [(plan.gpu_hours, "GPU-hours"), (plan.cpu_hours, "CPU run-hours")]
    allowed = [f"{hours:g} {unit}" for hours, unit in caps if hours is not None]
    if allowed:
        out.print(f"budget: {', '.join(allowed)}")
    if plan.resources.declared:
        out.print(f"resources: {plan.resources.about()} a run")
    if plan.checkpoint != Checkpoints():
        out.print(f"checkpoints: {plan.checkpoint.about()}")
    if plan.timeouts != Timeouts():
        out.print(f"a run is hung without progress for: {plan.timeouts.about()}")
    if plan.run_hours is not None:
        need = plan.run_hours * (len(plan.runs) - known)
        short = any(hours is not None and hours < need for hours, _ in caps)
        enough = "; the budget may be too small" if short else ""
        out.print(f"cost: {plan.run_hours:g} hours a run declared, {need:g} for the runs without a result{enough}")


def _print_sets(plan: Plan, out: Console) -> None:
    """Print each evaluation set with its k, what one evaluation samples, and the share of all evaluation of a run."""
    if not plan.evaluate.sets:
        return
    recipe = plan.arm(plan.base).recipe
    sizes = set_sizes(plan.evaluate, recipe)
    listed = table("set", "k", "problems", "responses", "evaluations", "sampling", title="\nevaluation sets")
    for size in sizes:
        chosen = plan.evaluate.all_sets[size.name]
        mark = " (primary)" if size.name == plan.evaluate.primary_set else ""
        sampling = f"temperature {chosen.temperature:g}, top-p {chosen.top_p:g}, up to {size.limit:,} tokens"
        where = f"; {chosen.problems_text}" if chosen.task else ""
        counts = (size.text(size.problems), size.text(size.responses), f"{size.evaluations:,}")
        listed.add_row(f"{size.name}{mark}", f"{chosen.samples:,}", *counts, sampling + where)
    out.print(listed)
    share = evaluation_share(sizes, recipe)
    out.print(f"at most {share:.0%} of a base run's tokens go into evaluation, if all responses reach their limit")


def _print_adaptive(plan: Plan, out: Console) -> None:
    if plan.interim is not None:
        out.print(
            f"{interim_text(plan.interim)}; intervals at {levels_text(plan.interim)}, which is 95% over all looks"
        )
    if plan.ranking is not None:
        out.print(
            f"{ranking_text(plan.ranking)}; its arms are chosen from results, so the arms above do not include them"
        )
    if plan.adaptive:
        least, most = runs_between(plan)
        cost = "" if plan.run_hours is None else f": {plan.run_hours * least:g} to {plan.run_hours * most:g} hours"
        out.print(f"at least {plural(least, 'run')}, at most {most}{cost}")


def _print_hours(plan: Plan, recorded: frozenset[str], costs: Mapping[str, Cost], out: Console) -> None:
    left = [run for run in plan.runs if run.fingerprint not in recorded]
    if cost := total(costs, left):
        by = " and ".join(cost.sources)
        out.print(
            f"{cost.unit} by {by}: {hours_text(cost)} for the "
            f"{plural(len(left), 'distinct run that is', 'distinct runs that are')} not recorded"
        )


# ---- pilot runs --------------------------------------------------------------------------------------


def _train_pilots(
    plan: Plan, recorded: Collection[str], known: Collection[str], engine: str, options: Path | None, home: Path
) -> tuple[Pilot, ...]:
    """Train a few steps of each kind of run whose cost is unknown, if the study's engine trains on this machine.

    ``recorded`` are fingerprints of runs, ``known`` are keys of arms whose cost recorded runs show.
    """
    from paribus.scheduler.pilot import run_pilots

    if engine not in ("local", "inline"):
        raise click.UsageError(
            f"--probe trains on this machine, and the study will run on {engine}: state `budget.prior`, or run one seed"
        )
    kinds = kinds_without(plan, recorded, known)
    if not kinds:
        return ()
    settings = engine_settings(plan.runner, home, options=options)
    return run_pilots(plan, kinds, settings, home, lambda line: click.echo(f"probe: {line}", err=True))


def _pilot_costs(plan: Plan, found: Sequence[Pilot]) -> dict[str, Cost]:
    """Return the cost of one run of each arm with a pilot run, by key of the arm."""
    return {a.key: cost_of(each.times, a.recipe, plan.evaluate) for each in found for a in each.arms}


def _pilot_lines(found: Sequence[Pilot]) -> list[str]:
    """Return the results as lines of text."""
    if not found:
        return ["probe: recorded runs show the cost of every arm, so nothing was trained"]
    lines = [
        "pilot runs on this machine, a few steps of each kind of run without history; nothing of them is recorded. "
        "High: the slowest step, with all responses at their limit"
    ]
    for each in found:
        arms, times = each.arms, each.times
        more = f" and {len(arms) - 1} more" if len(arms) > 1 else ""
        limit = arms[0].recipe.schedule.max_new_tokens
        length = "" if times.length is None else f", responses of {times.length:.1f} tokens, at most {limit}"
        steps = f"{times.step:.3g} s a step ({min(times.steps):.3g} to {max(times.steps):.3g})"
        lines.append(
            f"  {arms[0].label}{more}: {steps}, {times.evaluation:.3g} s an evaluation, {times.start:.3g} s to start"
            f"{length}"
        )
    return lines


def _pilots_as_plain(found: Sequence[Pilot]) -> list[dict[str, Any]]:
    """Return the results as JSON values."""
    return [{"arms": [arm.key for arm in each.arms], **vars(each.times)} for each in found]
