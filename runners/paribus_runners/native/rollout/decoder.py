"""One more token of each sequence, on a CPU, by models that are built as Llama is.

Such a pass has so few tokens that each operation counts, and what Transformers does around the layers. Weights with the
same input lie side by side in one matrix, transposed, as products read it fastest: a copy of the layers for the time in
which responses are sampled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from paribus_runners.native.attention import KeyCache, attention
from paribus_runners.native.elementwise import rms_norm, turned, unit
from paribus_runners.native.policy import Policy

KINDS = frozenset({"llama", "qwen2", "qwen3"})
"""Kinds of models whose layers are computed here; their names in config.json."""
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
STATIC = frozenset({"default", "linear", "llama3", "yarn"})
"""Kinds of rotary embeddings whose angles follow from the position alone, not from how long the sequences are."""


class Product(NamedTuple):
    """Linear layers of one input, side by side.

    Attributes:
        weight: [inputs, outputs].
        bias: [outputs], or ``None``.
    """

    weight: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, *layers: nn.Linear, norm: Tensor | None = None) -> Product:
        """Return a copy of some layers, of which all have a bias or none, behind a norm with this weight."""
        bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
        weight = torch.cat([layer.weight for layer in layers]).t().contiguous()
        return cls(weight if norm is None else weight.mul_(norm[:, None]), bias)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the outputs [n, outputs] of x [n, inputs]."""
        return x @ self.weight if self.bias is None else torch.addmm(self.bias, x, self.weight)

    def added(self, to: Tensor, x: Tensor) -> Tensor:
        """Return the outputs of x added to other numbers."""
        out = torch.addmm(to, x, self.weight)
        return out if self.bias is None else out.add_(self.bias)


@dataclass(frozen=True)
class Block:
    """A layer of a model: its module, and copies of the weights of its products."""

    module: Any
    qkv: Product
    out: Product
    gate_and_up: Product
    down: Product

    @classmethod
    def of(cls, module: Any) -> Block:
        """Return a layer with copies of its weights."""
        own, mlp = module.self_attn, module.mlp
        return cls(
            module,
            Product.of(own.q_proj, own.k_proj, own.v_proj, norm=module.input_layernorm.weight),
            Product.of(own.o_proj),
            Product.of(mlp.gate_proj, mlp.up_proj, norm=module.post_attention_layernorm.weight),
            Product.of(mlp.down_proj),
        )

    def __call__(self, x: Tensor, cos: Tensor, sin: Tensor, cache: KeyCache) -> Tensor:
        """Return what the layer makes of the residual stream [n, H], one token of each sequence of the cache."""
        own = self.module.self_attn
        projected = self.qkv(unit(x, self.module.input_layernorm.variance_epsilon)).view(len(x), -1, own.head_dim)
        keys = projected.shape[1] // (own.num_key_value_groups + 2)
        both, values = projected[:, :-keys], projected[:, -keys:]
        if hasattr(own, "q_norm"):
            both = torch.cat([_normed(own.q_norm, both[:, :-keys]), _normed(own.k_norm, both[:, -keys:])], 1)
        both = turned(both, cos, sin)
        q, k, v = (some.transpose(0, 1)[None] for some in (both[:, :-keys], both[:, -keys:], values))
        found, _ = attention(own, q, k, v, None, layout=cache, scaling=own.scaling)
        x = self.out.added(x, found.view(len(x), -1))
        gate, up = self.gate_and_up(unit(x, self.module.post_attention_layernorm.variance_epsilon)).chunk(2, -1)
        return self.down.added(x, F.silu(gate).mul_(up))


class Decoder:
    """The layers of a model with copies of their weights.

    Args:
        model: a model of one of the :data:`KINDS`.
        most: tokens of the longest sequence.
    """

    def __init__(self, model: Any, most: int) -> None:
        self._base = model.base_model
        self._blocks = [Block.of(layer) for layer in self._base.layers]
        static = self._base.rotary_emb.rope_type in STATIC
        self._angles = self._cos_and_sin(torch.arange(most)) if static else None

    @classmethod
    def of(cls, policy: Policy, most: int) -> Decoder | None:
        """Return the decoder of a policy for sequences of so many tokens; ``None`` if Transformers has to compute it.

        That is so for other kinds of models, on other devices, in other types than float32, with adapters, and where
        processes share the weights: these want memory more than time.
        """
        config = policy.model.config
        if config.model_type not in KINDS or config.hidden_act != "silu" or policy.dtype != torch.float32:
            return None
        if policy.shared is not None:
            return None
        weights = policy.model.base_model.parameters()
        plain = policy.device.type == "cpu" and all(w.dtype == torch.float32 for w in weights)
        named = [x for name, x in policy.model.base_model.named_modules() if name.rpartition(".")[2] in LINEAR]
        return cls(policy.model, most) if plain and all(type(x) is nn.Linear for x in named) else None

    def hidden(self, token: Tensor, positions: Tensor, cache: KeyCache) -> Tensor:
        """Return the hidden states [n, H] behind one more token [n] of each sequence of the cache."""
        with torch.inference_mode():  # nothing made in here reaches what is trained
            x = F.embedding(token, self._base.embed_tokens.weight)
            angles = self._cos_and_sin(positions) if self._angles is None else self._angles[:, positions]
            cos, sin = angles[:, :, None]
            for block in self._blocks:
                x = block(x, cos, sin, cache)
            return _normed(self._base.norm, x)

    def _cos_and_sin(self, positions: Tensor) -> Tensor:
        """Return [2, n, size] cosines and sines of the angles by which queries and keys are turned."""
        weight = self._base.embed_tokens.weight  # says the type
        return torch.cat(self._base.rotary_emb(weight, positions[None]))


def _normed(norm: Any, x: Tensor) -> Tensor:
    return rms_norm(x, norm.weight, norm.variance_epsilon)
