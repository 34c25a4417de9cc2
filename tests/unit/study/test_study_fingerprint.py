"""Fingerprints: kept for ever, and changed by what changes the numbers alone."""

from __future__ import annotations

from typing import Any

import pytest

from paribus.contract import Evaluate, Hashes, Options
from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import Recipe, flatten
from paribus.study.fingerprint import ADDED, fingerprints, recipe_key, stops_of


def run_fingerprint(*, seed: int, code: str, data: str, model: str, **parts: Any) -> str:
    """Return the fingerprint of one run."""
    return fingerprints(hashes=Hashes(code=code, data=data, model=model), **parts)(seed)


PARTS: dict[str, Any] = {
    "recipe": Recipe(), "evaluate": Evaluate(), "seed": 0, "code": "c", "data": "d", "model": "m",
}  # fmt: skip


def test_golden_fingerprints() -> None:
    """Runs that were recorded under version 0.1 are found again: these keys never change.

    A new option of a recipe must be entered in ``ADDED`` with the value that means the behaviour before it.
    """
    assert run_fingerprint(**PARTS) == GOLDEN["default"]
    assert run_fingerprint(**{**PARTS, "recipe": load_preset("dapo").recipe}) == GOLDEN["dapo"]


GOLDEN = {
    "default": "34409ace1eb4a35ab54ba23d7dd4b10742c008f77396deb920b9c9a83e404787",
    "dapo": "3c888b183561c39714cbaabd62a6ccfe6c643b30321704c5294c008d866e5d93",
}


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"code": "x"},
        {"data": "x"},
        {"model": "x"},
        {"evaluate": Evaluate(every=5)},
        {"evaluate": Evaluate(samples=2)},
        {"recipe": Recipe.model_validate({"schedule": {"steps": 41}})},
        {"recipe": Recipe.model_validate({"optimizer": {"learning_rate": 1e-4}})},
        {"recipe": Recipe.model_validate({"clip": {"kind": "ppo_dual"}})},
        {"options": Options(own={"workers": 2})},
        {"options": Options(passthrough={"workers": 2})},
    ],
)
def test_what_changes_the_numbers_changes_the_fingerprint(change: dict[str, Any]) -> None:
    """Recipe, evaluation, seed, horizon, code, data and model are each part of the identity."""
    assert run_fingerprint(**{**PARTS, **change}) != run_fingerprint(**PARTS)


def test_code_data_and_model_do_not_take_each_others_place() -> None:
    """Swapping two hashes is another run."""
    assert run_fingerprint(**{**PARTS, "code": "d", "data": "c"}) != run_fingerprint(**PARTS)


def test_equal_values_have_equal_fingerprints_however_they_are_written() -> None:
    """1 and 1.0 are the same coefficient; the default metric and its name are the same."""
    whole = Recipe.model_validate({"reward": {"factor": 1}})
    named = Evaluate(primary="eval/heldout/avg_at_1")
    assert run_fingerprint(**{**PARTS, "recipe": whole, "evaluate": named}) == run_fingerprint(**PARTS)


def test_an_option_that_was_added_with_its_old_meaning_leaves_keys_alone() -> None:
    """A value equal to the recorded old behaviour is left out of the key; another one is in it."""
    added = {"reward.factor": 1.0, "evaluate.temperature": 1.0}
    assert "reward.factor" not in recipe_key(Recipe(), added)
    assert recipe_key(Recipe.model_validate({"reward": {"factor": 2.0}}), added)["reward.factor"] == 2.0
    before = run_fingerprint(**PARTS, added=added)
    assert run_fingerprint(**{**PARTS, "evaluate": Evaluate(temperature=0.5)}, added=added) != before


def test_options_that_say_nothing_leave_keys_alone() -> None:
    """A study without options has the runs that it had before there were options; own and passed ones differ."""
    assert run_fingerprint(**PARTS, options=Options()) == run_fingerprint(**PARTS) == GOLDEN["default"]
    both = [run_fingerprint(**PARTS, options=Options(**{kind: {"beta": 0.1}})) for kind in ("own", "passthrough")]
    assert len(set(both)) == 2


def test_only_paths_of_a_recipe_are_recorded_as_added() -> None:
    """A misspelt entry of the table would silently do nothing."""
    known = {f"evaluate.{name}" for name in Evaluate.model_fields} | set(flatten(Recipe().model_dump()))
    assert set(ADDED) <= known


def test_detectors_that_may_end_a_run_are_part_of_its_identity() -> None:
    """Cut off or not is another score; `nan` and `dead_run` leave none, and order says nothing."""

    def found(*stop_on: str, profile: str = "default") -> str:
        return run_fingerprint(**PARTS, stops=stops_of(stop_on, profile))

    assert found() == found("nan", "dead_run", profile="moe") == run_fingerprint(**PARTS)
    ended = found("nan", "truncation", "kl_blowup")
    assert ended == found("kl_blowup", "truncation")
    assert len({ended, found("truncation"), found("truncation", profile="moe"), found()}) == 4
