"""Databases: where they are, what people see of them, how long a transaction waits, and servers that break off."""

import sqlite3
import threading
import time
from contextlib import closing

import pytest
import sqlalchemy as sa

from paribus.errors import StoreError
from paribus.home import since_boot
from paribus.store import database as databases
from paribus.store.database import Database, Unreachable, database_url, retry_on_disconnect, shown_url
from paribus.store.store import Store
from support.databases import postgresql
from support.plans import small_plan

SECRET = "s3cr3t"


def test_the_store_is_a_file_unless_a_server_is_named(tmp_path, monkeypatch):
    """The variable wins; the driver is ours."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    assert database_url(tmp_path).database == str(tmp_path / "paribus.db")
    monkeypatch.setenv("PARIBUS_DATABASE_URL", f"postgres://me:{SECRET}@db:5433/studies?sslmode=require")
    url = database_url(tmp_path)
    assert (url.drivername, url.port, url.password) == ("postgresql+psycopg", 5433, SECRET)


@pytest.mark.parametrize(
    "named", [f"postgresql://me:{SECRET}@db", f"mysql://me:{SECRET}@db/x", f"//{SECRET}", f"sqlite:///{SECRET}.db"]
)
def test_what_is_no_server_is_refused_without_repeating_it(tmp_path, monkeypatch, named):
    """The message says what is allowed, and holds no secret."""
    monkeypatch.setenv("PARIBUS_DATABASE_URL", named)
    with pytest.raises(StoreError, match="must look like postgresql://") as caught:
        database_url(tmp_path)
    assert SECRET not in str(caught.value)


def test_a_url_is_shown_without_its_secrets():
    """Neither the password nor the query's are printed; the rest is."""
    url = sa.make_url(f"postgresql+psycopg://me:{SECRET}@db/x?host=/run&password={SECRET}&sslpassword={SECRET}")
    assert SECRET not in shown_url(url)
    assert shown_url(url) == "postgresql://me:***@db/x?host=%2Frun"
    assert SECRET not in Database(url).name


def test_a_server_that_is_not_there_is_told_without_a_traceback(tmp_path, monkeypatch):
    """With its name, and without its password."""
    monkeypatch.setattr(databases, "TRIES", 2)
    monkeypatch.setenv("PARIBUS_DATABASE_URL", f"postgresql://me:{SECRET}@127.0.0.1:1/studies")
    with pytest.raises(Unreachable, match=r"postgresql://me:\*\*\*@127.0.0.1:1/studies cannot be used") as caught:
        Store.open(tmp_path)
    assert SECRET not in str(caught.value)


def test_a_file_that_is_no_database_is_told_when_it_is_opened(tmp_path, monkeypatch):
    """Not a traceback of the driver."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    (tmp_path / "paribus.db").write_text("this is text, long enough to be no database header at all" * 9)
    with pytest.raises(StoreError, match="cannot be used: file is not a database"):
        Store.open(tmp_path)


def test_transactions_of_a_server_have_limits_and_levels():
    """Nobody waits for ever; writers see what is committed, readers one state, and they cannot write."""
    with postgresql() as url:
        database = Database(url)

        def shown(connection, name):
            return connection.execute(sa.text(f"SHOW {name}")).scalar_one()

        with database.write() as connection:
            limits = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout")
            assert [shown(connection, n) for n in limits] == ["1min", "30s", "1min"]
            assert shown(connection, "transaction_isolation") == "read committed"
        with database.read() as connection:
            assert shown(connection, "transaction_isolation") == "repeatable read"
            assert shown(connection, "transaction_read_only") == "on"
        database.close()


def test_a_server_machine_that_vanishes_is_noticed():
    """TCP asks for it after seconds, not hours; what the user's URL sets stays."""
    with postgresql() as url:
        database = Database(url.update_query_dict({"keepalives_idle": "77", "application_name": "mine"}))
        with database.read() as connection:
            options = connection.connection.driver_connection.info.get_parameters()
        database.close()
    assert options["application_name"] == "mine"
    assert {name: x for name, x in options.items() if name.startswith(("keepalives", "tcp"))} == {
        "keepalives": "1",
        "keepalives_idle": "77",
        "keepalives_interval": "5",
        "keepalives_count": "4",
        "tcp_user_timeout": "30000",
    }


def test_a_process_that_uses_all_its_connections_is_told_and_tries_again(tmp_path):
    """No error of the library ends a scheduler or a page."""
    database, tries = Database(databases.file_url(tmp_path)), []
    database.engine = sa.create_engine(database.url, pool_size=1, max_overflow=0, pool_timeout=0.05)
    held = database.engine.connect()
    with pytest.raises(Unreachable, match="all connections of this process are in use"), database.read():
        pass

    class Asking:
        def __init__(self):
            self.database = database

        @retry_on_disconnect
        def ask(self):
            tries.append(1)
            if len(tries) == 2:
                held.close()
            with self.database.read() as connection:
                return connection.execute(sa.text("SELECT 7")).scalar_one()

    assert Asking().ask() == 7
    database.close()


def test_a_claim_passes_rows_that_another_claim_holds():
    """Two schedulers of one study never wait for each other: the second takes the next run."""
    with postgresql() as url:
        store = Store(Database(url), None)
        study = store.add_study(small_plan())
        with store.database.write() as connection:
            connection.execute(sa.text("SELECT * FROM run WHERE id = 1 FOR UPDATE"))
            assert store.claim(study.id, engine="test", worker="here").run_id == 2
        assert store.claim(study.id, engine="test", worker="here").run_id == 1
        store.close()


def test_two_studies_that_share_runs_are_submitted_at_once():
    """Each run is made once, and neither submission fails."""
    with postgresql() as url:
        stores = [Store(Database(url), None) for _ in range(4)]
        failed = []

        def submit(number):
            try:
                for round_ in range(5):
                    stores[number].add_study(small_plan(f"study-{number}-{round_}", arms=3, seeds=4))
            except Exception as error:
                failed.append(error)

        threads = [threading.Thread(target=submit, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        with stores[0].database.read() as connection:
            counts = [connection.execute(sa.text(f"SELECT COUNT(*) FROM {n}")).scalar_one() for n in ("run", "study")]
        assert counts == [12, 20]
        for store in stores:
            store.close()


def test_what_a_server_broke_off_is_tried_again():
    """Connections are cut again and again; each call of the store comes through."""
    with postgresql() as url:
        store, killer = Store(Database(url), None), Database(url)
        study = store.add_study(small_plan())
        cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = :name"
        for _ in range(4):
            with killer.write() as connection:
                connection.execute(sa.text(cut), {"name": url.database})
            claim = store.claim(study.id, engine="test", worker="here")
            assert claim is not None
        with pytest.raises(Unreachable, match="terminating connection"), killer.write() as connection:
            connection.execute(sa.text("SELECT pg_terminate_backend(pg_backend_pid())"))
        store.close()
        killer.close()


@pytest.mark.parametrize("setting", ["LOCAL idle_in_transaction_session_timeout = 50", "TRANSACTION READ ONLY"])
def test_a_server_that_ended_a_session_or_takes_nothing_now_may_do_so_later(setting):
    """A process that was stopped within a transaction, and a server that became a standby, end no scheduler."""
    with postgresql() as url:
        store = Store(Database(url), None)

        def broken_off():
            with store.database.write() as connection:
                connection.execute(sa.text(f"SET {setting}"))
                time.sleep(0.3)
                connection.execute(sa.text("UPDATE run SET reason = 'touched'"))

        with pytest.raises(Unreachable):
            broken_off()
        assert store.add_study(small_plan()).name == "small"
        store.close()


def test_a_file_that_another_program_keeps_locked_is_written_later(tmp_path, monkeypatch):
    """A scheduler goes on and asks again; what waited for so long already is not repeated at once."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    monkeypatch.setattr(databases, "LOCK_S", 0)
    with Store.open(tmp_path) as store, closing(sqlite3.connect(tmp_path / "paribus.db")) as other:
        monkeypatch.setattr(databases.time, "sleep", None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(Unreachable, match=r"database is locked\. Another program works with the file"):
            store.add_study(small_plan())
        other.execute("ROLLBACK")
        assert store.add_study(small_plan()).name == "small"


def test_trouble_that_stays_is_told_after_some_tries(monkeypatch):
    """The last error is the one that is raised."""
    monkeypatch.setattr(databases.time, "sleep", lambda _: None)
    tried = []

    class Broken:
        @retry_on_disconnect
        def call(self):
            tried.append(1)
            raise Unreachable("gone")

    with pytest.raises(Unreachable, match="gone"):
        Broken().call()
    assert len(tried) == databases.TRIES


def test_a_file_has_a_clock_that_nobody_sets(tmp_path, monkeypatch):
    """Leases are counted on the clock of the process, and not on the time of day, which is put right at times."""
    database = Database(databases.file_url(tmp_path))
    before = time.time()
    with database.read() as connection:
        assert before - 1 < connection.execute(sa.select(database.now())).scalar_one() < time.time() + 1
    monkeypatch.setattr(databases, "since_boot", lambda: since_boot() + 3600)
    with database.read() as connection:
        assert connection.execute(sa.select(database.now())).scalar_one() > before + 3599
    database.close()


def test_a_log_that_others_turn_on_as_well_is_waited_for():
    """SQLite refuses at once, whatever the busy timeout, where two new connections could wait for each other."""

    class Refused:
        """A connection that is refused the log twice."""

        def __init__(self):
            self.said = []

        def create_function(self, *_):
            pass

        def execute(self, text):
            self.said.append(text)
            if "journal_mode" in text and self.said.count(text) < 3:
                raise sqlite3.OperationalError("database is locked")

    connection = Refused()
    databases._prepare_sqlite(connection, None)
    assert connection.said.count("PRAGMA journal_mode = WAL") == 3
    assert connection.said[-1] == "PRAGMA foreign_keys = ON"


def test_a_server_that_grants_too_little_is_told_with_the_remedy(tmp_path, monkeypatch):
    """Users of PostgreSQL 15 and later may make no tables in a database of others: one sentence, tried once."""
    with postgresql(empty=True) as url:
        owner = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        with owner.connect() as connection:
            connection.execute(sa.text("CREATE ROLE guest LOGIN"))
        try:
            guest = url.set(username="guest").render_as_string(hide_password=False)
            monkeypatch.setenv("PARIBUS_DATABASE_URL", guest)
            with pytest.raises(StoreError, match=r"permission denied.*GRANT ALL ON SCHEMA public TO guest;") as caught:
                Store.open(tmp_path)
            assert not isinstance(caught.value, Unreachable)
        finally:
            with owner.connect() as connection:
                connection.execute(sa.text("DROP ROLE guest"))
            owner.dispose()
