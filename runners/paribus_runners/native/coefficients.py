"""The weight of each token of given responses in the gradient, through the functions that training calls."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.analysis.facts import has_reference, weighs_sampler
from paribus.recipe.coefficients import Response, ResponseCoefficients, State
from paribus.recipe.recipe import Recipe
from paribus_runners.native.batch import in_loss, minibatches, passes, tokens_of
from paribus_runners.native.experience import Before, Experience, weigh
from paribus_runners.native.objective import segment, token_weight
from paribus_runners.native.objective.advantage import Scored, shaped_reward
from paribus_runners.native.objective.filter import good_groups, present
from paribus_runners.native.objective.loss import Tokens, left_out, loss
from paribus_runners.native.objective.whole_batch import prepared
from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout.rollouts import Rollouts, charges

ROUNDING = 1e-9
"""Bound on what is left of an advantage of 0 after a batch mean was subtracted from it."""


def view(recipe: Recipe, responses: Sequence[Response]) -> list[ResponseCoefficients]:
    """Return the coefficients of the responses of a step, in any order; all kept groups are one optimizer batch."""
    rollouts = _rollouts(recipe, responses)
    value = _flat(x.value for x in responses) if recipe.baseline.kind == "critic_gae" else None
    experience = weigh(recipe, rollouts, Before(logp=_flat(x.logp_old for x in responses), value=value))
    found = coefficients(recipe, experience, _flat(x.logp_new for x in responses))
    weight = found.pop("weight")[rollouts.responses.first].tolist()
    reward, lengths = shaped_reward(recipe, rollouts.scored).tolist(), [x.length for x in responses]
    first = rollouts.responses.first.tolist()
    values = {k: [x[a : a + n].tolist() for a, n in zip(first, lengths, strict=True)] for k, x in found.items()}
    records = []
    for i, state in enumerate(_states(recipe, experience)):
        rows: dict[str, Any] = {name: tuple(x[i]) for name, x in values.items()}
        rows |= {name: tuple(None if x != x else x for x in rows[name]) for name in ("ratio", "factor")}  # nan: none
        records.append(ResponseCoefficients(state=state, reward=reward[i], weight=weight[i], **rows))
    return records


def coefficients(recipe: Recipe, experience: Experience, new: Tensor) -> dict[str, Tensor]:
    """Return the fields of :class:`ResponseCoefficients`, each [T].

    The parts of c are gradients of the same loss with its other terms switched off; the leaf is ``new``. If the update
    has two passes (Lopti), both are taken at ``new``. The routing counts as unchanged, and entropies have no gradient,
    because they are no function of the log-probabilities of the sampled tokens alone. ``ratio`` is nan outside the
    loss, ``factor`` where nothing is multiplied with it.

    Args:
        recipe: the objective.
        experience: the responses of a step, weighed by the same recipe.
        new: [T] log-probability under the policy that is updated, nats, float64.
    """
    schedule = recipe.schedule.model_copy(update={"minibatches": 1, "epochs": 1})
    recipe = recipe.model_copy(update={"schedule": schedule})
    responses = experience.rollouts.responses
    found = {name: torch.zeros_like(new) for name in ("total", "surrogate", "kl", "nll", "token_weight", "weight")}
    ratio, kept = torch.full_like(new, torch.nan), torch.ones_like(new)
    for batch in minibatches(recipe, experience, Random(0)):
        tokens = tokens_of(recipe, experience, batch)
        at = responses.places(batch.rows)
        assert responses.entropy is not None
        entropy = responses.entropy[at]
        for one in passes(recipe, tokens):
            here = prepared(recipe, one, new[at], Random(0))
            for name, (level, some) in _parts(here.recipe, here.tokens).items():
                found[name][at] += _minus_gradient(level, new[at], some, entropy)
        if (out := left_out(recipe, new[at], tokens)) is not None:
            kept[at] = (~out).to(new.dtype)
        plain = prepared(recipe, tokens, new[at], Random(0)).recipe
        ratio[at] = loss(plain, new[at], tokens, entropy, torch.ones_like(new[at])).ratio
        found["token_weight"][at] = token_weight.weight(recipe.token_weight, entropy, tokens.old).to(new.dtype)
        found["weight"][at] = tokens.weight.to(new.dtype)
    assert experience.correction is not None
    advantage, corrected = experience.advantage.to(new.dtype), experience.correction.to(new.dtype) * kept
    full = advantage * found["token_weight"] * corrected * found["weight"]
    factor = torch.where(full != 0, found["surrogate"] / full, torch.nan)
    return {**found, "advantage": advantage, "correction": corrected, "ratio": ratio, "factor": factor}


def _parts(recipe: Recipe, tokens: Tokens) -> dict[str, tuple[Recipe, Tokens]]:
    """Return for each part of c the recipe and the tokens that leave it alone in the loss."""
    no_nll: dict[str, f.Level] = {"auxiliary": f.Auxiliary()}
    no_kl: dict[str, f.Level] = {"kl": f.NoKl()}
    if isinstance(recipe.loss, f.MirrorDescent):  # the distance to the old policy counts as KL
        no_kl["loss"] = f.PolicyGradient()
    no_surrogate = replace(tokens, advantage=torch.zeros_like(tokens.advantage), penalty=None)
    return {
        "total": (recipe, tokens),
        "surrogate": (recipe.model_copy(update={**no_nll, **no_kl}), tokens),
        "kl": (recipe.model_copy(update=no_nll), no_surrogate),
        "nll": (recipe.model_copy(update=no_kl), no_surrogate),
    }


def _minus_gradient(recipe: Recipe, new: Tensor, tokens: Tokens, entropy: Tensor) -> Tensor:
    """Return -d loss / d log pi of each token [T]."""
    leaf = new.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(recipe, leaf, tokens, entropy, torch.ones_like(new)).value, leaf)
    return -gradient


def _rollouts(recipe: Recipe, responses: Sequence[Response]) -> Rollouts:
    """Return the responses as the filtered rollouts of a step; without a correction the old policy sampled them."""
    names = list(dict.fromkeys(x.group for x in responses))
    columns = ("correct", "formatted", "length", "truncated")
    given = {name: torch.tensor([getattr(x, name) for x in responses]) for name in columns}
    logp = _flat(x.logp_old if not weighs_sampler(recipe) else x.logp_sampler for x in responses)
    ids, entropy = torch.zeros(len(logp), dtype=torch.long), _flat(x.entropy for x in responses)
    sample = Responses(ids, logp, entropy, given["length"], given["truncated"])
    reference, kl = None, torch.zeros(len(responses), dtype=torch.float64)
    if has_reference(recipe):
        reference = _flat(x.logp_reference for x in responses)
        kl = sample.padded(charges(recipe.kl, sample, reference)).sum(1)
    group = torch.tensor([names.index(x.group) for x in responses])
    score = torch.tensor([x.score for x in responses], dtype=torch.float64)
    rewards = torch.zeros(len(responses), len(recipe.reward.functions), dtype=torch.float64)
    scored = Scored(group=group, groups=len(names), score=score, kl=kl, rewards=rewards, **given)
    return Rollouts(
        prompts=[[] for _ in names],
        problems=names,
        born=torch.zeros(len(names)),
        carried=torch.zeros(len(names), dtype=torch.bool),
        responses=sample,
        scored=scored,
        reference=reference,
        kept=present(recipe, scored) & good_groups(recipe, scored)[group],
        rounds=1,
        seconds_sampling=0.0,
        seconds_reward=0.0,
    )


def _states(recipe: Recipe, experience: Experience) -> Iterator[State]:
    """Yield for each response whether it is in the loss, and if not, why."""
    rollouts, scored = experience.rollouts, experience.rollouts.scored
    kept, there = rollouts.kept, present(recipe, scored)
    spread = segment.spread(shaped_reward(recipe, scored)[kept], scored.group[kept], scored.groups)[scored.group]
    moved = (spread > 0) | (rollouts.responses.padded(experience.advantage.abs()).amax(1) > ROUNDING)
    out: State = "no_pair" if recipe.loss.kind == "pair_dpo" else "masked"
    for p, k, i, m in torch.stack([there, kept, in_loss(recipe, experience), moved], 1).tolist():
        yield "dropped" if not p else "filtered" if not k else out if not i else "in_loss" if m else "zero_spread"


def _flat(rows: Iterable[Sequence[float]]) -> Tensor:
    """Return [T] float64 of rows of any length."""
    return torch.tensor([x for row in rows for x in row], dtype=torch.float64)
