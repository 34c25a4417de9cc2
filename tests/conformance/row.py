"""One row of the table: a level, a library's option, what was translated, and what is expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from conformance import ours
from conformance.batches import BATCHES, ORDINARY, Batch
from conformance.outcome import PARTS, Outcome, error
from paribus.recipe.recipe import Recipe

TOLERANCE = 1e-6
"""Largest relative error of an agreement. Log-probabilities are float64, our advantages and weights float32."""
VISIBLE = 1e-4
"""Smallest relative error of a declared deviation."""
PLAIN: Mapping[str, Mapping[str, Any]] = {
    "TRL": {"loss_type": "grpo"},
    "verl": {"actor.loss_agg_mode": "seq-mean-token-mean", "actor.clip_ratio_c": 1e9},
}
"""Options of a library that make it GRPO without KL, from which rows differ unless they name another trainer."""
EPS: Mapping[str, float] = {"TRL": 1e-4, "verl": 1e-6}
"""What a library adds to a standard deviation."""

Reproduction = Mapping[str, Any] | Callable[[Recipe, Batch], Outcome]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One comparison.

    Attributes:
        levels: the levels or presets that it is about, as in ``clip: ppo_min`` and ``preset: dapo``.
        library: ``TRL`` or ``verl``.
        options: the library's options, as differences from :data:`PLAIN`.
        preset: the recipe that ``patch`` changes; without one it is ``grpo`` without KL.
        patch: our options.
        note: what was translated.
        batches: names of the batches.
        parts: what is compared.
        critic: the critic's targets and loss are compared, not the policy's advantages and loss; verl alone.
        reason: why the library deviates; empty if it agrees.
        does: what the library computes instead: a further patch, or our outcome changed by a function.
    """

    levels: tuple[str, ...]
    library: str
    options: Mapping[str, Any] = field(default_factory=dict)
    preset: str | None = None
    patch: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""
    batches: tuple[str, ...] = ORDINARY
    parts: tuple[str, ...] = PARTS
    critic: bool = False
    reason: str = ""
    does: Reproduction | None = None

    @property
    def name(self) -> str:
        """What the test is called."""
        batches = () if self.batches == ORDINARY else self.batches
        return "-".join([self.library, *self.levels, *map(str, self.options.values()), *batches]).replace(" ", "")

    def recipe(self, batch: Batch, does: bool = False) -> Recipe:
        """Return our recipe, or with ``does`` the one that reproduces the library."""
        patch = dict(self.patch) if self.preset else {"kl": "off", **self.patch}
        if does and isinstance(self.does, Mapping):
            patch |= self.does
        return ours.recipe_of(self.preset or "grpo", patch, EPS[self.library], batch)

    def theirs(self, batch: Batch) -> Outcome:
        """Return the library's outcome."""
        if self.library == "TRL":
            from conformance import trl_side as side
        else:
            from conformance import verl_side as side
        if self.critic:
            return side.critic(self.options, batch)
        plain = {} if "trainer" in self.options else PLAIN[self.library]
        return side.outcome({**plain, **self.options}, batch, self.recipe(batch).reward.map)

    def errors(self) -> tuple[float, float | None]:
        """Return the largest relative errors of ours, and of what reproduces a deviation."""
        plain, reproduced = 0.0, 0.0
        for batch in map(BATCHES.__getitem__, self.batches):
            theirs = self.theirs(batch)
            mine = (ours.critic if self.critic else ours.outcome)(self.recipe(batch), batch)
            plain = max(plain, *(error(mine, theirs, p) for p in self.parts))
            if self.does is not None:
                reproduced = max(reproduced, *(error(self.reproduction(batch), theirs, p) for p in self.parts))
        return plain, None if self.does is None else reproduced

    def reproduction(self, batch: Batch) -> Outcome:
        """Return our outcome as the library deviates."""
        if isinstance(self.does, Mapping):
            return ours.outcome(self.recipe(batch, does=True), batch)
        assert self.does is not None
        return self.does(self.recipe(batch), batch)
