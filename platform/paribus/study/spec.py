"""The study language: what may stand in a study file."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paribus.recipe.factors import Fraction
from paribus.study.job import Evaluate

NOTE_CODES = (
    "confounded", "cost", "identical_rows", "inert", "length_weighted", "never_clips", "no_change", "rescaled",
    "same_responses", "seeds",
)  # fmt: skip
"""Codes of the notes that ``allow`` may silence."""

DESIGN_KINDS = (
    "cumulative", "add_one", "leave_one_out", "pairs", "factorial", "fractional", "grid", "one_at_a_time", "list",
)  # fmt: skip
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
Levels = Annotated[dict[str, Annotated[tuple[Any, ...], Field(min_length=1)]], Field(min_length=1)]


class Part(BaseModel):
    """Base of all parts of a study: frozen, strict about types, closed to unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Base(Part):
    """The recipe that all arms start from."""

    preset: str = Field(description="name of a preset: see `paribus recipes`")
    set: Patch = Field(default={}, description="patch of the preset")


class RandomOrders(Part):
    """Orders that chance chooses, the same for the same seed."""

    n: Annotated[int, Field(ge=1, le=100)] = Field(description="orders, all different")
    seed: Annotated[int, Field(ge=0)] = Field(description="which orders")


class Cumulative(Part):
    """A ladder: each row adds the next trick to the row above; several orders make several ladders."""

    kind: Literal["cumulative"]
    order: TrickList | None = Field(default=None, description="tricks from the first to the last")
    orders: Annotated[tuple[TrickList, ...], Field(min_length=1)] | None = Field(
        default=None, description="in place of `order`: several orders of the same tricks, one ladder each"
    )
    random: RandomOrders | None = Field(
        default=None, description="one ladder more for each of n random orders of the tricks"
    )
    reverse: bool = Field(default=False, description="one ladder more for each order, from its last trick to its first")


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
    over: Levels = Field(description="path of the recipe to its values")


class OneAtATime(Part):
    """The base, and the base with each value of each path alone: the sum of the values, not their product."""

    kind: Literal["one_at_a_time"]
    over: Levels = Field(description="path of the recipe to its values")


class Pairs(Part):
    """The base, the base with each trick alone, and with each two of them."""

    kind: Literal["pairs"]
    tricks: TrickList | None = Field(default=None, description="absent: all")


class Factorial(Part):
    """All 2^k subsets of the tricks."""

    kind: Literal["factorial"]
    tricks: TrickList | None = Field(default=None, description="absent: all")


class Fractional(Part):
    """The smallest 2^(k-p) subsets of the tricks that keep effects apart as far as the resolution says."""

    kind: Literal["fractional"]
    resolution: Literal[3, 4, 5] = Field(
        description="3: main effects apart from each other; 4: from pairs, too; 5: pairs from each other, too"
    )
    tricks: TrickList | None = Field(
        default=None, description="3 to 10, the last of them decided by the first; absent: all"
    )


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
    Cumulative | AddOne | LeaveOneOut | Pairs | Factorial | Fractional | Grid | OneAtATime | Listed,
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


class RunHours(Part):
    """GPU-hours that one run takes, as believed before the first."""

    low: Annotated[float, Field(gt=0)]
    expected: Annotated[float, Field(gt=0)]
    high: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _ordered(self) -> RunHours:
        if not self.low <= self.expected <= self.high:
            raise ValueError("`low`, `expected` and `high` must stand in this order of size")
        return self


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
    prior: RunHours | None = Field(
        default=None, description="GPU-hours of one run; the plan prints what each design costs"
    )
    rows: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="most rows of one design; more than 128 have to be asked for here"
    )
    pass_rates: Annotated[tuple[Fraction, ...], Field(max_length=10_000)] = Field(
        default=(),
        description="share of right responses of the initial model, one number for each of equally many prompts, "
        "as far as known; the plan estimates from it what `filter: refill` costs",
    )


class Report(Part):
    """What the report shows beside the study's own numbers."""

    published: tuple[str, ...] = Field(
        default=(), description="names of published tables, e.g. dapo_table1: shown for orientation, never tested"
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
    report: Report = Report()
    allow: tuple[Literal[NOTE_CODES], ...] = Field(  # type: ignore[valid-type]  # the literal is made of the codes
        default=(), description="codes of notes that are known and accepted"
    )
