"""``rollout.routing_replay``: updates send tokens to the experts that sampler or learner chose before."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import silu
from transformers import (
    AutoModelForCausalLM,
    MixtralConfig,
    OlmoeConfig,
    Qwen2MoeConfig,
    Qwen3MoeConfig,
)

from paribus.contract import Options
from paribus.errors import RunnerError
from paribus.recipe import factors as f
from paribus.recipe.analysis.cost import added_cost
from paribus.recipe.analysis.inert import inert
from paribus.recipe.compute import Compute
from paribus.recipe.recipe import Model, Recipe
from paribus.recipe.rollout import Rollout
from paribus_runners.native import attention, experts
from paribus_runners.native import main as native
from paribus_runners.native.attention import pack
from paribus_runners.native.experts import Choice, Experts
from paribus_runners.native.log_probabilities import score, score_all
from paribus_runners.native.policy import Policy
from paribus_runners.native.requirements import sampler_faults
from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout.sampler import Ended, Requests, complete
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.native.runner import NativeRunner
from paribus_runners.tasks import Chain
from support.native_runs import changed, lines_of, same, train_until, weights_of

JobFolder = Callable[..., Path]
COPIES = 3


class _Answers:
    """Answers each turn once with two tokens."""

    marks: Sequence[int] = (3, 5, 7)
    most, room, longest = 2, 2, None

    def answers(self, ended: Sequence[Ended]) -> list[tuple[Sequence[int] | None, bool]]:
        """Return the answers."""
        return [([one.prompt + 1, len(one.tokens) % 9], False) for one in ended]


@pytest.fixture
def mixture(mixture_model: Path) -> Policy:
    """A fresh copy of the mixture of four experts, two a token."""
    return Policy.load(str(mixture_model), None, "float32")


def _sampled(policy: Policy, turns: _Answers | None = None) -> tuple[list[list[int]], Responses]:
    """Return prompts of unequal length, and responses to them with the experts that their tokens went to."""
    full = policy.encode([p.prompt for p in Chain().training(0, 1, 0, 4)])
    prompts = [full[0], full[1][6:], full[2], full[3][3:]]
    requests = Requests(prompts, COPIES, 10, 0.8, ("test",), turns=turns, with_experts=True)
    return prompts, complete(TorchSampler(policy), requests)


def _perturb(policy: Policy, by: float = 0.3) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for x in policy.trained:
            x += by * x.std() * torch.randn(x.shape, generator=generator)


def _sets(ids: Tensor) -> Tensor:
    return ids.long().sort(-1).values


@pytest.mark.parametrize("turns", [None, _Answers()])
def test_the_learner_with_the_samplers_experts_finds_its_probabilities(mixture: Policy, turns: Any) -> None:
    """All tokens but the last of each response have two experts in each layer, and the learner's routers agree."""
    prompts, responses = _sampled(mixture, turns)
    assert responses.experts is not None
    lengths = torch.tensor([len(prompts[i // COPIES]) for i in range(len(responses))])
    assert torch.equal(responses.experts.size, lengths + responses.read - 1)
    assert responses.experts.ids.shape == (int(responses.experts.size.sum()), 2, 2)
    assert (turns is None) == (responses.given is None)
    own = score_all(mixture, prompts, responses, 0.8, with_experts=True)
    assert own.experts is not None
    assert torch.equal(_sets(own.experts.ids), _sets(responses.experts.ids))
    assert torch.equal(own.experts.size, responses.experts.size)
    replayed = score_all(mixture, prompts, responses, 0.8, replay=True)
    torch.testing.assert_close(replayed.logp, responses.logp, rtol=1e-6, atol=2e-6)  # one token a pass rounds otherwise
    torch.testing.assert_close(replayed.logp, own.logp, rtol=0, atol=1e-6)


def _alone(policy: Policy, prompt: Sequence[int], response: Sequence[int], which: Tensor | None) -> list[Tensor]:
    """Return the experts [n, K] that each layer's experts were called with for one sequence, by a spy of its own."""
    seen: list[Tensor] = []
    hooks = [
        layer.mlp.experts.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[1]))
        for layer in policy.model.model.layers
    ]
    size = torch.tensor([len(prompt) + len(response) - 1])
    taken = None if which is None else Experts(which, size)
    with torch.no_grad():
        score(policy, [prompt], [[response]], 0.8, experts=taken)
    for hook in hooks:
        hook.remove()
    return seen


def test_replayed_experts_stay_when_the_weights_move(mixture: Policy) -> None:
    """Experts are called with the sets of the sampler, prompt included; without replay some would be others."""
    prompts, responses = _sampled(mixture)
    assert responses.experts is not None
    _perturb(mixture)
    others = 0
    for i, response in enumerate(responses.tokens()):
        prompt, mine = prompts[i // COPIES], responses.experts.select(torch.tensor([i])).ids
        free, replayed = (_alone(mixture, prompt, response, which) for which in (None, mine))
        for layer in range(2):
            assert torch.equal(_sets(replayed[layer]), _sets(mine[:, layer]))
            others += int((_sets(free[layer]) != _sets(mine[:, layer])).any(-1).sum())
    assert others > 0.05 * 2 * len(responses.experts.ids)
    plain = score_all(mixture, prompts, responses, 0.8).logp
    assert (score_all(mixture, prompts, responses, 0.8, replay=True).logp - plain).abs().max() > 1e-2


def test_the_batch_around_a_response_does_not_change_its_replay(mixture: Policy) -> None:
    """Responses in another order, with fewer beside them, keep their experts."""
    prompts, responses = _sampled(mixture)
    _perturb(mixture)
    whole = score_all(mixture, prompts, responses, 0.8, replay=True).logp
    rows = torch.tensor([7, 2])
    some = responses.select(rows)
    again = score_all(mixture, [prompts[2], prompts[0]], some, 0.8, replay=True).logp
    torch.testing.assert_close(again, whole[responses.places(rows)], rtol=0, atol=1e-5)


def _block(policy: Policy, layer: int, x: Tensor, sets: Tensor) -> Tensor:
    """Return a Qwen2-MoE block [n, H] token by token, with given experts: the formula, written down again."""
    block, out = policy.model.model.layers[layer].mlp, []
    for token, chosen in zip(x, sets, strict=True):
        p = torch.softmax(block.gate.weight @ token, 0)
        total = sum(p[e] for e in chosen) if policy.model.config.norm_topk_prob else torch.tensor(1.0)
        y = torch.zeros_like(token)
        for e in chosen:
            gate, up = (block.experts.gate_up_proj[e] @ token).chunk(2)
            y = y + p[e] / total * (block.experts.down_proj[e] @ (silu(gate) * up))
        shared = block.shared_expert
        always = shared.down_proj.weight @ (silu(shared.gate_proj.weight @ token) * (shared.up_proj.weight @ token))
        out.append(y + torch.sigmoid(block.shared_expert_gate.weight @ token) * always)
    return torch.stack(out)


@pytest.mark.parametrize("normed", [False, True])
def test_a_block_has_the_current_routers_weights_over_the_given_set(mixture: Policy, normed: bool) -> None:
    """Value and gradient of every weight are those of the formula; the router has one, from the set alone."""
    mixture.model.config.norm_topk_prob = normed
    experts.direct(mixture.model)
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(6, 64, generator=generator)
    sets = torch.stack([torch.randperm(4, generator=generator)[:2] for _ in range(6)])
    block = mixture.model.model.layers[1].mlp
    block.gate.norm_topk_prob = normed
    block.gate._paribus_choice = Choice(sets[:, None].expand(6, 2, 2))
    weights = list(block.parameters())
    found, want = block(x[None])[0], _block(mixture, 1, x, sets)
    torch.testing.assert_close(found, want, rtol=1e-4, atol=1e-5)
    pull = torch.randn(found.shape, generator=generator)
    mine, other = (torch.autograd.grad((y * pull).sum(), weights, allow_unused=True) for y in (found, want))
    for a, b in zip(mine, other, strict=True):
        assert a is not None
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)
    router = next(g for g, w in zip(mine, weights, strict=True) if w is block.gate.weight)
    assert bool(router.any())


def test_the_gradient_is_that_of_fixed_experts(mixture: Policy) -> None:
    """Along random directions it is what differences of the replayed log-probabilities say, with weights in float64."""
    prompts, responses = _sampled(mixture)
    assert responses.experts is not None
    _perturb(mixture)
    mixture.model.config._experts_implementation = "eager"  # the fast kernel knows no float64
    policy = replace(mixture, model=mixture.model.double())
    tokens = responses.tokens()
    groups = [tokens[i : i + COPIES] for i in range(0, len(tokens), COPIES)]

    def total() -> Tensor:
        return score(policy, prompts, groups, 0.8, experts=responses.experts).logp.double().sum()

    names = [name for name, _ in policy.model.named_parameters()]
    weights = policy.trained
    gradient = dict(zip(names, torch.autograd.grad(total(), weights), strict=True))
    generator = torch.Generator().manual_seed(2)
    for chosen in (".gate.weight", ".experts.", "_proj"):  # the blank's embedding gets none, as it is padding
        way = {n: torch.randn(w.shape, generator=generator, dtype=w.dtype) * w.detach().std() for n, w in
               zip(names, weights, strict=True) if chosen in n}  # fmt: skip
        slope = sum(float((gradient[n] * d.detach()).sum()) for n, d in way.items())
        ends, step = [], 1e-3
        for sign in (1, -1):
            with torch.no_grad():
                for n, w in zip(names, weights, strict=True):
                    w += sign * step * way[n] if n in way else 0
                ends.append(float(total()))
                for n, w in zip(names, weights, strict=True):
                    w -= sign * step * way[n] if n in way else 0
        assert abs(slope) > 1e-2
        assert slope == pytest.approx((ends[0] - ends[1]) / (2 * step), rel=0.02)


@pytest.mark.parametrize(
    "config",
    [
        MixtralConfig(num_local_experts=6, num_experts_per_tok=3),
        OlmoeConfig(num_experts=6, num_experts_per_tok=3, norm_topk_prob=False),
        Qwen2MoeConfig(num_experts=300, num_experts_per_tok=3, moe_intermediate_size=8, decoder_sparse_step=2),
        Qwen3MoeConfig(num_experts=6, num_experts_per_tok=3, norm_topk_prob=True, moe_intermediate_size=8),
    ],
    ids=lambda config: config.model_type,
)
def test_each_kind_of_mixture_repeats_itself(mixture: Policy, config: Any) -> None:
    """Its own experts, recorded and replayed, give the same log-probabilities; other experts give others."""
    config.update({"vocab_size": 24, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 4})
    config.update({"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 8, "tie_word_embeddings": False})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention.NAME).eval()
    policy = replace(mixture, model=model)
    with torch.no_grad():
        for name, x in model.named_parameters():
            x.copy_((1.0 if x.dim() == 1 else 0) + 0.3 * torch.randn(x.shape)) if "norm" not in name else None
        prompts, groups = [[1, 2, 3], [4, 5]], [[[7, 8], [9]], [[3, 3, 3], [1]]]
        plain = score(policy, prompts, groups, 1.0, with_experts=True)
        assert plain.experts is not None
        layers = 2 if config.model_type == "qwen2_moe" else 4
        assert plain.experts.ids.shape == (4 + 3 + 4 + 2, layers, 3)
        assert plain.experts.ids.dtype == (torch.int16 if config.model_type == "qwen2_moe" else torch.uint8)
        again = score(policy, prompts, groups, 1.0, experts=plain.experts)
        torch.testing.assert_close(again.logp, plain.logp, rtol=0, atol=1e-6)
        assert again.replaced is not None
        assert not again.replaced.any()
        other = Experts((plain.experts.ids + 1) % 6, plain.experts.size)
        moved = score(policy, prompts, groups, 1.0, experts=other)
        assert (moved.logp - plain.logp).abs().max() > 1e-3
        assert moved.replaced is not None
        assert moved.replaced.max() == 1


def test_experts_are_taken_apart_and_put_together() -> None:
    """Selecting and joining keep each sequence; in a row each token of a prompt stands once."""
    ids = torch.arange(4 + 3 + 2).repeat_interleave(2).view(9, 1, 2).to(torch.uint8)
    whole = Experts(ids, torch.tensor([4, 3, 2]))
    assert whole.select(torch.tensor([2, 0])).ids[:, 0, 0].tolist() == [7, 8, 0, 1, 2, 3]
    joined = Experts.concat([whole.select(torch.tensor([True, False, False])), whole.select(torch.tensor([1, 2]))])
    assert torch.equal(joined.ids, ids)
    assert joined.size.tolist() == [4, 3, 2]
    layout = pack([2, 2], [[3, 2], [1]], torch.device("cpu"))
    row = whole.in_row(layout.scatter, layout.width)
    # prompt, first response, second response; prompt, response: the last token of each goes to experts 0 and 1
    assert row[:, 0].tolist() == [[0, 0], [1, 1], [2, 2], [3, 3], [0, 1], [6, 6], [0, 1], [7, 7], [8, 8], [0, 1]]
    back = Experts.of(row, layout.gather, torch.tensor([4, 3, 2]))
    assert back.ids[:, 0, 0].tolist() == [0, 1, 2, 3, 0, 1, 6, 7, 8]


def test_passes_of_others_route_for_themselves(mixture: Policy) -> None:
    """A reference, a critic and later passes are not directed by what a pass of the policy has left behind."""
    prompts, responses = _sampled(mixture)
    assert responses.experts is not None
    _perturb(mixture)
    plain = score_all(mixture, prompts, responses, 0.8).logp
    score_all(mixture, prompts, responses, 0.8, replay=True)
    assert torch.equal(score_all(mixture, prompts, responses, 0.8).logp, plain)
    other = replace(mixture, model=copy.deepcopy(mixture.model))
    assert torch.equal(score_all(other, prompts, responses, 0.8).logp, plain)


def _recipe(recipe: Recipe, model: Path, replay: str, **more: Any) -> Recipe:
    named = Model.model_validate({"name": str(model), **more.pop("model", {})})
    optimizer = recipe.optimizer.model_copy(update={"learning_rate": 3e-3})
    rollout = Rollout.model_validate({"routing_replay": replay})
    return changed(recipe, model=named, optimizer=optimizer, rollout=rollout, **more)


def test_replay_acts_from_the_second_update_on_and_is_seen(
    recipe: Recipe, job_folder: JobFolder, mixture_model: Path
) -> None:
    """On fresh rollouts both kinds are the same to rounding; on stale ones the sampler's routing is another's."""
    runs: dict[str, list[dict[str, float]]] = {}
    for name, replay, staleness in (("off", "off", 1), ("r2", "learner", 0), ("r3", "sampler", 0),
                                    ("old", "sampler", 1)):  # fmt: skip
        path = job_folder(_recipe(recipe, mixture_model, replay, schedule={"staleness": staleness}), name=name)
        native.run(path)
        runs[name] = lines_of(path)
    assert not any("router/replaced_frac" in line or "mismatch/routing_frac" in line for line in runs["off"])
    for name in ("r2", "r3", "old"):
        assert all(0.01 < line["router/replaced_frac"] < 1 for line in runs[name][1:]), name
    for two, three in zip(runs["r2"][1:], runs["r3"][1:], strict=True):
        assert "mismatch/routing_frac" not in two
        assert three["mismatch/routing_frac"] < 1e-3
        assert three["mismatch/logp_abs_diff_max"] < 1e-4
        assert three["optim/loss"] == pytest.approx(two["optim/loss"], abs=1e-4)
    assert runs["old"][1]["mismatch/routing_frac"] < 1e-3
    assert all(line["mismatch/routing_frac"] > 0.01 for line in runs["old"][2:])


@pytest.mark.parametrize(
    "more",
    [
        {"correction": f.TokenTruncate()},
        {"clip": f.KlCov(fraction=0.1)},
        {"schedule": {"update": f.Lopti()}},
        {"token_weight": f.RouterShift()},
        {"compute": Compute(gradient_checkpointing=True)},
    ],
    ids=lambda more: next(iter(more)),
)
@pytest.mark.parametrize("replay", ["learner", "sampler"])
def test_replay_goes_with_other_passes(
    recipe: Recipe, job_folder: JobFolder, mixture_model: Path, replay: str, more: dict[str, Any]
) -> None:
    """Old passes, looks at whole batches, updates in two halves, and blocks that are computed again."""
    levels = {**more, "schedule": {"steps": 2, **more.get("schedule", {})}}
    path = job_folder(_recipe(recipe, mixture_model, replay, **levels))
    native.run(path)
    for line in lines_of(path)[1:]:
        assert 0 < line["router/replaced_frac"] < 1
        assert line["mismatch/logp_abs_diff_max"] < 1e-4
    if "compute" in more:
        kept = job_folder(_recipe(recipe, mixture_model, replay, schedule={"steps": 2}), name="kept")
        native.run(kept)
        assert lines_of(kept) == lines_of(path)
        assert same(weights_of(kept), weights_of(path))


@pytest.mark.parametrize("replay", ["learner", "sampler"])
def test_a_run_with_stale_rollouts_goes_on_with_their_experts(
    recipe: Recipe, job_folder: JobFolder, mixture_model: Path, replay: str
) -> None:
    """What was sampled before a stop comes back from the checkpoint with the experts that it went to."""
    level = f.RefillAsync(metric="correct")
    recipe = _recipe(recipe, mixture_model, replay, schedule={"staleness": 2, "steps": 4}, filter=level)
    whole, cut = job_folder(recipe, name="whole"), job_folder(recipe, name="cut")
    native.run(whole)
    train_until(2, cut)
    second = job_folder(recipe, name="cut", token=2)
    native.run(second)
    assert lines_of(second) == lines_of(whole)
    assert same(weights_of(second), weights_of(whole))


def test_one_update_on_fresh_rollouts_cannot_act() -> None:
    """The plan says so of both kinds; with more updates, stale rollouts or rounding it does not."""
    base = Recipe.model_validate({"model": {"name": "tiny_moe"}})
    arms = {
        level: base.model_copy(update={"rollout": Rollout(routing_replay=level)}) for level in ("learner", "sampler")
    }
    for arm in arms.values():
        assert "`rollout.routing_replay` cannot act" in (inert(base, arm, sampler_is_learner=True) or "")
    many = {"schedule": f.Schedule(minibatches=2)}
    for level, other, acts in (
        ("learner", many, True),
        ("sampler", many, True),
        ("learner", {"schedule": f.Schedule(staleness=2)}, False),
        ("sampler", {"schedule": f.Schedule(staleness=2)}, True),
        ("sampler", {"model": Model(name="tiny_moe", dtype="bfloat16")}, True),
    ):
        one, two = base.model_copy(update=other), arms[level].model_copy(update=other)
        assert (inert(one, two, sampler_is_learner=True) is None) == acts
    assert [x for x in added_cost(base, arms["learner"]) if "experts" in x]
    assert not list(added_cost(base, arms["sampler"]))


def test_what_has_no_experts_is_refused(policy: Policy) -> None:
    """Dense models, when planned and when loaded, and vLLM; recipes without it keep their text."""
    dense = Recipe(rollout=Rollout(routing_replay="sampler"))
    found = [x.reason for x in NativeRunner().support(dense, Options()) if x.feature == "rollout.routing_replay"]
    assert found == [
        "`rollout.routing_replay` needs a mixture of experts; `model.name: tiny` is dense: set `tiny_moe`."
    ]
    mixture = dense.model_copy(update={"model": Model(name="tiny_moe")})
    assert not [x for x in NativeRunner().support(mixture, Options()) if x.feature == "rollout.routing_replay"]
    with pytest.raises(RunnerError, match="has no router whose choice can be replayed"):
        _sampled(policy)
    served = Recipe.model_validate({"rollout": {"engine": "vllm", "routing_replay": "learner"}})
    assert any("runs dense models alone" in fault for fault in sampler_faults(served))
    assert "routing" not in Recipe.model_validate({"rollout": {"engine": "vllm"}}).model_dump_json()
    assert "rollout" not in Recipe().model_dump_json()
    assert Recipe.model_validate_json(dense.model_dump_json()) == dense
