"""A batch of responses with their log-probabilities, as a person writes it down: JSON lines, one response a line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paribus.errors import BatchFileError, Problem
from paribus.recipe.messages import explain
from paribus.recipe.recipe import Recipe

MAX_BYTES = 10_000_000
MAX_PROBLEMS = 100
EVEN = log(0.5)
"""log-probability of a token of which nothing is said, nats."""

DEFAULTS: Mapping[str, str] = {
    "score": "1 for a correct response, -1 for any other",
    "correct": "true where the score is above 0",
    "formatted": "true where the response is not truncated",
    "truncated": "false",
    "logp_old": "log 0.5",
    "logp_new": "logp_old (on-policy: every ratio is 1 and no clip acts)",
    "logp_sampler": "logp_old (sampler and learner agree)",
    "logp_reference": "logp_old (the reference is the old policy)",
    "entropy": "1 nat",
    "value": "0",
}
"""What a field is taken as where a line leaves it out."""

_PER_TOKEN = ("tokens", "logp_old", "logp_new", "logp_sampler", "logp_reference", "entropy", "value")


@dataclass(frozen=True, kw_only=True)
class Response:
    """A response as the objective sees it. All fields of tokens have one entry a token, log-probabilities in nats.

    Attributes:
        group: the prompt that it answers; responses with equal text are a group.
        score: the task's own score.
        correct: what the verifier says.
        formatted: whether it ended by itself and holds an answer.
        truncated: whether the length limit ended it.
        tokens: texts of the tokens; empty if they are not known.
        logp_old: log-probability under the policy before the updates.
        logp_new: under the policy that is updated.
        logp_sampler: under the policy that sampled, as the sampler computed it.
        logp_reference: under the reference.
        entropy: entropy of the policy that sampled.
        value: the critic's value of the state in which the token was chosen.
    """

    group: str
    score: float
    correct: bool
    formatted: bool
    truncated: bool
    tokens: tuple[str, ...]
    logp_old: tuple[float, ...]
    logp_new: tuple[float, ...]
    logp_sampler: tuple[float, ...]
    logp_reference: tuple[float, ...]
    entropy: tuple[float, ...]
    value: tuple[float, ...]

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.logp_old)


@dataclass(frozen=True)
class ResponseBatch:
    """The responses of a file, and in how many of them each field was left out."""

    responses: tuple[Response, ...]
    defaulted: Mapping[str, int]

    def assumptions(self, recipe: Recipe) -> list[str]:
        """Return what was assumed for want of data, of all that the recipe looks at; one sentence each."""
        total, used = len(self.responses), _reads(recipe)
        return [
            f"`{name}` is absent{'' if n == total else f' in {n} of {total} responses'}: taken as {DEFAULTS[name]}"
            for name, n in self.defaulted.items()
            if n and name in used
        ]


def _reads(recipe: Recipe) -> frozenset[str]:
    """Return the fields that can change the coefficients under a recipe."""
    reads = {
        "score": recipe.reward.map == "scalar",
        "correct": True,
        "formatted": recipe.reward.weights.format != 0,
        "truncated": recipe.length.truncated != "as_scored",
        "logp_old": True,
        "logp_new": True,
        "logp_sampler": recipe.correction.kind != "off",
        "logp_reference": recipe.kl.kind != "off" or recipe.loss.kind == "pair_dpo",
        "entropy": recipe.token_weight.kind == "top_entropy",
        "value": recipe.baseline.kind == "critic_gae",
    }
    return frozenset(name for name, holds in reads.items() if holds)


_LogP = Annotated[float, Field(ge=-100, le=0)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    group: Annotated[str, Field(min_length=1)]
    correct: bool | None = None
    score: float | None = None
    formatted: bool | None = None
    truncated: bool | None = None
    length: Annotated[int, Field(ge=1, le=100_000)] | None = None
    tokens: Annotated[list[str], Field(min_length=1)] | None = None
    logp_old: Annotated[list[_LogP], Field(min_length=1)] | None = None
    logp_new: Annotated[list[_LogP], Field(min_length=1)] | None = None
    logp_sampler: Annotated[list[_LogP], Field(min_length=1)] | None = None
    logp_reference: Annotated[list[_LogP], Field(min_length=1)] | None = None
    entropy: Annotated[list[Annotated[float, Field(ge=0)]], Field(min_length=1)] | None = None
    value: Annotated[list[float], Field(min_length=1)] | None = None

    def problems(self) -> Iterator[tuple[str, str]]:
        """Yield path and message of what does not fit together."""
        if self.correct is None and self.score is None:
            yield "", "needs `correct` (true or false) or `score` (a number)"
        sizes = {name: len(x) for name in _PER_TOKEN if (x := getattr(self, name)) is not None}
        if self.length is not None:
            sizes = {"length": self.length, **sizes}
        if not sizes:
            yield "", "needs `logp_old`, `tokens` or `length`: how many tokens has the response?"
            return
        first, *others = sizes
        for name in others:
            if sizes[name] != sizes[first]:
                says = f"is {sizes[first]}" if first == "length" else f"has {sizes[first]}"
                yield name, f"has {sizes[name]} entries, and `{first}` {says}: one entry a token"

    def response(self) -> Response:
        """Return the response; what was left out is as in :data:`DEFAULTS`."""
        n = self.length or next(len(x) for name in _PER_TOKEN if (x := getattr(self, name)) is not None)
        score = (1.0 if self.correct else -1.0) if self.score is None else self.score
        old = tuple(self.logp_old or [EVEN] * n)
        return Response(
            group=self.group,
            score=score,
            correct=score > 0 if self.correct is None else self.correct,
            formatted=not self.truncated if self.formatted is None else self.formatted,
            truncated=bool(self.truncated),
            tokens=tuple(self.tokens or ()),
            logp_old=old,
            logp_new=tuple(self.logp_new or old),
            logp_sampler=tuple(self.logp_sampler or old),
            logp_reference=tuple(self.logp_reference or old),
            entropy=tuple(self.entropy or [1.0] * n),
            value=tuple(self.value or [0.0] * n),
        )


def read_responses(path: Path) -> ResponseBatch:
    """Return the responses in a file of JSON lines; empty lines do not count.

    Raises:
        BatchFileError: the file cannot be read, or lines of it are wrong; all problems are listed with their lines.
    """
    lines: list[_Line] = []
    problems: list[Problem] = []
    for number, text in enumerate(_text(path).split("\n"), start=1):
        if text.strip() and len(problems) < MAX_PROBLEMS:
            line, found = _parse(text, number)
            problems += found
            lines += [line] if line is not None else []
    if problems:
        raise BatchFileError(str(path), problems)
    if not lines:
        raise BatchFileError(str(path), [Problem(message="the file is empty: write one response a line")])
    defaulted = {name: sum(getattr(line, name) is None for line in lines) for name in DEFAULTS}
    return ResponseBatch(tuple(line.response() for line in lines), defaulted)


def _text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise BatchFileError(str(path), [Problem(message="this is not a regular file")])
        if (size := path.stat().st_size) > MAX_BYTES:
            message = f"the file has {size / 1e6:.1f} MB; at most {MAX_BYTES / 1e6:.0f} MB is read"
            raise BatchFileError(str(path), [Problem(message=message)])
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise BatchFileError(str(path), [Problem(message=f"cannot be read: {error.strerror or error}")]) from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        message = "this is not UTF-8 text: save the file as UTF-8"
        raise BatchFileError(str(path), [Problem(message=message, line=line)]) from error


def _parse(text: str, number: int) -> tuple[_Line | None, list[Problem]]:
    """Return what one line says, or what is wrong with it."""
    try:
        raw = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        return None, [Problem(message=f"not valid JSON: {error.msg}", line=number, column=error.colno)]
    except (ValueError, RecursionError) as error:
        message = (
            str(error) if isinstance(error, _TwiceError) else "not valid JSON: nested too deeply, or a number too long"
        )
        return None, [Problem(message=message, line=number)]
    if not isinstance(raw, dict):
        return None, [Problem(message="a response is a JSON object: {...}", line=number)]
    try:
        line = _Line.model_validate(raw)
    except ValidationError as error:
        known = tuple(_Line.model_fields)
        return None, [
            Problem(message=explain(e, known), path=_path(e["loc"]), line=number)
            for e in error.errors(include_url=False)
        ]
    return line, [Problem(message=message, path=path, line=number) for path, message in line.problems()]


def _path(loc: tuple[str | int, ...]) -> str:
    return ".".join(str(x + 1) if isinstance(x, int) else x for x in loc)


class _TwiceError(ValueError):
    """A key stands twice in an object."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _TwiceError(f"the key `{key}` appears twice: keep one")
        found[key] = value
    return found
