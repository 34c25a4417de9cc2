"""Which levels of a recipe the native runner trains, as data."""

from __future__ import annotations

from paribus.recipe.recipe import Recipe

LEVELS: dict[str, frozenset[str]] = {
    "loss": frozenset({"policy_gradient"}),
    "schedule.update": frozenset({"joint"}),
    "reward.combine": frozenset({"sum_then_norm"}),
    "length.rule": frozenset({"none", "soft_overlong"}),
    "filter": frozenset({"none", "drop", "refill"}),
    "baseline": frozenset({"none", "group_mean", "group_loo", "batch_mean"}),
    "scale": frozenset({"none", "group_std", "batch_std_raw", "batch_std_centred", "batch_whiten"}),
    "ratio": frozenset({"none", "token", "seq_geo", "seq_geo_token", "seq_product"}),
    "clip": frozenset({"none", "ppo_min", "ppo_dual", "two_sided", "is_cap_sg", "soft_gate", "dynamic"}),
    "aggregation": frozenset({"seq_mean", "token_group", "token_batch", "const", "seq_sum", "seq_meansum"}),
    "kl": frozenset({"off", "reward", "loss", "loss_isw"}),
    "kl.reference": frozenset({"fixed"}),
    "correction": frozenset({"off"}),
    "token_weight": frozenset({"uniform", "top_entropy", "advantage_reweight"}),
}
"""Dotted path of a tagged choice to the levels that are trained. Paths that are not here are trained at any value."""


def missing(recipe: Recipe) -> tuple[str, ...]:
    """Return what of the recipe cannot be trained, one sentence each."""
    values = recipe.model_dump(mode="json")
    found = []
    for path, levels in LEVELS.items():
        level = _level(values, path)
        if level is not None and level not in levels:
            found.append(f"`{path}: {level}` is not trained; there are: {', '.join(sorted(levels))}.")
    if recipe.schedule.staleness:
        found.append(
            f"`schedule.staleness: {recipe.schedule.staleness}` is not trained: sampling and updates alternate."
        )
    if recipe.reward.weights.format:
        found.append("`reward.weights` names several rewards; the tasks here have one.")
    if recipe.auxiliary.value is not None:
        found.append("`auxiliary.value` is not trained: there is no critic.")
    if recipe.model.name == "tiny" and recipe.task.kind == "jsonl":
        found.append(
            "`model.name: tiny` reads only the symbols of the generated tasks: name another model for `jsonl`."
        )
    return tuple(found)


def _level(values: object, path: str) -> object:
    for key in path.split("."):
        if not isinstance(values, dict) or key not in values:
            return None
        values = values[key]
    return values.get("kind") if isinstance(values, dict) else values
