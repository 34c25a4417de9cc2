"""What of a change acts on the gradient of given rollouts at given weights, and what cannot be seen there, and why."""

from __future__ import annotations

from typing import NamedTuple

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe, difference

_OTHER_ROLLOUTS = "asks for other rollouts than those that the gradient is taken on"
_END = "says when training ends"
_LATER = "says how many updates are made on the rollouts; later ones start from other weights"

_PATHS = {
    "model": "is another policy, with other parameters",
    "task": _OTHER_ROLLOUTS,
    "optimizer": "acts on the gradient after it was computed",
    "turns": _OTHER_ROLLOUTS,
    "rollout": _OTHER_ROLLOUTS,
    "rollout.routing_replay": "says which experts an update takes; the rollouts are given, with those of their run",
    "compute": "says how a run uses its devices",
    "schedule": _OTHER_ROLLOUTS,
    "schedule.steps": _END,
    "schedule.tokens": _END,
    "schedule.prompts": _END,
    "schedule.minibatches": _LATER,
    "schedule.epochs": _LATER,
    "schedule.staleness": "says by how many steps sampling lags behind; the rollouts are given",
    "schedule.update": "orders two updates one after the other; at the same weights their gradients add up to one",
    "filter.max_generation_batches": _OTHER_ROLLOUTS,
    "filter.max_surplus": _OTHER_ROLLOUTS,
}
"""Paths of a recipe, or the beginnings of paths, that change no gradient of given rollouts at given weights."""


class Seen(NamedTuple):
    """What of a change one gradient shows.

    Attributes:
        recipe: the recipe as far as it acts there; all the rest is that of the run whose rollouts are given.
        hidden: path to the reason why nothing of it is visible.
        partly: path to what of it is not visible.
        acts: whether some of the change is visible.
    """

    recipe: Recipe
    hidden: dict[str, str]
    partly: dict[str, str]
    acts: bool


def seen(base: Recipe, arm: Recipe, run: Recipe) -> Seen:
    """Return what the gradient on the rollouts of a run shows of the difference between base and arm."""
    hidden, partly = dict[str, str](), dict[str, str]()
    changed = difference(base, arm)
    for path in changed:
        if reason := _hidden(path):
            hidden[path] = reason
    if _routed_elsewhere(run, arm):
        hidden |= {p: "weighs tokens by how another model routes them" for p in changed if p.startswith("token_weight")}
    if "filter.kind" in changed and isinstance(arm.filter, f.Refill | f.RefillAsync):
        partly["filter.kind"] = "which groups it drops is seen, not those that are sampled in their place"
    if arm.auxiliary.value is not None and run.auxiliary.value is None:
        partly["baseline.kind"] = "the critic is one that has seen no update: it values every state at 0"
    moving = isinstance(getattr(arm.kl, "reference", None), f.SyncedReference)
    if moving and not isinstance(getattr(run.kl, "reference", None), f.SyncedReference):
        partly["kl.reference.kind"] = "the reference is the initial model, as the run has none that moves"
    if arm.baseline.kind == "history" and run.baseline.kind != "history":
        partly["baseline.kind"] = "the prompts count as never seen, as the run keeps no statistics of them"
    return Seen(on_rollouts_of(run, arm), hidden, partly, acts=bool(changed.keys() - hidden.keys()))


def _hidden(path: str) -> str:
    parts = path.split(".")
    for count in range(len(parts), 0, -1):
        if reason := _PATHS.get(".".join(parts[:count])):
            return reason
    return ""


def on_rollouts_of(run: Recipe, arm: Recipe) -> Recipe:
    """Return the objective of an arm with one update on all rollouts of a run."""
    one = {"minibatches": 1, "epochs": 1, "staleness": 0, "update": f.Joint()}
    given = {name: getattr(run, name) for name in ("model", "task", "optimizer", "turns", "rollout", "compute")}
    if _routed_elsewhere(run, arm):
        given["token_weight"] = f.UniformWeight()
    return arm.model_copy(update={**given, "schedule": run.schedule.model_copy(update=one)})


def _routed_elsewhere(run: Recipe, arm: Recipe) -> bool:
    return arm.token_weight.kind == "router_shift" and arm.model != run.model
