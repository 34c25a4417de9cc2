"""Every preset against its formula, written down here a second time: at r = 1, and in special cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.presets import load_preset, preset_names
from paribus.recipe.recipe import Recipe
from paribus_runners.native import update
from paribus_runners.native.batch import minibatches, passes, tokens_of
from paribus_runners.native.experience import Before, Experience, weigh
from paribus_runners.native.objective.loss import loss
from paribus_runners.native.rollout.rollouts import Rollouts

EPS = 1e-6
LIMIT = 8
CORRECT = [[True] * 4, [True, False, False, False], [False] * 4, [True, True, False, True]]
FORMATTED = [True, True, False, False, True, True, True, True, True, False, True, True, False, False, True, False]


@dataclass(frozen=True)
class Case:
    """What the formulas read: [P, G] correctness, format, length and whether the group is trained on; [N, M] tokens."""

    y: Tensor
    form: Tensor
    L: Tensor
    kept: Tensor
    mask: Tensor
    u: Tensor
    value: Tensor


Formula = Callable[[Case], Tensor]


def score(c: Case) -> Tensor:
    """The task's own score."""
    return 3 * c.y - 1


def pm1(c: Case) -> Tensor:
    """-1 and 1, with DAPO's punishment between 4 and 8 tokens."""
    return 2 * c.y - 1 - ((c.L - 4) / 4).clamp(0, 1)


def centred(x: Tensor) -> Tensor:
    """R [P, G] minus the mean of its group."""
    return x - x.mean(1, keepdim=True)


def standardised(x: Tensor) -> Tensor:
    """R [P, G] in its group, with mean 0 and sample standard deviation 1."""
    return centred(x) / (x.std(1, keepdim=True) + EPS)


def whitened(c: Case, x: Tensor) -> Tensor:
    """A [N, M] with mean 0 and sample standard deviation 1 over all tokens."""
    return (x - x[c.mask].mean()) / (x[c.mask].std() + EPS)


def grpo(c: Case) -> Tensor:
    """(R - mean) / std over the group."""
    return standardised(score(c))


def loo_with_kl(c: Case) -> Tensor:
    """R - beta KL, minus the mean of that over the other responses."""
    R = score(c) - 0.03 * (c.u * c.mask).sum(1).view(4, 4)
    return R - (R.sum(1, keepdim=True) - R) / 3


def tokens_to_come(c: Case) -> Tensor:
    """R - beta sum of k1 from the token on."""
    return score(c).flatten()[:, None] - 0.01 * (c.u * c.mask).flip(1).cumsum(1).flip(1)


def one_step(c: Case) -> Tensor:
    """delta_t: at lengths below 20 VAPO's lambda is 0."""
    following = torch.cat([c.value, c.value[:, :1]], 1)[:, 1:].clone()
    following[torch.arange(16), c.L.flatten().long() - 1] = c.y.flatten()
    return following - c.value


def two_rewards(c: Case) -> Tensor:
    """Each reward standardised in its group, the sum over the batch."""
    total = standardised(score(c)) + standardised(2 * c.form - 1)
    return (total - total.mean()) / (total.std() + EPS)


def centred_std(c: Case) -> Tensor:
    """(R - mean) / batch std of that."""
    return centred(score(c)) / (centred(score(c)).std() + EPS)


def kept_std(c: Case) -> Tensor:
    """(R - mean) / std of that over the responses of the groups that are trained on, with R = 2y - 1."""
    A = centred(2 * c.y - 1)
    return A / (A[c.kept].std() + EPS)


def pairs(c: Case) -> Tensor:
    """Beta sigmoid(-margin) of DPO on the first best and the first worst response of a group, as advantages."""
    A, logs = torch.zeros_like(c.y), (c.u * c.mask).sum(1).view(4, 4)
    for g, best, worst in ((1, 0, 1), (3, 0, 2)):
        coefficient = 0.1 * torch.sigmoid(-0.1 * (logs[g, best] - logs[g, worst]))
        A[g, best], A[g, worst] = coefficient, -coefficient
    return A


def per_sequence(c: Case) -> Tensor:
    """1 / (N L)."""
    return 1 / (c.kept.sum() * c.L)


def per_token(c: Case) -> Tensor:
    """1 / T."""
    return torch.ones_like(c.L) / c.L[c.kept].sum()


def per_group(c: Case) -> Tensor:
    """1 / (P tokens of the group)."""
    return (1 / (2 * c.L.sum(1, keepdim=True))).expand(4, 4)


def constant(n: float) -> Formula:
    """The same number for every token."""
    return lambda c: torch.full_like(c.L, 1 / n)


def k3(beta: float) -> Formula:
    """Derivative of beta k3."""
    return lambda c: beta * (1 - (-c.u).exp())


def k3_times_ratio(beta: float) -> Formula:
    """Derivative of beta r k3 at r = 1: of k3 itself, plus k3."""
    return lambda c: beta * (1 - (-c.u).exp() + (-c.u).exp() - 1 + c.u)


def positive_nll(c: Case) -> Tensor:
    """Derivative of 0.1 NLL of correct responses, as a mean over their tokens."""
    right = c.y.flatten()[:, None]
    return -0.1 * right / (right * c.mask).sum()


TABLE: dict[str, tuple[Formula, Formula, Formula | None]] = {
    "cispo": (grpo, per_token, None),
    "clip_dapo": (lambda c: standardised(pm1(c)), per_token, None),
    "dapo": (lambda c: standardised(pm1(c)), per_token, None),
    "dapo_paper_agg": (lambda c: standardised(pm1(c)), per_group, None),
    "dcpo": (lambda c: standardised(c.y), lambda c: 1 / c.L, None),
    "deepseek_v32": (lambda c: centred(score(c)), per_sequence, k3_times_ratio(0.001)),
    "dr_grpo": (lambda c: centred(c.y), constant(16 * LIMIT), None),
    "gdpo_multireward": (two_rewards, per_sequence, None),
    "gmpo": (grpo, per_sequence, None),
    "grpo": (grpo, per_sequence, k3(0.04)),
    "gspo": (grpo, per_sequence, None),
    "gspo_token": (grpo, per_sequence, None),
    "lite_ppo": (lambda c: centred(score(c)) / (score(c).std() + EPS), per_token, None),
    "lopti": (grpo, per_token, k3(0.001)),
    "olmo3": (lambda c: 10 * centred(c.y), per_token, None),
    "pair_dpo_extremes": (pairs, constant(2), None),
    "ppo": (lambda c: whitened(c, tokens_to_come(c) - c.value), per_token, None),
    "reinforce": (score, constant(16), None),
    "reinforce_pp": (lambda c: whitened(c, tokens_to_come(c)), per_token, None),
    "reinforce_pp_baseline": (centred_std, per_token, lambda c: 0.01 * c.u),
    "reinforce_rej": (lambda c: 2 * c.y - 1, per_token, k3(0.001)),
    "rloo": (loo_with_kl, constant(16), None),
    "rspo": (grpo, per_sequence, None),
    "sapo": (grpo, per_sequence, None),
    "scalerl": (kept_std, per_group, None),
    "sroy_cisco": (grpo, per_sequence, k3(0.04)),
    "vapo": (one_step, per_token, positive_nll),
}
"""A, the weight of a token in the loss, and the derivative of a KL term (weighted like the loss) or of an NLL term."""


def _recipe(preset: str) -> Recipe:
    raw = load_preset(preset).recipe.model_dump(mode="json")
    raw["schedule"]["max_new_tokens"] = LIMIT
    if raw["length"]["rule"]["kind"] == "soft_overlong":
        raw["length"]["rule"] |= {"soft_start": 4, "hard_cap": LIMIT}
    return Recipe.model_validate(raw)


def _case(recipe: Recipe, rollouts: Rollouts) -> tuple[Case, Before]:
    responses, scored = rollouts.responses, rollouts.scored
    mask = responses.mask
    value = torch.rand(mask.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    u = torch.zeros_like(value)
    if rollouts.reference is not None:
        u = responses.padded(responses.logp - rollouts.reference)
    case = Case(
        y=scored.correct.double().view(4, 4),
        form=scored.formatted.double().view(4, 4),
        L=scored.length.double().view(4, 4),
        kept=rollouts.kept.view(4, 4),
        mask=mask,
        u=u,
        value=value,
    )
    critic = recipe.baseline.kind == "critic_gae"
    corrected = recipe.correction.kind != "off"
    return case, Before(responses.logp if corrected else None, None, value[mask] if critic else None)


def test_every_preset_has_its_formula_here() -> None:
    """A preset that is added asks for a line in the table."""
    assert set(TABLE) == set(preset_names())


@pytest.mark.parametrize("preset", TABLE)
def test_on_policy_gradient_of_every_preset(preset: str, made: Any, outcome: Any) -> None:
    """U0: where all four policies agree, dL/dlogp is -A times the weight of the token, plus KL or NLL."""
    recipe = _recipe(preset)
    rollouts = made(recipe, CORRECT, formatted=FORMATTED)
    case, before = _case(recipe, rollouts)
    advantage, weight, further = TABLE[preset]
    A, w = (x.flatten()[:, None] if x.shape == (4, 4) else x for x in (advantage(case), weight(case)))
    want = -A * w
    if further is not None:
        want = want + further(case) * (1 if preset == "vapo" else w)
    want = (want * case.kept.flatten()[:, None]).expand(case.mask.shape)[case.mask]
    got = outcome(recipe, rollouts, before=before)
    torch.testing.assert_close(got.gradient, want, rtol=1e-5, atol=1e-7)
    assert got.gradient.abs().max() > 1e-3


@pytest.mark.parametrize("beta", [0.04, 0.5])
def test_grpo_has_the_coefficient_of_its_paper(beta: float, made: Any, outcome: Any) -> None:
    """T-G1: GRPO's gradient coefficient is A + beta (pi_ref / pi - 1) (DeepSeekMath, arXiv 2402.03300, A.1.6)."""
    recipe = load_preset("grpo").recipe.model_copy(update={"kl": f.KlInLoss(beta=beta), "aggregation": f.SequenceSum()})
    rollouts = made(recipe, CORRECT)
    got = outcome(recipe, rollouts)
    ratio = (rollouts.reference - rollouts.responses.logp).exp()
    want = got.experience.advantage + beta * (ratio - 1)
    torch.testing.assert_close(-16 * got.gradient, want, rtol=1e-5, atol=1e-7)


def test_dapo_without_its_tricks_is_grpo(made: Any, outcome: Any) -> None:
    """One bound, no filter, no punishment and equal lengths make DAPO GRPO without KL."""
    dapo = _recipe("dapo").model_copy(
        update={"clip": f.PpoMin(), "filter": f.NoFilter(), "length": f.Length(), "reward": f.Reward()}
    )
    grpo_ = _recipe("grpo").model_copy(update={"kl": f.NoKl()})
    gradients = []
    for recipe in (dapo, grpo_):
        rollouts = made(recipe, CORRECT, lengths=[5] * 16)
        near = rollouts.responses.logp + 0.5 * (rollouts.responses.entropy - 1.1)
        gradients.append(outcome(recipe, rollouts, near).gradient)
    torch.testing.assert_close(*gradients)


def test_olmo3_is_dr_grpo_with_the_aggregation_of_dapo(made: Any, outcome: Any) -> None:
    """On groups with spread, Dr. GRPO times 10 with a token mean and that clip is Olmo 3 without a mismatch."""
    olmo = _recipe("olmo3")
    dr = _recipe("dr_grpo").model_copy(
        update={"aggregation": f.TokenBatch(), "reward": f.Reward(map="binary01", factor=10), "clip": olmo.clip}
    )
    rollouts = made(olmo, CORRECT[1::2])
    near = rollouts.responses.logp + 0.5 * (rollouts.responses.entropy - 1.1)
    one = outcome(olmo, rollouts, near, before=Before(rollouts.responses.logp))
    torch.testing.assert_close(one.gradient, outcome(dr, rollouts, near).gradient)


@pytest.mark.parametrize("groups", [CORRECT[1:2], [CORRECT[1], CORRECT[1][::-1]]])
def test_reinforce_pp_baseline_is_grpo_where_groups_have_one_std(
    groups: list[list[bool]], made: Any, outcome: Any
) -> None:
    """With one group, or groups of one spread, batch and group std differ only by their ddof."""
    recipes = [
        _recipe("reinforce_pp_baseline").model_copy(update={"scale": scale, "kl": f.NoKl()})
        for scale in (f.BatchStdCentred(ddof=0, eps=0), f.GroupStd(ddof=0, eps=0))
    ]
    one, two = (outcome(r, made(r, groups)).gradient for r in recipes)
    torch.testing.assert_close(one, two)


def test_two_responses_have_advantages_of_one_size_whatever_their_rewards(made: Any, outcome: Any) -> None:
    """With G = 2 GRPO's A is 1 / sqrt(2) and -1 / sqrt(2); sum 0, mean square (G - 1) / G."""
    for factor in (0.1, 10.0):
        recipe = Recipe(reward=f.Reward(factor=factor), scale=f.GroupStd(eps=0))
        A = _advantages(outcome(recipe, made(recipe, [[True, False]])).experience)
        torch.testing.assert_close(A, torch.tensor([0.5, -0.5]).double().sign() * 0.5**0.5)
    recipe = Recipe(scale=f.GroupStd(eps=0))
    A = _advantages(outcome(recipe, made(recipe, CORRECT[1:2])).experience)
    assert float((A**2).mean()) == pytest.approx(3 / 4)


def _advantages(experience: Experience) -> Tensor:
    """Return [N] the advantages of the first tokens."""
    return experience.advantage[experience.rollouts.responses.first]


CUTS: list[f.Clip] = [
    f.NoClip(),
    f.PpoMin(high=0.28),
    f.PpoDual(c=1.5),
    f.TwoSided(delta=1.6),
    f.CappedWeight(cap=1.28, floor=0.5),
    f.SoftGate(),
    f.DynamicBand(),
]


@pytest.mark.parametrize("preset", TABLE)
def test_clip_fractions_of_every_preset_by_autograd(preset: str, made: Any) -> None:
    """Under each clip rule, the tokens counted low, high and dual are those without gradient, and capped is counted."""
    raw = _recipe(preset)
    rules = [raw.clip] if raw.ratio.kind == "geo_clipped" else [raw.clip, *CUTS]
    for rule in rules:
        if rule.kind == "dynamic" and raw.ratio.kind == "seq_geo":
            continue  # tokens of one response have bounds of their own, and gradient through each other
        changes = {"kl": f.NoKl(), "clip": rule, "correction": f.NoCorrection()}
        auxiliary = raw.auxiliary.model_copy(update={"positive_nll": 0.0, "entropy": 0.0})
        recipe = Recipe.model_validate({**dict(raw), **changes, "auxiliary": auxiliary})
        rollouts = made(recipe, CORRECT, formatted=FORMATTED)
        experience = weigh(recipe, rollouts, _case(recipe, rollouts)[1])
        moved = experience.old + 1.2 * (rollouts.responses.entropy - 1.1)
        for batch in minibatches(recipe, experience, Random(0)):
            for tokens in passes(recipe, tokens_of(recipe, experience, batch)):
                new = moved[rollouts.responses.places(batch.rows)].requires_grad_()
                shift = torch.ones(len(new)).double() if recipe.token_weight.kind == "router_shift" else None
                found = loss(recipe, new, tokens, shift=shift)
                gradient = torch.autograd.grad(found.value, new)[0]
                part = update.observe(recipe, new.detach(), tokens, found.ratio, shift, found.value.detach())
                has = (tokens.advantage != 0) & (tokens.weight != 0)
                capped = recipe.clip.kind == "is_cap_sg" and recipe.loss.kind == "policy_gradient"
                if capped:
                    want = -tokens.weight * found.ratio * tokens.advantage
                    assert part.capped == ((gradient - want).abs() > 1e-12).sum()
                assert (0 if capped else part.low + part.high + part.dual) == (has & (gradient == 0)).sum(), rule
                assert part.tokens == (tokens.weight > 0).sum()
