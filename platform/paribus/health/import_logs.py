"""Reads the metrics of other trainers, with canonical names.

``mapping.yaml`` maps each trainer's metric names to the canonical ones. Files are read by ``log_files``; here are the
trackers whose packages are optional, TensorBoard and MLflow.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from paribus.errors import LogFileError, MissingExtra
from paribus.health.log_files import STEPS, SUFFIXES, by_step, event_folder, find_log, read_file
from paribus.health.signals import SCORE, SIGNALS, TASK
from paribus.run_folder.folder import MetricLine
from paribus.run_folder.metrics import Source, find_metric
from paribus.text import printable
from paribus.yaml_file.document import plain, read_document

PARIBUS = "paribus"
"""The trainer of logs that use the canonical names."""

_IN_OWN_UNITS: Mapping[str, str] = {"reward/correct_frac": TASK, "eval/heldout/avg_at_1": SCORE}
"""What a share stands for in a log whose values go beyond 0 to 1: 2 for a hit, percent, or a sum of rewards."""

_CHANGES: Mapping[str, Callable[[float], float]] = {
    "": lambda x: x,
    "one_minus": lambda x: 1 - x,
    "minus_one": lambda x: x - 1,
    "percent": lambda x: x / 100,
}


_RELEVANT = re.compile(r"reward|score|accura|entropy|(^|[/_])kl|length|grad_norm|clip|trunc|eval|val", re.IGNORECASE)
_BESIDE = re.compile(r"std|min$|max$|/min|/max|prompt|loss|runtime|per_second|value|terminated|region", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class KeyMapping:
    """Where a canonical metric comes from in one trainer's logs.

    Attributes:
        keys: names in the log, or patterns with ``*``; the first that exists is used.
        tag: the source of the values, ``exact`` or ``proxy``.
        change: how the value is converted, a key of ``_CHANGES``.
        per: name in the log of the number that the value is divided by, where the trainer logs a count.
    """

    keys: tuple[str, ...]
    tag: Source = "exact"
    change: str = ""
    per: str = ""


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """How the metrics of one log are mapped.

    Attributes:
        trainer: the trainer whose names they are.
        keys: name in the log to canonical metric and its mapping.
        unread: names without a canonical metric, sorted.
    """

    trainer: str
    keys: Mapping[str, tuple[str, KeyMapping]]
    unread: tuple[str, ...]

    @property
    def proxies(self) -> tuple[str, ...]:
        """The canonical metrics whose values are only close to their definition."""
        return tuple(sorted(name for name, source in self.keys.values() if source.tag == "proxy"))

    @property
    def relevant(self) -> tuple[str, ...]:
        """Names that were not used and look as if a detector could need them."""
        return tuple(n for n in self.unread if _RELEVANT.search(n) and not _BESIDE.search(n))

    def renamed(self, metric_of: Callable[[str, str], str]) -> Mapped:
        """Return the mapping with other metrics, as this says of a name and its metric."""
        return replace(self, keys={n: (metric_of(n, m), source) for n, (m, source) in self.keys.items()})

    def read(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the canonical metrics of one record."""
        found = ((self.keys[k], v) for k, v in values.items() if k in self.keys)
        return {
            name: _CHANGES[source.change](v / values[source.per] if source.per else v)
            for (name, source), v in found
            if not source.per or values.get(source.per)
        }


@cache
def mappings() -> Mapping[str, Mapping[str, KeyMapping]]:
    """Return trainer to canonical metric to where it comes from."""
    raw: Any = plain(read_document(Path(__file__).parent / "mapping.yaml").checked())
    return {
        trainer: {m: KeyMapping(**{**s, "keys": tuple(s["keys"])}) for m, s in table.items()}
        for trainer, table in raw.items()
    }


def map_keys(keys: Iterable[str], place: str, trainer: str | None = None) -> Mapped:
    """Return how to read a log with these metric names.

    Args:
        keys: all metric names of the log.
        place: the log, for messages.
        trainer: the trainer; ``None``: the one that knows most of the names.

    Raises:
        LogFileError: there are no names, or none is known.
    """
    names = sorted(set(keys))
    tables = {name: _mapped(name, names) for name in (PARIBUS, *mappings()) if trainer in (None, name)}
    best = max(tables.values(), key=lambda m: len(m.keys))
    if not best.keys:
        if not names:
            raise LogFileError(f"{place}: no record has a number: metrics are numbers under names, such as `loss`")
        shown = ", ".join(f"`{printable(n[:60])}`" for n in names[:5])
        wanted = trainer or ", ".join(tables)
        raise LogFileError(
            f"{place}: has no metric of {wanted}, but {shown}. docs/reference/health.md lists the known names"
        )
    return best


def _mapped(trainer: str, names: list[str]) -> Mapped:
    found: dict[str, tuple[str, KeyMapping]] = {}
    if trainer == PARIBUS:
        found = {n: (n, KeyMapping(keys=(n,))) for n in names if find_metric(n) is not None or n in SIGNALS}
    names_read = [n for n in names if n not in STEPS]
    known = {
        **{logged_name(n): n for n in names_read},
        **{n: n for n in names_read},
    }  # unchanged names take precedence
    for metric, source in mappings().get(trainer, {}).items():
        hits = [known[k] for pattern in source.keys for k in sorted(known) if fnmatchcase(k, pattern)]
        if hits:
            found[hits[0]] = (metric, source)
    used = {*found, *(source.per for _, source in found.values())}
    return Mapped(trainer=trainer, keys=found, unread=tuple(n for n in names if n not in used))


def logged_name(name: str) -> str:
    """Undo the renaming by the loggers of transformers for W&B and TensorBoard: ``train/`` and ``eval/``."""
    return f"eval_{name[5:]}" if name.startswith("eval/") else name.removeprefix("train/")


@dataclass(frozen=True, kw_only=True)
class Log:
    """A log in canonical metrics.

    Attributes:
        lines: one per step, by step.
        mapped: how the names were mapped.
        notes: what the reader assumed, as sentences.
        trouble: what looks like metrics and cannot be read; empty: nothing.
        raw: step to the trainer's own names and values, all of them.
    """

    lines: tuple[MetricLine, ...]
    mapped: Mapped
    notes: tuple[str, ...] = ()
    trouble: str = ""
    raw: Mapping[int, Mapping[str, float]] = field(default_factory=dict)


MLFLOW = "mlflow:"
"""Before the id of an MLflow run, in place of a path."""


def open_log(target: str, tracking_uri: Callable[[], str], trainer: str | None = None) -> Log | None:
    """Return the metrics of a file, a folder or an MLflow run (``mlflow:RUN_ID``); ``None`` if it is none of them.

    Args:
        target: what a user names.
        tracking_uri: returns the address of MLflow.
        trainer: the trainer; ``None``: the one that knows most of the names.

    Raises:
        LogFileError: it is a log and cannot be read, or has no known metrics.
        MissingExtra: TensorBoard or MLflow is needed, and not installed.
    """
    path = Path(target)
    if target.startswith(MLFLOW):
        return read_mlflow(target.removeprefix(MLFLOW), tracking_uri(), trainer)
    if "tfevents" in path.name:
        return read_tensorboard(path, trainer)
    if path.suffix in SUFFIXES and path.name != "job.json":
        return read_log(path, trainer)
    if path.is_dir() and not (path / "job.json").is_file() and (found := find_log(path) or event_folder(path)):
        return read_tensorboard(found, trainer) if any(found.glob("*tfevents*")) else read_log(found, trainer)
    return None


def read_log(path: Path, trainer: str | None = None) -> Log:
    """Return the metrics in a file or folder, with canonical names.

    Args:
        path: what a trainer or tracker has written (:mod:`paribus.health.log_files`).
        trainer: the trainer; ``None``: the one that knows most of the names.

    Raises:
        LogFileError: the file cannot be read, or has no known metrics.
    """
    read = read_file(path)
    log = canonical(by_step(read.records, str(path)), str(path), trainer)
    return replace(log, notes=read.notes, trouble=read.trouble)


def _other_units(steps: Mapping[int, Mapping[str, float]]) -> Callable[[str, str], str]:
    """Return what a name stands for: a reward that goes beyond 0 to 1 is no share, but a score in units of its own."""

    def metric_of(name: str, metric: str) -> str:
        values = (v[name] for v in steps.values() if name in v)
        beyond = any(not -1e-6 <= x <= 1 + 1e-6 for x in values if math.isfinite(x))
        return _IN_OWN_UNITS.get(metric, metric) if beyond else metric

    return metric_of


def canonical(steps: Mapping[int, Mapping[str, float]], place: str, trainer: str | None) -> Log:
    """Return the log with canonical names.

    Args:
        steps: step to the trainer's names and values.
        place: the log, for messages.
        trainer: the trainer; ``None``: the one that knows most of the names.

    Raises:
        LogFileError: no name is known.
    """
    mapped = map_keys({k for values in steps.values() for k in values}, place, trainer).renamed(_other_units(steps))
    proxies: dict[str, Source] = dict.fromkeys(mapped.proxies, "proxy")
    read = ((step, mapped.read(steps[step])) for step in sorted(steps))
    lines = (
        MetricLine(step=s, time_ms=0, values=v, sources={k: proxies[k] for k in proxies if k in v})
        for s, v in read
        if v
    )
    return Log(lines=tuple(lines), mapped=mapped, raw=steps)


def read_tensorboard(path: Path, trainer: str | None = None) -> Log:
    """Return the scalars of a TensorBoard event file, or of all event files in a folder.

    Raises:
        MissingExtra: TensorBoard is not installed.
        LogFileError: the file is damaged or has no scalars, or no name is known.
    """
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError as error:
        raise MissingExtra("tensorboard", "reading TensorBoard event files") from error
    events = EventAccumulator(str(path), size_guidance={"scalars": 0, "tensors": 0})
    try:
        events.Reload()
    except Exception as error:  # damaged files raise errors of the protobuf parser
        raise LogFileError(f"{path}: not a TensorBoard event file: {error}") from error
    steps: dict[int, dict[str, float]] = {}
    for key in events.Tags()["scalars"]:
        for point in events.Scalars(key):
            steps.setdefault(int(point.step), {})[key] = float(point.value)
    if not steps:
        raise LogFileError(f"{path}: has no scalars")
    return canonical(steps, str(path), trainer)


def mlflow_runs(experiment: str, uri: str) -> list[tuple[str, str]] | None:
    """Return id and name of each run of an MLflow experiment, oldest first; ``None`` if no experiment has this name.

    Args:
        experiment: its name.
        uri: tracking URI.

    Raises:
        MissingExtra: MLflow is not installed.
        LogFileError: the experiment has no runs, or the server cannot be reached.
    """
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise MissingExtra("mlflow", "reading an MLflow experiment") from error
    place = f"MLflow experiment {experiment} at {uri}"
    _refuse_no_file(uri, place)
    found: list[tuple[str, str]] = []
    try:
        client = MlflowClient(tracking_uri=uri)
        known = client.get_experiment_by_name(experiment)
        if known is None:
            return None
        page: str | None = ""
        while page is not None:
            runs = client.search_runs(
                [known.experiment_id], order_by=["attributes.start_time ASC"], page_token=page or None
            )
            found += [(run.info.run_id, run.info.run_name or run.info.run_id) for run in runs]
            page = runs.token or None
    except (MlflowException, OSError) as error:
        raise LogFileError(f"{place}: {str(error).splitlines()[0]}") from error
    if not found:
        raise LogFileError(f"{place}: has no runs")
    return found


def _refuse_no_file(uri: str, place: str) -> None:
    if uri.startswith("sqlite:///") and not Path(uri.removeprefix("sqlite:///")).is_file():
        raise LogFileError(f"{place}: this file does not exist; set MLFLOW_TRACKING_URI, or --home")


def read_mlflow(identity: str, uri: str, trainer: str | None = None) -> Log:
    """Return the metrics of an MLflow run.

    Args:
        identity: the run's id.
        uri: tracking URI.
        trainer: the trainer; ``None``: the one that knows most of the names.

    Raises:
        MissingExtra: MLflow is not installed.
        LogFileError: the run does not exist or has no metrics, the server cannot be reached, or no name is known.
    """
    try:
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient
    except ImportError as error:
        raise MissingExtra("mlflow", "reading an MLflow run") from error
    place = f"MLflow run {identity} at {uri}"
    _refuse_no_file(uri, place)
    steps: dict[int, dict[str, float]] = {}
    try:
        client = MlflowClient(tracking_uri=uri)
        for key in client.get_run(identity).data.metrics:
            for point in client.get_metric_history(identity, key):
                steps.setdefault(int(point.step), {})[key] = float(point.value)
    except (MlflowException, OSError) as error:
        raise LogFileError(f"{place}: {str(error).splitlines()[0]}") from error
    if not steps:
        raise LogFileError(f"{place}: has no metrics")
    return canonical(steps, place, trainer)
