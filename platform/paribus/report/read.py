"""Collects what a report is made of from the store and the run folders."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from paribus.errors import ParibusError, RunFolderError
from paribus.health.judged import read_judged
from paribus.recipe.recipe import flatten
from paribus.report.data import Outcome, RunData, StudyData
from paribus.report.measures import score_steps
from paribus.store.reader import Reader
from paribus.store.records import AttemptRecord, ResultRecord, RunRecord, StudyRecord
from paribus.store.states import RunState
from paribus.study.fingerprint import run_fingerprint
from paribus.study.plan import Plan
from paribus.study.runner import load_runner
from paribus.track.folder import SHORT, Evaluation, MetricLine, RunFolder, read_evaluation, read_json
from paribus.track.rollup import RunSeries

OUTCOMES: Mapping[RunState, Outcome] = {
    RunState.SUCCEEDED: "finished",
    RunState.STOPPED_EARLY: "stopped_early",
    RunState.FAILED: "failed",
    RunState.QUARANTINED: "failed",
    RunState.CANCELLED: "cancelled",
}
"""What the terminal states mean for the tables; all others are pending."""

NOT_RECORDED = "not recorded"


def read_study(reader: Reader, name: str) -> StudyData:
    """Return the study that was submitted last under this name, as far as it has come.

    Raises:
        StoreError: there is no such study.
    """
    study = reader.study(name)
    data, results = read_runs(reader, study)
    return replace(data, provenance=_provenance(reader, study, results))


def read_runs(reader: Reader, study: StudyRecord) -> tuple[StudyData, Mapping[str, ResultRecord]]:
    """Return what the runs of a study recorded, without provenance, and their results by fingerprint."""
    records = reader.runs_of(study.id)
    results = reader.results([r.fingerprint for r in records])
    attempts: dict[str, list[AttemptRecord]] = {}
    for attempt in reader.attempts_of(study.id):
        attempts.setdefault(attempt.fingerprint, []).append(attempt)
    plan = study.plan
    runs = tuple(_run(reader, plan, r, results.get(r.fingerprint), attempts.get(r.fingerprint, [])) for r in records)
    screen = {r.fingerprint for r in plan.screen.runs} if plan.screen else set[str]()
    screened = tuple(r for r in runs if r.fingerprint in screen)
    fresh = tuple(r for r in runs if r.fingerprint not in screen)
    return StudyData(plan=plan, runs=fresh, screened=screened), results


def _run(
    reader: Reader, plan: Plan, record: RunRecord, result: ResultRecord | None, attempts: Sequence[AttemptRecord]
) -> RunData:
    reason = record.reason or (str(result.payload.get("reason", "")) if result else "")
    token = result.token if result else record.token
    run = RunData(
        fingerprint=record.fingerprint,
        arm=record.arm,
        seed=record.seed,
        outcome=OUTCOMES.get(record.state, "pending"),
        state=str(record.state),
        reason=reason,
        attempts=len(attempts),
        gpus=attempts[-1].gpus if attempts else 0.0,
        health=read_judged(RunFolder.of(reader.home, record.fingerprint, token)),
    )
    ended = run.outcome in ("finished", "stopped_early")
    try:
        stored = RunSeries(reader.home, record.fingerprint, token)
        run = replace(run, stored=stored)
        evaluations = _evaluations(stored, score_steps(run, plan.evaluate), plan) if ended else ()
        trouble = "" if stored.span else "there are none"
    except RunFolderError as error:
        run = replace(run, stored=None, lines=_readable(reader, record.fingerprint, token))
        evaluations, trouble = (), str(error)
    if ended and trouble:
        return replace(run, outcome="failed", reason=f"its records cannot be read: {trouble}")
    return replace(run, evaluations=evaluations)


def _evaluations(stored: RunSeries, score: Sequence[tuple[int, float]], plan: Plan) -> tuple[Evaluation, ...]:
    """Return the evaluations that make the score and the one before training, as far as they have counts."""
    name = plan.evaluate.primary_metric.rpartition("/")[0].removeprefix("eval/")
    steps = sorted({0, *(step for step, _ in score)})
    paths = (folder.evaluation(name, s) for s in steps if (folder := stored.folder_at(s)) is not None)
    return tuple(read_evaluation(path) for path in paths if path.is_file())


def _readable(reader: Reader, fingerprint: str, token: int) -> tuple[MetricLine, ...]:
    """Return the lines before the first that cannot be read, of the newest attempt that has a metric file."""
    folders = (RunFolder.of(reader.home, fingerprint, n) for n in range(token, 0, -1))
    newest = next((f for f in folders if f.metrics.exists()), None)
    lines: list[MetricLine] = []
    with suppress(RunFolderError):
        lines.extend(newest.read_metrics() if newest else ())
    return tuple(lines)


def _provenance(reader: Reader, study: StudyRecord, results: Mapping[str, ResultRecord]) -> dict[str, str]:
    environment = _environment(reader, results)
    last = max((r.at for r in results.values()), default=None)
    commit = environment.pop("git_commit", "") or environment.pop("git", "")
    return {
        "paribus": version("paribus"),
        "git commit": commit or NOT_RECORDED,
        **_fingerprints(study.plan),
        "environment": ", ".join(f"{k} {v}" for k, v in environment.items()) or NOT_RECORDED,
        "submitted": _time(study.submitted_at),
        "last result": _time(last) if last is not None else "none yet",
    }


def _environment(reader: Reader, results: Mapping[str, ResultRecord]) -> dict[str, str]:
    """Return name to value, or to all values where runs differ, of what the runs recorded as their environment."""
    found: dict[str, dict[str, None]] = {}
    for result in results.values():
        path = RunFolder.of(reader.home, result.fingerprint, result.token).environment
        if not path.is_file():
            continue
        recorded: Any = read_json(path)
        for name, value in flatten(recorded if isinstance(recorded, dict) else {}).items():
            if value in (None, ""):
                continue
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            found.setdefault(name, {})[text] = None
    return {name: " / ".join(texts) for name, texts in found.items()}


def _fingerprints(plan: Plan) -> dict[str, str]:
    """Return the hashes of code, data and initial model of the base arm.

    They are hashed now, and stated only if together they give the fingerprint that the run got when it was planned.
    """
    names = ("code", "data", "initial model")
    recipe = plan.arm(plan.base).recipe
    run = next((r for r in plan.runs if r.arm == plan.base), None)
    try:
        runner = load_runner(plan.runner)
        hashes = runner.code_fingerprint(recipe), runner.data_fingerprint(recipe), runner.model_fingerprint(recipe)
    except ParibusError as error:
        return dict.fromkeys(names, f"not at hand now ({error})")
    code, data, model = hashes
    now = run and run_fingerprint(
        recipe=recipe, evaluate=plan.evaluate, seed=run.seed, code=code, data=data, model=model
    )
    if run is None or now != run.fingerprint:
        other = "part of the run fingerprints; what is installed now differs from what the runs used"
        return dict.fromkeys(names, other)
    return {name: text[:SHORT] for name, text in zip(names, hashes, strict=True)}


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")
