"""The sampler ``torch``: batched sampling by the code that trains, with a key-value cache.

Finished responses leave the batch.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from paribus_runners.native.attention import KeyCache, pack
from paribus_runners.native.experts import Choice, Recorder
from paribus_runners.native.head import Head
from paribus_runners.native.limits import USUAL
from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Given, Responses
from paribus_runners.native.rollout.decoder import Decoder
from paribus_runners.native.rollout.sampler import Ended, Finished, Requests, Turns, number
from paribus_runners.native.support import Support, restricted, truncated

EVICT = 0.05
"""Finished responses are dropped when they make up this share of the batch: at most as many others move then."""
LOOKS = {"cpu": 1, "cuda": 16}
"""Passes until the sampler looks which responses have ended: on a GPU a look waits for all that is computed there."""
_NONE = Responses(
    ids=torch.empty(0, dtype=torch.long),
    logp=torch.empty(0),
    entropy=torch.empty(0),
    length=torch.empty(0, dtype=torch.long),
    truncated=torch.empty(0, dtype=torch.bool),
)


@dataclass(frozen=True)
class TorchSampler:
    """Samples from the modules that are trained, so there is nothing to load; implements :class:`.sampler.Sampler`.

    Attributes:
        policy: the modules.
        check: called before each pass that is not one of the modules; may raise.
    """

    policy: Policy
    check: Callable[[], None] = lambda: None

    @property
    def all_at_once(self) -> bool:
        """False: what comes after the groups that are sampled together has not begun."""
        return False

    def sample(self, requests: Requests) -> Iterator[Finished]:
        """Yield as many groups at a time as are sampled at once, in the order of their prompts.

        Which ones go together follows from their places among all prompts, so that several processes, each with its
        share, have ended the same ones after each time as one process; of some a share may hold none. A caller may
        leave where the usual number has ended, however many there is memory for.

        Each token is the inverse of the cumulative distribution at one uniform number, so what a response becomes
        depends on its own numbers only, not on the batch around it.
        """
        numbers, places, end = _numbers(requests), requests.among_all, 0
        for after, may_leave in self._cuts(requests.copies, places[-1] + 1 if places else 0):
            begin, end = end, bisect_left(places, after)
            if begin == end:
                yield Finished((), _NONE, may_leave)
                continue
            prompts = requests.prompts[begin:end]
            table = torch.stack([next(numbers) for _ in range(len(prompts) * requests.copies)]).to(self.policy.device)
            with self.policy.weights_cast_once():
                if requests.turns is None:
                    responses = _sample(self.policy, prompts, requests, table, self.check)
                else:
                    responses = _sample_turns(self.policy, requests, begin, prompts, table, self.check)
            yield Finished(range(begin, end), responses, may_leave)

    def _cuts(self, copies: int, end: int) -> Iterator[tuple[int, bool]]:
        """Yield the places up to which groups are sampled together, and whether a caller may leave there."""
        usual, now = USUAL[self.policy.device.type], self.policy.at_once
        whole, size = (max(1, each.responses_at_a_time // copies) for each in (usual, now))
        for first in range(0, end, whole):
            for before in range(first, min(first + whole, end), size):
                after = min(before + size, first + whole)
                yield after, after == first + whole

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, float]:
        """Do nothing: the weights are those of the policy."""
        return {}

    def rest(self) -> None:
        """Do nothing: the cache is freed after each batch."""


def _numbers(requests: Requests) -> Iterator[Tensor]:
    """Yield for each response [room] float64 numbers in [0, 1), one for each token that may be sampled."""
    generator = torch.Generator().manual_seed(number(*requests.place))
    for before, i in pairwise([-1, *requests.among_all]):
        for _ in range(0 if requests.apart else (i - before - 1) * requests.copies):  # those of prompts left out
            torch.rand(requests.room, dtype=torch.float64, generator=generator)
        for j in range(requests.copies):
            if requests.apart:
                generator.manual_seed(number(*requests.place, i, j))
            yield torch.rand(requests.room, dtype=torch.float64, generator=generator)


@torch.no_grad()
def _sample(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    requests: Requests,
    uniforms: Tensor,
    check: Callable[[], None],
) -> Responses:
    device, (total, room), copies = policy.device, uniforms.shape, requests.copies
    hidden, reader = _prefill(policy, prompts, requests, room, check)
    head = policy.head.cast()
    drawn = _draw(head, hidden, uniforms[:, 0], requests, copies)
    ends = torch.tensor(policy.ends, device=device)
    rows = torch.arange(total, device=device)
    alive = torch.ones(total, dtype=torch.bool, device=device)
    found: list[tuple[Tensor, Drawn]] = []
    for t in range(room):
        token = drawn.token
        found.append((rows * room + t, drawn))
        alive &= torch.isin(token, ends, invert=True)
        if t + 1 == room:
            break
        if t % LOOKS[device.type] == 0:
            left = int(alive.sum())
            if left == 0:
                break
            if left <= (1 - EVICT) * len(rows):
                order = reader.cache.keep(alive.nonzero().squeeze(1))
                rows, alive, token = rows[order], alive[order], token[order]
        hidden = reader.read(token, rows, t)
        drawn = _draw(head, hidden, uniforms[rows, t + 1], requests)
    every, places = Drawn.join([drawn for _, drawn in found]), torch.cat([place for place, _ in found])
    table = torch.full((total * room,), -1, device=device).index_copy_(0, places, every.token).view(total, room)
    at_end = torch.isin(table, ends)
    truncated = ~at_end.any(1)
    first = at_end.int().argmax(1)  # a response that has ended may have been read on
    length = torch.where(truncated, room, first + 1)
    generated = (torch.arange(room, device=device) < length[:, None]).flatten()
    order = places.argsort()
    order = order[generated[places[order]]]
    length = length.cpu()
    return Responses(
        ids=every.token[order].cpu(),
        logp=every.logp[order].cpu(),
        entropy=every.entropy[order].cpu(),
        length=length,
        truncated=truncated.cpu(),
        support=None if every.support is None else every.support.select(order).to(torch.device("cpu")),
        experts=None if reader.recorder is None else reader.recorder.experts(length),
    )


@dataclass
class _Row:
    """A response of several turns that is being sampled.

    Attributes:
        prompt: index of its prompt.
        ids: tokens that the model wrote, with log-probability and entropy of each.
        whole: these and the answers, in order.
        given: the tokens of the answers; ``at``: how many tokens the model had written before each.
        waiting: tokens of an answer that are still to be read.
        began: tokens that the model had written before this turn.
        answers: answers so far.
        over: whether it has ended; ``truncated``: by a limit; ``failed``: by a call that failed.
    """

    prompt: int
    ids: list[int] = field(default_factory=list)
    logp: list[float] = field(default_factory=list)
    entropy: list[float] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    at: list[int] = field(default_factory=list)
    waiting: deque[int] = field(default_factory=deque)
    began: int = 0
    answers: int = 0
    over: bool = False
    truncated: bool = False
    failed: bool = False

    def next(self, token: int, logp: float, entropy: float) -> bool:
        """Append the token that is read next, of an answer or else this one; return whether the model wrote it."""
        wrote = not self.waiting
        if wrote:
            self.ids.append(token)
            self.logp.append(logp)
            self.entropy.append(entropy)
        self.whole.append(token if wrote else self.waiting.popleft())
        return wrote

    def read(self, answer: Sequence[int] | None, failed: bool) -> None:
        """Take an answer; ``None`` ends the response."""
        if answer is None:
            self.over, self.failed = True, failed
            return
        self.waiting.extend(answer)
        self.given += answer
        self.at += [len(self.ids)] * len(answer)
        self.answers, self.began = self.answers + 1, len(self.ids)


@torch.no_grad()
def _sample_turns(
    policy: Policy,
    requests: Requests,
    begin: int,
    prompts: Sequence[Sequence[int]],
    uniforms: Tensor,
    check: Callable[[], None],
) -> Responses:
    """Return responses whose turns are answered; all rows read one token in each pass, written or given.

    The random number of a token is that of its place among the tokens that the model writes, so that a response without
    answers is that of :func:`_sample`.
    """
    turns, copies, room = requests.turns, requests.copies, uniforms.shape[1]
    assert turns is not None
    hidden, reader = _prefill(policy, prompts, requests, room + turns.most * turns.room, check)
    every = [_Row(begin + i // copies) for i in range(len(uniforms))]
    rows, read = list(range(len(every))), 0
    supports: list[tuple[Tensor, Support]] = []
    head = policy.head.cast()
    drawn = _draw(head, hidden, uniforms[:, 0], requests, copies)
    while True:
        values = enumerate(zip(rows, *(x.tolist() for x in drawn[:3]), strict=True))
        here = [k for k, (i, *value) in values if not every[i].over and every[i].next(*value)]
        wrote = [every[rows[k]] for k in here]
        if drawn.support is not None:
            places = [rows[k] * room + len(every[rows[k]].ids) - 1 for k in here]
            at, chosen = torch.tensor([places, here], dtype=torch.long, device=policy.device)
            supports.append((at, drawn.support.select(chosen)))
        ended = [row for row in wrote if _turn_ends(row, policy.ends, turns, room)]
        asked = [Ended(row.prompt, row.whole, row.answers + 1) for row in ended]
        for row, answer in zip(ended, turns.answers(asked) if asked else (), strict=True):
            row.read(*answer)
        left = [i for i in rows if not every[i].over]
        if not left:
            return _of_rows(every, _in_order(supports) if supports else None, reader.recorder)
        if len(left) <= (1 - EVICT) * len(rows):
            order = reader.cache.keep(
                torch.tensor([k for k, i in enumerate(rows) if not every[i].over], device=policy.device)
            )
            rows = [rows[k] for k in order.tolist()]
        among = torch.tensor(rows, device=policy.device)
        token = torch.tensor([every[i].whole[-1] for i in rows], device=policy.device)
        hidden = reader.read(token, among, read)
        place = torch.tensor([min(len(every[i].ids), room - 1) for i in rows], device=policy.device)
        drawn = _draw(head, hidden, uniforms[among, place], requests)
        read += 1


def _turn_ends(row: _Row, ends: Sequence[int], turns: Turns, room: int) -> bool:
    """Return whether the last token of a row ends a turn that is to be answered; end the row at a limit."""
    token, length = row.ids[-1], len(row.ids)
    full = length == room
    if token in ends or token in turns.marks:
        if full or row.answers == turns.most:
            row.over, row.truncated = True, token not in ends
        return not row.over
    if full or (turns.longest is not None and length - row.began == turns.longest):
        row.over = row.truncated = True
    return False


def _of_rows(every: Sequence[_Row], support: Support | None, recorder: Recorder | None) -> Responses:
    given = Given(
        ids=torch.tensor([x for row in every for x in row.given], dtype=torch.long),
        at=torch.tensor([x for row in every for x in row.at], dtype=torch.long),
        size=torch.tensor([len(row.given) for row in every]),
        answers=torch.tensor([row.answers for row in every]),
        failed=torch.tensor([row.failed for row in every]),
    )
    return Responses(
        ids=torch.tensor([x for row in every for x in row.ids]),
        logp=torch.tensor([x for row in every for x in row.logp]),
        entropy=torch.tensor([x for row in every for x in row.entropy]),
        length=torch.tensor([len(row.ids) for row in every]),
        truncated=torch.tensor([row.truncated for row in every]),
        support=support,
        given=given,
        experts=None if recorder is None else recorder.experts(torch.tensor([len(row.whole) for row in every])),
    )


def _in_order(parts: Sequence[tuple[Tensor, Support]]) -> Support:
    """Return the supports of tokens, response after response, on the CPU.

    Args:
        parts: [n] places of tokens in the table of all, with their supports.
    """
    places, every = torch.cat([at for at, _ in parts]), Support.join([support for _, support in parts])
    return every.select(places.argsort()).to(torch.device("cpu"))


@dataclass(frozen=True)
class _Reader:
    """Reads responses token by token.

    Attributes:
        policy: what reads them; ``decoder``: how, if not by its own modules.
        cache: keys and values of those that are left.
        prompt: [N] tokens before each response.
        recorder: records experts, if asked.
        check: called before each pass of the decoder.
    """

    policy: Policy
    decoder: Decoder | None
    cache: KeyCache
    prompt: Tensor
    recorder: Recorder | None
    check: Callable[[], None]

    def read(self, token: Tensor, rows: Tensor, before: int) -> Tensor:
        """Return the hidden states [n, H] behind one more token [n] of each of the responses ``rows``."""
        self.cache.advance()
        positions = self.prompt[rows] + before
        if self.decoder is not None:
            self.check()
            return self.decoder.hidden(token, positions, self.cache)
        if self.recorder is None:
            return self.policy.hidden(token, positions, self.cache)
        self.cache.choice = Choice()
        hidden = self.policy.hidden(token, positions, self.cache)
        self.recorder.read(rows, self.cache.choice.own)
        return hidden


def _prefill(
    policy: Policy, prompts: Sequence[Sequence[int]], requests: Requests, room: int, check: Callable[[], None]
) -> tuple[Tensor, _Reader]:
    """Return the last hidden states [P, H] of some prompts, and what reads the responses."""
    device, copies = policy.device, requests.copies
    lengths = [len(p) for p in prompts]
    choice = Choice() if requests.with_experts else None
    layout = replace(pack(lengths, [()] * len(prompts), device, keep_keys=True), choice=choice)
    ids = torch.tensor([x for p in prompts for x in p], device=device)
    last = torch.tensor(lengths, device=device).cumsum(0) - 1
    hidden = policy.hidden(ids, layout.positions, layout, at=last)
    cache = KeyCache(layout, lengths, copies, room)
    prompt = torch.tensor(lengths, device=device).repeat_interleave(copies)
    recorder = None if choice is None else Recorder(lengths, copies, choice.own)
    return hidden, _Reader(policy, Decoder.of(policy, max(lengths) + room), cache, prompt, recorder, check)


class Drawn(NamedTuple):
    """Tokens [n], their log-probability and entropy [n], nats, and what they were chosen from, if that is asked for."""

    token: Tensor
    logp: Tensor
    entropy: Tensor
    support: Support | None = None

    @staticmethod
    def join(parts: Sequence[Drawn]) -> Drawn:
        """Return the tokens of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        supports = [p.support for p in parts if p.support is not None]
        token, logp, entropy = (torch.cat(x) for x in zip(*(p[:3] for p in parts), strict=True))
        return Drawn(token, logp, entropy, Support.join(supports) if supports else None)


def _draw(head: Head, hidden: Tensor, uniform: Tensor, requests: Requests, copies: int = 1) -> Drawn:
    """Return what :func:`draw` does for ``copies`` of each hidden state [n, H], few logits at a time."""
    size = max(1, head.rows() // copies)
    parts = []
    for i in range(0, len(hidden), size):
        mine = uniform[i * copies : (i + size) * copies]
        parts.append(
            draw(
                _copied(head.logits(hidden[i : i + size]), copies),  # no name: it is freed in there
                mine,
                requests.temperature,
                requests.top_p,
                requests.top_k,
                record=requests.with_support,
            )
        )
    return Drawn.join(parts)


def _copied(logits: Tensor, copies: int) -> Tensor:
    return logits if copies == 1 else logits.repeat_interleave(copies, 0)


def draw(
    logits: Tensor,
    uniform: Tensor,
    temperature: float,
    top_p: float = 1.0,
    top_k: int | None = None,
    *,
    record: bool = False,
) -> Drawn:
    """Return tokens drawn from logits [n, V].

    With ``top_p`` below 1, or ``top_k``, they come from the tokens that :func:`.support.truncated` leaves, and
    log-probability and entropy are those of the distribution over these. ``record`` says which they are.
    """
    words, scaled = logits.shape[1], logits if temperature == 1 else logits / temperature
    del logits  # 4 bytes for each word of each row, and the caller has kept none
    logp = scaled.log_softmax(-1)
    p, support = logp.exp(), None
    if top_p == 1 and top_k is None:
        del scaled
        drawn = p
        entropy = -(p * logp.clamp_min(torch.finfo(logp.dtype).min)).sum(-1)
    else:
        drawn = truncated(p, top_p, top_k)
        logp, entropy = restricted(scaled, drawn == 0)
        if record:
            kept = drawn > 0
            support = Support(kept.nonzero()[:, 1].int(), kept.sum(-1))
    cumulative = drawn.cumsum(-1, dtype=torch.float64)
    threshold = uniform[:, None] * cumulative[:, -1:]
    token = torch.searchsorted(cumulative, threshold, right=True).squeeze(1).clamp_max(words - 1)
    return Drawn(token, logp.gather(1, token[:, None]).squeeze(1), entropy, support)
