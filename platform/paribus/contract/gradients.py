"""What a runner is asked for, and what it answers, when one gradient of many objectives is compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from paribus.contract.job import Options
from paribus.recipe.recipe import Recipe

PARTS = ("long", "wrong", "rare", "first", "last")
"""Tokens whose share in the weight of a gradient is reported, in the words of :class:`ObjectiveGradient`."""


@dataclass(frozen=True, kw_only=True)
class GradientJob:
    """The weights and rollouts of one step, and the objectives whose gradients are taken there.

    Attributes:
        run: fingerprint of the run whose weights and rollouts they are.
        recipe: its recipe.
        options: what its study says to the runner.
        seed: its seed.
        cache: folder for things made once, as of :class:`paribus.contract.Job`.
        checkpoint: its checkpoint; ``None``: the weights that it begins with.
        base: the recipe that the others are compared with.
        arms: the others, by any name. Where they ask for other rollouts, they get those of the run.
        after_updates: take the gradients after the run's own updates on these rollouts.
    """

    run: str
    recipe: Recipe
    options: Options
    seed: int
    cache: str
    checkpoint: Path | None
    base: Recipe
    arms: Mapping[str, Recipe]
    after_updates: bool = False

    def at(self, step: int) -> GradientJob:
        """Return what is asked for with each recipe as it acts in a step."""
        arms = {name: arm.at(step) for name, arm in self.arms.items()}
        return replace(self, recipe=self.recipe.at(step), base=self.base.at(step), arms=arms)


@dataclass(frozen=True, kw_only=True)
class ObjectiveGradient:
    """The gradient of one objective, before gradient clipping.

    Attributes:
        norm: its Euclidean norm over all parameters of the policy.
        cosine: to the gradient of the base; ``None`` where one of the two is 0.
        ratio: its norm over that of the base; ``None`` where that is 0.
        distance: norm of its difference to the gradient of the base, over the norm of the latter, or over its own
            where that is 0.
        residual: norm of its part at right angles to the base's gradient, over its own norm; 0 where one is 0.
        responses: responses in the loss.
        weight: share in the sum of |c| over all tokens, where the gradient is the sum of -c grad log pi: of tokens of
            responses longer than the median (``long``), of responses that are wrong (``wrong``), of tokens that had a
            probability below 0.2 (``rare``), in the first third (``first``) and in the last third (``last``) of their
            response. Empty where all c are 0.
    """

    norm: float
    cosine: float | None
    ratio: float | None
    distance: float
    residual: float
    responses: int
    weight: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """Gradients of several objectives at the same weights, on the same rollouts.

    Attributes:
        step: steps that the weights have seen.
        rollouts: ``sampled again``: as the run sampled its first round of the next step; ``recorded``: the checkpoint
            held them, from a policy of earlier steps.
        groups: number of groups.
        responses: number of responses.
        tokens: number of their tokens.
        share: share of the tokens in each of :data:`PARTS`.
        updates: optimizer updates that the run made on the rollouts before the gradients were taken.
        noise: distance, as of :class:`ObjectiveGradient`, between two computations of the base's gradient with the
            groups in another order: what rounding does.
        base: the gradient of the base.
        arms: those of the others.
    """

    step: int
    rollouts: Literal["sampled again", "recorded"]
    groups: int
    responses: int
    tokens: int
    share: Mapping[str, float]
    updates: int
    noise: float
    base: ObjectiveGradient
    arms: Mapping[str, ObjectiveGradient]
