"""What weight each token of an experience has in the gradient, with log-probabilities as the autograd leaf."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.batch import minibatches, passes, tokens_of
from paribus_runners.native.experience import Experience
from paribus_runners.native.objective import token_weight
from paribus_runners.native.objective.loss import Tokens, loss

PARTS = ("total", "surrogate", "kl", "nll")


@dataclass(frozen=True)
class Coefficients:
    """c of all tokens of an experience as one optimizer batch, and what it is made of; [N, M], 0 past the ends.

    ``total`` = ``surrogate`` + ``kl`` + ``nll``; ``surrogate`` = ``plain`` x ``factor`` where ``plain`` is not 0.

    Attributes:
        total: c = -d loss / d log pi.
        surrogate: share of the clipped surrogate.
        kl: share of KL in the loss.
        nll: share of the NLL of correct responses.
        ratio: the ratio that the clip rule looks at; nan outside the loss.
        advantage: A; for a loss of pairs 1 in the better response and -1 in the worse one.
        token_weight: what F11 multiplies A with; 0 outside the loss.
        correction: importance weight between sampler and learner.
        weight: [N] what the aggregation multiplies each token with; 0 outside the loss.
    """

    total: Tensor
    surrogate: Tensor
    kl: Tensor
    nll: Tensor
    ratio: Tensor
    advantage: Tensor
    token_weight: Tensor
    correction: Tensor
    weight: Tensor

    @property
    def plain(self) -> Tensor:
        """A x token weight x correction x aggregation weight: c of the surrogate at ratio 1."""
        return self.advantage * self.token_weight * self.correction * self.weight[:, None]

    @property
    def factor(self) -> Tensor:
        """What ratio and clip rule make of one unit of A; nan where ``plain`` is 0."""
        return torch.where(self.plain != 0, self.surrogate / self.plain, torch.nan)


def coefficients(recipe: Recipe, experience: Experience, new: Tensor) -> Coefficients:
    """Return the coefficients at given log-probabilities, through the functions that training calls.

    The parts are gradients of the same loss with the other parts switched off. All kept groups are one optimizer batch.
    Where the update has two passes (Lopti), both are taken at ``new``. The routing counts as unchanged, and entropies
    have no gradient, for they are no function of the log-probabilities of the sampled tokens alone.

    Args:
        recipe: the objective.
        experience: the responses of a step, weighed by the same recipe.
        new: [N, M] log-probability under the policy that is updated, nats, float64.
    """
    schedule = recipe.schedule.model_copy(update={"minibatches": 1, "epochs": 1})
    recipe = recipe.model_copy(update={"schedule": schedule})
    responses = experience.rollouts.responses
    found = {name: torch.zeros_like(new) for name in PARTS}
    ratio, each, weight = torch.full_like(new, torch.nan), torch.zeros_like(new), new.new_zeros(len(new))
    for batch in minibatches(recipe, experience, Random(0)):
        tokens = tokens_of(recipe, experience, batch)
        at = batch.rows[tokens.row], responses.mask[batch.rows].nonzero()[:, 1]
        entropy = responses.entropy[at]
        for one in passes(recipe, tokens):
            for name, (level, some) in _parts(recipe, one).items():
                found[name][at] += _minus_gradient(level, new[at], some, entropy)
        ratio[at] = loss(recipe, new[at], tokens, entropy, torch.ones_like(new[at])).ratio
        each[at] = token_weight.weight(recipe.token_weight, entropy, tokens.old).to(new.dtype)
        weight[batch.rows] = tokens.weight.new_zeros(tokens.rows).scatter(0, tokens.row, tokens.weight).to(new.dtype)
    return Coefficients(
        **found,
        ratio=ratio,
        advantage=experience.advantage.to(new.dtype),
        token_weight=each,
        correction=experience.correction.to(new.dtype),
        weight=weight,
    )


def _parts(recipe: Recipe, tokens: Tokens) -> dict[str, tuple[Recipe, Tokens]]:
    """Return for each part the recipe and the tokens that leave it alone in the loss."""
    no_auxiliary = recipe.model_copy(update={"auxiliary": f.Auxiliary()})
    no_kl = recipe.model_copy(update={"kl": f.NoKl()})
    neither = no_auxiliary.model_copy(update={"kl": f.NoKl()})
    no_surrogate = replace(tokens, advantage=torch.zeros_like(tokens.advantage))
    return {
        "total": (recipe, tokens),
        "surrogate": (neither, tokens),
        "kl": (no_auxiliary, no_surrogate),
        "nll": (no_kl, no_surrogate),
    }


def _minus_gradient(recipe: Recipe, new: Tensor, tokens: Tokens, entropy: Tensor) -> Tensor:
    """Return -d loss / d log pi of each token [T]."""
    leaf = new.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(recipe, leaf, tokens, entropy, torch.ones_like(new)).value, leaf)
    return -gradient
