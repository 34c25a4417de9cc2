"""The critic: a network that values each state of a response."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from paribus_runners.native import lora
from paribus_runners.native.log_probabilities import by_prompt, line_up
from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Responses


class ValueModel(nn.Module):
    """The body of a causal language model with a linear head of one number."""

    def __init__(self, body: Any, size: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(size, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)


@dataclass(frozen=True)
class Critic:
    """A value model in training.

    Attributes:
        model: its weights, in the types of the policy's.
        dtype: type of the computations; with bfloat16, autocast.
        device: where the weights are.
        most: tokens of a forward pass.
    """

    model: ValueModel
    dtype: torch.dtype
    device: torch.device
    most: int

    @classmethod
    def of(cls, policy: Policy) -> Critic:
        """Return a critic that starts with the weights of the policy and values every state at 0."""
        body = lora.copy_of(policy.model.base_model, policy.model)
        model = ValueModel(body, policy.model.config.hidden_size).to(policy.device)
        return cls(model, policy.dtype, policy.device, policy.at_once.tokens_a_pass)

    def values(self, prompts: Sequence[Sequence[int]], groups: Sequence[Sequence[Sequence[int]]]) -> Tensor:
        """Return [T] the value of the state in which each response token was chosen, end to end, float32.

        Args:
            prompts: tokens of each prompt.
            groups: tokens of the responses to each prompt.
        """
        row = line_up(prompts, groups, self.device)
        amp = torch.autocast(self.device.type, self.dtype) if self.dtype != torch.float32 else contextlib.nullcontext()
        with amp:
            hidden = self.model.body(
                input_ids=row.ids[None], position_ids=row.layout.positions[None], use_cache=False, layout=row.layout
            ).last_hidden_state[0]
        value: Tensor = self.model.head(hidden[row.at].float()).squeeze(1)
        return value

    @torch.no_grad()
    def values_of_all(self, prompts: Sequence[Sequence[int]], responses: Responses) -> Tensor:
        """Return [T] the values of all sampled responses, without gradient, on the CPU."""
        return torch.cat([self.values(*part).cpu() for part in by_prompt(prompts, responses, self.most)])
