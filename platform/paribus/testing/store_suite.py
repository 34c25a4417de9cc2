"""The conformance suite of stores: subclass :class:`StoreTestCase`, set ``open``, and let pytest run it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from paribus.contract import Runner
from paribus.errors import LostLease, StoreError
from paribus.store.attempts import PROGRAM_TRIES
from paribus.store.control import SAME_FAILURES
from paribus.store.models import Claim, StudyRecord
from paribus.store.remarks import Change, Subject
from paribus.store.states import RunState
from paribus.store.store import Store
from paribus.store.transitions import LEASE_S
from paribus.study.expand import make_plan
from paribus.study.load import load_study
from paribus.testing.fake_runner import FakeRunner

_STUDY = """\
study: {name}
runner: fake
base: {{preset: grpo, set: {{schedule.steps: {steps}}}}}
tricks: {{one: {{clip.high: 0.3}}, two: {{clip.high: 0.35}}, three: {{clip.high: 0.4}}}}
designs: {{add: {{kind: add_one}}}}
seeds: {{n: 1}}
budget: {{gpu_hours: {gpu_hours}, run_hours: {run_hours}}}
"""

_STALE_CALLS: tuple[Callable[[Store, int, int], object], ...] = (
    lambda s, run, token: s.start(run, token),
    lambda s, run, token: s.renew(run, token),
    lambda s, run, token: s.finish(run, token, {"status": "succeeded"}),
    lambda s, run, token: s.release(run, token, "late"),
    lambda s, run, token: s.fail(run, token, "program", "late", "signature"),
    lambda s, run, token: s.fail(run, token, "infrastructure", "late"),
    lambda s, run, token: s.cancelled(run, token),
)


class Clock:
    """A clock that only a test moves, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class StoreTestCase:
    """What every store must do.

    Set :attr:`open`: it opens the store of a home folder on a given clock, and creates it at the first call.
    """

    open: Callable[[Path, Clock], Store]

    @pytest.fixture
    def clock(self) -> Clock:
        """A clock that stands still."""
        return Clock()

    @pytest.fixture
    def store(self, tmp_path: Path, clock: Clock) -> Iterator[Store]:
        """An empty store."""
        with type(self).open(tmp_path, clock) as store:
            yield store

    def submit(
        self, store: Store, name: str = "small", *, steps: int = 4, gpu_hours: float = 100.0, run_hours: float = 1.0
    ) -> StudyRecord:
        """Submit a study of four arms with one seed each; studies with equal ``steps`` share their runs."""
        file = store.home / f"{name}.yaml"
        file.write_text(_STUDY.format(name=name, steps=steps, gpu_hours=gpu_hours, run_hours=run_hours))
        return store.add_study(make_plan(load_study(file), cast(Runner, FakeRunner())))

    def claim(self, store: Store, study: StudyRecord) -> Claim | None:
        """Claim the next run on one GPU, and start it."""
        claim = store.claim(study.id, engine="test", worker="here", gpus=1.0)
        if claim is not None:
            store.start(claim.run_id, claim.token)
        return claim

    def started(self, store: Store, study: StudyRecord) -> Claim:
        """As :meth:`claim`, where a run is ready."""
        claim = self.claim(store, study)
        assert claim is not None
        return claim

    def states(self, store: Store, study: StudyRecord) -> list[str]:
        """Return the states of a study's runs in queue order."""
        return [str(run.state) for run in store.runs_of(study.id)]

    # ---- remarks ---------------------------------------------------------------------------------

    def test_notes_and_tags_are_kept_with_their_authors(self, store: Store) -> None:
        """What holds is the sum of all changes; a run's are those of every study that shares it."""
        study, other = self.submit(store), self.submit(store, "other")
        run = Subject(run=store.runs_of(study.id)[0].fingerprint)
        store.remark(run, Change(note="first", add=("odd", "big")), "ada")
        about = store.remark(run, Change(note="second", remove=("big",)), "bob")
        assert (about.note, about.author, about.tags) == ("second", "bob", ("odd",))
        assert store.about_runs(study.id) == store.about_runs(other.id) == {run.run: about}
        assert [(line.author, line.kind) for line in store.remarks(run)] == [
            ("ada", "note"), ("ada", "tag"), ("ada", "tag"), ("bob", "note"), ("bob", "untag"),
        ]  # fmt: skip
        store.remark(store.subject("other"), Change(archived=True), "ada")
        assert {name for name, its in store.about_studies().items() if its.archived} == {"other"}
        with pytest.raises(StoreError):
            store.remark(Subject(study="gone"), Change(note="n"), "ada")

    # ---- claims ----------------------------------------------------------------------------------

    def test_a_plan_is_stored_once(self, store: Store) -> None:
        """Submitting the same plan again adds no study and no run."""
        first, again = self.submit(store), self.submit(store)
        assert (again.id, again.plan) == (first.id, first.plan)
        assert self.states(store, first) == ["QUEUED"] * 4
        assert [event.move for event in store.events_of(store.runs_of(first.id)[0].id)] == ["submit"]

    def test_runs_are_claimed_in_queue_order(self, store: Store) -> None:
        """Each claim has the token 1 and a submit name of its own; then nothing is left."""
        study = self.submit(store)
        claims = [self.started(store, study) for _ in range(4)]
        assert [c.run_id for c in claims] == [r.id for r in store.runs_of(study.id)]
        assert {c.token for c in claims} == {1}
        assert len({c.submit_name for c in claims}) == 4
        assert self.claim(store, study) is None

    def test_simultaneous_claims_take_different_runs(self, store: Store, clock: Clock) -> None:
        """Two schedulers claim as fast as they can: each run goes to exactly one of them."""
        study, found, gate = self.submit(store), list[Claim](), threading.Barrier(2)

        def work() -> None:
            with type(self).open(store.home, clock) as mine:
                gate.wait()
                while (claim := self.claim(mine, study)) is not None:
                    found.append(claim)

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(c.run_id for c in found) == [r.id for r in store.runs_of(study.id)]

    def test_studies_share_runs(self, store: Store) -> None:
        """A run of two studies is trained once, and both see its result."""
        one, two = self.submit(store, "one"), self.submit(store, "two")
        claim = self.started(store, one)
        store.finish(claim.run_id, claim.token, {"status": "succeeded"})
        assert self.states(store, one) == self.states(store, two) == ["SUCCEEDED", *["QUEUED"] * 3]
        assert self.started(store, two).run_id != claim.run_id

    # ---- results and stale attempts --------------------------------------------------------------

    def test_a_run_has_one_result(self, store: Store) -> None:
        """The same result again is accepted; another result, or one of an earlier attempt, is refused."""
        study = self.submit(store)
        old = self.started(store, study)
        store.release(old.run_id, old.token, "interrupted")
        new = self.started(store, study)
        assert (new.run_id, new.token) == (old.run_id, 2)
        with pytest.raises(LostLease):
            store.finish(old.run_id, old.token, {"score": 1})
        store.finish(new.run_id, new.token, {"score": 2})
        store.finish(new.run_id, new.token, {"score": 2})
        for token, score in ((2, 3), (1, 2)):
            with pytest.raises(LostLease):
                store.finish(new.run_id, token, {"score": score})
        result = store.result(new.fingerprint)
        assert result is not None
        assert (result.token, result.payload) == (2, {"score": 2})

    def test_a_silent_attempt_loses_its_run(self, store: Store, clock: Clock) -> None:
        """With heartbeats it keeps the run. Without them the run is queued again under a new token."""
        study = self.submit(store)
        claim = self.started(store, study)
        clock.now += LEASE_S - 1
        store.renew(claim.run_id, claim.token)
        clock.now += LEASE_S - 1
        assert store.expire() == ()
        clock.now += 2
        assert [a.token for a in store.expire()] == [1]
        with pytest.raises(LostLease):
            store.renew(claim.run_id, claim.token)
        assert self.started(store, study).token == 2

    @pytest.mark.parametrize("call", _STALE_CALLS)
    def test_a_stale_attempt_changes_nothing(
        self, store: Store, clock: Clock, call: Callable[[Store, int, int], object]
    ) -> None:
        """Every call of an attempt that lost its run is refused: while it is queued, held by another, and ended."""
        study = self.submit(store)
        old = self.started(store, study)
        clock.now += LEASE_S + 1
        store.expire()
        self._refused(store, study, old, call)
        new = self.started(store, study)
        self._refused(store, study, old, call)
        store.finish(new.run_id, new.token, {"score": 1})
        self._refused(store, study, old, call)

    def _refused(self, store: Store, study: StudyRecord, old: Claim, call: Callable[..., object]) -> None:
        def rows() -> tuple[Any, ...]:
            return store.runs_of(study.id), store.attempts_of(study.id), store.events_of(old.run_id)

        before = rows()
        for token in (old.token, 0, old.token + 7):
            with pytest.raises(LostLease):
                call(store, old.run_id, token)
        assert rows() == before

    # ---- failures --------------------------------------------------------------------------------

    def test_a_failing_program_is_quarantined(self, store: Store) -> None:
        """The run is retried, then it waits for a person with the reason and the signature of its failure."""
        study = self.submit(store)
        for tries in range(1, PROGRAM_TRIES + 1):
            claim = self.started(store, study)
            state = store.fail(claim.run_id, claim.token, "program", "ValueError: 3", "ValueError: #")
            assert state is (RunState.QUARANTINED if tries == PROGRAM_TRIES else RunState.QUEUED)
        run = store.runs_of(study.id)[0]
        assert (run.reason, run.signature, run.program_failures) == ("ValueError: 3", "ValueError: #", PROGRAM_TRIES)

    def test_the_same_failure_in_several_arms_pauses_the_study(self, store: Store) -> None:
        """Nothing more is claimed until a retry; live runs and other studies go on."""
        study = self.submit(store)
        live, *claims = [self.started(store, study) for _ in range(SAME_FAILURES + 1)]
        other = self.submit(store, "other", steps=5)
        for claim in claims:
            assert store.paused(study.id) == ""
            store.fail(claim.run_id, claim.token, "program", "ValueError: 3", "ValueError: #")
        assert store.paused(study.id) == f"{SAME_FAILURES} arms failed with the same error: ValueError: 3"
        assert store.paused(other.id) == ""
        assert self.claim(store, study) is None
        assert self.claim(store, other) is not None
        store.renew(live.run_id, live.token)
        assert store.retry("small", author="ada", reason="fixed").lifted
        assert self.claim(store, study) is not None

    # ---- cancel and retry ------------------------------------------------------------------------

    def test_a_cancelled_run_may_still_finish(self, store: Store) -> None:
        """Queued runs are cancelled at once; a live one at its next heartbeat, unless it finishes first."""
        study = self.submit(store)
        first, second = self.started(store, study), self.started(store, study)
        done = store.cancel("small")
        assert (done.queued, done.running, done.shared, done.ended) == (2, 2, 0, 0)
        assert store.renew(first.run_id, first.token).cancel
        store.finish(first.run_id, first.token, {})
        store.cancelled(second.run_id, second.token)
        assert self.states(store, study) == ["SUCCEEDED", *["CANCELLED"] * 3]

    def test_cancelling_leaves_the_runs_of_other_studies(self, store: Store) -> None:
        """A shared run goes on until no study needs it."""
        one, two = self.submit(store, "one"), self.submit(store, "two")
        live = self.started(store, one)
        done = store.cancel("one")
        assert (done.queued, done.running, done.shared) == (0, 0, 4)
        assert not store.renew(live.run_id, live.token).cancel
        assert self.states(store, one) == ["CANCELLED"] * 4
        assert store.counts(one.id) == {RunState.CANCELLED: 4}
        assert self.states(store, two) == ["RUNNING", *["QUEUED"] * 3]
        assert self.claim(store, one) is None
        assert self.claim(store, two) is not None
        both = store.cancel("two")
        assert (both.queued, both.running, both.shared) == (2, 2, 0)
        assert store.renew(live.run_id, live.token).cancel

    def test_a_retry_starts_a_new_generation(self, store: Store) -> None:
        """Runs without a result are queued again with no failures counted; results and old attempts stay."""
        study = self.submit(store)
        good = self.started(store, study)
        store.finish(good.run_id, good.token, {})
        for _ in range(PROGRAM_TRIES):
            bad = self.started(store, study)
            store.fail(bad.run_id, bad.token, "program", "why", "signature")
        done = store.retry("small", author="ada", reason="the disk was full")
        assert (done.queued, done.kept, done.lifted) == (1, 0, False)
        run = store.runs_of(study.id)[1]
        assert (run.state, run.program_failures, run.signature) == (RunState.QUEUED, 0, "")
        assert store.events_of(run.id)[-1].reason == "retried by ada: the disk was full"
        again = self.started(store, study)
        assert (again.run_id, again.token) == (run.id, PROGRAM_TRIES + 1)
        assert len(store.attempts_of(study.id)) == PROGRAM_TRIES + 2
        assert store.retry("small", author="ada", reason="").queued == 0
        assert self.states(store, study)[0] == "SUCCEEDED"

    def test_only_a_known_study_is_retried(self, store: Store) -> None:
        """The message says which studies exist."""
        with pytest.raises(StoreError, match="there is no study `none`"):
            store.retry("none", author="ada", reason="")

    # ---- budget ----------------------------------------------------------------------------------

    def test_a_claim_reserves_and_an_end_settles(self, store: Store, clock: Clock) -> None:
        """The reservation ends with the attempt, which is charged for the time that it held its GPU."""
        study = self.submit(store)
        claim = self.started(store, study)
        assert store.budget("small", "gpu").reserved == 3600.0
        clock.now += 50
        store.finish(claim.run_id, claim.token, {})
        budget = store.budget("small", "gpu")
        assert (budget.reserved, budget.spent, budget.wasted, budget.results) == (0.0, 50.0, 0.0, 1)
        lost = self.started(store, study)
        clock.now += 10 * LEASE_S
        store.expire()
        assert store.budget("small", "gpu").wasted == LEASE_S
        assert lost.token == 1

    def test_claims_stay_within_the_budget(self, store: Store, clock: Clock) -> None:
        """Reserved and spent hours together stay below the limit; an attempt that needed less makes room."""
        study = self.submit(store, gpu_hours=2.0, run_hours=0.8)
        first, _ = self.started(store, study), self.started(store, study)
        assert self.claim(store, study) is None
        clock.now += 30
        store.renew(first.run_id, first.token)
        store.finish(first.run_id, first.token, {})
        assert self.claim(store, study) is not None
