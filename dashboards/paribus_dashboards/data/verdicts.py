"""The diagnosis of each run: the one its supervisor wrote, else one made here as ``paribus health`` does."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Hashable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from paribus.contract.rule import plain_rules
from paribus.errors import ParibusError
from paribus.health.detector import Setting
from paribus.health.finding import Diagnosis, read_health
from paribus.health.judge import judge_run, read_run, saved_diagnosis
from paribus.health.own_rules import setting_of
from paribus.masking import describe
from paribus.run_folder.folder import RunFolder
from paribus.store.models import RunRecord
from paribus.store.states import LIVE
from paribus.study.plan import Plan
from paribus_dashboards.data.cache import Cache

INLINE_BYTES = 1 << 20
"""Bytes of metric lines that are judged while a page waits, in less than a second; longer runs are judged in the
background."""

PAUSE = 10.0
"""A long run is judged again only after this many times the seconds that the last time took."""

AGAIN_S = 10.0
"""Seconds after which a run whose records could not be read is judged again: a server of files may be back."""


_Key: TypeAlias = tuple[str, int, str, str]


@dataclass(frozen=True, kw_only=True)
class RunDiagnosis:
    """The diagnosis of a run, if there is one.

    Attributes:
        diagnosis: the diagnosis; ``None`` while it is in progress, or if it failed.
        step: newest step that it covers.
        trouble: why records could not be read; empty if all could.
    """

    diagnosis: Diagnosis | None = None
    step: int = 0
    trouble: str = ""


class Verdicts:
    """Diagnoses of the runs that pages request.

    Args:
        folder: the home folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._written: Cache[_Key, RunDiagnosis] = Cache(4096)
        self._made: Cache[_Key, RunDiagnosis] = Cache(4096)
        self._lock = threading.Lock()
        self._long: dict[_Key, _LongRun] = {}
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="verdicts")

    def of(self, plan: Plan, run: RunRecord, last: int, judged_step: int) -> RunDiagnosis:
        """Return the diagnosis of a run, cached until its files change or, if they could not be read, for a while.

        Args:
            plan: the study's plan.
            run: the run.
            last: newest recorded step.
            judged_step: newest step that its supervisor has judged; 0 for none.
        """
        folders = [RunFolder.of(self._folder, run.fingerprint, n) for n in range(1, run.token + 1)]
        if not folders:
            return RunDiagnosis()
        stamp = judged_step, last, run.state in LIVE
        found = self._supervisors(plan, run, last, folders[-1], stamp)
        return found if found.diagnosis else self._own(plan, run, folders, stamp)

    def _supervisors(self, plan: Plan, run: RunRecord, last: int, folder: RunFolder, stamp: Hashable) -> RunDiagnosis:
        """Return what the supervisor wrote, if it is complete and current; it may lag a little while a run is live."""

        def read() -> RunDiagnosis:
            found = read_health(folder)
            current = found is not None and (run.state in LIVE or found.step >= last)
            if found is None or not current:
                return RunDiagnosis()
            profile, own = setting_of(plan.profile, plan.rules)
            if found.profile != Setting(profile=profile, own=own).identity:
                return RunDiagnosis()
            return RunDiagnosis(diagnosis=saved_diagnosis(found, own), step=found.step)

        return self._written.get(_key(plan, run), stamp, read)

    def _own(self, plan: Plan, run: RunRecord, folders: list[RunFolder], stamp: Hashable) -> RunDiagnosis:
        key = _key(plan, run)
        size = sum(f.metrics.stat().st_size for f in folders if f.metrics.is_file())
        if size <= INLINE_BYTES:
            make = partial(judge, self._folder, plan, run)
            return self._made.get(key, stamp, make, lambda found: AGAIN_S if found.trouble else math.inf)
        with self._lock:
            long = self._long.setdefault(key, _LongRun())
            if long.stamp != stamp and not long.busy and time.monotonic() >= long.not_before:
                long.busy = True
                self._worker.submit(self._work, long, plan, run, stamp)
        return long.newest

    def _work(self, long: _LongRun, plan: Plan, run: RunRecord, stamp: Hashable) -> None:
        started = time.monotonic()
        try:
            long.newest = judge(self._folder, plan, run)
        except Exception as error:  # else the page would wait for a diagnosis for ever
            long.newest = RunDiagnosis(trouble=describe(error))
        ended = time.monotonic()
        long.stamp = None if long.newest.trouble else stamp
        long.not_before = ended + max(AGAIN_S if long.newest.trouble else 0.0, PAUSE * (ended - started))
        long.busy = False

    def close(self) -> None:
        """Cancel all work that has not started."""
        self._worker.shutdown(wait=False, cancel_futures=True)


def _key(plan: Plan, run: RunRecord) -> _Key:
    """Return an attempt and what judges it: studies share runs, and their rules can change."""
    return run.fingerprint, run.token, plan.profile, json.dumps(plain_rules(plan.rules))


class _LongRun:
    """A long run and its newest diagnosis."""

    def __init__(self) -> None:
        self.newest = RunDiagnosis()
        self.stamp: Hashable = None
        self.busy = False
        self.not_before = 0.0


def judge(home: Path, plan: Plan, run: RunRecord) -> RunDiagnosis:
    """Return the diagnosis of a run from all its records."""
    try:
        records = read_run(home, run.fingerprint, run.token)
        recipe, primary = plan.known_recipe(run.arm), plan.evaluate.primary_metric
        profile, own = setting_of(plan.profile, plan.rules)
        diagnosis = judge_run(profile, records, recipe=recipe, primary=primary, own=own)
    except (ParibusError, OSError) as error:
        return RunDiagnosis(trouble=str(error))
    step = records.lines[-1].step if records.lines else 0
    return RunDiagnosis(diagnosis=diagnosis, step=step, trouble=records.trouble)
