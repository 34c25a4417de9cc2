"""Which study gets the next free slot: of those with the highest priority, the one that is furthest behind its share.

The rule is *earliest eligible virtual deadline first* (Stoica and Abdel-Wahab, Old Dominion University TR-95-22, 1995),
with runs in place of time slices. A study's place is what it has used over its weight, and the place of all is the mean
by weight. Studies that are not ahead of the mean may go; of these goes the one that would be first at its next place.
Where runs cost the same, no study is ever a whole run ahead of its share or behind it; it is the bound of Balinski and
Young's quota method (American Mathematical Monthly 82, 1975), which chooses in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_TINY = 1e-9


@dataclass(frozen=True, kw_only=True)
class Demand:
    """A study that could begin a run now.

    Attributes:
        study: its number.
        priority: studies of a higher one go first, whatever the weights.
        weight: its share among those of its priority, above 0.
        used: seconds of slots that it has had since anybody counts, with what is in flight.
        cost: seconds that one more run is expected to take, above 0.
    """

    study: int
    priority: int
    weight: float
    used: float
    cost: float

    @property
    def _had(self) -> float:
        return self.used / self.weight


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """How a study came in; its place is ``offset`` plus what it has used over its weight."""

    priority: int
    weight: float
    offset: float


@dataclass(frozen=True, kw_only=True)
class Shares:
    """What is remembered between two choices.

    Attributes:
        entries: one a study that ever asked.
        places: the mean place at the last choice, by priority.
        asking: the studies that asked then.
    """

    entries: Mapping[int, _Entry] = field(default_factory=dict)
    places: Mapping[int, float] = field(default_factory=dict)
    asking: frozenset[int] = frozenset()


def choose(shares: Shares, demands: Sequence[Demand]) -> tuple[int, Shares]:
    """Choose the study that begins a run next.

    One that comes in, or comes back, begins at the mean: it is not starved, and does not get what it missed. One that
    comes back ahead of the mean stays ahead.

    Args:
        shares: what the choice before has returned.
        demands: at least one.

    Returns:
        The number of the study, and what to remember.
    """
    entries, places = dict(shares.entries), dict(shares.places)
    for priority in {d.priority for d in demands}:
        rivals = [d for d in demands if d.priority == priority]
        staying = [d for d in rivals if d.study in shares.asking and _unchanged(entries, d)]
        mean = _mean(entries, staying) if staying else places.get(priority, 0.0)
        for demand in rivals:
            if demand not in staying:
                entries[demand.study] = _enter(entries, demand, mean)
        places[priority] = _mean(entries, rivals)
    top = max(d.priority for d in demands)
    rivals, limit = [d for d in demands if d.priority == top], places[top] + _TINY * (1.0 + abs(places[top]))
    due = [d for d in rivals if _place(entries, d) <= limit]
    chosen = min(due, key=lambda d: (_place(entries, d) + d.cost / d.weight, d.study))
    asking = frozenset(d.study for d in demands)
    return chosen.study, Shares(entries=entries, places=places, asking=asking)


def _unchanged(entries: Mapping[int, _Entry], demand: Demand) -> bool:
    entry = entries.get(demand.study)
    return entry is not None and (entry.priority, entry.weight) == (demand.priority, demand.weight)


def _enter(entries: Mapping[int, _Entry], demand: Demand, mean: float) -> _Entry:
    place = max(mean, _place(entries, demand)) if _unchanged(entries, demand) else mean
    return _Entry(priority=demand.priority, weight=demand.weight, offset=place - demand._had)


def _place(entries: Mapping[int, _Entry], demand: Demand) -> float:
    return entries[demand.study].offset + demand._had


def _mean(entries: Mapping[int, _Entry], demands: Sequence[Demand]) -> float:
    total = sum(d.weight for d in demands)
    return sum(d.weight * _place(entries, d) for d in demands) / total
