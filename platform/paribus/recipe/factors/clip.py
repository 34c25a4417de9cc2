"""F7 clip: where the ratio stops to count."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from paribus.recipe.factors.level import Fraction, Level, NonNegative, Positive


class NoClip(Level):
    """r A."""

    kind: Literal["none"] = "none"


class _Band(Level):
    low: Fraction = Field(default=0.2, description="lower bound of r is 1 - low")
    high: NonNegative = Field(default=0.2, description="upper bound of r is 1 + high")


class PpoMin(_Band):
    """min(r A, clip(r, 1 - low, 1 + high) A) (PPO, arXiv 1707.06347 Eq. 7; clip-higher: high > low, DAPO Eq. 8)."""

    kind: Literal["ppo_min"] = "ppo_min"


class PpoDual(_Band):
    """ppo_min, and for A < 0 not below c A (dual clip)."""

    kind: Literal["ppo_dual"] = "ppo_dual"
    c: Annotated[float, Field(gt=1)] = 3.0


class TwoSided(_Band):
    """ppo_min with r capped at delta for both signs of A (INTELLECT-2; TRL ``delta``)."""

    kind: Literal["two_sided"] = "two_sided"
    delta: Annotated[float, Field(gt=1)] = 4.0


class CappedWeight(Level):
    """sg(clip(r, floor, cap)) A log pi (CISPO, arXiv 2506.13585); cap is the absolute maximum of r."""

    kind: Literal["is_cap_sg"] = "is_cap_sg"
    cap: Positive = 1.28
    floor: NonNegative = 0.0


class SoftGate(Level):
    """(4 / tau) sigmoid(tau (r - 1)) A (SAPO, arXiv 2511.20347)."""

    kind: Literal["soft_gate"] = "soft_gate"
    tau_positive: Positive = 1.0
    tau_negative: Positive = 1.05


class DynamicBand(Level):
    """ppo_min with bounds that widen for rare tokens (DCPO)."""

    kind: Literal["dynamic"] = "dynamic"
    low: Fraction = 0.16
    high: NonNegative = 0.2
    cap: Annotated[float, Field(gt=1)] = Field(default=10.0, description="largest upper bound of r")


class LogClip(Level):
    """One-sided clamp of log r to [-low, high] by the sign of A, before the mean (GMPO); bounds in nats."""

    kind: Literal["log_clip"] = "log_clip"
    low: Positive = 0.4
    high: Positive = 0.4


class _Divergence(Level):
    cap: Positive = Field(default=20.0, description="largest r that weighs a token; verl and TRL have 20")


class DppoTotalVariation(_Divergence):
    """sg(min(r, cap)) A log pi, but 0 where p has moved too far the way A points (DPPO, arXiv 2602.04879)."""

    kind: Literal["dppo_tv"] = "dppo_tv"
    low: Fraction = Field(default=0.15, description="largest p_old - p of a token with A < 0 (arXiv 2602.04879)")
    high: Fraction = Field(default=0.15, description="largest p - p_old of a token with A > 0")


class DppoBinaryKl(_Divergence):
    """dppo_tv, with the KL of two coins of chances p_old and p in place of their difference; nats."""

    kind: Literal["dppo_kl"] = "dppo_kl"
    low: NonNegative = Field(default=0.05, description="largest KL of a token with A < 0 that has become rarer")
    high: NonNegative = Field(default=0.05, description="largest KL of a token with A > 0 that has become likelier")


class GradientPreserving(_Band):
    """ppo_min, but clipped tokens keep beta times their bound as a gradient (CE-GPPO, arXiv 2509.20712)."""

    kind: Literal["ce_gppo"] = "ce_gppo"
    beta_low: NonNegative = Field(default=0.75, description="of tokens with A < 0 below the lower bound")
    beta_high: NonNegative = Field(default=1.0, description="of tokens with A > 0 above the upper bound")


class FlippedRatio(_Band):
    """ppo_min with the weight 1 / r where A > 0; above c it is c, with a gradient (ASPO, arXiv 2510.06062)."""

    kind: Literal["aspo"] = "aspo"
    c_positive: Annotated[float, Field(gt=1)] = Field(default=3.0, description="largest 1 / r of a token with A > 0")
    c_negative: Annotated[float, Field(gt=1)] = Field(default=3.0, description="largest r of a token with A < 0")


class GammaWeight(Level):
    """sg(r^k exp(lambda (1 - r))) A log pi; with ``ratio: seq_product`` VESPO (arXiv 2602.10693)."""

    kind: Literal["vespo"] = "vespo"
    k_positive: Positive = 2.0
    lambda_positive: Positive = 3.0
    k_negative: Positive = 3.0
    lambda_negative: Positive = 2.0


class ClipCov(_Band):
    """ppo_min, and no gradient on some tokens of high covariance of A and log pi (Clip-Cov, arXiv 2505.22617)."""

    kind: Literal["clip_cov"] = "clip_cov"
    fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.0002,
        description="share of the tokens of an update that is drawn, at least one token; the authors' "
        "scripts set `low` and `high` to 1 beside it",
    )
    cov_low: float = Field(default=1.0, description="drawn are tokens with a covariance above it")
    cov_high: float = Field(default=5.0, description="and below it")

    @model_validator(mode="after")
    def _ordered(self) -> ClipCov:
        if self.cov_low >= self.cov_high:
            raise ValueError(f"cov_low ({self.cov_low}) must lie below cov_high ({self.cov_high})")
        return self


class KlCov(Level):
    """r A, less beta |log r| on the tokens of highest covariance of A and log pi (KL-Cov, arXiv 2505.22617)."""

    kind: Literal["kl_cov"] = "kl_cov"
    fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.0002,
        description="share of the tokens of an update that pays, at least one token; the authors' "
        "scripts have 0.0002 for 32B and 0.002 for 7B",
    )
    beta: Positive = 1.0


class AdaptiveBand(Level):
    """ppo_min with bounds that move until A > 0 has its share of the sum (BAPO, arXiv 2510.18927)."""

    kind: Literal["bapo"] = "bapo"
    low_start: Fraction = Field(default=0.6, description="lower bound of r at first")
    low_end: Fraction = Field(default=0.9, description="and at most")
    low_step: Positive = 0.05
    high_start: Annotated[float, Field(ge=1)] = Field(default=1.2, description="upper bound of r at first")
    high_end: Annotated[float, Field(ge=1)] = Field(default=3.0, description="and at most")
    high_step: Positive = 0.05
    target: Fraction = Field(default=0.5, description="share of contributions with A > 0 that ends the search")

    @model_validator(mode="after")
    def _ordered(self) -> AdaptiveBand:
        for side in ("low", "high"):
            start, end = getattr(self, f"{side}_start"), getattr(self, f"{side}_end")
            if start > end:
                raise ValueError(f"{side}_start ({start}) must not lie above {side}_end ({end})")
        return self


Clip = Annotated[
    NoClip
    | PpoMin
    | PpoDual
    | TwoSided
    | CappedWeight
    | SoftGate
    | DynamicBand
    | LogClip
    | DppoTotalVariation
    | DppoBinaryKl
    | GradientPreserving
    | FlippedRatio
    | GammaWeight
    | ClipCov
    | KlCov
    | AdaptiveBand,
    Field(discriminator="kind"),
]
