"""The table of transitions says what it should."""

from paribus.store.states import LIVE, RECORDED, TERMINAL, TRANSITIONS, Move, RunState, states_page, target_of


def test_terminal_states_are_never_left():
    """Nothing moves a run out of a terminal state."""
    assert not [t for t in TRANSITIONS if t.source in TERMINAL]
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
    assert free == {Move.EXPIRE, Move.ABANDON}


def test_the_page_lists_every_transition():
    """The generated documentation has one row a transition."""
    assert states_page().count("\n| `") == len(TRANSITIONS)
