"""What a recipe costs beside sampling and updating once: more sampling, more passes, more weights."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from paribus.recipe import factors as f
from paribus.recipe.analysis.facts import (
    WHOLE_BATCH,
    corrected_by_the_update,
    has_reference,
    rewards_correctness_alone,
    weighs_sampler,
)
from paribus.recipe.recipe import Recipe
from paribus.text import listed

USUAL_PASS_RATES = (0.1, 0.5, 0.9)
"""Where none is declared, refill is priced at each of these."""

_PASSES = {
    "reference": "a reference model, with one more forward pass over the sampled tokens",
    "old": "the learner's own old log-probabilities, one more forward pass over the sampled tokens",
    "routing": "the experts that the policy chooses before the updates, in a forward pass over the sampled tokens",
    "whole": "a forward pass before each update over the tokens that it trains on",
    "critic": "a critic with its optimizer, about twice the learner's memory and compute",
    "lopti": "Lopti's second pass, twice the updates",
}


def added_cost(before: Recipe, after: Recipe) -> Iterator[str]:
    """Yield what a change adds to the cost of a step: forward passes, networks, updates."""
    has = _passes(before)
    yield from (text for name, text in _PASSES.items() if name in _passes(after) - has)


def kept_groups(pass_rate: float, group_size: int) -> float:
    """Return the probability that a group has both right and wrong responses: 1 - p^G - (1-p)^G.

    Args:
        pass_rate: p, the probability that one response to this prompt is right.
        group_size: G, responses per prompt.
    """
    return 1 - pass_rate**group_size - (1 - pass_rate) ** group_size


def oversampling(pass_rates: Sequence[float], group_size: int) -> float:
    """Return the expected number of groups sampled for one that is kept: 1 / mean P(kept); infinite if none is.

    Args:
        pass_rates: p of equally many prompts each.
        group_size: G, responses per prompt.
    """
    kept = sum(kept_groups(p, group_size) for p in pass_rates) / len(pass_rates)
    return 1 / kept if kept > 0 else inf


def refill_cost(recipe: Recipe, pass_rates: Sequence[float] = ()) -> str | None:
    """Say how much more dynamic sampling samples than it trains on (DAPO, arXiv 2503.14476, section 3.2).

    Args:
        recipe: the recipe.
        pass_rates: p of equally many prompts each, as far as known; empty: some usual ones, one after the other.
    """
    level, size = recipe.filter, recipe.schedule.group_size
    if not isinstance(level, f.Refill | f.RefillAsync):
        return None
    cases = {"": pass_rates} if pass_rates else {f"{p:g}": (p,) for p in USUAL_PASS_RATES}
    factors = {name: oversampling(rates, size) for name, rates in cases.items()}
    at = "the declared pass rates" if pass_rates else f"pass rates of {listed(cases)}"
    times = listed([f"{factor:.1f}" if factor < inf else "endlessly many" for factor in factors.values()])
    most = "" if rewards_correctness_alone(recipe) or level.metric == "correct" else "at most "
    whole = f" (in whole rounds of {recipe.schedule.prompts_per_step})" if isinstance(level, f.Refill) else ""
    text = f"`filter: {level.kind}` samples {most}{times} groups of {size} for one that it keeps{whole}, at {at}"
    short = [name for name, factor in factors.items() if factor > level.max_generation_batches]
    if short:
        where = "" if pass_rates else f" at {listed(short)}"
        limit = f"max_generation_batches ({level.max_generation_batches})"
        text += f"; {limit} ends that early{where}, and steps train on fewer groups"
    return text if pass_rates else f"{text}; declare yours in `budget.pass_rates`"


def _passes(recipe: Recipe) -> set[str]:
    update = recipe.schedule.update
    old = weighs_sampler(recipe) and not corrected_by_the_update(recipe)
    old = old or recipe.token_weight.kind == "router_shift"
    needed = {
        "reference": has_reference(recipe),
        "old": old,
        "routing": recipe.rollout.routing_replay == "learner" and not old,
        "whole": recipe.clip.kind in WHOLE_BATCH and recipe.loss.kind == "policy_gradient",
        "critic": recipe.auxiliary.value is not None,
        "lopti": isinstance(update, f.Lopti) and update.eta > 0,
    }
    return {name for name, needs in needed.items() if needs}
