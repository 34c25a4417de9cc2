"""Verifiers: each takes a response with the reference and returns a :class:`Verdict`."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import NamedTuple

from paribus_runners.rewards.pool import Worker

_CHAIN_ANSWER = re.compile(r"#(\d)$")
_SEARCH_TRIES = re.compile(r"(?:[a-h]\d[a-h]\d\d\d)+")
_SEARCH_TRY = 6
_DIGIT_OF_LETTER = re.compile(r"([a-h])(\d)")
_WHOLE = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)"  # a comma separates groups of three digits, and nothing else
_NUMBER = re.compile(rf"-?{_WHOLE}(?:\.\d+)?|-?\.\d+")
_DECIMAL = re.compile(rf"[-+]?(?:{_WHOLE}\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_BOX = "\\boxed{"


class Verdict(NamedTuple):
    """The verifier's result for one response.

    Attributes:
        score: the task's own reward, +1 for a correct response, -1 for any other (DAPO, arXiv 2503.14476, Eq. 7).
        correct: whether the response is accepted.
        answer: the answer extracted from the response; empty if it has none.
    """

    score: float
    correct: bool
    answer: str

    @classmethod
    def of(cls, correct: bool, answer: str) -> Verdict:
        """Return the verdict with the score that belongs to ``correct``."""
        return cls(1.0 if correct else -1.0, correct, answer)


def verify_chain(answer: str, text: str, finished: bool) -> Verdict:
    """Accept a finished response that ends with ``#`` and the right digit."""
    match = _CHAIN_ANSWER.search(text) if finished else None
    return Verdict.of(match is not None and match[1] == answer, match[1] if match else "")


def verify_search(prompt: str, target: str, text: str, finished: bool) -> Verdict:
    """Accept whole tries whose last two letters differ and have digits in the prompt that add up to the target.

    The digits that the response wrote don't count, only those of the prompt.
    """
    if not finished or _SEARCH_TRIES.fullmatch(text) is None:
        return Verdict.of(False, "")
    one, two = text[-_SEARCH_TRY], text[-_SEARCH_TRY + 2]
    digits = dict(_DIGIT_OF_LETTER.findall(prompt))
    hit = one != two and {one, two} <= digits.keys()
    hit = hit and (int(digits[one]) + int(digits[two])) % 10 == int(target)
    return Verdict.of(hit, "".join(sorted((one, two))))


def verify_answer(extract: Callable[[str], str], answer: str, text: str) -> Verdict:
    """Accept a response from which ``extract`` returns the reference answer; one before the length limit counts."""
    found = extract(text)
    return Verdict.of(bool(found) and found == normal(answer), found)


def exact(text: str) -> str:
    """Return the whole response without surrounding white space."""
    return normal(text)


def last_number(text: str) -> str:
    """Return the last number of the response."""
    found = _NUMBER.findall(text)
    return normal(found[-1]) if found else ""


def boxed(text: str) -> str:
    r"""Return the content of the last ``\boxed{...}`` whose braces close."""
    start = text.rfind(_BOX)
    if start < 0:
        return ""
    depth, begin = 1, start + len(_BOX)
    for i in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return normal(text[begin:i])
    return ""


EXTRACT: dict[str, Callable[[str], str]] = {"exact": exact, "last_number": last_number, "boxed": boxed}
"""How the verifiers of files find the answer in a response."""

APART = {"math_verify": Worker(path="paribus_runners.rewards.mathematics.verdicts", timeout_s=10.0, memory_gib=4.0)}
"""Verifiers that run in worker processes; each response is a call of its own, so that one that hangs fails alone."""


LONGEST = 1_000
"""Longer numbers, and those whose first digit is further from the point, are compared as texts."""


def normal(answer: str) -> str:
    """Return one spelling for equal answers: ``1,000.0`` and ``1000`` are equal.

    Numbers keep all of their digits, and are written without an exponent; see :data:`LONGEST` for those that are not.
    """
    text = answer.strip()
    bare = text.removeprefix("$").strip()
    if len(bare) > LONGEST or _DECIMAL.fullmatch(bare) is None:
        return text
    try:
        number = Decimal(bare.replace(",", ""))
    except ArithmeticError:  # an exponent of more digits than the library has room for
        return text
    if not number:
        return "0"
    if number.adjusted() >= LONGEST or number.adjusted() <= -LONGEST:
        return text
    plain = format(number, "f")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain
