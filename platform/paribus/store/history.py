"""What a plan needs from earlier studies: which of its runs have a result, and what past runs cost.

Without a store these functions return at once and create no file, and `paribus plan` does not import SQLAlchemy. They
also read databases of older revisions, which a plan must not upgrade.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paribus.contract import Options
from paribus.errors import StoreError
from paribus.home import DATABASE_URL
from paribus.study.costs import PastRun

if TYPE_CHECKING:
    import sqlalchemy as sa

STUDIES = 20
"""Newest studies that :func:`past_runs` reads."""

_NEWEST = "SELECT id, plan FROM study ORDER BY submitted_at DESC, id DESC LIMIT :studies"
_CHARGES = (
    "SELECT run.id, study_run.arm, SUM(attempt.charged), MAX(attempt.gpus), "
    "MIN(attempt.started_at - attempt.claimed_at) FROM study_run "
    "JOIN run ON run.id = study_run.run_id JOIN attempt ON attempt.run_id = run.id "
    "WHERE study_run.study_id = :study AND run.state = 'SUCCEEDED' GROUP BY run.id, study_run.arm ORDER BY run.id DESC"
)


def recorded_runs(home: Path, fingerprints: Iterable[str]) -> frozenset[str]:
    """Return those of the fingerprints whose run has a result in the store of ``home``; empty without a store.

    Raises:
        StoreError: the file cannot be read as a store; ``Unreachable``, if the server did not answer.
    """
    with _connection(home) as (connection, columns):
        if connection is None or "result" not in columns:
            return frozenset()
        import sqlalchemy as sa

        from paribus.store import tables as t
        from paribus.store.reader import rows_of

        query = sa.select(t.run.c.fingerprint).join(t.result, t.result.c.run_id == t.run.c.id)
        return frozenset(row.fingerprint for row in rows_of(connection, query, list(fingerprints)))


def past_runs(home: Path) -> tuple[PastRun, ...]:
    """Return what the finished runs of the newest studies cost, newest first.

    Empty without a store, or if the store is so old that its attempts have no charge.

    Raises:
        StoreError: the file cannot be read as a store; ``Unreachable``, if the server did not answer.
    """
    with _connection(home) as (connection, columns):
        if connection is None or "charged" not in columns.get("attempt", ()):
            return ()
        return tuple(_past_runs(connection))


def _past_runs(connection: sa.Connection) -> Iterator[PastRun]:
    import sqlalchemy as sa

    seen: set[int] = set()
    for study, text in connection.execute(sa.text(_NEWEST), {"studies": STUDIES}).all():
        plan = json.loads(text)
        recipes = {arm["key"]: arm["recipe"] for arm in plan["arms"]}
        for run, arm, seconds, gpus, waited in connection.execute(sa.text(_CHARGES), {"study": study}).all():
            if run in seen or not seconds or arm not in recipes:
                continue
            seen.add(run)
            yield PastRun(
                runner=plan["runner"],
                recipe=recipes[arm],
                evaluate=plan["evaluate"],
                seconds=seconds,
                gpus=gpus,
                waited_s=max(0.0, waited or 0.0),
                options=Options.model_validate(plan.get("options", {})),
            )


@contextmanager
def _connection(home: Path) -> Iterator[tuple[sa.Connection | None, Mapping[str, set[Any]]]]:
    """Yield a connection for reading and the columns of each table; ``None`` if there is no store."""
    if not os.environ.get(DATABASE_URL) and not (home / "paribus.db").is_file():
        yield None, {}
        return
    import sqlalchemy as sa

    from paribus.store.database import Database, Unreachable, database_url

    database = Database(database_url(home))
    try:
        with database.read() as connection:
            tables = sa.inspect(connection)
            names = [name for name in ("attempt", "result") if tables.has_table(name)]
            yield connection, {name: {column["name"] for column in tables.get_columns(name)} for name in names}
    except Unreachable:  # some callers wait for the server
        raise
    except StoreError as error:
        raise StoreError(
            f"cannot read the store: {error} If another version wrote it, run `paribus db upgrade`."
        ) from error
    finally:
        database.close()
