"""F7 clip: where the ratio stops to count."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

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


Clip = Annotated[
    NoClip | PpoMin | PpoDual | TwoSided | CappedWeight | SoftGate | DynamicBand | LogClip,
    Field(discriminator="kind"),
]
