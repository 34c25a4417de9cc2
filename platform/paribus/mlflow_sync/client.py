"""Writes runs to MLflow, and notes how much of each is there. All calls may be repeated without doubling anything.

A metric's timestamp is part of its primary key in MLflow, so sending a line again with the time of its record changes
nothing. Only this module imports MLflow, inside its functions, and only the sync process calls them.
"""

from __future__ import annotations

import math
import os
import sqlite3
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.errors import RunFolderError
from paribus.run_folder.folder import MetricLine

BATCH = 1000
"""Most metrics per call; MLflow refuses more."""

PARAMS = 100
"""Most parameters per call."""

LONGEST = 500
"""Most characters of a parameter's value; ``job.json`` has all of it."""

OFFSETS = "shipper.db"  # the name and tables of earlier versions, so that their homes continue

RUN_TAG = "paribus.run"
_DOCTOR = "paribus-doctor"
_TABLES = """
CREATE TABLE IF NOT EXISTS mirror (run TEXT PRIMARY KEY, identity TEXT NOT NULL, closed INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS offset (run TEXT, token INTEGER, bytes INTEGER NOT NULL, PRIMARY KEY (run, token));
"""
_IDENTITY = "SELECT identity FROM mirror WHERE run = ?"


@dataclass(frozen=True, kw_only=True)
class RunCard:
    """A run as MLflow shows it, known before its first metric line.

    Attributes:
        fingerprint: identifies the run; a tag in MLflow.
        study: name of the study, and of the experiment.
        name: shown to users, e.g. ``+ clip_higher, seed 1``.
        params: flattened recipe.
        tags: further tags.
        start_ms: milliseconds since 1970.
    """

    fingerprint: str
    study: str
    name: str
    params: Mapping[str, Any]
    tags: Mapping[str, str]
    start_ms: int


def tracking_uri(home: Path) -> str:
    """Return ``MLFLOW_TRACKING_URI``; by default, the URI of an SQLite store in the home folder."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{home.resolve() / 'mlflow.db'}"


class MlflowWriter:
    """Writes to one MLflow store.

    Args:
        uri: its tracking URI.
        home: home folder; for a lock while tables are created, and for the artifacts of an SQLite store.
    """

    def __init__(self, uri: str, home: Path) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        import mlflow
        from filelock import FileLock
        from mlflow.tracking import MlflowClient

        self._artifacts = home.resolve() / "mlartifacts" if uri.startswith("sqlite:") else None
        with FileLock(home / "mlflow.lock"):
            mlflow.set_tracking_uri(uri)  # some of MLflow's functions ignore the client's own
            self._client = MlflowClient(tracking_uri=uri)
            self._client.search_experiments(max_results=1)  # creates the tables
            if uri.startswith("sqlite:///"):
                with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as database:
                    database.execute("PRAGMA journal_mode = WAL")
        self._experiments: dict[str, str] = {}

    def open_run(self, card: RunCard) -> str:
        """Return the run's id in MLflow; create the run and its experiment if necessary."""
        experiment = self._experiment(card.study)
        found = self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{card.fingerprint}'", max_results=1)
        if found:
            return str(found[0].info.run_id)
        tags = {**card.tags, RUN_TAG: card.fingerprint}
        made = self._client.create_run(experiment, start_time=card.start_ms, tags=tags, run_name=card.name)
        return str(made.info.run_id)

    def describe(self, identity: str, card: RunCard) -> None:
        """Write the parameters and tags of a run."""
        from mlflow.entities import Param, RunTag

        params = [Param(k, str(v)[:LONGEST]) for k, v in card.params.items()]
        for start in range(0, len(params), PARAMS):
            self._client.log_batch(identity, params=params[start : start + PARAMS])
        self._client.log_batch(identity, tags=[RunTag(k, v) for k, v in card.tags.items()])

    def log(self, identity: str, lines: Sequence[MetricLine]) -> None:
        """Write metric lines with the times of their records. Infinities become NaN, since MLflow has none."""
        from mlflow.entities import Metric

        metrics = [
            Metric(k, math.nan if math.isinf(v) else v, line.time_ms, line.step)
            for line in lines
            for k, v in line.values.items()
        ]
        for start in range(0, len(metrics), BATCH):
            self._client.log_batch(identity, metrics=metrics[start : start + BATCH])

    def tag(self, identity: str, key: str, value: str) -> None:
        """Write one tag."""
        self._client.set_tag(identity, key, value)

    def attach(self, identity: str, files: Iterable[tuple[Path, str]]) -> None:
        """Copy files to the artifacts of a run: pairs of a file and its target folder, ``""`` for the top."""
        for file, folder in files:
            self._client.log_artifact(identity, str(file), folder or None)

    def close_run(self, identity: str, *, succeeded: bool, end_ms: int) -> None:
        """Set the run's final status and end time."""
        self._client.set_terminated(identity, "FINISHED" if succeeded else "FAILED", end_ms)

    def steps(self, identity: str, keys: Iterable[str]) -> dict[str, set[int]]:
        """Return the steps of each metric that MLflow has."""
        return {key: {m.step for m in self._client.get_metric_history(identity, key)} for key in keys}

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

    def _experiment(self, study: str) -> str:
        if study not in self._experiments:
            known = self._client.get_experiment_by_name(study)
            if known is not None and known.lifecycle_stage == "deleted":
                self._client.restore_experiment(known.experiment_id)
            if known is None:
                place = None if self._artifacts is None else (self._artifacts / study).as_uri()
                self._experiments[study] = str(self._client.create_experiment(study, artifact_location=place))
            else:
                self._experiments[study] = str(known.experiment_id)
        return self._experiments[study]


# ---- how much of each run is in MLflow: a small SQLite file that only the sync process writes --------


def _noted(home: Path, query: str, *values: str, timeout_s: float) -> list[Any]:
    """Return the rows that the sync process has noted; none if it has noted nothing yet or keeps the file locked."""
    with (
        suppress(sqlite3.Error),
        closing(sqlite3.connect(f"{(home / OFFSETS).resolve().as_uri()}?mode=ro", timeout_s, uri=True)) as database,
    ):
        return database.execute(query, values).fetchall()
    return []


def identity_of(home: Path, run: str) -> str | None:
    """Return a run's id in MLflow without waiting for the sync process; ``None`` if the run has none yet."""
    rows = _noted(home, _IDENTITY, run, timeout_s=1)
    return str(rows[0][0]) if rows else None


def unsynced(home: Path, runs: Mapping[str, int]) -> frozenset[str]:
    """Return those of the given runs (with their newest token) that are not completely in MLflow."""
    closed = dict(_noted(home, "SELECT run, closed FROM mirror", timeout_s=30))
    return frozenset(run for run, token in runs.items() if closed.get(run, 0) < token)


class Offsets:
    """Offsets into the metric files of run folders, and the ids of runs in MLflow."""

    def __init__(self, home: Path) -> None:
        self._database = sqlite3.connect(home / OFFSETS, timeout=30, isolation_level=None)
        self._database.executescript(_TABLES)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def identity(self, run: str) -> str | None:
        """Return a run's id in MLflow; ``None`` if it has none yet."""
        row = self._database.execute(_IDENTITY, (run,)).fetchone()
        return None if row is None else str(row[0])

    def opened(self, run: str, identity: str) -> None:
        """Note a run's id in MLflow."""
        self._database.execute("INSERT OR REPLACE INTO mirror VALUES (?, ?, 0)", (run, identity))

    def offset(self, run: str, token: int) -> int:
        """Return how many bytes of an attempt's metric file have been sent."""
        query = "SELECT bytes FROM offset WHERE run = ? AND token = ?"
        row = self._database.execute(query, (run, token)).fetchone()
        return 0 if row is None else int(row[0])

    def advance(self, run: str, token: int, bytes_: int) -> None:
        """Note that an attempt's metric file has been sent up to ``bytes_``."""
        self._database.execute("INSERT OR REPLACE INTO offset VALUES (?, ?, ?)", (run, token, bytes_))

    def rewind(self, run: str) -> None:
        """Forget the offsets of a run, so that it is sent again."""
        self._database.execute("DELETE FROM offset WHERE run = ?", (run,))

    def closed(self, run: str, token: int) -> None:
        """Note that a run is completely in MLflow, up to its attempt ``token``."""
        self._database.execute("UPDATE mirror SET closed = ? WHERE run = ?", (token, run))

    def closed_runs(self) -> dict[str, int]:
        """Return, by run, the attempt up to which it is completely in MLflow; a run may be retried after its end."""
        return dict(self._database.execute("SELECT run, closed FROM mirror WHERE closed > 0").fetchall())
