"""F0 schedule: how much is sampled, and how often the policy is updated on it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from paribus.recipe.factors.level import Count, Fraction, Level, Positive
from paribus.text import plural


class Joint(Level):
    """All tokens of a batch are updated together."""

    kind: Literal["joint"] = "joint"


class Lopti(Level):
    """Low-probability tokens first, the others from the new weights (Lopti, arXiv 2505.12929)."""

    kind: Literal["lopti"] = "lopti"
    eta: Fraction = Field(default=0.5, description="old probability below which a token is in the first pass")


class SteadyTemperature(Level):
    """All steps have ``schedule.temperature``."""

    kind: Literal["none"] = "none"


class LinearTemperature(Level):
    """T(s) = T_1 + (to - T_1) min(1, (s - 1) / (over - 1)), from ``schedule.temperature`` in step 1.

    Downwards it is annealing; upwards it works against a policy that sharpens.
    """

    kind: Literal["linear"] = "linear"
    to: Positive = Field(description="temperature of step `over` and of all later ones")
    over: Annotated[int, Field(ge=2)] | None = Field(
        default=None, description="step that has the last temperature; null: `schedule.steps`"
    )


class StagedTemperature(Level):
    """``schedule.temperature``, and from given steps on others (Polaris raises it so: An et al. 2025)."""

    kind: Literal["stages"] = "stages"
    begins: Annotated[tuple[Annotated[int, Field(ge=2)], ...], Field(min_length=1)] = Field(
        description="first step of each later stage, ascending"
    )
    temperatures: Annotated[tuple[Positive, ...], Field(min_length=1)] = Field(
        description="temperature of each of these stages"
    )

    @model_validator(mode="after")
    def _paired(self) -> StagedTemperature:
        if len(self.begins) != len(self.temperatures):
            raise ValueError(
                f"{len(self.begins)} stages begin, and there are {len(self.temperatures)} temperatures: give each one"
            )
        if list(self.begins) != sorted(set(self.begins)):
            raise ValueError(
                f"begins ({', '.join(map(str, self.begins))}) must ascend: each stage begins after another"
            )
        return self


_LATER = {
    "tokens": None,
    "prompts": None,
    "retire_at": None,
    "top_p": 1.0,
    "top_k": None,
    "temperature_change": {"kind": "none"},
}
"""Options that came after version 0.1, with the value that does nothing."""


class Schedule(Level):
    """F0: how much is sampled, and how often the policy is updated on it."""

    steps: Count = Field(default=40, description="rollout batches, each followed by its updates (the horizon)")
    tokens: Count | None = Field(
        default=None,
        description="budget of generated tokens: the step that spends it is the last, after `steps` steps at most; "
        "null: `steps` alone ends a run",
    )
    prompts: Count | None = Field(
        default=None,
        description="budget of sampled prompts: the step that spends it is the last, after `steps` at most; null: none",
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
    temperature_change: Annotated[
        SteadyTemperature | LinearTemperature | StagedTemperature, Field(discriminator="kind")
    ] = SteadyTemperature()
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0,
        description="tokens are drawn from the fewest that add up to this share, and all log-probabilities are over "
        "these; 1: from all",
    )
    top_k: Count | None = Field(
        default=None, description="tokens are drawn from this many, the most likely, before `top_p`; null: from all"
    )
    staleness: Annotated[int, Field(ge=0)] = Field(
        default=0, description="rollout batches that sampling may lag behind"
    )
    update: Annotated[Joint | Lopti, Field(discriminator="kind")] = Joint()

    @model_serializer(mode="wrap", when_used="json")
    def _without_later_options(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out options that came later where they do nothing: recipes keep their text from before."""
        values: dict[str, Any] = dump(self)
        return {k: v for k, v in values.items() if k not in _LATER or v != _LATER[k]}

    @property
    def truncates(self) -> bool:
        """Whether the sampler leaves tokens out."""
        return self.top_p < 1 or self.top_k is not None

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
        found = [] if self.tokens is None else [f"{self.tokens:,} generated tokens"]
        found += [] if self.prompts is None else [f"{self.prompts:,} sampled prompts"]
        return f"{' or '.join(found)} (at most {plural(self.steps, 'step')})" if found else plural(self.steps, "step")

    @property
    def budgets(self) -> tuple[int | None, int | None]:
        """The budgets of generated tokens and of sampled prompts."""
        return self.tokens, self.prompts

    def temperature_at(self, step: int) -> float:
        """Return the temperature of a step, by which its rollouts are sampled and scored; of step 1 for any before."""
        change = self.temperature_change
        if isinstance(change, LinearTemperature):
            done = min(1.0, max(0, step - 1) / max(1, (change.over or self.steps) - 1))
            return self.temperature + (change.to - self.temperature) * done
        if isinstance(change, StagedTemperature):
            stages = zip(change.begins, change.temperatures, strict=True)
            return [self.temperature, *(value for begin, value in stages if begin <= step)][-1]
        return self.temperature

    @property
    def temperatures(self) -> tuple[float, ...]:
        """All temperatures of a run, or of a line those at its ends."""
        change = self.temperature_change
        if isinstance(change, LinearTemperature):
            return self.temperature, self.temperature_at(self.steps)
        return tuple(dict.fromkeys(map(self.temperature_at, (1, *getattr(change, "begins", ())))))

    def spent(self, step: int, generated: int, prompts: int = 0) -> bool:
        """Whether a run ends after some steps; it has one step at least.

        Args:
            step: how many they are.
            generated: tokens generated in them.
            prompts: prompts sampled in them.
        """
        budgets = ((self.tokens, generated), (self.prompts, prompts))
        return step >= self.steps or (step > 0 and any(most is not None and have >= most for most, have in budgets))

    @model_validator(mode="after")
    def _divisible(self) -> Schedule:
        if self.minibatches > self.prompts_per_step:
            raise ValueError(
                f"schedule.minibatches ({self.minibatches}) is larger than schedule.prompts_per_step "
                f"({self.prompts_per_step}): a minibatch holds whole groups, so it needs at least one prompt. "
                f"Write {self.prompts_per_step} or fewer, or more prompts"
            )
        return self
