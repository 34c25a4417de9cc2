"""The mapping file: what the log of an existing script means, so that the script need not change.

::

    step: {key: iter, offset: 1}          # the script counts from 0, a run from 1
    metrics:
      mean_return: reward/mean            # its name, and the canonical one
      acc: {metric: reward/correct_frac, scale: 0.01, source: exact}
    evaluation:                           # one line for each response, in a file of its own
      log: answers.jsonl
      problem: problem
      correct: right
      answer: answer
      tokens: tokens
      truncated: 0                        # a number in place of a key: the same for every response
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from paribus.errors import ParibusError, StudyFileError, did_you_mean
from paribus.run_folder.folder import Evaluation
from paribus.run_folder.json_text import shown
from paribus.run_folder.metrics import EVAL_METRICS, STEP_METRICS, Source, find_metric
from paribus.run_folder.native_names import NativeNames
from paribus.yaml_file.document import Fault, parse_document, plain
from paribus.yaml_file.messages import explain, fields_at, plain_location, validate
from paribus_runners.program.lines import inside

OWN = "native/command/"
"""Where numbers of the script's log go that the mapping does not name."""

Key = Annotated[str, Field(min_length=1)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Step(_Part):
    """Where a line has its step."""

    key: Key = Field(description="key of the step")
    offset: int = Field(default=0, description="added to it: 1 if the script counts its steps from 0")


class Mapped(_Part):
    """What one number of the script's log is."""

    metric: str = Field(description="canonical name, as in docs/reference/metrics.md")
    scale: float = Field(default=1.0, description="factor: 0.01 makes a share of a percentage")
    source: Source = Field(
        default="proxy",
        description="exact: as the definition says; derived: computed from records; proxy: close to it",
    )

    @field_validator("metric")
    @classmethod
    def _canonical(cls, name: str) -> str:
        if name.startswith("eval/"):
            raise ValueError(f"`{name}` is counted from `evaluation`: leave it out")
        if find_metric(name) is None:
            names = [m.name for m in (*STEP_METRICS, *EVAL_METRICS)]
            raise ValueError(f"`{name}` is no metric.{did_you_mean(name, names)} docs/reference/metrics.md lists all")
        return name


class Answers(_Part):
    """Where the script writes its evaluations: one line for each response."""

    log: Key = Field(description="file of JSON lines, from the script's working folder")
    problem: Key = Field(description="key of the problem's identity")
    correct: Key = Field(description="key of whether the response is right: true, false, 0 or 1")
    tokens: Key | int = Field(description="key of the number of generated tokens, or that number")
    truncated: Key | Literal[0] = Field(description="key of whether the response hit the length limit, or 0")
    answer: Key | None = Field(
        default=None, description="key of the extracted answer; absent: unknown, which needs `samples: 1`"
    )
    set: Key | None = Field(default=None, description="key of the problem set; absent: all lines are of `heldout`")
    step: Step | None = Field(default=None, description="its step, as above; absent: as in the other log")

    @field_validator("step", mode="before")
    @classmethod
    def _key(cls, given: Any) -> Any:
        return {"key": given} if isinstance(given, str) else given

    @field_validator("log")
    @classmethod
    def _inside(cls, given: str) -> str:
        return inside(given)


class LogMapping(_Part):
    """A mapping file."""

    step: Step = Field(description="key of the step, or `{key, offset}`")
    metrics: dict[str, Mapped] = Field(
        default={}, description="the script's name to a canonical one, or to `{metric, scale, source}`"
    )
    evaluation: Answers | None = Field(
        default=None, description="the script's evaluations; absent: it writes those of a run folder itself"
    )

    @field_validator("step", mode="before")
    @classmethod
    def _key(cls, given: Any) -> Any:
        return {"key": given} if isinstance(given, str) else given

    @field_validator("metrics", mode="before")
    @classmethod
    def _names(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        return {key: {"metric": each} if isinstance(each, str) else each for key, each in given.items()}

    @field_validator("metrics")
    @classmethod
    def _once(cls, given: dict[str, Mapped]) -> dict[str, Mapped]:
        twice = [name for name, count in Counter(each.metric for each in given.values()).items() if count > 1]
        if twice:
            raise ValueError(f"two names are mapped to `{twice[0]}`: keep one of them")
        return given


def read_mapping(text: str, name: str) -> LogMapping:
    """Return the mapping in a YAML text.

    Raises:
        StudyFileError: it is no mapping file; every problem is listed with its place.
    """
    document = parse_document(text, name)
    raw = plain(document.checked())
    if not isinstance(raw, Mapping):
        raise StudyFileError(
            name, [Fault(place=(), message="a mapping file begins with `step:`").problem(document.root)]
        )
    try:
        return validate(LogMapping, raw)
    except ValidationError as error:
        faults = [_fault(each, raw) for each in error.errors(include_url=False)]
    raise StudyFileError(name, [fault.problem(document.root) for fault in faults])


def _fault(error: Any, raw: object) -> Fault:
    path, unknown = plain_location(error, raw), error["type"] == "extra_forbidden"
    if error["type"] == "missing":
        return Fault(place=path[:-1], message=f"`{path[-1]}` is missing", at_key=True)
    return Fault(
        place=path, message=explain(error, fields_at(LogMapping, error["loc"]) if unknown else ()), at_key=unknown
    )


# ---- lines -------------------------------------------------------------------------------------------


@dataclass
class Translator:
    """Translates the lines of a script's log.

    Attributes:
        mapping: what they mean.
        names: what becomes of names that the mapping does not have.
    """

    mapping: LogMapping
    names: NativeNames

    def step(self, line: Mapping[str, Any]) -> int | None:
        """Return the step of a line; ``None`` if it has none, as a line that belongs to no step.

        Raises:
            ParibusError: its step is no whole number from 0 on.
        """
        return None if self.mapping.step.key not in line else step_in(line, self.mapping.step)

    def values(self, line: Mapping[str, Any]) -> Iterator[tuple[str, float, Source]]:
        """Yield name, value and source of each number in a line; text, lists and truth values are no metrics.

        Raises:
            ParibusError: a whole number is too large for a float.
        """
        found = {
            key: value
            for key, value in line.items()
            if key != self.mapping.step.key and isinstance(value, int | float) and not isinstance(value, bool)
        }
        self.names.learn(found.keys() - self.mapping.metrics.keys())
        for key, value in found.items():
            try:
                number = float(value)
            except OverflowError:
                raise ParibusError(f"`{key[:80]}` is {shown(value)}, which is too large for a number") from None
            known = self.mapping.metrics.get(key)
            if known is None:
                yield OWN + self.names.of(key), number, "exact"
            else:
                yield known.metric, number * known.scale, known.source


def step_in(line: Mapping[str, Any], where: Step) -> int:
    """Return the step of a line; scripts also write ``7.0``.

    Raises:
        ParibusError: it has none, or it is no whole number from 0 on.
    """
    value = _value(line, where.key)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not 0 <= value + where.offset < 1 << 53:
        raise ParibusError(f"`{where.key}` is {shown(value)}, which gives no step: a whole number from 0 on")
    return value + where.offset


@dataclass
class AnswersOf:
    """The responses of one evaluation of a set, problem by problem, in the order in which problems came first."""

    rows: dict[str, list[tuple[bool, str | None, int, bool]]] = field(default_factory=dict)

    def add(self, line: Mapping[str, Any], keys: Answers) -> None:
        """Add a line.

        Raises:
            ParibusError: it lacks a key, or a value has another type.
        """
        problem = _value(line, keys.problem)
        correct, truncated = _truth(line, keys.correct), keys.truncated != 0 and _truth(line, str(keys.truncated))
        tokens = keys.tokens if isinstance(keys.tokens, int) else _value(line, keys.tokens)
        if type(tokens) is not int or tokens < 0:
            raise ParibusError(f"`{keys.tokens}` is {shown(tokens)}, which is no number of tokens")
        answer = None if keys.answer is None else _value(line, keys.answer)
        said = None if keys.answer is None else "" if answer is None else str(answer)
        self.rows.setdefault(str(problem), []).append((correct, said, tokens, truncated))

    def count(self) -> int:
        """Return the number of responses."""
        return sum(map(len, self.rows.values()))

    def evaluation(self, step: int, name: str) -> Evaluation:
        """Return the counts.

        Raises:
            ParibusError: problems have different numbers of responses, or their answers are not known.
        """
        sizes = {len(rows) for rows in self.rows.values()}
        if len(sizes) != 1:
            raise ParibusError("problems have different numbers of responses")
        (k,) = sizes
        if k > 1 and any(said is None for rows in self.rows.values() for _, said, _, _ in rows):
            raise ParibusError("several responses to a problem need `evaluation.answer` in the mapping file, for maj@k")
        groups = [
            [(ok, said if said is not None else ("right" if ok else "wrong"), n, cut) for ok, said, n, cut in rows]
            for rows in self.rows.values()
        ]
        return Evaluation(
            step=step,
            set=name,
            samples=k,
            problems=tuple(self.rows),
            correct=tuple(sum(ok for ok, *_ in rows) for rows in groups),
            truncated=tuple(sum(cut for *_, cut in rows) for rows in groups),
            tokens=tuple(sum(n for _, _, n, _ in rows) for rows in groups),
            tokens_correct=tuple(sum(n for ok, _, n, _ in rows if ok) for rows in groups),
            answers=tuple(dict(sorted(Counter(said for _, said, _, _ in rows).items())) for rows in groups),
            right=tuple(tuple(sorted({said for ok, said, _, _ in rows if ok})) for rows in groups),
        )


def _value(line: Mapping[str, Any], key: str) -> Any:
    if key not in line:
        raise ParibusError(f"`{key}` is missing")
    return line[key]


def _truth(line: Mapping[str, Any], key: str) -> bool:
    value = _value(line, key)
    if value not in (True, False, 0, 1):
        raise ParibusError(f"`{key}` is {shown(value)}: it must be true, false, 0 or 1")
    return bool(value)
