"""What past runs cost, read without SQLAlchemy: finished runs once, all their attempts together."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
import sqlalchemy as sa

from paribus.errors import StoreError
from paribus.store.history import past_runs
from paribus.store.store import Store
from support.plans import small_plan


def test_finished_runs_with_all_their_attempts(server: object, tmp_path: Path) -> None:
    """A failed attempt before the result is charged, too; unfinished runs are left out; a shared run counts once."""
    assert past_runs(tmp_path) == ()
    with Store.open(tmp_path) as store:
        study = store.add_study(small_plan(arms=2, seeds=1))
        store.add_study(small_plan("again", arms=2, seeds=1))
        for kind in ("infrastructure", ""):
            with store.database.write() as connection:
                connection.execute(sa.text("UPDATE run SET not_before = 0"))
            claim = store.claim(study.id, engine="inline", worker="w", gpus=2.0)
            assert claim is not None
            store.start(claim.run_id, claim.token)
            if kind:
                store.fail(claim.run_id, claim.token, "infrastructure", "node died")
            else:
                store.finish(claim.run_id, claim.token, {"status": "done"})
        with store.database.write() as connection:
            connection.execute(sa.text("UPDATE attempt SET charged = 10 * token WHERE ended_at IS NOT NULL"))
            query = "SELECT SUM(charged) FROM attempt JOIN result ON result.run_id = attempt.run_id"
            whole = connection.execute(sa.text(query)).scalar_one()
    (run,) = past_runs(tmp_path)
    assert (run.runner, run.gpus, run.seconds) == ("fake", 2.0, whole)
    assert whole == 30
    assert run.evaluate["problems"] == 20
    assert run.recipe["clip"]["kind"] == "ppo_min"


def test_a_store_without_charges(tmp_path: Path) -> None:
    """A store of a version that did not charge runs has no history, and a plan is shown all the same."""
    with sqlite3.connect(tmp_path / "paribus.db") as connection:
        connection.execute("CREATE TABLE attempt (id INTEGER)")
    assert past_runs(tmp_path) == ()


def test_a_file_that_is_no_store(tmp_path: Path) -> None:
    """It is told with the remedy, not with a traceback."""
    (tmp_path / "paribus.db").write_text("not a database, but long enough to be looked at")
    with pytest.raises(StoreError, match="paribus db upgrade"):
        past_runs(tmp_path)
