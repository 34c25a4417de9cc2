"""A plan: the arms and runs of a study, each distinct one once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paribus.recipe.recipe import Recipe
from paribus.study.job import Evaluate
from paribus.study.resources import Resources


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of one design: a place where an arm stands.

    Attributes:
        design: name of the design in the study, e.g. ``ladder``.
        kind: kind of the design, e.g. ``cumulative``.
        label: what the row is called in tables, e.g. ``+ clip_higher``.
        arm: key of the arm (:attr:`Arm.key`).
        parent: label of the row that this one is compared with inside the design; ``None`` for its first row.
        tricks: names of the tricks that are on, in order of application.
        changes: what the row changes against its parent row: dotted path to (before, after).
    """

    design: str
    kind: str
    label: str
    arm: str
    parent: str | None
    tricks: tuple[str, ...]
    changes: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One resolved recipe of a study.

    Attributes:
        key: first 12 digits of the recipe's fingerprint.
        label: short name for people: the label of its first row.
        recipe: all values resolved.
        changes: what differs from the base arm: dotted path to (base, arm).
    """

    key: str
    label: str
    recipe: Recipe
    changes: Mapping[str, tuple[Any, Any]]


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """One arm with one seed.

    Attributes:
        fingerprint: identity across studies, 64 hexadecimal digits.
        arm: key of the arm.
        seed: the seed.
        order: place in the queue: seed-major with the base arm first.
    """

    fingerprint: str
    arm: str
    seed: int
    order: int


@dataclass(frozen=True, kw_only=True)
class Note:
    """Something that the user should know before spending compute.

    Attributes:
        code: ``inert``, ``same_responses``, ``identical_rows``, ``seeds``, ...
        arm: label of the arm, or empty.
        message: one sentence with the reason.
    """

    code: str
    message: str
    arm: str = ""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a study comes to.

    Attributes:
        study: name of the study.
        fingerprint: hash of the plan: same file meaning, same code, data and model give the same.
        preset: name of the preset that the base starts from; empty if there is none.
        base: key of the base arm.
        arms: distinct arms, the base first, then in order of first appearance.
        rows: rows of all designs, in the order of the study file.
        runs: distinct runs in queue order.
        seeds: one number a block; without ``paired`` only their count matters, each run has its own seed.
        notes: what to know before the launch.
        margin: difference in the primary metric below which arms count as equivalent; ``None`` if none was declared.
        resources: what each run holds; no part of the fingerprint.
    """

    study: str
    fingerprint: str
    question: str
    runner: str
    base: str
    arms: tuple[Arm, ...]
    rows: tuple[Row, ...]
    runs: tuple[PlannedRun, ...]
    seeds: tuple[int, ...]
    paired: bool
    evaluate: Evaluate
    stop_on: tuple[str, ...]
    gpu_hours: float | None
    notes: tuple[Note, ...]
    preset: str = ""
    cpu_hours: float | None = None
    run_hours: float | None = None
    margin: float | None = None
    resources: Resources = field(default_factory=Resources)

    def arm(self, key: str) -> Arm:
        """Return the arm with this key."""
        return next(a for a in self.arms if a.key == key)
