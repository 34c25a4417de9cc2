"""Packs metric series and copies run folders to MLflow: ``python -m paribus.mlflow_sync.sync HOME``.

There is one such process per home folder. It may lag, but it never blocks a run and loses nothing: it reads files that
stay, notes how much of them MLflow has, and after a crash sends the rest again with the times of the records, which
doubles nothing. When its standard input is closed, it uploads what is left, for a limited time, and ends.
"""

from __future__ import annotations

import logging
import math
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from paribus.contract import Job
from paribus.errors import RunFolderError
from paribus.health.finding import RAISED, read_health
from paribus.masking import describe, mask_output
from paribus.mlflow_sync.client import MlflowWriter, Offsets, RunCard, tracking_uri
from paribus.recipe.recipe import flatten
from paribus.run_folder.folder import MetricLine, RunFolder, Tail, read_json, write_json
from paribus.run_folder.metrics import find_metric
from paribus.store.models import AttemptedRun
from paribus.store.reader import Reader
from paribus.store.states import RECORDED

STATUS = "mlflow_sync.json"
"""File in the home folder: ``{"behind": runs not completely uploaded, "trouble": MLflow's last error}``."""

DRAIN_S = 60.0
"""Seconds to upload the rest after the standard input has been closed."""

_PERIOD_S = 2.0
_BACKOFF_MAX_S = 60.0
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
        self._health: dict[str, tuple[str | float, ...]] = {}
        self.trouble = ""

    def turn(self) -> int:
        """Upload what is new.

        Returns:
            The number of ended runs that are not completely uploaded.
        """
        closed = self._offsets.closed_runs()
        waiting = [s for s in self._reader.attempted_runs() if closed.get(s.fingerprint, 0) < s.token]
        self._pack(waiting)
        self.trouble = self.trouble if self._failures else ""
        for attempted in waiting:
            count, again = self._failures.get(attempted.fingerprint, (0, 0.0))
            if self._clock() < again:
                continue
            try:
                if self._upload(attempted):
                    closed[attempted.fingerprint] = attempted.token
                self._failures.pop(attempted.fingerprint, None)
            except Exception as error:  # whatever MLflow raises, the run is retried later
                _log.exception("run %s", attempted.fingerprint)
                self.trouble = describe(error)
                wait = min(2.0**count, _BACKOFF_MAX_S)
                self._failures[attempted.fingerprint] = (count + 1, self._clock() + wait)
                break  # MLflow may be down: one failure per turn is enough
        # a run without a folder here was trained on another host, whose own sync uploads it
        left = (s for s in waiting if s.terminal and closed.get(s.fingerprint, 0) < s.token)
        return sum(bool(self._folders(s)) for s in left)

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
        if not folders:
            return False
        identity = self._open(attempted, folders)
        self._send_lines(attempted, identity, folders)
        self._send_health(identity, folders[max(folders)])
        if not attempted.terminal:
            return False
        course = self._courses[attempted.fingerprint]
        if not self._complete(identity, course):
            self._offsets.rewind(attempted.fingerprint)
            del self._courses[attempted.fingerprint]
            self._send_lines(attempted, identity, folders)
            course = self._courses[attempted.fingerprint]
            if not self._complete(identity, course):
                raise RunFolderError(
                    f"MLflow lacks steps of run {attempted.fingerprint}, although they were sent twice"
                )
        self._finish(attempted, identity, folders, course)
        return True

    def _send_health(self, identity: str, folder: RunFolder) -> None:
        """Send status, worst detector, and number of findings when one of them has changed."""
        known = read_health(folder)
        if known is None:
            return
        states = [finding.state for finding in known.raised]
        counts = {f"health/{state}": float(states.count(state)) for state in RAISED}
        verdict: tuple[str | float, ...] = (known.status, known.detector, *counts.values())
        if self._health.get(identity) != verdict:
            self._mlflow.tag(identity, "paribus.health", known.status)
            self._mlflow.tag(identity, "paribus.health.detector", known.detector)
            self._mlflow.log(identity, [MetricLine(step=known.step, time_ms=known.time_ms, values=counts)])
            self._health[identity] = verdict

    def _send_lines(self, attempted: AttemptedRun, identity: str, folders: Mapping[int, RunFolder]) -> None:
        course = self._courses.get(attempted.fingerprint) or self._recall(attempted, folders)
        for token, folder in folders.items():
            tail = Tail(folder.metrics, self._offsets.offset(attempted.fingerprint, token))
            while True:
                try:
                    lines = tail.read()
                except RunFolderError as error:
                    self._mlflow.tag(identity, "paribus.unreadable", str(error))
                    break
                if not lines:
                    break
                self._courses.pop(attempted.fingerprint, None)  # until MLflow has them, memory and offsets would differ
                self._mlflow.log(identity, course.add(lines))
                self._offsets.advance(attempted.fingerprint, token, tail.offset)
                self._courses[attempted.fingerprint] = course
        self._courses[attempted.fingerprint] = course

    def _recall(self, attempted: AttemptedRun, folders: Mapping[int, RunFolder]) -> _Course:
        """Read again what was sent before."""
        course = _Course()
        for token, folder in folders.items():
            limit = self._offsets.offset(attempted.fingerprint, token)
            tail = Tail(folder.metrics)
            while lines := tail.read(limit):
                course.add(lines)
        return course

    def _complete(self, identity: str, course: _Course) -> bool:
        held = self._mlflow.steps(identity, course.values)
        return all(held[key] == set(steps) for key, steps in course.values.items())

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
        known = self._offsets.identity(attempted.fingerprint)
        if known is not None:
            return known
        first = folders[min(folders)]
        job = Job.model_validate_json(first.job.read_bytes())
        tags = {"paribus.study": job.study, "paribus.arm": job.arm, "paribus.seed": str(job.seed)}
        tags |= {"mlflow.source.git.commit": self._commit} if self._commit else {}
        card = RunCard(
            fingerprint=attempted.fingerprint,
            study=job.study,
            name=f"{job.arm}, seed {job.seed}",
            params={**flatten(job.recipe.model_dump(mode="json")), "seed": job.seed, "runner": job.runner},
            tags=tags,
            start_ms=int(attempted.began_at * 1000),
        )
        identity = self._mlflow.open_run(card)
        self._mlflow.describe(identity, card)
        self._offsets.opened(attempted.fingerprint, identity)
        return identity

    def _finish(
        self, attempted: AttemptedRun, identity: str, folders: Mapping[int, RunFolder], course: _Course
    ) -> None:
        newest = folders[max(folders)]
        tags = {"paribus.state": str(attempted.state), "paribus.token": str(attempted.token)}
        with suppress(RunFolderError, KeyError):
            tags["paribus.host"] = read_json(newest.attempt)["supervisor"]["host"]
        tags |= {"paribus.superseded": "an unfinished attempt has other values"} if course.superseded else {}
        for key, value in tags.items():
            self._mlflow.tag(identity, key, value)
        singles = (newest.job, newest.environment, newest.result, newest.health, newest.outcome, newest.log)
        files = [(f, "") for f in singles if f.exists()]
        files += [(f, "evals") for f in sorted(newest.evals.glob("*.json"))]
        self._mlflow.attach(identity, files)
        end_ms = int((attempted.ended_at or attempted.began_at) * 1000)
        self._mlflow.close_run(identity, succeeded=attempted.state in RECORDED, end_ms=end_ms)
        self._offsets.closed(attempted.fingerprint, attempted.token)
        del self._courses[attempted.fingerprint]


def _same(key: str, before: float, after: float) -> bool:
    metric = find_metric(key)
    return before == after or (math.isnan(before) and math.isnan(after)) or (metric is not None and metric.timing)


def _commit() -> str:
    with suppress(OSError, subprocess.TimeoutExpired):
        shown = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, timeout=10)  # noqa: S607
        return shown.stdout.strip() if shown.returncode == 0 else ""
    return ""


def serve(home: Path, sync: MlflowSync) -> int:
    """Upload until the standard input is closed and everything is uploaded, or the time for that is over."""
    drain_until: float | None = None
    while True:
        behind = sync.turn()
        write_json(home / STATUS, {"behind": behind, "trouble": sync.trouble})
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
            sync = MlflowSync(reader, lambda: MlflowWriter(tracking_uri(home), home), offsets, commit=_commit())
            return serve(home, sync)
        finally:
            offsets.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
