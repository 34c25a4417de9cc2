"""Which study starts the next run: the highest priority first, then shares by weight, with stride scheduling.

Every study has a *pass*. A run that starts adds its GPUs (or 1 for a CPU slot) divided by the study's weight, and the
study with the lowest pass goes next (Waldspurger and Weihl, *Stride scheduling*, MIT LCS TM-528, 1995). A study that
comes in or comes back starts at the pass of the run that started last (start-time fair queueing: Goyal, Vin and Cheng,
SIGCOMM 1996): it gets its share from now on, and nothing of what it missed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A study with a run that could start now.

    Attributes:
        study: its number.
        priority: higher ones go first, whatever the weights.
        weight: its share among studies of the same priority, above 0.
        slots: GPUs that a run holds, or 1 for a CPU slot.
    """

    study: int
    priority: int
    weight: float
    slots: float

    @property
    def stride(self) -> float:
        """How far a run advances the study's pass."""
        return self.slots / self.weight


class FairShare:
    """The passes of the studies, one for each priority that a study has had."""

    def __init__(self) -> None:
        self._passes: dict[tuple[int, int], float] = {}
        self._newest: dict[int, float] = {}

    def choose(self, demands: Sequence[Demand], most: int) -> tuple[Demand, int]:
        """Return the study that starts the next run, and how many (up to ``most``) before another study's turn."""
        top = max(d.priority for d in demands)
        first, *others = sorted((d for d in demands if d.priority == top), key=self._place)
        limit = self._place(others[0]) if others else (float("inf"), 0)
        count = 1
        while count < most and (self._pass(first) + count * first.stride, first.study) < limit:
            count += 1
        return first, count

    def start(self, demand: Demand, runs: int) -> None:
        """Charge a study for runs that it has started."""
        newest = self._pass(demand) + (runs - 1) * demand.stride
        self._newest[demand.priority] = newest
        self._passes[demand.study, demand.priority] = newest + demand.stride

    def _pass(self, demand: Demand) -> float:
        own = self._passes.get((demand.study, demand.priority), 0.0)
        return max(own, self._newest.get(demand.priority, 0.0))

    def _place(self, demand: Demand) -> tuple[float, int]:
        return self._pass(demand), demand.study
