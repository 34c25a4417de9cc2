"""A detector of one's own, as a rule file states it: a metric, a test, a window, a level and what to try.

A plan and a job hold the rules of their study whole, so that a run is judged by them on every machine.
``paribus.study.rules`` reads rule files, ``paribus.health.own_rules`` makes detectors of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from paribus.yaml_file.messages import WrongPart

RULE_NAME = r"^[a-z][a-z0-9_]*$"


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class _Level(_Part):
    limit: float = Field(description="number that the mean of the window is compared with")


class Above(_Level):
    """The mean of the window is above a number."""

    kind: Literal["above"]


class Below(_Level):
    """The mean of the window is below a number."""

    kind: Literal["below"]


class _Change(_Part):
    over: Annotated[int, Field(ge=1, le=1000)] | None = Field(
        default=None, description="steps between the two windows; absent: since the first window of the run"
    )


class Grows(_Change):
    """The mean of the window is more than so many times an earlier one."""

    kind: Literal["grows"]
    factor: Annotated[float, Field(gt=1)] = Field(description="times the earlier mean")


class Shrinks(_Change):
    """The mean of the window is less than so large a part of an earlier one."""

    kind: Literal["shrinks"]
    factor: Annotated[float, Field(gt=0, lt=1)] = Field(description="times the earlier mean")


class Rises(_Change):
    """The mean of the window is above an earlier one by more than an amount."""

    kind: Literal["rises"]
    by: Annotated[float, Field(ge=0)] = Field(description="in the unit of the metric")


class Falls(_Change):
    """The mean of the window is below an earlier one by more than an amount."""

    kind: Literal["falls"]
    by: Annotated[float, Field(ge=0)] = Field(description="in the unit of the metric")


Test = Annotated[Above | Below | Grows | Shrinks | Rises | Falls, Field(discriminator="kind")]


class RuleRemedy(_Part):
    """What to try: a text, or a text with the patch of a recipe."""

    text: Annotated[str, Field(min_length=1, max_length=300)] = Field(description="what to do, in one line")
    patch: dict[str, Any] = Field(default={}, description="patch of the recipe, as under `tricks`")

    @model_validator(mode="before")
    @classmethod
    def _text(cls, given: Any) -> Any:
        return {"text": given} if isinstance(given, str) else given


class HealthRule(_Part):
    """A detector that compares one metric with a number or with its own past."""

    name: Annotated[str, Field(pattern=RULE_NAME, max_length=64)] = Field(description="its name in findings")
    metric: Annotated[str, Field(min_length=1, max_length=200)] = Field(description="the metric that it reads")
    test: Test = Field(description="what must hold for a finding")
    window: Annotated[int, Field(ge=5, le=200)] = Field(default=10, description="points whose mean is compared")
    level: Literal["critical", "warn", "note"] = Field(description="how bad a finding is; a note colours nothing")
    chance: Annotated[float, Field(gt=0, le=0.2)] = Field(
        default=0.01, description="share of runs at the limit that noise alone may alarm, whatever their length"
    )
    remedy: RuleRemedy | None = Field(default=None, description="what to try")
    looks_for: Annotated[str, Field(max_length=200)] = Field(default="", description="what goes wrong, in one line")

    @model_validator(mode="after")
    def _windows_apart(self) -> HealthRule:
        if message := windows_overlap(getattr(self.test, "over", None), self.window):
            raise WrongPart(message, "test", "over")
        return self


def windows_overlap(over: object, window: object) -> str:
    """Return that two windows this far apart overlap; empty if they don't, or if one of the two is no whole number."""
    if not isinstance(over, int) or not isinstance(window, int) or over >= 2 * window:
        return ""
    return f"must be at least twice the window of {window} points, so {2 * window} or more, and {over} is not"


OwnRule = HealthRule | str
"""A rule, or the name of an installed detector (entry points ``paribus.detectors``)."""

Rules = tuple[OwnRule, ...]


def plain_rules(rules: Rules) -> list[Mapping[str, Any] | str]:
    """Return rules as JSON."""
    return [rule if isinstance(rule, str) else rule.model_dump(mode="json") for rule in rules]
