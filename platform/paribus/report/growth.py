"""What a study's declared rule asks for next: read from the numbers that the report prints, so that both agree."""

from __future__ import annotations

from dataclasses import replace
from math import fsum

from paribus.report.analysis import MIN_SEEDS, Analysis, Effect
from paribus.report.data import StudyData
from paribus.report.measures import score_measure, value_of
from paribus.report.read import read_runs
from paribus.stats.compare import ALPHA
from paribus.store.reader import Reader
from paribus.store.records import StudyRecord
from paribus.study.expand import PlanRunner, with_fingerprint
from paribus.study.growth import next_look
from paribus.study.plan import Plan
from paribus.study.runner import load_runner


def grown(reader: Reader, study: StudyRecord) -> Plan | None:
    """Return the plan that a study's rule asks for after what is recorded; ``None`` if it asks for nothing (now)."""
    if not study.plan.grows:
        return None
    return next_block(read_runs(reader, study)[0], load_runner(study.plan.runner))


def next_block(data: StudyData, runner: PlanRunner) -> Plan | None:
    """Return the plan with the runs that the results ask for, whole blocks of them; a pure function.

    A study of which runs are open or cancelled asks for nothing: what is cancelled is not brought back by a rule.

    Args:
        data: the study.
        runner: gives new settings of a search their fingerprints.
    """
    if any(run.outcome in ("pending", "cancelled") for run in (*data.runs, *data.screened)):
        return None
    plan = data.plan
    if plan.screen is not None:
        found = None if plan.screen.confirmed else _screened(data, runner)
    else:
        found = None if enough(Analysis(data)) else next_look(plan)
    return found and with_fingerprint(replace(found, origin=plan.origin or plan.fingerprint))


def _screened(data: StudyData, runner: PlanRunner) -> Plan:
    from paribus.study.search import confirm, next_trials, refuse_without_optuna

    refuse_without_optuna(data.plan)
    scores = screen_scores(data)
    return next_trials(data.plan, scores, runner) or confirm(data.plan, scores, runner)


def screen_scores(data: StudyData) -> dict[tuple[str, int], float | None]:
    """Return candidate and number of each trial to the mean score of its runs; ``None`` unless each has one."""
    screen, evaluate = data.plan.screen, data.plan.evaluate
    found: dict[str, list[float | None]] = {}
    for run in data.screened:
        found.setdefault(run.arm, []).append(value_of(run, score_measure(evaluate), evaluate))
    means = {}
    for trial in screen.trials if screen else ():
        values = found.get(trial.arm, [])
        known = [v for v in values if v is not None]
        means[trial.candidate, trial.number] = fsum(known) / len(known) if known and len(known) == len(values) else None
    return means


def enough(analysis: Analysis) -> bool:
    """Whether the rule by which seeds are added ends the study at this look."""
    looks = analysis.plan.looks
    effects = analysis.to_base
    if looks is None:
        return True
    if looks.width is not None:
        return all(_narrow(e, looks.width) for e in effects.values())
    return all(_decided(e, analysis.equivalence.get(arm)) for arm, e in effects.items())


def _narrow(effect: Effect | None, width: float) -> bool:
    if effect is None or not effect.supported or effect.estimate.half_width is None:
        return False
    return 2 * effect.estimate.half_width <= width


def _decided(effect: Effect | None, equivalence_p: float | None) -> bool:
    equivalent = equivalence_p is not None and equivalence_p < ALPHA
    return effect is not None and effect.estimate.n >= MIN_SEEDS and (effect.confirmed or equivalent)
