"""How runs are evaluated: the held-out problems of their task, and further sets with settings of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
)

from paribus.recipe.recipe import Task
from paribus.text import every, plural

HELDOUT = "heldout"
"""The set that every study has: the held-out problems of its own task."""

RESERVED = (HELDOUT, "train")
"""Names that no further set can have; ``train`` stands for the responses that were trained on."""

NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"  # it stands in file names and in names of metrics
_COMMON = ("every", "problems", "samples", "temperature")

Steps = Annotated[int, Field(ge=1)]
Problems = Annotated[int, Field(ge=2)]
Samples = Annotated[int, Field(ge=1)]
Temperature = Annotated[float, Field(gt=0)]


class EvaluationSet(BaseModel):
    """A further set of problems, with settings of its own. Those that are absent are taken from ``evaluate``."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    task: Task | None = Field(
        default=None,
        description="problems and verifier: a task, without `train`; absent: the held-out problems of the run's task",
    )
    every: Steps = Field(default=10, description="steps between evaluations; step 0 and the last always")
    problems: Problems = Field(default=1000, description="problems, or all if there are fewer")
    samples: Samples = Field(default=1, description="responses per problem (k)")
    temperature: Temperature = Field(default=1.0, description="sampling temperature")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0, description="each token is drawn from the fewest tokens whose probabilities add up to this"
    )
    max_new_tokens: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="length limit of a response; absent: schedule.max_new_tokens"
    )

    @field_validator("task", mode="before")
    @classmethod
    def _without_training(cls, given: Any) -> Any:
        """Read the name of a task, and a task that has files but none to train on."""
        if isinstance(given, str):
            return {"kind": given}
        if not isinstance(given, Mapping) or "heldout" not in given:
            return given
        rows = given["heldout"]
        if given.get("kind") == "dataset" and isinstance(rows, str):
            rows = {"path": rows}
        return {"train": rows, **given, "heldout": rows}

    @property
    def rates(self) -> tuple[str, ...]:
        """Names of the metrics of which more is better: avg@k, maj@k, and pass@ at k and the powers of two below."""
        k = self.samples
        return (f"avg_at_{k}", f"maj_at_{k}", *(f"pass_at_{n}" for n in reachable(k)))

    @property
    def problems_text(self) -> str:
        """The task in words, e.g. ``jsonl aime24.jsonl``; empty for the task of the run."""
        rows = getattr(self.task, "heldout", "")  # a path, or a source of rows
        named = rows if isinstance(rows, str) else f"{rows.path or rows.name} {rows.split or ''}"
        return "" if self.task is None else f"{self.task.kind} {named}".strip()

    def about(self, problems: str) -> str:
        """Return the settings in words, e.g. ``30 problems x 32 responses at temperature 0.6, every 100 steps``.

        Args:
            problems: its problems in words, e.g. ``30 problems``.
        """
        parts = [f"{problems} x {plural(self.samples, 'response')} at temperature {self.temperature:g}"]
        if self.top_p < 1:
            parts.append(f"top-p {self.top_p:g}")
        if self.max_new_tokens is not None:
            parts.append(f"up to {plural(self.max_new_tokens, 'token')}")
        return ", ".join([*parts, every(self.every, "step"), *filter(None, [self.problems_text])])


def reachable(samples: int) -> tuple[int, ...]:
    """Return the k for which pass@k is measured: powers of two up to the responses per problem, and that number."""
    return tuple(sorted({samples, *(2**i for i in range(samples.bit_length()))}))


class Evaluate(BaseModel):
    """How runs are evaluated; part of the fingerprint, so that only equal evaluations are compared."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    every: Steps = Field(default=10, description="steps between evaluations; step 0 and the last always")
    problems: Problems = Field(default=1000, description="held-out problems")
    samples: Samples = Field(default=1, description="responses per problem (k)")
    temperature: Temperature = Field(default=1.0, description="sampling temperature of the evaluation")
    primary: str = Field(default="", description="the metric of the tables; absent: eval/heldout/avg_at_<samples>")
    checkpoint: Literal["final", "mean_of_last_3"] = Field(
        default="mean_of_last_3", description="which evaluations make a run's score; declared before the run"
    )
    sets: dict[Annotated[str, Field(pattern=NAME, max_length=64)], EvaluationSet] = Field(
        default={}, description="further sets of problems by name, each with settings of its own"
    )

    @field_validator("sets", mode="before")
    @classmethod
    def _completed(cls, given: Any, info: ValidationInfo) -> Any:
        """Fill in what a set does not say, so that two ways to write one evaluation are equal."""
        if not isinstance(given, Mapping):
            return given
        shared = {key: info.data[key] for key in _COMMON if key in info.data}
        return {name: _with_defaults(each, shared) for name, each in given.items()}

    @model_serializer(mode="wrap")
    def _without_empty_sets(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave ``sets`` out where there are none: studies keep the fingerprints from before there were sets."""
        values: dict[str, Any] = dump(self)
        if not self.sets:
            values.pop("sets", None)
        return values

    @property
    def primary_metric(self) -> str:
        """The metric of the tables, with the default resolved."""
        return self.primary or f"eval/{HELDOUT}/avg_at_{self.samples}"

    @property
    def primary_set(self) -> str:
        """The set of the primary metric."""
        return self.primary_metric.rpartition("/")[0].removeprefix("eval/")

    @property
    def all_sets(self) -> Mapping[str, EvaluationSet]:
        """Every set by name, ``heldout`` first."""
        return {HELDOUT: EvaluationSet(**{key: getattr(self, key) for key in _COMMON}), **self.sets}

    def due(self, step: int, last: int) -> Mapping[str, EvaluationSet]:
        """Return the sets to evaluate after ``step`` of ``last`` steps, by name: all of them at step 0 and the last."""
        return {name: each for name, each in self.all_sets.items() if step == last or step % each.every == 0}

    def with_every(self, steps: int) -> Evaluate:
        """Return the same evaluation, with all sets evaluated every ``steps`` steps."""
        sets = {name: each.model_copy(update={"every": steps}) for name, each in self.sets.items()}
        return self.model_copy(update={"every": steps, "sets": sets})


def _with_defaults(given: Any, shared: Mapping[str, Any]) -> Any:
    if isinstance(given, EvaluationSet):
        return given.model_copy(update={k: v for k, v in shared.items() if k not in given.model_fields_set})
    return {**shared, **given} if isinstance(given, Mapping) else given
