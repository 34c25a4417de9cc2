"""Norms and rotary embeddings of a model on a CPU in fewer passes over memory, forward and backward.

What Transformers writes as a chain of elementwise operations takes, for small models, as long as attention: autograd
goes through memory once for each link. The functions here have the derivatives written out. They take the place of a
model's own where both give the same on drawn numbers, so that a variant of a norm that is not known here stays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ROTATE = "apply_rotary_pos_emb"
"""What Transformers calls the function of a model's module that rotates queries and keys."""
Turn = Callable[..., tuple[Tensor, Tensor]]


def lean(model: nn.Module) -> None:
    """Let a model's norms, and the rotations of all models of its kind, be computed by the functions here.

    On other devices, in other types than float32, and with autocast, they stay those of Transformers.
    """
    for module in model.modules():
        if _is_norm(module):
            module.forward = MethodType(_norm, module)
        source = sys.modules[type(module).__module__]
        rotate = getattr(source, ROTATE, None)
        if rotate is not None and not isinstance(rotate, Rotate) and _turns_halves(rotate):
            setattr(source, ROTATE, Rotate(rotate))


# ---- norms -------------------------------------------------------------------------------------------------------


class Norm(torch.autograd.Function):
    """The norm by the root mean square (arXiv 1910.07467, equation 4) of the last dimension of x, times a weight.

    With u = x / rms(x) and w the weight: dx = (w g - u mean(w g u)) / rms(x), and dw is the sum of g u over all tokens.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return the norm of x [..., H]; the weight has H numbers."""
        inverse = _inverse(x, eps)
        unit = x * inverse
        ctx.save_for_backward(unit, inverse, weight)
        return unit * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None, None]:
        """Return the gradients of x and of the weight."""
        unit, inverse, weight = ctx.saved_tensors
        product = g * unit
        rows = product.reshape(-1, product.shape[-1])
        of_weight = rows.sum(0) if ctx.needs_input_grad[1] else None
        mean = (rows @ weight).div_(rows.shape[1]).view_as(inverse)
        of_x = torch.mul(g, weight, out=product).addcmul_(unit, mean, value=-1).mul_(inverse)
        return of_x, of_weight, None


def _inverse(x: Tensor, eps: float) -> Tensor:
    """Return [..., 1] one over the root mean square of the last dimension of x."""
    norm: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def unit(x: Tensor, eps: float) -> Tensor:
    """Return x over the root mean square of its last dimension."""
    return x * _inverse(x, eps)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return what :class:`Norm` does, without a derivative."""
    return unit(x, eps).mul_(weight)


def _norm(module: Any, x: Tensor) -> Tensor:
    if not _is_plain(x):
        found: Tensor = type(module).forward(module, x)
    elif not torch.is_grad_enabled():  # a sampler makes so many small calls that `apply` takes its share of time
        found = rms_norm(x, module.weight, module.variance_epsilon)
    else:
        found = Norm.apply(x, module.weight, module.variance_epsilon)  # type: ignore[no-untyped-call]
    return found


@torch.no_grad()
def _is_norm(module: nn.Module) -> bool:
    weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", None)
    if not type(module).__name__.endswith("RMSNorm") or eps is None or weight is None or not _is_plain(weight):
        return False
    x = torch.linspace(-3, 2, 2 * len(weight)).view(2, -1)
    return torch.allclose(module(x), Norm.apply(x, weight, eps), rtol=1e-5, atol=1e-7)  # type: ignore[no-untyped-call]


# ---- rotary embeddings -------------------------------------------------------------------------------------------


class Rotation(torch.autograd.Function):
    """Queries or keys turned by their positions (arXiv 2104.09864, equation 34), the two halves of a head as pairs.

    With x = (a, b) and the halves of cosine and sine alike: (a cos - b sin, b cos + a sin); back with the other sign.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return x [1, heads, T, size] turned; cosine and sine are [1, 1, T, size]."""
        ctx.save_for_backward(cos, sin)
        return turned(x, cos, sin)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of x."""
        cos, sin = ctx.saved_tensors
        return turned(g, cos, sin, -1), None, None


def turned(x: Tensor, cos: Tensor, sin: Tensor, sign: int = 1) -> Tensor:
    """Return what :class:`Rotation` does, or with the other sign the inverse, without a derivative."""
    out = x * cos
    (first, second), (a, b), (sine, same) = (of.chunk(2, -1) for of in (out, x, sin))
    first.addcmul_(b, sine, value=-sign)
    second.addcmul_(a, same, value=sign)
    return out


class Rotate:
    """Turns queries and keys in place of a function of Transformers.

    Attributes:
        own: that function.
    """

    def __init__(self, own: Turn) -> None:
        self.own = own

    def __call__(self, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *more: Any, **named: Any) -> Any:
        """Return queries and keys turned."""
        plain = all(_is_plain(x) for x in (q, k, cos)) and cos.shape[-1] == q.shape[-1]
        if more or named or not plain:
            return self.own(q, k, cos, sin, *more, **named)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        if not torch.is_grad_enabled():
            return turned(q, cos, sin), turned(k, cos, sin)
        return Rotation.apply(q, cos, sin), Rotation.apply(k, cos, sin)  # type: ignore[no-untyped-call]


@torch.no_grad()
def _turns_halves(own: Turn) -> bool:
    q, k = torch.linspace(-3, 2, 24).view(1, 2, 3, 4), torch.linspace(-2, 3, 12).view(1, 1, 3, 4)
    angles = torch.linspace(0, 4, 6).view(1, 3, 2).repeat(1, 1, 2)
    drawn = q, k, angles.cos(), angles.sin()
    try:
        pairs = list(zip(own(*drawn), Rotate(own)(*drawn), strict=True))
    except (TypeError, RuntimeError, ValueError):  # it takes other arguments
        return False
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in pairs)


def _is_plain(x: Tensor) -> bool:
    """Return whether the functions here work on a tensor."""
    return x.is_cpu and x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
