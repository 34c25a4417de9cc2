"""The study language: what may stand in a study file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from paribus.recipe.factors import Fraction
from paribus.study.job import Evaluate

NOTE_CODES = (
    "confounded", "cost", "identical_rows", "inert", "length_weighted", "never_clips", "no_change", "rescaled",
    "same_responses", "seeds",
)  # fmt: skip
"""Codes of the notes that ``allow`` may silence."""

DESIGN_KINDS = ("cumulative", "add_one", "leave_one_out", "grid", "factorial", "list")
"""Kinds of designs."""

STUDY_NAME = r"^[a-z0-9][a-z0-9_-]*$"
NAME = r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
LABEL = r"^[^\x00-\x1f\x7f|`]+$"
ALPHABETS = {
    STUDY_NAME: "lower-case letters, digits, `_` and `-`, beginning with a letter or digit",
    NAME: "letters, digits, `_` and `-`, beginning with a letter or digit",
    LABEL: "any printed character but | and `",
}
"""What each pattern of a name means, in words."""

Name = Annotated[str, Field(pattern=NAME, max_length=64)]
Label = Annotated[str, Field(pattern=LABEL, min_length=1, max_length=64)]
Patch = dict[str, Any]
TrickList = Annotated[tuple[str, ...], Field(min_length=1)]


class Part(BaseModel):
    """Base of all parts of a study: frozen, strict about types, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Base(Part):
    """The recipe that all arms start from."""

    preset: str = Field(description="name of a preset: see `paribus recipes`")
    set: Patch = Field(default={}, description="patch of the preset")


class Cumulative(Part):
    """A ladder: each row adds the next trick to the row above."""

    kind: Literal["cumulative"]
    order: TrickList = Field(description="tricks from the first to the last")


class AddOne(Part):
    """The base, and the base with each trick alone."""

    kind: Literal["add_one"]
    tricks: TrickList | None = Field(default=None, description="absent: all")


class LeaveOneOut(Part):
    """All tricks, applied in the order of their definition, and all but each one."""

    kind: Literal["leave_one_out"]
    tricks: TrickList | None = Field(default=None, description="absent: all")


class Grid(Part):
    """All combinations of values."""

    kind: Literal["grid"]
    over: Annotated[dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]], Field(min_length=1)] = Field(
        description="path of the recipe to its values"
    )


class Factorial(Part):
    """All 2^k subsets of the tricks."""

    kind: Literal["factorial"]
    tricks: TrickList | None = Field(default=None, description="absent: all")


class ListedArm(Part):
    """One arm, written out: the base or another preset, then tricks, then a patch."""

    preset: str | None = Field(default=None, description="replaces the base's objective; model and task stay")
    tricks: tuple[str, ...] = ()
    set: Patch = {}


class Listed(Part):
    """The base and arms that are written out."""

    kind: Literal["list"]
    arms: Annotated[dict[Label, ListedArm], Field(min_length=1)]


Design = Annotated[
    Cumulative | AddOne | LeaveOneOut | Grid | Factorial | Listed,
    Field(discriminator="kind"),
]


class Seeds(Part):
    """How often each arm is run."""

    n: Annotated[int, Field(ge=1, le=1000)] = Field(default=3, description="seeds an arm")
    paired: bool = Field(default=True, description="all arms get the same seeds, and so the same prompts in order")
    start: Annotated[int, Field(ge=0, le=1_000_000)] = Field(default=0, description="the first seed")


class Health(Part):
    """What is watched while runs train, and what stops one."""

    profile: Literal["default"] = "default"
    stop_on: tuple[Literal["nan", "dead_run"], ...] = ("nan",)


class Budget(Part):
    """The most that the study may spend, under this name and whatever changes in the file."""

    gpu_hours: Annotated[float, Field(gt=0)] | None = Field(default=None, description="GPU-hours of all runs together")
    cpu_hours: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="hours of CPU slots, where runs hold no GPU"
    )
    run_hours: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="GPU-hours (without a GPU: hours of a CPU slot) that one run takes at most, as far as known; "
        "reserved for each run until the first of the study has ended, then as much as the longest took",
    )
    pass_rates: Annotated[tuple[Fraction, ...], Field(max_length=10_000)] = Field(
        default=(),
        description="share of right responses of the initial model, one number for each of equally many prompts, "
        "as far as known; the plan estimates from it what `filter: refill` costs",
    )


class Study(Part):
    """A study file, read and checked."""

    study: Annotated[str, Field(pattern=STUDY_NAME, max_length=64)] = Field(description="name of the study")
    question: str = Field(default="", max_length=2000, description="what the study asks; printed above its tables")
    runner: str = Field(default="native", description="what trains: the name of an installed runner")
    base: Base
    tricks: dict[Name, Patch] = Field(default={}, description="named patches of the recipe")
    designs: Annotated[dict[Name, Design], Field(min_length=1)] = Field(description="rules that make arms from tricks")
    seeds: Seeds = Seeds()
    evaluate: Evaluate = Evaluate()
    margin: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="difference in the primary metric below which arms count as equivalent; declared before the run",
    )
    health: Health = Health()
    budget: Budget = Budget()
    allow: tuple[Literal[NOTE_CODES], ...] = Field(  # type: ignore[valid-type]  # the literal is made of the codes
        default=(), description="codes of notes that are known and accepted"
    )
