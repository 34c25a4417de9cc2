"""Reads the inputs of a report from the store and the run folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from paribus.errors import RunFolderError
from paribus.health.finding import read_health
from paribus.recipe.recipe import flatten
from paribus.report.analysis.measures import last_value, score_steps
from paribus.report.declared import read_declared
from paribus.report.inputs import External, Outcome, RunData, StudyData
from paribus.report.samples import samples_of
from paribus.run_folder.attempt_files import read_environment
from paribus.run_folder.folder import INITIAL_WEIGHTS, SHORT, Evaluation, MetricLine, RunFolder, read_evaluation
from paribus.run_folder.metrics import GENERATED, SAMPLED
from paribus.run_folder.series_file import RunSeries
from paribus.store.models import AttemptRecord, ResultRecord, RunRecord, StudyRecord
from paribus.store.reader import Reader
from paribus.store.states import RunState
from paribus.study.gradients import read_probes
from paribus.study.plan import Plan
from paribus.text import time_text
from paribus.version import VERSION

OUTCOMES: Mapping[RunState, Outcome] = {
    RunState.SUCCEEDED: "finished",
    RunState.STOPPED_EARLY: "stopped_early",
    RunState.FAILED: "failed",
    RunState.QUARANTINED: "failed",
    RunState.CANCELLED: "cancelled",
}
"""Terminal states to outcomes in tables; all other states are pending."""

NOT_RECORDED = "not recorded"


def read_study(reader: Reader, name: str) -> StudyData:
    """Return the newest study of this name, finished or not.

    Raises:
        StoreError: there is no such study.
    """
    study = reader.study(name)
    data, results = read_runs(reader, study)
    tokens = {r.fingerprint: r.token for r in results.values()}
    environments = {r.fingerprint: _environment(reader, r) for r in results.values()}
    return replace(
        data,
        provenance=_provenance(study, results, environments),
        environments=environments,
        declared=read_declared(reader, study),
        samples=samples_of(reader.home, data.runs, data.plan.evaluate.primary_set, tokens),
        gradients=read_probes(reader.home, data.plan),
    )


def read_runs(reader: Reader, study: StudyRecord) -> tuple[StudyData, Mapping[str, ResultRecord]]:
    """Return what the runs of a study recorded, without provenance, and their results by fingerprint."""
    records = reader.runs_of(study.id)
    results = reader.results([r.fingerprint for r in records])
    attempts: dict[str, list[AttemptRecord]] = {}
    for attempt in reader.attempts_of(study.id):
        attempts.setdefault(attempt.fingerprint, []).append(attempt)
    plan = study.plan
    runs = tuple(_run(reader, plan, r, results.get(r.fingerprint), attempts.get(r.fingerprint, [])) for r in records)
    screen = {r.fingerprint for r in plan.ranking.runs} if plan.ranking else set[str]()
    screened = tuple(r for r in runs if r.fingerprint in screen)
    fresh = tuple(r for r in runs if r.fingerprint not in screen)
    return StudyData(plan=plan, runs=fresh, screened=screened), results


def _run(
    reader: Reader, plan: Plan, record: RunRecord, result: ResultRecord | None, attempts: Sequence[AttemptRecord]
) -> RunData:
    reason = record.reason or (str(result.payload.get("reason", "")) if result else "")
    token = result.token if result else record.token
    health = read_health(RunFolder.of(reader.home, record.fingerprint, token))
    run = RunData(
        fingerprint=record.fingerprint,
        arm=record.arm,
        seed=record.seed,
        outcome=OUTCOMES.get(record.state, "pending"),
        state=str(record.state),
        reason=reason,
        attempts=len(attempts),
        gpus=attempts[-1].gpus if attempts else 0.0,
        health=health if health and health.status != "unknown" else None,
        external=_external(plan, result.payload if result else {}) if plan.external else None,
    )
    ended = run.outcome in ("finished", "stopped_early")
    try:
        stored = RunSeries(reader.home, record.fingerprint, token, derive=not reader.untouched)
        run = counted(replace(run, stored=stored), plan)
        evaluations = _evaluations(stored, run, plan) if ended else ()
        trouble = "" if stored.span else "they are missing"
    except RunFolderError as error:
        run = replace(run, stored=None, lines=_readable(reader, record.fingerprint, token))
        evaluations, trouble = (), str(error)
    if ended and trouble:
        return replace(run, outcome="failed", reason=f"its records cannot be read: {trouble}")
    return replace(run, evaluations=evaluations)


def counted(run: RunData, plan: Plan) -> RunData:
    """Return the run as tables count it: one that was stopped after all its steps, with a score there, has finished.

    How many steps a run has that Paribus did not start is not known.
    """
    if run.outcome != "stopped_early":
        return run
    spent = (last_value(run, metric) for metric in (GENERATED, SAMPLED))
    scored = [step for step, _ in score_steps(run, plan.evaluate)] == [run.last_step]
    return replace(run, outcome="finished") if scored and plan.has_all_steps(run.arm, run.last_step, *spent) else run


def _external(plan: Plan, payload: Mapping[str, Any]) -> External:
    """Return where a run of an external plan comes from; one without a result is being tracked."""
    names = payload.get("names", {})
    return External(
        origin=str(payload.get("origin", "tracked")),
        trainer=str(payload.get("trainer", "")),
        score=str(names.get(plan.evaluate.primary_metric, "")) if isinstance(names, Mapping) else "",
    )


def _evaluations(stored: RunSeries, run: RunData, plan: Plan) -> tuple[Evaluation, ...]:
    """Return for each set the evaluations with counts that make up its score, and the one before training."""
    found: list[Evaluation] = []
    for name, chosen in plan.evaluate.all_sets.items():
        metric = plan.evaluate.primary_metric
        if name != plan.evaluate.primary_set:
            metric = f"eval/{name}/avg_at_{chosen.samples}"
        steps = sorted({0, *(step for step, _ in score_steps(run, plan.evaluate, metric))})
        paths = (folder.evaluation(name, s) for s in steps if (folder := stored.folder_at(s)) is not None)
        found += [read_evaluation(path) for path in paths if path.is_file()]
    return tuple(found)


def _readable(reader: Reader, fingerprint: str, token: int) -> tuple[MetricLine, ...]:
    """Return the lines up to the first unreadable one, from the newest attempt that has a metric file."""
    folders = (RunFolder.of(reader.home, fingerprint, n) for n in range(token, 0, -1))
    newest = next((f for f in folders if f.metrics.exists()), None)
    lines: list[MetricLine] = []
    with suppress(RunFolderError):
        lines.extend(newest.read_metrics() if newest else ())
    return tuple(lines)


def _environment(reader: Reader, result: ResultRecord) -> dict[str, str]:
    """Return name to value of what a run recorded of its environment; what cannot be read is a value, too."""
    try:
        recorded = read_environment(RunFolder.of(reader.home, result.fingerprint, result.token))
    except RunFolderError as error:
        return {"not read": str(error)}
    found = {name: value for name, value in flatten(recorded).items() if value not in (None, "")}
    return {n: ", ".join(map(str, v)) if isinstance(v, list) else str(v) for n, v in found.items()}


def _provenance(
    study: StudyRecord, results: Mapping[str, ResultRecord], environments: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    last = max((r.at for r in results.values()), default=None)
    found: dict[str, dict[str, None]] = {}
    for name, value in (item for each in environments.values() for item in each.items()):
        found.setdefault(name, {})[value] = None
    values = {name: " / ".join(texts) for name, texts in found.items() if name != INITIAL_WEIGHTS}
    commit = values.pop("git_commit", "") or values.pop("git", "")
    return {
        "paribus": VERSION,
        "git commit": commit or NOT_RECORDED,
        **_fingerprints(study.plan),
        **_initial_weights(study.plan, environments),
        "environment": ", ".join(f"{k} {v}" for k, v in values.items()) or NOT_RECORDED,
        "submitted": time_text(study.submitted_at),
        "last result": time_text(last) if last is not None else "none yet",
    }


def _initial_weights(plan: Plan, environments: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Return what the runs recorded of the weights they began with; nothing where none recorded any."""
    found: dict[str, set[str]] = {}
    for run in plan.all_runs:
        if weights := environments.get(run.fingerprint, {}).get(INITIAL_WEIGHTS):
            hashes = plan.hashes_of(run.arm, run.fingerprint)
            model = hashes.model if hashes else plan.arm(run.arm).recipe.model.name
            found.setdefault(model, set()).add(weights[:SHORT])
    if not found:
        return {}
    text = "; ".join(" / ".join(sorted(each)) for each in found.values())
    if any(len(each) > 1 for each in found.values()):
        text = f"DIFFERENT between runs of one model: {text}. Do not compare these runs: they began with other policies"
    return {"initial weights": text}


def _fingerprints(plan: Plan) -> dict[str, str]:
    """Return the hashes of code, data and initial model that the plan recorded for the base arm."""
    names, hashes = ("code", "data", "initial model"), plan.arm(plan.base).hashes
    if hashes is None:
        return dict.fromkeys(names, f"{NOT_RECORDED} by the version that planned the study")
    found = {name: text[:SHORT] for name, text in zip(names, (hashes.code, hashes.data, hashes.model), strict=True)}
    return found | _stages(plan)


def _stages(plan: Plan) -> dict[str, str]:
    """Return which runs of other studies trained the models that runs of this one begin with; nothing if none did."""
    seeds = {run.fingerprint: run.seed for run in plan.all_runs}
    trained: dict[str, dict[int, str]] = {}
    for fingerprint, seed in seeds.items():
        stage = plan.stages.get(fingerprint)
        for name, run in stage.runs.items() if stage else ():
            trained.setdefault(name, {})[seed] = run[:SHORT]
    if not trained:
        return {}
    texts = []
    for name, runs in trained.items():
        each = ", ".join(f"{run} (seed {seed})" for seed, run in sorted(runs.items()))
        texts.append(f"{name}: run {next(iter(runs.values()))}" if len({*runs.values()}) == 1 else f"{name}: {each}")
    base = plan.stages.get(plan.runs[0].fingerprint)
    first = {} if base is None else {"initial model": f"{base.model_hash[:SHORT]} (seed {plan.runs[0].seed})"}
    return first | {"trained before by": "; ".join(texts)}
