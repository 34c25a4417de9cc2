"""F6 ratio: how far the policy has moved from the one that sampled."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from paribus.recipe.factors.level import Level


class NoRatio(Level):
    """No ratio: the REINFORCE form -A log pi."""

    kind: Literal["none"] = "none"


class TokenRatio(Level):
    """r = pi_new / pi_old of each token (PPO, GRPO)."""

    kind: Literal["token"] = "token"


class SequenceGeometric(Level):
    """Geometric mean of the token ratios of a response (GSPO, arXiv 2507.18071)."""

    kind: Literal["seq_geo"] = "seq_geo"


class SequenceGeometricToken(Level):
    """GSPO's value with the gradient on each token (GSPO-token)."""

    kind: Literal["seq_geo_token"] = "seq_geo_token"


class SequenceProduct(Level):
    """Product of the token ratios of a response (RLOO in TRL)."""

    kind: Literal["seq_product"] = "seq_product"


class GeometricClipped(Level):
    """Geometric mean of token ratios that were clipped first (GMPO, arXiv 2507.20673)."""

    kind: Literal["geo_clipped"] = "geo_clipped"


Ratio = Annotated[
    NoRatio | TokenRatio | SequenceGeometric | SequenceGeometricToken | SequenceProduct | GeometricClipped,
    Field(discriminator="kind"),
]
