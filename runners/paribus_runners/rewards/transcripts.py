"""Rewards of transcripts: word accuracy, and the one of DG-WGPO (Mega-ASR, arXiv 2605.19833, section 4.2).

Where nearly all words are wrong, 1 - WER is nearly the same for all of them, and a group of equal rewards has no
gradient. DG-WGPO grades how a transcript fails: word by word where WER is low, by what is left of the sentence where it
is high. In a study:

    reward: {kind: function, functions: {asr: paribus_runners.rewards.transcripts.dg_wgpo}}

The functions import nothing of Paribus, so that a run depends on this file alone. Words are what white space separates;
a function of yours can normalise texts or split them into characters, and call :func:`graded`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache
from operator import ne
from typing import NamedTuple

GATE, SOFT, DYNAMIC = 0.3, 0.4, 0.6
"""The paper's threshold of WER (0.5 in its appendix), weight of a soft error, and share of the dynamic part."""
GRAM, MOST = 3, 2
"""A transcript repeats itself if so many words in a row stand in it more often than that. These numbers are ours."""
LIKE = 0.5
"""Words that are at least so alike are a soft error."""


class Graded(NamedTuple):
    """What a transcript is worth.

    Attributes:
        wer: substitutions, deletions and insertions by the number of reference words; may exceed 1.
        repeats: whether it repeats itself.
        fine: right words by right words and errors, of which soft ones count less, in [0, 1].
        structure: what is left of the sentence, in [0, 1].
        reward: all of it, as DG-WGPO weighs it; at most 1, and below 0 where WER is far above 1.
    """

    wer: float
    repeats: bool
    fine: float
    structure: float
    reward: float


def word_accuracy(completions: Sequence[str], answer: Sequence[str]) -> list[float]:
    """Return 1 - WER of each response."""
    return [1 - graded(text.split(), right.split()).wer for text, right in zip(completions, answer, strict=True)]


def dg_wgpo(completions: Sequence[str], answer: Sequence[str]) -> list[float]:
    """Return the reward of DG-WGPO for each response."""
    return [graded(text.split(), right.split()).reward for text, right in zip(completions, answer, strict=True)]


def graded(
    words: Sequence[str], reference: Sequence[str], gate: float = GATE, soft: float = SOFT, dynamic: float = DYNAMIC
) -> Graded:
    """Grade a transcript.

    With C right words, H hard errors (deletions, insertions, substitutions by another word) and S soft errors
    (substitutions by a word whose edit distance is at most half of the longer one)::

        fine      = C / (C + H + soft * S)
        structure = LCS / (2 N) + max(0, 1 - |M - N| / N) / 2        M words, N in the reference
        both      = 0.75 fine + 0.25 structure, if WER < gate, else 0.25 fine + 0.75 structure
        reward    = (1 - dynamic) * (0 if it repeats itself, else 1 - WER) + dynamic * both

    Args:
        words: the transcript's words, or characters.
        reference: those of the reference.
        gate: WER from which the sentence counts more than its words.
        soft: weight of a soft error.
        dynamic: share of what depends on the gate.

    Raises:
        ValueError: the reference is empty.
    """
    if not reference:
        raise ValueError("the reference has no words")
    right, edits, hard = _aligned(words, reference)
    errors, wer, size = hard + soft * (edits - hard), edits / len(reference), len(reference)
    fine = right / (right + errors) if right else 0.0
    length = max(0.0, 1 - abs(len(words) - size) / size)
    structure = _common(words, reference) / (2 * size) + length / 2
    more = 0.75 if wer < gate else 0.25
    repeats = _repeats(words, reference)
    static = 0.0 if repeats else 1 - wer
    reward = (1 - dynamic) * static + dynamic * (more * fine + (1 - more) * structure)
    return Graded(wer, repeats, fine, structure, reward)


def _aligned(words: Sequence[str], reference: Sequence[str]) -> tuple[int, int, int]:
    """Return right words, errors, and hard errors of the alignment with the fewest errors.

    Of several, that with most right words, and then with the fewest hard errors.
    """
    unit = len(words) + len(reference) + 1
    right, hard, soft = -unit, unit * unit + 1, unit * unit  # one number orders by errors, right words, hard errors
    least = _least(words, reference, lambda a, b: right if a == b else soft if _alike(a, b) else hard, hard)
    edits, rest = divmod(least + unit * (unit - 1), unit * unit)
    kept, hard_errors = divmod(rest - unit * (unit - 1), unit)
    return -kept, edits, hard_errors


@lru_cache(maxsize=1 << 16)
def _alike(one: str, other: str) -> bool:
    return 1 - _least(one, other, ne, 1) / max(len(one), len(other)) >= LIKE


def _common(words: Sequence[str], reference: Sequence[str]) -> int:
    """Return the length of the longest common subsequence: what is left if nothing is substituted."""
    return (len(words) + len(reference) - _least(words, reference, lambda a, b: 2 * (a != b), 1)) // 2


def _least(one: Sequence[str], other: Sequence[str], pair: Callable[[str, str], int], gap: int) -> int:
    """Return the least cost of aligning two texts, by what a pair costs and what a gap does."""
    before = [gap * j for j in range(len(other) + 1)]
    for i, a in enumerate(one, 1):
        row = [gap * i]
        for j, b in enumerate(other, 1):
            row.append(min(before[j - 1] + pair(a, b), before[j] + gap, row[-1] + gap))
        before = row
    return before[-1]


def _repeats(words: Sequence[str], reference: Sequence[str]) -> bool:
    """Return whether words in a row stand in it too often, and more often than in the reference."""
    found, given = (Counter(tuple(x[i : i + GRAM]) for i in range(len(x) - GRAM + 1)) for x in (words, reference))
    return any(count > max(MOST, given[gram]) for gram, count in found.items())
