"""What designs measure: each effect as weights of arms, so that a plan and a report mean the same by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from paribus.study.plan import Row

FACTORIALS = ("factorial", "fractional")
"""Kinds of designs in which every trick is off in half of the rows, whatever the others are."""


@dataclass(frozen=True, kw_only=True)
class Contrast:
    """A sum of weighted arm means.

    Attributes:
        tricks: the trick, or the tricks whose interaction it is; empty for the difference of two rows.
        weights: arm to weight; the weights sum to 0, and arms of weight 0 are left out.
        aliases: what the rows cannot separate from it, e.g. ``- b x c``: measured together with it, with this sign. An
            interaction enters a main effect with half its size.
    """

    tricks: tuple[str, ...]
    weights: Mapping[str, float]
    aliases: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The tricks, e.g. ``a x b``."""
        return product_name(self.tricks)


def differences(rows: Sequence[Row]) -> tuple[Contrast, ...]:
    """Return each row less its parent; rows that are the recipe of their parent are left out."""
    arms = {row.label: row.arm for row in rows}
    steps = ((arms[row.parent], row.arm) for row in rows if row.parent is not None)
    return tuple(_contrast((), [(after, 1.0), (before, -1.0)]) for before, after in steps if before != after)


def main_effects(rows: Sequence[Row]) -> tuple[Contrast, ...]:
    """Return for each trick of a (fractional) factorial: the mean with it less the mean without it."""
    names, size = tricks_of(rows), len(rows) / 2
    return tuple(
        _contrast((name,), ((r.arm, (1 if name in r.tricks else -1) / size) for r in rows), aliases_of((name,), rows))
        for name in names
    )


def interactions(rows: Sequence[Row]) -> tuple[Contrast, ...]:
    """Return how much the effect of one trick grows when another is added, for the pairs of a design.

    Of a (fractional) factorial the mean over the other tricks; pairs that are measured together stand once, and those
    that are measured together with a main effect are left out. Of ``pairs``: both less each alone, plus the base.
    """
    if rows[0].kind == "pairs":
        return tuple(_pair(rows, row.tricks) for row in rows if len(row.tricks) == 2)
    names, size, seen = tricks_of(rows), len(rows) / 4, set()
    signs = {name: _sign(rows, (name,)) for name in names}
    every = (1 << len(rows)) - 1
    taken = {s for sign in signs.values() for s in (sign, sign ^ every)}
    found = []
    for pair in combinations(names, 2):
        sign = signs[pair[0]] ^ signs[pair[1]]
        if sign in taken or sign in seen:
            continue
        seen |= {sign, sign ^ every}
        weighted = ((r.arm, (-1 if sign >> k & 1 else 1) / size) for k, r in enumerate(rows))
        found.append(_contrast(pair, weighted, aliases_of(pair, rows, most=2)))
    return tuple(found)


def order_means(ladders: Sequence[Sequence[Row]]) -> tuple[Contrast, ...]:
    """Return for each trick the mean over ladders of what it adds to the rows above it."""
    steps: dict[str, list[tuple[str, float]]] = {}
    for rows in ladders:
        arms = {row.label: row.arm for row in rows}
        for row in rows[1:]:
            pair = steps.setdefault(row.tricks[-1], [])
            pair += [(row.arm, 1 / len(ladders)), (arms[row.parent or ""], -1 / len(ladders))]
    return tuple(_contrast((trick,), weighted) for trick, weighted in steps.items())


def several_orders(rows: Iterable[Row]) -> tuple[tuple[tuple[Row, ...], ...], ...]:
    """Return the ladders over the same tricks in different orders, together; tricks with one ladder are left out."""
    ladders: dict[str, list[Row]] = {}
    for row in rows:
        if row.kind == "cumulative":
            ladders.setdefault(row.design, []).append(row)
    together: dict[frozenset[str], dict[tuple[str, ...], tuple[Row, ...]]] = {}
    for ladder in ladders.values():
        order = ladder[-1].tricks
        together.setdefault(frozenset(order), {}).setdefault(order, tuple(ladder))
    return tuple(tuple(orders.values()) for orders in together.values() if len(orders) > 1)


def tricks_of(rows: Iterable[Row]) -> tuple[str, ...]:
    """Return the tricks that stand in any row, in their order of application as far as the rows show it."""
    before: dict[str, set[str]] = {}
    for row in rows:
        for k, trick in enumerate(row.tricks):
            before.setdefault(trick, set()).update(row.tricks[:k])
    return tuple(sorted(before, key=lambda trick: len(before[trick])))


def resolution_of(rows: Sequence[Row]) -> int | None:
    """Return the tricks in the shortest product that is constant over the rows; ``None`` if there is none."""
    names = tricks_of(rows)
    constant = (0, (1 << len(rows)) - 1)
    return next(
        (n for n in range(1, len(names) + 1) if any(_sign(rows, s) in constant for s in combinations(names, n))), None
    )


def aliases_of(tricks: tuple[str, ...], rows: Sequence[Row], *, most: int | None = None) -> tuple[str, ...]:
    """Return the effects of fewest tricks whose signs over the rows are those of this one, or all opposite.

    Args:
        tricks: the main effect, or the interaction.
        rows: of one (fractional) factorial.
        most: most tricks of an effect that is looked for; absent: all.
    """
    names, own, every = tricks_of(rows), _sign(rows, tricks), (1 << len(rows)) - 1
    for size in range(1, (most or len(names)) + 1):
        found = []
        for other in combinations(names, size):
            if set(other) == set(tricks):
                continue
            sign = _sign(rows, other)
            if sign in (own, own ^ every):
                found.append(f"{'+' if sign == own else '-'} {product_name(other)}")
        if found:
            return tuple(found)
    return ()


def product_name(tricks: Iterable[str]) -> str:
    """Return ``a x b``."""
    return " x ".join(tricks)


def _sign(rows: Sequence[Row], tricks: Sequence[str]) -> int:
    """Return the signs of an effect over the rows as bits: 1 where the product of its -1 and +1 is negative."""
    off = (sum(trick not in row.tricks for trick in tricks) % 2 for row in rows)
    return sum(bit << k for k, bit in enumerate(off))


def _pair(rows: Sequence[Row], pair: tuple[str, ...]) -> Contrast:
    arms = {row.tricks: row.arm for row in rows}
    first, second = pair
    return _contrast(pair, [(arms[pair], 1.0), (arms[first,], -1.0), (arms[second,], -1.0), (arms[()], 1.0)])


def _contrast(
    tricks: tuple[str, ...], weighted: Iterable[tuple[str, float]], aliases: tuple[str, ...] = ()
) -> Contrast:
    """Return the contrast with the weights of rows added up by arm."""
    weights: dict[str, float] = {}
    for arm, weight in weighted:
        weights[arm] = weights.get(arm, 0.0) + weight
    kept = {arm: weight for arm, weight in weights.items() if abs(weight) > 1e-12}
    return Contrast(tricks=tricks, weights=kept, aliases=aliases)
