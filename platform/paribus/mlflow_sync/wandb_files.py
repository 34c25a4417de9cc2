"""Copies runs to files of W&B's offline mode, for studies with ``mirror: [wandb]``; `wandb sync` uploads them.

One file a run, ``wandb/offline-run-TIME-ID/run-ID.wandb`` in the home folder: a log of records (``wandb_log``), one a
step. The file itself says which steps it has. After a kill the next process cuts off what is not whole, and goes on
where it ends. Summary and exit come last: if a run goes on after its end, they are cut off and written again.
``ID`` depends on the run and the home folder, so an upload that is repeated replaces what was there, line by line.

Nothing here logs in anywhere: W&B's key is only in the environment, of `wandb sync`. Files hold no credentials.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paribus.contract import Job
from paribus.errors import RunFolderError
from paribus.health.finding import read_health
from paribus.health.wandb_log import append, recover
from paribus.masking import mask
from paribus.mlflow_sync.client import home_number
from paribus.mlflow_sync.copies import Copies, Tails
from paribus.mlflow_sync.groups import params_of, run_note
from paribus.run_folder.attempt_files import read_job
from paribus.run_folder.folder import SHORT, MetricLine, RunFolder
from paribus.store.models import AttemptedRun
from paribus.store.states import RECORDED

FOLDER = "wandb"
"""Folder of these files in the home folder; the name that `wandb sync` expects."""

SYNCED, WANTED = ".wandb.synced", ".wandb.upload"
"""Ends of the names of marks beside a file: that of `wandb sync`; that an upload need not wait for more."""

_ALERT_WAIT_MS = 24 * 3600 * 1000
"""W&B sends no second alert with the same title before: an upload may be repeated."""


def wandb_is_installed() -> bool:
    """Return whether W&B's library is installed, without importing it."""
    return importlib.util.find_spec("wandb") is not None


class WandbFiles(Copies):
    """The W&B files of a home folder."""

    folder = FOLDER
    kind = "W&B file"

    def open(self, run: AttemptedRun, folders: Mapping[int, RunFolder]) -> _RunFile | None:
        """Return the file of a run; ``None`` if its study wants none."""
        job = read_job(folders[min(folders)].job)
        if "wandb" not in job.mirror:
            return None
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # before the import
        identity = f"{run.fingerprint[:SHORT]}-{home_number(self.reader.home)[:6]}"
        began = time.strftime("%Y%m%d_%H%M%S", time.gmtime(run.began_at))
        path = self.place / f"offline-run-{began}-{identity}" / f"run-{identity}.wandb"
        return _RunFile(path, _run_record(self.reader.home, job, identity, run.began_at))


class _RunFile:
    """The W&B file of one run, and how far it has come."""

    def __init__(self, path: Path, first: Any) -> None:
        self._path = path
        self._first = first
        self._began = first.run.start_time.seconds + first.run.start_time.nanos / 1e9
        self._begin()

    def _begin(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.touch()
        self._steps: set[int] = set()
        self._alerts: set[str] = set()
        self._last: dict[str, str] = {}
        self._end = self._body = self._count = 0
        self._exit: int | None = None
        with self._path.open("r+b") as file:
            for data, end in recover(file):
                self._note(_parsed(data), end)
            self._end = self._end if self._exit is not None else self._body
            file.truncate(self._end)
        self._tails = Tails(self._path)

    def _note(self, record: Any, end: int) -> None:
        """Take a record of the file into account."""
        kind = record.WhichOneof("record_type")
        if kind == "history":
            self._steps.add(record.history.step.num)
            self._last |= {item.nested_key[0]: item.value_json for item in record.history.item}
        elif kind == "alert":
            self._alerts.add(record.alert.title)
        elif kind == "exit":
            self._exit = record.exit.exit_code
        self._end = end
        if kind not in ("summary", "exit"):
            self._body, self._count = end, record.num

    def take(self, folders: Mapping[int, RunFolder], run: AttemptedRun) -> None:
        """Write the lines that were added to metric files, an alert for each critical finding, and the end."""
        if not self._path.exists():  # it was deleted
            self._begin()
        if not self._end:
            self._append([self._first])
        for token, folder in folders.items():
            while lines := self._tails.read(token, folder):
                fresh = {line.step: line for line in reversed(lines) if line.step not in self._steps}
                try:
                    self._append([_history(fresh[step], self._began) for step in sorted(fresh)])
                except OSError:
                    self._tails.rewind(token)  # what is written already is not written again
                    raise
        alerts = [a for a in _alerts(folders[max(folders)]) if a.alert.title not in self._alerts]
        self._append(alerts)
        code = int(run.state not in RECORDED)
        if run.terminal and self._exit != code:
            if self._exit is not None:
                self._cut()
            seconds = max(0, int((run.ended_at or run.began_at) - run.began_at))
            self._append([_summary(self._last), _exit(code, seconds)])
        elif not run.terminal and self._exit is not None:
            self._cut()
        if alerts or run.terminal:
            self._path.with_suffix(WANTED).touch()

    def _cut(self) -> None:
        """Cut off the end of a run that goes on."""
        with self._path.open("r+b") as file:
            file.truncate(self._body)
        self._end, self._exit = self._body, None
        self._forget_upload()

    def _append(self, records: Sequence[Any]) -> None:
        if records and self._exit is not None:
            self._cut()
        if not records:
            return
        for number, record in enumerate(records, self._count + 1):
            record.num = number
        with self._path.open("r+b", buffering=0) as file:
            ends = append(file, self._end, [record.SerializeToString(deterministic=True) for record in records])
        for record, end in zip(records, ends, strict=True):
            self._note(record, end)
        self._forget_upload()

    def _forget_upload(self) -> None:
        """Remove the mark of `wandb sync`, which skips files that have one."""
        self._path.with_suffix(SYNCED).unlink(missing_ok=True)


# ---- records -------------------------------------------------------------------------------------


def _new(**values: Any) -> Any:
    from wandb.proto.wandb_internal_pb2 import Record

    return Record(**values)


def _parsed(data: bytes) -> Any:
    record = _new()
    record.MergeFromString(data)
    return record


def _run_record(home: Path, job: Job, identity: str, began: float) -> Any:
    """Return the record of a run: the group is its arm, the job type and the only tag its study."""
    from wandb.proto import wandb_internal_pb2 as pb

    values = params_of(job)
    run = pb.RunRecord(
        run_id=identity,
        project=os.environ.get("WANDB_PROJECT") or job.study,
        entity=os.environ.get("WANDB_ENTITY") or "",
        run_group=mask(job.arm),
        job_type=job.study,
        tags=[job.study],
        display_name=mask(f"{job.arm}, seed {job.seed}"),
        notes=run_note(home, job),
    )
    for key, value in values.items():
        run.config.update.add(key=key, value_json=mask(json.dumps(value, default=str)))
    run.start_time.FromMilliseconds(int(began * 1000))
    return _new(run=run)


def _history(line: MetricLine, began: float) -> Any:
    from wandb.proto.wandb_internal_pb2 import HistoryRecord

    history = HistoryRecord()
    history.step.num = line.step
    seconds = line.time_ms / 1000
    meta = {"_step": line.step, "_timestamp": seconds, "_runtime": max(0.0, seconds - began)}
    for name, value in {**line.values, **meta}.items():
        history.item.add(nested_key=[name], value_json=json.dumps(value))
    return _new(history=history)


def _alerts(folder: RunFolder) -> Iterable[Any]:
    from wandb.proto.wandb_internal_pb2 import AlertRecord

    known = None
    with suppress(RunFolderError):
        known = read_health(folder)
    for finding in known.raised if known else ():
        if finding.state == "critical":
            where = "" if finding.step_onset is None else f" since step {finding.step_onset}"
            text = mask(f"{finding.evidence}{where}")
            title = f"critical: {finding.detector}"
            yield _new(alert=AlertRecord(title=title, text=text, level="ERROR", wait_duration=_ALERT_WAIT_MS))


def _summary(last: Mapping[str, str]) -> Any:
    from wandb.proto.wandb_internal_pb2 import SummaryRecord

    summary = SummaryRecord()
    for name, value in last.items():
        summary.update.add(nested_key=[name], value_json=value)
    return _new(summary=summary)


def _exit(code: int, seconds: int) -> Any:
    from wandb.proto.wandb_internal_pb2 import RunExitRecord

    return _new(exit=RunExitRecord(exit_code=code, runtime=seconds))
