"""Routing replay: which experts each token of a mixture of experts went to in one forward pass, taken again in another.

Only the set of experts is taken again. Their weights are the current router's probabilities over this set, so that the
router keeps its gradient (R3, arXiv 2510.11370; R2, arXiv 2507.18071, section 5.3). Tokens of the prompt are replayed
as well: what they wrote into keys and values is what the response was read from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paribus.errors import RunnerError
from paribus_runners.native.support import stretches

MIXTURES = frozenset({"mixtral", "olmoe", "qwen2_moe", "qwen3_moe"})
"""Types of models whose routers choose by a softmax over all experts."""
_CHOICE, _DIRECTED = "_paribus_choice", "_paribus_directed"


@dataclass(frozen=True)
class Experts:
    """The experts of N responses, at all tokens of prompt and response but the last: nothing is computed from that.

    Attributes:
        ids: [S, layers, K] experts of these tokens, sequence after sequence, on the CPU; layers are those with experts.
        size: [N] how many of the S tokens belong to each response.
    """

    ids: Tensor
    size: Tensor

    def select(self, rows: Tensor) -> Experts:
        """Return those of the responses ``rows``, a mask or indices."""
        return Experts(self.ids[stretches(self.size, rows)], self.size[rows])

    @staticmethod
    def concat(parts: Sequence[Experts]) -> Experts:
        """Return those of all parts, one part after the other."""
        return Experts(torch.cat([p.ids for p in parts]), torch.cat([p.size for p in parts]))

    @classmethod
    def of(cls, chosen: Tensor, gather: Tensor, size: Tensor) -> Experts:
        """Return the experts of the sequences of a forward pass.

        Args:
            chosen: [n, layers, K] by place in the row.
            gather: [N * width] place in the row of each token of each sequence, as a packing has it.
            size: [N] tokens of each sequence that count.
        """
        places = gather.view(len(size), -1).cpu()
        return cls(chosen.cpu()[places[torch.arange(places.shape[1]) < size[:, None]]], size)

    def in_row(self, scatter: Tensor, width: int) -> Tensor:
        """Return [n, layers, K] by place in the row of a forward pass.

        Args:
            scatter: [n] which of the N * width places of the sequences each token of the row has, as a packing has it.
            width: tokens of the longest sequence.
        """
        layers, k = self.ids.shape[1:]
        table = torch.arange(k).expand(len(self.size), width, layers, k).clone()
        table[torch.arange(width) < self.size[:, None]] = self.ids.long()
        return table.flatten(0, 1).to(scatter.device)[scatter]


class Choice:
    """Which experts the tokens of one forward pass go to.

    Args:
        taken: [n, layers, K] the experts to take; ``None``: those that the routers choose.
    """

    def __init__(self, taken: Tensor | None = None) -> None:
        self._taken = taken
        self._own: dict[int, Tensor] = {}

    @property
    def own(self) -> Tensor:
        """[n, layers, K] what the routers chose, in the smallest type that holds it."""
        return torch.stack([self._own[layer] for layer in sorted(self._own)], 1)

    def replaced(self, at: Tensor) -> Tensor:
        """Return [T] the share of layers in which the routers chose another set than was taken, at these places."""
        assert self._taken is not None
        own, taken = (x[at].long().sort(-1).values for x in (self.own, self._taken))
        return (own != taken).any(-1).float().mean(-1)

    def route(self, router: Any, layer: int, found: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        """Note what a router chose and return it, or what is taken in its place.

        Args:
            router: the router.
            layer: its number among the layers with experts.
            found: its logits [n, experts], the weights [n, K] of the experts that it chose, and these.
        """
        logits, weights, own = found
        self._own[layer] = own.detach().to(torch.uint8 if logits.shape[-1] <= 256 else torch.int16)
        if self._taken is None:
            return found
        taken = self._taken[:, layer]
        p = logits.softmax(-1, dtype=torch.float32).gather(-1, taken)
        if getattr(router, "norm_topk_prob", True):  # Mixtral's has no such switch, and always does
            p = p / p.sum(-1, keepdim=True)
        return logits, p.to(weights.dtype), taken


def direct(model: Any) -> None:
    """Let the :class:`Choice` of a pass's layout direct the routers of a model from now on.

    The hooks hold no state of a pass, so a copy of the model is directed by the layouts of its own passes. Routers
    remember the choice until the next pass, because checkpointed blocks are computed again in the backward pass.

    Raises:
        RunnerError: the model has no routers, routers of an unknown kind, or of an old version of Transformers.
    """
    if getattr(model, _DIRECTED, False):
        return
    kind = model.config.model_type
    if kind not in MIXTURES:
        raise RunnerError(
            f"`rollout.routing_replay`: a model of type {kind} has no router whose choice can be replayed: set "
            "`model.name: tiny_moe`, name a mixture-of-experts model of type "
            f"{', '.join(sorted(MIXTURES))}, or leave `rollout.routing_replay` out"
        )
    pairs = [(block, x) for block in model.base_model.layers for x in block.modules() if _is_router(x)]
    if not pairs:
        raise RunnerError(
            "`rollout.routing_replay` needs Transformers 5: before it, routers were no modules of their own"
        )
    for layer, (block, router) in enumerate(pairs):
        block.register_forward_pre_hook(_Announce(router), with_kwargs=True)
        router.register_forward_hook(_Route(layer))
    setattr(model, _DIRECTED, True)


def _is_router(module: nn.Module) -> bool:
    return type(module).__name__.endswith("TopKRouter")


class _Announce:
    """Hands the choice of a pass to the router of a block before the block is computed."""

    def __init__(self, router: nn.Module) -> None:
        self._router = router

    def __call__(self, block: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        setattr(self._router, _CHOICE, named["layout"].choice)


class _Route:
    """Lets the choice of a pass direct a router."""

    def __init__(self, layer: int) -> None:
        self._layer = layer

    def __call__(self, router: nn.Module, arguments: tuple[Any, ...], found: tuple[Tensor, Tensor, Tensor]) -> Any:
        choice: Choice | None = getattr(router, _CHOICE, None)
        return None if choice is None else choice.route(router, self._layer, found)


class Recorder:
    """Collects the experts of responses that are sampled together, all of them one token further in each pass.

    Args:
        prompts: tokens of each prompt.
        copies: responses to each.
        chosen: [sum of prompts, layers, K] the experts of the tokens of the prompts.
    """

    def __init__(self, prompts: Sequence[int], copies: int, chosen: Tensor) -> None:
        self._prompts, self._chosen = torch.tensor(prompts), chosen
        self._copies = copies
        self._rows: list[Tensor] = []
        self._steps: list[Tensor] = []

    def read(self, rows: Tensor, chosen: Tensor) -> None:
        """Note that each of these responses has read its next token, with the experts ``chosen`` [n, layers, K]."""
        self._rows.append(rows)
        self._steps.append(chosen)

    def experts(self, length: Tensor) -> Experts:
        """Return the experts of all responses, of which ``length`` [N] tokens each were written or given."""
        prompt = torch.arange(len(self._prompts)).repeat_interleave(self._copies)
        before, size = self._prompts[prompt], self._prompts[prompt] + length - 1
        inner = torch.arange(int(size.sum())) - (size.cumsum(0) - size).repeat_interleave(size)
        ids = self._chosen.new_empty(len(inner), *self._chosen.shape[1:], device="cpu")
        of_prompt = inner < before.repeat_interleave(size)
        ids[of_prompt] = self._chosen.cpu()[stretches(self._prompts, prompt)]
        if self._rows:
            row = torch.cat(self._rows).cpu()
            step = torch.arange(len(self._rows)).repeat_interleave(torch.tensor([len(x) for x in self._rows]))
            there = (step < length[row] - 1).nonzero().squeeze(1)  # a response that has ended may be read on
            order = there[(row[there] * len(self._rows) + step[there]).argsort()]
            ids[~of_prompt] = torch.cat(self._steps).cpu()[order]
        return Experts(ids, size)
