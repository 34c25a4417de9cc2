"""F0 schedule: how much is sampled, and how often the policy is updated on it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from paribus.recipe.factors.level import Count, Fraction, Level, Positive


class Joint(Level):
    """All tokens of a batch are updated together."""

    kind: Literal["joint"] = "joint"


class Lopti(Level):
    """Low-probability tokens first, the others from the new weights (Lopti, arXiv 2505.12929)."""

    kind: Literal["lopti"] = "lopti"
    eta: Fraction = Field(default=0.5, description="old probability below which a token is in the first pass")


class Schedule(Level):
    """F0: how much is sampled, and how often the policy is updated on it."""

    steps: Count = Field(default=40, description="rollout batches, each followed by its updates (the horizon)")
    tokens: Count | None = Field(
        default=None,
        description="budget of generated tokens: the step that spends it is the last, after `steps` steps at most; "
        "null: `steps` alone ends a run",
    )
    retire_at: Annotated[float, Field(gt=0, le=1)] | None = Field(
        default=None,
        description="pass rate of a prompt's responses from which on it is left out of later passes over the problems "
        "(No-Positive-Resampling, ScaleRL, arXiv 2510.13786); null: all prompts come back",
    )
    prompts_per_step: Count = Field(default=16, description="prompts in a rollout batch (P)")
    group_size: Count = Field(default=8, description="responses per prompt (G)")
    minibatches: Count = Field(default=1, description="optimizer updates in one pass over a rollout batch")
    epochs: Count = Field(default=1, description="passes over a rollout batch")
    max_new_tokens: Count = Field(default=37, description="generation limit, tokens incl. the end mark")
    temperature: Positive = Field(default=1.0, description="sampling temperature, also of all log-probabilities")
    staleness: Annotated[int, Field(ge=0)] = Field(
        default=0, description="rollout batches that sampling may lag behind"
    )
    update: Annotated[Joint | Lopti, Field(discriminator="kind")] = Joint()

    @model_serializer(mode="wrap", when_used="json")
    def _without_later_options(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave options out where they are null: recipes keep their text from before there were such options."""
        values: dict[str, Any] = dump(self)
        return {k: v for k, v in values.items() if k not in ("tokens", "retire_at") or v is not None}

    @property
    def updates_per_rollout(self) -> int:
        """U, optimizer updates on one rollout batch; with U = 1 the ratio is identically 1."""
        return self.minibatches * self.epochs

    @property
    def responses(self) -> int:
        """P x G, responses of one sampling round."""
        return self.prompts_per_step * self.group_size

    @property
    def horizon(self) -> str:
        """What ends a run, in words: ``40 steps``, or ``2,000,000 generated tokens (at most 400 steps)``."""
        if self.tokens is None:
            return f"{self.steps} steps"
        return f"{self.tokens:,} generated tokens (at most {self.steps} steps)"

    def spent(self, step: int, generated: int) -> bool:
        """Whether a run ends after ``step`` steps in which it generated so many tokens; it has one step at least."""
        return step >= self.steps or (self.tokens is not None and step > 0 and generated >= self.tokens)

    @model_validator(mode="after")
    def _divisible(self) -> Schedule:
        if self.minibatches > self.prompts_per_step:
            raise ValueError(
                f"schedule.minibatches ({self.minibatches}) is larger than schedule.prompts_per_step "
                f"({self.prompts_per_step}): a minibatch holds whole groups, so it needs at least one prompt"
            )
        return self
