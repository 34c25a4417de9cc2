"""F2 length rule: what the length of a response does to its reward and its place in the loss."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from paribus.recipe.factors.level import Count, Level, Positive


class NoLengthRule(Level):
    """The length does not enter the reward."""

    kind: Literal["none"] = "none"


class SoftOverlong(Level):
    """Soft overlong punishment (DAPO Eq. 13), added to R: 0 up to ``soft_start``, then linear to -1 at ``hard_cap``."""

    kind: Literal["soft_overlong"] = "soft_overlong"
    soft_start: Count = Field(description="longest unpunished response, tokens (L_max - L_cache)")
    hard_cap: Count = Field(description="length punished with -1, tokens (L_max)")
    factor: Positive = Field(default=1.0, description="multiplies the punishment")

    @model_validator(mode="after")
    def _ordered(self) -> SoftOverlong:
        if self.soft_start >= self.hard_cap:
            raise ValueError(f"soft_start ({self.soft_start}) must lie below hard_cap ({self.hard_cap})")
        return self


class KeepAll(Level):
    """All responses of a group take part."""

    kind: Literal["all"] = "all"


class _KeepSome(Level):
    count: Annotated[int, Field(ge=2)] = Field(default=4, description="responses of each group that are kept")


class KeepShortest(_KeepSome):
    """The shortest responses of each group; the others are removed before the baseline (GFPO, arXiv 2508.09726)."""

    kind: Literal["shortest"] = "shortest"


class KeepEfficient(_KeepSome):
    """The same with the responses of the largest R / L, the reward per token (GFPO)."""

    kind: Literal["efficient"] = "efficient"


class Length(Level):
    """F2: what the length of a response does to its reward and to its place in the loss."""

    rule: Annotated[NoLengthRule | SoftOverlong, Field(discriminator="kind")] = NoLengthRule()
    truncated: Literal["as_scored", "mask_loss", "drop"] = Field(
        default="as_scored",
        description="truncated responses: as_scored; mask_loss: out of the loss, still in the group's statistics "
        "(overlong filtering); drop: removed before the baseline",
    )
    count_masked_rows: bool = Field(
        default=False,
        description="masked responses stay in N, the responses in the denominator of seq_mean, const and seq_sum (the "
        "other aggregations have no N), so they make the update smaller",
    )
    keep: Annotated[KeepAll | KeepShortest | KeepEfficient, Field(discriminator="kind")] = KeepAll()

    @model_serializer(mode="wrap", when_used="json")
    def _without_all(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave ``keep`` out where all are kept: recipes keep their text from before there was a choice."""
        values: dict[str, Any] = dump(self)
        return {k: v for k, v in values.items() if k != "keep" or self.keep != KeepAll()}

    def kept(self, group_size: int) -> int:
        """Return how many responses of a group of this size ``keep`` leaves."""
        return group_size if isinstance(self.keep, KeepAll) else min(self.keep.count, group_size)
