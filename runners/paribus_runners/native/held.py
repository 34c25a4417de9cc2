"""What a run holds from its first update to its end: weights, gradients, moments, other networks. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Literal

from paribus.recipe.analysis.facts import has_reference
from paribus.recipe.factors import SyncedReference
from paribus.recipe.recipe import Model, Recipe

FULL = 4
"""Bytes of a float32."""


@dataclass(frozen=True, kw_only=True)
class Held:
    """Numbers that a run holds from its first update to its end.

    Attributes:
        weights: parameters of the model.
        trained: parameters that are trained.
        frozen: bytes of a parameter that is not.
        inside: whether those that are trained are some of ``weights``, and not adapters beside all of them.
        processes: processes of the run that train, which may share what the optimizer holds.
        other: bytes of another model that is the reference; ``None``: the reference is the initial policy.
    """

    weights: int
    trained: int
    frozen: int = FULL
    inside: bool = False
    processes: int = 1
    other: int | None = None

    @property
    def beside(self) -> bool:
        """Whether adapters are trained: the weights then have the type of the computations, and no gradient."""
        return self.trained < self.weights and not self.inside

    def bytes(self, recipe: Recipe, *, gradients: Literal["all", "critic", "none"] = "all", whole: bool = True) -> int:
        """Return the bytes on the device of weights, gradients, moments, masters, reference and critic.

        Args:
            recipe: says whether there is a reference or a critic, and what is in bfloat16, dealt out or offloaded.
            gradients: whose are there: the policy's are freed before each update, all of them after the last one.
            whole: whether all weights are there; sharded ones are not while they are updated.
        """
        found = self.moving(recipe, gradients=gradients == "all", whole=whole)
        found += self.still if whole else 0
        if self.shared(recipe):
            found += ceil(self.still / self.processes)
        if "reference" not in recipe.compute.offload and (not apart(recipe) or moves(recipe)):
            found += self._reference(recipe)
        if recipe.auxiliary.value is not None:
            found += self.moving(recipe, gradients=gradients != "none")
        return found

    def bytes_to_sample(self, recipe: Recipe) -> int:
        """Return the bytes on the device of a process that samples and does nothing else: weights and reference."""
        trained = self.trained * of_weight(recipe.model)
        here = has_reference(recipe) and "reference" not in recipe.compute.offload
        reference = trained if self.other is None else self.other  # the former shares what is not trained
        return trained + self.still + (reference if here else 0)

    def shared(self, recipe: Recipe) -> bool:
        """Return whether processes share the weights."""
        return recipe.compute.sharding == "weights" and self.processes > 1

    def _reference(self, recipe: Recipe) -> int:
        """Return the bytes of a reference; beside weights that are shared, it shares none of them."""
        if not has_reference(recipe):
            return 0
        if self.other is not None:
            return self.other
        return self.trained * of_weight(recipe.model) + (self.still if self.shared(recipe) else 0)

    @property
    def still(self) -> int:
        """Bytes of the weights that are not trained."""
        numbers = self.weights - (self.trained if self.inside else 0)
        return numbers * self.frozen if self.trained < self.weights else 0

    def moving(self, recipe: Recipe, *, gradients: bool = True, whole: bool = True) -> int:
        """Return the bytes of the weights that are trained, of their gradients, moments and masters."""
        each = of_optimizer(recipe, self.processes) + (of_weight(recipe.model) if whole else 0)
        of_gradient = FULL / self.processes if self.shared(recipe) else FULL
        return ceil(self.trained * (each + (of_gradient if gradients else 0)))

    def reference(self, recipe: Recipe) -> int:
        """Return the bytes of a reference that is in host memory where it does not compute."""
        return self._reference(recipe) if "reference" in recipe.compute.offload else 0


def apart(recipe: Recipe) -> bool:
    """Return whether some processes sample while the others train."""
    return recipe.compute.sampling_processes > 0


def moves(recipe: Recipe) -> bool:
    """Return whether a reference follows the policy."""
    return isinstance(getattr(recipe.kl, "reference", None), SyncedReference)


def of_weight(model: Model) -> int:
    """Return the bytes of a weight that is trained."""
    return 2 if model.trained_dtype == "bfloat16" else FULL


def of_optimizer(recipe: Recipe, processes: int) -> float:
    """Return the bytes that one of some processes holds on its device for a weight that is trained, beside it.

    Two moments, and the master of a weight in bfloat16. A sharded weight has a float32 share beside it.
    """
    here, sharded = "optimizer" not in recipe.compute.offload, recipe.compute.sharding
    if sharded == "weights" and processes > 1:
        return FULL * (3 if here else 1) / processes
    every = FULL * (3 if recipe.model.trained_dtype == "bfloat16" else 2)
    return every / (processes if sharded == "optimizer" else 1) if here else 0
