"""What past runs cost: asked at plan time, so for a file without SQLAlchemy and without making one."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from paribus.errors import StoreError
from paribus.study.costs import PastRun
from paribus.study.home import DATABASE_URL

STUDIES = 20
"""Studies that are looked at, the newest first."""

_NEWEST = "SELECT id, plan FROM study ORDER BY submitted_at DESC, id DESC LIMIT :studies"
_CHARGES = (
    "SELECT run.id, study_run.arm, SUM(attempt.charged), MAX(attempt.gpus) FROM study_run "
    "JOIN run ON run.id = study_run.run_id JOIN attempt ON attempt.run_id = run.id "
    "WHERE study_run.study_id = :study AND run.state = 'SUCCEEDED' GROUP BY run.id, study_run.arm ORDER BY run.id DESC"
)

Ask = Callable[[str, Mapping[str, Any]], Sequence[Sequence[Any]]]


def past_runs(home: Path) -> tuple[PastRun, ...]:
    """Return what the finished runs of the newest studies cost, newest first; none without a store, or with an old one.

    Raises:
        StoreError: the file is there but cannot be read as a store, or the server cannot be reached.
    """
    if os.environ.get(DATABASE_URL):
        return _on_the_server(home)
    file = home / "paribus.db"
    if not file.is_file():
        return ()
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
            if not connection.execute("SELECT 1 FROM pragma_table_info('attempt') WHERE name = 'charged'").fetchone():
                return ()  # made before charges were kept
            return tuple(_read(lambda query, values: connection.execute(query, values).fetchall()))
    except sqlite3.Error as error:
        raise StoreError(
            f"cannot read the store {file}: {error}. If another version wrote it: paribus db upgrade"
        ) from error


def _read(ask: Ask) -> Iterator[PastRun]:
    seen: set[int] = set()
    for study, text in ask(_NEWEST, {"studies": STUDIES}):
        plan = json.loads(text)
        recipes = {arm["key"]: arm["recipe"] for arm in plan["arms"]}
        for run, arm, seconds, gpus in ask(_CHARGES, {"study": study}):
            if run in seen or not seconds or arm not in recipes:
                continue
            seen.add(run)
            yield PastRun(
                runner=plan["runner"], recipe=recipes[arm], evaluate=plan["evaluate"], seconds=seconds, gpus=gpus
            )


def _on_the_server(home: Path) -> tuple[PastRun, ...]:
    import sqlalchemy as sa

    from paribus.store.database import Database, database_url
    from paribus.store.migrate import refuse_other_revision
    from paribus.store.reader import Reader

    with Reader(Database(database_url(home)), home) as reader:
        try:
            refuse_other_revision(reader.database)
        except StoreError:  # a plan does without history, and `paribus run` says what to do
            return ()
        with reader.database.read() as connection:
            return tuple(_read(lambda query, values: connection.execute(sa.text(query), values).all()))
