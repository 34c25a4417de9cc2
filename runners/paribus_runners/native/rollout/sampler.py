"""What a sampler is: requests in, groups of responses out as they end."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from paribus_runners.native.responses import Responses

Place = tuple[int | str, ...]
"""Where in a run something random happens, e.g. seed, purpose, step, round: all randomness follows from it."""


class Ended(NamedTuple):
    """A response whose model has ended a turn.

    Attributes:
        prompt: index of its prompt among those of the requests.
        tokens: the response so far, with all answers, without the end mark that ended the turn.
        turn: the number of the turn, from 1.
    """

    prompt: int
    tokens: Sequence[int]
    turn: int


class Turns(Protocol):
    """What answers turns of the model."""

    @property
    def marks(self) -> Sequence[int]:
        """Tokens that end a turn beside the end marks."""

    @property
    def most(self) -> int:
        """Answers that a response may get."""

    @property
    def room(self) -> int:
        """Tokens that an answer may have."""

    @property
    def longest(self) -> int | None:
        """Tokens that the model may write in a turn; ``None``: no limit of its own."""

    def answers(self, ended: Sequence[Ended]) -> list[tuple[Sequence[int] | None, bool]]:
        """Return for each the tokens of its answer, or ``None`` where the response ends, and whether a call failed."""


@dataclass(frozen=True)
class Requests:
    """What to sample in one go.

    Attributes:
        prompts: tokens of each of P prompts.
        copies: responses to each prompt.
        room: tokens that the model may write in a response.
        temperature: logits are divided by it.
        place: where in the run; with the index of a prompt it fixes what is sampled, never history or the batch.
        top_p: tokens come from the fewest that add up to this share, of those that ``top_k`` leaves.
        apart: requests that differ in ``room`` alone share the random numbers of each response.
        places: index of each prompt among all prompts of the ``place``, ascending, where these are a share of them; by
            default they are all.
        top_k: tokens come from this many, the most likely; ``None``: from all.
        with_support: say of each token what it was chosen from, where some tokens are left out.
        turns: what answers turns of the model; ``None``: its end mark ends a response.
        with_experts: say which experts the tokens went to.
    """

    prompts: Sequence[Sequence[int]]
    copies: int
    room: int
    temperature: float
    place: Place
    top_p: float = 1.0
    apart: bool = False
    places: Sequence[int] | None = None
    top_k: int | None = None
    with_support: bool = False
    turns: Turns | None = None
    with_experts: bool = False

    @property
    def among_all(self) -> Sequence[int]:
        """The index of each prompt among all prompts of the place."""
        return range(len(self.prompts)) if self.places is None else self.places

    def seed(self, prompt: int) -> int:
        """Return the seed of the responses to one prompt, for samplers that have generators of their own."""
        return number(*self.place, self.among_all[prompt]) % 2**63


class Finished(NamedTuple):
    """Groups that have ended.

    Attributes:
        prompts: indices of their prompts.
        responses: ``copies`` responses to each of these prompts, group after group.
        may_leave: whether a caller may leave the sampling now. Elsewhere it would depend on the memory of the device
            which groups have ended, and so would all that counts them.
    """

    prompts: Sequence[int]
    responses: Responses
    may_leave: bool = True


class Sampler(Protocol):
    """Samples responses from the policy. Training and evaluation use the same one.

    Its log-probabilities are those at the requested temperature, over what the token was chosen from: all tokens, or
    the support that it says. Entropies are welcome, and computed by the learner if absent.
    """

    @property
    def all_at_once(self) -> bool:
        """Whether it works on all groups at once, so that a caller who leaves early saves little.

        The tokens of groups that are left were generated too, and counted nowhere.
        """

    def sample(self, requests: Requests) -> Iterator[Finished]:
        """Yield each group once, in any order, as soon as all of its responses have ended; now and then perhaps none.

        A caller that has enough closes the iterator where it may leave, and what is left is not sampled. Which groups
        end together may depend on the device; what a response is may not.
        """

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> Mapping[str, float]:
        """Sample from these weights from now on: names and tensors of all parameters of the policy.

        Returns metrics of how well sampler and learner agree, if there is a copy that could differ.
        """

    def rest(self) -> None:
        """Free what can be had again, as memory for keys and values, until weights are loaded or something sampled."""


def complete(sampler: Sampler, requests: Requests) -> Responses:
    """Return all responses, those to one prompt next to each other, in the order of the prompts."""
    parts = list(sampler.sample(requests))
    return in_order([i for p in parts for i in p.prompts], Responses.concat([p.responses for p in parts]))


def in_order(prompts: Sequence[int], responses: Responses) -> Responses:
    """Return groups of responses in the order of the indices of their ``prompts``."""
    if list(prompts) == sorted(prompts):
        return responses
    size = len(responses) // len(prompts)
    order = torch.tensor(prompts).argsort()
    return responses.select((order[:, None] * size + torch.arange(size)).flatten())


def number(*place: int | str) -> int:
    """Return a number of 64 bits that depends on ``place`` alone."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, place)).encode()).digest()[:8], "big")
