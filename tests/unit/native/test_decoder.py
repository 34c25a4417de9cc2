"""A pass of one more token by the sampler's own code is that of Transformers, and other models are left to it."""

import copy
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from paribus.recipe.recipe import Lora
from paribus_runners.native import attention, elementwise, lora
from paribus_runners.native.attention import KeyCache, pack
from paribus_runners.native.rollout.decoder import KINDS, Decoder

SIZES = {
    "vocab_size": 31, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip
MODELS = {
    "qwen2": ("qwen2", {}),
    "qwen2-one-key": ("qwen2", {"num_key_value_heads": 1}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {"head_dim": 8}),
    "qwen3-wide-heads": ("qwen3", {"head_dim": 16, "num_key_value_heads": 4, "attention_bias": True}),
    "qwen2-window": ("qwen2", {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1}),
    "llama": ("llama", {}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-dynamic": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}, "max_position_embeddings": 6},
    ),
}
MOST = 14
"""Tokens of the longest sequence in :func:`read`, with room for more."""
OTHERS = {
    "relu": ("llama", {"hidden_act": "relu"}),
    "mistral": ("mistral", {}),
    "gemma2": ("gemma2", {"head_dim": 8}),
    "olmo2": ("olmo2", {}),
}


def policy_of(kind, sizes, dtype=torch.float32):
    """Return what a decoder asks of a policy, with a small model all of whose weights are drawn."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **SIZES | sizes)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=attention.NAME).float().eval()
        for name, weight in model.named_parameters():
            torch.nn.init.uniform_(weight, 0.5, 2) if "norm" in name else torch.nn.init.normal_(weight, std=0.3)
    elementwise.lean(model)
    return SimpleNamespace(model=model, dtype=dtype, device=torch.device("cpu"), shared=None)


def by_transformers(policy):
    """Return a function that reads one more token as the decoder does."""
    return lambda token, positions, cache: policy.model.base_model(
        input_ids=token[None], position_ids=positions[None], use_cache=False, layout=cache
    ).last_hidden_state[0]


@torch.no_grad()
def read(policy, one_more):
    """Return the hidden states of some passes over two responses to each of two prompts, of which one ends early."""
    lengths, tokens = [3, 5], torch.arange(28).view(7, 4) % 31
    layout = pack(lengths, [(), ()], policy.device, keep_keys=True)
    policy.model.base_model(
        input_ids=torch.arange(8)[None] + 2, position_ids=layout.positions[None], use_cache=False, layout=layout
    )
    cache, prompt, found = KeyCache(layout, lengths, 2, 9), torch.tensor([3, 3, 5, 5]), []
    for i, token in enumerate(tokens):
        if i == 3:
            order = cache.keep(torch.tensor([0, 2, 3]))
            prompt = prompt[order]
        cache.advance()
        found.append(one_more(token[: len(prompt)], prompt + i, cache))
    return found


@pytest.mark.parametrize("name", MODELS)
def test_it_computes_what_transformers_computes(name):
    """Some passes, with prompts of two lengths and a response that leaves, agree to the rounding."""
    policy = policy_of(*MODELS[name])
    decoder = Decoder.of(policy, MOST)
    for ours, own in zip(read(policy, decoder.hidden), read(policy, by_transformers(policy)), strict=True):
        torch.testing.assert_close(ours, own, rtol=1e-4, atol=2e-5)


def test_it_reads_with_the_weights_of_its_time():
    """A decoder is a copy: after an update the next sampling makes another."""
    policy = policy_of("qwen2", {})
    before = Decoder.of(policy, MOST)
    with torch.no_grad():
        policy.model.base_model.layers[0].mlp.up_proj.weight.mul_(2)
    own = read(policy, by_transformers(policy))[0]
    assert not torch.allclose(read(policy, before.hidden)[0], own, rtol=1e-3)
    torch.testing.assert_close(read(policy, Decoder.of(policy, MOST).hidden)[0], own, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_is_trained_after_it_has_sampled(name):
    """What it keeps of a pass in inference mode, as angles for long sequences, is no part of what is differentiated."""
    policy = policy_of(*MODELS[name])
    read(policy, Decoder.of(policy, MOST).hidden)
    layout = pack([9], [()], policy.device)
    hidden = policy.model.base_model(
        input_ids=torch.arange(9)[None], position_ids=layout.positions[None], use_cache=False, layout=layout
    ).last_hidden_state
    hidden.square().sum().backward()
    assert all(p.grad is not None for p in policy.model.base_model.parameters())


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_are_left_to_transformers(name):
    """Other kinds, and other functions in the MLP."""
    kind, _ = OTHERS[name]
    assert kind not in KINDS or name == "relu"
    assert Decoder.of(policy_of(*OTHERS[name]), MOST) is None


def test_other_types_and_adapters_are_left_to_transformers():
    """In bfloat16, with weights in it, with adapters, and where processes share the weights."""
    policy = policy_of("qwen2", {})
    assert Decoder.of(policy, MOST) is not None
    assert Decoder.of(SimpleNamespace(**vars(policy) | {"dtype": torch.bfloat16}), MOST) is None
    assert Decoder.of(SimpleNamespace(**vars(policy) | {"model": copy.deepcopy(policy.model).bfloat16()}), MOST) is None
    assert Decoder.of(SimpleNamespace(**vars(policy) | {"shared": object()}), MOST) is None
    lora.add(policy.model, Lora(rank=2), 0)
    assert Decoder.of(policy, MOST) is None
