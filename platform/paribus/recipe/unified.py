"""One gradient for all methods, and the coefficient that each gives a token (DeepSeekMath, arXiv 2402.03300, 5.2.1).

grad J = E[1/|o| sum_t GC(q, o, t) grad log pi(o_t)] (Eq. 5): methods differ in where responses come from, in the
reward, and in GC. Here GC is computed: the coefficient c of :mod:`paribus.recipe.coefficients` times |o| and the number
of responses.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paribus.recipe.coefficients import Response, ResponseCoefficients
from paribus.recipe.patch import apply
from paribus.recipe.presets import load_preset, preset_names
from paribus.recipe.recipe import Recipe

Coefficients = Callable[[Recipe, Sequence[Response]], Sequence[ResponseCoefficients]]
"""What computes c, e.g. ``coefficients`` of the native runner."""

ONLINE_RFT: Mapping[str, Any] = {"reward.map": "binary01", "aggregation": "seq_mean"}
"""The patch that makes `reinforce` online rejection sampling fine-tuning: 1 for right responses, 0 for wrong ones."""

SHOWN = ("right, 2 tokens", "right, 8 tokens", "wrong, 2 tokens", "wrong, 8 tokens")
"""The responses of the first prompt of :func:`example`, in order."""


@dataclass(frozen=True, kw_only=True)
class Method:
    """A row of the table.

    Attributes:
        name: of the method or preset.
        responses: where its responses come from.
        gc: GC of the first token of each of :data:`SHOWN`; ``None`` where the method has no such response.
    """

    name: str
    responses: str
    gc: tuple[float | None, ...]


def example() -> tuple[Response, ...]:
    """Return two prompts with four responses each: two and three of them right; every token has probability 0.5.

    The policy is the one that sampled, so every ratio is 1; under the reference each token has probability 0.45.
    """
    shapes = [("a", True, 2), ("a", True, 8), ("a", False, 2), ("a", False, 8)]
    shapes += [("b", True, 2), ("b", True, 8), ("b", True, 4), ("b", False, 4)]
    return tuple(
        Response.model_validate(
            {"group": group, "correct": correct, "length": n, "logp_reference": (math.log(0.45),) * n}
        )
        for group, correct, n in shapes
    )


def gc(found: Sequence[ResponseCoefficients]) -> list[tuple[float, ...]]:
    """Return GC of each token of each response: c |o| N, with N the responses of the batch."""
    return [tuple(c * len(each.total) * len(found) for c in each.total) for each in found]


def online_rft() -> Recipe:
    """Return online RFT as a recipe; with ``schedule.staleness`` of all steps it is RFT, on the initial policy's."""
    return Recipe.model_validate(apply(load_preset("reinforce").recipe.model_dump(), ONLINE_RFT).values)


def methods(coefficients: Coefficients) -> tuple[Method, ...]:
    """Return the table: the methods of the paper that are no presets, then all presets but aliases."""
    rft = _first(coefficients, online_rft())
    rows = [
        Method(name="SFT", responses="given answers", gc=(1.0, 1.0, None, None)),
        Method(name="RFT", responses="the initial policy", gc=rft),
        Method(name="online RFT", responses="the policy", gc=rft),
    ]
    presets = (preset for preset in map(load_preset, preset_names()) if not preset.alias_of)
    rows += [Method(name=p.name, responses="the policy", gc=_first(coefficients, p.recipe)) for p in presets]
    return tuple(rows)


def _first(coefficients: Coefficients, recipe: Recipe) -> tuple[float, ...]:
    return tuple(each[0] for each in gc(coefficients(recipe, example()))[: len(SHOWN)])
