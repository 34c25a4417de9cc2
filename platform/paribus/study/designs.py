"""Designs: from tricks to the rows of a table. Pure; each row is a list of patches of the base recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from paribus.study.spec import AddOne, Cumulative, Design, Factorial, Grid, LeaveOneOut, Listed, Study

MAX_ROWS = 4096
"""Most rows of one design."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One patch of a row, and where it stands in the study file.

    Attributes:
        place: keys that lead to the patch.
        patch: as written.
        items: for a grid: path to the place of its value in the list of values.
    """

    place: tuple[str, ...]
    patch: Mapping[str, Any]
    items: Mapping[str, int] = field(default_factory=dict)

    def find(self, source: Sequence[str], *, at_key: bool = False) -> tuple[str | int, ...]:
        """Return where the keys ``source`` of the patch stand in the study file."""
        if source and source[0] in self.items and not (at_key and len(source) == 1):
            return (*self.place, source[0], self.items[source[0]], *source[1:])
        return (*self.place, *source)


@dataclass(frozen=True, kw_only=True)
class Draft:
    """A row before its recipe is resolved.

    Attributes:
        design: name of the design; empty for the base alone.
        kind: kind of the design.
        label: unique inside the design.
        parent: label of the row that it is compared with.
        tricks: names of the tricks that are on.
        preset: the preset that takes the place of the base's objective.
        steps: patches of the base, in order.
        place: where the row stands in the study file.
    """

    design: str
    kind: str
    label: str
    parent: str | None
    tricks: tuple[str, ...] = ()
    preset: str | None = None
    steps: tuple[Step, ...] = ()
    place: tuple[str, ...] = ()


def drafts(study: Study) -> tuple[Draft, ...]:
    """Return the rows of all designs, in the order of the study file; each design begins with its reference row."""
    return tuple(row for name, design in study.designs.items() for row in expand(name, design, study.tricks))


def expand(name: str, design: Design, tricks: Mapping[str, Mapping[str, Any]]) -> tuple[Draft, ...]:
    """Return the rows of one design.

    Args:
        name: name of the design.
        design: the rule; the tricks that it names are in ``tricks``.
        tricks: all tricks of the study, in the order of their definition.
    """
    rows = _Rows(name, design.kind, tricks)
    match design:
        case Cumulative():
            return rows.cumulative(design.order)
        case AddOne():
            return rows.add_one(design.tricks or tuple(tricks))
        case LeaveOneOut():
            return rows.leave_one_out(design.tricks or tuple(tricks))
        case Factorial():
            return rows.factorial(design.tricks or tuple(tricks))
        case Grid():
            return rows.grid(design.over)
        case Listed():
            return rows.listed(design)


def row_count(design: Design, tricks: Sequence[str]) -> int:
    """Return how many rows a design has, without making them."""
    match design:
        case Cumulative():
            return len(design.order) + 1
        case AddOne() | LeaveOneOut():
            return len(design.tricks or tricks) + 1
        case Factorial():
            return int(2 ** min(len(design.tricks or tricks), 64))
        case Grid():
            count = 1
            for values in design.over.values():
                count *= len(values)
            return count + 1
        case Listed():
            return len(design.arms) + 1


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

    def cumulative(self, order: Sequence[str]) -> tuple[Draft, ...]:
        labels = ["base", *(f"+ {name}" for name in order)]
        steps = [self._draft(labels[k], labels[k - 1], order[:k]) for k in range(1, len(labels))]
        return (self._draft("base", None), *steps)

    def add_one(self, tricks: Sequence[str]) -> tuple[Draft, ...]:
        return (self._draft("base", None), *(self._draft(f"+ {name}", "base", (name,)) for name in tricks))

    def leave_one_out(self, tricks: Sequence[str]) -> tuple[Draft, ...]:
        full = [name for name in self.tricks if name in tricks]
        without = (self._draft(f"- {name}", "full", [n for n in full if n != name]) for name in full)
        return (self._draft("full", None, full), *without)

    def factorial(self, tricks: Sequence[str]) -> tuple[Draft, ...]:
        full = [name for name in self.tricks if name in tricks]
        rows = []
        for on in product((False, True), repeat=len(full)):
            chosen = [name for name, is_on in zip(full, on, strict=True) if is_on]
            parent = None if not chosen else _sum_label(chosen[:-1])
            rows.append(self._draft(_sum_label(chosen), parent, chosen))
        return tuple(sorted(rows, key=lambda row: len(row.tricks)))

    def grid(self, over: Mapping[str, Sequence[Any]]) -> tuple[Draft, ...]:
        rows = [self._draft("base", None)]
        for chosen in product(*(range(len(values)) for values in over.values())):
            items = dict(zip(over, chosen, strict=True))
            patch = {path: over[path][k] for path, k in items.items()}
            label = ", ".join(f"{path}={value_label(value)}" for path, value in patch.items())
            step = Step(place=("designs", self.design, "over"), patch=patch, items=items)
            rows.append(
                Draft(
                    design=self.design,
                    kind=self.kind,
                    label=label,
                    parent="base",
                    steps=(step,),
                    place=("designs", self.design, "over"),
                )
            )
        return tuple(rows)

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
                    steps=(*self._steps(arm.tricks), Step(place=(*place, "set"), patch=arm.set)),
                    place=place,
                )
            )
        return tuple(rows)


def _sum_label(tricks: Sequence[str]) -> str:
    return " ".join(f"+ {name}" for name in tricks) or "base"
