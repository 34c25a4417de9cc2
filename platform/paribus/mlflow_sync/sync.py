"""Packs metric series and copies run folders to MLflow: ``python -m paribus.mlflow_sync.sync HOME``.

There is one such process per home folder. It may lag, but it never blocks a run and loses nothing: it reads files that
stay, notes how much of them MLflow has, and after a crash sends the rest again with the times of the records, which
doubles nothing. When its standard input is closed, it uploads what is left, for a limited time, and ends.
"""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path

from paribus.errors import RunFolderError
from paribus.health.finding import RAISED, read_health
from paribus.masking import describe, mask_output
from paribus.mlflow_sync.client import (
    LONGEST,
    NOTE_TAG,
    PARENT_TAG,
    REFUSALS,
    REFUSED_TAG,
    Digest,
    MlflowWriter,
    RunCard,
    home_number,
    is_refusal,
    tracking_uri,
)
from paribus.mlflow_sync.copies import Copies
from paribus.mlflow_sync.event_files import EventFiles, tensorboard_is_installed
from paribus.mlflow_sync.groups import LARGEST, Groups, params_of, run_note
from paribus.mlflow_sync.offsets import Offsets
from paribus.mlflow_sync.wandb_files import WandbFiles, wandb_is_installed
from paribus.mlflow_sync.wandb_upload import Uploads, is_online
from paribus.run_folder.attempt_files import read_attempt, read_job
from paribus.run_folder.folder import MetricLine, RunFolder, Tail, write_json
from paribus.run_folder.metrics import find_metric
from paribus.store.models import AttemptedRun
from paribus.store.reader import Reader
from paribus.store.states import RECORDED

STATUS = "mlflow_sync.json"
"""File in the home folder: ``{"behind": runs not completely uploaded, "trouble": MLflow's last error, ...}``.

Its list ``refused`` has the metric names that MLflow has refused since the process was started.
"""

DRAIN_S = 60.0
"""Seconds to upload the rest after the standard input has been closed."""

REPLACED = 3
"""Exit status if MLflow's file was deleted or replaced: the next process opens the new one."""

_PERIOD_S = 2.0
_BACKOFF_MAX_S = 60.0
_CHECK_S = 60.0
_log = logging.getLogger("paribus.mlflow_sync")


class _Course:
    """The values of a run that were sent, by metric and step; the first attempt to reach a step counts."""

    def __init__(self) -> None:
        self.values: dict[str, dict[int, float]] = {}
        self.superseded = False

    def add(self, lines: Sequence[MetricLine]) -> list[MetricLine]:
        """Add lines; return the values that are new."""
        fresh = []
        for line in lines:
            new = {}
            for key, value in line.values.items():
                known = self.values.setdefault(key, {})
                if line.step not in known:
                    new[key] = known[line.step] = value
                elif not _same(key, known[line.step], value):
                    self.superseded = True
            if new:
                fresh.append(MetricLine(step=line.step, time_ms=line.time_ms, values=new))
        return fresh


class IncompleteCopy(RunFolderError):
    """MLflow has other points of a run than were sent, also after they were sent again."""


class MlflowSync:
    """Uploads runs.

    It connects to MLflow when that is first needed. ``commit``: git commit of the study's folder; may be empty.
    """

    def __init__(
        self,
        reader: Reader,
        connect: Callable[[], MlflowWriter],
        offsets: Offsets,
        *,
        commit: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._connect = connect
        self._made: MlflowWriter | None = None
        self._offsets = offsets
        self._commit = commit
        self._clock = clock
        self._packed: dict[str, int] = {}
        self._courses: dict[str, _Course] = {}
        self._failures: dict[str, tuple[int, float]] = {}
        self._health: dict[str, MetricLine] = {}
        self._statuses: dict[str, tuple[str, str]] = {}
        self._unreadable: dict[str, str] = {}  # by run in MLflow, the damaged line that was reported
        self._refusals: dict[str, int] = {}
        self._wants: dict[str, bool] = {}
        self._replays = offsets.replays()
        self._next_check = 0.0
        self._groups = Groups(reader, lambda: self._mlflow, offsets, clock)
        self.trouble = ""
        self.refused: set[str] = set()

    @property
    def replaced(self) -> bool:
        """Whether MLflow's SQLite file was deleted or replaced; then only a new process can open it."""
        return self._made is not None and self._made.replaced

    def turn(self) -> int:
        """Upload what is new.

        Returns:
            The number of ended runs that are not completely uploaded; if there is none, how much is left to do for
            the parent runs of studies and arms.
        """
        doubt = self._check_destinations()
        self._forget_after_replay()
        attempted_runs = self._reader.attempted_runs()
        closed, dead = self._offsets.closed_runs(), self._offsets.dead()
        waiting = [s for s in attempted_runs if closed.get(s.fingerprint, 0) < s.token]
        self._pack(waiting)
        self.trouble = doubt or (self.trouble if self._failures else "")
        for attempted in waiting:
            count, again = self._failures.get(attempted.fingerprint, (0, 0.0))
            if self._clock() < again or dead.get(attempted.fingerprint, 0) >= attempted.token:
                continue
            try:
                if self._upload(attempted):
                    closed[attempted.fingerprint] = attempted.token
                self._failures.pop(attempted.fingerprint, None)
                self._refusals.pop(attempted.fingerprint, None)
            except RunFolderError as error:  # this run's files, not MLflow: the others go on
                _log.warning("run %s: %s", attempted.fingerprint, error)
                self._postpone(attempted, error, count)
                self._bury(attempted, error)
            except Exception as error:  # whatever MLflow raises, the run is retried later
                _log.exception("run %s", attempted.fingerprint)
                self._postpone(attempted, error, count)
                if not self._bury(attempted, error):
                    break  # MLflow may be down: one failure per turn is enough
        closed |= {run: max(token, closed.get(run, 0)) for run, token in self._offsets.dead().items()}
        left = (s for s in waiting if s.terminal and closed.get(s.fingerprint, 0) < s.token)
        grouping = self._groups.turn({s.fingerprint: s for s in attempted_runs})
        self.trouble = self.trouble or self._groups.trouble
        return sum(self._is_ours(s, self._folders(s)) for s in left) or grouping

    def _forget_after_replay(self) -> None:
        """Forget what was sent and refused if ``paribus doctor --replay`` has reset the offsets."""
        if (replays := self._offsets.replays()) != self._replays:
            self._replays = replays
            for memory in (self._courses, self._failures, self._refusals):
                memory.clear()
            self._groups.forget()
            self.refused.clear()

    def _bury(self, attempted: AttemptedRun, error: Exception) -> bool:
        """Count a refusal, and make the run a dead letter at the third in a row; return whether it was a refusal."""
        run = attempted.fingerprint
        if not (isinstance(error, IncompleteCopy) or is_refusal(error)):
            self._refusals.pop(run, None)
            return False
        self._refusals[run] = self._refusals.get(run, 0) + 1
        if self._refusals[run] >= REFUSALS:
            self._offsets.bury(run, attempted.token, describe(error))
            for memory in (self._failures, self._refusals):
                memory.pop(run, None)
        return True

    def _check_destinations(self) -> str:
        """Look from time to time whether MLflow still has what was sent; return what is wrong, or an empty string."""
        known = self._offsets.marks()
        if not known or self._clock() < self._next_check:
            return ""
        self._next_check = self._clock() + _CHECK_S
        try:
            found = {study: self._mlflow.mark(study) for study in known}
        except Exception as error:  # whatever MLflow raises, the next turn may succeed
            self._next_check = self._clock() + _PERIOD_S
            return describe(error)
        for study, mark in found.items():
            if mark != known[study]:
                self._arrive(study, mark)
        return ""

    def _arrive(self, study: str, mark: str) -> None:
        """Note another destination of a study; what was sent to the one before does not count there."""
        if study not in self._offsets.marks():
            self._offsets.adopt(mark, self._mlflow.identities(study))
        self._offsets.arrive(study, mark)
        for memory in (self._courses, self._failures, self._health, self._statuses):
            memory.clear()
        self._groups.forget()

    def _is_ours(self, attempted: AttemptedRun, folders: Mapping[int, RunFolder]) -> bool:
        """Return whether this home folder uploads a run, not only another one that shares the store."""
        if not folders or not self._wanted(attempted.fingerprint, folders):
            return False
        # the newest attempt may have ended before it had a folder; with a result it had one
        complete = max(folders) == attempted.token or attempted.state not in RECORDED
        return complete or self._offsets.identity(attempted.fingerprint) is not None

    def _wanted(self, run: str, folders: Mapping[int, RunFolder]) -> bool:
        """Return whether the study of a run wants a copy in MLflow."""
        if run not in self._wants:
            with suppress(RunFolderError):  # damaged: uploading it says so
                self._wants[run] = "mlflow" in read_job(folders[min(folders)].job).mirror
        return self._wants.get(run, True)

    def _postpone(self, attempted: AttemptedRun, error: Exception, failures: int) -> None:
        """Note why a run was not uploaded, and when to try again."""
        self.trouble = describe(error)
        wait = min(2.0 ** min(failures, 10), _BACKOFF_MAX_S)
        self._failures[attempted.fingerprint] = (failures + 1, self._clock() + wait)

    def _pack(self, waiting: Iterable[AttemptedRun]) -> None:
        """Pack the series of runs that train or have just ended, whatever MLflow does; readers pack what is left."""
        from paribus.run_folder.series_file import pack  # imports numpy, which the parent process does without

        until = self._clock() + _PERIOD_S
        for attempted in waiting:
            if self._clock() > until:
                return
            if self._packed.get(attempted.fingerprint) == attempted.token:
                continue
            folder = RunFolder.of(self._reader.home, attempted.fingerprint, attempted.token)
            try:
                pack(folder, ended=attempted.terminal)
            except (RunFolderError, OSError) as error:
                _log.warning("series of run %s: %s", attempted.fingerprint, error)
                self._packed[attempted.fingerprint] = attempted.token
            if attempted.terminal:
                self._packed[attempted.fingerprint] = attempted.token

    def _upload(self, attempted: AttemptedRun) -> bool:
        """Upload what is new of a run; return whether it is complete."""
        folders = self._folders(attempted)
        if not self._is_ours(attempted, folders):
            return False
        if max(folders) < attempted.token and not attempted.terminal:
            return False  # the newest attempt runs elsewhere or has not begun: those here have lost the run
        identity = self._open(attempted, folders)
        if max(folders) < attempted.token and self._is_superseded(attempted, identity, folders):
            self._offsets.closed(identity, attempted.token)
            return True
        self._send_lines(attempted, identity, folders)
        self._send_health(identity, folders[max(folders)])
        if not attempted.terminal:
            return False
        course = self._courses[attempted.fingerprint]
        if not self._complete(identity, course):
            self._offsets.rewind(identity)
            del self._courses[attempted.fingerprint]
            self._send_lines(attempted, identity, folders)
            course = self._courses[attempted.fingerprint]
            if not self._complete(identity, course):
                raise IncompleteCopy(
                    f"MLflow has other points of run {attempted.fingerprint} than its folder, also after a second try"
                )
        self._finish(attempted, identity, folders, course)
        return True

    def _is_superseded(self, attempted: AttemptedRun, identity: str, folders: Mapping[int, RunFolder]) -> bool:
        """Return whether a newer attempt was made in another home folder; if so, MLflow's copy of this one says so."""
        newest = max(folders)
        elsewhere = attempted.token if attempted.state in RECORDED else 0
        return self._mlflow.own(identity, self._card(attempted, folders), newest, elsewhere) > newest

    def _send_health(self, identity: str, folder: RunFolder) -> None:
        """Send status, worst detector, and number of findings when one of them has changed.

        A point is noted before it is sent, and sent again by a new process as it was noted. The step that a later
        attempt repeats gets no second one.
        """
        known = read_health(folder)
        if known is None:
            return
        status = (known.status, known.detector)
        if self._statuses.get(identity) != status:
            self._mlflow.tag(identity, "paribus.health", known.status)
            self._mlflow.tag(identity, "paribus.health.detector", known.detector)
            self._statuses[identity] = status
        states = [finding.state for finding in known.raised]
        counts = {f"health/{state}": float(states.count(state)) for state in RAISED}
        line = MetricLine(step=known.step, time_ms=known.time_ms, values=counts)
        noted = self._offsets.health(identity)
        if noted is None or (line.step > noted.step and line.values != noted.values):
            self._offsets.note_health(identity, line)
            noted = line
        if self._health.get(identity) != noted:
            self._log(identity, [noted])
            self._health[identity] = noted

    def _log(self, identity: str, lines: Sequence[MetricLine]) -> None:
        """Send lines without the names that MLflow refuses, and note these."""
        known = self._offsets.refused(identity)
        if known:
            lines = [replace(line, values={k: v for k, v in line.values.items() if k not in known}) for line in lines]
        refused = self._mlflow.log(identity, lines)
        if refused:
            # this fails if it is the whole run that MLflow refuses, and not a name
            self._mlflow.tag(identity, REFUSED_TAG, ", ".join(sorted(known | refused))[:LONGEST])
            self._offsets.refuse(identity, refused)
            self.refused |= refused

    def _send_lines(self, attempted: AttemptedRun, identity: str, folders: Mapping[int, RunFolder]) -> None:
        course = self._courses.get(attempted.fingerprint) or self._recall(identity, folders)
        for token, folder in folders.items():
            tail = Tail(folder.metrics, self._offsets.offset(identity, token))
            while True:
                try:
                    lines = tail.read()
                except RunFolderError as error:
                    if self._unreadable.get(identity) != str(error):
                        self._mlflow.tag(identity, "paribus.unreadable", str(error))
                        _log.warning("run %s: %s", attempted.fingerprint, error)
                        self._unreadable[identity] = str(error)
                    break
                if not lines:
                    break
                self._courses.pop(attempted.fingerprint, None)  # until MLflow has them, memory and offsets would differ
                self._log(identity, course.add(lines))
                self._offsets.advance(identity, token, tail.offset)
                self._courses[attempted.fingerprint] = course
        self._courses[attempted.fingerprint] = course

    def _recall(self, identity: str, folders: Mapping[int, RunFolder]) -> _Course:
        """Read again what was sent before."""
        course = _Course()
        for token, folder in folders.items():
            limit = self._offsets.offset(identity, token)
            tail = Tail(folder.metrics)
            with suppress(RunFolderError):  # damaged since it was sent
                while lines := tail.read(limit):
                    course.add(lines)
        return course

    def _complete(self, identity: str, course: _Course) -> bool:
        refused = self._offsets.refused(identity)
        sent = {key: Digest.of(points.items()) for key, points in course.values.items() if key not in refused}
        return self._mlflow.digests(identity, sent) == sent

    # ---- opening and closing ---------------------------------------------------------------------

    @property
    def _mlflow(self) -> MlflowWriter:
        if self._made is None:
            self._made = self._connect()
        return self._made

    def _folders(self, attempted: AttemptedRun) -> dict[int, RunFolder]:
        every = {t: RunFolder.of(self._reader.home, attempted.fingerprint, t) for t in range(1, attempted.token + 1)}
        return {token: folder for token, folder in every.items() if folder.job.exists()}

    def _open(self, attempted: AttemptedRun, folders: Mapping[int, RunFolder]) -> str:
        """Return the id in MLflow of this home folder's copy of a run, which knows the newest attempt here."""
        identity, newest = self._offsets.identity(attempted.fingerprint), max(folders)
        if identity is not None and self._offsets.owner(identity) >= newest:
            return identity
        card = self._card(attempted, folders)
        if identity is None:
            mark = self._mlflow.destination(card.study)
            if mark != self._offsets.marks().get(card.study):
                self._arrive(card.study, mark)
            identity = self._offsets.identity(attempted.fingerprint)  # an earlier version may have opened it
        if identity is None:
            arm = card.tags["paribus.arm"]
            parent = self._groups.parent_of(card.study, arm)
            card = replace(card, tags={**card.tags, PARENT_TAG: parent} if parent else card.tags)
            identity = self._mlflow.open_run(card)
            self._mlflow.describe(identity, card)
            self._offsets.opened(attempted.fingerprint, mark, identity)
            self._offsets.note_child(identity, card.study, arm, parent)
        self._mlflow.own(identity, card, newest)
        self._offsets.own(identity, newest)
        return identity

    def _card(self, attempted: AttemptedRun, folders: Mapping[int, RunFolder]) -> RunCard:
        job = read_job(folders[min(folders)].job)
        tags = {"paribus.study": job.study, "paribus.arm": job.arm, "paribus.seed": str(job.seed)}
        tags |= {"mlflow.source.git.commit": self._commit} if self._commit else {}
        note = run_note(self._reader.home, job)
        tags |= {NOTE_TAG: note} if note else {}
        return RunCard(
            fingerprint=attempted.fingerprint,
            home=home_number(self._reader.home),
            began=f"{attempted.began_at:.6f}",
            study=job.study,
            name=f"{job.arm}, seed {job.seed}",
            params=params_of(job),
            tags=tags,
            start_ms=int(attempted.began_at * 1000),
        )

    def _finish(
        self, attempted: AttemptedRun, identity: str, folders: Mapping[int, RunFolder], course: _Course
    ) -> None:
        newest = folders[max(folders)]
        tags = {"paribus.state": str(attempted.state)}
        with suppress(RunFolderError, KeyError):
            tags["paribus.host"] = read_attempt(newest)["supervisor"]["host"]
        tags |= {"paribus.superseded": "an unfinished attempt has other values"} if course.superseded else {}
        for key, value in tags.items():
            self._mlflow.tag(identity, key, value)
        singles = (newest.job, newest.environment, newest.result, newest.health, newest.outcome, newest.log)
        files = [(f, "") for f in singles if f.exists()]
        if newest.samples.exists():
            small = newest.samples.stat().st_size <= LARGEST
            files += [(newest.samples, "")] if small else []
        files += [(f, "evals") for f in sorted(newest.evals.glob("*.json"))]
        self._mlflow.attach(identity, files)
        end_ms = int((attempted.ended_at or attempted.began_at) * 1000)
        self._mlflow.close_run(identity, succeeded=attempted.state in RECORDED, end_ms=end_ms)
        self._offsets.closed(identity, attempted.token)
        del self._courses[attempted.fingerprint]


def _same(key: str, before: float, after: float) -> bool:
    metric = find_metric(key)
    return before == after or (math.isnan(before) and math.isnan(after)) or (metric is not None and metric.timing)


def _commit() -> str:
    with suppress(OSError, subprocess.TimeoutExpired):
        shown = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, timeout=10)  # noqa: S607
        return shown.stdout.strip() if shown.returncode == 0 else ""
    return ""


def serve(home: Path, sync: MlflowSync | None, copies: Sequence[Copies] = (), uploads: Uploads | None = None) -> int:
    """Copy until the standard input is closed and everything is copied, or the time for that is over.

    Args:
        home: home folder.
        sync: copies to MLflow; ``None`` if that is not installed.
        copies: write files.
        uploads: uploads W&B files; ``None`` if that is not wanted.
    """
    drain_until: float | None = None
    while True:
        behind = sum(each.turn() for each in copies)  # first, as MLflow may be slow
        behind += (uploads.turn() if uploads else 0) + (sync.turn() if sync else 0)
        troubles = [sync.trouble if sync else "", *(f"{c.kind}s: {c.trouble}" for c in copies if c.trouble)]
        troubles += [f"W&B: {uploads.trouble}" if uploads and uploads.trouble else ""]
        refused = sorted(sync.refused) if sync else []
        write_json(home / STATUS, {"behind": behind, "trouble": next(filter(None, troubles), ""), "refused": refused})
        if sync and sync.replaced:
            return REPLACED
        if drain_until is None:
            if select.select([sys.stdin], [], [], _PERIOD_S)[0] and not os.read(sys.stdin.fileno(), 1024):
                drain_until = time.monotonic() + DRAIN_S
        elif behind == 0:
            return 0
        elif time.monotonic() > drain_until:
            return 1
        else:
            time.sleep(0.2)


def main(arguments: Sequence[str]) -> int:
    """Upload the runs of a home folder."""
    from filelock import FileLock

    home = Path(arguments[0])
    mask_output()
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s", level=logging.WARNING)
    # this process retries by itself, and must notice when its input is closed
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.nice(5)
    with FileLock(home / "mlflow_sync.lock"), Reader.open(home) as reader:
        offsets = Offsets(home)
        try:
            sync = None
            if importlib.util.find_spec("mlflow") is not None:
                sync = MlflowSync(reader, lambda: MlflowWriter(tracking_uri(home), home), offsets, commit=_commit())
            copies: list[Copies] = [EventFiles(reader)] if tensorboard_is_installed() else []
            copies += [WandbFiles(reader)] if wandb_is_installed() else []
            uploads = Uploads(home) if wandb_is_installed() and is_online() else None
            with closing(uploads) if uploads else nullcontext():
                return serve(home, sync, copies, uploads)
        finally:
            offsets.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
