"""What weight each token of a batch has in the gradient, and why: plain records, made by a runner.

All policy gradient methods are one formula, grad = -sum c[i,t] grad log pi(o[i,t]), and differ in how c is made
(DeepSeekMath, arXiv 2402.03300, section 5.2).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from paribus.recipe.recipe import Recipe

State = Literal["in_loss", "zero_spread", "filtered", "dropped", "masked", "no_pair"]
STATES: Mapping[State, str] = {
    "in_loss": "",
    "zero_spread": "zero spread",
    "filtered": "filtered: its group has no spread",
    "dropped": "dropped: truncated",
    "masked": "masked: truncated",
    "no_pair": "neither best nor worst of its group",
}
"""Why a whole response has no advantage or is not in the loss; empty where it is."""

NAMED = 0.01
"""Share of c from which on a term beside the surrogate is worth a word."""


@dataclass(frozen=True, kw_only=True)
class ResponseCoefficients:
    """The coefficients of one response, one entry a token.

    ``total`` = ``surrogate`` + ``kl`` + ``nll``, and ``surrogate`` = A x token weight x weight x correction x factor.

    Attributes:
        state: whether the response is in the loss.
        reward: R after length rule and KL.
        weight: what the aggregation multiplies each token with; 0 outside the loss.
        advantage: A.
        token_weight: what F11 multiplies A with.
        correction: importance weight between sampler and learner.
        ratio: the ratio that the clip rule looks at; ``None`` outside the loss.
        factor: what ratio and clip rule make of one unit of A; ``None`` where nothing is multiplied with it.
        surrogate: share of the clipped surrogate in c.
        kl: share of KL in the loss.
        nll: share of the NLL of correct responses.
        total: c = -d loss / d log pi.
    """

    state: State
    reward: float
    weight: float
    advantage: tuple[float, ...]
    token_weight: tuple[float, ...]
    correction: tuple[float, ...]
    ratio: tuple[float | None, ...]
    factor: tuple[float | None, ...]
    surrogate: tuple[float, ...]
    kl: tuple[float, ...]
    nll: tuple[float, ...]
    total: tuple[float, ...]

    @property
    def length(self) -> int:
        """Tokens."""
        return len(self.total)

    @property
    def in_loss(self) -> bool:
        """Whether the response enters the loss."""
        return self.state in ("in_loss", "zero_spread")


def reason(recipe: Recipe, found: ResponseCoefficients, t: int) -> str:
    """Return why c of token ``t`` is not A x weight, in a few words; empty where it is.

    KL and NLL are named where they are at least :data:`NAMED` of c.
    """
    return ", ".join(_reasons(recipe, found, t))


def _reasons(recipe: Recipe, found: ResponseCoefficients, t: int) -> Iterator[str]:
    factor, ratio = found.factor[t], found.ratio[t]
    if found.state != "in_loss":
        yield STATES[found.state]
    elif found.advantage[t] == 0:
        yield "A is 0"
    elif factor == 0 and ratio is not None:
        yield "clipped high" if ratio > 1 else "clipped low"
    else:
        yield from _of_weights(found, t)
        if factor is None or ratio is None:
            yield from ["through its response"] if found.surrogate[t] else []
        else:
            yield from _of_ratio(recipe, factor, ratio)
    for name, part in (("NLL", found.nll[t]), ("KL", found.kl[t])):
        if part and abs(part) >= NAMED * abs(found.total[t]):
            yield f"{name} {part:+.2g}"


def _of_weights(found: ResponseCoefficients, t: int) -> Iterator[str]:
    """Yield what token weight and importance correction did to a token."""
    if found.token_weight[t] != 1:
        yield f"weighted x{found.token_weight[t]:.3g}" if found.token_weight[t] else "masked: low entropy"
    if found.correction[t] != 1:
        yield f"corrected x{found.correction[t]:.3g}" if found.correction[t] else "masked by the correction"


def _of_ratio(recipe: Recipe, factor: float, ratio: float) -> Iterator[str]:
    """Yield what ratio and clip rule did to a token that is not clipped."""
    if recipe.loss.kind == "pair_dpo":
        yield f"margin x{factor:.3g}"
    elif recipe.clip.kind == "is_cap_sg" and not math.isclose(factor, ratio, rel_tol=1e-5):
        yield "capped" if factor < ratio else "raised to the floor"
    elif recipe.clip.kind == "soft_gate" and not math.isclose(factor, ratio, rel_tol=1e-5):
        yield f"gated x{factor / ratio:.2g}"
    elif not math.isclose(factor, 1, rel_tol=1e-5):
        yield "ratio" if math.isclose(factor, ratio, rel_tol=1e-5) else f"sequence ratio x{factor:.3g}"


def caveats(recipe: Recipe) -> list[str]:
    """Return what of a recipe a batch of responses alone cannot show; one sentence each."""
    shift, schedule = recipe.token_weight.kind == "router_shift", recipe.schedule
    found = {
        "the entropy bonus acts on whole distributions and is no part of c": recipe.auxiliary.entropy != 0,
        "the loss of the critic is no part of c": recipe.auxiliary.value is not None,
        "the routing of all tokens is taken as unchanged (gamma = 1)": shift,
        "each prompt is taken as visited for the first time": recipe.baseline.kind == "history",
        "filtered groups are not sampled again": recipe.filter.kind in ("refill", "refill_async"),
        f"all responses are one optimizer batch; the recipe makes {schedule.minibatches}": schedule.minibatches > 1,
        "low-probability tokens are updated first, the others from the new weights: both from `logp_new` here":
            schedule.update.kind == "lopti",
    }  # fmt: skip
    return [sentence for sentence, holds in found.items() if holds]


@dataclass(frozen=True, kw_only=True)
class Share:
    """Some tokens of a batch: how many, their share of the sum of |c|, and their mean |c|."""

    tokens: int
    share: float
    mean: float


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Where the weight of a batch lies: the figures behind the discussion of length bias (arXiv 2503.20783).

    Attributes:
        net: sum of c.
        absolute: sum of |c|.
        cut: median length of the responses in the loss; ``shorter`` ones are not longer than that.
        cells: by the sign of A (``positive``, ``negative``, ``zero``), then by length (``shorter``, ``longer``,
            ``all``).
    """

    net: float
    absolute: float
    cut: float
    cells: Mapping[str, Mapping[str, Share]]


def summary(found: Sequence[ResponseCoefficients]) -> Summary:
    """Return the shares of the tokens in the loss by the sign of A and by length.

    Pure, on plain records: whatever has them, such as the report of a study, can call it.
    """
    inside = [x for x in found if x.in_loss]
    cut = median(x.length for x in inside) if inside else 0.0
    absolute = sum(abs(c) for x in inside for c in x.total)
    cells: dict[str, dict[str, list[float]]] = {
        sign: {"shorter": [], "longer": [], "all": []} for sign in ("positive", "negative", "zero")
    }
    for x in inside:
        none = x.state == "zero_spread"
        for advantage, c in zip(x.advantage, x.total, strict=True):
            cell = cells["zero" if none or not advantage else "positive" if advantage > 0 else "negative"]
            cell["shorter" if x.length <= cut else "longer"].append(abs(c))
            cell["all"].append(abs(c))
    return Summary(
        net=sum(c for x in inside for c in x.total),
        absolute=absolute,
        cut=cut,
        cells={sign: {k: _share(v, absolute) for k, v in cell.items()} for sign, cell in cells.items()},
    )


def _share(values: Sequence[float], absolute: float) -> Share:
    total = sum(values)
    return Share(
        tokens=len(values),
        share=total / absolute if absolute else 0.0,
        mean=total / len(values) if values else 0.0,
    )


@dataclass(frozen=True, kw_only=True)
class Against:
    """One response under two recipes, free of the scale of either loss.

    Attributes:
        here: sum of c of the response over the sum of all |c|, under the one recipe.
        there: the same under the other one.
        ratio: ``here`` over ``there``; below 0 where they push in opposite directions, ``None`` where ``there`` is 0.
    """

    here: float
    there: float
    ratio: float | None


def against(here: Sequence[ResponseCoefficients], there: Sequence[ResponseCoefficients]) -> list[Against]:
    """Return how much more each response counts under one recipe than under another one, on equal responses."""
    one, other = _normalised(here), _normalised(there)
    return [Against(here=a, there=b, ratio=a / b if b else None) for a, b in zip(one, other, strict=True)]


def _normalised(found: Sequence[ResponseCoefficients]) -> list[float]:
    absolute = summary(found).absolute
    return [sum(x.total) / absolute if absolute else 0.0 for x in found]
