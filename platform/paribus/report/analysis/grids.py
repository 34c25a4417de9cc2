"""Grids as factorials of several levels: which arm has which values, means over the other paths, and contrasts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from paribus.report.analysis.analysis import Analysis
from paribus.study.plan import Row

MOST_CONTRASTS = 30
"""Interactions of a grid that are tested; of a larger grid only the effects of single values are."""

MOST_PAIRS = 6
"""Pairs of paths with a table and a heat map, in the order of the study file."""

_OPEN, _CLOSE = "([{", ")]}"


@dataclass(frozen=True, kw_only=True)
class Grid:
    """All combinations of values.

    Attributes:
        design: name of the design.
        levels: path to its values as they are shown, in the order of the study file.
        arms: values, one a path, to the key of the arm.
    """

    design: str
    levels: Mapping[str, tuple[str, ...]]
    arms: Mapping[tuple[str, ...], str]

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """The pairs of paths that a report shows."""
        return tuple(combinations(self.levels, 2))[:MOST_PAIRS]

    def weights(self, chosen: Mapping[str, str]) -> dict[str, float]:
        """Return the arms with these values and equal weights, which sum to 1: a mean over all other paths."""
        names = tuple(self.levels)
        found = [arm for place, arm in self.arms.items() if all(place[names.index(p)] == v for p, v in chosen.items())]
        weights: dict[str, float] = {}
        for arm in found:
            weights[arm] = weights.get(arm, 0.0) + 1 / len(found)
        return weights

    def main_effects(self) -> list[tuple[str, dict[str, float]]]:
        """Return for each value but the first of its path its name, and its mean less that of the first value."""
        found: list[tuple[str, dict[str, float]]] = []
        for path, values in self.levels.items():
            first = self.weights({path: values[0]})
            found += [
                (f"{path}: {values[0]} → {value}", _sum((1, self.weights({path: value})), (-1, first)))
                for value in values[1:]
            ]
        return found

    def interactions(self) -> list[tuple[str, dict[str, float]]]:
        """Return by how much the effect of a value grows with a value of another path; empty if there are too many."""
        found = []
        for a, b in self.pairs:
            for x, y in product(self.levels[a][1:], self.levels[b][1:]):
                first, other = self.levels[a][0], self.levels[b][0]
                corners = ((1, x, y), (-1, first, y), (-1, x, other), (1, first, other))
                found.append((f"{a}={x} x {b}={y}", _sum(*((s, self.weights({a: u, b: v})) for s, u, v in corners))))
        return found if len(found) <= MOST_CONTRASTS else []


def grids(analysis: Analysis) -> list[Grid]:
    """Return the grids of two paths or more whose arms are all there."""
    rows = [r for r in analysis.plan.rows if r.kind == "grid"]
    found = (grid_of([r for r in rows if r.design == design]) for design in dict.fromkeys(r.design for r in rows))
    return [grid for grid in found if grid is not None]


def grid_of(rows: Sequence[Row]) -> Grid | None:
    """Return the grid of a design's rows; ``None`` with one path, or if a place is missing."""
    places = [(_values(row.label), row.arm) for row in rows if row.parent is not None]
    if not places:
        return None
    paths = tuple(places[0][0])
    if len(paths) < 2 or any(tuple(values) != paths for values, _ in places):
        return None
    levels = {path: tuple(dict.fromkeys(values[path] for values, _ in places)) for path in paths}
    arms = {tuple(values.values()): arm for values, arm in places}
    if set(arms) != set(product(*levels.values())) or any(len(values) < 2 for values in levels.values()):
        return None
    return Grid(design=rows[0].design, levels=levels, arms=arms)


def _values(label: str) -> dict[str, str]:
    """Return path to value of a label such as ``a=1, b=kind(x=2, y=3)``."""
    parts, depth, begin = [], 0, 0
    for k, one in enumerate(label):
        depth += (one in _OPEN) - (one in _CLOSE)
        if depth == 0 and label.startswith(", ", k):
            parts.append(label[begin:k])
            begin = k + 2
    cut = (part.partition("=") for part in [*parts, label[begin:]])
    return {path: value for path, _, value in cut}


def _sum(*terms: tuple[int, Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for sign, weights in terms:
        for arm, weight in weights.items():
            total[arm] = total.get(arm, 0.0) + sign * weight
    return {arm: weight for arm, weight in total.items() if abs(weight) > 1e-12}
