"""Many supervisors report at once: they share transactions, and none of them notices the others."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from paribus.audit.invariants import audit
from paribus.audit.snapshot import snapshot
from paribus.errors import StoreError
from paribus.rpc.handler import RpcHandler
from paribus.store.database import Unreachable
from paribus.store.states import RunState
from paribus.store.store import Store
from support.plans import small_plan

RUNS = 12


class Case:
    """A store with claims that wait for their supervisors' first word, and a handler."""

    def __init__(self, home):
        self.store = Store.open(home)
        self.study = self.store.add_study(small_plan(seeds=RUNS // 2))
        self.claims = self.store.claim_many(self.study.id, RUNS, engine="test", worker="here")
        self.handler = RpcHandler(self.store)
        self.commits = []
        sa.event.listen(self.store.database.engine, "commit", lambda _: self.commits.append(1))

    @contextmanager
    def asking(self, requests):
        """Yield what becomes of requests, all of which wait while the first is answered."""
        with ThreadPoolExecutor(len(requests)) as pool, self.handler._writing:
            answers = [pool.submit(self.handler.answer, request) for request in requests]
            while len(self.handler._waiting) < len(requests):
                threading.Event().wait(0.001)
            self.commits.clear()
            yield answers

    def requests(self, do="start", **more):
        """Return the same request from each supervisor."""
        return [{"do": do, "run": c.run_id, "token": c.token, **more} for c in self.claims]


@pytest.fixture
def case(tmp_path):
    """A case."""
    made = Case(tmp_path)
    yield made
    made.store.close()


def test_those_who_wait_share_one_transaction(case):
    """Each gets its own answer, a stale one that it has lost its run; log and ledger are those of single calls."""
    stale = {**case.requests("renew")[0], "token": 0}
    with case.asking([*case.requests(), stale]) as answers:
        pass
    assert [a.result()["ok"] for a in answers] == [True] * RUNS + [False]
    assert answers[-1].result()["lost"] is True
    assert len(case.commits) == 1
    with case.asking(case.requests("finish", payload={"score": 1}, stopped_early=False)) as answers:
        pass
    assert all(a.result() == {"ok": True} for a in answers)
    assert len(case.commits) == 1
    assert case.store.counts(case.study.id) == {RunState.SUCCEEDED: RUNS}
    assert audit(snapshot(case.store, folders=False)) == ()


def test_nonsense_among_them_harms_nobody_else(case):
    """It gets its error; the others are answered one by one."""
    with case.asking([*case.requests(), {"do": "finish", "run": 1, "token": 1}]) as answers:
        pass
    assert all(a.result()["ok"] for a in answers[:-1])
    assert isinstance(answers[-1].exception(), KeyError)
    assert case.store.counts(case.study.id) == {RunState.RUNNING: RUNS}


def test_nobody_is_answered_before_the_disk_has_it(case):
    """If the transaction cannot be committed, all who share it are refused, and nothing of it has happened."""

    def full(_):
        raise sa.exc.OperationalError("COMMIT", {}, Exception("disk full"))

    sa.event.listen(case.store.database.engine, "commit", full)
    with case.asking(case.requests()) as answers:
        pass
    assert all(isinstance(a.exception(), StoreError) for a in answers)
    sa.event.remove(case.store.database.engine, "commit", full)
    assert case.store.counts(case.study.id) == {RunState.LEASED: RUNS}


def test_an_answer_that_is_lost_on_the_way_from_the_database_is_asked_for_again(case, monkeypatch):
    """The group was committed: all who share it are told so, none that it has lost its run."""
    together, lost = case.store.database.transaction, []

    @contextmanager
    def losing(**options):
        with together(**options):
            yield
        if not lost:
            lost.append(True)
            raise Unreachable("the answer was lost")

    monkeypatch.setattr(case.store.database, "transaction", losing)
    for requests in (case.requests(), case.requests("release", reason="interrupted", wait_s=0.0)):
        lost.clear()
        with case.asking(requests) as answers:
            pass
        assert lost
        assert all(a.result()["ok"] for a in answers)
    assert case.store.counts(case.study.id) == {RunState.QUEUED: RUNS}
    assert audit(snapshot(case.store, folders=False)) == ()


def test_a_closed_handler_refuses(case):
    """What is under way has been answered; later requests go to the next scheduler."""
    case.handler.close()
    with pytest.raises(StoreError, match="the scheduler has ended"):
        case.handler.answer(case.requests()[0])
    assert case.store.counts(case.study.id) == {RunState.LEASED: RUNS}


def test_a_report_that_cannot_be_recorded_is_answered_and_spoils_no_other(case):
    """Its supervisor need not ask until its lease is over; those that share its transaction are recorded."""
    with case.asking(case.requests()):
        pass
    bad, *good = case.requests("finish", payload={"score": 1}, stopped_early=False)
    with case.asking([bad | {"payload": None}, *good]) as answers:
        pass
    assert all(a.result() == {"ok": True} for a in answers)
    assert case.store.counts(case.study.id) == {RunState.QUEUED: 1, RunState.SUCCEEDED: RUNS - 1}
