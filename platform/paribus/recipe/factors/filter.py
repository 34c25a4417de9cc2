"""F3 group filter: which groups of responses are trained on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paribus.recipe.factors.level import Count, Level

GroupMetric = Literal["correct", "reward_std"]


class NoFilter(Level):
    """Every group is trained on."""

    kind: Literal["none"] = "none"


class Drop(Level):
    """Groups without spread are removed; the batch shrinks."""

    kind: Literal["drop"] = "drop"
    metric: GroupMetric = Field(default="correct", description="what must differ inside a group")


class Refill(Level):
    """Dynamic sampling (DAPO): sample until P groups with spread are there, discard the surplus."""

    kind: Literal["refill"] = "refill"
    metric: GroupMetric = Field(default="correct", description="what must differ inside a group")
    max_generation_batches: Count = Field(
        default=6,
        description="sampling rounds per step; when they are used up the step trains on what it has",
    )


class RefillAsync(Level):
    """Active sampling (Olmo 3): the sampler keeps a queue full, the learner waits for P groups with spread."""

    kind: Literal["refill_async"] = "refill_async"
    metric: GroupMetric = Field(default="reward_std", description="what must differ inside a group")
    max_generation_batches: Count = Field(default=6, description="sampling rounds per step")
    max_surplus: Annotated[int, Field(ge=0)] = Field(default=16, description="groups kept for the next step at most")


Filter = Annotated[NoFilter | Drop | Refill | RefillAsync, Field(discriminator="kind")]
