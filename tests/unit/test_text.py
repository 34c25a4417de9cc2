"""How numbers stand with their nouns."""

import pytest

from paribus.text import every, listed, plural


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((1, "run"), "1 run"),
        ((0, "run"), "0 runs"),
        ((2000, "held-out problem"), "2,000 held-out problems"),
        ((1.0, "GPU"), "1 GPU"),
        ((0.5, "GPU"), "0.5 GPUs"),
        ((16.0, "GPU"), "16 GPUs"),
        ((2, "process"), "2 processes"),
        ((3, "minibatch"), "3 minibatches"),
        ((2, "study"), "2 studies"),
        ((2, "try"), "2 tries"),
        ((2, "day"), "2 days"),
        ((1, "run is", "runs are"), "1 run is"),
        ((2, "run is", "runs are"), "2 runs are"),
    ],
)
def test_a_noun_follows_its_number(arguments, text):
    """One thing is singular; a verb comes with both forms."""
    assert plural(*arguments) == text


def test_every_first_thing_has_no_number():
    """Not `every 1 steps`."""
    assert (every(1, "step"), every(20, "step")) == ("every step", "every 20 steps")


@pytest.mark.parametrize(
    ("items", "text"), [([], "nothing"), (["a"], "a"), (["a", "b"], "a and b"), (iter("abc"), "a, b and c")]
)
def test_the_last_of_several_stands_behind_and(items, text):
    """Commas stand between the others."""
    assert listed(items) == text
