"""The sampler agrees with the learner after every load, repeats itself, and is caught where a load was left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from paribus.errors import RunnerError, StaleSampler
from paribus.recipe.recipe import Lora, Model, Recipe
from paribus_runners.native import lora
from paribus_runners.native.attention import pack
from paribus_runners.native.log_probabilities import score_all
from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout import vllm
from paribus_runners.native.rollout.engine import sampler_of
from paribus_runners.native.rollout.proof import LARGEST, MEAN, ProvenSampler
from paribus_runners.native.rollout.sampler import Requests, complete
from paribus_runners.native.stopping import Stopped
from paribus_runners.native.support import truncated
from paribus_runners.native.world import World
from paribus_runners.tasks import Chain

from .conftest import moved, recipe_of

ROOM = 12
Pair = tuple[Policy, ProvenSampler]


def _pair(model: Path, recipe: Recipe, check: Callable[[], None] = lambda: None) -> Pair:
    policy = Policy.load(str(model), None, recipe.model.dtype, recipe.model.lora)
    sampler = sampler_of(recipe, policy, Chain(), 0, check, World())
    assert isinstance(sampler, ProvenSampler)
    assert sampler.all_at_once  # its rounds are counted whole
    return policy, sampler


@pytest.fixture(scope="module", params=["tied", "untied"])
def pair(request: pytest.FixtureRequest) -> Pair:
    """A policy and the sampler with its weights, for a model with a tied head and one with its own."""
    model: Path = request.getfixturevalue(request.param)
    policy, sampler = _pair(model, recipe_of(model))
    sampler.load(policy.model.named_parameters())
    return policy, sampler


@pytest.fixture
def fresh(pair: Pair, request: pytest.FixtureRequest) -> Iterator[Pair]:
    """The same, whose weights are put back after the test."""
    policy, sampler = pair
    before = {name: weight.detach().clone() for name, weight in policy.model.named_parameters()}
    yield policy, sampler
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            weight.copy_(before[name])
    sampler.load(policy.model.named_parameters())


def _requests(policy: Policy, seed: int = 0, temperature: float = 0.7, **more: float) -> Requests:
    prompts = policy.encode([p.prompt for p in Chain().training(0, 1, 0, 5)])
    return Requests([prompts[0], prompts[1][6:], *prompts[2:]], 4, ROOM, temperature, (seed, "test"), **more)


def _apart(policy: Policy, requests: Requests, responses: Responses) -> float:
    scores = score_all(policy, requests.prompts, responses, requests.temperature)
    return float((scores.logp - responses.logp).abs().max())


def test_adapters_are_added_to_the_weights_that_the_sampler_gets(tied: Path) -> None:
    """Before and after the adapters have moved, the engine without adapters agrees within 1e-4."""
    plain = recipe_of(tied)
    recipe = plain.model_copy(update={"model": Model(name=plain.model.name, lora=Lora(rank=4))})
    policy, sampler = _pair(tied, recipe)
    for round_ in range(2):
        values = sampler.load(lora.merged(policy.model))
        assert 0 < values[MEAN] <= values[LARGEST] <= 1e-4
        requests = _requests(policy, round_)
        assert _apart(policy, requests, complete(sampler, requests)) <= 1e-4
        with torch.no_grad():
            for weights in policy.trained:
                weights.add_(0.05)


def test_sampler_and_learner_agree_after_every_load(fresh: Pair) -> None:
    """Within 1e-4 for all tokens, at another temperature than 1, before any update and after three."""
    policy, sampler = fresh
    for round_ in range(4):
        if round_:
            moved(policy, 0.02, seed=round_)
        values = sampler.load(policy.model.named_parameters())
        assert 0 < values[MEAN] <= values[LARGEST] <= 1e-4
        requests = _requests(policy, round_)
        assert _apart(policy, requests, complete(sampler, requests)) <= 1e-4


def test_responses_end_at_an_end_mark_or_at_the_limit(pair: Pair) -> None:
    """End marks stand last and nowhere else; what is truncated has the full length."""
    policy, sampler = pair
    requests = _requests(policy)
    responses = complete(sampler, requests)
    assert len(responses) == 20
    assert responses.entropy is None
    for ids, cut in zip(responses.tokens(), responses.truncated.tolist(), strict=True):
        assert (ids[-1] in policy.ends) != cut
        assert not set(ids[:-1]) & set(policy.ends)
        assert len(ids) == ROOM or not cut


def test_a_seed_repeats_and_another_differs_everywhere(fresh: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same place in the run gives the same responses whatever came before; copies and other seeds differ."""
    policy, sampler = fresh
    with torch.no_grad():
        policy.model.lm_head.weight.mul_(0.05)  # all tokens become likely, so that equal responses are no accident
    monkeypatch.setattr(sampler._inner, "_ends", [])
    sampler.load(policy.model.named_parameters())
    first, other, again = (complete(sampler, _requests(policy, seed)) for seed in (1, 2, 1))
    assert again.tokens() == first.tokens()
    assert torch.equal(again.logp, first.logp)
    assert all(a != b for a, b in zip(first.tokens(), other.tokens(), strict=True))
    groups = [first.tokens()[i : i + 4] for i in range(0, 20, 4)]
    assert all(len(set(map(tuple, group))) == 4 for group in groups)


def test_a_response_does_not_depend_on_those_beside_it(pair: Pair) -> None:
    """A prompt that is sampled with fewer others, or with a longer limit, begins with the same tokens."""
    policy, sampler = pair
    requests = _requests(policy)
    whole = complete(sampler, requests).tokens()
    few = Requests(requests.prompts[:2], 4, ROOM + 6, 0.7, requests.place, apart=True)
    assert [ids[:ROOM] for ids in complete(sampler, few).tokens()] == whole[:8]


def test_a_caller_that_has_enough_leaves_nothing_behind(pair: Pair) -> None:
    """Groups come as they end; closing the stream aborts the rest, and the next sampling is as ever."""
    policy, sampler = pair
    requests = _requests(policy)
    whole = complete(sampler, requests)
    stream = sampler.sample(requests)
    ended, responses, _ = next(stream)
    stream.close()  # type: ignore[attr-defined]
    size = requests.copies
    assert [whole.tokens()[i * size + k] for i in ended for k in range(size)] == responses.tokens()
    assert sampler._inner._engine.get_num_unfinished_requests() == 0
    assert complete(sampler, requests).tokens() == whole.tokens()


def test_a_nucleus_holds_every_token_of_an_evaluation(pair: Pair) -> None:
    """With top_p each token is one of the fewest that add up to it, by the learner's probabilities."""
    policy, sampler = pair
    requests = _requests(policy, temperature=1.0, top_p=0.6)
    responses = complete(sampler, requests)
    for i, ids in enumerate(responses.tokens()):
        prompt = requests.prompts[i // 4]
        row = torch.tensor([*prompt, *ids])
        layout = pack([len(row)], [()], policy.device)
        with torch.no_grad():
            logits = policy.head.logits(policy.hidden(row, layout.positions, layout))
        p = truncated(logits[len(prompt) - 1 : -1].softmax(-1), 0.6 + 1e-4, None)
        assert (p.gather(1, torch.tensor(ids)[:, None]) > 0).all()
    assert complete(sampler, _requests(policy, temperature=1.0)).tokens() != responses.tokens()


def test_more_prompts_than_one_step_of_the_engine_computes(pair: Pair) -> None:
    """None is computed in parts: vLLM would rewind its generator, which one of a CPU cannot."""
    policy, sampler = pair
    most = sampler._inner._llm.llm_engine.vllm_config.scheduler_config.max_num_batched_tokens
    first = _requests(policy).prompts[0]
    size = 200  # no divisor of what a step computes
    prompts = [[*first, *(1 + (i + j) % 9 for j in range(size - len(first)))] for i in range(most // size + 9)]
    responses = complete(sampler, Requests(prompts, 1, 4, 1.0, ("many",)))
    assert len(responses) == len(prompts)
    logp = score_all(policy, prompts, responses, 1.0).logp
    torch.testing.assert_close(responses.logp, logp, rtol=0, atol=1e-3)


def test_a_text_beyond_the_models_length_is_refused_before_sampling(pair: Pair) -> None:
    """Silently shorter responses would count as truncated ones of the recipe's length."""
    policy, sampler = pair
    requests = Requests([[1] * 2000], 1, 100, 1.0, ("long",))
    with pytest.raises(RunnerError, match=r"2000 tokens with a response of up to 100 .* the model was made for"):
        complete(sampler, requests)
    assert len(complete(sampler, _requests(policy))) == 20


@pytest.mark.parametrize("by", [0.02, 1e-3, 1e-6, 1e-7])
def test_a_load_that_was_left_out_is_caught_at_once(fresh: Pair, by: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after an update that moves each weight by a millionth, and the log-probabilities by less than the bound."""
    policy, sampler = fresh
    sampler.load(policy.model.named_parameters())
    moved(policy, by)
    with monkeypatch.context() as patch:
        patch.setattr(vllm.VllmSampler, "load", lambda self, weights: {})
        with pytest.raises(StaleSampler, match="does not have the learner's weights"):
            sampler.load(policy.model.named_parameters())
    assert sampler.load(policy.model.named_parameters())[LARGEST] <= 1e-4


def test_a_head_that_keeps_old_weights_is_caught(fresh: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU a reload passes by the packed copy of a tied head; without its cure the proof fails."""
    policy, sampler = fresh
    if not policy.model.config.tie_word_embeddings:
        pytest.skip("a head of its own is loaded like all other layers")
    moved(policy, 0.02)
    with monkeypatch.context() as patch:
        patch.setattr(vllm, "_pack_tied_head", lambda model: None)
        with pytest.raises(StaleSampler, match="differ by"):
            sampler.load(policy.model.named_parameters())


def test_an_engine_that_rested_samples_from_new_weights(untied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: level 2, then weights, the reload and the cache in this order; on a CPU the memory itself stays."""
    policy, sampler = _pair(untied, recipe_of(untied))
    inner = sampler._inner
    sampler.load(policy.model.named_parameters())
    sampler.rest()
    assert not inner._llm.llm_engine.is_sleeping()  # a CPU does not rest
    monkeypatch.setattr(inner, "_on_gpu", True)
    calls: list[object] = []
    for name in ("sleep", "wake_up", "collective_rpc"):
        call = getattr(inner._llm, name)

        def noted(*given: object, name: str = name, call: Callable[..., object] = call, **more: object) -> object:
            calls.append((name, *given, *(value for key, value in more.items() if key == "level")))
            return call(*given, **more)

        monkeypatch.setattr(inner._llm, name, noted)
    for _ in range(2):
        sampler.rest()
        sampler.rest()  # it rests already
        assert inner._llm.llm_engine.is_sleeping()
        moved(policy, 0.02)
        assert sampler.load(policy.model.named_parameters())[LARGEST] <= 1e-4
        assert not inner._llm.llm_engine.is_sleeping()
        requests = _requests(policy)
        assert _apart(policy, requests, complete(sampler, requests)) <= 1e-4
    awake = [("wake_up", ["weights"]), ("collective_rpc", "reload_weights"), ("wake_up", ["kv_cache"])]
    assert calls == 2 * [("sleep", 2), *awake]


def test_a_request_to_stop_leaves_the_sampling_and_bfloat16_is_watched_too(tied: Path) -> None:
    """The check stands before each step of the engine."""
    left = [3]

    def check() -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Stopped

    policy, sampler = _pair(tied, recipe_of(tied, {"dtype": "bfloat16"}), check)
    with pytest.raises(Stopped):
        sampler.load(policy.model.named_parameters())
    left[0] = 10**6
    values = sampler.load(policy.model.named_parameters())
    assert 1e-4 < values[MEAN] < 0.03  # in bfloat16, against a learner in float32
    moved(policy, 0.02)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vllm.VllmSampler, "load", lambda self, weights: {})
        with pytest.raises(StaleSampler):
            sampler.load(policy.model.named_parameters())
