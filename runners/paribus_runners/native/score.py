"""Log-probabilities of given responses under a policy: the learner's forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain

import torch
from torch import Tensor

from paribus_runners.native.attention import pack
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.responses import Responses


def score(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    groups: Sequence[Sequence[Sequence[int]]],
    temperature: float,
    *,
    with_entropy: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return log-probability and entropy of each response token, end to end [T]; nats at ``temperature``.

    Args:
        policy: the model; gradients flow to its weights unless they are switched off.
        prompts: tokens of each prompt; a prompt is computed once for all of its responses.
        groups: tokens of the responses to each prompt.
        temperature: logits are divided by it.
        with_entropy: also return the entropy over the full vocabulary.
    """
    device = policy.device
    layout = pack([len(p) for p in prompts], [[len(r) for r in g] for g in groups], device)
    ids: list[int] = []
    before: list[int] = []
    targets: list[int] = []
    for prompt, group in zip(prompts, groups, strict=True):
        last = len(ids) + len(prompt) - 1
        ids += prompt
        for response in group:
            before += [last, *range(len(ids), len(ids) + len(response) - 1)]
            ids += response
        targets += chain.from_iterable(group)
    at = torch.tensor(before, device=device)
    logits = policy.logits(torch.tensor(ids, device=device), layout.positions, layout, at)
    logp = (logits / temperature).log_softmax(-1)
    chosen = logp.gather(1, torch.tensor(targets, device=device)[:, None]).squeeze(1)
    return chosen, -(logp.exp() * logp).sum(-1) if with_entropy else None


BUDGET = {"cpu": 4096, "cuda": 32768}
"""Tokens in one forward pass, by device: bounds the memory of a pass, changes no result."""


@torch.no_grad()
def reference_logp(
    policy: Policy, prompts: Sequence[Sequence[int]], responses: Responses, temperature: float
) -> Tensor:
    """Return [N, M] log-probabilities of sampled responses under another policy; 0 past their ends.

    Args:
        policy: the reference.
        prompts: tokens of each prompt.
        responses: N responses, those to one prompt next to each other.
        temperature: logits are divided by it.
    """
    size = len(responses) // len(prompts)
    tokens = responses.tokens()
    groups = [tokens[i : i + size] for i in range(0, len(tokens), size)]
    parts = []
    costs = [len(p) + sum(map(len, g)) for p, g in zip(prompts, groups, strict=True)]
    for part in split(range(len(prompts)), costs, BUDGET[policy.device.type]):
        logp, _ = score(policy, [prompts[i] for i in part], [groups[i] for i in part], temperature)
        parts.append(logp.cpu())
    return torch.zeros_like(responses.logp).masked_scatter(responses.mask, torch.cat(parts))


def split(items: Sequence[int], costs: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield runs of ``items`` whose ``costs`` stay within ``budget``; one that exceeds it alone stands alone."""
    part: list[int] = []
    spent = 0
    for item, cost in zip(items, costs, strict=True):
        if part and spent + cost > budget:
            yield part
            part, spent = [], 0
        part.append(item)
        spent += cost
    if part:
        yield part
