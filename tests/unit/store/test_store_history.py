"""What past runs cost, read without SQLAlchemy: finished runs once, all their attempts together."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from paribus.errors import StoreError
from paribus.store.history import past_runs
from paribus.store.store import Store
from paribus.testing.plans import small_plan


def test_finished_runs_with_all_their_attempts(tmp_path: Path) -> None:
    """A failed attempt before the result is charged, too; unfinished runs are left out; a shared run counts once."""
    assert past_runs(tmp_path) == ()
    with Store.open(tmp_path) as store:
        study = store.add_study(small_plan(arms=2, seeds=1))
        store.add_study(small_plan("again", arms=2, seeds=1))
        claim = store.claim(study.id, engine="inline", worker="w", gpus=2.0)
        assert claim is not None
        store.start(claim.run_id, claim.token)
        store.finish(claim.run_id, claim.token, {"status": "done"})
    with sqlite3.connect(tmp_path / "paribus.db") as connection:
        connection.execute("UPDATE attempt SET charged = 10")
        more = {"id": 99, "token": 99, "submit_name": "'x'", "charged": 5}
        names = [row[1] for row in connection.execute("PRAGMA table_info(attempt)")]
        values = ", ".join(str(more.get(name, name)) for name in names)
        connection.execute(f"INSERT INTO attempt ({', '.join(names)}) SELECT {values} FROM attempt")
    (run,) = past_runs(tmp_path)
    assert (run.runner, run.gpus, run.seconds) == ("fake", 2.0, 15)
    assert run.evaluate["problems"] == 20
    assert run.recipe["clip"]["kind"] == "ppo_min"


def test_a_file_that_is_no_store(tmp_path: Path) -> None:
    """It is told with the remedy, not with a traceback."""
    (tmp_path / "paribus.db").write_text("not a database, but long enough to be looked at")
    with pytest.raises(StoreError, match="paribus db upgrade"):
        past_runs(tmp_path)
