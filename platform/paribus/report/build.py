"""Builds the model of a report: every table, figure and sentence of a study, in order."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from paribus.errors import ParibusError
from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import FACTORS, difference
from paribus.report import sentences
from paribus.report.adaptive import with_interim_note
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.ceilings import Ceilings
from paribus.report.analysis.effect import MIN_SEEDS
from paribus.report.analysis.measures import LATE
from paribus.report.answer import answer, totals
from paribus.report.assumptions import pairs_words
from paribus.report.exploratory import declared_rows
from paribus.report.external import external_rows
from paribus.report.figures.curves import curves, pass_figure
from paribus.report.figures.forests import answer_figure, contribution_figure, forest_figure, matrix_figures
from paribus.report.figures.search import search_figure
from paribus.report.inputs import StudyData
from paribus.report.model import Figure, ReportModel, Table, described
from paribus.report.tables.appendix import all_details
from paribus.report.tables.changes import changes_table
from paribus.report.tables.effects import contribution_table, design_effects, effects_table, order_tables
from paribus.report.tables.gradients import gradient_tables
from paribus.report.tables.grids import grid_figures, grid_tables
from paribus.report.tables.scores import behaviour_table, learning_table, published_tables, score_table
from paribus.report.tables.search import search_table
from paribus.report.tables.sets import set_text, sets_table
from paribus.run_folder.folder import SHORT
from paribus.run_folder.metrics import METRIC_SCHEMA
from paribus.stats.intervals import LEVEL
from paribus.stats.multiple_testing import ALPHA
from paribus.stats.power import POWER
from paribus.study.adaptive import interim_text, ranking_text, stage_text
from paribus.study.plan import Plan
from paribus.text import plural


def build_report(data: StudyData) -> ReportModel:
    """Return the report of a study, finished or not.

    Raises:
        ParibusError: the data lack provenance.
    """
    analysis = Analysis(data)
    ceilings = Ceilings(analysis)
    ended = sum(r.outcome != "pending" for r in data.runs)
    screening = data.plan.ranking is not None and not data.plan.ranking.confirmed
    complete = ended == len(data.runs) and not screening
    finished = sum(r.outcome == "finished" for r in data.runs)
    status = (
        f"{'complete' if complete else 'incomplete'}: {ended} of {plural(len(data.runs), 'run')} ended, {finished} "
        f"{'finished' if data.plan.external else 'as planned'}"
    )
    status += f"; {stage_text(data.plan)}" if screening else ""
    status += f"; plus {plural(len(data.screened), 'run')} of the search" if data.screened else ""
    tables = _with_lead(analysis, [with_interim_note(analysis, t) for t in _tables(analysis, ceilings)])
    figures = (described(f) for f in _figures(analysis))
    there = {table.key for table in tables}
    return ReportModel(
        study=data.plan.study,
        title=f"Ablation `{data.plan.study}`",
        question=data.plan.question,
        status=status,
        complete=complete,
        answer=answer(analysis),
        totals=totals(analysis),
        summary=tuple(sentences.summary(analysis, ceilings)),
        words=tuple(sentences.words(analysis)),
        warnings=tuple(sentences.warnings(analysis)),
        tables=tables,
        figures=tuple(
            f if f.table in there else replace(f, table="") for f in figures
        ),  # before the first run ends there is no table
        provenance=provenance(analysis),
    )


def _with_lead(analysis: Analysis, tables: Sequence[Table]) -> tuple[Table, ...]:
    """Return the tables with that of the first ladder, or else of the first design, marked as the leading one."""
    rows = analysis.plan.rows
    ladders = [r.design for r in rows if r.kind == "cumulative"]
    key = next((f"{design}.score" for design in [*ladders, *(r.design for r in rows)]), "")
    return tuple(replace(t, lead=True, main=True) if t.key == key else t for t in tables)


def _tables(analysis: Analysis, ceilings: Ceilings) -> Iterable[Table]:
    yield changes_table(analysis)
    yield learning_table(analysis)
    rows = analysis.plan.rows
    for design in dict.fromkeys(r.design for r in rows):
        chosen = [r for r in rows if r.design == design]
        if chosen[0].kind not in ("add_one", "leave_one_out"):
            yield score_table(analysis, design, chosen)
            yield behaviour_table(analysis, design, chosen)
            yield from design_effects(analysis, design, chosen)
    yield from grid_tables(analysis)
    yield from order_tables(analysis)
    screen = search_table(analysis)
    if screen is not None:
        yield screen
    both = contribution_table(analysis)
    if both is not None:
        yield both
    tricks = list(_trick_tables(analysis, main=both is None))
    effects = effects_table(analysis)
    yield from (t for t in tricks if t.main)
    if effects is not None:
        yield effects
    sets = sets_table(analysis)
    if sets is not None:
        yield sets
    yield from (t for t in tricks if not t.main)
    yield from gradient_tables(analysis)
    yield from all_details(analysis, ceilings)
    yield from published_tables(analysis)


def _figures(analysis: Analysis) -> Iterable[Figure]:
    found = (
        answer_figure(analysis),
        forest_figure(analysis),
        contribution_figure(analysis),
        *matrix_figures(analysis),
        *grid_figures(analysis),
        search_figure(analysis),
        *curves(analysis),
        pass_figure(analysis),
    )
    yield from (f for f in found if f is not None)


def _trick_tables(analysis: Analysis, *, main: bool) -> Iterable[Table]:
    """Return scores and behaviour of tricks added and removed, as main tables unless one table shows both designs."""
    rows = analysis.plan.rows
    for design in dict.fromkeys(r.design for r in rows if r.kind in ("add_one", "leave_one_out")):
        chosen = [r for r in rows if r.design == design]
        yield score_table(analysis, design, chosen, main=main)
        yield behaviour_table(analysis, design, chosen, main=main)


OBJECTIVE = (*FACTORS[1:], "loss")
"""What a preset sets: all factors except the schedule, and the loss family."""


RECORDED = ("paribus", "git commit", "code", "data", "initial model", "environment", "submitted", "last result")
"""Entries that :attr:`StudyData.provenance` must have; if a value is unknown, its text says so."""


def provenance(analysis: Analysis) -> dict[str, str]:
    """Return name to text of everything that the numbers depend on.

    Raises:
        ParibusError: an entry of :data:`RECORDED` is missing.
    """
    recorded = analysis.data.provenance
    missing = [name for name in RECORDED if not recorded.get(name)]
    if missing:
        raise ParibusError(
            f"no report of `{analysis.plan.study}`: its provenance lacks {', '.join(missing)}, and a report must state "
            "what its numbers depend on. See environment.json in the study's run folders."
        )
    plan, evaluate = analysis.plan, analysis.evaluate
    outcomes = [r.outcome for r in analysis.data.runs]
    counts = ", ".join(f"{outcomes.count(o)} {o.replace('_', ' ')}" for o in dict.fromkeys(outcomes))
    chosen, name = analysis.primary_settings, evaluate.primary_set
    limits = sorted({chosen.max_new_tokens or a.recipe.schedule.max_new_tokens for a in plan.arms})
    counted = {len(e.problems) for r in analysis.data.runs for e in r.evaluations if e.set == name}
    problems = sorted(counted) or [chosen.problems]
    rows = {
        "study": plan.study,
        "study fingerprint": plan.fingerprint,
        "runner": plan.runner,
        **_preset(plan),
        **{name: str(recorded[name]) for name in RECORDED},
        **{name: str(text) for name, text in recorded.items() if name not in RECORDED},
        "metric schema": str(METRIC_SCHEMA),
        "primary metric": evaluate.primary_metric,
        "checkpoint rule": f"{evaluate.checkpoint}, declared before the run",
        "problems": ", ".join(map(str, problems)),
        "responses per problem": str(chosen.samples),
        "evaluation temperature": f"{chosen.temperature:g}",
        **({"evaluation top-p": f"{chosen.top_p:g}"} if chosen.top_p < 1 else {}),
        "max new tokens": ", ".join(map(str, limits)),
        "evaluated every": plural(chosen.every, "step").removeprefix("1 "),
        **_horizon(plan),
        **{f"set {n}": set_text(each) for n, each in evaluate.all_sets.items() if n != name},
        "seeds": ", ".join(map(str, plan.seeds)) if plan.paired or plan.external else "each run has its own",
        **_adaptive(plan),
        "runs": f"{len(outcomes)}{'' if plan.external else ' planned'}: {counts}",
        "arms": f"{len(plan.arms)} distinct, base `{analysis.label(plan.base)}` ({plan.base[:SHORT]})",
        **_statistics(analysis),
        "equivalence": _equivalence(analysis),
        **declared_rows(analysis),
        "late in training": f"last {LATE:.0%} of the steps",
    }
    return external_rows(plan, rows)


def _statistics(analysis: Analysis) -> dict[str, str]:
    """Return by which rules intervals and p values are made, if an arm has the seeds that they take."""
    floor = "; for scores never narrower than evaluation noise implies" if analysis.held else ""
    runs = (analysis.runs(arm.key) for arm in analysis.plan.arms)
    few = max(sum(r.outcome in ("finished", "stopped_early") for r in each) for each in runs) < MIN_SEEDS
    none = f"none: no arm has {MIN_SEEDS} runs that ended with values"
    return {
        "intervals": none if few else f"{LEVEL:.0%} Student t over training seeds{floor}",
        "tests": none if few else f"{'paired t by seed' if analysis.paired else 'Welch t'}, two-sided, alpha {ALPHA:g}",
        **({"pairing": pairs_words(analysis)} if analysis.plan.paired else {}),
        "correction": _correction(analysis),
        "power": none if few else f"{POWER:.0%} by the noncentral t, at the upper 80% bound of the observed spread",
    }


def _horizon(plan: Plan) -> dict[str, str]:
    """Return what ends the runs, where that is a budget."""
    found = dict.fromkeys(a.recipe.schedule.horizon for a in plan.arms)
    return {"horizon": "; ".join(found)} if any(any(a.recipe.schedule.budgets) for a in plan.arms) else {}


def _adaptive(plan: Plan) -> dict[str, str]:
    """Return the declared rule by which results added runs, and the plan that declared it."""
    origin = plan.origin or plan.fingerprint
    if plan.ranking is not None:
        used = plan.ranking.optuna or "not used yet"
        return {"search": ranking_text(plan.ranking), "optuna": used, "declared in": origin}
    return {"interim analyses": interim_text(plan.interim), "declared in": origin} if plan.interim else {}


def _equivalence(analysis: Analysis) -> str:
    margin = analysis.plan.margin
    if margin is None:
        return "not tested: no margin was declared"
    when = "after results were there: exploratory" if analysis.late("margin") else "in the study file"
    return f"two one-sided t tests against the margin ±{margin:g}, declared {when}; Holm over arms"


def _preset(plan: Plan) -> dict[str, str]:
    """Return the source of the preset, how the preset deviates from it, and how the base deviates from the preset."""
    if not plan.preset:
        return {}
    preset = load_preset(plan.preset)
    changed = difference(preset.recipe, plan.arm(plan.base).recipe)
    set_here = {path: new for path, (_, new) in changed.items() if path.split(".")[0] in OBJECTIVE and new is not None}
    own = [f"{path} = {value}" for path, value in set_here.items()]
    return {
        "preset": f"{preset.name}: {preset.source}",
        "preset's deviations": " ".join(preset.deviations) or "none",
        "base's changes to it": ", ".join(own) or "none",
    }


def _correction(analysis: Analysis) -> str:
    if not analysis.family:
        return "none: no comparison with the base could be tested"
    declared = analysis.symptom_correction != "holm"
    symptoms = "; what each arm moves: Benjamini and Hochberg, declared in the study file" if declared else ""
    score = f"Holm over {analysis.family} comparisons with the base in the primary metric"
    if analysis.tested_elsewhere:
        score += f", {analysis.tested_elsewhere} of them in other plans, as if their p values were the largest"
    return f"{score}; elsewhere over the tests of each table{symptoms}"
