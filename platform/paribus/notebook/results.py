"""``paribus.results`` and ``paribus.studies``: what runs have recorded, as DataFrames and figures, read-only."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import sqlalchemy as sa

from paribus.archive.reading import open_archive
from paribus.errors import ParibusError, StoreError, did_you_mean
from paribus.home import home as usual_home
from paribus.monitor.status import studies as listed_studies
from paribus.notebook import tables
from paribus.notebook.html import results_html
from paribus.published.tables import load_published
from paribus.report.analysis.analysis import Analysis
from paribus.report.build import build_report
from paribus.report.collect import read_study
from paribus.report.inputs import StudyData
from paribus.report.model import ReportModel
from paribus.report.render.text import to_terminal
from paribus.run_folder.metrics import find_metric
from paribus.store.database import named_server, server_url
from paribus.store.models import AttemptRecord
from paribus.store.reader import Reader
from paribus.store.remarks import About
from paribus.store.untouched import open_untouched
from paribus.study.load import load_study
from paribus.text import plural

if TYPE_CHECKING:
    import pandas as pd
    import plotly.graph_objects as go

_FILES = (".yaml", ".yml")


@runtime_checkable
class Named(Protocol):
    """What has the name of a study, as :class:`paribus.Study` has."""

    @property
    def name(self) -> str:
        """Name of the study."""


class Results:
    """What a study has recorded so far: one read of its store, with all numbers of its report.

    :func:`results` makes it. It does not change when runs go on: call :func:`results` again.

    Attributes:
        name: the study.
        source: where it was read, for people.
    """

    def __init__(
        self,
        data: StudyData,
        attempts: tuple[AttemptRecord, ...],
        source: str,
        said: Mapping[str, About] = MappingProxyType({}),
    ) -> None:
        self.name = data.plan.study
        self.source = source
        self._data = data
        self._attempts = attempts
        self._said = said

    # ---- the report ------------------------------------------------------------------------------

    @cached_property
    def _model(self) -> ReportModel:
        return build_report(self._data)

    @cached_property
    def _analysis(self) -> Analysis:
        return Analysis(self._data)

    @property
    def complete(self) -> bool:
        """Whether every run has ended."""
        return self._model.complete

    @property
    def answer(self) -> str:
        """What the study says, in one or two sentences: the first lines of its report."""
        return self._model.answer

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the plan that was read."""
        return self._data.plan.fingerprint

    # ---- frames ----------------------------------------------------------------------------------

    def runs(self) -> pd.DataFrame:
        """Return one row for each planned run, in queue order.

        Columns: ``run`` (its fingerprint), ``arm``, ``seed``, ``state``, ``outcome``, ``score`` (the primary metric by
        the rule that the study declares), ``step`` and ``steps`` (recorded, planned), ``attempts``, ``gpus``,
        ``health``, ``started_at``, ``ended_at``, ``seconds`` (of all attempts), ``search`` (whether it is a trial of a
        search, which no table of effects shows), ``reason``, ``tags`` (in alphabetical order, with a blank between
        two), ``note``.
        """
        return tables.runs_frame(self._data, self._attempts, self._said)

    def arms(self) -> pd.DataFrame:
        """Return one row for each arm: ``arm``, ``key``, and a column for each setting in which arms differ."""
        return tables.arms_frame(self._data.plan.arms)

    def evaluations(self) -> pd.DataFrame:
        """Return one row for each evaluation of a run on a set: counts over its problems, and their ratios.

        Columns: ``arm``, ``seed``, ``run``, ``set``, ``step``, ``problems``, ``samples`` (responses a problem),
        ``correct`` and ``truncated`` (responses), ``accuracy``, ``truncated_frac``, ``length_mean``.
        """
        return tables.evaluations_frame(self._data)

    def curves(self, metric: str) -> pd.DataFrame:
        """Return a metric of all runs, one row for each recorded value.

        Args:
            metric: name of a metric, e.g. ``policy/entropy``; :meth:`metrics` lists them.

        Returns:
            Columns ``arm``, ``seed``, ``run``, ``step``, ``value``, ``source`` (``exact``, ``derived`` or ``proxy``).
            A metric of Paribus that no run has recorded gives no rows.

        Raises:
            ParibusError: there is no such metric; the message names the nearest ones.
        """
        _check_text(metric, "the name of a metric, e.g. 'policy/entropy'")
        recorded = {name for run in self._data.runs for name in run.recorded.names}
        if metric not in recorded and find_metric(metric) is None:
            near = did_you_mean(metric, tables.metric_names(recorded))
            what = plural(len(recorded), "metric") if recorded else "no metric yet"
            raise ParibusError(
                f"no run of `{self.name}` has recorded a metric `{metric}`.{near} They have recorded {what}; "
                "`.metrics()` lists them."
            )
        return tables.curves_frame(self._data, metric)

    def metrics(self) -> pd.DataFrame:
        """Return one row for each metric that a run has recorded: ``metric``, ``unit``, ``better``, ``definition``."""
        return tables.metrics_frame(self._data)

    def table(self, key: str) -> pd.DataFrame:
        """Return a table of the report: a row for each of its rows, a column for each of its columns.

        Columns of numbers hold the number, rounded to six digits as in the report's files; all others their text.
        :meth:`cells` has intervals, p values and verdicts.

        Args:
            key: key of a table, e.g. ``ladder.score``. The name of a design means its first table. :meth:`tables` lists
                them.

        Raises:
            ParibusError: the report has no such table; the message lists the keys.
        """
        return tables.table_frame(tables.find_table(self._model, _check_text(key, "the key of a table")))

    def cells(self, key: str | None = None) -> pd.DataFrame:
        """Return the cells of a table, one a row, or of all tables: what ``report.csv`` holds.

        Args:
            key: as :meth:`table` takes it; ``None``: all tables.

        Raises:
            ParibusError: the report has no such table; the message lists the keys.
        """
        if key is None:
            return tables.cells_frame(self._model.tables)
        return tables.cells_frame([tables.find_table(self._model, _check_text(key, "the key of a table"))])

    def tables(self) -> pd.DataFrame:
        """Return one row for each table of the report: ``key``, ``title``, ``rows``, ``columns``."""
        return tables.tables_frame(self._model)

    def effects(self) -> pd.DataFrame:
        """Return the difference of each arm from the base, one row for an arm and a measure.

        Columns: ``arm``, ``measure``, ``unit``, ``value``, ``low`` and ``high`` (95% interval), ``n`` (seeds or pairs),
        ``p``, ``p_adjusted``, ``correction``, ``verdict``. The measure ``score`` is the primary metric; the other ones
        are those of the report's table of effects, which compares arms that change one thing.
        """
        return tables.effects_frame(self._analysis)

    # ---- figures and pages -----------------------------------------------------------------------

    def plot(self, name: str = "accuracy") -> go.Figure:
        """Return a figure of the report as a plotly figure.

        Args:
            name: ``accuracy`` (the primary metric over steps), ``effects`` (every arm against the base), any recorded
                metric such as ``policy/entropy``, or the key of a figure.

        Raises:
            ParibusError: there is no such figure; the message lists what there is.
        """
        from paribus.notebook.figures import plot

        return plot(self._model, self._analysis, _check_text(name, "the name of a figure, e.g. 'accuracy'"))

    def __repr__(self) -> str:
        return f"<paribus.Results of `{self.name}` from {self.source}: {self._model.status}>"

    def __str__(self) -> str:
        """Return the report as `paribus report` prints it."""
        return to_terminal(self._model, 100)

    def _repr_html_(self) -> str:
        return results_html(self._model)


def results(
    study: str | Path | Named | None = None,
    *,
    home: str | Path | None = None,
    database: str | None = None,
    archive: str | Path | None = None,
) -> Results:
    """Return what a study has recorded, also while it runs. Nothing is written where it is read.

    Args:
        study: name of the study, its file, or a :class:`paribus.Study`; may be left out with ``archive``.
        home: home folder; ``None``: ``$PARIBUS_HOME``, else ``.paribus``.
        database: address of a PostgreSQL database, ``postgresql://USER@HOST:5432/DATABASE``; ``None``:
            ``$PARIBUS_DATABASE_URL``, else the file in the home folder. The home folder holds the run folders.
        archive: file of `paribus export`, in place of both.

    Raises:
        ParibusError: there is no such study, store or archive, or another version of Paribus wrote it.
        TypeError: an argument has another type.
    """
    name = _study_name(study, required=archive is None)
    if archive is not None:
        if home is not None or database is not None:
            raise ParibusError("an archive holds the whole study: leave out `home` and `database`.")
        return _from_archive(_path(archive, "archive"), name)
    assert name is not None  # it is required
    with _opened(home, database) as (reader, source):
        return _read(reader, name, source)


def studies(*, home: str | Path | None = None, database: str | None = None) -> pd.DataFrame:
    """Return one row for each study of a home folder, the oldest first; nothing is written there.

    Columns: ``study``, ``state``, ``runs``, ``running``, ``succeeded``, ``failed`` (with those in quarantine),
    ``submitted_at``, ``priority``, ``weight``, ``paused`` (why; empty if it is not), ``tags`` (in alphabetical order,
    with a blank between two), ``note``, ``archived``. Counts are those of the newest plan of a name.

    Args:
        home: as :func:`results` takes it.
        database: as :func:`results` takes it.

    Raises:
        ParibusError: there is no store, or another version of Paribus wrote it.
        TypeError: an argument has another type.
    """
    with _opened(home, database) as (reader, _):
        newest = {s.name: s.submitted_at for s in reader.summaries()}
        return tables.studies_frame(listed_studies(reader), newest)


# ---- opening -----------------------------------------------------------------------------------------


@contextmanager
def _opened(home: str | Path | None, database: str | None) -> Iterator[tuple[Reader, str]]:
    """Yield the store, and where it is, for people."""
    if home is None and database is None and os.environ.get("PARIBUS_SERVER"):
        raise ParibusError(
            "PARIBUS_SERVER names a server, and results are read from a home folder, a database or an archive: name "
            "one of them, e.g. `home='.paribus'`."
        )
    folder = usual_home() if home is None else _path(home, "home")
    if database is not None:
        server: sa.URL | None = server_url(_check_text(database, "the address of a PostgreSQL database"), "`database`")
    else:
        server = named_server()
    with open_untouched(folder, server) as reader:
        yield reader, str(folder) if server is None else f"{reader.database.name} and {folder}"


def _read(reader: Reader, name: str, source: str) -> Results:
    data = read_study(reader, name)
    published = tuple(load_published(each) for each in data.plan.published)
    attempts = reader.attempts_of(reader.study(name).id)
    said = reader.about_runs(reader.study(name).id)
    return Results(replace(data, published=published), attempts, source, said)


def _from_archive(archive: Path, name: str | None) -> Results:
    if not archive.is_file():
        raise ParibusError(f"there is no archive {archive}: `paribus export STUDY` writes one.")
    folder = Path(tempfile.mkdtemp(prefix="paribus-"))
    try:
        with open_archive(archive, folder) as reader:
            (held,) = {s.name for s in reader.summaries()}
            if name not in (None, held):
                raise StoreError(f"the archive {archive} holds the study `{held}`, not `{name}`.")
            found = _read(reader, held, str(archive))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(found, shutil.rmtree, folder, ignore_errors=True)  # curves are read when they are asked for
    return found


# ---- arguments ---------------------------------------------------------------------------------------


def _study_name(study: str | Path | Named | None, *, required: bool) -> str | None:
    if study is None and not required:
        return None
    if not isinstance(study, str | os.PathLike):
        if isinstance(study, Named):
            return study.name
        raise TypeError(f"a study is named by its name, its file or a paribus.Study, not by {_kind(study)}")
    named = os.fspath(study)
    if not named.strip():
        raise ParibusError("the name of the study is empty: `paribus.studies()` lists the names that there are.")
    if named.endswith(_FILES):
        return load_study(Path(named)).spec.study
    if "/" in named and Path(named, "report.json").is_file():
        raise ParibusError(
            f"{named} is the folder of a report. Name the study, and its home folder if it is not the usual one: "
            f"`paribus.results({Path(named).name!r}, home=...)`."
        )
    return named


def _path(value: str | Path, what: str) -> Path:
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"`{what}` is a path, not {_kind(value)}")
    if not os.fspath(value):
        raise ParibusError(f"`{what}` is empty: name a path, or leave it out.")
    return Path(value).expanduser()


def _check_text(value: str, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{_kind(value)} is not {what}")
    return value


def _kind(value: object) -> str:
    return "None" if value is None else f"{value!r:.60} ({type(value).__name__})"
