"""Attention in panels is attention, whatever the lengths; a cache that drops sequences keeps the others."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from paribus_runners.native import panels
from paribus_runners.native.attention import GROWTH, KeyCache, pack
from paribus_runners.native.log_probabilities import line_up

CPU = torch.device("cpu")
SCALE = 0.3
GROUPS = st.lists(st.tuples(st.integers(1, 9), st.lists(st.integers(0, 20), max_size=4)), min_size=1, max_size=4)


def _plain(prompts: Sequence[int], groups: Sequence[Sequence[int]], *qkv: Tensor) -> Tensor:
    """Return [1, T, heads, size], one sequence at a time by PyTorch's own attention."""
    q, k, v = qkv
    grouped = q.shape[1] != k.shape[1]
    outputs, start = list[Tensor](), 0
    for prompt, group in zip(prompts, groups, strict=True):
        known, place = range(start, start + prompt), start + prompt
        parts = []
        for i, response in enumerate((0, *group)):
            at = torch.tensor([*known, *range(place, place + response)])
            mine = (x[:, :, at] for x in (q, k, v))
            out = scaled_dot_product_attention(*mine, is_causal=True, scale=SCALE, enable_gqa=grouped)
            parts.append(out[:, :, prompt:] if i else out)
            place += response
        outputs += parts
        start = place
    return torch.cat(outputs, 2).transpose(1, 2)


def _drawn(tokens: int, heads: int, key_heads: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(tokens)
    shapes = ((heads, 5), (key_heads, 5), (key_heads, 3))
    # as a projection leaves them: heads of a token side by side
    drawn = (torch.randn(1, tokens, n, size, dtype=torch.float64, generator=generator) for n, size in shapes)
    return [x.transpose(1, 2).requires_grad_() for x in drawn]


@pytest.mark.parametrize(("size", "scores"), [(32, 2**20), (4, 2**20), (3, 40), (1, 1)])
@settings(max_examples=40, deadline=None)
@given(groups=GROUPS, heads=st.sampled_from([(1, 1), (2, 2), (4, 2), (6, 1)]))
def test_output_and_gradients_are_those_of_one_sequence_after_the_other(
    size: int, scores: int, groups: list[tuple[int, list[int]]], heads: tuple[int, int]
) -> None:
    """Prompts of all lengths, without responses or with some, also empty ones; heads that share keys; all sizes."""
    prompts, responses = [p for p, _ in groups], [r for _, r in groups]
    layout = pack(prompts, responses, CPU)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(panels, "SIZE", size)
        patch.setattr(panels, "MOST", 99)
        patch.setattr(panels, "SCORES", scores)
        qkv = _drawn(sum(prompts) + sum(map(sum, responses)), *heads)
        out = layout.attend(0, *qkv, SCALE)
    wanted = _plain(prompts, responses, *qkv)
    torch.testing.assert_close(out, wanted, rtol=0, atol=1e-12)
    weight = torch.linspace(-1, 2, out.numel(), dtype=torch.float64).view_as(out)
    found = torch.autograd.grad((out * weight).sum(), qkv)
    for mine, plain in zip(found, torch.autograd.grad((wanted * weight).sum(), qkv), strict=True):
        torch.testing.assert_close(mine, plain, rtol=0, atol=1e-11)


@settings(max_examples=40, deadline=None)
@given(groups=GROUPS)
def test_padded_attention_is_the_same(groups: list[tuple[int, list[int]]]) -> None:
    """What other devices and types compute, a padded square a sequence, has the same places in the row."""
    prompts, responses = [p for p, _ in groups], [r for _, r in groups]
    layout = pack(prompts, responses, CPU)
    qkv = _drawn(sum(prompts) + sum(map(sum, responses)), 4, 2)
    q, k, v = (x.detach() for x in qkv)
    v = pad(v, (0, 2))  # PyTorch's kernels want one size
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paribus_runners.native.attention._in_small_products", lambda _: False)
        padded = layout.attend(0, q, k, v, SCALE)
    torch.testing.assert_close(padded, layout.attend(0, q, k, v, SCALE), rtol=0, atol=1e-12)


def test_segments_without_tokens_are_left_out() -> None:
    """An empty prompt or response takes part in nothing; the others get what they get alone."""
    layout = pack([0, 3], [[2], [4, 0]], CPU)
    q, k, v = (x.detach() for x in _drawn(9, 2, 2))
    out = layout.attend(0, q, k, v, SCALE)
    alone = pack([3], [[4]], CPU).attend(0, *(x[:, :, 2:] for x in (q, k, v)), SCALE)
    torch.testing.assert_close(out[:, 2:], alone, rtol=0, atol=1e-12)


def test_long_sequences_do_not_widen_short_ones() -> None:
    """A sequence of 500 tokens beside 40 short ones costs its own scores, and no more for the others."""
    heads = 2
    scores = []
    for groups in ([[480]], [[4] * 40], [[480, *[4] * 40]]):
        made = pack([20], groups, CPU)._panels(heads, heads)
        scores.append(sum((b.queries.stop - b.queries.start) * b.end for b in made.blocks))
    alone, short, together = scores
    assert together < 1.05 * (alone + short)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=3),
    copies=st.integers(1, 3),
    drops=st.lists(st.integers(0, 10), min_size=1, max_size=3 * GROWTH),
)
def test_a_cache_that_drops_sequences_keeps_the_others(lengths: list[int], copies: int, drops: list[int]) -> None:
    """Whatever is dropped and whenever, what is left attends as if all were still there; no memory is asked for."""
    total, room, heads, size = len(lengths) * copies, len(drops), 2, 4
    generator = torch.Generator().manual_seed(sum(lengths))
    tokens = sum(lengths)

    def cache() -> KeyCache:
        prefill = pack(lengths, [()] * len(lengths), CPU, keep_keys=True)
        keys = torch.Generator().manual_seed(1)
        k, v = (torch.randn(1, heads, tokens, size, generator=keys) for _ in range(2))
        prefill.attend(0, k, k, v, 1.0)
        return KeyCache(prefill, lengths, copies, room)

    whole, small = cache(), cache()
    memory = {x.data_ptr() for x in small._memory}
    rows = torch.arange(total)
    for tenths in drops:
        kept = (torch.rand(len(rows), generator=generator) >= tenths / 10).nonzero().squeeze(1)
        if len(kept):
            order = small.keep(kept)
            assert order.sort().values.equal(kept)
            rows = rows[order]
        q, k, v = (torch.randn(1, heads, total, size, generator=generator) for _ in range(3))
        whole.advance()
        small.advance()
        every = whole.attend(0, q, k, v, 0.5)
        mine = small.attend(0, *(x[:, :, rows] for x in (q, k, v)), 0.5)
        torch.testing.assert_close(mine[0], every[0, rows])
    assert memory == {x.data_ptr() for x in small._memory}
    assert {x.untyped_storage().data_ptr() for pair in small._keys for x in pair} <= memory


def test_the_last_token_of_a_response_is_predicted_and_not_read() -> None:
    """A response of one token takes no place in the row; where each token is predicted is the one before it."""
    row = line_up([[1, 2], [3]], [[[4], [5, 6, 7]], [[8, 9]]], CPU)
    assert row.ids.tolist() == [1, 2, 5, 6, 3, 8]
    assert row.layout.positions.tolist() == [0, 1, 2, 3, 0, 1]
    assert row.targets.tolist() == [4, 5, 6, 7, 8, 9]
    assert row.at.tolist() == [1, 1, 2, 3, 4, 5]
