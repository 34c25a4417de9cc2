"""Functions that answer turns of the model in the generated tasks, for `turns.path`; they import nothing of Paribus.

Each takes lists with one entry a response, as reward functions do, and returns for each the text that the model reads
next, or ``None`` where the response ends.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PAIR = re.compile(r"([a-h])(\d)")


def running_sum(prompts: Sequence[str], completions: Sequence[str]) -> list[str | None]:
    """Answer ``?`` in the task ``chain`` with the last digit of the sum up to the last letter that was written out.

    A response that has written out no letter yet gets the first digit. What did not end with ``?`` is at its end.
    """
    return [_sum(*pair) if pair[1].endswith("?") else None for pair in zip(prompts, completions, strict=True)]


def _sum(prompt: str, text: str) -> str | None:
    pairs = _PAIR.findall(prompt)
    letters = [letter for letter, _ in pairs]
    last = next((letter for letter, _ in reversed(_PAIR.findall(text)) if letter in letters), letters[0])
    return str(sum(int(digit) for _, digit in pairs[: letters.index(last) + 1]) % 10)
