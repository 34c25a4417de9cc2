"""Tricks that need each other, and tricks that exclude each other: ``needs`` and ``conflicts`` of a study."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations

from paribus.errors import did_you_mean
from paribus.study.spec import Study
from paribus.yaml_file.document import Fault


@dataclass(frozen=True, kw_only=True)
class Dependencies:
    """Which tricks a row may have together.

    Attributes:
        needs: trick to all that it needs, also through others.
        conflicts: pairs of tricks that no row has.
    """

    needs: Mapping[str, frozenset[str]] = field(default_factory=dict)
    conflicts: frozenset[frozenset[str]] = frozenset()

    @classmethod
    def of(cls, study: Study) -> Dependencies:
        """Return what a study declares."""
        pairs = (frozenset(pair) for names in study.conflicts for pair in combinations(names, 2))
        return cls(
            needs={trick: frozenset(_reached(trick, study.needs)) for trick in study.needs},
            conflicts=frozenset(pairs),
        )

    def needed_by(self, trick: str) -> frozenset[str]:
        """Return all that a trick needs, also through others."""
        return self.needs.get(trick, frozenset())

    def without(self, trick: str, tricks: Iterable[str]) -> tuple[str, ...]:
        """Return those of ``tricks`` that stay when one is taken away: what needs it goes with it."""
        return tuple(name for name in tricks if name != trick and trick not in self.needed_by(name))

    def missing(self, tricks: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield each trick that needs others beside ``tricks``, and these others."""
        for trick in tricks:
            if lacking := self.needed_by(trick) - {*tricks}:
                yield trick, tuple(sorted(lacking))

    def conflicting(self, tricks: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield each pair of ``tricks`` that conflict, in their order."""
        yield from (pair for pair in combinations(tricks, 2) if frozenset(pair) in self.conflicts)

    def in_order(self, tricks: Iterable[str]) -> tuple[str, ...]:
        """Return the tricks with each behind what it needs, and otherwise in the same order."""
        left, found = list(tricks), list[str]()
        while left:
            ready = (t for t in left if self.needed_by(t).isdisjoint([other for other in left if other != t]))
            found.append(next(ready, left[0]))  # in a circle nothing is ready: it is reported elsewhere
            left.remove(found[-1])
        return tuple(found)

    def compatible(self, tricks: Sequence[str]) -> tuple[str, ...]:
        """Return as many of ``tricks`` as one row can have, the first ones preferred."""
        found: list[str] = []
        for trick in self.in_order(tricks):
            if self.needed_by(trick) <= {*found} and not any(self.conflicting([*found, trick])):
                found.append(trick)
        return tuple(trick for trick in tricks if trick in found)

    def independent(self, tricks: Sequence[str]) -> tuple[str, ...]:
        """Return as many of ``tricks`` as can be on and off in any combination, the first ones preferred."""
        return self.compatible([trick for trick in tricks if not self.needed_by(trick)])


def unknown_trick(trick: str, defined: Sequence[str], possible: Sequence[str] = ()) -> str:
    """Return the message about a name that no trick has; ``possible`` as in :func:`name_faults`."""
    known = [*([", ".join(defined)] if defined else []), *(["those of its path"] if possible else [])]
    near = did_you_mean(trick, (*defined, *possible))
    return f"there is no trick `{trick}`.{near} Tricks of this study: {' and '.join(known) or 'none'}."


def dependency_faults(study: Study, defined: Sequence[str], possible: Sequence[str] = ()) -> list[Fault]:
    """Return what is wrong with ``needs`` and ``conflicts``; the names are as in :func:`name_faults`."""
    return [*_name_faults(study, defined, possible), *circles(study)] or [*_impossible(study)]


def _name_faults(study: Study, defined: Sequence[str], possible: Sequence[str]) -> Iterator[Fault]:
    for trick, needed in study.needs.items():
        if trick not in (*defined, *possible):
            message = unknown_trick(trick, defined, possible)
            yield Fault(place=("needs", trick), message=message, at_key=True)
        yield from name_faults(("needs", trick), needed, defined, possible)
        if trick in needed:
            place = ("needs", trick, needed.index(trick))
            yield Fault(place=place, message=f"`{trick}` needs itself: leave this out")
    for k, names in enumerate(study.conflicts):
        yield from name_faults(("conflicts", k), names, defined, possible)


def name_faults(
    place: tuple[str | int, ...], names: Sequence[str], defined: Sequence[str], possible: Sequence[str] = ()
) -> Iterator[Fault]:
    """Yield the names in a list that no trick has, and those that stand in it twice.

    Args:
        place: of the list.
        names: the list.
        defined: names of all tricks.
        possible: further names that tricks of the study's path may have; empty if they are all known.
    """
    for k, name in enumerate(names):
        if name not in (*defined, *possible):
            yield Fault(place=(*place, k), message=unknown_trick(name, defined, possible))
        elif name in names[:k]:
            yield Fault(place=(*place, k), message=f"the trick `{name}` appears twice")


def circles(study: Study) -> Iterator[Fault]:
    """Yield tricks that need each other: none of them could be applied first."""
    seen: set[str] = set()
    for trick in study.needs:
        way = _reached(trick, study.needs).get(trick)
        if way is None or trick in seen or len(way) == 2:  # one that needs itself is reported as such
            continue
        seen |= {*way}
        names = ", ".join(dict.fromkeys(way))
        message = (
            f"a circle: {' -> '.join(f'`{name}`' for name in way)}. Make one trick of {names}, or leave one need out"
        )
        yield Fault(place=("needs", trick), message=message, at_key=True)


def _impossible(study: Study) -> Iterator[Fault]:
    """Yield each trick that can be in no row, as it needs two that conflict, or one that it conflicts with."""
    rules = Dependencies.of(study)
    for trick in study.needs:
        for first, second in rules.conflicting(sorted({trick, *rules.needed_by(trick)})):
            message = f"`{trick}` can be in no row: with all that it needs, `{first}` and `{second}` conflict"
            yield Fault(place=("needs", trick), message=message, at_key=True)


def _reached(trick: str, needs: Mapping[str, Sequence[str]]) -> dict[str, tuple[str, ...]]:
    """Return each trick that ``trick`` needs, with the way to it; a trick that needs itself is among them."""
    found: dict[str, tuple[str, ...]] = {}
    ways: list[tuple[str, ...]] = [(trick, other) for other in needs.get(trick, ())]
    for way in ways:
        if way[-1] not in found:
            found[way[-1]] = way
            ways += [(*way, other) for other in needs.get(way[-1], ())]
    return found
