"""Writes runs to MLflow. All calls may be repeated without doubling anything.

A metric's timestamp is part of its primary key in MLflow, so sending a line again with the time of its record changes
nothing. Each home folder has MLflow runs of its own: no process writes to a run that another home folder has made.
Only this module and ``database_file`` import MLflow, inside their functions, and only the sync process calls them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from paribus.atomic import write_whole
from paribus.errors import RunFolderError
from paribus.mlflow_sync.database_file import ARTIFACTS, MARK_TAG, doubled_points, file_of, prepared
from paribus.run_folder.folder import MetricLine

BATCH = 1000
"""Most metrics per call; MLflow refuses more."""

PARAMS = 100
"""Most parameters per call."""

LONGEST = 500
"""Most characters of a parameter's value; ``job.json`` has all of it."""

REFUSALS = 3
"""Calls in a row that MLflow refuses for a run or a group of runs, after which these are not tried again."""

HOME = "mlflow_home"
"""File in the home folder with the number that marks its runs in MLflow."""

RUN_TAG, HOME_TAG, BEGAN_TAG, TOKEN_TAG = "paribus.run", "paribus.home", "paribus.began", "paribus.token"
LATER_TAG = "paribus.superseded_by"
"""Tag of an MLflow run whose Paribus run another home folder has taken over."""

REFUSED_TAG = "paribus.refused"
"""Tag with the metric names that MLflow refuses."""

GROUP_TAG, PARENT_TAG, NOTE_TAG = "paribus.group", "mlflow.parentRunId", "mlflow.note.content"
"""Tags: the key of a parent run; of a run, the id of its parent, and its description, as MLflow's pages read them."""

_REFUSALS = frozenset({
    "INVALID_PARAMETER_VALUE", "BAD_REQUEST", "INVALID_STATE", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS",
})  # fmt: skip
# MLflow answers 400 also if all its connections to the database are in use for 30 s
_BUSY = re.compile(r"QueuePool|timed? ?out|too many|deadlock|database is locked|connection", re.IGNORECASE)
_RELATIVE = "mlflow-artifacts:/"
_DOCTOR = "paribus-doctor"
_INVALID = "INVALID_PARAMETER_VALUE"
_LOOK_S, _LOOKED_AT = 10.0, 20


@dataclass(frozen=True, kw_only=True)
class RunCard:
    """A run as MLflow shows it, known before its first metric line.

    Attributes:
        fingerprint: identifies the run; a tag in MLflow.
        home: number of the home folder, from :func:`home_number`.
        began: when the first attempt was claimed, as the store has it; equal for all homes that share a store.
        study: name of the study, and of the experiment.
        name: shown to users, e.g. ``+ clip_higher, seed 1``.
        params: flattened recipe.
        tags: further tags.
        start_ms: milliseconds since 1970.
    """

    fingerprint: str
    home: str
    began: str
    study: str
    name: str
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    start_ms: int


@dataclass(frozen=True, kw_only=True)
class GroupCard:
    """A parent run in MLflow.

    Attributes:
        home: number of the home folder, from :func:`home_number`.
        study: name of the study, and of the experiment.
        arm: label of the arm; empty for the group of the study.
        above: id in MLflow of the group that it belongs to; empty if there is none.
    """

    home: str
    study: str
    arm: str
    above: str

    @property
    def key(self) -> str:
        """The tag by which the group is found again."""
        return hashlib.sha256(json.dumps([self.home, self.study, self.arm]).encode()).hexdigest()[:32]

    @property
    def tags(self) -> dict[str, str]:
        """All tags of the group."""
        tags = {GROUP_TAG: self.key, HOME_TAG: self.home, "paribus.study": self.study}
        tags |= {"paribus.arm": self.arm} if self.arm else {}
        return tags | ({PARENT_TAG: self.above} if self.above else {})


def tracking_uri(home: Path) -> str:
    """Return ``MLFLOW_TRACKING_URI``; by default, the URI of an SQLite store in the home folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home.resolve() / 'mlflow.db'}"


def home_number(home: Path) -> str:
    """Return the number of a home folder; make it if it has none."""
    file = home / HOME
    if not file.exists():
        write_whole(file, uuid4().hex)
    return file.read_text().strip()


@dataclass(frozen=True)
class Digest:
    """What of a metric is in one place: the number of its steps, and a checksum of their values."""

    steps: int
    checksum: str

    @classmethod
    def of(cls, points: Iterable[tuple[int, float]]) -> Digest:
        """Return the digest of pairs of a step and its value, as MLflow keeps them: once each, infinities as NaN."""
        kept = sorted({(step, repr(_finite(value))) for step, value in points})
        return cls(len({step for step, _ in kept}), hashlib.sha256(repr(kept).encode()).hexdigest())


def _finite(value: float) -> float:
    return math.nan if math.isinf(value) else float(value)


def is_refusal(error: Exception) -> bool:
    """Return whether MLflow has understood a call and will refuse it again."""
    code = getattr(error, "error_code", None)
    return code in _REFUSALS and _BUSY.search(str(error)) is None


class MlflowWriter:
    """Writes to one MLflow store.

    Args:
        uri: its tracking URI.
        home: home folder; for the artifacts of an SQLite store.
    """

    def __init__(self, uri: str, home: Path) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow
        from mlflow.tracking import MlflowClient

        self._artifacts = home.resolve() / ARTIFACTS if uri.startswith("sqlite:") else None
        self._file = file_of(uri)
        with ExitStack() as stack:
            if self._file is not None:
                stack.enter_context(prepared(self._file))
            mlflow.set_tracking_uri(uri)  # some of MLflow's functions ignore the client's own
            self._client = MlflowClient(tracking_uri=uri)
            self._client.search_experiments(max_results=1)
            self._opened = self._inode()

    @property
    def replaced(self) -> bool:
        """Whether the SQLite file was deleted or replaced since it was opened: MLflow still writes to the old one."""
        return self._inode() != self._opened

    def _inode(self) -> tuple[int, int] | None:
        try:
            found = None if self._file is None else self._file.stat()
        except OSError:
            return (0, 0)
        return None if found is None else (found.st_dev, found.st_ino)

    # ---- destinations ----------------------------------------------------------------------------

    def mark(self, study: str) -> str:
        """Return the mark of a study's experiment; empty if there is no such experiment, or it has no mark."""
        known = self._client.get_experiment_by_name(study)
        return "" if known is None else str(known.tags.get(MARK_TAG, ""))

    def destination(self, study: str) -> str:
        """Return the mark of a study's experiment; create experiment and mark if necessary."""
        identity = self._experiment(study)
        mark = str(self._client.get_experiment(identity).tags.get(MARK_TAG) or uuid4().hex)
        self._client.set_experiment_tag(identity, MARK_TAG, mark)
        return mark

    def identities(self, study: str) -> frozenset[str]:
        """Return the ids of all runs in a study's experiment."""
        found: list[str] = []
        page: Any = None
        while page is None or page.token:
            page = self._client.search_runs([self._experiment(study)], page_token=page.token if page else None)
            found += [run.info.run_id for run in page]
        return frozenset(found)

    # ---- runs ------------------------------------------------------------------------------------

    def open_run(self, card: RunCard) -> str:
        """Return the id in MLflow of this home folder's copy of a run; create run and experiment if necessary."""
        for run in self._copies(card):
            if run.data.tags.get(HOME_TAG) == card.home:
                return str(run.info.run_id)
        tags = {**card.tags, RUN_TAG: card.fingerprint, HOME_TAG: card.home, BEGAN_TAG: card.began}
        experiment = self._experiment(card.study)
        made = self._client.create_run(experiment, start_time=card.start_ms, tags=tags, run_name=card.name)
        return str(made.info.run_id)

    def own(self, identity: str, card: RunCard, token: int, newest: int = 0) -> int:
        """Note the newest attempt in a copy of a run, and mark the copies that are superseded.

        Each home folder first notes its attempt and then looks at the others, so that of two that do this at the same
        time at least one sees the other.

        Args:
            identity: this home folder's copy.
            card: the run.
            token: the newest attempt in this home folder.
            newest: an attempt that is known to have been made elsewhere.

        Returns:
            The newest attempt of all home folders; this copy is marked if it is greater than ``token``.
        """
        from mlflow.entities import RunTag

        tags = {HOME_TAG: card.home, BEGAN_TAG: card.began, TOKEN_TAG: str(token)}
        self._client.log_batch(identity, tags=[RunTag(k, v) for k, v in tags.items()])
        copies = self._copies(card)
        others = [r for r in copies if r.info.run_id != identity and r.data.tags.get(BEGAN_TAG) == card.began]
        tokens = {r.info.run_id: int(r.data.tags.get(TOKEN_TAG, "0")) for r in others}
        newest = max((token, newest, *tokens.values()))
        for run in others:
            if tokens[run.info.run_id] < newest:
                self._supersede(run, card, newest)
        mine = next(r for r in copies if r.info.run_id == identity)
        if newest > token:
            self._supersede(mine, card, newest)
        elif LATER_TAG in mine.data.tags:  # it has come back
            self._client.delete_tag(identity, LATER_TAG)
            self._client.update_run(identity, "RUNNING", card.name)
        return newest

    def _supersede(self, run: Any, card: RunCard, newest: int) -> None:
        shown = f"attempt {newest}, in another home folder"
        if run.data.tags.get(LATER_TAG) != shown:
            self._client.set_tag(run.info.run_id, LATER_TAG, shown)
            self._client.update_run(run.info.run_id, "KILLED", f"{card.name} (superseded)")

    def _copies(self, card: RunCard) -> list[Any]:
        which = f"tags.`{RUN_TAG}` = '{card.fingerprint}'"
        return list(self._client.search_runs([self._experiment(card.study)], which))

    def describe(self, identity: str, card: RunCard) -> None:
        """Write the parameters and tags of a run."""
        from mlflow.entities import Param, RunTag

        params = [Param(k, str(v)[:LONGEST]) for k, v in card.params.items()]
        for start in range(0, len(params), PARAMS):
            self._client.log_batch(identity, params=params[start : start + PARAMS])
        self._client.log_batch(identity, tags=[RunTag(k, v) for k, v in card.tags.items()])

    def log(self, identity: str, lines: Sequence[MetricLine]) -> frozenset[str]:
        """Write metric lines with the times of their records. Infinities become NaN, since MLflow has none.

        Returns:
            The metric names that MLflow refuses; the points of all others are written.
        """
        from mlflow.entities import Metric
        from mlflow.exceptions import MlflowException

        metrics = [Metric(k, _finite(v), line.time_ms, line.step) for line in lines for k, v in line.values.items()]
        refused: set[str] = set()
        for start in range(0, len(metrics), BATCH):
            batch = metrics[start : start + BATCH]
            try:
                self._client.log_batch(identity, metrics=batch)
            except MlflowException as error:
                if error.error_code != _INVALID or not is_refusal(error):
                    raise
                refused |= self._log_by_name(identity, batch)
        return frozenset(refused)

    def _log_by_name(self, identity: str, metrics: Sequence[Any]) -> set[str]:
        """Write a batch that MLflow refuses as a whole, name by name; return the names that it refuses."""
        from mlflow.exceptions import MlflowException

        refused = set()
        for name in dict.fromkeys(m.key for m in metrics):
            try:
                self._client.log_batch(identity, metrics=[m for m in metrics if m.key == name])
            except MlflowException as error:
                if error.error_code != _INVALID or not is_refusal(error):
                    raise
                refused.add(name)
        return refused

    def tag(self, identity: str, key: str, value: str) -> None:
        """Write one tag."""
        self._client.set_tag(identity, key, value)

    def attach(self, identity: str, files: Iterable[tuple[Path, str]]) -> None:
        """Copy files to the artifacts of a run: pairs of a file and its target folder, ``""`` for the top."""
        place = self._beside_file(identity)
        for file, folder in files:
            if place is None:
                self._client.log_artifact(identity, str(file), folder or None)
            else:
                (place / folder).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place / folder / file.name)

    def _beside_file(self, identity: str) -> Path | None:
        """Return where the server of `paribus up` keeps the artifacts of a run, if it made the experiment.

        ``None``: MLflow's client finds the place. Without that server it refuses addresses that are relative to it.
        """
        if self._artifacts is None:
            return None
        uri = str(self._client.get_run(identity).info.artifact_uri)
        inside = uri.removeprefix(_RELATIVE).strip("/")
        return self._artifacts / inside if uri.startswith(_RELATIVE) and ".." not in inside.split("/") else None

    def close_run(self, identity: str, *, succeeded: bool, end_ms: int) -> None:
        """Set the run's final status and end time."""
        self._client.set_terminated(identity, "FINISHED" if succeeded else "FAILED", end_ms)

    # ---- groups ----------------------------------------------------------------------------------

    def open_group(self, card: GroupCard) -> str:
        """Return the id in MLflow of a parent run; create it if necessary."""
        experiment = self._experiment(card.study)
        for run in self._client.search_runs([experiment], f"tags.`{GROUP_TAG}` = '{card.key}'"):
            if card.above and run.data.tags.get(PARENT_TAG) != card.above:
                self._client.set_tag(run.info.run_id, PARENT_TAG, card.above)
            return str(run.info.run_id)
        made = self._client.create_run(experiment, tags=card.tags, run_name=card.arm or card.study)
        return str(made.info.run_id)

    def show_group(self, identity: str, end_ms: int | None) -> None:
        """Set the status of a parent run: running, or ended at a time in milliseconds since 1970."""
        if end_ms is None:
            self._client.update_run(identity, "RUNNING")
        else:
            self._client.set_terminated(identity, "FINISHED", end_ms)

    # ---- checks ----------------------------------------------------------------------------------

    def digests(self, identity: str, keys: Iterable[str]) -> dict[str, Digest]:
        """Return what MLflow has of each metric."""
        histories = ((key, self._client.get_metric_history(identity, key)) for key in keys)
        return {key: Digest.of((m.step, m.value) for m in history) for key, history in histories}

    def latency(self) -> float:
        """Return the seconds for one write and one read; what is written for this does not show up in MLflow."""
        identity, key, now = self._experiment(_DOCTOR), "paribus.doctor", time.perf_counter()
        try:
            self._client.set_experiment_tag(identity, key, str(now))
            if self._client.get_experiment(identity).tags.get(key) != str(now):
                raise RunFolderError(f"MLflow does not return what was written to the experiment {_DOCTOR}")
            return time.perf_counter() - now
        finally:
            self._client.delete_experiment(identity)

    def doubled(self) -> dict[str, int]:
        """Return, by run id, how many steps of its metrics hold more than one point.

        All runs of an SQLite file; of a server the newest runs that Paribus has made, for a limited time.
        """
        if self._file is not None:
            return doubled_points(self._file)
        found: dict[str, int] = {}
        until = time.perf_counter() + _LOOK_S
        experiments = [e.experiment_id for e in self._client.search_experiments() if MARK_TAG in e.tags]
        runs = self._client.search_runs(experiments, max_results=_LOOKED_AT) if experiments else []
        for run in runs:
            for key in sorted(run.data.metrics):  # health/ comes early
                if time.perf_counter() > until:
                    return found
                steps = [m.step for m in self._client.get_metric_history(run.info.run_id, key)]
                if len(set(steps)) < len(steps):
                    found[run.info.run_id] = found.get(run.info.run_id, 0) + len(steps) - len(set(steps))
        return found

    def _experiment(self, study: str) -> str:
        known = self._client.get_experiment_by_name(study)
        if known is None:
            place = None if self._artifacts is None else (self._artifacts / study).as_uri()
            return str(self._client.create_experiment(study, artifact_location=place))
        if known.lifecycle_stage == "deleted":
            self._client.restore_experiment(known.experiment_id)
        return str(known.experiment_id)
