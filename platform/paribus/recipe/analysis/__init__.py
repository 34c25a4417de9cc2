"""Analysis of recipes before a run: changes that cannot act, or only rescale. Only what is certain.

Each function is pure and returns sentences for people, or nothing where nothing is certain.
"""

from paribus.recipe.analysis.cost import added_cost, kept_groups, oversampling, refill_cost
from paribus.recipe.analysis.facts import length_weighted, never_clips, same_responses
from paribus.recipe.analysis.inert import inert
from paribus.recipe.analysis.loss_scale import confounded, rescaled
from paribus.recipe.analysis.unusual import MOST_TEMPERATURE, limits, magnitudes, untrainable

__all__ = [
    "MOST_TEMPERATURE",
    "added_cost",
    "confounded",
    "inert",
    "kept_groups",
    "length_weighted",
    "limits",
    "magnitudes",
    "never_clips",
    "oversampling",
    "refill_cost",
    "rescaled",
    "same_responses",
    "untrainable",
]
