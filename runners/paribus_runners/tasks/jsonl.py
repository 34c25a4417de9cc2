"""Problems from JSON-lines files: objects with the texts ``prompt`` and ``answer``, and what else they hold."""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path

from paribus.errors import ParibusError
from paribus.recipe.recipe import JsonlTask
from paribus_runners.rewards.verifiers import APART, EXTRACT, Verdict, exact, verify_answer
from paribus_runners.tasks.base import Problem, gaps, visit

MOST_FAULTS = 5
"""Damaged lines of a file that an error names."""

_KINDS = {list: "list", str: "text", bool: "true or false", type(None): "null"}


class Jsonl:
    """The task ``jsonl``.

    Raises:
        ParibusError: a file cannot be read, or one of its lines is not a problem.
    """

    def __init__(self, level: JsonlTask) -> None:
        self._train = problems_in(level.train, "task.train")
        self._heldout = problems_in(level.heldout, "task.heldout")
        self._extract = EXTRACT.get(level.verifier, exact)
        self.verifier_worker = APART.get(level.verifier)

    def training(self, seed: int, step: int, round_: int, count: int) -> list[Problem]:
        """Return the problems of one sampling round, in the order of :func:`visit`."""
        return visit(self._train, "jsonl", seed, step, round_, count)

    def heldout(self, count: int) -> list[Problem]:
        """Return the first ``count`` held-out problems, or all if there are fewer."""
        return self._heldout[:count]

    def verify(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """Compare the answer in the response with the one in the file; a truncated response may be correct."""
        return verify_answer(self._extract, problem.answer, text)


def first_fault(level: JsonlTask) -> str:
    """Return what is wrong with the first or the last line of a file; empty if nothing is, or it cannot be read."""
    for field, name in (("task.heldout", level.heldout), ("task.train", level.train)):  # an evaluation set has one file
        path = Path(name).expanduser()
        first = last = None
        if not path.is_file():  # the hash of the files says so; a device may have no end
            continue
        try:
            with path.open("rb") as file:
                for n, line in enumerate(file, 1):
                    if line.strip():
                        last = n, line
                        first = first or last
        except OSError:
            continue
        if first is None or last is None:
            return f"`{field}`: {path} holds no problems: write one JSON object a line"
        for n, line in (first, last):
            try:
                _problem(line.decode("utf-8-sig"), f"`{field}`: {path}:{n}")
            except UnicodeDecodeError:
                return f"`{field}`: {path}:{n} is not UTF-8: save the file as UTF-8"
            except ParibusError as error:
                return str(error)
    return ""


def columns(level: JsonlTask) -> dict[str, str] | None:
    """Return :func:`gaps` of the training problems without their prompts; ``None`` if they cannot be read."""
    path = Path(level.train).expanduser()
    if not path.is_file():
        return None
    try:
        with path.open(encoding="utf-8-sig", newline="\n") as file:
            lines = ((f"{path}:{n}", line) for n, line in enumerate(file, 1) if line.strip())
            return gaps((place, ("answer", *_problem(line, place).columns)) for place, line in lines) or None
    except (OSError, UnicodeDecodeError, ParibusError):  # which the check of the problems reports
        return None


def problems_in(name: str, field: str) -> list[Problem]:
    """Return the problems of a file, which a recipe names at ``field``.

    Raises:
        ParibusError: it cannot be read, or one of its lines is not a problem; the message names the first ones.
    """
    path = Path(name).expanduser()
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")  # JSON allows other ends of lines in texts
    except (OSError, UnicodeDecodeError) as error:
        raise ParibusError(f"`{field}`: cannot read {path}: {error}") from error
    problems, faults = list[Problem](), list[str]()
    for n, text in enumerate(lines, 1):
        if text.strip():
            try:
                problems.append(_problem(text, f"`{field}`: {path}:{n}"))
            except ParibusError as error:
                faults.append(str(error))
    if faults:
        more = [f"and {len(faults) - MOST_FAULTS} more lines of {path}"] if len(faults) > MOST_FAULTS else []
        raise ParibusError("\n".join([*faults[:MOST_FAULTS], *more]))
    if not problems:
        raise ParibusError(f"`{field}`: {path} holds no problems: write one JSON object a line")
    return problems


def _problem(text: str, place: str) -> Problem:
    try:
        raw = json.loads(text)
        if not isinstance(raw, dict):
            raise ValueError(f"this is a JSON {_KINDS.get(type(raw), 'number')}")
        prompt, answer = raw["prompt"], raw["answer"]
    except KeyError as error:
        raise ParibusError(
            f"{place}: `{error.args[0]}` is missing: each line is an object with the texts `prompt` and `answer`"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ParibusError(f"{place}: not an object with `prompt` and `answer`: {error}") from error
    fits = bool(answer.strip()) if isinstance(answer, str) else type(answer) is int or _is_finite(answer)
    if not (isinstance(prompt, str) and prompt.strip() and fits):
        raise ParibusError(
            f"{place}: `prompt` must be a text that is not blank, `answer` such a text or a finite number"
        )
    try:
        digest = hashlib.sha256(f"{prompt}\0{answer}".encode()).hexdigest()[:16]
    except UnicodeEncodeError:
        half = "half a character (an unpaired surrogate), which no tokenizer reads"
        raise ParibusError(f"{place}: holds {half}") from None
    return Problem(digest, prompt, str(answer), {k: v for k, v in raw.items() if k not in ("prompt", "answer")})


def _is_finite(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)
