"""Which runs a study's declared rule adds next, decided from the numbers that the report prints."""

from __future__ import annotations

from dataclasses import replace

from paribus.contract import Runner, load_runner
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.interim import enough, trial_scores
from paribus.report.collect import read_runs
from paribus.report.inputs import StudyData
from paribus.store.models import StudyRecord
from paribus.store.reader import Reader
from paribus.study.adaptive import next_interim
from paribus.study.expand import with_fingerprint
from paribus.study.plan import Plan


def grown(reader: Reader, study: StudyRecord) -> Plan | None:
    """Return the plan with the runs that a study's rule adds now; ``None`` if it adds none."""
    if not study.plan.adaptive:
        return None
    return next_block(read_runs(reader, study)[0], load_runner(study.plan.runner))


def next_block(data: StudyData, runner: Runner) -> Plan | None:
    """Return the plan with the runs that the rule adds, in whole blocks; ``None`` if it adds none. A pure function.

    A study with pending or cancelled runs gets no runs: a rule does not bring back what was cancelled.

    Args:
        data: the study.
        runner: computes the fingerprints of a search's new settings.
    """
    if any(run.outcome in ("pending", "cancelled") for run in (*data.runs, *data.screened)):
        return None
    plan = data.plan
    if plan.ranking is not None:
        found = None if plan.ranking.confirmed else _screened(data, runner)
    else:
        found = None if enough(Analysis(data)) else next_interim(plan)
    return found and with_fingerprint(replace(found, origin=plan.origin or plan.fingerprint))


def _screened(data: StudyData, runner: Runner) -> Plan:
    from paribus.study.search import confirm, next_trials, refuse_without_optuna

    refuse_without_optuna(data.plan)
    scores = trial_scores(data)
    return next_trials(data.plan, scores, runner) or confirm(data.plan, scores, runner)
