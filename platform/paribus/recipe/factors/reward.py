"""F1 reward: from the verifier's answer, and from functions of the user, to the scalar reward of a response."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from paribus.recipe.factors.level import Level, Positive

RESERVED = ("correct", "format", "length", "kl")
"""Parts of the reward that are no functions of the user."""


MOST = 1e6
"""The largest weight or stated score: sums of such rewards stay far below the largest float32."""
Weight = Annotated[float, Field(ge=-MOST, le=MOST)]


class Weights(Level):
    """How much each reward of a response counts; every task gives both."""

    correct: Weight = Field(default=1.0, description="the verdict, through `map`")
    format: Weight = Field(
        default=0.0, description="whether the response ended by itself and holds an answer, 1 or -1 (binary01: 0)"
    )


def dotted(path: str, example: str) -> str:
    """Return a path that names a function of a module.

    Raises:
        ValueError: it names no function of a module.
    """
    if "." not in path or not all(part.isidentifier() for part in path.split(".")):
        raise ValueError(f"`{path}` is not `module.function`: write e.g. `{example}`")
    return path


class RewardFunction(Level):
    """A Python function of the user that scores all responses to one prompt in one call."""

    path: str = Field(
        description="module and function, e.g. `my_rewards.brevity` of my_rewards.py beside the study file; a module "
        "that is not there is imported as any installed one"
    )
    weight: Weight = Field(
        default=1.0, description="how much it counts beside `weights`; 0: it is measured, but not trained on"
    )
    on_failure: Weight = Field(
        default=0.0, description="the score of each response of a call that fails: see docs/howto/rewards.md"
    )
    unit: Literal["response", "step"] = Field(
        default="response",
        description="`response`: one number for each; `step`: for each a list of [characters up to the end of a step, "
        "number], for `baseline: group_steps`",
    )
    timeout_s: Positive = Field(default=10.0, description="seconds after which a call is ended")
    memory_gib: Positive = Field(default=4.0, description="address space of each of its processes")

    @field_validator("path")
    @classmethod
    def _dotted(cls, path: str) -> str:
        return dotted(path, "my_rewards.brevity")

    @model_serializer(mode="wrap")
    def _without_unit_of_responses(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out ``unit`` where it does nothing: recipes from before there were steps keep their fingerprints."""
        values: dict[str, Any] = dump(self)
        return {k: v for k, v in values.items() if (k, v) != ("unit", "response")}


class Functions(dict[str, RewardFunction]):
    """Reward functions by name; hashable, as all of a recipe is."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


class Reward(Level):
    """F1: from the verifier's answer to the scalar reward of a response."""

    map: Literal["binary01", "pm1", "scalar"] = Field(
        default="scalar",
        description="binary01: R = y; pm1: R = 2y - 1 (DAPO Eq. 7); scalar: the task's own score",
    )
    factor: Annotated[Positive, Field(le=MOST)] = Field(default=1.0, description="multiplies R (Olmo 3 uses 10)")
    combine: Literal["sum_then_norm", "norm_then_sum"] = Field(
        default="sum_then_norm",
        description="several rewards: weighted sum, then advantages; or each normalised in its group, then summed",
    )
    weights: Weights = Weights()
    functions: dict[str, RewardFunction] = Field(
        default=Functions(),
        description="functions of your own by name, each `{path, weight, on_failure, timeout_s, memory_gib}`",
    )

    @field_validator("functions")
    @classmethod
    def _own_names(cls, functions: dict[str, RewardFunction]) -> Functions:
        if wrong := [name for name in functions if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,39}", name)]:
            raise ValueError(f"`{wrong[0]}` is not a name for a function: letters, digits and `_`, at most 40")
        if taken := sorted(set(functions) & set(RESERVED)):
            raise ValueError(f"`{taken[0]}` already names a part of the reward: give your function another name")
        return Functions(sorted(functions.items()))  # sums have one order, whatever the order in the study file

    @property
    def counts(self) -> Mapping[str, float]:
        """Weight of each part of the reward that counts."""
        parts = {"correct": self.weights.correct, "format": self.weights.format}
        parts |= {name: function.weight for name, function in self.functions.items()}
        return {name: weight for name, weight in parts.items() if weight}

    @model_serializer(mode="wrap")
    def _without_no_functions(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out ``functions`` without any: recipes from before there were functions keep their fingerprints."""
        values: dict[str, Any] = dump(self)
        return values if self.functions else {k: v for k, v in values.items() if k != "functions"}
