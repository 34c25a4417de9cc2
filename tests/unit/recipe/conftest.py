"""Recipes made of patches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from paribus.recipe.patch import apply
from paribus.recipe.recipe import Recipe


@pytest.fixture
def recipe() -> Callable[..., Recipe]:
    """A function that returns the default recipe with patches, the later on top of the earlier."""

    def patched(*patches: dict[str, Any]) -> Recipe:
        values: dict[str, Any] = Recipe().model_dump()
        for patch in patches:
            done = apply(values, patch)
            assert done.faults == ()
            values = done.values
        return Recipe.model_validate(values)

    return patched
