"""Log-probabilities of given responses under a policy: the learner's forward pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from paribus_runners.native.attention import Packing, pack
from paribus_runners.native.experts import Choice, Experts
from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Responses, written
from paribus_runners.native.support import Support


@dataclass(frozen=True)
class Scores:
    """Values of each response token from a forward pass, end to end.

    Attributes:
        logp: [T] log-probability, nats.
        entropy: [T] entropy of the distribution, nats; None if not requested.
        router: [T, layers, experts] log-probabilities of the routers where the token was predicted, which is at the
            token before it, nats, without gradient; None if not requested.
        experts: which experts the routers chose, response after response; None if not requested.
        replaced: [T] share of the layers in which other experts were taken than the router chose where the token was
            predicted; None if none were taken.
    """

    logp: Tensor
    entropy: Tensor | None = None
    router: Tensor | None = None
    experts: Experts | None = None
    replaced: Tensor | None = None


@dataclass(frozen=True)
class Row:
    """Prompts and responses end to end, each prompt once, as one forward pass takes them.

    A response stands there without its last token, which predicts nothing.

    Attributes:
        ids: [n] tokens.
        layout: how they attend to each other.
        at: [T] for each token that the model wrote the place of the token before it, where it is predicted.
        targets: [T] these tokens.
    """

    ids: Tensor
    layout: Packing
    at: Tensor
    targets: Tensor


def line_up(prompts: Sequence[Sequence[int]], groups: Sequence[Sequence[Sequence[int]]], device: torch.device) -> Row:
    """Return the row of ``prompts`` and, behind each, the responses of its group.

    What an environment wrote is read, and is no target.
    """
    layout = pack([len(p) for p in prompts], [[len(r) - 1 for r in g] for g in groups], device)
    ids: list[int] = []
    before: list[int] = []
    targets: list[int] = []
    for prompt, group in zip(prompts, groups, strict=True):
        last = len(ids) + len(prompt) - 1
        ids += prompt
        for response in group:
            places = [last, *range(len(ids), len(ids) + len(response) - 1)]
            own = written(response)
            before += [places[i] for i in own]
            targets += [response[i] for i in own]
            ids += response[:-1]
    tensors = [torch.tensor(x, device=device) for x in (ids, before, targets)]
    return Row(tensors[0], layout, tensors[1], tensors[2])


def score(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    groups: Sequence[Sequence[Sequence[int]]],
    temperature: float,
    *,
    with_entropy: bool = False,
    with_router: bool = False,
    with_experts: bool = False,
    support: Support | None = None,
    experts: Experts | None = None,
    accumulate: bool = False,
) -> Scores:
    """Return the log-probability of each response token at ``temperature``, and what else is requested.

    Args:
        policy: the model; gradients flow to its weights unless disabled.
        prompts: tokens of each prompt; a prompt is computed once for all of its responses.
        groups: tokens of the responses to each prompt, as :meth:`.responses.Responses.tokens` gives them.
        temperature: logits are divided by it.
        with_entropy: also return the entropy.
        with_router: also return the log-probabilities of the routers of a mixture of experts.
        with_experts: also return which experts its routers chose.
        support: what each token was chosen from, over which its probability is taken; ``None``: the whole vocabulary.
        experts: which experts the tokens go to; ``None``: those that the routers choose.
        accumulate: ``backward()`` will be called, and may add in place to the gradients that are there.

    Raises:
        RunnerError: ``with_router``, ``with_experts`` or ``experts`` with a model without routers.
    """
    row = line_up(prompts, groups, policy.device)
    layout, choice = row.layout, None
    if with_experts or experts is not None:
        choice = Choice(None if experts is None else experts.in_row(layout.scatter, layout.width))
        layout = replace(layout, choice=choice)

    def made() -> tuple[Tensor, Tensor | None, Tensor | None]:
        if with_router:
            hidden, router = policy.hidden_and_router(row.ids, layout.positions, layout, row.at)
        else:
            hidden, router = policy.hidden(row.ids, layout.positions, layout, row.at), None
        logp, entropy = policy.head.score(
            hidden, row.targets, temperature, with_entropy=with_entropy, support=support, accumulate=accumulate
        )
        return logp, entropy, router

    logp, entropy, router = policy.one_pass(made)
    size = torch.tensor([len(p) + len(r) - 1 for p, group in zip(prompts, groups, strict=True) for r in group])
    return Scores(
        logp,
        entropy,
        router,
        Experts.of(choice.own, layout.gather, size) if choice is not None and with_experts else None,
        choice.replaced(row.at) if choice is not None and experts is not None else None,
    )


@torch.no_grad()
def score_all(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    responses: Responses,
    temperature: float,
    *,
    with_entropy: bool = False,
    with_router: bool = False,
    with_experts: bool = False,
    replay: bool = False,
) -> Scores:
    """Return what :func:`score` does for all sampled responses over their supports, without gradient, on the CPU.

    Args:
        policy: the model.
        prompts: tokens of each prompt.
        responses: N responses, those to one prompt next to each other.
        temperature: logits are divided by it.
        with_entropy: also return the entropies.
        with_router: also return the log-probabilities of the routers.
        with_experts: also return which experts the routers chose.
        replay: the tokens go to the experts that the responses come with, if they do; for the policy alone.
    """
    parts, done, scored, support, experts = list[Scores](), 0, 0, None, None
    asked = {"with_entropy": with_entropy, "with_router": with_router, "with_experts": with_experts}
    with policy.at_hand():
        for some, groups in by_prompt(prompts, responses, policy.at_once.tokens_a_pass):
            first, done = done, done + sum(len(written(x)) for group in groups for x in group)
            if responses.support is not None:
                support = responses.support.between(first, done).to(policy.device)
            before, scored = scored, scored + sum(map(len, groups))
            if replay and responses.experts is not None:
                experts = responses.experts.select(torch.arange(before, scored))
            parts.append(score(policy, some, groups, temperature, support=support, experts=experts, **asked))
    entropy = torch.cat([p.entropy.cpu() for p in parts if p.entropy is not None]) if with_entropy else None
    router = torch.cat([p.router.cpu() for p in parts if p.router is not None]) if with_router else None
    chosen = [p.experts for p in parts if p.experts is not None]
    return Scores(torch.cat([p.logp.cpu() for p in parts]), entropy, router, Experts.concat(chosen) if chosen else None)


def by_prompt(
    prompts: Sequence[Sequence[int]], responses: Responses, most: int
) -> Iterator[tuple[list[Sequence[int]], list[list[list[int]]]]]:
    """Yield prompts with the tokens of their responses, as many at a time as a forward pass of ``most`` tokens takes.

    Where all responses to a prompt are too many, it comes several times, each time with some of them.
    """
    size = len(responses) // len(prompts)
    tokens = responses.tokens()
    units: list[tuple[Sequence[int], list[list[int]]]] = []
    costs: list[int] = []
    for i, prompt in enumerate(prompts):
        group = tokens[i * size : (i + 1) * size]
        lengths = [len(r) - 1 for r in group]
        fits = len(prompt) + sum(lengths) <= most
        for part in [range(size)] if fits else split(range(size), lengths, most - len(prompt)):
            units.append((prompt, [group[j] for j in part]))
            costs.append(len(prompt) + sum(lengths[j] for j in part))
    for part in split(range(len(units)), costs, most):
        yield [units[i][0] for i in part], [units[i][1] for i in part]


def split(items: Sequence[int], costs: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Yield runs of ``items`` whose ``costs`` stay within ``budget``; an item above the budget has its own run."""
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
