"""Fingerprints: which runs are the same run, across studies and versions.

A fingerprint hashes what the numbers of a run depend on, and nothing else: no names, no labels. Options that are added
later must not change the fingerprints of runs from before: :data:`ADDED` records for each the value that means the old
behaviour, and a value equal to it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paribus.contract import Evaluate, Hashes, Options
from paribus.recipe.recipe import Recipe, fingerprint_of, flatten

SCHEMA = 1
"""Version of what goes into a fingerprint; raised only when the meaning of recorded values changes."""

ADDED: Mapping[str, Any] = {
    "rollout.engine": "torch",
    "compute.sharding": "none",
    "compute.gradient_checkpointing": False,
    "compute.offload": [],
    "compute.sampling_processes": 0,
    "compute.head": "torch",
    "schedule.tokens": None,
    "schedule.prompts": None,
    "schedule.retire_at": None,
    "schedule.temperature_change.kind": "none",
    "schedule.top_p": 1.0,
    "schedule.top_k": None,
    "length.keep.kind": "all",
    "model.lora": None,
    "model.logits_dtype": "auto",
    "turns.kind": "single",
    "model.train": None,
    "model.freeze": None,
    "model.trained_dtype": "float32",
    "rollout.routing_replay": "off",
}
"""Dotted path of an option that was added after version 0.1 to the value that means the behaviour before it."""


def recipe_key(recipe: Recipe, added: Mapping[str, Any] = ADDED) -> dict[str, Any]:
    """Return the part of a fingerprint that the recipe gives: dotted path to value, without what was added later."""
    return without_added(flatten(recipe.model_dump(mode="json")), added)


def fingerprints(
    *,
    recipe: Recipe,
    evaluate: Evaluate,
    hashes: Hashes,
    options: Options | None = None,
    stops: Mapping[str, Any] | None = None,
    added: Mapping[str, Any] = ADDED,
) -> Callable[[int], str]:
    """Return a function from a seed to the fingerprint of an arm's run, 64 hexadecimal digits.

    Args:
        recipe: all values resolved.
        evaluate: how the run is evaluated.
        hashes: of code, data and initial model.
        options: what the study says to the runner; left out if empty.
        stops: of :func:`stops_of`; absent: none.
        added: see :data:`ADDED`; paths under ``evaluate.`` for options of the evaluation.
    """
    measured = {**evaluate.model_dump(mode="json"), "primary": evaluate.primary_metric}
    shared = {
        "schema": SCHEMA,
        "recipe": recipe_key(recipe, added),
        "evaluate": without_added(measured, {k.removeprefix("evaluate."): v for k, v in added.items()}),
        "horizon": recipe.schedule.steps,
        "code": hashes.code,
        "data": hashes.data,
        "model": hashes.model,
        **(stops or {}),
        **({"options": options.said} if options is not None and options.said else {}),
    }
    return lambda seed: fingerprint_of({**shared, "seed": seed})


def stops_of(stop_on: Iterable[str], profile: str) -> dict[str, Any]:
    """Return the part of a fingerprint that detectors give which may end the run, and so change its score.

    Empty for ``nan`` and ``dead_run``: a run that these end has no score to compare.
    """
    named = sorted(set(stop_on) - {"nan", "dead_run"})
    return {"stops": {"on": named, "profile": profile}} if named else {}


def without_added(flat: Mapping[str, Any], added: Mapping[str, Any] = ADDED) -> dict[str, Any]:
    """Return dotted paths and values without those that mean the behaviour before their option was added."""
    return {path: value for path, value in flat.items() if path not in added or added[path] != value}
