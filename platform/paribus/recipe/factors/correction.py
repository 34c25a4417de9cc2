"""F10 importance correction: sampler and learner that disagree; w = pi_old / pi_sampler of a token."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paribus.recipe.factors.level import Level, NonNegative, Positive


class NoCorrection(Level):
    """Sampler and learner are taken to agree."""

    kind: Literal["off"] = "off"


class TokenTruncate(Level):
    """min(w, cap) on each token (TIS)."""

    kind: Literal["token_truncate"] = "token_truncate"
    cap: Positive = 2.0


class _Range(Level):
    low: NonNegative = 0.5
    high: Positive = 2.0

    @model_validator(mode="after")
    def _ordered(self) -> _Range:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low}) must lie below high ({self.high})")
        return self


class TokenMask(_Range):
    """w where low <= w <= high, else 0, on each token (IcePop, arXiv 2510.18855)."""

    high: Positive = Field(default=5.0, description="secondary sources name 0.5 and 5.0 as IcePop's bounds")
    kind: Literal["token_mask"] = "token_mask"


class SequenceTruncate(Level):
    """min(W, cap) with W the product of w over the response."""

    kind: Literal["seq_truncate"] = "seq_truncate"
    cap: Positive = 2.0


class SequenceMask(_Range):
    """W where low <= W <= high, else 0."""

    kind: Literal["seq_mask"] = "seq_mask"


class GeometricMask(_Range):
    """Responses are kept or dropped by the geometric mean of w."""

    kind: Literal["geo_mask"] = "geo_mask"


class OffPolicyMask(Level):
    """0 where A < 0 and the policy has left the response by more than delta (DeepSeek-V3.2, arXiv 2512.02556)."""

    kind: Literal["off_policy_mask"] = "off_policy_mask"
    delta: Positive = Field(
        default=0.5,
        description="largest mean of log(pi_sampler / pi) over a response, nats; the paper names no value, TRL "
        "has 0.5 as an example",
    )


class Chain(Level):
    """A mask of whole responses times a weight of what is left."""

    kind: Literal["chain"] = "chain"
    mask: Annotated[OffPolicyMask | GeometricMask, Field(discriminator="kind")] = OffPolicyMask()
    weight: Annotated[TokenTruncate | TokenMask | SequenceTruncate, Field(discriminator="kind")] = TokenTruncate()


Correction = Annotated[
    NoCorrection | TokenTruncate | TokenMask | SequenceTruncate | SequenceMask | GeometricMask | OffPolicyMask | Chain,
    Field(discriminator="kind"),
]
