"""The head in chunks agrees with a plain formula in float64, holds few logits, and works for many architectures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Olmo2Config,
    Olmo2ForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PhiConfig,
    PhiForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
    SmolLM3Config,
    SmolLM3ForCausalLM,
)

from paribus.errors import RunnerError
from paribus_runners.native import attention, head
from paribus_runners.native.head import Head
from paribus_runners.native.log_probabilities import line_up, score
from paribus_runners.native.policy import Policy

Given = tuple[Tensor, Tensor, Tensor | None, Tensor]
"""Hidden states [n, H], weight [V, H], bias [V], targets [n]."""


def _given(n: int, size: int, words: int, *, bias: bool, seed: int, dtype: torch.dtype = torch.float32) -> Given:
    g = torch.Generator().manual_seed(seed)
    hidden, weight = (torch.randn(k, size, generator=g, dtype=torch.float64).to(dtype) for k in (n, words))
    offset = torch.randn(words, generator=g, dtype=torch.float64).to(dtype) if bias else None
    return hidden, weight, offset, torch.randint(words, (n,), generator=g)


def _naive(given: Given, divisor: float) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy by the textbook, from all logits at once."""
    hidden, weight, bias, targets = given
    z = (hidden @ weight.T + (0 if bias is None else bias)) / divisor
    logp = z - z.logsumexp(1, keepdim=True)
    return logp[torch.arange(len(z)), targets], -(logp.exp() * logp).sum(1)


Found = tuple[tuple[Tensor, ...], list[Tensor]]


def _gradients(
    given: Given, function: Callable[[Given], tuple[Tensor, Tensor | None]], *, entropy: bool, seed: int
) -> Found:
    """Return the values, and the gradients of a random weighted sum of them."""
    leaves = [None if x is None else x.clone().requires_grad_() for x in given[:3]]
    values = function((*leaves, given[3]))  # type: ignore[arg-type]
    g = torch.Generator().manual_seed(seed + 1)
    weights = torch.randn(2, len(given[3]), generator=g, dtype=torch.float64).to(given[0].dtype)
    total = sum((w * x).sum() for w, x in zip(weights[: 1 + entropy], values, strict=False) if x is not None)
    inputs = [x for x in leaves if x is not None]
    return tuple(x.detach() for x in values if x is not None), list(torch.autograd.grad(total, inputs))  # type: ignore[arg-type]


def _chunked(monkeypatch: pytest.MonkeyPatch, rows: int, words: int) -> None:
    monkeypatch.setattr(head, "CHUNK", rows * words)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 9),
    words=st.integers(1, 7),
    rows=st.integers(1, 10),
    bias=st.booleans(),
    entropy=st.booleans(),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    scaling=st.sampled_from([1.0, 4.0]),
    seed=st.integers(0, 99),
)
def test_chunks_agree_with_the_plain_formula_in_float64(
    n: int, words: int, rows: int, bias: bool, entropy: bool, temperature: float, scaling: float, seed: int
) -> None:
    """Values and gradients are within 1e-5 of float64, however many rows a chunk has."""
    given_ = _given(n, 5, words, bias=bias, seed=seed)
    exact = tuple(None if x is None else x.double() if x.is_floating_point() else x for x in given_)
    with pytest.MonkeyPatch.context() as patch:
        _chunked(patch, rows, words)
        got = _gradients(
            given_,
            lambda x: Head(x[1], x[2], scaling, torch.float32).score(x[0], x[3], temperature, with_entropy=entropy),
            entropy=entropy,
            seed=seed,
        )
    want = _gradients(exact, lambda x: _naive(x, scaling * temperature), entropy=entropy, seed=seed)  # type: ignore[arg-type]
    for ours, theirs in zip(got[0], want[0], strict=False):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(got[1], want[1], strict=True):
        assert float((ours - theirs).norm()) <= 1e-5 * float(theirs.norm()) + 1e-5  # rows of either sign cancel


@pytest.mark.parametrize("bias", [False, True])
def test_gradients_are_those_of_finite_differences(monkeypatch: pytest.MonkeyPatch, bias: bool) -> None:
    """Also those of the entropy, and of both together."""
    _chunked(monkeypatch, 2, 4)
    hidden, weight, offset, targets = _given(5, 3, 4, bias=bias, seed=0, dtype=torch.float64)

    def function(h: Tensor, w: Tensor, *b: Tensor) -> Any:
        layer = Head(w, b[0] if b else None, 1.0, torch.float64)
        return layer.score(h, targets, 0.7, with_entropy=True)

    inputs = [x.requires_grad_() for x in (hidden, weight, offset) if x is not None]
    assert torch.autograd.gradcheck(function, inputs)


def test_bfloat16_products_add_up_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """In bfloat16 the weight's gradient over many chunks is as near to float64 as over one."""
    given_ = _given(512, 8, 16, bias=True, seed=1)

    def error(rows: int) -> float:
        _chunked(monkeypatch, rows, 16)
        got = _gradients(
            given_, lambda x: Head(x[1], x[2], 1.0, torch.bfloat16).score(x[0], x[3], 1.0), entropy=False, seed=1
        )
        exact = tuple(None if x is None else x.double() if x.is_floating_point() else x for x in given_)
        want = _gradients(exact, lambda x: _naive(x, 1.0), entropy=False, seed=1)  # type: ignore[arg-type]
        return float((got[1][1] - want[1][1]).norm() / want[1][1].norm())

    assert error(4) < 1.2 * error(512)
    assert error(4) < 0.02


class _Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation returns, but for those in the memory of some."""

    def __init__(self, *there: Tensor) -> None:
        super().__init__()
        self.elements, self.there = 0, {x.untyped_storage().data_ptr() for x in there}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, list | tuple) else [out]:
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in self.there:
                self.elements = max(self.elements, x.numel())
        return out


@pytest.mark.parametrize("entropy", [False, True])
def test_no_tensor_is_larger_than_a_chunk(monkeypatch: pytest.MonkeyPatch, entropy: bool) -> None:
    """Forward and backward, no operation returns more than a chunk of logits; nor is any kept for the backward pass."""
    _chunked(monkeypatch, 8, 1000)
    hidden, weight, bias, targets = _given(200, 4, 1000, bias=True, seed=0)
    assert bias is not None
    leaves = [x.requires_grad_() for x in (hidden, weight, bias)]
    kept: list[int] = []
    with (
        _Largest() as seen,
        torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x.numel()) or x, lambda x: x),
    ):
        values = Head(weight, bias, 1.0, torch.float32).score(hidden, targets, 1.0, with_entropy=entropy)
        sum(v.sum() for v in values if v is not None).backward()  # type: ignore[union-attr]
    assert all(x.grad is not None for x in leaves)
    assert seen.elements == 8 * 1000
    assert max(kept) == weight.numel()


def test_later_passes_add_to_the_gradient_of_the_first_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three passes leave the sum of three gradients; the later ones make no tensor as large as the weight."""
    _chunked(monkeypatch, 8, 1000)
    parts = [_given(50, 32, 1000, bias=True, seed=seed) for seed in range(3)]
    weight, bias = (x.requires_grad_() for x in parts[0][1:3] if x is not None)
    layer = Head(weight, bias, 1.0, torch.float32)
    want = torch.zeros_like(weight, dtype=torch.float64)
    for number, (hidden, _, _, targets) in enumerate(parts):
        g = torch.linspace(-1, 1, len(targets))
        values = layer.score(hidden, targets, 0.7, with_entropy=True)
        (alone,) = torch.autograd.grad(sum((v * g).sum() for v in values if v is not None), weight)  # type: ignore[arg-type]
        want += alone
        before, there = weight.grad, [x for x in (weight, weight.grad) if x is not None]
        with _Largest(*there) as seen:
            values = layer.score(hidden, targets, 0.7, with_entropy=True, accumulate=True)
            sum((v * g).sum() for v in values if v is not None).backward()  # type: ignore[union-attr]
        assert weight.grad is not None
        assert number == 0 or (seen.elements == 8 * 1000 and weight.grad is before)
        assert float((weight.grad - want).norm()) <= 1e-6 * float(want.norm())


def test_a_gradient_that_is_there_is_left_alone_where_the_weight_gets_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """``torch.autograd.grad`` beside a gradient returns its own; a frozen weight keeps what it has."""
    _chunked(monkeypatch, 2, 7)
    hidden, weight, _, targets = _given(5, 3, 7, bias=False, seed=0)
    layer = Head(weight.requires_grad_(), None, 1.0, torch.float32)
    (alone,) = torch.autograd.grad(layer.score(hidden, targets, 1.0)[0].sum(), weight)
    weight.grad = torch.ones_like(weight)
    (beside,) = torch.autograd.grad(layer.score(hidden, targets, 1.0)[0].sum(), weight)
    assert torch.equal(alone, beside)
    weight.requires_grad_(False)
    layer.score(hidden.requires_grad_(), targets, 1.0, accumulate=True)[0].sum().backward()
    assert hidden.grad is not None
    assert torch.equal(weight.grad, torch.ones_like(weight))


SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "attn_implementation": attention.NAME,
}
MOE: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "qwen2": (Qwen2ForCausalLM, Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config, {"head_dim": 8}),
    "llama": (LlamaForCausalLM, LlamaConfig, {}),
    "mistral": (MistralForCausalLM, MistralConfig, {"sliding_window": None}),
    "phi3": (Phi3ForCausalLM, Phi3Config, {}),
    "phi": (PhiForCausalLM, PhiConfig, {}),
    "olmo2": (Olmo2ForCausalLM, Olmo2Config, {}),
    "smollm3": (SmolLM3ForCausalLM, SmolLM3Config, {}),
    "granite": (GraniteForCausalLM, GraniteConfig, {"logits_scaling": 8.0}),
    "cohere": (CohereForCausalLM, CohereConfig, {"logit_scale": 0.25}),
    "qwen3_moe": (Qwen3MoeForCausalLM, Qwen3MoeConfig, MOE),
}


def _policy(kind: str) -> Policy:
    torch.manual_seed(0)
    model, config, more = KINDS[kind]
    built = model(config(**SIZES, **more)).eval()
    if built.get_output_embeddings().bias is not None:
        torch.nn.init.normal_(built.get_output_embeddings().bias)
    return Policy(built, None, torch.float32, (1,), 0, torch.device("cpu"))


@pytest.mark.parametrize("kind", KINDS)
def test_architectures_score_as_their_own_forward_pass_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model's own logits give the same log-probabilities, entropies and gradients; tied, with bias, or scaled."""
    policy = _policy(kind)
    policy.check_head()
    _chunked(monkeypatch, 3, 61)
    prompt, responses = [5, 6, 7], [[8, 9, 10, 11], [12, 13, 1]]
    scores = score(policy, [prompt], [responses], 0.7, with_entropy=True)
    assert scores.entropy is not None
    parameters = list(policy.model.parameters())
    got = torch.autograd.grad(scores.logp.sum() + scores.entropy.sum(), parameters, allow_unused=True)
    logp, entropy = [], []
    for ids in responses:
        layout = attention.pack([len(prompt) + len(ids)], [()], policy.device)
        whole = torch.tensor([prompt + ids])
        out = policy.model(whole, position_ids=layout.positions[None], use_cache=False, layout=layout)
        p = (out.logits[0, len(prompt) - 1 : -1] / 0.7).log_softmax(-1)
        logp.append(p[torch.arange(len(ids)), torch.tensor(ids)])
        entropy.append(-(p.exp() * p).sum(1))
    torch.testing.assert_close(scores.logp, torch.cat(logp), rtol=0, atol=1e-5)
    torch.testing.assert_close(scores.entropy, torch.cat(entropy), rtol=0, atol=1e-5)
    want = torch.autograd.grad(torch.cat([*logp, *entropy]).sum(), parameters, allow_unused=True)
    for ours, theirs in zip(got, want, strict=True):
        if theirs is not None:
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["qwen2", "llama"])
def test_passes_of_a_model_add_up_in_place(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With tied embeddings and without, two passes leave the sum of what ``torch.autograd.grad`` gives for each."""
    policy = _policy(kind)
    _chunked(monkeypatch, 3, 61)
    parameters, want = list(policy.model.parameters()), list[Tensor]()
    for prompts, responses in (([[5, 6, 7]], [[[8, 9, 10, 11], [12, 13, 1]]]), ([[9, 6]], [[[5, 5, 60, 2, 1]]])):
        alone = torch.autograd.grad(score(policy, prompts, responses, 0.7).logp.sum(), parameters)
        want = [a + b for a, b in zip(want, alone, strict=True)] if want else list(alone)
        score(policy, prompts, responses, 0.7, accumulate=True).logp.sum().backward()
    for parameter, total in zip(parameters, want, strict=True):
        assert parameter.grad is not None
        assert float((parameter.grad - total).norm()) <= 1e-6 * float(total.norm())


def test_float32_logits_under_bfloat16_are_the_float32_product() -> None:
    """The hidden states are those of bfloat16, and from there on all is as in float32; the weights get a gradient."""
    plain = replace(_policy("llama"), dtype=torch.bfloat16)
    wide = replace(plain, head_dtype=torch.float32)
    wide.check_head()
    prompts, responses = [[4, 5]], [[[1, 2, 3]]]
    row = line_up(prompts, responses, wide.device)
    hidden = wide.hidden(row.ids, row.layout.positions, row.layout, row.at)
    want = _naive((hidden.float(), wide.head.weight, None, row.targets), 0.7)
    got = score(wide, prompts, responses, 0.7, with_entropy=True)
    torch.testing.assert_close((got.logp, got.entropy), want, rtol=0, atol=1e-5)
    assert (score(plain, prompts, responses, 0.7).logp - got.logp).abs().max() > 1e-4
    (gradient,) = torch.autograd.grad(got.logp.sum(), wide.head.weight)
    assert gradient.dtype == torch.float32


def test_bounded_logits_are_refused() -> None:
    """A head that bounds its logits says so; so does one that changes them in a way that nobody knows."""
    capped = Gemma2ForCausalLM(Gemma2Config(**SIZES, head_dim=8, final_logit_softcapping=30.0))
    with pytest.raises(RunnerError, match="final_logit_softcapping"):
        Head.of(capped, torch.float32)
    policy = _policy("llama")
    plain = policy.model.forward

    def doubled(*args: Any, **more: Any) -> Any:
        out = plain(*args, **more)
        out.logits = out.logits * 2
        return out

    policy.model.forward = doubled
    with pytest.raises(RunnerError, match="LlamaForCausalLM changes its logits after the output layer"):
        policy.check_head()
