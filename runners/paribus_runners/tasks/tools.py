"""Functions for the generated tasks: one that answers turns of the model, and one that rewards steps.

Each takes lists with one entry a response, as a user's own functions do. They import nothing of Paribus, so that a run
depends on this file alone. In a study:

    turns: {kind: function, path: paribus_runners.tasks.tools.running_sum, marks: ["?"]}
    reward.functions: {sums: {path: paribus_runners.tasks.tools.step_sums, unit: step}}
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PAIR = re.compile(r"([a-h])(\d)")
_STEP = re.compile(r"([a-h])\d(\d)")


def running_sum(prompts: Sequence[str], completions: Sequence[str]) -> list[str | None]:
    """Answer ``?`` in the task ``chain`` with the last digit of the sum up to the last letter that was written out.

    A response that has written out no letter yet gets the first digit. What did not end with ``?`` is at its end.
    """
    return [_sum(*pair) if pair[1].endswith("?") else None for pair in zip(prompts, completions, strict=True)]


def step_sums(prompts: Sequence[str], completions: Sequence[str]) -> list[list[tuple[int, float]]]:
    """Reward each running sum of the task ``chain`` that a response wrote out, as a step: 1 if it is right, else -1."""
    found: list[list[tuple[int, float]]] = []
    for prompt, text in zip(prompts, completions, strict=True):
        right = {letter: _sum(prompt, f"{letter}0") for letter, _ in _PAIR.findall(prompt)}
        found.append([(x.end(), 1.0 if right.get(x[1]) == x[2] else -1.0) for x in _STEP.finditer(text)])
    return found


def _sum(prompt: str, text: str) -> str | None:
    pairs = _PAIR.findall(prompt)
    letters = [letter for letter, _ in pairs]
    last = next((letter for letter, _ in reversed(_PAIR.findall(text)) if letter in letters), letters[0])
    return str(sum(int(digit) for _, digit in pairs[: letters.index(last) + 1]) % 10)
