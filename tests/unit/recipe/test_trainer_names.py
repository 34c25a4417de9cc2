"""The table of other trainers' names: each leads to something that exists, and to what was compared with their code."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from conformance import rows_trl, rows_verl
from conformance.row import Row
from paribus.contract import Evaluate
from paribus.recipe.factors import NoKl
from paribus.recipe.patch import apply, read_patch
from paribus.recipe.recipe import Recipe
from paribus.recipe.trainer_names import TrainerName, trainer_names
from paribus.yaml_file.document import parse_document, plain

NAMES = trainer_names()


def patch_of(here: str, value: object = 0.5) -> dict[str, Any]:
    """Return a path as the patch that sets it, or the patch with a value in its place."""
    text = here.replace("{}", str(value))
    found = plain(parse_document(text if ":" in text else f"{text}: {value}", "table").checked())
    assert isinstance(found, dict)
    return found


def meanings(name: TrainerName) -> Iterator[str]:
    """Yield what an option can be here."""
    yield from (here for here in (name.here, *name.values.values()) if here)


@pytest.mark.parametrize("name", NAMES, ids=lambda name: name.name)
def test_each_name_leads_to_a_part_of_a_recipe_or_study(name: TrainerName) -> None:
    """A path exists, a patch has no mistake; what has no counterpart says what there is instead."""
    assert name.here or name.note
    for here in meanings(name):
        section, _, rest = here.partition(".")
        if section in ("evaluate", "seeds"):
            assert section == "seeds" or rest in Evaluate.model_fields
        elif ":" in here:
            assert read_patch(patch_of(here))[1] == []
        else:
            faults = read_patch({here: 0.5})[1]
            assert all("no part" not in f.message and "no parameter" not in f.message for f in faults), faults


def test_there_are_enough_names() -> None:
    """Sixty of each trainer; none twice."""
    assert len({(name.trainer, name.name) for name in NAMES}) == len(NAMES)
    assert Counter(name.trainer for name in NAMES) == {"TRL": 60, "verl": 60}


START = Recipe(kl=NoKl()).model_dump()


def translated(row: Row) -> dict[str, Any] | None:
    """Return the table's patch for a row that compares one option; ``None`` if it is none of a recipe by itself."""
    names = {f"actor_rollout_ref.{o}" if o.startswith("actor.") else o: value for o, value in row.options.items()}
    if len(names) != 1 or row.preset or "ratio: seq_geo_token" in row.levels:  # which has the gradient of seq_geo
        return None
    ((full, value),) = names.items()
    for name in NAMES:
        if (name.trainer, name.name) == (row.library, full):
            here = name.values.get(str(value).lower() if isinstance(value, bool) else str(value), name.here)
            patch = patch_of(here, value) if here else {}
            return patch if patch and not apply(START, patch).faults else None
    return None


ROWS = [row for row in (*rows_trl.AGREE, *rows_verl.AGREE) if translated(row)]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.library} {row.options}")
def test_names_mean_what_was_compared_with_the_trainers_own_code(row: Row) -> None:
    """Where one option was compared, the table's patch gives the recipe that agreed, up to the size of eps."""
    patch = translated(row) or {}
    ours, theirs = (Recipe.model_validate(apply(START, p).values).model_dump() for p in (patch, row.patch))
    for part in {setting.path[0] for setting in read_patch(patch)[0]}:
        assert without_eps(ours[part]) == without_eps(theirs[part])


def without_eps(values: dict[str, Any]) -> dict[str, Any]:
    """Return the values without what only keeps a division finite."""
    return {key: value for key, value in values.items() if key != "eps"}


def test_many_rows_are_compared() -> None:
    """Fifteen options at least."""
    assert len(ROWS) >= 15
