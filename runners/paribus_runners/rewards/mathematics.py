"""Answers compared as mathematics, by the library math-verify. Imported in the workers alone: it may hang."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from math_verify import parse, verify

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that its own time limits, which use alarms, are off


def verdicts(completions: Sequence[str], answer: Sequence[str]) -> list[tuple[bool, str]]:
    """Return for each response whether its answer equals the reference, and the answer; empty without one.

    Right answers are given as the reference writes them, so that their forms count as one in a majority vote.

    Raises:
        ValueError: the library cannot read a reference answer.
    """
    return [_verdict(text, reference) for text, reference in zip(completions, answer, strict=True)]


def _verdict(text: str, reference: str) -> tuple[bool, str]:
    gold, found = _gold(reference), parse(text, parsing_timeout=None)
    if not found:
        return False, ""
    right = verify(gold, found, timeout_seconds=None)
    return right, reference.strip() if right else str(found[-1])


@lru_cache(maxsize=1024)
def _gold(reference: str) -> list[Any]:
    """Return the reference, which may be bare or hold its answer in a box or in dollar signs."""
    bare = "\\boxed" not in reference and "$" not in reference
    found: list[Any] = parse(f"\\boxed{{{reference}}}" if bare else reference, parsing_timeout=None)
    if not found:
        raise ValueError(f"math-verify cannot read the reference answer {reference!r}")
    return found
