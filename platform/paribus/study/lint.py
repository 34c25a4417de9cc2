"""Warnings about a plan: changes that cannot act, comparisons that cannot be read, costs. No compute is spent yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import sqrt
from typing import Any

from paribus.evaluate import HELDOUT
from paribus.recipe import analysis
from paribus.recipe.recipe import JsonlTask, Recipe
from paribus.stats.power import detectable_shift
from paribus.study.evaluation import LARGE_SHARE, evaluation_share, lines_in, set_sizes
from paribus.study.plan import Arm, PlanWarning, Row
from paribus.study.spec import Seeds, Study
from paribus.text import plural

_NAMED = 4  # places that a warning names
_TOGETHER = {
    "confounded": "optimizer.max_grad_norm may clip one of two recipes more than the other, so read "
    "optim/grad_clip_frac beside the result or set it to null for both",
    "cost": "more in each step than in the row that it is compared with",
}  # one warning for all reasons, because the remedy is the same


def lint(
    study: Study,
    arms: Sequence[Arm],
    rows: Sequence[Row],
    *,
    changes: Sequence[Row],
    recipes: Mapping[str, Recipe],
    samples_itself: Callable[[Recipe], bool],
    seen: Sequence[tuple[str, str]] = (),
    problems: Mapping[str, int | None] | None = None,
) -> tuple[PlanWarning, ...]:
    """Return the warnings about a plan, without those that the study allows.

    A reason that holds for several rows or arms makes one warning, which names them.

    Args:
        study: the study.
        arms: what is trained.
        rows: rows of all designs.
        changes: rows whose change against their parent is checked: for a fraction, the tricks alone.
        recipes: recipe of each arm that ``changes`` name.
        samples_itself: whether the code that trains a recipe also samples its rollouts.
        seen: codes and messages of what the runner has seen of data and model.
        problems: number of training problems by key of the arm, as far as the runner knows it.
    """
    found = (
        *_row_warnings(changes, recipes, samples_itself),
        *_identical(rows),
        *_undone(rows),
        *_unequal_budgets(rows, arms),
        *_budgets_of_tokens(study, arms),
        *_other_heldout(arms),
        *_arm_warnings(arms, study.budget.pass_rates, problems or {}),
        *_few_evaluations(study, arms),
        *_evaluation_warnings(study, arms),
        *(PlanWarning(code=code, message=message) for code, message in seen),
        seed_warning(study.seeds),
    )
    return tuple(warning for warning in dict.fromkeys(found) if warning.code not in study.allow)


def seed_warning(seeds: Seeds) -> PlanWarning:
    """Return the warning that says what a comparison with this number of seeds can show."""
    n = seeds.at[-1]
    if n < 3:
        few = "one seed" if n == 1 else f"{n} seeds"
        return PlanWarning(
            code="seeds",
            message=f"{few}: no difference can be separated from seed noise, so none is tested; that takes 3",
        )
    smallest, effect = smallest_p(n), detectable_effect(n, paired=seeds.paired)
    unit = "standard deviations of the paired differences" if seeds.paired else "standard deviations over seeds"
    few = ", unless a look ends the study earlier, for a test without looks" if len(seeds.at) > 1 else ""
    return PlanWarning(
        code="seeds",
        message=f"{n} seeds{few}: the smallest possible two-sided p of a sign-flip test is {smallest:.3g}; "
        f"a t test finds differences of {effect:.3g} {unit} (power 0.8 at level 0.05)",
    )


def smallest_p(n: int) -> float:
    """Return the smallest two-sided p that a sign-flip test of n differences can give: 2 / 2^n."""
    return float(2.0 ** (1 - n))


def detectable_effect(n: int, *, paired: bool) -> float:
    """Return the difference that a two-sided t test at 0.05 finds with power 0.8, in standard deviations.

    Args:
        n: seeds per arm, 2 or more.
        paired: in standard deviations of the differences between arms with the same seed; else of one arm over seeds.
    """
    df, variance = (n - 1, 1 / n) if paired else (2 * n - 2, 2 / n)
    return detectable_shift(df) * sqrt(variance)


def _row_warnings(
    rows: Sequence[Row], recipes: Mapping[str, Recipe], samples_itself: Callable[[Recipe], bool]
) -> Iterator[PlanWarning]:
    parents = {(row.design, row.label): row.arm for row in rows}
    found: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.parent is None:
            continue
        before, after = recipes[parents[row.design, row.parent]], recipes[row.arm]
        if not row.changes:
            if row.kind not in ("grid", "one_at_a_time"):  # the base's own value belongs among the levels
                yield PlanWarning(
                    code="no_change", arm=row.label, message=f"{_place(row)} is the same recipe as `{row.parent}`"
                )
            continue
        for code, reason in _of_change(before, after, samples_itself(before) and samples_itself(after)):
            found.setdefault((code, reason), []).append(row)
    for code in ("inert", "rescaled"):
        for reason, where in _with(code, found):
            yield PlanWarning(code=code, arm=where[0].label, message=f"{_places(where)}: {reason}")
    for code, start in _TOGETHER.items():
        if reasons := _with(code, found):
            parts = (f"{reason} ({_places(where)})" for reason, where in reasons)
            yield PlanWarning(code=code, arm=reasons[0][1][0].label, message=f"{start}: {'; '.join(parts)}")


def _with(code: str, found: Mapping[tuple[str, str], list[Row]]) -> list[tuple[str, list[Row]]]:
    return [(reason, where) for (one, reason), where in found.items() if one == code]


def _of_change(before: Recipe, after: Recipe, samples_itself: bool) -> Iterator[tuple[str, str]]:
    """Yield code and reason of each warning about one change; a change that only rescales is not called confounded."""
    if reason := analysis.inert(before, after, sampler_is_learner=samples_itself):
        yield "inert", reason
    elif reason := analysis.rescaled(before, after):
        yield "rescaled", reason
    else:
        yield from (("confounded", why) for why in analysis.confounded(before, after))
    yield from (("cost", what) for what in analysis.added_cost(before, after))


def _identical(rows: Sequence[Row]) -> Iterator[PlanWarning]:
    first: dict[tuple[str, str], Row] = {}
    for row in rows:
        same = first.setdefault((row.design, row.arm), row)
        if same is not row and row.parent != same.label and same.parent != row.label:
            yield PlanWarning(
                code="identical_rows", arm=row.label, message=f"{_place(row)} and `{same.label}` are the same recipe"
            )


def _undone(rows: Sequence[Row]) -> Iterator[PlanWarning]:
    """Yield where a row of a ladder sets all that the row above it changed back to what it was."""
    for before, row in pairwise(rows):
        ladder = row.kind == before.kind == "cumulative" and row.design == before.design
        if not ladder or row.parent != before.label or not before.changes:
            continue
        if all(row.changes.get(path, ("",))[::-1] == change for path, change in before.changes.items()):
            yield PlanWarning(
                code="undone",
                arm=row.label,
                message=f"{_place(row)} sets {', '.join(before.changes)} back, and so undoes `{before.label}`: put "
                "the two tricks into different ladders, or leave one out",
            )


def _unequal_budgets(rows: Sequence[Row], arms: Sequence[Arm]) -> Iterator[PlanWarning]:
    """Yield the designs whose arms sample different numbers of responses, or end at different numbers of tokens."""
    schedules = {arm.key: arm.recipe.schedule for arm in arms}
    for design in dict.fromkeys(row.design for row in rows):
        ends: dict[tuple[int | None, int | None], Row] = {}
        for row in rows:
            if row.design == design:
                ends.setdefault(schedules[row.arm].budgets, row)
        if len(ends) > 1:
            each = ", ".join(f"`{r.label}` {schedules[r.arm].horizon}" for r in [*ends.values()][:_NAMED])
            yield PlanWarning(
                code="unequal_budget",
                arm=[*ends.values()][1].label,
                message=f"{design}: arms end at different horizons ({each}): part of a difference may be compute. Give "
                "all arms the same `schedule.tokens` or `schedule.prompts`, or none",
            )
        if ends.keys() != {(None, None)}:
            continue  # where all end at the same number of tokens or prompts, the number of steps is a result
        sizes: dict[tuple[int, int, int], str] = {}
        for row in rows:
            if row.design == design:
                s = schedules[row.arm]
                sizes.setdefault((s.steps, s.prompts_per_step, s.group_size), row.label)
        if len({steps * prompts * group for steps, prompts, group in sizes}) > 1:
            each = ", ".join(f"`{label}` {a} x {b} x {c}" for (a, b, c), label in [*sizes.items()][:_NAMED])
            yield PlanWarning(
                code="unequal_budget",
                arm=[*sizes.values()][1],
                message=f"{design}: arms sample different numbers of responses (steps x prompts x responses: {each}): "
                "part of a difference may be compute. Give all arms one `schedule.tokens`, or make the products equal",
            )


def _budgets_of_tokens(study: Study, arms: Sequence[Arm]) -> Iterator[PlanWarning]:
    """Yield which arms may end before their budget of tokens is spent, and that a mean of evaluations is uneven."""
    limited = [(arm, tokens) for arm in arms if (tokens := arm.recipe.schedule.tokens) is not None]
    for arm, tokens in limited:
        s = arm.recipe.schedule
        length = tokens / (s.steps * s.responses)
        if 2 * length > s.max_new_tokens:
            yield PlanWarning(
                code="token_budget",
                arm=arm.label,
                message=f"`{arm.label}`: {plural(s.steps, 'step spends', 'steps spend')} {tokens:,} tokens only if "
                "a round's responses have "
                f"{length:.3g} tokens on average, more than half of `schedule.max_new_tokens`. Raise `schedule.steps`: "
                "a run that it ends has spent less than the others",
            )
            break
    if limited and study.evaluate.checkpoint == "mean_of_last_3":
        yield PlanWarning(
            code="token_budget",
            arm=limited[0][0].label,
            message="`evaluate.checkpoint: mean_of_last_3` with `schedule.tokens`: evaluations lie steps apart, so the "
            "last three cover more tokens where a step generates more. Choose `final`",
        )


def _other_heldout(arms: Sequence[Arm]) -> Iterator[PlanWarning]:
    """Yield which arms are not evaluated on the problems of the first, the base."""
    base = _evaluated(arms[0].recipe)
    others = [arm.label for arm in arms if _evaluated(arm.recipe) != base]
    if others:
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        yield PlanWarning(
            code="other_heldout",
            arm=others[0],
            message=f"{', '.join(f'`{label}`' for label in others[:_NAMED])}{more}: the held-out problems, or how they "
            "are verified, are not those of the base, so a difference to it compares two tests. Put other problems "
            "into `evaluate.sets`, which all arms share",
        )


def _evaluated(recipe: Recipe) -> Mapping[str, Any]:
    """Return what of a task decides which held-out problems there are, and what counts as right."""
    values: dict[str, Any] = recipe.task.model_dump()
    return {name: values.get(name) for name in ("kind", "heldout", "format", "prompt", "answer", "verifier")}


def _evaluation_warnings(study: Study, arms: Sequence[Arm]) -> Iterator[PlanWarning]:
    for name, each in study.evaluate.all_sets.items():
        where = "evaluate" if name == HELDOUT else f"evaluate.sets.{name}"
        if each.temperature > analysis.MOST_TEMPERATURE:
            yield PlanWarning(
                code="magnitude",
                message=f"`{where}.temperature: {each.temperature:g}` samples nearly random text: usual is 0.6 to 1.0",
            )
        stated = name == HELDOUT or each.problems != study.evaluate.problems
        tasks = [each.task] if each.task is not None else [arm.recipe.task for arm in arms if name == HELDOUT]
        for path in dict.fromkeys(task.heldout for task in tasks if isinstance(task, JsonlTask) and stated):
            if 0 < (there := lines_in(path) or 0) < each.problems:
                yield PlanWarning(
                    code="few_problems",
                    message=f"`{where}.problems: {each.problems}`, but {path} holds {there}, and no more are used: "
                    "write that number, or supply more",
                )
    if study.evaluate.sets:
        yield from _large_evaluation(study, arms)


def _few_evaluations(study: Study, arms: Sequence[Arm]) -> Iterator[PlanWarning]:
    """Yield that a mean of the last three evaluations has fewer, for the arm that has the fewest."""
    if study.evaluate.checkpoint != "mean_of_last_3":
        return
    every = study.evaluate.all_sets[study.evaluate.primary_set].every
    arm = min(arms, key=lambda each: each.recipe.schedule.steps)
    steps = arm.recipe.schedule.steps
    if (count := -(-steps // every)) < 3:
        evaluations = "one evaluation" if count == 1 else f"{count} evaluations"
        yield PlanWarning(
            code="few_evaluations",
            arm=arm.label,
            message=f"`{arm.label}`: with {plural(steps, 'step')} and one evaluation every {every}, "
            "`mean_of_last_3` is the mean "
            f"of {evaluations}, as step 0 does not count. Evaluate every {max(1, steps // 3)}, or choose `final`",
        )


def _large_evaluation(study: Study, arms: Sequence[Arm]) -> Iterator[PlanWarning]:
    """Yield that evaluation samples more than training, for the arm in which its share is largest."""
    shares = [(evaluation_share(set_sizes(study.evaluate, arm.recipe), arm.recipe), arm) for arm in arms]
    share, arm = max(shares, key=lambda found: found[0])
    if share > LARGE_SHARE:
        sizes = set_sizes(study.evaluate, arm.recipe)
        largest = max(sizes, key=lambda size: size.tokens)
        bound = "" if all(size.counted for size in sizes) else "up to "
        yield PlanWarning(
            code="evaluation_cost",
            arm=arm.label,
            message=f"`{arm.label}`: {bound}{share:.0%} of a run's tokens go into its evaluation if all responses are "
            f"as long as they may become, most of them into `{largest.name}` "
            f"({largest.text(largest.responses)} responses, {plural(largest.evaluations, 'time')}): evaluate it "
            "less often "
            "(`every`), or with fewer problems or samples",
        )


def _repeated_problems(recipe: Recipe, problems: int | None) -> str:
    """Return that a step has more prompts than there are problems; empty if it has not."""
    prompts = recipe.schedule.prompts_per_step
    if problems is None or prompts <= problems:
        return ""
    return (
        f"`schedule.prompts_per_step: {prompts}`, but the task has {problems:,} training problems, so each step "
        "repeats some: lower it to that number, or supply more problems"
    )


def _arm_warnings(
    arms: Sequence[Arm], pass_rates: Sequence[float], problems: Mapping[str, int | None]
) -> Iterator[PlanWarning]:
    checks: dict[str, Callable[[Arm], Iterable[str | None]]] = {
        "same_responses": lambda arm: [analysis.same_responses(arm.recipe)],
        "limit": lambda arm: analysis.limits(arm.recipe),
        "magnitude": lambda arm: analysis.magnitudes(arm.recipe),
        "never_clips": lambda arm: [analysis.never_clips(arm.recipe)],
        "length_weighted": lambda arm: [analysis.length_weighted(arm.recipe)],
        "repeated_problems": lambda arm: [_repeated_problems(arm.recipe, problems.get(arm.key))],
        "cost": lambda arm: [analysis.refill_cost(arm.recipe, pass_rates)],
        "approximate": lambda arm: [f"`{s.feature}` is trained approximately: {s.reason}" for s in arm.approximate],
    }
    for code, check in checks.items():
        reasons: dict[str, list[str]] = {}
        for arm in arms:
            for reason in filter(None, check(arm)):
                reasons.setdefault(reason, []).append(arm.label)
        for reason, labels in reasons.items():
            more = f" (and {len(labels) - 1} more)" if len(labels) > 1 else ""
            yield PlanWarning(code=code, arm=labels[0], message=f"`{labels[0]}`{more}: {reason}")


def _places(rows: Sequence[Row]) -> str:
    """Return the places of rows, the first few by name."""
    more = f" and {len(rows) - _NAMED} more" if len(rows) > _NAMED else ""
    return ", ".join(_place(row) for row in rows[:_NAMED]) + more


def _place(row: Row) -> str:
    return f"{row.design}: `{row.label}`"
