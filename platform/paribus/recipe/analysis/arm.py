"""What is odd about one recipe by itself."""

from __future__ import annotations

from paribus.recipe.analysis.facts import RARE_BAND, updates_in_words
from paribus.recipe.recipe import Recipe

_ONE_A_RESPONSE = frozenset({"seq_geo", "seq_geo_token", "seq_product", "geo_clipped"})
_EVEN = frozenset({"seq_mean", "seq_meansum"})


def same_responses(recipe: Recipe) -> str | None:
    """Return whether overlong filtering and soft overlong punishment act on the same responses."""
    if recipe.length.rule.kind == "none" or recipe.length.truncated == "as_scored":
        return None
    verb = "masks" if recipe.length.truncated == "mask_loss" else "drops"
    return (
        f"`length.truncated: {recipe.length.truncated}` {verb} exactly the responses that `length.rule: soft_overlong` "
        "punishes most, so the punishment hardly acts: let one replace the other"
    )


def never_clips(recipe: Recipe) -> str | None:
    """Return whether a clip is too wide for the ratio of a whole response to leave it in practice."""
    low, high = getattr(recipe.clip, "low", None), getattr(recipe.clip, "high", None)
    if recipe.ratio.kind not in ("seq_geo", "seq_geo_token") or low is None or high is None:
        return None
    if min(low, high) < RARE_BAND or recipe.loss.kind == "pair_dpo":
        return None
    return (
        f"`ratio: {recipe.ratio.kind}` is a mean over the response and stays within {low} and {high} of 1, with "
        f"{updates_in_words(recipe)}: the clip never acts (GSPO's bounds are 3.0e-4 and 4.0e-4)"
    )


def length_weighted(recipe: Recipe) -> str | None:
    """Return whether a ratio of whole responses is counted once for each of their tokens.

    Each response has one value r_i A_i. ``seq_mean`` counts it once (GSPO, arXiv 2507.18071, Eq. 5), as does
    ``seq_meansum``; the others count it L_i times.
    """
    ratio, aggregation = recipe.ratio.kind, recipe.aggregation.kind
    if recipe.loss.kind == "pair_dpo" or ratio not in _ONE_A_RESPONSE or aggregation in _EVEN:
        return None
    return (
        f"`ratio: {ratio}` gives a response one value, and `aggregation: {aggregation}` counts it once for each token, "
        "so that long responses weigh more: use seq_mean"
    )
