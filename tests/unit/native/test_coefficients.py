"""The coefficient view: parts make up the whole for every preset, and known tables come out."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.recipe import factors as f
from paribus.recipe.coefficients import Response, ResponseCoefficients, reason
from paribus.recipe.patch import apply
from paribus.recipe.presets import load_preset, preset_names
from paribus.recipe.recipe import Recipe
from paribus_runners.native import update
from paribus_runners.native.batch import minibatches, tokens_of
from paribus_runners.native.coefficients import coefficients, view
from paribus_runners.native.experience import weigh
from paribus_runners.native.learner import Learner
from paribus_runners.native.log_probabilities import score
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.collect import Source, collect
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.tasks import Chain

PRESETS = [name for name in preset_names() if load_preset(name).alias_of is None]
PAIRS = "pair_dpo_extremes"


def changed(preset: str, **patch: Any) -> Recipe:
    """Return a preset with a patch whose dots are written as two underscores."""
    raw = load_preset(preset).recipe.model_dump(mode="json")
    patched = apply(raw, {path.replace("__", "."): value for path, value in patch.items()})
    assert not patched.faults
    return Recipe.model_validate(patched.values)


def response(correct: bool, length: int = 3, group: str = "a", **other: Any) -> Response:
    """Return an on-policy response whose tokens have probability 1/2 under everything."""
    return Response(**{"group": group, "correct": correct, "length": length, **other})


def batch(seed: int, drift: float) -> list[Response]:
    """Return ragged groups of mixed verdicts; every log-probability lies ``drift`` nats or so from the old one."""
    rng = random.Random(seed)
    found = []
    for group in "abc"[: rng.randint(1, 3)]:
        for _ in range(rng.randint(1, 4)):
            old = [-3 * rng.random() - 0.05 for _ in range(rng.randint(1, 6))]
            near = [tuple(min(0.0, x + rng.gauss(0, drift)) for x in old) for _ in range(3)]
            correct = rng.random() < 0.5
            found.append(response(
                correct, len(old), group, truncated=rng.random() < 0.2, formatted=rng.random() < 0.7,
                logp_old=tuple(old), logp_new=near[0], logp_sampler=near[1], logp_reference=near[2],
                entropy=tuple(rng.random() for _ in old), value=tuple(rng.gauss(0, 1) for _ in old),
            ))  # fmt: skip
    return found


def assert_parts_make_the_whole(x: ResponseCoefficients) -> None:
    """Check the sum and the product that :class:`ResponseCoefficients` promises, at each token."""
    for t in range(len(x.total)):
        assert x.total[t] == pytest.approx(x.surrogate[t] + x.kl[t] + x.nll[t], rel=1e-6, abs=1e-12)
        plain = x.advantage[t] * x.token_weight[t] * x.weight * x.correction[t]
        assert (x.factor[t] is None) == (plain == 0)
        if (factor := x.factor[t]) is not None:
            assert plain * factor == pytest.approx(x.surrogate[t], rel=1e-5, abs=1e-12)
        assert x.state in ("in_loss", "zero_spread") or (x.weight == x.total[t] == 0 and x.ratio[t] is None)


@pytest.mark.parametrize("preset", PRESETS)
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), drift=st.sampled_from([0.0, 1e-4, 0.1, 0.6]))
def test_parts_make_the_whole(preset: str, seed: int, drift: float) -> None:
    """C is surrogate plus KL plus NLL, and the surrogate is A, weights, correction and factor multiplied."""
    for found in view(load_preset(preset).recipe, batch(seed, drift)):
        assert_parts_make_the_whole(found)


@pytest.mark.parametrize("patch", [
    {"correction": "token_mask"}, {"correction": "seq_mask"}, {"correction": "geo_mask"},
    {"correction": "seq_truncate", "ratio": "seq_geo"}, {"token_weight": "top_entropy", "ratio": "seq_geo"},
    {"token_weight": "advantage_reweight"}, {"kl": {"kind": "loss_isw", "beta": 0.1}}, {"clip": "two_sided"},
    {"clip": "ppo_dual"}, {"ratio": "seq_product"}, {"aggregation": "token_micro"},
    {"length.truncated": "drop"}, {"length": {"truncated": "mask_loss", "count_masked_rows": True}},
    {"auxiliary": {"entropy": 0.1, "positive_nll": 0.3}},
], ids=str)  # fmt: skip
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_parts_make_the_whole_beyond_the_presets(patch: dict[str, Any], seed: int) -> None:
    """The same holds for levels that no preset has."""
    for found in view(changed("grpo", **{k.replace(".", "__"): v for k, v in patch.items()}), batch(seed, 0.4)):
        assert_parts_make_the_whole(found)


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != PAIRS])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_on_policy_the_factor_is_one(preset: str, seed: int) -> None:
    """U0: where all four log-probabilities are equal, c of the surrogate is A times the aggregation weight."""
    for found in view(load_preset(preset).recipe, batch(seed, 0.0)):
        for t in range(len(found.total)):
            assert found.surrogate[t] == pytest.approx(found.advantage[t] * found.weight, rel=1e-5, abs=1e-12)
            assert found.factor[t] in (None, pytest.approx(1, rel=1e-5))
            assert found.kl[t] == 0


@pytest.mark.parametrize("preset", [name for name in PRESETS if name != PAIRS])
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_the_order_of_the_responses_does_not_matter(preset: str, seed: int) -> None:
    """Each response gets the same coefficients wherever it stands in the file."""
    responses = batch(seed, 0.3)
    order = random.Random(seed).sample(range(len(responses)), len(responses))
    straight, mixed = (view(load_preset(preset).recipe, x) for x in (responses, [responses[i] for i in order]))
    for place, i in enumerate(order):
        assert mixed[place].total == pytest.approx(straight[i].total, rel=1e-5, abs=1e-9)
        assert mixed[place].state == straight[i].state


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6), beta=st.floats(0.001, 1.0))
def test_grpo_is_the_table_of_deepseekmath(seed: int, beta: float) -> None:
    """T-G1: on-policy c of GRPO with k3 is (A + beta (pi_ref / pi - 1)) / (N L) (arXiv 2402.03300, section 5.2)."""
    responses = [x.model_copy(update={"logp_new": x.logp_old}) for x in batch(seed, 0.5)]
    for given_, found in zip(responses, view(changed("grpo", kl__beta=beta), responses), strict=True):
        w = 1 / (len(responses) * given_.length)
        for t in range(len(found.total)):
            pull = beta * (math.exp(given_.logp_reference[t] - given_.logp_new[t]) - 1)
            assert found.kl[t] == pytest.approx(pull * w, rel=1e-5, abs=1e-12)
            size = (abs(found.advantage[t]) + abs(pull)) * w  # float32: where both cancel, little is left
            assert found.total[t] == pytest.approx((found.advantage[t] + pull) * w, rel=1e-5, abs=1e-6 * size)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_grpo_off_policy_in_closed_form(seed: int) -> None:
    """Without KL c of GRPO is A r / (N L), and 0 where A > 0 and r > 1.2, or A < 0 and r < 0.8."""
    responses = batch(seed, 0.4)
    for given_, found in zip(responses, view(changed("grpo", kl="off"), responses), strict=True):
        for t in range(len(found.total)):
            r, A = math.exp(given_.logp_new[t] - given_.logp_old[t]), found.advantage[t]
            clipped = (A > 0 and r > 1.2) or (A < 0 and r < 0.8)
            want = 0 if clipped else A * r / (len(responses) * given_.length)
            assert found.total[t] == pytest.approx(want, rel=1e-5, abs=1e-12)
            assert found.ratio[t] == pytest.approx(r)


@pytest.mark.parametrize(("level", "short", "long"), [
    ("seq_mean", 1 / (4 * 2), 1 / (4 * 10)),
    ("token_batch", 1 / 24, 1 / 24),
    ({"kind": "const", "length": 100}, 1 / 400, 1 / 400),
    ("seq_sum", 1 / 4, 1 / 4),
    ("seq_meansum", 1 / 2, 1 / 10),
], ids=lambda x: x if isinstance(x, str) else "")  # fmt: skip
def test_weights_of_short_and_long_responses(level: object, short: float, long: float) -> None:
    """T-A3: only the mean over sequences makes a token of a long response count less than one of a short one."""
    responses = [response(True, 2), response(True, 10), response(False, 2), response(False, 10)]
    found = view(changed("grpo", kl="off", aggregation=level), responses)
    assert [x.weight for x in found] == pytest.approx([short, long, short, long])
    for x in found:
        assert x.total == pytest.approx([A * x.weight for A in x.advantage])


def why(recipe: Recipe, responses: list[Response]) -> list[list[str]]:
    """Return the reasons of all tokens of all responses."""
    return [[reason(recipe, x, t) for t in range(len(x.total))] for x in view(recipe, responses)]


def drifted(correct: bool, *ratios: float) -> Response:
    """Return a response whose tokens have these ratios."""
    old = math.log(0.1)
    values = {"logp_old": (old,) * len(ratios), "logp_new": tuple(old + math.log(r) for r in ratios)}
    return response(correct, len(ratios), logp_sampler=values["logp_old"], logp_reference=values["logp_old"], **values)


def test_reasons_name_what_the_clip_rules_did() -> None:
    """Each clip rule has its word, on the side of A on which it acts."""
    responses = [drifted(True, 1, 2, 0.5), drifted(False, 1, 2, 0.5)]
    assert why(changed("grpo", kl="off"), responses) == [["", "clipped high", "ratio"], ["", "ratio", "clipped low"]]
    assert why(changed("grpo", kl="off", clip="ppo_dual", clip__c=1.5), responses)[1][1] == "clipped high"
    assert why(load_preset("cispo").recipe, responses) == [["", "capped", "ratio"]] * 2
    gated = 4 * math.e / (1 + math.e) ** 2
    assert why(load_preset("sapo").recipe, responses)[0][:2] == ["", f"gated x{gated:.2g}"]
    geometric = why(load_preset("gmpo").recipe, responses)
    mean = math.exp((0 + 0.4 + math.log(0.5)) / 3)
    assert geometric[0] == [f"sequence ratio x{mean:.3g}", "clipped high", f"sequence ratio x{mean:.3g}"]


def test_reasons_name_corrections_weights_and_masks() -> None:
    """Correction, token weight and a mask inside a response have their words."""
    half, even = math.log(0.5), (math.log(0.1),) * 2
    responses = [
        drifted(True, 1, 1).model_copy(
            update={"logp_sampler": (even[0] - half, even[0] + 3 * half), "entropy": (1.0, 2.0)}
        ),
        drifted(False, 1, 1).model_copy(update={"entropy": (1.0, 0.5)}),
    ]
    truncated = changed("grpo", kl="off", correction={"kind": "token_truncate", "cap": 2.0})
    assert why(truncated, responses)[0] == ["corrected x0.5", "corrected x2"]
    masked = changed("grpo", kl="off", correction={"kind": "token_mask", "low": 0.5, "high": 2.0})
    assert why(masked, responses)[0][1] == "masked by the correction"
    chosen = changed("grpo", kl="off", token_weight={"kind": "top_entropy", "fraction": 0.25})
    assert why(chosen, responses) == [["masked: low entropy", ""], ["masked: low entropy"] * 2]
    assert why(changed("grpo", kl="off", token_weight="advantage_reweight"), responses)[0][0] == "weighted x0.73"


def test_responses_outside_the_loss_say_why() -> None:
    """Filtered, dropped and masked responses, and groups without spread, are told apart."""
    responses = [response(True), response(False), response(False, truncated=True), response(True, group="b")]
    states = [x.state for x in view(changed("grpo", filter="drop"), responses)]
    assert states == ["in_loss", "in_loss", "in_loss", "filtered"]
    states = [x.state for x in view(changed("grpo", length__truncated="mask_loss"), responses)]
    assert states == ["in_loss", "in_loss", "masked", "zero_spread"]
    states = [x.state for x in view(changed("grpo", length__truncated="drop"), responses)]
    assert states == ["in_loss", "in_loss", "dropped", "zero_spread"]
    assert [x.state for x in view(load_preset(PAIRS).recipe, responses)] == [
        "in_loss",
        "in_loss",
        "no_pair",
        "filtered",
    ]


def test_terms_beside_the_surrogate_are_named() -> None:
    """KL in the loss and the NLL of correct responses stand with their share of c."""
    apart = {"logp_reference": (math.log(0.75),) * 3}
    responses = [response(True, **apart), response(False, **apart)]
    found = why(changed("grpo", kl__beta=1.0, auxiliary__positive_nll=0.3), responses)
    assert found[0] == ["NLL +0.1, KL +0.083"] * 3
    assert found[1] == ["KL +0.083"] * 3


def test_pairs_have_the_coefficient_of_dpo() -> None:
    """At pi = reference c is beta / 2 on the best response, minus that on the worst, over the number of pairs."""
    responses = [response(True), response(False), response(True), response(True, group="b"), response(False, group="b")]
    found = view(load_preset(PAIRS).recipe, responses)
    beta = load_preset(PAIRS).recipe.loss.beta  # type: ignore[union-attr]  # this preset has it
    assert [x.total[0] for x in found] == pytest.approx([beta / 4, -beta / 4, 0, beta / 4, -beta / 4])


def test_nothing_in_the_loss_gives_zeros() -> None:
    """A batch of which nothing is kept has coefficients 0 and no ratio."""
    found = view(changed("grpo", filter="drop"), [response(True), response(True)])
    assert all(x.state == "filtered" and not any(x.total) and x.weight == 0 for x in found)


@pytest.mark.parametrize("changes", [
    {"kl": f.KlInLoss(beta=0.3), "auxiliary": f.Auxiliary(positive_nll=0.2)},
    {"ratio": f.SequenceGeometric(), "clip": f.PpoMin(low=0.01, high=0.02)},
    {"clip": f.CappedWeight(cap=1.02), "aggregation": f.TokenBatch()},
    {"clip": f.SoftGate(), "filter": f.Drop(), "token_weight": f.TopEntropy(fraction=0.5)},
], ids=lambda x: "+".join(x))  # fmt: skip
def test_the_sum_of_c_grad_log_pi_is_the_gradient_of_training(
    recipe: Recipe, policy: Policy, changes: dict[str, Any]
) -> None:
    """The gradient that an update of the trainer leaves in the weights is -sum c grad log pi."""
    schedule = recipe.schedule.model_copy(update={"minibatches": 1, "epochs": 1})
    recipe = Recipe.model_validate({**dict(recipe), "schedule": schedule, **changes})
    learner = Learner.of(recipe, policy)
    rollouts = collect(recipe, Source(policy, learner.reference, Chain(), 0, TorchSampler(policy)), 1).rollouts
    rollouts = replace(rollouts, scored=replace(rollouts.scored, correct=torch.arange(48) % 5 == 0))
    with torch.no_grad():
        for p in policy.model.parameters():
            p.add_(0.01 * torch.sin(torch.arange(p.numel()).view_as(p)))
    experience = weigh(recipe, rollouts)
    (one,) = minibatches(recipe, experience, random.Random(0))
    list(update.backward(recipe, learner, rollouts, one, tokens_of(recipe, experience, one)))
    parameters = list(policy.model.parameters())
    want = [p.grad for p in parameters]
    ids = rollouts.responses.tokens()
    texts = [ids[i : i + 8] for i in range(0, 48, 8)]
    logp = score(policy, rollouts.prompts, texts, recipe.schedule.temperature).logp
    c = coefficients(recipe, experience, logp.detach().double())["total"]
    assert c.abs().max() > 1e-4
    found = torch.autograd.grad(-(c * logp).sum(), parameters, allow_unused=True)
    for a, b in zip(found, want, strict=True):
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-6)
    assert sum(b is not None for b in want) > 5
