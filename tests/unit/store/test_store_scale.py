"""What a claim costs does not depend on how large its study is, or on how much of it is done."""

import pytest
import sqlalchemy as sa

from paribus.errors import LostLease
from paribus.store import tables as t
from paribus.store.database import Database, file_url
from paribus.store.migrate import HEAD, run_alembic
from paribus.store.states import LIVE, RunState
from paribus.store.store import Store
from support.databases import postgresql
from support.plans import small_plan


def finish_next(store, study):
    """Claim, start and finish a run; return its id."""
    claim = store.claim(study.id, engine="test", worker="here")
    store.start(claim.run_id, claim.token)
    store.finish(claim.run_id, claim.token, {"status": "succeeded"})
    return claim.run_id


def marked(store):
    """Return (study, run) of the links that claims pass over."""
    links = sa.select(t.study_run.c.study_id, t.study_run.c.run_id).where(t.study_run.c.recorded)
    with store.database.read() as connection:
        return {tuple(row) for row in connection.execute(links)}


def test_a_result_marks_the_run_in_all_studies(store):
    """Every link to a run with a result is marked, also of a study that asks for it later; no other link is."""
    one, two = store.add_study(small_plan("one")), store.add_study(small_plan("two"))
    done = finish_next(store, one)
    failed = store.claim(one.id, engine="test", worker="here")
    store.start(failed.run_id, failed.token)
    store.fail(failed.run_id, failed.token, "program", "it broke")
    three = store.add_study(small_plan("three", seeds=3))
    assert marked(store) == {(study.id, done) for study in (one, two, three)}


@pytest.fixture
def statements(store):
    """The statements that a claim sends, each with how the database goes about it."""
    study = store.add_study(small_plan(arms=10, seeds=100))
    finish_next(store, study)
    sent = []

    def note(connection, cursor, statement, parameters, context, many):
        if statement.startswith("SELECT run.id"):
            asking = cursor.connection.cursor()
            asking.execute(f"EXPLAIN {'QUERY PLAN ' if store.database.embedded else ''}{statement}", parameters)
            sent.append("\n".join(str(row[-1]) for row in asking.fetchall()))

    sa.event.listen(store.database.engine, "before_cursor_execute", note)
    assert store.claim(study.id, engine="test", worker="here") is not None
    return sent


def test_a_claim_sorts_nothing(statements):
    """The next run is found by an index in queue order, on a server right after the study was submitted, too."""
    assert len(statements) == 1
    assert "ix_study_run_open" in statements[0]
    for word in ("Sort", "ORDER BY", "Bitmap", "SCAN run", "SCAN study_run"):
        assert word not in statements[0]


def test_a_heartbeat_does_not_wait_for_the_disk(tmp_path):
    """A claim and a result are on the disk when the call returns; that an attempt lives need not be."""
    database = Database(file_url(tmp_path))
    run_alembic(database, "upgrade", HEAD)
    with Store(database, tmp_path) as store:
        study = store.add_study(small_plan())
        levels = []
        sa.event.listen(
            database.engine, "commit", lambda c: levels.append(c.exec_driver_sql("PRAGMA synchronous").scalar())
        )
        claim = store.claim(study.id, engine="test", worker="here")
        store.start(claim.run_id, claim.token)
        store.renew(claim.run_id, claim.token)
        store.finish(claim.run_id, claim.token, {})
    full, normal = 2, 1
    assert levels == [full, normal, normal, full]


def test_a_server_is_not_waited_for_by_a_heartbeat(store):
    """Only a renewal leaves the flush to the server: a start that it forgot would make it refuse the result."""
    if store.database.embedded:
        pytest.skip("the test above looks at the file")
    study = store.add_study(small_plan())
    levels = []
    sa.event.listen(
        store.database.engine, "commit",
        lambda c: levels.append(c.exec_driver_sql("SHOW synchronous_commit").scalar()),
    )  # fmt: skip
    claim = store.claim(study.id, engine="test", worker="here")
    store.start(claim.run_id, claim.token)
    store.renew(claim.run_id, claim.token)
    store.finish(claim.run_id, claim.token, {})
    assert levels == ["on", "on", "off", "on"]


def test_transactions_that_are_one_are_kept_or_lost_together(store):
    """They wait for the disk once; an error takes all of them back, and the next ones are on their own again."""
    study = store.add_study(small_plan())
    commits = []
    sa.event.listen(store.database.engine, "commit", lambda _: commits.append(1))
    one, two = store.claim_many(study.id, 2, engine="test", worker="here")
    with store.database.transaction():
        store.start(one.run_id, one.token)
        store.finish(one.run_id, one.token, {})
        store.renew(two.run_id, two.token)
    assert len(commits) == 2

    def refused():
        with store.database.transaction():
            store.start(two.run_id, two.token)
            store.start(one.run_id, one.token)  # it has ended

    with pytest.raises(LostLease):
        refused()
    assert [r.state for r in store.runs_of(study.id)[:2]] == ["SUCCEEDED", "LEASED"]
    store.start(two.run_id, two.token)
    assert store.counts(study.id) == {"SUCCEEDED": 1, "RUNNING": 1, "QUEUED": 2}


def test_pages_hold_every_run_once_as_its_study_sees_it(store):
    """In queue order; by state, what another study goes on with is cancelled for the one that has cancelled it."""
    study = store.add_study(small_plan(seeds=3))
    other = store.add_study(small_plan("other", seeds=3))
    finish_next(store, other)
    store.cancel("small", "arm1")
    pages = [store.runs_page(study.id, first, 4) for first in (0, 4, 8)]
    assert [len(p) for p in pages] == [4, 2, 0]
    assert pages[0] + pages[1] == store.runs_of(study.id)
    cancelled = store.runs_page(study.id, 0, 4, [RunState.CANCELLED])
    assert [r.arm for r in cancelled] == ["arm1"] * 3
    assert len(cancelled) == store.counts(study.id)[RunState.CANCELLED]


def test_a_study_is_finished_when_nothing_of_it_goes_on_for_it(store):
    """As the counts say it, without counting."""
    study = store.add_study(small_plan())
    store.add_study(small_plan("other"))
    assert store.summaries([study.id])[0].open
    finish_next(store, study)
    store.cancel("small")
    assert not store.summaries([study.id])[0].open
    assert set(store.counts(study.id)) == {"SUCCEEDED", "CANCELLED"}


def test_runs_can_be_asked_for_by_state(store):
    """The live runs of a study are found without the others, and the tally counts every run once."""
    study = store.add_study(small_plan())
    finish_next(store, study)
    claim = store.claim(study.id, engine="test", worker="here")
    assert [r.id for r in store.runs_of(study.id, LIVE)] == [claim.run_id]
    tally = store.counts_by_arm(study.id)
    assert sum(tally.values()) == len(study.plan.runs)
    assert tally == {
        ("arm0", "SUCCEEDED"): 1,
        ("arm1", "LEASED"): 1,
        ("arm0", "QUEUED"): 1,
        ("arm1", "QUEUED"): 1,
    }


def test_a_server_is_asked_for_any_number_of_results():
    """A report of more runs than a server takes values in one statement is made like any other."""
    with postgresql() as url, Store(Database(url), None) as store:
        study = store.add_study(small_plan(arms=1, seeds=1))
        claim = store.claim(study.id, engine="test", worker="here")
        store.start(claim.run_id, claim.token)
        store.finish(claim.run_id, claim.token, {"status": "succeeded"})
        asked = [*(f"{number:064x}" for number in range(0xFFFF)), claim.fingerprint]
        assert [*store.results(asked)] == [claim.fingerprint]
