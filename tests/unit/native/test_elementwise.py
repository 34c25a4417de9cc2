"""Norms and rotary embeddings in fewer passes: what Transformers computes, and its derivatives."""

import copy
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import rms_norm
from transformers import AutoConfig, AutoModelForCausalLM

from paribus_runners.native import elementwise
from paribus_runners.native.elementwise import ROTATE, Norm, Rotation, lean

SIZES = {
    "vocab_size": 31, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": None, "bos_token_id": None, "eos_token_id": 1,
}  # fmt: skip
MIXTURE = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
KINDS = {
    "llama": ({}, True, True),
    "mistral": ({}, True, True),
    "qwen2": ({}, True, True),
    "qwen3": ({}, True, True),  # norms of queries and keys
    "olmo2": ({}, True, True),
    "qwen2_moe": (MIXTURE, True, True),
    "gemma2": ({}, False, True),  # its norms multiply by the weight and one
    "cohere": ({}, False, False),  # neighbours are pairs
    "glm": ({"partial_rotary_factor": 0.5}, True, False),
}
"""Of each kind of model its sizes, and whether its norms and its rotations are replaced."""


def built(kind, sizes):
    """Return a small model of a kind, with weights of its norms that are not one."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **SIZES, **sizes)
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
        for name, weight in model.named_parameters():
            if "norm" in name:
                torch.nn.init.uniform_(weight, 0.5, 2)
    return model


def passed(model):
    """Return logits, and the gradients of all weights."""
    ids = torch.arange(24).view(2, 12) % 31
    model.zero_grad()
    logits = model(input_ids=ids, use_cache=False).logits
    logits.log_softmax(-1)[..., 3].sum().backward()
    return {"logits": logits.detach()} | {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("kind", KINDS)
def test_models_compute_what_transformers_computes(kind, monkeypatch):
    """Logits and gradients agree to the rounding, whether or not its norms and rotations are replaced."""
    sizes, of_norms, of_rotations = KINDS[kind]
    model = built(kind, sizes)
    source = sys.modules[type(model).__module__]
    own = getattr(source, ROTATE)
    monkeypatch.setattr(source, ROTATE, getattr(own, "own", own))  # other tests may have replaced it
    before = passed(model)
    lean(model)
    assert any("forward" in vars(x) for x in model.modules()) == of_norms
    assert isinstance(getattr(source, ROTATE), elementwise.Rotate) == of_rotations
    for name, value in passed(model).items():
        torch.testing.assert_close(
            value, before[name], rtol=1e-4, atol=1e-5 * float(before[name].abs().max()), msg=name
        )


@given(rows=st.integers(1, 5), width=st.integers(1, 9), seed=st.integers(0, 99), trained=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_norm_is_that_of_pytorch(rows, width, seed, trained):
    """Output and gradients, in float64, also where the weight is not trained or x is a view of other strides."""
    draw = torch.Generator().manual_seed(seed)
    x, g = (torch.randn(width, 2, rows, dtype=torch.float64, generator=draw).transpose(0, 2) for _ in range(2))
    x.requires_grad_()
    weight = torch.randn(width, dtype=torch.float64, generator=draw).requires_grad_(trained)
    wanted = (x, weight) if trained else (x,)
    ours, own = Norm.apply(x, weight, 1e-6), rms_norm(x, (width,), weight, 1e-6)
    torch.testing.assert_close(ours, own, rtol=1e-12, atol=1e-12)
    for a, b in zip(torch.autograd.grad(ours, wanted, g), torch.autograd.grad(own, wanted, g), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


@given(heads=st.integers(1, 3), tokens=st.integers(1, 6), half=st.integers(1, 5), seed=st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_a_rotation_is_a_product_of_complex_numbers(heads, tokens, half, seed):
    """The halves of a head are real and imaginary parts, and the gradient is turned back."""
    draw = torch.Generator().manual_seed(seed)
    x, g = (torch.randn(1, tokens, heads, 2 * half, dtype=torch.float64, generator=draw).transpose(1, 2) for _ in "xg")
    angles = torch.randn(1, 1, tokens, half, dtype=torch.float64, generator=draw)
    cos, sin = (y.repeat(1, 1, 1, 2) for y in (angles.cos(), angles.sin()))
    x.requires_grad_()
    ours = Rotation.apply(x, cos, sin)
    turned = torch.complex(*x.chunk(2, -1)) * torch.exp(1j * angles)
    torch.testing.assert_close(ours, torch.cat([turned.real, turned.imag], -1), rtol=1e-12, atol=1e-12)
    assert ours.transpose(1, 2).is_contiguous()  # as Transformers leaves it: attention copies other layouts
    back = torch.complex(*g.chunk(2, -1)) * torch.exp(-1j * angles)
    (gradient,) = torch.autograd.grad(ours, x, g)
    torch.testing.assert_close(gradient, torch.cat([back.real, back.imag], -1), rtol=1e-12, atol=1e-12)


def test_other_types_are_computed_by_transformers(monkeypatch):
    """In bfloat16, and with autocast, a model is what it was, bit for bit."""
    model = built("qwen2", {})
    source = sys.modules[type(model).__module__]
    monkeypatch.setattr(source, ROTATE, getattr(getattr(source, ROTATE), "own", getattr(source, ROTATE)))
    ids = torch.arange(12).view(1, 12)

    def logits():
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            cast = model(input_ids=ids, use_cache=False).logits
        with torch.no_grad():
            return cast, copy.deepcopy(model).bfloat16()(input_ids=ids, use_cache=False).logits

    before = logits()
    lean(model)
    assert all(torch.equal(a, b) for a, b in zip(before, logits(), strict=True))
