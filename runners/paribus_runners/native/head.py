"""The output head: log-probabilities and entropies from hidden states, in pieces of the vocabulary's logits.

Logits of all tokens at once would need many times the memory of the model: 2.5 GB for 4,096 tokens of a vocabulary of
151,936, and as much again for each step from logits to loss. Here at most a chunk of rows has logits at any moment. The
backward pass computes the logits of each chunk again, which costs a fourth matrix product beside three.

Between the matrix products stand either operations of torch or two kernels in Triton (:mod:`.head_triton`).

The weight's gradient is as large as the weight. The learner lets a backward pass add to the gradient that those before
have left: it would make one more, and with tied embeddings keep it beside a third, that of the embedding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from paribus.errors import RunnerError
from paribus_runners.native.support import Support, restricted
from paribus_runners.native.wide_gradients import sum_in_place

if TYPE_CHECKING:
    from paribus_runners.native.head_triton import Kernels

CHUNK = 2**25
"""Logits that exist at once: 128 MiB in float32. A pass holds two or three such pieces; with Triton one, in the type of
the products."""
SMALL = 4096
"""Largest vocabulary whose logits autograd may keep, if they fit into a chunk: nothing is computed twice."""


@dataclass(frozen=True)
class Head:
    """The last layer of a language model: logits = (weight hidden + bias) / scaling.

    Attributes:
        weight: [V, H]; tied to the embedding or not.
        bias: [V]; ``None`` without one.
        scaling: what the model divides its logits by.
        dtype: type of the matrix products; sums over the vocabulary are in float32 at least.
        triton: whether kernels in Triton make log-probabilities of logits, where these come in chunks.
    """

    weight: Tensor
    bias: Tensor | None
    scaling: float
    dtype: torch.dtype
    triton: bool = False

    @classmethod
    def of(cls, model: Any, dtype: torch.dtype, *, triton: bool = False) -> Head:
        """Return the head of a Transformers model; its tensors are those of the model.

        Raises:
            RunnerError: the model has no linear head, or bounds its logits.
        """
        layer, config, name = model.get_output_embeddings(), model.config, type(model).__name__
        if not isinstance(layer, nn.Linear):
            raise RunnerError(f"{name} has no linear output layer: it cannot be trained here")
        cap = getattr(config, "final_logit_softcapping", None)
        if cap is not None:
            raise RunnerError(f"{name} bounds its logits (final_logit_softcapping={cap}): it cannot be trained here")
        scaling = getattr(config, "logits_scaling", None) or 1 / (getattr(config, "logit_scale", None) or 1.0)
        return cls(layer.weight, layer.bias, float(scaling), dtype, triton)

    def cast(self) -> Head:
        """Return the same head with its weights in the type of the products, without gradient."""
        bias = None if self.bias is None else self.bias.detach().to(self.dtype)
        return replace(self, weight=self.weight.detach().to(self.dtype), bias=bias)

    def rows(self) -> int:
        """Return how many rows of hidden states have logits at once."""
        return max(1, CHUNK // len(self.weight))

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits [n, V], float32 or better, of hidden states [n, H]; the caller bounds n by :meth:`rows`."""
        bias = None if self.bias is None else self.bias.to(self.dtype)
        raw = F.linear(hidden.to(self.dtype), self.weight.to(self.dtype), bias)
        wide = raw.to(torch.promote_types(self.dtype, torch.float32))
        return wide if self.scaling == 1 else wide / self.scaling

    def score(
        self,
        hidden: Tensor,
        targets: Tensor,
        temperature: float,
        *,
        with_entropy: bool = False,
        support: Support | None = None,
        accumulate: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the log-probability of each target [n], nats, and if requested the entropy [n]; both with gradient.

        Args:
            hidden: [n, H] final hidden states.
            targets: [n] tokens.
            temperature: logits are divided by it.
            with_entropy: also return the entropy.
            support: which tokens each target was chosen from; ``None``: the whole vocabulary.
            accumulate: where the weight is a parameter that has a gradient, its share may be added there and not be
                returned: for ``backward()``. ``torch.autograd.grad`` and hooks of the parameter would miss it.
        """
        if len(self.weight) <= SMALL and len(hidden) <= self.rows():
            logits = self.logits(hidden) / temperature
            if support is not None:
                logp, entropy = restricted(logits, support.outside(len(self.weight)))
                return logp.gather(1, targets[:, None]).squeeze(1), entropy if with_entropy else None
            logp = logits.log_softmax(-1)
            chosen = logp.gather(1, targets[:, None]).squeeze(1)
            return chosen, -(logp.exp() * logp).sum(-1) if with_entropy else None
        parameter = self.weight if accumulate and self.weight.is_leaf and self.weight.requires_grad else None
        kernels = self.triton and self.dtype.itemsize <= 4  # they sum in float32
        settings = _Settings(self.dtype, self.scaling * temperature, self.rows(), support, parameter, kernels)
        found = _Chunked.apply(hidden, self.weight, self.bias, targets, settings)  # type: ignore[no-untyped-call]
        chosen, entropy = found
        return chosen, entropy if with_entropy else None


class _Settings(NamedTuple):
    """Type of the matrix products, divisor of the logits, rows of a chunk, and what targets were chosen from.

    ``parameter`` is the weight if its gradient may be added to what is there; with ``triton`` kernels compute.
    """

    dtype: torch.dtype
    divisor: float
    rows: int
    support: Support | None = None
    parameter: Tensor | None = None
    triton: bool = False

    def between(self, x: Tensor, weight: Tensor, *, both: bool) -> _Operations | Kernels:
        """Return what computes between the products; ``both``: also what needs the probabilities beside the logits."""
        if not self.triton:
            return _Operations(x, weight, self.rows, both=both)
        from paribus_runners.native.head_triton import Kernels  # builds of PyTorch for CPUs come without Triton

        return Kernels(x, weight, self.rows)

    def outside(self, first: int, z: Tensor) -> Tensor | None:
        """Return where logits of a chunk that begins with row ``first`` are left out."""
        if self.support is None:
            return None
        return self.support.between(first, first + len(z)).outside(z.shape[1])


class _Operations:
    """What stands between the matrix products of a chunk, as operations of torch on float32 logits [n, V].

    The memory is used for one chunk after the other: fresh memory is slow.
    """

    def __init__(self, x: Tensor, weight: Tensor, rows: int, *, both: bool) -> None:
        self._dtype, self._room = x.dtype, _room(x, weight, rows)
        self._other = _room(x, weight, rows) if both else None

    def logits(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Return logits [n, V], not divided yet."""
        z = self._room[: len(x)]
        if x.dtype == z.dtype:
            torch.mm(x, weight.t(), out=z)
            return z if bias is None else z.add_(bias)
        return z.copy_(F.linear(x, weight, bias))

    def reduce(
        self, z: Tensor, targets: Tensor, divisor: float, outside: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probability, entropy and log-sum-exp, [n] each, nats; ``z`` is used up."""
        z.div_(divisor)
        if outside is not None:
            z.masked_fill_(outside, -math.inf)
        top = z.amax(1, keepdim=True)
        z.sub_(top)
        e = torch.exp(z, out=None if self._other is None else self._other[: len(z)])
        mass = e.sum(1)
        if outside is not None:
            z.masked_fill_(outside, 0.0)  # 0 log 0 = 0
        log_mass = mass.log()
        chosen = z.gather(1, targets[:, None]).squeeze(1) - log_mass
        return chosen, log_mass - e.mul_(z).sum(1) / mass, top.squeeze(1) + log_mass

    def differentiate(
        self,
        z: Tensor,
        targets: Tensor,
        total: Tensor,
        entropy: Tensor,
        g: Tensor,
        ge: Tensor | None,
        divisor: float,
        outside: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient of the undivided logits [n, V] in the type of the products, and in that of the sums."""
        z.div_(divisor).sub_(total[:, None])
        if ge is None or self._other is None:
            z.exp_().mul_(-g[:, None])
        else:
            p = torch.exp(z, out=self._other[: len(z)])
            z.add_(entropy[:, None]).mul_(ge[:, None]).add_(g[:, None]).mul_(p).neg_()
        if outside is not None:
            z.masked_fill_(outside, 0.0)
        z.scatter_add_(1, targets[:, None], g[:, None])
        return z.div_(divisor).to(self._dtype), z


class _Chunked(torch.autograd.Function):
    """Log-probability of the targets and entropy, chunk by chunk.

    With z the divided logits, p = softmax(z), H the entropy: d logp_target / dz = onehot - p and
    dH / dz = -p (log p + H).
    """

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, settings: _Settings
    ) -> tuple[Tensor, Tensor]:
        x, w, b = _cast(settings.dtype, hidden, weight, bias)
        chosen, entropy, total = (x.new_empty(len(x), dtype=_wide(x)) for _ in range(3))
        between = settings.between(x, w, both=True)
        for i in range(0, len(x), settings.rows):
            here = slice(i, i + settings.rows)
            z = between.logits(x[here], w, b)
            found = between.reduce(z, targets[here], settings.divisor, settings.outside(i, z))
            chosen[here], entropy[here], total[here] = found
        ctx.save_for_backward(hidden, weight, bias, targets, total, entropy)
        ctx.settings = settings
        ctx.set_materialize_grads(False)
        return chosen, entropy

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor | None, ge: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, total, entropy = ctx.saved_tensors
        settings = ctx.settings
        dtype, divisor, rows = settings.dtype, settings.divisor, settings.rows
        x, w, b = _cast(dtype, hidden, weight, bias)
        g = torch.zeros_like(total) if g is None else g
        there = None if settings.parameter is None else sum_in_place(settings.parameter)
        needed = ctx.needs_input_grad[0], ctx.needs_input_grad[1] and there is None, ctx.needs_input_grad[2]
        new = torch.empty_like if len(x) else torch.zeros_like
        dx, dw, db = (new(s) if n else None for s, n in zip((hidden, weight, bias), needed, strict=True))
        sums = dw if there is None else there
        between = settings.between(x, w, both=ge is not None)
        for i in range(0, len(x), rows):
            here = slice(i, i + rows)
            z, of_entropy = between.logits(x[here], w, b), None if ge is None else ge[here]
            known = targets[here], total[here], entropy[here], g[here], of_entropy
            d, wide = between.differentiate(z, *known, divisor, settings.outside(i, z))
            if dx is not None:
                dx[here] = d @ w
            if sums is not None:
                _add_product(sums, d.t(), x[here], first=i == 0 and there is None)
            if db is not None:
                added = wide.sum(0, dtype=total.dtype)
                db.copy_(added) if i == 0 else db.add_(added)
        return dx, dw, db, None, None


def _cast(
    dtype: torch.dtype, hidden: Tensor, weight: Tensor, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    return hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _room(x: Tensor, weight: Tensor, rows: int) -> Tensor:
    """Return memory for the logits of a chunk."""
    return x.new_empty(min(rows, len(x)), len(weight), dtype=_wide(x))


def _add_product(total: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """Add a b to ``total``, or set it."""
    if a.dtype == total.dtype:
        torch.addmm(total, a, b, beta=0 if first else 1, out=total)
    elif first:
        total.copy_(a @ b)
    else:
        total += a @ b
