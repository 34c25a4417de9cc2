"""Parent runs in MLflow: one for each study, and below it one for each arm, which holds the arm's runs.

A group never holds up a run: a run is opened without a parent if MLflow refuses it, and linked later. What MLflow
refuses three times in a row is noted, named by ``paribus doctor``, and tried again after ``paribus doctor --replay``.
Every call may be repeated: a group is found again by its key, and all that is written to it replaces what was there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

from paribus.contract import Job
from paribus.errors import RunFolderError
from paribus.home import UP_FILE
from paribus.masking import describe, mask
from paribus.mlflow_sync.client import (
    NOTE_TAG,
    PARENT_TAG,
    REFUSALS,
    GroupCard,
    MlflowWriter,
    home_number,
    is_refusal,
)
from paribus.mlflow_sync.offsets import Offsets
from paribus.recipe.recipe import flatten
from paribus.run_folder.attempt_files import read_job
from paribus.run_folder.folder import SHORT, RunFolder, read_json
from paribus.store.models import AttemptedRun
from paribus.store.reader import Reader
from paribus.study.plan import Plan
from paribus.study.study_files import STUDY_FILE, files_of, masked_copy, write_text
from paribus.text import plural

PUBLIC_URL = "PARIBUS_PUBLIC_URL"
"""Environment variable: where people reach the dashboard; without it, the address of `paribus up`."""

LARGEST = 64 << 20
"""Most bytes of a file that is copied: reports and samples above stay where they are."""

_BACKOFF_MAX_S = 60.0
_CHANGES = 20
_log = logging.getLogger("paribus.mlflow_sync")


def dashboard_address(home: Path) -> str:
    """Return the address of the dashboard, without credentials and the slash at its end; empty if it is not known."""
    found = os.environ.get(PUBLIC_URL, "")
    if not found:
        with suppress(RunFolderError, KeyError, TypeError):
            found = str(read_json(home / UP_FILE)["dashboard"])
    return mask(found).rstrip("/")


def params_of(job: Job) -> dict[str, Any]:
    """Return the parameters of a run: its recipe if that is known, else where the run comes from."""
    recipe = job.known_recipe
    known = job.options.own if recipe is None else flatten(recipe.model_dump(mode="json"))
    return {**known, "seed": job.seed, "runner": job.runner}


def run_note(home: Path, job: Job) -> str:
    """Return the description of a run: a link to its page; empty if the dashboard's address is not known."""
    address = dashboard_address(home)
    return f"[Dashboard]({address}/study/{quote(job.study)}/health?run={job.run[:SHORT]})" if address else ""


class Groups:
    """The parent runs of a home folder.

    Args:
        reader: its store.
        connect: returns the writer to MLflow.
        offsets: knows which groups there are.
        clock: seconds.
    """

    def __init__(
        self,
        reader: Reader,
        connect: Callable[[], MlflowWriter],
        offsets: Offsets,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._connect = connect
        self._offsets = offsets
        self._clock = clock
        self._newest: dict[str, tuple[int, float]] = {}  # number of the newest plan of a name, and its last submission
        self._plans: dict[str, tuple[tuple[int, float], Plan]] = {}  # as of then
        self._unread: set[str] = set()  # files that could not be copied, so that the log has it once
        self._parents: dict[tuple[str, str], str] = {}  # the children of these are linked, and need no look
        self._refusals: dict[str, int] = {}
        self._failures = 0
        self._again = 0.0
        self.trouble = ""

    def forget(self) -> None:
        """Look at everything again, and try at once what has failed."""
        self._parents.clear()
        self._refusals.clear()
        self._failures, self._again = 0, 0.0

    def parent_of(self, study: str, arm: str) -> str:
        """Return the id in MLflow of an arm's group; make it, and that of its study, if necessary.

        Returns:
            The id; empty if MLflow does not take the group now: then :meth:`turn` links the runs later.
        """
        known = self._offsets.parent(study, arm)
        if known is not None:
            return known[0]
        above = self.parent_of(study, "") if arm else ""
        if not arm or above or _name(study, "") in self._offsets.refused_groups():
            self._try(_name(study, arm), lambda: self._open(study, arm, above))
        known = self._offsets.parent(study, arm)
        return "" if known is None else known[0]

    def turn(self, attempted: Mapping[str, AttemptedRun]) -> int:
        """Make groups that are missing, link runs to them, and bring status, description and files up to date.

        Args:
            attempted: all runs with an attempt, by fingerprint.

        Returns:
            How much is left to do; what MLflow has refused for good does not count.
        """
        self.trouble = ""
        for run, identity in self._offsets.without_group():
            with suppress(RunFolderError):  # damaged: uploading it says so
                if (job := self._job(run, attempted)) is not None:
                    self._offsets.note_child(identity, job.study, job.arm, "")
        arms: dict[tuple[str, str], list[AttemptedRun]] = {}
        summaries = self._reader.summaries()
        left, going = 0, {summary.name for summary in summaries if summary.open}
        self._newest = {summary.name: (summary.id, summary.submitted_at) for summary in summaries}
        for run, study, arm, child, linked in self._offsets.children():
            arms.setdefault((study, arm), [])
            if run in attempted:
                arms[study, arm].append(attempted[run])
            if not linked or linked != self._parents.get((study, arm)):
                left += self._adopt(child, study, arm, linked)
        studies: dict[tuple[str, str], list[AttemptedRun]] = {}
        for (study, _), runs in arms.items():
            studies.setdefault((study, ""), []).extend(runs)
        for (study, arm), runs in (studies | arms).items():
            left += not self._show(study, arm, runs, going=study in going)
        return left

    def _adopt(self, child: str, study: str, arm: str, linked: str) -> bool:
        """Link a run to its group unless MLflow knows it as that; return whether something is left of this."""
        parent = self._parents[study, arm] = self.parent_of(study, arm)
        if not parent:
            return _name(study, arm) not in self._offsets.refused_groups()
        return linked != parent and not self._try(f"run {child}", lambda: self._link(child, parent))

    def _try(self, name: str, action: Callable[[], None]) -> bool:
        """Do something unless MLflow has refused it, or does not answer now; return whether nothing is left of it."""
        if name in self._offsets.refused_groups():
            return True
        if self._clock() < self._again:
            return False
        try:
            action()
        except Exception as error:  # whatever MLflow raises, the runs go on
            _log.warning("group %s: %s", name, describe(error))
            self.trouble = describe(error)
            if not is_refusal(error):  # MLflow may be down: the others need not find out
                self._refusals.pop(name, None)
                self._again = self._clock() + min(2.0 ** min(self._failures, 10), _BACKOFF_MAX_S)
                self._failures += 1
                return False
            self._refusals[name] = self._refusals.get(name, 0) + 1
            if self._refusals[name] < REFUSALS:
                return False
            self._offsets.refuse_group(name, describe(error))
        else:
            self._failures = 0
        self._refusals.pop(name, None)
        return True

    def _open(self, study: str, arm: str, above: str) -> None:
        card = GroupCard(home=home_number(self._reader.home), study=study, arm=arm, above=above)
        self._offsets.note_parent(study, arm, self._connect().open_group(card), "")

    def _link(self, child: str, parent: str) -> None:
        self._connect().tag(child, PARENT_TAG, parent)
        self._offsets.note_link(child, parent)

    def _show(self, study: str, arm: str, runs: Iterable[AttemptedRun], *, going: bool) -> bool:
        """Bring a group up to date; return whether nothing is left of this."""
        known = self._offsets.parent(study, arm)
        if known is None:
            return _name(study, arm) in self._offsets.refused_groups()
        identity, before = known[0], json.loads(known[1] or "{}")
        ends = [run.ended_at or run.began_at for run in runs]
        end_ms = None if going or not ends else int(max(ends) * 1000)
        address = dashboard_address(self._reader.home) or before.get("address", "")
        plan, old = self._plan(study), before.get("files", {})
        note = _note(study, arm, address, plan)
        files = {} if arm else self._files(study, plan)
        now: dict[str, Any] = {
            "end_ms": end_ms,
            "address": address,
            "note": _number(note),
            "files": {name: stamp for name, (_, stamp) in files.items()},
        }
        if now == before:
            return True

        def show() -> None:
            writer = self._connect()
            with TemporaryDirectory() as folder:
                for name, (source, stamp) in files.items():
                    if stamp != old.get(name) and (copy := self._copy(name, source, Path(folder))):
                        writer.attach(identity, [(copy, "")])
            if before.get("note") != now["note"]:
                writer.tag(identity, NOTE_TAG, note)
            if before.get("end_ms", 0) != end_ms:
                writer.show_group(identity, end_ms)
            self._offsets.note_parent(study, arm, identity, json.dumps(now))

        return self._try(_name(study, arm), show)

    def _files(self, study: str, plan: Plan | None) -> dict[str, tuple[Path | str, list[Any]]]:
        """Return the files of a study by name: a path or a text, and what changes when the file does."""
        found: dict[str, tuple[Path | str, list[Any]]] = {}
        for path in files_of(self._reader.home, study):
            with suppress(OSError):  # deleted, or made unreadable, since it was found: then it is not there
                about = path.stat()
                found[path.name] = path, [about.st_mtime_ns, about.st_size]
        if plan is not None and plan.text:
            found[STUDY_FILE] = plan.text, [_number(plan.text)]
        return found

    def _copy(self, name: str, source: Path | str, folder: Path) -> Path | None:
        """Return a copy without credentials; ``None`` if the file is too large, or cannot be copied as it is now."""
        try:
            if isinstance(source, str):
                return write_text(folder / name, source)
            return masked_copy(source, folder) if source.stat().st_size <= LARGEST else None
        except (OSError, ValueError) as error:  # deleted meanwhile, no text, no room: the study's other files go on
            if str(source) not in self._unread:
                _log.warning("%s is not copied to MLflow: %s", name, describe(error))
            self._unread.add(str(source))
            return None

    def _plan(self, study: str) -> Plan | None:
        """Return the newest plan of a study; ``None`` if it was made under another name, or is in another store."""
        if (newest := self._newest.get(study)) is None:
            return None
        if study not in self._plans or self._plans[study][0] != newest:
            self._plans[study] = newest, self._reader.study_by_id(newest[0]).plan
        return self._plans[study][1]

    def _job(self, run: str, attempted: Mapping[str, AttemptedRun]) -> Job | None:
        """Return the first job of a run in this home folder; ``None`` if there is none."""
        newest = attempted[run].token if run in attempted else 0
        jobs = (RunFolder.of(self._reader.home, run, token).job for token in range(1, newest + 1))
        return next((read_job(job) for job in jobs if job.exists()), None)


def _name(study: str, arm: str) -> str:
    return f"arm {arm} of study {study}" if arm else f"study {study}"


def _note(study: str, arm: str, address: str, plan: Plan | None) -> str:
    """Return the description of a group in Markdown."""
    lines = []
    if not arm:
        lines += [plan.question] if plan and plan.question else []
        lines += (
            [f"Study `{study}`: {plural(len(plan.arms), 'arm')}, {plural(len(plan.seeds), 'seed')}."] if plan else []
        )
    found = next((each for each in plan.arms if each.label == arm), None) if plan else None
    if found is not None:
        lines += [f"Arm of the study `{study}`." if found.changes else f"Base of the study `{study}`."]
        changes = list(found.changes.items())
        lines += [f"* `{path}`: {_shown(a)} → {_shown(b)}" for path, (a, b) in changes[:_CHANGES]]
        lines += [f"* and {len(changes) - _CHANGES} more"] if len(changes) > _CHANGES else []
    lines += [f"[Dashboard]({address}/study/{quote(study)})"] if address else []
    return mask("\n\n".join(lines).replace("\n\n* ", "\n* "))


def _number(text: str) -> str:
    """Return a text's number, which no other text has."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _shown(value: Any) -> str:
    return "off" if value is None else f"`{value}`"
