"""Problems from JSON-lines files: objects with the texts ``prompt`` and ``answer``."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from pathlib import Path

from paribus.errors import ParibusError
from paribus.recipe.recipe import JsonlTask
from paribus_runners.native.task.base import Problem, Verdict, visit

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?|-?\.\d+")
_BOX = "\\boxed{"


class Jsonl:
    """The task ``jsonl``.

    Raises:
        ParibusError: a file cannot be read, or a line of it is not a problem.
    """

    def __init__(self, level: JsonlTask) -> None:
        self._train = _read(level.train, "task.train")
        self._heldout = _read(level.heldout, "task.heldout")
        self._extract = EXTRACT[level.verifier]

    def training(self, seed: int, step: int, round_: int, count: int) -> list[Problem]:
        """Return the problems of one sampling round, as :func:`visit` has it."""
        return visit(self._train, "jsonl", seed, step, round_, count)

    def heldout(self, count: int) -> list[Problem]:
        """Return the first ``count`` held-out problems, or all if there are fewer."""
        return self._heldout[:count]

    def verify(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """Compare the answer in the response with that of the file; an answer before the length limit counts."""
        found = self._extract(text)
        return Verdict.of(bool(found) and found == _normal(problem.answer), found)


def _read(name: str, field: str) -> list[Problem]:
    path = Path(name).expanduser()
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ParibusError(f"`{field}`: cannot read {path}: {error}") from error
    problems = [_problem(text, f"`{field}`: {path}:{n}") for n, text in enumerate(lines, 1) if text.strip()]
    if not problems:
        raise ParibusError(f"`{field}`: {path} holds no problems; it needs one JSON object a line")
    return problems


def _problem(text: str, place: str) -> Problem:
    try:
        raw = json.loads(text)
        prompt, answer = raw["prompt"], raw["answer"]
    except (ValueError, TypeError, KeyError) as error:
        raise ParibusError(f"{place}: not an object with `prompt` and `answer`: {error}") from error
    if not (isinstance(prompt, str) and prompt and isinstance(answer, str | int | float)):
        raise ParibusError(f"{place}: `prompt` must be a text that is not empty, `answer` a text or a number")
    digest = hashlib.sha256(f"{prompt}\0{answer}".encode()).hexdigest()[:16]
    return Problem(digest, prompt, str(answer))


def exact(text: str) -> str:
    """Return the whole response, without white space around it."""
    return _normal(text)


def last_number(text: str) -> str:
    """Return the last number of the response."""
    found = _NUMBER.findall(text)
    return _normal(found[-1]) if found else ""


def boxed(text: str) -> str:
    r"""Return what is in the last ``\boxed{...}`` whose braces close."""
    start = text.rfind(_BOX)
    if start < 0:
        return ""
    depth, begin = 1, start + len(_BOX)
    for i in range(begin, len(text)):
        depth += {"{": 1, "}": -1}.get(text[i], 0)
        if depth == 0:
            return _normal(text[begin:i])
    return ""


EXTRACT: dict[str, Callable[[str], str]] = {"exact": exact, "last_number": last_number, "boxed": boxed}


def _normal(answer: str) -> str:
    """Return one spelling for equal answers: ``1,000.0`` and ``1000`` are equal."""
    text = answer.strip()
    try:
        number = Decimal(text.replace(",", "").removeprefix("$"))
        return format(number.normalize(), "f") if number.is_finite() else text
    except InvalidOperation:
        return text
