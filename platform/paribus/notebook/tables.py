"""The frames of a study's results: which columns they have, and where each value comes from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from paribus.errors import ParibusError, did_you_mean
from paribus.notebook.frames import Field, frame
from paribus.recipe.recipe import flatten
from paribus.report.analysis.analysis import Analysis
from paribus.report.analysis.effect import Effect
from paribus.report.analysis.effects import effect_measures, effects, singles
from paribus.report.analysis.measures import Measure, score_measure, value_of
from paribus.report.inputs import RunData, StudyData
from paribus.report.model import ReportModel, Table
from paribus.report.tables.cells import effect_cell
from paribus.report.tables.cells import finished as finished_runs
from paribus.run_folder.folder import Evaluation, read_evaluation
from paribus.run_folder.metrics import EVAL_METRICS, SOURCES, STEP_METRICS, find_metric
from paribus.run_folder.series_file import RunSeries
from paribus.store.models import AttemptRecord
from paribus.store.remarks import NOTHING, About
from paribus.store.states import RunState
from paribus.study.plan import Arm, Plan

if TYPE_CHECKING:
    import pandas as pd

_RUN = {"arm": Field("category"), "seed": Field("int"), "run": Field("string")}
"""Columns that name a run in every frame: label of its arm, seed, fingerprint."""

_OUTCOMES = ("finished", "stopped_early", "failed", "cancelled", "pending")
_HEALTH = ("ok", "warn", "critical")
_NUMBERS = {
    "value": Field("float"),
    "low": Field("float"),
    "high": Field("float"),
    "n": Field("int"),
    "p": Field("float"),
    "p_adjusted": Field("float"),
    "correction": Field("category"),
    "verdict": Field("category"),
}
"""Columns of a number with its interval and its test."""
_CELLS = {
    "table": Field("category"),
    "row": Field("string"),
    "column": Field("category"),
    "unit": Field("string"),
    "text": Field("string"),
    "note": Field("string"),
    **_NUMBERS,
    "seeds": Field("string"),
}
_VERDICTS = ("separated", "not_separated", "untested")
_CORRECTIONS = ("holm", "benjamini_hochberg", "dunnett")


def _labels(plan: Plan) -> Mapping[str, str]:
    return {arm.key: arm.label for arm in plan.all_arms}


def _every_run(data: StudyData) -> tuple[RunData, ...]:
    return (*data.runs, *data.screened)


# ---- runs --------------------------------------------------------------------------------------------


def runs_frame(data: StudyData, attempts: Iterable[AttemptRecord], said: Mapping[str, About]) -> pd.DataFrame:
    """Return one row for each run: :meth:`paribus.Results.runs`."""
    score, labels = score_measure(data.plan.evaluate), _labels(data.plan)
    steps = {arm.key: arm.recipe.schedule.steps for arm in data.plan.all_arms}
    by_run: dict[str, list[AttemptRecord]] = {}
    for attempt in attempts:
        by_run.setdefault(attempt.fingerprint, []).append(attempt)
    searched = {run.fingerprint for run in data.screened}
    rows = [
        (
            run.fingerprint,
            labels[run.arm],
            run.seed,
            run.state,
            run.outcome,
            value_of(run, score, data.plan.evaluate),
            run.last_step if run.recorded.span else None,
            steps[run.arm],
            run.attempts,
            run.gpus,
            run.health.status if run.health else None,
            *_times(run, by_run.get(run.fingerprint, ())),
            run.fingerprint in searched,
            run.reason,
            " ".join(said.get(run.fingerprint, NOTHING).tags),
            said.get(run.fingerprint, NOTHING).note,
        )
        for run in _every_run(data)
    ]
    fields = {
        "run": Field("string"),
        "arm": Field("category"),
        "seed": Field("int"),
        "state": Field("category"),
        "outcome": Field("category"),
        "score": Field("float", score.unit),
        "step": Field("int", "steps"),
        "steps": Field("int", "steps"),
        "attempts": Field("int"),
        "gpus": Field("float", "GPUs"),
        "health": Field("category"),
        "started_at": Field("time", "UTC"),
        "ended_at": Field("time", "UTC"),
        "seconds": Field("float", "s"),
        "search": Field("bool"),
        "reason": Field("string"),
        "tags": Field("string"),
        "note": Field("string"),
    }
    categories = {
        "arm": list(labels.values()),
        "state": [str(state) for state in RunState],
        "outcome": _OUTCOMES,
        "health": _HEALTH,
    }
    return frame(rows, fields, categories, score=score.metric, rule=data.plan.evaluate.checkpoint)


def _times(run: RunData, attempts: Sequence[AttemptRecord]) -> tuple[float | None, float | None, float | None]:
    """Return when the first attempt started, when the run ended, and the seconds of all attempts that have ended."""
    begun = [a.started_at for a in attempts if a.started_at is not None]
    ended = [a.ended_at for a in attempts if a.ended_at is not None]
    spent = [a.ended_at - a.started_at for a in attempts if a.ended_at is not None and a.started_at is not None]
    last = max(ended, default=None) if run.outcome != "pending" else None
    return min(begun, default=None), last, sum(spent) if spent else None


# ---- evaluations and curves ---------------------------------------------------------------------------


def evaluations_frame(data: StudyData) -> pd.DataFrame:
    """Return one row for each evaluation: :meth:`paribus.Results.evaluations`."""
    labels, sets = _labels(data.plan), list(data.plan.evaluate.all_sets)
    rows = []
    for run in _every_run(data):
        for found in sorted(_evaluations(run, sets), key=lambda e: (sets.index(e.set), e.step)):
            responses = found.samples * len(found.problems)
            correct, truncated = sum(found.correct), sum(found.truncated)
            rows.append(
                (
                    labels[run.arm],
                    run.seed,
                    run.fingerprint,
                    found.set,
                    found.step,
                    len(found.problems),
                    found.samples,
                    correct,
                    truncated,
                    correct / responses if responses else None,
                    truncated / responses if responses else None,
                    sum(found.tokens) / responses if responses else None,
                )
            )
    fields = _RUN | {
        "set": Field("category"),
        "step": Field("int", "steps"),
        "problems": Field("int", "problems"),
        "samples": Field("int", "responses/problem"),
        "correct": Field("int", "responses"),
        "truncated": Field("int", "responses"),
        "accuracy": Field("float", "fraction"),
        "truncated_frac": Field("float", "fraction"),
        "length_mean": Field("float", "tokens"),
    }
    return frame(rows, fields, {"arm": list(labels.values()), "set": sets})


def _evaluations(run: RunData, sets: Sequence[str]) -> Iterator[Evaluation]:
    """Yield all evaluations with counts of a run; of one whose records are damaged, those that can be read."""
    if not isinstance(run.stored, RunSeries):
        yield from run.evaluations
        return
    for name in sets:
        metrics = [metric for metric in run.stored.names if metric.startswith(f"eval/{name}/")]
        for step in sorted({int(s) for metric in metrics for s in run.stored.series(metric).steps}):
            folder = run.stored.folder_at(step)
            if folder is not None and (path := folder.evaluation(name, step)).is_file():
                yield read_evaluation(path)


def curves_frame(data: StudyData, metric: str) -> pd.DataFrame:
    """Return one row for each value of a metric: :meth:`paribus.Results.curves`."""
    labels, known = _labels(data.plan), find_metric(metric)
    rows = []
    for run in _every_run(data):
        found = run.recorded.series(metric)
        if not len(found):
            continue
        named = _sources(run, metric)
        for step, value in zip(found.steps.tolist(), found.last.tolist(), strict=True):
            source = named if isinstance(named, str) else named.get(step, "exact")
            rows.append((labels[run.arm], run.seed, run.fingerprint, step, value, source))
    fields = _RUN | {
        "step": Field("int", "steps"),
        "value": Field("float", known.unit if known else ""),
        "source": Field("category"),
    }
    categories = {"arm": list(labels.values()), "source": SOURCES}
    return frame(rows, fields, categories, metric=metric, definition=known.definition if known else "")


def _sources(run: RunData, metric: str) -> str | Mapping[int, str]:
    """Return the source of all values of a metric; where they differ, that of each step."""
    found = run.recorded.sources_of(metric)
    if len(found) == 1:
        return next(iter(found))
    lines = run.lines
    if isinstance(run.stored, RunSeries):
        steps = run.stored.series(metric).steps.tolist()
        folders = {f.path: f for f in map(run.stored.folder_at, steps) if f is not None}
        lines = tuple(
            line
            for folder in folders.values()
            for line in folder.read_metrics()
            if _counts(run.stored, folder, line.step)
        )
    return {line.step: line.sources.get(metric, "exact") for line in lines if metric in line.values}


def _counts(stored: RunSeries, folder: Any, step: int) -> bool:
    """Whether a folder is the one that counts at a step: a later attempt may have repeated it."""
    there = stored.folder_at(step)
    return there is not None and there.path == folder.path


def metric_names(recorded: Iterable[str]) -> list[str]:
    """Return the metrics that a user may mean: those that were recorded, and those that have one name."""
    return sorted({*recorded, *(m.name for m in STEP_METRICS), *(f"eval/heldout/{m.name}" for m in EVAL_METRICS)})


def metrics_frame(data: StudyData) -> pd.DataFrame:
    """Return one row for each recorded metric: :meth:`paribus.Results.metrics`."""
    recorded = sorted({name for run in _every_run(data) for name in run.recorded.names})
    rows = []
    for name in recorded:
        known = find_metric(name)
        about = (known.label, known.unit, known.better, known.definition) if known else ("", "", None, "")
        rows.append((name, *about))
    fields = {
        "metric": Field("string"),
        "label": Field("string"),
        "unit": Field("string"),
        "better": Field("category"),
        "definition": Field("string"),
    }
    return frame(rows, fields, {"better": ("higher", "lower", "neither")})


# ---- tables of the report -----------------------------------------------------------------------------


def find_table(model: ReportModel, key: str) -> Table:
    """Return the table with this key, or the first one of the design with this name.

    Raises:
        ParibusError: there is no such table.
    """
    keys = [table.key for table in model.tables]
    for table in model.tables:
        if table.key == key or (key not in keys and table.key.startswith(f"{key}.")):
            return table
    near = did_you_mean(key, [*keys, *(k.partition(".")[0] for k in keys)])
    raise ParibusError(
        f"the report of `{model.study}` has no table `{key}`.{near} Tables: {', '.join(keys) or 'none'}."
    )


def table_frame(table: Table) -> pd.DataFrame:
    """Return a table with its rows and columns: :meth:`paribus.Results.table`."""
    fields = {"row": Field("string")}
    columns: list[list[Any]] = [[row.label for row in table.rows]]
    for place, column in enumerate(table.columns):
        cells = [row.cells[place] for row in table.rows]
        numeric = any(cell.value is not None for cell in cells)
        fields[column.key] = Field("float", column.unit) if numeric else Field("string")
        columns.append([cell.value if numeric else cell.text for cell in cells])
    labels = {"row": table.first, **{c.key: c.label for c in table.columns}}
    notes = (*(f"{c.label}: {c.note}" for c in table.columns if c.note), *table.notes)
    return frame(zip(*columns, strict=True), fields, title=table.title, labels=labels, notes=list(notes))


def cells_frame(tables: Sequence[Table]) -> pd.DataFrame:
    """Return one row for each cell of some tables: :meth:`paribus.Results.cells`."""
    rows = [
        (
            table.key,
            row.label,
            column.key,
            column.unit,
            cell.text,
            cell.note,
            cell.value,
            cell.low,
            cell.high,
            cell.n,
            cell.p,
            cell.p_adjusted,
            cell.correction or None,
            cell.verdict or None,
            " ".join(f"{seed}={value!r}" for seed, value in cell.seeds),
        )
        for table in tables
        for row in table.rows
        for column, cell in zip(table.columns, row.cells, strict=True)
    ]
    categories = {
        "table": [table.key for table in tables],
        "column": list(dict.fromkeys(c.key for table in tables for c in table.columns)),
        "verdict": _VERDICTS,
        "correction": _CORRECTIONS,
    }
    return frame(rows, _CELLS, categories)


def tables_frame(model: ReportModel) -> pd.DataFrame:
    """Return one row for each table of a report: :meth:`paribus.Results.tables`."""
    rows = [(t.key, t.title, t.answers, len(t.rows), ", ".join(c.key for c in t.columns)) for t in model.tables]
    fields = {
        "key": Field("string"),
        "title": Field("string"),
        "answers": Field("string"),
        "rows": Field("int"),
        "columns": Field("string"),
    }
    return frame(rows, fields)


def effects_frame(analysis: Analysis) -> pd.DataFrame:
    """Return one row for each arm and measure: :meth:`paribus.Results.effects`."""
    labels = _labels(analysis.plan)
    found: list[tuple[str, Measure, Effect | None]] = [
        (arm, analysis.score, effect) for arm, effect in analysis.to_base.items()
    ]
    symptoms = effects(analysis)
    found += [(s.arm, m, symptoms[s.arm, m.key]) for s in singles(analysis) for m in effect_measures(analysis)]
    rows = []
    for arm, measure, effect in found:
        cell = effect_cell(effect, finished_runs(analysis, arm))
        if effect is None:
            continue  # nothing was measured in both arms
        test = (cell.p, cell.p_adjusted, cell.correction or None, cell.verdict or None)
        rows.append((labels[arm], measure.key, measure.unit, cell.value, cell.low, cell.high, cell.n, *test))
    fields = {
        "arm": Field("category"),
        "measure": Field("category"),
        "unit": Field("string"),
        **_NUMBERS,
    }
    measures = [analysis.score.key, *(m.key for m in effect_measures(analysis))]
    categories = {
        "arm": list(labels.values()),
        "measure": measures,
        "verdict": _VERDICTS,
        "correction": _CORRECTIONS,
    }
    return frame(rows, fields, categories, base=labels[analysis.plan.base])


def arms_frame(arms: Sequence[Arm]) -> pd.DataFrame:
    """Return one row for each arm, with its value of every setting in which one of them differs from the base."""
    paths = list(dict.fromkeys(path for arm in arms for path in arm.changes))
    values = [flatten(arm.recipe.model_dump(mode="json")) for arm in arms]
    fields = {"arm": Field("category"), "key": Field("string")}
    columns: list[list[Any]] = [[arm.label for arm in arms], [arm.key for arm in arms]]
    for path in paths:
        found = [each.get(path) for each in values]
        numeric = all(v is None or (isinstance(v, int | float) and not isinstance(v, bool)) for v in found)
        fields[path] = Field("float") if numeric else Field("string")
        columns.append(found if numeric else [None if v is None else _said(v) for v in found])
    return frame(zip(*columns, strict=True), fields, {"arm": [arm.label for arm in arms]})


def _said(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


# ---- studies -------------------------------------------------------------------------------------------


def studies_frame(entries: Sequence[Mapping[str, Any]], submitted: Mapping[str, float]) -> pd.DataFrame:
    """Return one row for each study: :func:`paribus.studies`."""
    rows = [
        (
            e["study"],
            e["state"],
            e["runs"],
            e["running"],
            e["states"].get("SUCCEEDED", 0),
            e["states"].get("FAILED", 0) + e["states"].get("QUARANTINED", 0),
            submitted[e["study"]],
            e["priority"],
            e["weight"],
            e["paused"],
            " ".join(e["tags"]),
            e["note"],
            e["archived"],
        )
        for e in entries
    ]
    fields = {
        "study": Field("string"),
        "state": Field("category"),
        "runs": Field("int", "runs"),
        "running": Field("int", "runs"),
        "succeeded": Field("int", "runs"),
        "failed": Field("int", "runs"),
        "submitted_at": Field("time", "UTC"),
        "priority": Field("int"),
        "weight": Field("float"),
        "paused": Field("string"),
        "tags": Field("string"),
        "note": Field("string"),
        "archived": Field("bool"),
    }
    return frame(rows, fields, {"state": ("queued", "running", "paused", "out of budget", "ended")})
