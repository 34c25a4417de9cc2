"""Rewards of transcripts: equal to a search through all alignments, and different where WER is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.recipe.factors import RewardFunction
from paribus_runners.rewards.transcripts import dg_wgpo, graded, word_accuracy
from paribus_runners.tasks import Chain, Grader, Problem

REFERENCE = "the quick brown fox jumps over the lazy dog"
WORDS = st.lists(st.sampled_from(["cat", "bat", "cart", "dog", "x"]), max_size=5)


def _alignments(words: Sequence[str], reference: Sequence[str]) -> Iterator[list[tuple[str, str]]]:
    """Yield every way to pair the words of two texts in order; an empty word stands for a gap."""
    if not words and not reference:
        yield []
    if words and reference:
        yield from ([(words[0], reference[0]), *rest] for rest in _alignments(words[1:], reference[1:]))
    if words:
        yield from ([(words[0], ""), *rest] for rest in _alignments(words[1:], reference))
    if reference:
        yield from ([("", reference[0]), *rest] for rest in _alignments(words, reference[1:]))


def _distance(one: str, other: str) -> int:
    return min(sum(a != b for a, b in pairs) for pairs in _alignments(one, other))


def _hard(pair: tuple[str, str]) -> bool:
    return "" in pair or _distance(*pair) > max(map(len, pair)) / 2


def _counts(pairs: Sequence[tuple[str, str]]) -> tuple[int, int, int]:
    wrong = [pair for pair in pairs if pair[0] != pair[1]]
    return len(wrong), len(wrong) - len(pairs), sum(_hard(pair) for pair in wrong)


def _subsequences(words: Sequence[str]) -> set[tuple[str, ...]]:
    return {found for n in range(len(words) + 1) for found in combinations(words, n)}


@given(WORDS, WORDS.filter(bool))
def test_it_is_the_reward_of_the_best_of_all_alignments(words: list[str], reference: list[str]) -> None:
    """Errors, right words and soft errors are those of a search; so are common words, and the sum of it all."""
    edits, wrong, hard = min(map(_counts, _alignments(words, reference)))
    found, size = graded(words, reference), len(reference)
    assert found.wer == edits / size
    fine = -wrong / (-wrong + hard + 0.4 * (edits - hard) + 1e-8)
    common = max(map(len, _subsequences(words) & _subsequences(reference)))
    structure = 0.5 * common / size + 0.5 * max(0, 1 - abs(len(words) - size) / size)
    both = 0.75 * fine + 0.25 * structure if edits / size < 0.3 else 0.25 * fine + 0.75 * structure
    static = 0.0 if found.repeats else 1 - edits / size
    assert found[2:] == pytest.approx((fine, structure, 0.4 * static + 0.6 * both), abs=1e-7)
    assert 0 <= found.fine <= 1
    assert 0 <= found.structure <= 1
    assert found.reward <= 1


def test_a_group_whose_word_errors_are_equal_still_has_a_gradient() -> None:
    """Silence, an invention and a whole sentence with another behind it have a WER of 1 each, and three rewards."""
    group = ["", "nobody asked for that", "turn left at noon and do not stop"]
    assert word_accuracy(group, ["turn left at noon"] * 3) == [0.0, 0.0, 0.0]
    assert all(after - before > 0.05 for before, after in pairwise(dg_wgpo(group, ["turn left at noon"] * 3)))


def test_a_word_that_sounds_alike_costs_less_than_another() -> None:
    """`box` for `fox` is a soft error; WER counts it as any other."""
    texts = [REFERENCE.replace("fox", other) for other in ("fox", "box", "zebra")]
    right, soft, hard = (graded(text.split(), REFERENCE.split()) for text in texts)
    assert soft.wer == hard.wer == 1 / 9
    assert (right.fine, soft.fine, hard.fine) == (1.0, pytest.approx(8 / 8.4), pytest.approx(8 / 9))
    assert right.reward == 1.0


def test_the_sentence_counts_more_from_the_gate_on() -> None:
    """A WER of 0.3 is not below 0.3."""
    reference = [f"w{i}{i}{i}" for i in range(10)]
    for wrong, more in ((2, 0.75), (3, 0.25), (4, 0.25)):
        found = graded(["other"] * wrong + reference[wrong:], reference)
        both = more * found.fine + (1 - more) * found.structure
        assert found.wer == wrong / 10
        assert found.reward == pytest.approx(0.4 * (1 - found.wer) + 0.6 * both)


def test_a_loop_has_no_static_reward_unless_the_reference_has_it_too() -> None:
    """Three words in a row that stand in it three times are a loop; that somebody said so is none."""
    loop, plain = ["go", "on", "and"] * 3, ["go", "on", "and", "stop", "it"]
    assert graded(loop, plain).repeats
    assert not graded(loop, loop).repeats
    assert graded(loop, loop).reward == 1.0
    assert not graded(loop[:6], plain).repeats


def test_without_a_reference_nothing_is_graded() -> None:
    """An empty reference is a mistake in the data: the call fails, and is counted."""
    with pytest.raises(ValueError, match="no words"):
        dg_wgpo(["some words"], [" "])


def test_workers_find_it_by_its_path() -> None:
    """A study names it as any function of the user."""
    function = RewardFunction(path="paribus_runners.rewards.transcripts.dg_wgpo", timeout_s=60.0)
    with Grader(Chain(), {"asr": function}) as grader:
        batch = grader.batch()
        batch.submit(Problem("p", "say it", REFERENCE), [REFERENCE, ""], [True, True])
        (group,) = batch.collect()
    assert group.rewards == [[1.0], [0.0]]
