"""The head's kernels in Triton, run line by line on a CPU: they agree with float64 and with the operations of torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from paribus_runners.native import head
from paribus_runners.native.head import Head
from paribus_runners.native.support import Support

pytest.importorskip("triton")
from paribus_runners.native import head_triton

Given = tuple[Tensor, Tensor, Tensor | None, Tensor]
"""Hidden states [n, H], weight [V, H], bias [V], targets [n]."""
Found = tuple[tuple[Tensor, Tensor], list[Tensor]]
"""Log-probabilities and entropies, and gradients."""
Function = Callable[[Given], tuple[Tensor, Tensor | None]]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
EPSILON = {"float32": 2**-24, "bfloat16": 2**-9}
"""Relative error of one rounding."""


@pytest.fixture
def chunks(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that sets the rows of a chunk, the columns of a block, and no vocabulary for autograd."""

    def cut(words: int, rows: int, columns: int = 16) -> None:
        _cut(monkeypatch, words, rows, columns)

    return cut


def _cut(patch: pytest.MonkeyPatch, words: int, rows: int, columns: int) -> None:
    patch.setattr(head, "CHUNK", rows * words)
    patch.setattr(head, "SMALL", 0)
    patch.setattr(head_triton, "COLUMNS", columns)
    patch.setattr(head_triton, "PART", columns)


def _given(n: int, size: int, words: int, *, bias: bool, seed: int, dtype: torch.dtype = torch.float32) -> Given:
    """Return numbers that bfloat16 holds, so that the types differ in what they compute alone."""
    g = torch.Generator().manual_seed(seed)
    hidden, weight = (torch.randn(k, size, generator=g).bfloat16().to(dtype) for k in (n, words))
    offset = torch.randn(words, generator=g).bfloat16().to(dtype) if bias else None
    return hidden, weight, offset, torch.randint(words, (n,), generator=g)


def _plain(given: Given, divisor: float, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """Log-probability and entropy by the textbook, from all logits at once, which ``dtype`` rounds."""
    hidden, weight, bias, targets = given
    z = hidden @ weight.T + (0 if bias is None else bias)
    z = (z + (z.to(dtype).double() - z).detach()) / divisor
    logp = z - z.logsumexp(1, keepdim=True)
    return logp.gather(1, targets[:, None]).squeeze(1), -(logp.exp() * logp).sum(1)


def _wide(given: Given) -> Given:
    return tuple(x.double() if x is not None and x.is_floating_point() else x for x in given)  # type: ignore[return-value]


def _gradients(given: Given, function: Function, parts: str, seed: int) -> Found:
    """Return the values, and the gradients of a random weighted sum of the ``parts``: ``logp``, ``entropy`` or both."""
    leaves = [None if x is None else x.clone().requires_grad_() for x in given[:3]]
    values: Any = function((*leaves, given[3]))  # type: ignore[arg-type]
    g = torch.Generator().manual_seed(seed + 1)
    weights = torch.randn(2, len(given[3]), generator=g)
    chosen = {"logp": (0,), "entropy": (1,), "both": (0, 1)}[parts]
    total: Any = sum((weights[i] * values[i]).sum() for i in chosen)
    found = torch.autograd.grad(total, [x for x in leaves if x is not None])
    return (values[0].detach(), values[1].detach()), list(found)


def _head(dtype: torch.dtype, divisor: float, *, triton: bool = True) -> Function:
    return lambda x: Head(x[1], x[2], 1.0, dtype, triton).score(x[0], x[3], divisor, with_entropy=True)


def _near(got: Found, want: Found, error: float) -> None:
    for ours, theirs in zip(got[0], want[0], strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=error, atol=error)
    for ours, theirs in zip(got[1], want[1], strict=True):
        scale = max(float(theirs.double().norm()), theirs.numel() ** 0.5 / 8)  # rows of either sign cancel
        assert float((ours.double() - theirs.double()).norm()) <= error * scale


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 5),
    words=st.integers(1, 40),
    rows=st.integers(1, 6),
    columns=st.sampled_from([2, 8, 16, 64]),
    bias=st.booleans(),
    parts=st.sampled_from(["logp", "entropy", "both"]),
    divisor=st.sampled_from([0.3, 1.0, 6.8]),
    seed=st.integers(0, 99),
)
def test_kernels_agree_with_the_plain_formula_in_float64(
    n: int, words: int, rows: int, columns: int, bias: bool, parts: str, divisor: float, seed: int
) -> None:
    """Whatever the shapes of chunks and blocks; in bfloat16 beside logits that bfloat16 rounds."""
    given_ = _given(n, 5, words, bias=bias, seed=seed)
    for name, dtype in DTYPES.items():
        rounded = torch.float64 if name == "float32" else dtype
        values, gradients = _gradients(_wide(given_), lambda x, r=rounded: _plain(x, divisor, r), parts, seed)  # type: ignore[misc]
        with pytest.MonkeyPatch.context() as patch:
            _cut(patch, words, rows, columns)
            got = _gradients(given_, _head(dtype, divisor), parts, seed)
        _near((got[0], []), (values, []), 1e-5)
        error = 1e-5 if name == "float32" else 8 * EPSILON[name]
        _near((values, got[1]), (values, gradients), error / min(1, divisor))  # what is divided is rounded before


@settings(max_examples=25, deadline=None)
@given(
    words=st.integers(1, 70),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    bias=st.booleans(),
    parts=st.sampled_from(["logp", "entropy", "both"]),
    divisor=st.sampled_from([0.7, 1.0]),
    seed=st.integers(0, 99),
)
def test_kernels_agree_with_the_operations_of_torch(
    words: int, dtype: str, bias: bool, parts: str, divisor: float, seed: int
) -> None:
    """From the same logits, float32 or rounded to bfloat16, values are equal to rounding, and so are gradients."""
    given_ = _given(6, 5, words, bias=bias, seed=seed)
    with pytest.MonkeyPatch.context() as patch:
        _cut(patch, words, 4, 16)
        want, got = (_gradients(given_, _head(DTYPES[dtype], divisor, triton=x), parts, seed) for x in (False, True))
    for ours, theirs in zip(got[0], want[0], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    _near(got, want, 1e-5 if dtype == "float32" else 16 * EPSILON[dtype])


@settings(max_examples=40, deadline=None)
@given(
    values=st.lists(
        st.sampled_from([-1e4, -9999.0, -100.0, -1.0, 0.0, 0.5, 100.0, 9999.0, 1e4]), min_size=1, max_size=40
    ),
    same=st.booleans(),
    columns=st.sampled_from([4, 16, 64]),
    divisor=st.sampled_from([0.5, 1.0, 2.0]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    target=st.integers(0, 39),
)
def test_extreme_and_equal_logits(
    values: list[float], same: bool, columns: int, divisor: float, dtype: str, target: int
) -> None:
    """Logits up to 1e4, or all alike, give what float64 does, as far as float32 holds their log-sum-exp; no nan."""
    z = torch.tensor([values[:1] * len(values) if same else values]).to(DTYPES[dtype])
    targets, exact = torch.tensor([target % len(values)]), z.double().requires_grad_()
    logp = (exact / divisor).log_softmax(1)
    chosen, entropy = logp[0, targets], -(logp.exp() * logp).sum(1)
    (want,) = torch.autograd.grad((2.0 * chosen - 0.5 * entropy).sum(), exact)
    with pytest.MonkeyPatch.context() as patch:
        _cut(patch, len(values), 1, columns)
        kernels = head_triton.Kernels(z, z.t(), 1)
        got = kernels.reduce(z, targets, divisor, None)
        torch.testing.assert_close(got[0].double(), chosen, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got[1].double(), entropy, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(got[2].double(), (exact / divisor).logsumexp(1), rtol=1e-6, atol=1e-5)
        g, ge = torch.tensor([2.0]), torch.tensor([-0.5])
        d, _ = kernels.differentiate(z, targets, got[2], got[1], g, ge, divisor, None)
    rounding = 4 * float(got[2].abs()) * EPSILON["float32"] + 2 * EPSILON[dtype] + 1e-5
    assert float((d.double() - want).abs().max()) <= 4 * rounding * max(1.0, 1 / divisor) * (1 + math.log(len(values)))


@pytest.mark.filterwarnings("ignore:Input #.*double precision:UserWarning")
def test_gradients_are_those_of_finite_differences(chunks: Callable[..., None]) -> None:
    """As ``gradcheck`` compares them, with steps that float32 resolves: of each value, by each input."""
    chunks(11, 2, columns=8)
    hidden, weight, bias, targets = _given(3, 3, 11, bias=True, seed=0)
    assert bias is not None

    def function(h: Tensor, w: Tensor, b: Tensor) -> Any:
        return Head(w, b, 1.0, torch.float32, triton=True).score(h, targets, 0.7, with_entropy=True)

    inputs = [x.requires_grad_() for x in (hidden, weight, bias)]
    assert torch.autograd.gradcheck(function, inputs, eps=1e-2, atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_support_leaves_tokens_out(chunks: Callable[..., None], dtype: str) -> None:
    """Over the tokens that sampling left to choose from, too, kernels and operations of torch agree."""
    chunks(50, 4)
    given_ = _given(9, 5, 50, bias=True, seed=3)
    inside = torch.rand(9, 50, generator=torch.Generator().manual_seed(0)) < 0.2
    inside[torch.arange(9), given_[3]] = True
    support = Support(inside.nonzero()[:, 1], inside.sum(1))

    def scored(triton: bool) -> Function:
        return lambda x: Head(x[1], x[2], 1.0, DTYPES[dtype], triton).score(
            x[0], x[3], 0.7, with_entropy=True, support=support
        )

    want, got = (_gradients(given_, scored(x), "both", 0) for x in (False, True))
    _near(got, want, 1e-5 if dtype == "float32" else 16 * EPSILON[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
def test_later_passes_add_to_a_tied_weight_in_place(chunks: Callable[..., None], dtype: str) -> None:
    """Two passes with ``accumulate`` leave their sum in the gradient that was there, beside the embeddings' share."""
    chunks(50, 4)
    words = nn.Parameter(_given(1, 8, 50, bias=False, seed=0)[1])
    layer, want, before = Head(words, None, 1.0, DTYPES[dtype], triton=True), torch.zeros(50, 8), None
    for seed in (1, 2):
        targets = _given(9, 8, 50, bias=False, seed=seed)[3]
        ids = targets.flip(0)
        alone = Head(words, None, 1.0, DTYPES[dtype]).score(words[ids], targets, 0.7, with_entropy=True)
        want += torch.autograd.grad(alone[0].sum() - 0.3 * alone[1].sum(), words)[0]  # type: ignore[union-attr]
        logp, entropy = layer.score(words[ids], targets, 0.7, with_entropy=True, accumulate=True)
        assert entropy is not None
        (logp.sum() - 0.3 * entropy.sum()).backward()
        assert words.grad is not None
        assert before is None or words.grad is before
        before = words.grad
    assert float((words.grad - want).norm()) <= (1e-5 if dtype == "float32" else 0.02) * float(want.norm())


def test_one_gradient_may_serve_both_values(chunks: Callable[..., None]) -> None:
    """The sum of log-probability and entropy has one gradient for both, maybe the same tensor."""
    chunks(50, 4)
    given_ = _given(9, 5, 50, bias=False, seed=3)
    found = []
    for triton in (False, True):
        hidden = given_[0].clone().requires_grad_()
        logp, entropy = Head(given_[1], None, 1.0, torch.float32, triton).score(
            hidden, given_[3], 1.0, with_entropy=True
        )
        (logp + entropy).backward(torch.linspace(-1, 1, 9))
        found.append(hidden.grad)
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore:All-NaN slice encountered:RuntimeWarning")
def test_what_is_no_number_is_not_hidden(chunks: Callable[..., None]) -> None:
    """A nan among the logits of a row reaches its values and its gradient, and no other row."""
    chunks(40, 3)
    hidden, weight, _, targets = _given(3, 5, 40, bias=False, seed=0)
    hidden[1, 2] = math.nan
    values, (d, _) = _gradients((hidden, weight, None, targets), _head(torch.float32, 1.0), "both", 0)
    for x in (*values, d.sum(1)):
        assert x.isnan().tolist() == [False, True, False]


def test_there_is_one_room_in_the_type_of_the_products(
    chunks: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With bfloat16 products no tensor of logits is float32; float64 takes the operations of torch."""
    chunks(64, 4)
    made: list[tuple[torch.dtype, tuple[int, ...]]] = []
    plain = head_triton.Kernels.differentiate

    def seen(self: Any, z: Tensor, *more: Any) -> Any:
        found = plain(self, z, *more)
        made.extend((x.dtype, tuple(x.shape)) for x in found)
        assert all(x.data_ptr() == z.data_ptr() for x in found)
        return found

    monkeypatch.setattr(head_triton.Kernels, "differentiate", seen)
    _gradients(_given(10, 5, 64, bias=True, seed=0), _head(torch.bfloat16, 1.0), "both", 0)
    assert set(made) == {(torch.bfloat16, (4, 64)), (torch.bfloat16, (2, 64))}
    made.clear()
    _gradients(_wide(_given(10, 5, 64, bias=True, seed=0)), _head(torch.float64, 1.0), "both", 0)
    assert made == []
