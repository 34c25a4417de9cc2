"""Fingerprints: which runs are the same run, across studies and versions.

A fingerprint hashes what the numbers of a run depend on, and nothing else: no names, no labels. Options that are added
later must not change the fingerprints of runs from before: :data:`ADDED` records for each the value that means the old
behaviour, and a value equal to it is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from paribus.recipe.recipe import Recipe, fingerprint_of, flatten
from paribus.study.job import Evaluate

SCHEMA = 1
"""Version of what goes into a fingerprint; raised only when the meaning of recorded values changes."""

ADDED: Mapping[str, Any] = {}
"""Dotted path of an option that was added after version 0.1 to the value that means the behaviour before it."""


def recipe_key(recipe: Recipe, added: Mapping[str, Any] = ADDED) -> dict[str, Any]:
    """Return the part of a fingerprint that the recipe gives: dotted path to value, without what was added later."""
    return _without(flatten(recipe.model_dump(mode="json")), added)


def run_fingerprint(
    *,
    recipe: Recipe,
    evaluate: Evaluate,
    seed: int,
    code: str,
    data: str,
    model: str,
    added: Mapping[str, Any] = ADDED,
) -> str:
    """Return the identity of a run, 64 hexadecimal digits.

    Args:
        recipe: as in :func:`fingerprints`.
        evaluate: as there.
        seed: the run's seed.
        code: as there.
        data: as there.
        model: as there.
        added: as there.
    """
    of = fingerprints(recipe=recipe, evaluate=evaluate, code=code, data=data, model=model, added=added)
    return of(seed)


def fingerprints(
    *,
    recipe: Recipe,
    evaluate: Evaluate,
    code: str,
    data: str,
    model: str,
    added: Mapping[str, Any] = ADDED,
    stops: Mapping[str, Any] | None = None,
) -> Callable[[int], str]:
    """Return a function from the seed of an arm's run to the run's identity, so that an arm is looked at once.

    Args:
        recipe: all values resolved.
        evaluate: how the run is evaluated.
        code: the runner's hash of the code that the numbers depend on.
        data: the runner's hash of problems and verifier.
        model: the runner's hash of the initial model.
        added: see :data:`ADDED`; paths under ``evaluate.`` for options of the evaluation.
        stops: of :func:`stops_of`; absent: none.
    """
    measured = {**evaluate.model_dump(mode="json"), "primary": evaluate.primary_metric}
    shared = {
        "schema": SCHEMA,
        "recipe": recipe_key(recipe, added),
        "evaluate": _without(measured, {k.removeprefix("evaluate."): v for k, v in added.items()}),
        "horizon": recipe.schedule.steps,
        "code": code,
        "data": data,
        "model": model,
        **(stops or {}),
    }
    return lambda seed: fingerprint_of({**shared, "seed": seed})


def stops_of(stop_on: Iterable[str], profile: str) -> dict[str, Any]:
    """Return the part of a fingerprint that detectors give which may end the run, and so change its score.

    Empty for ``nan`` and ``dead_run``: a run that these end has no score to compare.
    """
    named = sorted(set(stop_on) - {"nan", "dead_run"})
    return {"stops": {"on": named, "profile": profile}} if named else {}


def _without(flat: Mapping[str, Any], added: Mapping[str, Any]) -> dict[str, Any]:
    return {path: value for path, value in flat.items() if path not in added or added[path] != value}
