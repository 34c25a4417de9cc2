"""`paribus db`, and `paribus run` on a PostgreSQL server."""

import os
import sqlite3
import threading
from contextlib import closing

import pytest
import sqlalchemy as sa
from click.testing import CliRunner

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.cli.db import command
from paribus.errors import StoreError
from paribus.scheduler import serve
from paribus.scheduler.home_lock import lock_home
from paribus.scheduler.scheduler import Ending
from paribus.scheduler.serve import Settings, run_study
from paribus.store.database import Database, Unreachable, backup_file, database_url, dump_command
from paribus.store.history import recorded_runs
from paribus.store.migrate import HEAD, VERSION_TABLE, run_alembic
from paribus.store.states import RunState
from paribus.store.store import Store
from support.databases import postgresql
from support.lines import Lines
from support.plans import small_plan


@pytest.fixture(params=["sqlite", "postgresql"])
def home(request, tmp_path, monkeypatch):
    """A home folder whose database is new."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    home = tmp_path / "home"
    home.mkdir()
    if request.param == "sqlite":
        yield home
        return
    with postgresql(empty=True) as url:
        monkeypatch.setenv("PARIBUS_DATABASE_URL", url.render_as_string(hide_password=False))
        yield home


def db(home, *arguments):
    """Run `paribus db`; return its output."""
    result = CliRunner().invoke(command, [*arguments, "--home", str(home)])
    if isinstance(result.exception, StoreError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_current_and_upgrade(home):
    """From the oldest revision to the newest; a second time there is nothing to do."""
    database = Database(database_url(home))
    run_alembic(database, "upgrade", "0001")
    assert "revision 0001" in db(home, "current")
    db(home, "upgrade")
    assert f"revision {HEAD}, expected {HEAD}: up to date" in db(home, "current")
    assert "nothing to do" in db(home, "upgrade")
    database.close()


def test_a_database_of_a_newer_version_is_named_as_such(home):
    """An upgrade cannot help there: this installation must be updated."""
    Store.open(home).close()
    with closing(Database(database_url(home))) as database, database.write() as connection:
        connection.execute(sa.text(f"UPDATE {VERSION_TABLE} SET version_num = '9999'"))
    said = db(home, "current")
    assert "revision 9999" in said
    assert "a newer version of Paribus wrote this database: update Paribus" in said
    assert "upgrade" not in said


def test_no_upgrade_under_a_running_study(home):
    """The lock of the home folder is respected."""
    Store.open(home).close()
    with lock_home(home, "paribus run"), pytest.raises(StoreError, match=r"`paribus run` \(process \d+\) works in"):
        db(home, "upgrade")


def test_without_a_file_there_is_nothing_to_look_after(tmp_path, monkeypatch):
    """And none is made."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    for name in ("current", "upgrade", "backup"):
        with pytest.raises(StoreError, match="there is no store"):
            db(tmp_path / "none", name)
    assert not (tmp_path / "none").exists()


def test_a_copy_is_whole_while_somebody_writes(tmp_path, monkeypatch):
    """It holds what was committed before it began, and a file that is there is not written over."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    with Store.open(tmp_path) as store, store.database.write() as connection:
        connection.execute(sa.text("UPDATE run SET seed = 7"))
        study = small_plan()
        copy = backup_file(tmp_path)
    with Store.open(tmp_path) as store:
        store.add_study(study)
    assert "wrote" in db(tmp_path, "backup", "--to", str(tmp_path / "copies" / "one.db"))
    with closing(sqlite3.connect(copy)) as before, closing(sqlite3.connect(tmp_path / "copies" / "one.db")) as after:
        counts = [c.execute("SELECT COUNT(*) FROM run").fetchone()[0] for c in (before, after)]
    assert counts == [0, 4]
    with pytest.raises(StoreError, match="exists already"):
        db(tmp_path, "backup", "--to", str(copy))


def test_a_copy_ends_though_a_scheduler_writes_all_the_time(tmp_path, monkeypatch):
    """It is of one moment among the writes, and not of one after the last of them."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    Store.open(tmp_path).close()
    last, copied = 500, threading.Event()
    with closing(sqlite3.connect(tmp_path / "paribus.db")) as ballast, ballast:
        ballast.execute("CREATE TABLE beat (number INTEGER)")
        ballast.execute("CREATE TABLE ballast (text BLOB)")
        ballast.execute("INSERT INTO ballast VALUES (zeroblob(12000000))")

    def beats():
        with closing(sqlite3.connect(tmp_path / "paribus.db", isolation_level=None, timeout=30)) as scheduler:
            scheduler.execute("PRAGMA synchronous = OFF")
            for number in range(1, last + 1):
                scheduler.execute("INSERT INTO beat VALUES (?)", (number,))
                if copied.wait(0.003):
                    return

    writer = threading.Thread(target=beats)
    writer.start()
    copy = backup_file(tmp_path)
    copied.set()
    writer.join()
    with closing(sqlite3.connect(copy)) as moment:
        assert moment.execute("SELECT COUNT(*) FROM beat").fetchone()[0] < last


def test_of_a_server_the_command_is_printed_without_the_password(tmp_path, monkeypatch):
    """Names are quoted for the shell."""
    monkeypatch.setenv("PARIBUS_DATABASE_URL", "postgresql://me:s3cr3t@db:5433/my studies")
    shown = db(tmp_path, "backup").splitlines()[-1]
    wanted = "pg_dump --format=custom --file=paribus.dump --host=db --port=5433 --username=me '--dbname=my studies'"
    assert shown == wanted
    assert "--host=/run/x" in dump_command(sa.make_url("postgresql://me@/x?host=/run/x"))


@pytest.mark.slow
def test_a_study_is_run_and_read_back_on_both_databases(home, monkeypatch):
    """Processes of the local engine and the shipper find the same database; every promise holds."""
    plan = small_plan()
    summary = run_study(plan, Settings(home=home, engine="local", slots=2), Lines())
    assert (summary.ending, summary.mirror) == (Ending.COMPLETE, "")
    assert summary.counts == {RunState.SUCCEEDED: 4}
    assert (home / "paribus.db").exists() is ("PARIBUS_DATABASE_URL" not in os.environ)
    with Store.open(home) as store:
        assert audit(snapshot(store, deep=True)) == ()
    fingerprints = [r.fingerprint for r in plan.runs]
    assert recorded_runs(home, fingerprints) == set(fingerprints)
    assert run_study(plan, Settings(home=home), Lines()).trained is False


def test_a_server_that_goes_away_meanwhile_does_not_end_the_session(home, monkeypatch):
    """The scheduler waits and goes on; it tells people once."""
    failures = iter([True] * 3)
    turn = serve.Scheduler.turn

    def sometimes(self):
        if next(failures, False):
            raise Unreachable("the database is away.")
        return turn(self)

    monkeypatch.setattr(serve.Scheduler, "turn", sometimes)
    monkeypatch.setattr(serve, "mlflow_is_installed", lambda: False)
    display = Lines()
    summary = run_study(small_plan(), Settings(home=home, engine="inline"), display)
    assert summary.counts == {RunState.SUCCEEDED: 4}
    assert sum("is away" in line for line in display.said) == 1
