"""What a study's declared rule adds next, decided from the numbers that the report prints, and what it says of this."""

from __future__ import annotations

from dataclasses import replace
from math import fsum

from paribus.contract import Runner, load_runner
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import MIN_SEEDS, Effect
from paribus.report.analysis.measures import score_measure, value_of
from paribus.report.collect import read_runs
from paribus.report.inputs import StudyData
from paribus.report.model import Table
from paribus.stats.multiple_testing import ALPHA, level_at
from paribus.store.models import StudyRecord
from paribus.store.reader import Reader
from paribus.study.adaptive import interim_text, next_interim
from paribus.study.expand import with_fingerprint
from paribus.study.plan import Plan
from paribus.text import plural


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


def enough(analysis: Analysis) -> bool:
    """Whether the rule that adds seeds ends the study at this interim analysis."""
    rule = analysis.plan.interim
    effects = analysis.to_base
    if rule is None:
        return True
    if rule.width is not None:
        return all(_narrow(e, rule.width) for e in effects.values())
    return all(_decided(e, analysis.equivalence.get(arm)) for arm, e in effects.items())


def _narrow(effect: Effect | None, width: float) -> bool:
    if effect is None or not effect.supported or effect.estimate.half_width is None:
        return False
    return 2 * effect.estimate.half_width <= width


def _decided(effect: Effect | None, equivalence_p: float | None) -> bool:
    equivalent = equivalence_p is not None and equivalence_p < ALPHA
    return effect is not None and effect.estimate.n >= MIN_SEEDS and (effect.confirmed or equivalent)


def trial_scores(data: StudyData) -> dict[tuple[str, int], float | None]:
    """Return arm and number of each trial to the mean score of its runs; ``None`` unless every run has a score."""
    screen, evaluate = data.plan.ranking, data.plan.evaluate
    found: dict[str, list[float | None]] = {}
    for run in data.screened:
        found.setdefault(run.arm, []).append(value_of(run, score_measure(evaluate), evaluate))
    means = {}
    for trial in screen.trials if screen else ():
        values = found.get(trial.arm, [])
        known = [v for v in values if v is not None]
        means[trial.candidate, trial.number] = fsum(known) / len(known) if known and len(known) == len(values) else None
    return means


BIASED = "A difference that ended the study early is overstated on average, because chance helped to end it."


def with_interim_note(analysis: Analysis, table: Table) -> Table:
    """Return the table, with the rule of the interim analyses in its notes if it has intervals or p values."""
    tested = any(c.low is not None or c.p_adjusted is not None for row in table.rows for c in row.cells)
    return replace(table, notes=(*table.notes, interim_note(analysis))) if analysis.plan.interim and tested else table


def interim_note(analysis: Analysis) -> str:
    """Return the declared rule, where the study stands, and how that changes intervals and p values."""
    rule, share = analysis.plan.interim, analysis.share
    assert rule is not None  # the caller checks
    early = f" {BIASED}" if len(analysis.plan.seeds) < rule.at[-1] else ""
    return (
        f"Declared before the launch: {interim_text(rule)}. {where(analysis)}: each interval is taken at "
        f"{100 * level_at(share):.4g}%, so that those of all interim analyses together cover with 95%, and each p is "
        f"divided by this analysis's share of the 5%, {share:.3g}.{early}"
    )


def where(analysis: Analysis) -> str:
    """Return where the study stands, for example ``Stopped at interim analysis 2 of 3, at 5 seeds``."""
    plan, rule = analysis.plan, analysis.plan.interim
    assert rule is not None  # the caller checks
    of = f"interim analysis {plan.look} of {len(rule.at)}, at {plural(len(plan.seeds), 'seed')}"
    if any(run.outcome == "pending" for run in analysis.data.runs):
        return f"Running towards {of}"
    if enough(analysis):
        return f"Stopped at {of}"
    return f"Ended at {of}, the last" if plan.look == len(rule.at) else f"Stands at {of}"
