"""``paribus import``: logs of finished runs become runs of an external study.

The identity of an imported run is the content of its log, so the same log is never recorded twice, and one that has
changed is another run.
"""

from __future__ import annotations

import math
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paribus.errors import ImportFailed, LogFileError
from paribus.external.names import NamedLog
from paribus.external.plan import IMPORTED, ExternalRun, Terms, external_job, external_plan, refuse_trained
from paribus.health.detector import Setting
from paribus.health.finding import to_json
from paribus.health.import_logs import Log, logged_name, open_log
from paribus.health.judge import judge_log
from paribus.health.profile import load_profile
from paribus.recipe.recipe import fingerprint_of
from paribus.run_folder.folder import MetricLine, RunFolder, to_json_number, write_json
from paribus.run_folder.metrics import Source, find_metric
from paribus.run_folder.native_names import NativeNames
from paribus.store.control import newest_plan
from paribus.store.store import Store
from paribus.study.plan import Plan
from paribus.text import plural
from paribus.version import VERSION

PRIMARY = ("eval/heldout/avg_at_1", "reward/correct_frac", "reward/mean")
"""What the tables show if the user does not say: the first of these that every log has."""

TOKEN = 1
"""Fence token of the only attempt at an imported run."""


@dataclass(frozen=True, kw_only=True)
class ReadLog:
    """A log that was read.

    Attributes:
        named: which run it is of.
        log: its content.
        fingerprint: identity of the run.
    """

    named: NamedLog
    log: Log
    fingerprint: str

    @property
    def last(self) -> int:
        """The last step."""
        return max(self.log.raw)

    @property
    def metrics(self) -> frozenset[str]:
        """The canonical metrics that it has."""
        return frozenset(name for name, _ in self.log.mapped.keys.values())


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What an import did.

    Attributes:
        plan: the newest plan of the study.
        added: logs that were recorded, in the order of the plan.
        known: number of logs that had been recorded before.
        replaced: number of runs whose place was taken by a log that has changed.
        notes: what the reader assumed, and what to know, as sentences.
    """

    plan: Plan
    added: tuple[ReadLog, ...]
    known: int
    replaced: int
    notes: tuple[str, ...]


def read_logs(
    named: Iterable[NamedLog], tracking_uri: Callable[[], str], trainer: str | None = None
) -> tuple[ReadLog, ...]:
    """Read logs with canonical names.

    Raises:
        ImportFailed: some cannot be read; all of them are listed.
        MissingExtra: TensorBoard or MLflow is needed, and not installed.
    """
    found, faults = [], []
    for each in named:
        try:
            log = open_log(each.target, tracking_uri, trainer)
            if log is None:
                raise LogFileError(f"{each.target}: no log of a trainer is here; `paribus health --help` lists what is")
            if log.trouble:
                raise LogFileError(f"{each.target}: {log.trouble}")
            if min(log.raw) < 0:
                raise LogFileError(f"{each.target}: has the step {min(log.raw)}; steps begin at 0")
        except LogFileError as error:
            faults.append(str(error))
            continue
        found.append(ReadLog(named=each, log=log, fingerprint=_identity(each, log)))
    if faults:
        listed = "\n  ".join(faults)
        raise ImportFailed(f"nothing was imported, because these logs cannot be read:\n  {listed}")
    return tuple(found)


def _identity(named: NamedLog, log: Log) -> str:
    values = {str(s): {k: to_json_number(v) for k, v in each.items()} for s, each in log.raw.items()}
    return fingerprint_of(["external log", named.arm, named.seed, log.mapped.trainer, values])


def import_logs(home: Path, study: str, logs: Sequence[ReadLog], terms: Terms, *, replace_changed: bool) -> Imported:
    """Record logs as runs of an external study, all of them or none.

    Args:
        home: home folder.
        study: name; it may exist, if it is external.
        logs: at least one.
        terms: of the user.
        replace_changed: whether a log takes the place of another one with its arm and seed.

    Raises:
        ImportFailed: a log has changed since it was imported, or the primary metric is missing in some logs.
        ParibusError: the study is trained by Paribus, or there is no such base.
        StoreError: the store cannot be used.
    """
    with Store.open(home) as store:
        with store.database.read() as connection:
            known = newest_plan(connection, study)
        if known is not None:
            refuse_trained(known)
        terms = replace(terms, primary=_primary(logs, terms, known))
        recorded = {(known.arm(r.arm).label, r.seed): r.fingerprint for r in known.runs} if known else {}
        changed = [x for x in logs if recorded.get((x.named.arm, x.named.seed), x.fingerprint) != x.fingerprint]
        if changed and not replace_changed:
            raise ImportFailed(_changed_message(study, changed))
        plan = external_plan(study, [_run(each) for each in logs], terms, known)
        have = store.results([each.fingerprint for each in logs])
        fresh = [each for each in logs if each.fingerprint not in have]
        for each in fresh:
            _write_folder(home, plan, each)
        payloads = {each.fingerprint: payload_of(each) for each in fresh}
        store.record(plan, payloads, engine=IMPORTED, worker=socket.gethostname())
    return Imported(
        plan=plan,
        added=tuple(sorted(fresh, key=lambda x: [r.fingerprint for r in plan.runs].index(x.fingerprint))),
        known=len(logs) - len(fresh),
        replaced=len(changed),
        notes=_notes(plan, logs),
    )


def _run(each: ReadLog) -> ExternalRun:
    named = each.named
    return ExternalRun(arm=named.arm, seed=named.seed, fingerprint=each.fingerprint, steps=max(1, each.last))


def _changed_message(study: str, changed: Sequence[ReadLog]) -> str:
    lines = [
        f"{x.named.shown}: arm `{x.named.arm}`, seed {x.named.seed}, now {plural(len(x.log.raw), 'step')}"
        for x in changed
    ]
    listed = "\n  ".join(lines)
    return (
        f"nothing was imported: `{study}` has other records of these runs, so the logs have changed since, or are of "
        f"other runs:\n  {listed}\nWith --replace they take the place of the old records, which stay in the store."
    )


def _primary(logs: Sequence[ReadLog], terms: Terms, known: Plan | None) -> str:
    """Return the primary metric: that of the user, of the study, or the first of :data:`PRIMARY` that all logs have."""
    shared = frozenset[str].intersection(*(each.metrics for each in logs))
    named = terms.primary or (known.evaluate.primary if known else None)
    if named is None:
        fitting = (name for name in PRIMARY if name in shared and not any(_is_no_share(x, name) for x in logs))
        named = next(fitting, None)
    listed = ", ".join(sorted(n for n in shared if find_metric(n) is not None)) or "none"
    if named is None:
        wanted = ", ".join(PRIMARY)
        raise ImportFailed(f"none of {wanted} is in all logs: name a metric with --primary. In every log: {listed}.")
    if find_metric(named) is None:
        raise ImportFailed(f"`{named}` is no metric of docs/reference/metrics.md. In every log: {listed}.")
    if lacking := [each.named.shown for each in logs if named not in each.metrics]:
        missing = "\n  ".join(lacking)
        raise ImportFailed(
            f"`{named}`, the metric of the tables, is missing in:\n  {missing}\nName another with --primary. In every "
            f"log: {listed}."
        )
    if odd := [each.named.shown for each in logs if _is_no_share(each, named)]:
        beyond = "\n  ".join(odd)
        raise ImportFailed(
            f"`{named}` is a share, and these logs have values below 0 or above 1:\n  {beyond}\nName another with "
            "--primary, such as reward/mean."
        )
    return named


def _is_no_share(each: ReadLog, metric: str) -> bool:
    """Whether a metric is a share and the log has other values for it: an evaluation can also record a reward."""
    found = find_metric(metric)
    if found is None or found.unit != "fraction":
        return False
    values = (line.values[metric] for line in each.log.lines if metric in line.values)
    return any(not -1e-6 <= x <= 1 + 1e-6 for x in values if math.isfinite(x))


def _notes(plan: Plan, logs: Sequence[ReadLog]) -> tuple[str, ...]:
    notes = [f"{each.named.shown}: {note}" for each in logs for note in each.log.notes]
    ends = {each.last for each in logs}
    if len(ends) > 1:
        shortest = min(logs, key=lambda x: x.last)
        notes.append(f"The logs end at different steps: from {min(ends)} ({shortest.named.shown}) to {max(ends)}.")
    trainers = sorted({each.log.mapped.trainer for each in logs})
    if len(trainers) > 1:
        notes.append(f"The logs are of several trainers ({', '.join(trainers)}): the same name need not be the same.")
    return (*notes, *(w.message for w in plan.warnings))


# ---- run folders -------------------------------------------------------------------------------------


def metric_lines(log: Log, time_ms: int) -> list[MetricLine]:
    """Return the lines of a run folder: canonical metrics with their sources, and all numbers of the trainer."""
    canonical = {line.step: line for line in log.lines}
    names, found = NativeNames(), []
    names.learn({name for raw in log.raw.values() for name in raw})
    for step, raw in sorted(log.raw.items()):
        line = canonical.get(step)
        values: dict[str, float] = {f"native/{log.mapped.trainer}/{names.of(name)}": x for name, x in raw.items()}
        sources: Mapping[str, Source] = line.sources if line else {}
        found.append(
            MetricLine(step=step, time_ms=time_ms, values={**values, **(line.values if line else {})}, sources=sources)
        )
    return found


def payload_of(each: ReadLog) -> dict[str, Any]:
    """Return the result of an imported run."""
    keys = each.log.mapped.keys
    return {
        "status": "succeeded",
        "origin": IMPORTED,
        "trainer": each.log.mapped.trainer,
        "steps": each.last,
        "log": each.named.target,
        "names": {metric: logged_name(name) for name, (metric, _) in sorted(keys.items())},
    }


def _write_folder(home: Path, plan: Plan, each: ReadLog) -> None:
    """Write the folder of an imported run; one that a killed import left is replaced."""
    folder = RunFolder.of(home, each.fingerprint, TOKEN)
    staged = RunFolder(folder.path.with_name(f".{folder.path.name}.{os.getpid()}"))
    try:
        staged.path.mkdir(parents=True)
        _write_files(staged, home, plan, each)
        shutil.rmtree(folder.path, ignore_errors=True)
        staged.path.rename(folder.path)
    except OSError as error:
        shutil.rmtree(staged.path, ignore_errors=True)
        raise ImportFailed(f"nothing was imported: {folder.path} cannot be written: {error}") from error


def _write_files(folder: RunFolder, home: Path, plan: Plan, each: ReadLog) -> None:
    payload = payload_of(each)
    about = {key: payload[key] for key in ("origin", "trainer", "log")}
    arm = next(a for a in plan.arms if a.label == each.named.arm)
    job = external_job(plan, _run(each), arm.recipe, TOKEN, home, about)
    folder.job.write_text(job.model_dump_json(indent=1))
    lines = metric_lines(each.log, _time_ms(each.named.target))
    for line in lines:
        folder.append_metrics(line)
    write_json(folder.environment, {"paribus": VERSION, **about})
    profile = load_profile("default")
    write_json(folder.health, to_json(judge_log(profile, each.log), lines[-1], Setting(profile=profile).identity))
    write_json(folder.result, payload)


def _time_ms(target: str) -> int:
    """Return when a log was written last: its lines have no times that all trainers share."""
    with suppress(OSError):
        return int(Path(target).stat().st_mtime * 1000)
    return time.time_ns() // 1_000_000
