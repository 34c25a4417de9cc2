"""The study language: what may stand in a study file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler, field_validator, model_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from paribus.contract import STUDY_NAME, Checkpoints, Evaluate, Resources, StudyName, Timeouts
from paribus.recipe.factors import Fraction
from paribus.stats.multiple_testing import LEAST_SHARE, Correction, Spending, shares
from paribus.stats.pairing import Pairing
from paribus.text import listed
from paribus.yaml_file.messages import WrongPart

WARNING_CODES = (
    "approximate", "confounded", "context", "cost", "end_of_turn", "evaluation_cost", "few_evaluations",
    "few_problems", "identical_rows", "inert", "length_weighted", "limit", "magnitude", "never_clips", "no_change",
    "other_heldout", "overlap", "repeated_problems", "rescaled", "same_responses", "seeds", "token_budget",
    "unanswerable", "undone", "unequal_budget", "unpinned",
)  # fmt: skip
"""Codes of the warnings that ``allow`` may silence."""

DESIGN_KINDS = (
    "cumulative", "add_one", "leave_one_out", "pairs", "factorial", "fractional", "grid", "one_at_a_time", "list",
    "search",
)  # fmt: skip
"""Kinds of designs."""

DESIGN_SYNONYMS = {
    "ladder": "cumulative", "staircase": "cumulative", "incremental": "cumulative", "sequential": "cumulative",
    "stepwise": "cumulative", "solo": "add_one", "single": "add_one", "individual": "add_one", "alone": "add_one",
    "knockout": "leave_one_out", "ablation": "leave_one_out", "loo": "leave_one_out", "remove_one": "leave_one_out",
    "drop_one": "leave_one_out", "pairwise": "pairs", "full": "factorial", "full_factorial": "factorial",
    "fraction": "fractional", "fractional_factorial": "fractional", "sweep": "grid", "product": "grid",
    "grid_search": "grid", "oat": "one_at_a_time", "ofat": "one_at_a_time", "one_factor_at_a_time": "one_at_a_time",
    "arms": "list", "explicit": "list", "tune": "search", "tuning": "search", "hpo": "search", "optuna": "search",
}  # fmt: skip
"""Other words for kinds of designs, that messages answer with ours."""

DETECTORS = (
    "nan", "data_bug", "rollout_errors", "dead_run", "mixed_groups", "copied_responses", "mismatch", "staleness",
    "kl_blowup", "huge_update", "grad_spike", "dead_update", "clip_saturation_high", "clip_saturation_low",
    "clip_zero", "entropy_collapse", "entropy_explosion", "length_reward", "length_balloon", "length_collapse",
    "reward_crash", "truncation", "repetition", "degenerate_text", "format_hacking", "reward_noise", "reward_stall",
    "zero_variance", "effective_batch", "reward_hacking", "eval_regression",
)  # fmt: skip
"""Detectors that ``health.stop_on`` may name: those of :data:`paribus.health.diagnose.DETECTORS`."""

PROFILES = ("base_model", "default", "moe")
"""Profiles of thresholds that ``health.profile`` may name."""

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


class PresetPath(Part):
    """Tricks from the difference between the base and another preset: one for each factor that differs."""

    start: str | None = Field(default=None, alias="from", description="absent: the base's preset; no other is allowed")
    to: str = Field(description="preset whose objective all tricks together make of the base")
    set: Patch = Field(default={}, description="patch of that preset, e.g. lengths that suit the base's limit")
    groups: dict[Name, TrickList] = Field(default={}, description="name of a trick to several factors that it sets")


class RandomOrders(Part):
    """Random orders, the same for the same seed."""

    n: Annotated[int, Field(ge=1, le=100)] = Field(description="number of orders, all different")
    seed: Annotated[int, Field(ge=0)] = Field(description="seed of the choice")


class Cumulative(Part):
    """A ladder: each row adds the next trick to the row above; several orders make several ladders."""

    kind: Literal["cumulative"]
    order: TrickList | None = Field(
        default=None, description="tricks from the first to the last; with a `path`, absent: all"
    )
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
    """The fewest 2^(k-p) subsets of the tricks that have the resolution."""

    kind: Literal["fractional"]
    resolution: Literal[3, 4, 5] = Field(
        description="3: main effects apart from each other; 4: from pairs, too; 5: pairs from each other, too"
    )
    tricks: TrickList | None = Field(
        default=None, description="3 to 10 tricks, of which the first decide the last; absent: all"
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


class Range(Part):
    """Range in which a search looks for a number of the recipe."""

    low: float
    high: float
    log: bool = Field(default=False, description="by factors, not by differences; for learning rates")

    @model_validator(mode="after")
    def _ordered(self) -> Range:
        if not self.low < self.high or (self.log and self.low <= 0):
            wrong = "low" if self.log and self.low <= 0 else "high"
            given = f"here are {self.low:g} and {self.high:g}"
            raise WrongPart(f"`low` must be below `high`, and above 0 with `log: true`; {given}", wrong)
        return self


class Search(Part):
    """Numbers of the recipe, tuned for the base and for each trick by itself, then run on fresh seeds."""

    kind: Literal["search"]
    over: Annotated[dict[str, Range], Field(min_length=1)] = Field(description="path of the recipe to its range")
    tricks: TrickList | None = Field(default=None, description="each is tuned beside the base; absent: all")
    trials: Annotated[int, Field(ge=1, le=500)] = Field(description="settings that each of them gets")
    seeds: Annotated[int, Field(ge=1, le=100)] = Field(
        default=1, description="seeds of one trial, used by no other run"
    )
    parallel: Annotated[int, Field(ge=1, le=100)] = Field(
        default=1, description="trials of one trick that are chosen together, before their results are known"
    )
    sampler: Literal["tpe", "random"] = Field(default="tpe", description="how Optuna chooses the trials")
    seed: Annotated[int, Field(ge=0, le=1_000_000)] = Field(default=0, description="which trials")
    importance: Literal["ped_anova", "fanova"] | None = Field(
        default=None, description="evaluator of Optuna that rates how much each path mattered"
    )


Design = Annotated[
    Cumulative | AddOne | LeaveOneOut | Pairs | Factorial | Fractional | Grid | OneAtATime | Listed | Search,
    Field(discriminator="kind"),
]


class Until(Part):
    """When a study that adds seeds has enough of them: `decided`, or a width."""

    width: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="length of the interval of each difference to the base, in the primary metric"
    )

    @model_validator(mode="before")
    @classmethod
    def _words(cls, given: Any) -> Any:
        if given == "decided":
            return {"width": None}
        if isinstance(given, str):
            raise ValueError(f"`{given}` is not allowed: write `decided`, or `{{width: 0.02}}`")
        if isinstance(given, dict) and given in ({}, {"width": None}):
            raise ValueError("needs a number as `width`, or write `decided`")
        return given

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema with the short form."""
        return {"anyOf": [{"const": "decided"}, handler(core)]}


class Seeds(Part):
    """How often each arm runs: `n` times, or `min` to `max` times with looks at the results in between."""

    n: Annotated[int, Field(ge=1, le=1000)] = Field(default=3, description="seeds an arm")
    paired: bool = Field(default=True, description="all arms get the same seeds, and so the same prompts in order")
    start: Annotated[int, Field(ge=0, le=1_000_000)] = Field(default=0, description="the first seed")
    min: Annotated[int, Field(ge=3, le=1000)] | None = Field(
        default=None, description="in place of `n`: seeds an arm before the first look"
    )
    max: Annotated[int, Field(ge=4, le=1000)] | None = Field(default=None, description="seeds an arm at the last look")
    until: Until | None = Field(default=None, description="when a look ends the study: `decided`, or a width")
    looks: tuple[int, ...] | None = Field(
        default=None, description="seeds an arm at each look, from `min` to `max`; absent: these two"
    )
    spending: Spending | None = Field(
        default=None,
        description="how looks share the error rate; absent: obrien_fleming, which saves it for the last",
    )

    @model_validator(mode="after")
    def _looks_fit(self) -> Seeds:
        names = ("min", "max", "until", "looks", "spending")
        given = [name for name in names if getattr(self, name) is not None]
        missing = [name for name in names[:3] if name not in given]
        if not given:
            return self
        if missing or "n" in self.model_fields_set:
            wrong = [f"{listed(f'`{name}`' for name in missing)} {'is' if len(missing) == 1 else 'are'} missing"]
            wrong = [*(wrong if missing else ()), *(["`n` is there"] if "n" in self.model_fields_set else ())]
            message = f"seeds that are added need `min`, `max` and `until`, and no `n`: {', and '.join(wrong)}"
            raise WrongPart(message, "n" if "n" in self.model_fields_set else given[0])
        at = self.at
        if list(at) != sorted(set(at)) or len(at) < 2 or (at[0], at[-1]) != (self.min, self.max):
            assert self.min is not None
            assert self.max is not None
            if self.looks is None or self.min >= self.max:
                raise WrongPart("`max` must be above `min`", "max")
            raise WrongPart(f"`looks` must rise from `min` to `max`, as in [{self.min}, {self.max}]", "looks")
        if shares(at, self.spending or "obrien_fleming")[0] < LEAST_SHARE:
            raise WrongPart(
                f"a look at {at[0]} of {at[-1]} seeds may use next to nothing of the error rate with `obrien_fleming`, "
                "and can decide nothing: begin with more seeds, or choose `spending: pocock`",
                "looks" if self.looks else "min",
            )
        return self

    @property
    def at(self) -> tuple[int, ...]:
        """Seeds an arm at each look; without looks only ``n``."""
        if self.min is None or self.max is None:
            return (self.n,)
        return self.looks or (self.min, self.max)


class Health(Part):
    """Which detectors watch runs while they train, and which of them stop a run."""

    profile: Literal[PROFILES] = Field(  # type: ignore[valid-type]  # the literal is made of the names
        default="default", description="thresholds of the detectors"
    )
    stop_on: tuple[Literal[DETECTORS], ...] = Field(  # type: ignore[valid-type]
        default=("nan",), description="detectors that end a run when they become critical, as an outcome of the table"
    )
    rules: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        default=(), description="detectors of your own: rule files beside the study, or names of installed detectors"
    )
    webhook: str | None = Field(
        default=None, description="${NAME}: environment variable with the address that gets critical findings"
    )
    command: Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)] | None = Field(
        default=None, description="program and arguments; gets critical findings as JSON on its standard input"
    )

    @field_validator("webhook")
    @classmethod
    def _named(cls, webhook: str | None) -> str | None:
        # what was written may be a secret: the message does not show it
        if webhook is not None and not re.fullmatch(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}", webhook):
            raise ValueError("must name an environment variable that holds the address, e.g. ${ALERT_URL}")
        return webhook


class RunHours(Part):
    """Your estimate of the GPU-hours of one run."""

    low: Annotated[float, Field(gt=0)]
    expected: Annotated[float, Field(gt=0)]
    high: Annotated[float, Field(gt=0)]

    @model_validator(mode="after")
    def _ordered(self) -> RunHours:
        if not self.low <= self.expected <= self.high:
            wrong = "expected" if self.low > self.expected else "high"
            given = f"{self.low:g}, {self.expected:g} and {self.high:g}"
            raise WrongPart(f"`low`, `expected` and `high` must stand in this order of size, and {given} do not", wrong)
        return self


class Budget(Part):
    """The most that the study may spend under its name, also after the file has changed."""

    gpu_hours: Annotated[float, Field(gt=0)] | None = Field(default=None, description="GPU-hours of all runs together")
    cpu_hours: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="hours of all runs together, where runs hold no GPU"
    )
    run_hours: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="your estimate of the most GPU-hours (without a GPU: hours) of one run; reserved for each run "
        "until the first of the study has ended, then as much as the longest took",
    )
    prior: RunHours | None = Field(
        default=None, description="GPU-hours of one run; the plan prints what each design costs"
    )
    rows: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="most rows of one design; needed for more than 128"
    )
    pass_rates: Annotated[tuple[Fraction, ...], Field(max_length=10_000)] = Field(
        default=(),
        description="share of right responses of the initial model, one number for each of equally many prompts, "
        "if you know it; the plan estimates from it what `filter: refill` costs",
    )


class Report(Part):
    """Options of the report."""

    published: tuple[str, ...] = Field(
        default=(), description="names of published tables, e.g. dapo_table1: shown for orientation, never tested"
    )
    symptom_correction: Correction = Field(
        default="holm",
        description="correction of the table of what each arm moves: holm allows one false mark in 5% of studies, "
        "benjamini_hochberg 5% of the marks, for studies that screen; scores are always corrected by Holm",
    )
    pairing: Pairing = Field(
        default="always",
        description="whether arms with the same seeds are compared by pairs: always, or where_it_helps, that is where "
        "the correlation of seeds, pooled over all arms, makes paired intervals the shorter ones",
    )


class RunnerChoice(BaseModel):
    """What trains: the name of an installed runner, or a mapping of ``kind`` and options that the runner defines."""

    model_config = ConfigDict(frozen=True, extra="allow", strict=True)

    kind: str = Field(description="name of an installed runner")

    @model_validator(mode="before")
    @classmethod
    def _name(cls, given: Any) -> Any:
        return {"kind": given} if isinstance(given, str) else given

    @property
    def own(self) -> Mapping[str, Any]:
        """The options beside ``kind``."""
        return self.model_extra or {}

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Return the schema with the short form."""
        return {"anyOf": [{"type": "string"}, handler(core)]}


class Study(Part):
    """A study file, read and checked."""

    study: StudyName = Field(description="name of the study")
    question: str = Field(default="", max_length=2000, description="what the study asks; printed above its tables")
    runner: RunnerChoice = Field(
        default=RunnerChoice(kind="native"),
        description="an installed runner, or `{kind: <name>, ...}`",
    )
    base: Base
    path: PresetPath | None = Field(default=None, description="makes tricks of the difference to another preset")
    tricks: dict[Name, Patch] = Field(default={}, description="named patches of the recipe")
    needs: dict[Name, TrickList] = Field(default={}, description="trick to the tricks without which it is in no row")
    conflicts: tuple[Annotated[tuple[str, ...], Field(min_length=2)], ...] = Field(
        default=(), description="lists of tricks of which no row has two"
    )
    designs: Annotated[dict[Name, Design], Field(min_length=1)] = Field(description="rules that make arms from tricks")
    seeds: Seeds = Seeds()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoints = Checkpoints()
    timeouts: Timeouts = Timeouts()
    margin: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="difference in the primary metric below which arms count as equivalent; declared before the run",
    )
    health: Health = Health()
    mirror: tuple[Literal["mlflow", "tensorboard", "wandb"], ...] = Field(
        default=("mlflow",), description="where metrics are copied to, beside the run folder"
    )
    budget: Budget = Budget()
    report: Report = Report()
    resources: Resources = Resources()
    allow: tuple[Literal[WARNING_CODES], ...] = Field(  # type: ignore[valid-type]  # the literal is made of the codes
        default=(), description="codes of warnings that you accept"
    )
