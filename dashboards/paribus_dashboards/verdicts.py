"""What is wrong with each run: what its supervisor has written down, else judged here, as ``paribus health`` does."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from paribus.errors import ParibusError
from paribus.health.diagnose import Diagnosis
from paribus.health.profile import load_profile
from paribus.health.records import judge_run, read_run
from paribus.health.verdict import read_verdict
from paribus.store.records import RunRecord
from paribus.store.states import LIVE
from paribus.study.plan import Plan
from paribus.track.folder import RunFolder
from paribus_dashboards.cache import Kept

AT_ONCE = 1 << 20
"""Bytes of metric lines that are judged while a page waits, in less than a second; more are judged beside it."""

REST = 10.0
"""A long run is not judged again before so many times the seconds that it took have passed."""


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The verdict on a run.

    Attributes:
        diagnosis: what was found; ``None`` while it is being judged, or where it cannot be.
        step: the newest step that was judged.
        trouble: why not all records could be read; empty if they could.
    """

    diagnosis: Diagnosis | None = None
    step: int = 0
    trouble: str = ""


class Verdicts:
    """The verdicts of the runs that were asked for.

    Args:
        folder: the home folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: Kept[tuple[str, int], Judged] = Kept(4096)
        self._lock = threading.Lock()
        self._slow: dict[tuple[str, int], _Slow] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="verdicts")

    def of(self, plan: Plan, run: RunRecord, last: int, told: int) -> Judged:
        """Return the verdict on a run, kept until it records or is told more.

        Args:
            plan: its study's.
            run: the run.
            last: the newest step that it recorded.
            told: the newest step that its supervisor has judged; 0 for none.
        """
        folders = [RunFolder.of(self._folder, run.fingerprint, n) for n in range(1, run.token + 1)]
        if not folders:
            return Judged()
        sign = told, last, run.state in LIVE
        return self._stored(plan, run, last, folders[-1], sign) or self._judged(plan, run, folders, sign)

    def _stored(self, plan: Plan, run: RunRecord, last: int, folder: RunFolder, sign: Hashable) -> Judged | None:
        """Return what the supervisor has written, where it tells all; while a run goes on it may lag a little."""

        def read() -> Judged:
            found = read_verdict(folder)
            whole = found is not None and (run.state in LIVE or found.step >= last)
            if found is None or not whole or found.profile != load_profile(plan.profile).identity:
                return Judged()
            return Judged(diagnosis=found.diagnosis, step=found.step)

        found = self._kept.get((run.fingerprint, run.token), sign, read)
        return found if found.diagnosis else None

    def _judged(self, plan: Plan, run: RunRecord, folders: list[RunFolder], sign: Hashable) -> Judged:
        key = run.fingerprint, -run.token
        size = sum(f.metrics.stat().st_size for f in folders if f.metrics.is_file())
        if size <= AT_ONCE:
            return self._kept.get(key, sign, lambda: judge(self._folder, plan, run))
        with self._lock:
            slow = self._slow.setdefault(key, _Slow())
            if slow.sign != sign and not slow.busy and time.monotonic() >= slow.rest_until:
                slow.busy = True
                self._worker.submit(self._work, slow, plan, run, sign)
        return slow.judged

    def _work(self, slow: _Slow, plan: Plan, run: RunRecord, sign: Hashable) -> None:
        began = time.monotonic()
        try:
            slow.judged = judge(self._folder, plan, run)
        finally:
            slow.sign, slow.busy = sign, False
            slow.rest_until = time.monotonic() + REST * (time.monotonic() - began)

    def close(self) -> None:
        """End the work that has not begun."""
        self._worker.shutdown(wait=False, cancel_futures=True)


class _Slow:
    """A long run and the newest verdict on it."""

    def __init__(self) -> None:
        self.judged = Judged()
        self.sign: Hashable = None
        self.busy = False
        self.rest_until = 0.0


def judge(home: Path, plan: Plan, run: RunRecord) -> Judged:
    """Return the verdict on a run from its records, all of them."""
    try:
        records = read_run(home, run.fingerprint, run.token)
        recipe, primary = plan.arm(run.arm).recipe, plan.evaluate.primary_metric
        diagnosis = judge_run(load_profile(plan.profile), records, recipe=recipe, primary=primary)
    except (ParibusError, OSError) as error:
        return Judged(trouble=str(error))
    step = records.lines[-1].step if records.lines else 0
    return Judged(diagnosis=diagnosis, step=step, trouble=records.trouble)
