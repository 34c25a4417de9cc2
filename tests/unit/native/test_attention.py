"""Attention of a row is that of Transformers, with windows too, by each of the ways to compute it."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import (
    Exaone4Config,
    Exaone4ForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)  # fmt: skip

from paribus_runners.native import attention
from paribus_runners.native.attention import KeyCache, pack

SIZES: dict[str, Any] = {
    "vocab_size": 8,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "sliding_window": 4,
    "attn_implementation": attention.NAME,
}
QWEN: dict[str, Any] = {"use_sliding_window": True, "max_window_layers": 1}
LAYERS: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"]}
CPU = torch.device("cpu")
LENGTHS, GROUPS = [3, 6, 2], [[5, 0, 1], [], [9]]
"""Tokens of prompts, and of the responses to each; one response has none that is read."""


def model_of(kind: str) -> PreTrainedModel:
    """Return a random model of which one layer or all have a window of four tokens."""
    torch.manual_seed(0)
    moe = {"moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
    model: PreTrainedModel = {
        "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(intermediate_size=16, **QWEN, **SIZES)),
        "qwen2_moe": lambda: Qwen2MoeForCausalLM(Qwen2MoeConfig(**moe, **QWEN, **SIZES)),
        "exaone4": lambda: Exaone4ForCausalLM(Exaone4Config(intermediate_size=16, **LAYERS, **SIZES)),
        "mistral": lambda: MistralForCausalLM(MistralConfig(intermediate_size=16, **SIZES)),
    }[kind]()
    return model.eval()


def by_transformers(model: PreTrainedModel, prompt: Tensor, response: Tensor) -> Tensor:
    """Return the logits of a sequence alone, with Transformers' own attention."""
    model.set_attn_implementation("eager")
    found: Tensor = model(torch.cat([prompt, response])[None]).logits[0]
    model.set_attn_implementation(attention.NAME)
    return found


def texts() -> tuple[list[Tensor], list[list[Tensor]]]:
    """Return prompts, and the responses to each."""
    torch.manual_seed(1)
    prompts = [torch.randint(8, (n,)) for n in LENGTHS]
    return prompts, [[torch.randint(8, (n,)) for n in group] for group in GROUPS]


@pytest.mark.parametrize("kind", ["qwen2", "qwen2_moe", "mistral", "exaone4"])
def test_a_row_has_the_logits_of_transformers_with_windows(kind: str) -> None:
    """Sequences are longer than the window, whether a model hands it on or not."""
    model, (prompts, groups) = model_of(kind), texts()
    layout = pack(LENGTHS, GROUPS, CPU)
    row = torch.cat([x for prompt, group in zip(prompts, groups, strict=True) for x in (prompt, *group)])
    with torch.no_grad():
        found = model(row[None], position_ids=layout.positions[None], layout=layout).logits[0]
        place = 0
        for prompt, group in zip(prompts, groups, strict=True):
            alone = by_transformers(model, prompt, prompt[:0])
            torch.testing.assert_close(found[place : place + len(prompt)], alone, rtol=1e-4, atol=1e-5)
            place += len(prompt)
            for response in group:
                whole = by_transformers(model, prompt, response)[len(prompt) :]
                torch.testing.assert_close(found[place : place + len(response)], whole, rtol=1e-4, atol=1e-5)
                place += len(response)


@pytest.mark.parametrize("kind", ["qwen2", "mistral"])
def test_a_cache_sees_no_further_than_the_window(kind: str) -> None:
    """Token by token, behind prompts of two lengths."""
    model, lengths, copies = model_of(kind), [2, 5], 2
    torch.manual_seed(1)
    prompts, tokens = [torch.randint(8, (n,)) for n in lengths], torch.randint(8, (7, 4))
    layout = pack(lengths, [(), ()], CPU, keep_keys=True)
    with torch.no_grad():
        model(torch.cat(prompts)[None], position_ids=layout.positions[None], layout=layout, use_cache=False)
        cache, begin = KeyCache(layout, lengths, copies, len(tokens)), torch.tensor([2, 2, 5, 5])
        for i, token in enumerate(tokens):
            cache.advance()
            found = model(token[None], position_ids=(begin + i)[None], layout=cache, use_cache=False).logits[0]
            for j in range(4):
                whole = by_transformers(model, prompts[j // copies], tokens[: i + 1, j])
                torch.testing.assert_close(found[j], whole[-1], rtol=1e-4, atol=1e-5)


def emulated(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, key_starts: Tensor, most: int, width: int, *, scale: float,
    window_size: tuple[int, int], enable_gqa: bool,
) -> Tensor:  # fmt: skip
    """Return what PyTorch documents of its kernel, one sequence after the other; the last query sees all keys."""
    out, before = torch.empty_like(q), window_size[0]
    assert window_size[1] == 0
    assert int(starts.diff().max()) == most
    assert int(key_starts.diff().max()) == width
    assert starts.dtype == key_starts.dtype == torch.int32
    assert (int(starts[-1]), int(key_starts[-1])) == (len(q), len(k))
    assert q.is_contiguous()
    for i in range(len(starts) - 1):
        mine, seen = slice(starts[i], starts[i + 1]), slice(key_starts[i], key_starts[i + 1])
        n, m = mine.stop - mine.start, seen.stop - seen.start
        last = torch.arange(m - n, m)[:, None]
        mask = (torch.arange(m) <= last) & ((torch.arange(m) >= last - before) | torch.tensor(before < 0))
        heads = (x.transpose(0, 1) for x in (q[mine], k[seen], v[seen]))
        out[mine] = scaled_dot_product_attention(*heads, mask, scale=scale, enable_gqa=enable_gqa).transpose(0, 1)
    return out


@pytest.mark.parametrize("window", [None, 4], ids=["all", "window"])
@pytest.mark.parametrize("key_heads", [4, 2])
def test_a_kernel_for_any_length_gets_the_same_sequences(
    monkeypatch: pytest.MonkeyPatch, window: int | None, key_heads: int
) -> None:
    """What it is asked for has the outputs and gradients of the other ways."""
    layout, tokens = pack(LENGTHS, GROUPS, CPU), sum(LENGTHS) + sum(map(sum, GROUPS))
    generator = torch.Generator().manual_seed(0)
    shapes = ((4, tokens), (key_heads, tokens), (key_heads, tokens))
    drawn = [torch.randn(1, *shape, 8, generator=generator, dtype=torch.float64) for shape in shapes]
    wanted = torch.randn(1, tokens, 4, 8, generator=generator, dtype=torch.float64)
    found = []
    for ragged in (False, True):
        if ragged:
            monkeypatch.setattr(attention, "varlen_attn", emulated)
            monkeypatch.setattr(attention, "_is_ragged", lambda q: True)
            monkeypatch.setattr(attention, "_in_small_products", lambda q: False)
        mine = [x.clone().requires_grad_() for x in drawn]
        out = layout.attend(0, *mine, 0.3, window)
        found.append([out, *torch.autograd.grad(out, mine, wanted)])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("window", [None, 4], ids=["all", "window"])
def test_the_kernel_takes_what_it_is_given(window: int | None) -> None:
    """PyTorch has an argument of each name, and says that the output has the shape and type of the queries."""
    q, k, v = (torch.empty(1, heads, 11, 8, device="meta", dtype=torch.bfloat16) for heads in (4, 2, 2))
    starts, keys = (torch.empty(4, device="meta", dtype=torch.int32) for _ in range(2))
    places = torch.empty(15, device="meta", dtype=torch.long)
    out = attention.Ragged(places, starts, keys, 5, 9).attend(q, k, v, 0.3, window)
    assert attention.varlen_attn is varlen_attn
    assert (out.shape, out.dtype) == ((1, 11, 4, 8), torch.bfloat16)


@pytest.mark.parametrize(
    ("device", "dtype", "size", "capability", "ragged"),
    [
        ("cuda", torch.bfloat16, 64, (9, 0), True),
        ("cuda", torch.bfloat16, 64, (7, 5), False),
        ("cuda", torch.float32, 64, (9, 0), False),
        ("cuda", torch.bfloat16, 260, (9, 0), False),
        ("cuda", torch.bfloat16, 60, (9, 0), False),
        ("cpu", torch.bfloat16, 64, (9, 0), False),
    ],
)
def test_who_gets_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
    device: str,
    dtype: torch.dtype,
    size: int,
    capability: tuple[int, int],
    ragged: bool,
) -> None:
    """Sixteen bits, heads that it knows, and a GPU that it was made for; all others compute padded sequences."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    with FakeTensorMode():
        assert attention._is_ragged(torch.empty(1, 4, 3, size, device=device, dtype=dtype)) is ragged


def test_versions_of_pytorch_without_the_kernel_are_used_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 2.10 it was not there, and at first it knew no windows."""
    assert attention._kernel() is varlen_attn
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", lambda query, key, value: None)
    assert attention._kernel() is None
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    assert attention._kernel() is None
    monkeypatch.setattr(attention, "varlen_attn", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with FakeTensorMode():
        assert not attention._is_ragged(torch.empty(1, 4, 3, 64, device="cuda", dtype=torch.bfloat16))


def test_keys_are_kept_in_the_type_of_the_computations() -> None:
    """A rotation leaves float32 under autocast; a cache of it would take twice the memory."""
    model = Qwen2ForCausalLM(Qwen2Config(intermediate_size=16, **SIZES)).eval()
    layout = pack([3], [()], CPU, keep_keys=True)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        model(torch.arange(3)[None], position_ids=layout.positions[None], layout=layout, use_cache=False)
    assert layout.keys is not None
    assert {x.dtype for pair in layout.keys for x in pair} == {torch.bfloat16}
