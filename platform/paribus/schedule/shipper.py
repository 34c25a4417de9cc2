"""Packs metric series and mirrors the run folders to MLflow: ``python -m paribus.schedule.shipper HOME``.

One process a home folder.

It may lag, it never blocks a run, and it loses nothing: it reads files that stay, notes how far MLflow has them, and
after any crash sends the rest again with the times of the records, which doubles nothing. When its standard input is
closed it ships what is left, for a limited time, and ends.
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
from typing import Protocol

from paribus.errors import RunFolderError
from paribus.health.finding import RAISED
from paribus.recipe.recipe import flatten
from paribus.schedule.ledger import Ledger
from paribus.store.reader import Reader
from paribus.store.records import Shipment
from paribus.store.states import RECORDED
from paribus.study.job import Job
from paribus.track.folder import MetricLine, RunFolder, read_json, write_json
from paribus.track.metrics import find_metric
from paribus.track.mlflow import MlflowMirror, RunCard, tracking_uri
from paribus.track.spool import Tail

STATUS = "shipper.json"
"""File in the home folder: ``{"behind": runs not shipped completely, "trouble": what MLflow last complained of}``."""

DRAIN_S = 60.0
"""Seconds for which the rest is shipped after the standard input was closed."""

_PERIOD_S = 2.0
_BACKOFF_MAX_S = 60.0
_log = logging.getLogger("paribus.shipper")


class Mirror(Protocol):
    """Where runs are mirrored to; :class:`~paribus.track.mlflow.MlflowMirror` says what each call does."""

    def open_run(self, card: RunCard) -> str: ...  # noqa: D102 - see above
    def describe(self, identity: str, card: RunCard) -> None: ...  # noqa: D102
    def log(self, identity: str, lines: Sequence[MetricLine]) -> None: ...  # noqa: D102
    def tag(self, identity: str, key: str, value: str) -> None: ...  # noqa: D102
    def attach(self, identity: str, files: Iterable[tuple[Path, str]]) -> None: ...  # noqa: D102
    def close_run(self, identity: str, *, succeeded: bool, end_ms: int) -> None: ...  # noqa: D102
    def steps(self, identity: str, keys: Iterable[str]) -> dict[str, set[int]]: ...  # noqa: D102


class _Course:
    """The values of a run that were shipped, by metric and step; the first attempt to reach a step counts."""

    def __init__(self) -> None:
        self.values: dict[str, dict[int, float]] = {}
        self.superseded = False

    def add(self, lines: Sequence[MetricLine]) -> list[MetricLine]:
        """Take lines in; return what of them is new."""
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


class Shipper:
    """Ships runs.

    Args:
        reader: the store.
        mirror: makes the mirror when it is first needed.
        ledger: what has been shipped.
        commit: git commit of the study's folder; empty if there is none.
        clock: seconds.
    """

    def __init__(
        self,
        reader: Reader,
        mirror: Callable[[], Mirror],
        ledger: Ledger,
        *,
        commit: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._make_mirror = mirror
        self._made: Mirror | None = None
        self._ledger = ledger
        self._commit = commit
        self._clock = clock
        self._packed: dict[str, int] = {}
        self._courses: dict[str, _Course] = {}
        self._failures: dict[str, tuple[int, float]] = {}
        self._verdicts: dict[str, tuple[str | float, ...]] = {}
        self.trouble = ""

    def turn(self) -> int:
        """Ship what is new.

        Returns:
            The number of ended runs that are not shipped completely.
        """
        closed = self._ledger.closed_runs()
        waiting = [s for s in self._reader.shipments() if closed.get(s.fingerprint, 0) < s.token]
        self._pack(waiting)
        self.trouble = self.trouble if self._failures else ""
        for shipment in waiting:
            count, again = self._failures.get(shipment.fingerprint, (0, 0.0))
            if self._clock() < again:
                continue
            try:
                if self._ship(shipment):
                    closed[shipment.fingerprint] = shipment.token
                self._failures.pop(shipment.fingerprint, None)
            except Exception as error:  # whatever MLflow raises, it is tried again later
                _log.exception("run %s", shipment.fingerprint)
                self.trouble = f"{type(error).__name__}: {error}".splitlines()[0]
                wait = min(2.0**count, _BACKOFF_MAX_S)
                self._failures[shipment.fingerprint] = (count + 1, self._clock() + wait)
                break  # MLflow may be down: one try a turn
        # a run without a folder here was trained on another host, whose shipper ships it
        left = (s for s in waiting if s.terminal and closed.get(s.fingerprint, 0) < s.token)
        return sum(bool(self._folders(s)) for s in left)

    def _pack(self, waiting: Iterable[Shipment]) -> None:
        """Pack the series of runs that go on or have just ended, whatever MLflow does; readers pack what is left."""
        from paribus.track.rollup import pack  # numpy, which the process that starts this one does without

        until = self._clock() + _PERIOD_S
        for shipment in waiting:
            if self._clock() > until:
                return
            if self._packed.get(shipment.fingerprint) == shipment.token:
                continue
            folder = RunFolder.of(self._reader.home, shipment.fingerprint, shipment.token)
            try:
                pack(folder, ended=shipment.terminal)
            except (RunFolderError, OSError) as error:
                _log.warning("series of run %s: %s", shipment.fingerprint, error)
                self._packed[shipment.fingerprint] = shipment.token
            if shipment.terminal:
                self._packed[shipment.fingerprint] = shipment.token

    def _ship(self, shipment: Shipment) -> bool:
        """Ship what is new of a run; return whether it is complete."""
        folders = self._folders(shipment)
        if not folders:
            return False
        identity = self._open(shipment, folders)
        self._send_lines(shipment, identity, folders)
        self._send_verdict(identity, folders[max(folders)])
        if not shipment.terminal:
            return False
        course = self._courses[shipment.fingerprint]
        if not self._complete(identity, course):
            self._ledger.rewind(shipment.fingerprint)
            del self._courses[shipment.fingerprint]
            self._send_lines(shipment, identity, folders)
            course = self._courses[shipment.fingerprint]
            if not self._complete(identity, course):
                raise RunFolderError(f"MLflow lacks steps of run {shipment.fingerprint} after they were sent twice")
        self._finish(shipment, identity, folders, course)
        return True

    def _send_verdict(self, identity: str, folder: RunFolder) -> None:
        """Send lamp, worst detector, and number of findings when one of them has changed."""
        try:
            known = read_json(folder.health)
        except RunFolderError:
            return
        states = [finding["state"] for finding in known["findings"]]
        counts = {f"health/{state}": float(states.count(state)) for state in RAISED}
        verdict = (known["lamp"], known["detector"], *counts.values())
        if self._verdicts.get(identity) != verdict:
            self._mirror.tag(identity, "paribus.health", known["lamp"])
            self._mirror.tag(identity, "paribus.health.detector", known["detector"])
            self._mirror.log(identity, [MetricLine(step=known["step"], time_ms=known["time_ms"], values=counts)])
            self._verdicts[identity] = verdict

    def _send_lines(self, shipment: Shipment, identity: str, folders: Mapping[int, RunFolder]) -> None:
        course = self._courses.get(shipment.fingerprint) or self._recall(shipment, folders)
        for token, folder in folders.items():
            tail = Tail(folder.metrics, self._ledger.offset(shipment.fingerprint, token))
            while True:
                try:
                    lines = tail.read()
                except RunFolderError as error:
                    self._mirror.tag(identity, "paribus.unreadable", str(error))
                    break
                if not lines:
                    break
                self._courses.pop(shipment.fingerprint, None)  # until MLflow has them, memory and ledger would differ
                self._mirror.log(identity, course.add(lines))
                self._ledger.advance(shipment.fingerprint, token, tail.offset)
                self._courses[shipment.fingerprint] = course
        self._courses[shipment.fingerprint] = course

    def _recall(self, shipment: Shipment, folders: Mapping[int, RunFolder]) -> _Course:
        """Read again what was shipped before."""
        course = _Course()
        for token, folder in folders.items():
            limit = self._ledger.offset(shipment.fingerprint, token)
            tail = Tail(folder.metrics)
            while lines := tail.read(limit):
                course.add(lines)
        return course

    def _complete(self, identity: str, course: _Course) -> bool:
        held = self._mirror.steps(identity, course.values)
        return all(held[key] == set(steps) for key, steps in course.values.items())

    # ---- opening and closing ---------------------------------------------------------------------

    @property
    def _mirror(self) -> Mirror:
        if self._made is None:
            self._made = self._make_mirror()
        return self._made

    def _folders(self, shipment: Shipment) -> dict[int, RunFolder]:
        every = {t: RunFolder.of(self._reader.home, shipment.fingerprint, t) for t in range(1, shipment.token + 1)}
        return {token: folder for token, folder in every.items() if folder.job.exists()}

    def _open(self, shipment: Shipment, folders: Mapping[int, RunFolder]) -> str:
        known = self._ledger.identity(shipment.fingerprint)
        if known is not None:
            return known
        first = folders[min(folders)]
        job = Job.model_validate_json(first.job.read_bytes())
        tags = {"paribus.study": job.study, "paribus.arm": job.arm, "paribus.seed": str(job.seed)}
        tags |= {"mlflow.source.git.commit": self._commit} if self._commit else {}
        card = RunCard(
            fingerprint=shipment.fingerprint,
            study=job.study,
            name=f"{job.arm}, seed {job.seed}",
            params={**flatten(job.recipe.model_dump(mode="json")), "seed": job.seed, "runner": job.runner},
            tags=tags,
            start_ms=int(shipment.began_at * 1000),
        )
        identity = self._mirror.open_run(card)
        self._mirror.describe(identity, card)
        self._ledger.opened(shipment.fingerprint, identity)
        return identity

    def _finish(self, shipment: Shipment, identity: str, folders: Mapping[int, RunFolder], course: _Course) -> None:
        newest = folders[max(folders)]
        tags = {"paribus.state": str(shipment.state), "paribus.token": str(shipment.token)}
        with suppress(RunFolderError, KeyError):
            tags["paribus.host"] = read_json(newest.attempt)["supervisor"]["host"]
        tags |= {"paribus.superseded": "an attempt that was not finished differs"} if course.superseded else {}
        for key, value in tags.items():
            self._mirror.tag(identity, key, value)
        singles = (newest.job, newest.environment, newest.result, newest.health, newest.outcome, newest.log)
        files = [(f, "") for f in singles if f.exists()]
        files += [(f, "evals") for f in sorted(newest.evals.glob("*.json"))]
        self._mirror.attach(identity, files)
        end_ms = int((shipment.ended_at or shipment.began_at) * 1000)
        self._mirror.close_run(identity, succeeded=shipment.state in RECORDED, end_ms=end_ms)
        self._ledger.closed(shipment.fingerprint, shipment.token)
        del self._courses[shipment.fingerprint]


def _same(key: str, before: float, after: float) -> bool:
    metric = find_metric(key)
    return before == after or (math.isnan(before) and math.isnan(after)) or (metric is not None and metric.timing)


def _commit() -> str:
    with suppress(OSError, subprocess.TimeoutExpired):
        shown = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False, timeout=10)  # noqa: S607
        return shown.stdout.strip() if shown.returncode == 0 else ""
    return ""


def serve(home: Path, shipper: Shipper) -> int:
    """Ship until the standard input is closed and everything is shipped, or the time for that is over."""
    drain_until: float | None = None
    while True:
        behind = shipper.turn()
        write_json(home / STATUS, {"behind": behind, "trouble": shipper.trouble})
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
    """Ship the runs of a home folder."""
    from filelock import FileLock

    home = Path(arguments[0])
    logging.basicConfig(format="%(asctime)s %(name)s %(message)s", level=logging.WARNING)
    # the shipper waits and tries again itself, and it must hear that its input was closed
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
    os.nice(5)
    with FileLock(home / "shipper.lock"), Reader.look(home) as reader:
        ledger = Ledger(home)
        try:
            shipper = Shipper(reader, lambda: MlflowMirror(tracking_uri(home), home), ledger, commit=_commit())
            return serve(home, shipper)
        finally:
            ledger.close()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
