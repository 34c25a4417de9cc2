"""Grids as factorials of several levels: which arm has which values, means over the other paths, and contrasts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from paribus.study.contrasts import Contrast
from paribus.study.plan import Arm, Plan, Row

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

    def main_effects(self) -> list[Contrast]:
        """Return for each value but the first of its path its mean less that of the first value."""
        found: list[Contrast] = []
        for path, values in self.levels.items():
            first = self.weights({path: values[0]})
            found += [
                Contrast(
                    tricks=(f"{path}: {values[0]} → {value}",),
                    weights=_sum((1, self.weights({path: value})), (-1, first)),
                )
                for value in values[1:]
            ]
        return found

    def interactions(self) -> list[Contrast]:
        """Return by how much the effect of a value grows with a value of another path; empty if there are too many."""
        found = []
        for a, b in self.pairs:
            for x, y in product(self.levels[a][1:], self.levels[b][1:]):
                first, other = self.levels[a][0], self.levels[b][0]
                corners = ((1, x, y), (-1, first, y), (-1, x, other), (1, first, other))
                weights = _sum(*((s, self.weights({a: u, b: v})) for s, u, v in corners))
                found.append(Contrast(tricks=(f"{a}={x}", f"{b}={y}"), weights=weights))
        return found if len(found) <= MOST_CONTRASTS else []


def grids(plan: Plan) -> list[Grid]:
    """Return the grids of two paths or more whose arms are all there."""
    rows = [r for r in plan.rows if r.kind == "grid"]
    arms = {arm.key: arm for arm in plan.arms}
    designs = dict.fromkeys(r.design for r in rows)
    found = (grid_of([r for r in rows if r.design == design], arms) for design in designs)
    return [grid for grid in found if grid is not None]


def grid_of(rows: Sequence[Row], arms: Mapping[str, Arm]) -> Grid | None:
    """Return the grid of a design's rows; ``None`` with one path, or if a place is missing.

    Args:
        rows: of the design, that of the base included.
        arms: the arms of the plan by key. What they change says which values are the same; the rows say how the study
            file writes them.
    """
    changed = {leaf for row in rows for leaf in arms[row.arm].changes}
    places = [(_texts(row.label, changed), row.arm) for row in rows if row.parent is not None]
    if not places:
        return None
    paths = tuple(places[0][0])
    if len(paths) < 2 or any(tuple(texts) != paths for texts, _ in places):
        return None
    text: dict[str, dict[tuple[tuple[str, str], ...], str]] = {path: {} for path in paths}
    found: dict[tuple[str, ...], str] = {}
    for texts, arm in places:
        place = []
        for path in paths:
            value = _value(arms[arm], path)
            shown = texts[path] if texts[path] not in text[path].values() else f"{texts[path]} ({len(text[path]) + 1})"
            place.append(text[path].setdefault(value, shown))
        found[tuple(place)] = arm
    levels = {path: tuple(values.values()) for path, values in text.items()}
    if set(found) != set(product(*levels.values())) or any(len(values) < 2 for values in levels.values()):
        return None
    return Grid(design=rows[0].design, levels=levels, arms=found)


def _value(arm: Arm, path: str) -> tuple[tuple[str, str], ...]:
    """Return what an arm changes at a path and below it; nothing where it has the base's value."""
    leaves = ((leaf, after) for leaf, (_, after) in arm.changes.items() if f"{leaf}.".startswith(f"{path}."))
    return tuple((leaf, repr(after)) for leaf, after in leaves)


def _texts(label: str, changed: Iterable[str]) -> dict[str, str]:
    """Return path to value of a label such as ``a=1, b=kind(x=2, y=3)``; a path is one where arms change something.

    A value may hold commas: what follows one is a path only if arms differ there.
    """
    parts, depth = [""], 0
    for part in label.split(", "):
        known = any(f"{leaf}.".startswith(f"{part.partition('=')[0]}.") for leaf in changed)
        if depth <= 0 and known and "=" in part:
            parts.append(part)
        else:
            parts[-1] += f", {part}"
        depth = sum((one in _OPEN) - (one in _CLOSE) for one in parts[-1])
    cut = (part.partition("=") for part in parts if part)
    return {path: value for path, _, value in cut}


def _sum(*terms: tuple[int, Mapping[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for sign, weights in terms:
        for arm, weight in weights.items():
            total[arm] = total.get(arm, 0.0) + sign * weight
    return {arm: weight for arm, weight in total.items() if abs(weight) > 1e-12}
