"""What a group of responses says in numbers, and in which order groups are listed."""

from __future__ import annotations

import pytest

from paribus.run_folder.folder import Evaluation
from paribus.run_folder.samples import Sample
from paribus_dashboards.data.groups import Group, counted, grouped, in_order, repetition


def _group(problem: str, *rewards: float | None, text: str = "word", tokens: int | None = None) -> Group:
    samples = [
        Sample(step=1, set="train", problem=problem, prompt="", response=text, number=i, reward=r, tokens=tokens)
        for i, r in enumerate(rewards)
    ]
    return grouped(samples)[0]


GROUPS = (
    _group("looping", 0.5, text="round and round we go " * 9),
    _group("learning", 0.0, 1.0, tokens=99),
    _group("solved", 1.0, 1.0, tokens=3),
    _group("unscored", None, text="a b c d e f g h i j"),
)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("recorded", "looping learning solved unscored"),
        ("zero_variance", "solved learning looping unscored"),
        ("spread", "learning solved looping unscored"),
        ("length", "looping learning unscored solved"),
        ("repetition", "looping unscored learning solved"),
    ],
)
def test_orders_put_what_there_is_most_of_first(order: str, expected: str) -> None:
    """Each order has the groups with most of it first, and last those of which it is not known."""
    assert [g.problem for g in in_order(GROUPS, order)] == expected.split()  # type: ignore[arg-type] # of the list


def test_evaluation_speaks_for_responses_without_text() -> None:
    """Spread, mean and length are those of all responses that were counted, not of the one that was kept."""
    evaluation = Evaluation(
        step=0, set="heldout", samples=4, problems=("p", "q"), correct=(1, 4), truncated=(2, 0), tokens=(40, 8),
        tokens_correct=(5, 8), answers=({"": 2, "7": 1, "8": 1}, {"5": 4}), right=(("7",), ("5",)),
    )  # fmt: skip
    kept = _group("p", None, tokens=99)
    group = Group(problem="p", prompt="", samples=kept.samples, counted=counted(evaluation, 0))
    assert (group.mean, group.flat, group.length) == (0.25, False, (10.0, "tokens"))
    assert group.spread == pytest.approx(0.75**0.5 / 2)
    assert group.counted is not None
    assert group.counted.answers[0] == ("", 2)
    assert Group(problem="q", prompt="", samples=(), counted=counted(evaluation, 1)).flat


def test_repetition_is_the_share_of_runs_that_came_before() -> None:
    """Distinct words repeat nothing, one word over and over nearly everything, and short texts have no value."""
    assert repetition(" ".join("abcdefghij")) == 0.0
    assert repetition("no " * 23) == pytest.approx(1 - 1 / 20)
    assert repetition("aaaaaaaaaaaaaaaaaaaaaaa") == pytest.approx(1 - 1 / 20)
    assert repetition("too short") == 0.0
    assert repetition("a b") is None
