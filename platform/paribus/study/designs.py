"""Designs: from tricks to the rows of a table. Pure; each row is a list of patches of the base recipe."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, count, product
from math import comb, factorial, prod
from typing import Any

from paribus.recipe.resolve import Step, Variant
from paribus.study.dependencies import Dependencies
from paribus.study.fractions import best_fraction
from paribus.study.spec import (
    AddOne,
    Cumulative,
    Design,
    Factorial,
    Fractional,
    Grid,
    LeaveOneOut,
    Listed,
    OneAtATime,
    Pairs,
    Range,
    Search,
    Study,
)

MAX_ROWS = 4096
"""Most rows of one design."""

UNASKED_ROWS = 128
"""Most rows of a design for which ``budget.rows`` does not ask."""


_NO_RULES = Dependencies()


@dataclass(frozen=True, kw_only=True)
class Draft(Variant):
    """A row before its recipe is resolved.

    Attributes:
        design: name of the design; of the further ladders of a ``cumulative`` design the name with a suffix.
        kind: kind of the design.
        label: unique inside the design.
        parent: label of the row that it is compared with.
        tricks: names of the tricks that are on.
    """

    design: str
    kind: str
    label: str
    parent: str | None
    tricks: tuple[str, ...] = ()


def drafts(study: Study) -> tuple[Draft, ...]:
    """Return the rows of all designs, in the order of the study file; each design begins with its reference row.

    A search has none before its results are there.
    """
    known = {name: design for name, design in study.designs.items() if not isinstance(design, Search)}
    rules = Dependencies.of(study)
    return tuple(row for name, design in known.items() for row in expand(name, design, study.tricks, rules))


def candidates(name: str, design: Search, study: Study) -> tuple[Draft, ...]:
    """Return the base and the base with each trick, which a search tunes."""
    tricks = tuple(study.tricks) if design.tricks is None else design.tricks
    return tuple(replace(row, kind=design.kind) for row in _Rows(name, design.kind, study.tricks).add_one(tricks))


def tricks_alone(study: Study) -> tuple[Draft, ...]:
    """Return the base with each trick alone, for each fraction: its own rows change several tricks at once."""
    return tuple(
        row
        for name, design in study.designs.items()
        if isinstance(design, Fractional)
        for row in _Rows(name, design.kind, study.tricks).add_one(design.tricks or tuple(study.tricks))
    )


def expand(  # noqa: C901 - one case a kind
    name: str, design: Design, tricks: Mapping[str, Mapping[str, Any]], rules: Dependencies = _NO_RULES
) -> tuple[Draft, ...]:
    """Return the rows of one design.

    Args:
        name: name of the design.
        design: the rule; the tricks that it names are in ``tricks``.
        tricks: all tricks of the study, in the order of their definition, each behind what it needs.
        rules: which of them a row may have together; the design breaks none that this function does not know.
    """
    rows = _Rows(name, design.kind, tricks, rules)
    match design:
        case Cumulative():
            return tuple(row for ladder, order in ladders(name, design) for row in rows.cumulative(ladder, order))
        case AddOne():
            return rows.add_one(design.tricks or tuple(tricks))
        case LeaveOneOut():
            return rows.leave_one_out(design.tricks or tuple(tricks))
        case Factorial():
            return rows.factorial(design.tricks or tuple(tricks))
        case Fractional():
            return rows.fractional(design.tricks or tuple(tricks), design.resolution)
        case Pairs():
            return rows.pairs(design.tricks or tuple(tricks))
        case Grid():
            return rows.grid(design.over)
        case OneAtATime():
            return rows.one_at_a_time(design.over)
        case Listed():
            return rows.listed(design)
        case Search():
            return rows.ends(tuple(tricks) if design.tricks is None else design.tricks, design.over)


def row_count(  # noqa: C901 - one case a kind
    design: Design, tricks: Sequence[str], rules: Dependencies = _NO_RULES
) -> int:
    """Return how many rows a design has at most, without making them; orders that are the same count twice."""
    match design:
        case Cumulative():
            orders = stated_orders(design)
            ladder_count = (len(orders) + (design.random.n if design.random else 0)) * (2 if design.reverse else 1)
            return (len(orders[0]) + 1) * ladder_count
        case AddOne():
            return len(sets_added(design.tricks or tricks, rules)) + 1
        case LeaveOneOut():
            return len(design.tricks or tricks) + 1
        case Factorial():
            return int(2 ** min(len(design.tricks or tricks), 64))
        case Grid():
            return prod(map(len, design.over.values())) + 1
        case OneAtATime():
            return sum(map(len, design.over.values())) + 1
        case Pairs():
            k = len(design.tricks or tricks)
            return 1 + k + comb(k, 2)
        case Fractional():
            return len(best_fraction(len(design.tricks or tricks), design.resolution).cells)
        case Listed():
            return len(design.arms) + 1
        case Search():
            return len(tricks if design.tricks is None else design.tricks) + 1


def sets_added(tricks: Sequence[str], rules: Dependencies) -> dict[frozenset[str], frozenset[str]]:
    """Return each row of ``add_one`` and the row that it is compared with, which stands before it; the base is empty.

    A trick that needs others is added to these, and where no other row has exactly these, one more row does.
    """
    own = {rules.needed_by(trick) | {trick}: rules.needed_by(trick) for trick in tricks}
    found: dict[frozenset[str], frozenset[str]] = {}

    def place(row: frozenset[str]) -> None:
        before = own.get(row, frozenset[str]())
        if before and before not in found:
            place(before)
        found.setdefault(row, before)

    for row in own:
        place(row)
    return found


def stated_orders(design: Cumulative) -> tuple[tuple[str, ...], ...]:
    """Return the orders that are written out."""
    return design.orders or (design.order or (),)


def ladders(name: str, design: Cumulative) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return name and order of each ladder: the design's name, then ``name-2``, ...; its reverse is ``name-reverse``.

    An order that is there already makes no second ladder.
    """
    stated = stated_orders(design)
    found: dict[tuple[str, ...], str] = {}
    for k, order in enumerate((*stated, *_random_orders(design, stated)), start=1):
        ladder = name if k == 1 else f"{name}-{k}"
        found.setdefault(order, ladder)
        if design.reverse:
            found.setdefault(order[::-1], f"{ladder}-reverse")
    return tuple((ladder, order) for order, ladder in found.items())


def other_orders(design: Cumulative) -> int:
    """Return how many orders chance can choose from: all but those that are written out and their reverses."""
    stated = {*stated_orders(design)}
    stated |= {order[::-1] for order in stated} if design.reverse else set()
    return factorial(len(stated_orders(design)[0])) - len(stated)


def _random_orders(design: Cumulative, stated: Sequence[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    """Yield the random orders; sorted by a hash, so that no version of Python changes them."""
    if design.random is None:
        return
    taken = {*stated, *(order[::-1] for order in stated if design.reverse)}
    last = len(taken) + design.random.n * (2 if design.reverse else 1)
    for draw in count():
        if len(taken) >= last:
            return
        keys = {t: hashlib.sha256(f"{design.random.seed}/{draw}/{t}".encode()).digest() for t in stated[0]}
        order = tuple(sorted(stated[0], key=keys.__getitem__))
        if order not in taken:
            taken |= {order, order[::-1]} if design.reverse else {order}
            yield order


def value_label(value: object) -> str:
    """Return a value of a grid as its row shows it."""
    if isinstance(value, Mapping):
        rest = [f"{key}={value_label(inner)}" for key, inner in value.items() if key != "kind"]
        kind = str(value.get("kind", ""))
        return f"{kind}({', '.join(rest)})" if rest else kind
    if value is None:
        return "null"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "".join(c if c.isprintable() else "?" for c in text)


@dataclass(frozen=True)
class _Rows:
    design: str
    kind: str
    tricks: Mapping[str, Mapping[str, Any]]
    rules: Dependencies = _NO_RULES

    def _draft(self, label: str, parent: str | None, tricks: Sequence[str] = (), place: tuple[str, ...] = ()) -> Draft:
        return Draft(
            design=self.design,
            kind=self.kind,
            label=label,
            parent=parent,
            tricks=tuple(tricks),
            steps=self._steps(tricks),
            place=("designs", self.design, *place),
        )

    def _steps(self, tricks: Sequence[str]) -> tuple[Step, ...]:
        return tuple(Step(place=("tricks", name), patch=self.tricks[name]) for name in tricks)

    def cumulative(self, ladder: str, order: Sequence[str]) -> tuple[Draft, ...]:
        labels = ["base", *(f"+ {name}" for name in order)]
        steps = [self._draft(labels[k], labels[k - 1], order[:k]) for k in range(1, len(labels))]
        return tuple(replace(row, design=ladder) for row in (self._draft("base", None), *steps))

    def add_one(self, tricks: Sequence[str]) -> tuple[Draft, ...]:
        rows = [self._draft("base", None)]
        for on, before in sets_added(tricks, self.rules).items():
            chosen = [[name for name in self.tricks if name in names] for names in (on, before)]
            rows.append(self._draft(_sum_label(chosen[0]), _sum_label(chosen[1]), chosen[0]))
        return tuple(rows)

    def leave_one_out(self, tricks: Sequence[str]) -> tuple[Draft, ...]:
        full = [name for name in self.tricks if name in tricks]
        rows = [self._draft("full", None, full)]
        for name in full:
            left = self.rules.without(name, full)
            gone = [name, *(other for other in full if other not in left and other != name)]
            rows.append(self._draft(" ".join(f"- {other}" for other in gone), "full", left))
        return tuple(rows)

    def factorial(self, tricks: Sequence[str]) -> tuple[Draft, ...]:
        full = [name for name in self.tricks if name in tricks]
        rows = []
        for on in product((False, True), repeat=len(full)):
            chosen = [name for name, is_on in zip(full, on, strict=True) if is_on]
            parent = None if not chosen else _sum_label(chosen[:-1])
            rows.append(self._draft(_sum_label(chosen), parent, chosen))
        return tuple(sorted(rows, key=lambda row: len(row.tricks)))

    def pairs(self, tricks: Sequence[str]) -> tuple[Draft, ...]:
        full = [name for name in self.tricks if name in tricks]
        both = (self._draft(_sum_label(pair), _sum_label(pair[:1]), pair) for pair in combinations(full, 2))
        return (*self.add_one(full), *both)

    def fractional(self, tricks: Sequence[str], resolution: int) -> tuple[Draft, ...]:
        rows = []
        for cell in best_fraction(len(tricks), resolution).cells:
            on = {name for j, name in enumerate(tricks) if cell >> j & 1}
            chosen = [name for name in self.tricks if name in on]
            rows.append(self._draft(_sum_label(chosen), "base" if chosen else None, chosen))
        return tuple(sorted(rows, key=lambda row: len(row.tricks)))

    def grid(self, over: Mapping[str, Sequence[Any]]) -> tuple[Draft, ...]:
        places = product(*(range(len(values)) for values in over.values()))
        return self._levels(over, (dict(zip(over, chosen, strict=True)) for chosen in places))

    def one_at_a_time(self, over: Mapping[str, Sequence[Any]]) -> tuple[Draft, ...]:
        return self._levels(over, ({path: k} for path, values in over.items() for k in range(len(values))))

    def _levels(self, over: Mapping[str, Sequence[Any]], cells: Iterable[Mapping[str, int]]) -> tuple[Draft, ...]:
        """Return the base and a row a cell, which says for some paths the place of their value."""
        rows = [self._draft("base", None)]
        place = ("designs", self.design, "over")
        for items in cells:
            patch = {path: over[path][k] for path, k in items.items()}
            label = ", ".join(f"{path}={value_label(value)}" for path, value in patch.items())
            step = Step(place=place, patch=patch, items=items)
            rows.append(
                Draft(design=self.design, kind=self.kind, label=label, parent="base", steps=(step,), place=place)
            )
        return tuple(rows)

    def ends(self, tricks: Sequence[str], over: Mapping[str, Range]) -> tuple[Draft, ...]:
        """Return what is tuned with all paths at either end of their ranges: what a search may try lies between."""
        place = ("designs", self.design, "over")
        found = []
        for end in ("low", "high"):
            patch = {path: getattr(between, end) for path, between in over.items()}
            step = Step(place=place, patch=patch, items=dict.fromkeys(over, end))
            found += [replace(row, steps=(*row.steps, step)) for row in self.add_one(tricks)]
        return tuple(found)

    def listed(self, design: Listed) -> tuple[Draft, ...]:
        rows = [self._draft("base", None)]
        for label, arm in design.arms.items():
            place = ("designs", self.design, "arms", label)
            rows.append(
                Draft(
                    design=self.design,
                    kind=self.kind,
                    label=label,
                    parent="base",
                    tricks=arm.tricks,
                    preset=arm.preset,
                    steps=(*self._steps(self.rules.in_order(arm.tricks)), Step(place=(*place, "set"), patch=arm.set)),
                    place=place,
                )
            )
        return tuple(rows)


def _sum_label(tricks: Sequence[str]) -> str:
    return " ".join(f"+ {name}" for name in tricks) or "base"
