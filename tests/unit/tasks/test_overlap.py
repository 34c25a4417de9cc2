"""Overlap of training and evaluation, against the definition."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from paribus_runners.tasks.overlap import COMMON, GRAM, overlap

WORDS = st.sampled_from(["a", "B", "b,", "c.", "d"])
TEXT = st.lists(WORDS, min_size=1, max_size=18).map(" ".join)
TEXTS = st.lists(TEXT, max_size=16)


def runs_of_words(text: str) -> list[str]:
    """Return every thirteen words in a row."""
    words = re.findall(r"\w+", text.lower())
    return [" ".join(words[i : i + GRAM]) for i in range(len(words) - GRAM + 1)]


@given(TEXTS, TEXTS)
def test_it_is_what_the_definition_says(train: list[str], heldout: list[str]) -> None:
    """Whole texts up to case and space; words in a row that are in one to ten training problems."""
    found = overlap(train, heldout)
    same = {
        i for i, a in enumerate(heldout) for b in train if " ".join(a.lower().split()) == " ".join(b.lower().split())
    }
    assert found.exact.keys() == same
    shared = set()
    for i, text in enumerate(heldout):
        for gram in runs_of_words(text):
            if 1 <= sum(gram in runs_of_words(other) for other in train) <= COMMON:
                shared.add(i)
    assert found.grams.keys() == shared - same
    for i, (k, words) in found.grams.items():
        assert words in runs_of_words(heldout[i])
        assert words in runs_of_words(train[k])


def test_signs_and_numbers_tell_problems_apart() -> None:
    """Short problems are compared whole, with their signs."""
    assert overlap(["What is 2 + 3?"], ["What is 2 - 3?", "what is  2 + 3?"]).exact == {1: 0}


def test_common_wording_is_no_overlap() -> None:
    """An instruction around every problem marks none; a problem that was copied is still found."""
    frame = "Solve the following math problem step by step and put your answer on the last line of it: {}"
    story = "Ann picked {} apples on Monday and gave a third of them to her two brothers before she went home again"
    train = [frame.format(f"what is {i} and {i}?") for i in range(COMMON + 1)]
    assert not overlap(train, [frame.format("what is 99 and 1?")]).grams
    found = overlap([*train, story.format(12)], [frame.format(story.format(15))])
    assert found.grams == {0: (COMMON + 1, "apples on monday and gave a third of them to her two brothers")}


def test_many_problems_take_seconds() -> None:
    """Each text is looked at once: 17,000 against 1,000 problems of 60 words."""
    train = [" ".join(f"w{i * 7 + k}" for k in range(60)) for i in range(17_000)]
    heldout = [" ".join(f"w{i * 700 + k + 3}" for k in range(60)) for i in range(1_000)]
    assert len(overlap(train, heldout).grams) > 150
