"""Old databases: the migrations make the expected tables from every revision and back, and old plans still load."""

import json
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.errors import StoreError
from paribus.recipe.recipe import Recipe
from paribus.store import migrate as migrating
from paribus.store.database import database_url
from paribus.store.history import past_runs, recorded_runs
from paribus.store.migrate import HEAD, VERSION_TABLE, migrate, run_alembic, upgrade
from paribus.store.models import PLAN
from paribus.store.reader import Reader
from paribus.store.store import Store
from paribus.store.tables import metadata
from support.old_databases import REVISIONS, fill
from support.plans import small_plan


def differences(database):
    """Return what alembic would add or change."""
    with database.read() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
        return compare_metadata(context, metadata)


def test_the_newest_revision_is_the_one_in_the_code():
    """`HEAD` saves the import of alembic; it must name the last script."""
    assert REVISIONS[-1] == HEAD


@pytest.mark.parametrize("revision", REVISIONS)
def test_from_every_revision_up_and_nothing_is_lost(database, tmp_path, revision):
    """A filled database of any age has the newest shape afterwards, its rows, and no broken promise."""
    run_alembic(database, "upgrade", revision)
    fill(database)
    upgrade(database, tmp_path / "lock")
    assert differences(database) == []
    with Store.open(tmp_path) as store:
        study = store.study("small")
        assert [str(r.state) for r in store.runs_of(study.id)] == ["SUCCEEDED", "QUEUED"]
        claim = store.claim(study.id, engine="local", worker="here")
        assert (claim.run_id, claim.token) == (2, 2)
        store.start(2, 2)
        store.finish(2, 2, {})
        assert audit(snapshot(store, folders=False)) == ()
        assert (store.budget("small", "cpu").spent, store.budget("small", "cpu").results) == (
            pytest.approx(2.0, abs=1),
            2,
        )


def test_plans_of_before_were_first_submitted_with_their_first_run(database, tmp_path):
    """The last submission may be a repeated command, long after the results; the event of the first run is earlier."""
    run_alembic(database, "upgrade", "0005")
    fill(database)
    with database.write() as connection:
        connection.execute(sa.text("UPDATE study SET submitted_at = 90.0"))
        more = "INSERT INTO study (id, name, fingerprint, plan, submitted_at) VALUES (2, 'reused', 'f', '{}', 95.0)"
        connection.execute(sa.text(more))
    upgrade(database, tmp_path / "lock")
    with database.read() as connection:
        rows = connection.execute(sa.text("SELECT name, first_submitted_at FROM study ORDER BY id")).all()
    assert [tuple(row) for row in rows] == [("small", 7.0), ("reused", 95.0)]


@pytest.mark.parametrize("revision", [*REVISIONS[:-1], "base"])
def test_down_to_every_revision_and_up_again(database, tmp_path, revision):
    """Rows that an older revision can hold are still there; down to nothing leaves no table but the version's."""
    run_alembic(database, "upgrade", HEAD)
    fill(database)
    run_alembic(database, "downgrade", revision)
    with database.read() as connection:
        names = sa.inspect(connection).get_table_names()
        kept = revision != "base"
        assert (names == [VERSION_TABLE]) is not kept
        if kept:
            assert connection.execute(sa.text("SELECT COUNT(*) FROM run")).scalar_one() == 2
    upgrade(database, tmp_path / "lock")
    assert differences(database) == []


def pretend(database, revision):
    """Write another revision into the database."""
    with database.write() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '{revision}'"))


def test_a_database_of_a_newer_version_is_refused(database, tmp_path):
    """Writing to it could destroy what this version does not know."""
    Store.open(tmp_path).close()
    pretend(database, "9999")
    with pytest.raises(StoreError, match=r"revision 9999.*pdate Paribus"):
        Store.open(tmp_path)
    with pytest.raises(StoreError, match="revision 9999"):
        Reader.open(tmp_path)


def test_a_process_of_an_older_version_begins_nothing_and_finishes_what_it_has(database, tmp_path):
    """The database is upgraded while it works: no claim, no study; what it holds comes to its end."""
    with Store.open(tmp_path) as store:
        study = store.add_study(small_plan())
        claim = store.claim(study.id, engine="local", worker="here")
        pretend(database, "9999")
        for begin in (
            lambda: store.claim(study.id, engine="local", worker="here"),
            lambda: store.add_study(study.plan),
        ):
            with pytest.raises(StoreError, match=r"from revision \d+ to 9999"):
                begin()
        store.start(claim.run_id, claim.token)
        store.renew(claim.run_id, claim.token)
        store.finish(claim.run_id, claim.token, {})
        assert store.result(claim.fingerprint).token == 1


def test_only_a_file_is_upgraded_without_being_asked(database, tmp_path, monkeypatch):
    """On a server others may work with an older version: a person decides when."""
    Store.open(tmp_path).close()
    monkeypatch.setattr(migrating, "HEAD", "9999")
    monkeypatch.setattr(migrating, "upgrade", lambda *_: pretend(database, "9999"))
    if database.embedded:
        Store.open(tmp_path).close()
        return
    with pytest.raises(StoreError, match="paribus db upgrade"):
        Store.open(tmp_path)


def test_an_empty_database_is_told(database, tmp_path):
    """Looking makes no tables."""
    with database.read():
        pass
    with pytest.raises(StoreError, match=r"is empty|there is no store"):
        Reader.open(tmp_path)
    assert database_url(tmp_path).get_backend_name() == database.url.get_backend_name()
    migrate(database, tmp_path / "lock")
    Reader.open(tmp_path).close()


@pytest.mark.parametrize("name", ["adaptive", "search"])
def test_a_plan_of_version_0_1_loads_and_continues(database, tmp_path, name):
    """It has no hashes of code, data and model, and resources that a study file may no longer ask for."""
    text = Path(__file__).with_name("plans_of_0_1").joinpath(f"{name}.json").read_text()
    old = PLAN.validate_json(text)
    assert {arm.hashes for arm in old.arms} == {None}
    with Store.open(tmp_path) as store:
        study = store.add_study(old)
        with store.database.write() as connection:
            connection.execute(sa.text("UPDATE study SET plan = :plan"), {"plan": text})
        assert store.studies()[0].plan == store.study(old.study).plan == store.latest_version(old) == old
        assert store.runs_of(study.id)[0].label == "base"
        claim = store.claim(study.id, engine="local", worker="here")
        store.start(claim.run_id, claim.token)
        store.finish(claim.run_id, claim.token, {"status": "succeeded"})
        assert store.add_study(old).id == study.id
        assert [run.recipe["clip"]["kind"] for run in past_runs(tmp_path)] == ["ppo_min"]
        assert recorded_runs(tmp_path, [claim.fingerprint]) == {claim.fingerprint}
        assert audit(snapshot(store, folders=False)) == ()


def test_version_0_1_reads_recipes_that_it_could_have_written():
    """Its recipes take no further sections, and its schedulers may still serve a shared database."""
    text = Path(__file__).with_name("plans_of_0_1").joinpath("search.json").read_text()
    written = json.loads(text)["arms"][0]["recipe"]
    arm = json.loads(PLAN.dump_json(PLAN.validate_json(text)))["arms"][0]
    assert arm["recipe"].keys() == written.keys()
    assert PLAN.validate_json(text).arms[0].recipe == Recipe.model_validate(arm["recipe"])
