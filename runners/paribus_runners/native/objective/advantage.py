"""Steps 1 to 6 of the order of operations: from verdicts to advantages, once for the responses of a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.objective import baseline, gae, history, length, pair, pass_at_k, scale
from paribus_runners.native.objective import reward as reward_map
from paribus_runners.native.objective.history import Visits


@dataclass(frozen=True)
class Scored:
    """N verified responses of a step, as numbers.

    Attributes:
        group: [N] index of the group of each response.
        groups: number of groups.
        score: [N] the task's own score, float64.
        correct: [N] correctness.
        formatted: [N] whether the response ended by itself and holds an answer.
        length: [N] tokens.
        truncated: [N] whether the length limit ended the response.
        kl: [N] KL that is subtracted from the reward, over the whole response; zeros if the recipe has none there.
        rewards: [N, F] what the recipe's reward functions returned, by name, float64; by default there are none.
        faults: [N, 1 + F] how the verifier and these functions failed, int8: 0, or a number of
            :func:`paribus_runners.tasks.grader.code`; by default [N, 0].
    """

    group: Tensor
    groups: int
    score: Tensor
    correct: Tensor
    formatted: Tensor
    length: Tensor
    truncated: Tensor
    kl: Tensor
    rewards: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    faults: Tensor = field(default_factory=lambda: torch.zeros(0, 0))

    def __post_init__(self) -> None:
        """Give the defaults their rows."""
        for name, kind in (("rewards", torch.float64), ("faults", torch.int8)):
            if not getattr(self, name).numel():
                object.__setattr__(self, name, torch.zeros(len(self.score), 0, dtype=kind))


def raw_reward(recipe: Recipe, scored: Scored) -> Tensor:
    """Return R [N] before shaping."""
    return reward_map.reward(recipe.reward, scored.score, scored.correct, scored.formatted, scored.rewards)


def shaped_reward(recipe: Recipe, scored: Scored) -> Tensor:
    """Return R [N] after length rule and KL."""
    return outcome(recipe, scored) - scored.kl


def outcome(recipe: Recipe, scored: Scored) -> Tensor:
    """Return R [N] after the length rule."""
    raw = raw_reward(recipe, scored)
    return raw + length.punishment(recipe.length, scored.length, raw.dtype)


def advantages(recipe: Recipe, scored: Scored, kept: Tensor, visits: Sequence[Visits] = ()) -> Tensor:
    """Return A [N]; 0 for responses that are not ``kept`` [N], which take no part in any statistic.

    For a loss of pairs: 1 for the best response of a group and -1 for the worst one, of those that enter the loss.

    Args:
        recipe: all but a critic and KL that is charged token by token (:func:`token_advantages`).
        scored: the responses.
        kept: [N] which responses take part.
        visits: statistics of each group's prompt, for ``baseline: history`` alone.
    """
    shaped = shaped_reward(recipe, scored)
    if recipe.loss.kind == "pair_dpo":  # a pair has both or neither of its responses in the loss
        kept = kept & length.in_loss(recipe.length, scored.truncated)
    R, group = shaped[kept], scored.group[kept]
    if recipe.loss.kind == "pair_dpo":
        A = pair.extremes(R, group, scored.groups)
    elif isinstance(recipe.scale, f.HistorySmooth):
        A = history.smooth(recipe.scale, R, group, visits)
    elif recipe.reward.combine == "norm_then_sum":
        A = _norm_then_sum(recipe, scored, kept)
    else:
        centred = baseline.centre(recipe.baseline, R, group, scored.groups, scored.length[kept])
        if isinstance(recipe.scale, f.PassAtKStd):
            assert isinstance(recipe.baseline, f.PassAtK)
            A = scale.divide(centred, pass_at_k.deviation(recipe.baseline, R, group), recipe.scale.eps)
        else:
            A = scale.scale(recipe.scale, centred, R, scored.length[kept], group, scored.groups)
    return torch.zeros_like(shaped).masked_scatter(kept, A)


def _norm_then_sum(recipe: Recipe, scored: Scored, kept: Tensor) -> Tensor:
    """Return A of the kept responses: each reward standardised in its group, their weighted sum whitened.

    Reward-decoupled normalisation (arXiv 2601.05242, Eq. 4 to 6); ddof and eps are those of the scale in both places.
    """
    level, group, groups = recipe.scale, scored.group[kept], scored.groups
    assert isinstance(level, f.BatchWhiten)
    total = torch.zeros_like(scored.score[kept])
    for weight, r in reward_map.parts(
        recipe.reward, scored.score, scored.correct, scored.formatted, scored.rewards
    ).values():
        centred = baseline.centre(recipe.baseline, r[kept], group, groups)
        total = total + weight * scale.by_group_std(level, centred, r[kept], group, groups)
    return scale.scale(level, total, total, scored.length[kept], group, groups)


def per_token(recipe: Recipe) -> bool:
    """Return whether the tokens of a response have advantages of their own."""
    return recipe.baseline.kind in ("critic_gae", "group_steps") or _charges_tokens(recipe.kl)


def _charges_tokens(kl: f.Kl) -> bool:
    return isinstance(kl, f.KlInReward) and kl.unit == "token"


def token_advantages(
    recipe: Recipe, scored: Scored, kept: Tensor, mask: Tensor, charge: Tensor, value: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    """Return A [N, M] and the critic's targets [N, M], which are ``None`` without a critic; 0 outside ``mask``.

    The reward of a token is -charge, that of the last one plus that of the response. With a critic A is the generalised
    advantage estimate with the policy's lambda, and the target that with the critic's lambda, plus the value (decoupled
    estimates: VAPO, arXiv 2504.05118). Without one A is the sum of the rewards from the token on (REINFORCE++, arXiv
    2501.03262), under ``batch_mean`` minus the mean of that sum over whole responses. Then the scale, over tokens.

    Args:
        recipe: one for which :func:`per_token` holds.
        scored: the responses.
        kept: [N] which responses take part; A is 0 for the others.
        mask: [N, M] True on generated tokens.
        charge: [N, M] what each token pays for its distance to the reference.
        value: [N, M] value of the state in which each token was chosen.
    """
    tokens = mask & kept[:, None]
    by_token = _charges_tokens(recipe.kl)
    end = outcome(recipe, scored) if by_token else shaped_reward(recipe, scored)
    reward = -charge.double() if by_token else torch.zeros_like(charge, dtype=torch.float64)
    last = (scored.length - 1).clamp_min(0)[:, None]
    reward = (reward * mask).scatter_add(1, last, end[:, None])
    targets = None
    if isinstance(recipe.baseline, f.CriticGae):
        assert value is not None
        gamma, V = recipe.baseline.gamma, value.double()
        A = gae.estimate(reward, V, mask, gamma, gae.policy_lambda(recipe.baseline, scored.length))
        lam = torch.full_like(end, recipe.baseline.critic_lambda)
        targets = (gae.estimate(reward, V, mask, gamma, lam) + V) * mask
    else:
        A = reward.flip(1).cumsum(1).flip(1)
        if recipe.baseline.kind == "batch_mean" and kept.any():
            A = A - A[kept, 0].mean()
    A = A * tokens
    if isinstance(recipe.scale, f.BatchWhiten) and tokens.any():
        share = torch.ones_like(end) if recipe.scale.unit == "token" else 1 / scored.length.double()
        weight = share[:, None].expand_as(A)[tokens]
        A = torch.zeros_like(A).masked_scatter(tokens, scale.whiten(recipe.scale, A[tokens], weight))
    return A, targets
