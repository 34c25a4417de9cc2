"""Search designs: Optuna chooses settings, the scheduler runs them, and the best run again on fresh seeds.

Optuna stores nothing. For each block of trials, its study is rebuilt in memory from the trials in the plan and their
recorded scores, with a seed of that block. So the same records give the same trials, even after a crash.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from paribus.contract import Runner
from paribus.errors import MissingExtra
from paribus.recipe.recipe import Recipe, difference, flatten
from paribus.recipe.resolve import Step, resolve
from paribus.study.expand import arm_key, examined, own_seeds, run_fingerprints
from paribus.study.fingerprint import stops_of
from paribus.study.plan import Arm, Plan, PlannedRun, Row, SearchRanking, Trial
from paribus.study.spec import Search

if TYPE_CHECKING:
    import optuna

SEED = 2_000_000
"""First seed of the trials: beyond every seed that a study can name, so that no trial uses a fresh seed."""

DIGITS = 4
"""Significant digits of the numbers that are tried, so that they print short and exact."""

RANDOM_FIRST = 10
"""Random trials before ``tpe`` learns; at most half of all trials, so that small searches learn, too."""

Scores: TypeAlias = Mapping[tuple[str, int], float | None]
"""Tuned arm and number of a trial to the mean score of its runs, higher is better; ``None`` for a failed trial."""


def refuse_without_optuna(plan: Plan) -> None:
    """Refuse a plan with a search if Optuna is missing.

    Raises:
        MissingExtra: Optuna is not installed, and the plan has a search.
    """
    if plan.ranking is not None and importlib.util.find_spec("optuna") is None:
        raise MissingExtra("search", f"the design `{plan.ranking.design}` (kind `search`)")


def next_trials(plan: Plan, scores: Scores, runner: Runner) -> Plan | None:
    """Return the plan with the next trials, equally many for each tuned arm; ``None`` after the last trial.

    Args:
        plan: a plan with a screen.
        scores: of all trials of the plan.
        runner: gives the new runs their fingerprints.
    """
    screen = plan.ranking
    assert screen is not None  # documented above
    if len(screen.trials) == screen.rule.trials * len(screen.candidates):
        return None
    arms, trials = {arm.key: arm for arm in screen.arms}, list(screen.trials)
    for row, untuned in zip(screen.candidates, screen.untuned, strict=True):
        known = [t for t in screen.trials if t.candidate == row.label]
        for k, values in enumerate(_ask(screen.rule, untuned, known, scores), start=len(known) + 1):
            recipe = _with_values(untuned, values)
            key = arm_key(recipe)
            changes = difference(plan.arm(plan.base).recipe, recipe)
            if key not in arms:
                arm = Arm(key=key, label=f"{row.label}: trial {k}", recipe=recipe, changes=changes)
                arms[key] = examined(arm, runner, plan.options, plan.evaluate)
            trials.append(Trial(candidate=row.label, number=k, values=values, arm=key))
    fresh = [arm for key, arm in arms.items() if key not in {a.key for a in screen.arms}]
    seeds = range(SEED, SEED + screen.rule.seeds)
    runs = _runs(plan, fresh, {arm.key: seeds for arm in fresh})
    return replace(
        plan,
        ranking=replace(
            screen, trials=tuple(trials), arms=tuple(arms.values()), runs=(*screen.runs, *runs), optuna=version()
        ),
    )


def confirm(plan: Plan, scores: Scores, runner: Runner) -> Plan:
    """Return the plan with the best setting of each tuned arm, to be run on the seeds of the study.

    The rows form an ordinary design whose first row is the reference. A tuned arm whose trials all failed has no row.
    """
    screen = plan.ranking
    assert screen is not None  # documented above
    tried = {arm.key: arm.recipe for arm in screen.arms}
    best = chosen(screen, scores)
    arms, rows = {arm.key: arm for arm in plan.arms}, list[Row]()
    for candidate in screen.candidates:
        if candidate.label not in best:
            continue
        key = best[candidate.label].arm
        label, recipe = f"{candidate.label}, tuned", tried[key]
        first = rows[0] if rows else None
        changes = difference(arms[first.arm].recipe, recipe) if first else {}
        rows.append(replace(candidate, label=label, arm=key, parent=first.label if first else None, changes=changes))
        if key not in arms:
            arm = Arm(key=key, label=label, recipe=recipe, changes=difference(arms[plan.base].recipe, recipe))
            arms[key] = examined(arm, runner, plan.options, plan.evaluate)
    fresh = [arm for key, arm in arms.items() if key not in {a.key for a in plan.arms}]
    own = own_seeds([a.key for a in fresh], plan.seeds[0], len(plan.seeds))
    seeds = {arm.key: plan.seeds if plan.paired else own[arm.key] for arm in fresh}
    return replace(
        plan,
        arms=tuple(arms.values()),
        rows=(*plan.rows, *rows),
        runs=(*plan.runs, *_runs(plan, fresh, seeds)),
        ranking=replace(screen, confirmed=True, importance=_importances(screen, scores)),
    )


def chosen(screen: SearchRanking, scores: Scores) -> dict[str, Trial]:
    """Return the best trial of each tuned arm; of equal ones the earlier."""
    best: dict[str, tuple[float, Trial]] = {}
    for trial in screen.trials:
        score = scores[trial.candidate, trial.number]
        if score is not None and (trial.candidate not in best or score > best[trial.candidate][0]):
            best[trial.candidate] = (score, trial)
    return {candidate: trial for candidate, (_, trial) in best.items()}


def version() -> str:
    """Return Optuna's version; another version may choose other trials."""
    return importlib.metadata.version("optuna")


def _runs(plan: Plan, arms: Sequence[Arm], seeds: Mapping[str, Sequence[int]]) -> Iterator[PlannedRun]:
    """Yield the runs of new arms seed by seed, after those of the plan."""
    stops = stops_of(plan.stop_on, plan.profile)
    identify = {arm.key: run_fingerprints(arm, plan.evaluate, plan.options, stops) for arm in arms}
    order = 1 + max(run.order for run in plan.all_runs)
    count = min(map(len, seeds.values()), default=0)
    for place, (k, arm) in enumerate((k, arm) for k in range(count) for arm in arms):
        seed = seeds[arm.key][k]
        yield PlannedRun(fingerprint=identify[arm.key](seed), arm=arm.key, seed=seed, order=order + place)


def _with_values(recipe: Recipe, values: Mapping[str, float]) -> Recipe:
    found = resolve(recipe.model_dump(), (Step(place=(), patch=values),), ()).recipe
    assert found is not None  # both ends of each range were tried when the file was read
    return found


def _ask(rule: Search, untuned: Recipe, known: Sequence[Trial], scores: Scores) -> Iterator[dict[str, float]]:
    """Yield the next settings of one arm. Its first is the untuned one, if that lies in the ranges."""
    study = _study(rule, known, scores)
    if not known and (own := _own(rule, untuned)):
        study.enqueue_trial(own)
    for _ in range(min(rule.parallel, rule.trials - len(known))):
        yield {path: _rounded(v, rule, path, untuned) for path, v in study.ask(_ranges(rule)).params.items()}


def _study(rule: Search, known: Sequence[Trial], scores: Scores) -> optuna.Study:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    key = f"{rule.seed}/{len(known)}".encode()  # equal for all tuned arms, so that none has a luckier start
    seed = int.from_bytes(hashlib.sha256(key).digest()[:4], "big")
    sampler: optuna.samplers.BaseSampler = optuna.samplers.RandomSampler(seed=seed)
    if rule.sampler == "tpe":
        first = max(1, min(RANDOM_FIRST, rule.trials // 2))
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=first, multivariate=True, constant_liar=True)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for trial in known:
        score = scores[trial.candidate, trial.number]
        ended: dict[str, Any] = {"state": optuna.trial.TrialState.FAIL} if score is None else {"value": score}
        found = optuna.trial.create_trial(params=dict(trial.values), distributions=_ranges(rule), **ended)
        study.add_trial(found)
    return study


def _ranges(rule: Search) -> dict[str, Any]:
    from optuna.distributions import FloatDistribution

    return {path: FloatDistribution(r.low, r.high, log=r.log) for path, r in rule.over.items()}


def _own(rule: Search, untuned: Recipe) -> dict[str, float]:
    """Return the untuned values of the searched paths; empty if one lies outside its range."""
    values = flatten(untuned.model_dump(mode="json"))
    own = {path: values.get(path) for path in rule.over}
    inside = all(isinstance(v, int | float) and rule.over[p].low <= v <= rule.over[p].high for p, v in own.items())
    return {path: float(v) for path, v in own.items() if v is not None} if inside else {}


def _rounded(value: float, rule: Search, path: str, untuned: Recipe) -> float:
    if _own(rule, untuned).get(path) == value:
        return value
    return min(max(float(f"{value:.{DIGITS}g}"), rule.over[path].low), rule.over[path].high)


def _importances(screen: SearchRanking, scores: Scores) -> dict[str, dict[str, float]]:
    """Return tuned arm to path to its importance, by the declared evaluator, where the evaluator gives one."""
    if screen.rule.importance is None or len(screen.rule.over) < 2:
        return {}
    from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator, get_param_importances

    found = {}
    for row in screen.candidates:
        known = [t for t in screen.trials if t.candidate == row.label]
        if len({s for t in known if (s := scores[t.candidate, t.number]) is not None}) < 2:
            continue
        fanova = screen.rule.importance == "fanova"
        evaluator = FanovaImportanceEvaluator(seed=screen.rule.seed) if fanova else PedAnovaImportanceEvaluator()
        shares = get_param_importances(_study(screen.rule, known, scores), evaluator=evaluator)
        found[row.label] = {path: float(f"{share:.{DIGITS}g}") for path, share in shares.items()}
    return found
