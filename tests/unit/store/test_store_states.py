"""The table of transitions says what it should."""

from paribus.store.states import (
    LIVE,
    RECORDED,
    TERMINAL,
    TRANSITIONS,
    Condition,
    Move,
    RunState,
    target_of,
)
from paribus.store.transitions import CONDITIONS


def test_terminal_states_are_left_only_when_somebody_asks():
    """Nothing moves a run out of a terminal state by itself, and nothing at all out of one with a result."""
    assert {t.move for t in TRANSITIONS if t.source in TERMINAL} == {Move.RERUN}
    assert not [t for t in TRANSITIONS if t.source in RECORDED]
    assert set(RECORDED) < set(TERMINAL)


def test_every_state_is_reached_and_every_move_is_used():
    """The table has no state or move that nothing leads to."""
    reached = {RunState.PLANNED}
    while new := {t.target for t in TRANSITIONS if t.source in reached} - reached:
        reached |= new
    assert reached == set(RunState)
    assert {t.move for t in TRANSITIONS} == set(Move)


def test_a_move_from_a_state_leads_to_one_state():
    """The table is a function."""
    pairs = [(t.move, t.source) for t in TRANSITIONS]
    assert len(pairs) == len(set(pairs))
    assert target_of(Move.START, RunState.LEASED) is RunState.RUNNING
    assert target_of(Move.START, RunState.QUEUED) is None


def test_all_that_an_attempt_does_is_fenced():
    """From a live state, only the end of a lease needs no token."""
    free = {t.move for t in TRANSITIONS if t.source in LIVE and not t.fenced}
    assert free == {Move.EXPIRE, Move.ABANDON, Move.LAPSE}
    assert all(Condition.LEASE_OVER in t.conditions for t in TRANSITIONS if t.move in free)


def test_a_request_to_cancel_is_never_forgotten():
    """Whatever puts a live run back into the queue by itself asks first whether somebody wants it cancelled."""
    back = [t for t in TRANSITIONS if t.source in LIVE and t.target is RunState.QUEUED]
    assert {t.move for t in back} == {Move.RELEASE, Move.RETRY, Move.EXPIRE}
    assert all(Condition.CANCEL_NOT_ASKED in t.conditions for t in back)


def test_every_condition_has_its_sql():
    """The table and the guards cannot differ."""
    assert set(CONDITIONS) == set(Condition)
    assert {c for t in TRANSITIONS for c in t.conditions} == set(Condition)
