"""Stages: studies whose runs begin with models that runs of other studies have trained.

A recipe names such a model (:mod:`paribus.recipe.trained`). The plan looks it up, so a run's fingerprint holds the hash
of the model's files, and the job of a run names their folder.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from paribus.contract import Options, Runner
from paribus.errors import ParibusError
from paribus.recipe.analysis.facts import other_reference
from paribus.recipe.recipe import Recipe
from paribus.recipe.trained import TrainedBy
from paribus.study.plan import Arm, Stage
from paribus.text import plural


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A model that a run has trained.

    Attributes:
        run: fingerprint of the run, 64 hexadecimal digits.
        step: steps that it was trained.
        path: folder of the model, inside the home folder.
    """

    run: str
    step: int
    path: str


class Models(Protocol):
    """Finds the models of a home folder's runs."""

    home: Path

    def find(self, source: TrainedBy, seed: int) -> Trained:
        """Return the model of a run.

        Raises:
            ParibusError: there is none; the message says what is missing and what to do.
        """


def names(recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield the path in the recipe and the name of each model that a run of another study trains."""
    other = other_reference(recipe)
    for field, name in (("model.name", recipe.model.name), ("kl.reference.name", other.name if other else "")):
        if TrainedBy.read(name) is not None:
            yield field, name


def located(recipe: Recipe, home: Path, paths: Mapping[str, str]) -> Recipe:
    """Return the recipe with the folders of models in place of their names.

    Args:
        recipe: of an arm.
        home: home folder.
        paths: name of a model to its folder in ``home``; may be empty.
    """
    if not paths:
        return recipe
    folders = {name: str((home / path).resolve()) for name, path in paths.items()}
    model = recipe.model.model_copy(update={"name": folders.get(recipe.model.name, recipe.model.name)})
    other, kl = other_reference(recipe), recipe.kl
    if other is not None:
        kl = kl.model_copy(update={"reference": other.model_copy(update={"name": folders.get(other.name, other.name)})})
    return recipe.model_copy(update={"model": model, "kl": kl})


@dataclass(frozen=True)
class Stages:
    """What the runs of a plan begin with.

    Attributes:
        recipes: for each arm, by key, a recipe that a runner can look at: with the models of the first seed.
        of: arm and seed to what the run begins with; of runs that begin with a model of a study alone.
        faults: why models are not there.
        facts: where models come from, in lines.
    """

    recipes: Mapping[str, Recipe]
    of: Mapping[tuple[str, int], Stage]
    faults: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()


def find_stages(
    arms: Sequence[Arm], seeds: Mapping[str, Sequence[int]], runner: Runner, options: Options, models: Models | None
) -> Stages:
    """Look the models up that the runs of some arms begin with.

    Args:
        arms: the arms.
        seeds: key of an arm to the seeds of its runs.
        runner: hashes the models.
        options: of the study.
        models: finds them; ``None``: there is no home folder to look in.
    """
    recipes = {arm.key: arm.recipe for arm in arms}
    of: dict[tuple[str, int], Stage] = {}
    faults: dict[str, None] = {}
    facts: dict[str, dict[str, None]] = {}
    for arm in arms:
        wanted = [*names(arm.recipe)]
        for seed in seeds[arm.key] if wanted else ():
            try:
                found = {name: _find(field, name, seed, models) for field, name in wanted}
                assert models is not None  # else nothing is found
                paths = {name: each.path for name, each in found.items()}
                recipe = located(arm.recipe, models.home, paths)
                digest = runner.hashes(recipe, options).model
            except ParibusError as error:
                faults[str(error)] = None
                continue
            if recipes[arm.key] is arm.recipe:
                recipes[arm.key] = recipe
            of[arm.key, seed] = Stage(
                models=paths, runs={name: each.run for name, each in found.items()}, model_hash=digest
            )
            for name, each in found.items():
                facts.setdefault(name, {})[f"run {each.run[:12]} after {plural(each.step, 'step')}"] = None
    lines = (f"{name}: {_some([*runs])}" for name, runs in facts.items())
    return Stages(recipes, of, tuple(faults), tuple(lines))


def _find(field: str, name: str, seed: int, models: Models | None) -> Trained:
    source = TrainedBy.read(name)
    assert source is not None  # see `names`
    if models is None:
        raise ParibusError(f"`{field}: {name}`: models of runs are looked up in a home folder, and there is none here")
    try:
        return models.find(source, seed if source.seed is None else source.seed)
    except ParibusError as error:
        raise ParibusError(f"`{field}: {name}`: {error}") from error


def _some(texts: Sequence[str]) -> str:
    """Return the first texts of a list, and how many more there are."""
    shown = 3
    more = f", and {len(texts) - shown} more, one a seed" if len(texts) > shown else ""
    return ", ".join(texts[:shown]) + more
