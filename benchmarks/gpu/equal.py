"""Whether the code that trains computes on this device what a plain forward and backward pass of Transformers does.

    PYTHONPATH=benchmarks python -m gpu.equal [--out FOLDER] [--minutes N] [--tiny]

The reference is Transformers' own model with the same weights in float32, one sequence at a time, with its plain
attention and all logits. Compared with it are packed sequences whose group shares a prompt, the head in pieces (by
operations of torch, and by kernels in Triton), and bfloat16 by autocast; each beside the error that Transformers makes
with its fused attention in that type. A ratio above the bound, or sampler and learner that differ, make the row wrong
and the exit status 1.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gpu.cases import EQUAL
from gpu.measure import Report, Values, need_kernels, options_of, parser_of
from gpu.models import lengths, let_end, model_of, policy_of, texts
from paribus_runners.native.log_probabilities import score, score_all
from paribus_runners.native.policy import Policy, best_device
from paribus_runners.native.rollout.sampler import Requests, complete
from paribus_runners.native.rollout.torch import TorchSampler

TEMPERATURE = 0.8
RATIO = {"float32": 4.0, "bfloat16": 2.0}
"""Our error may be so many times that of Transformers: sums in another order err alike, a mistake more. In float32 the
peer's error is that of one kernel of attention alone, so it may be small."""
FLOOR = 2e-5
"""Relative errors below this are rounding of float32 in many blocks, whatever the peer's is."""
SPLIT = {"float32": 1e-5, "bfloat16": 2e-2}
"""Largest relative difference between the gradient of several passes and of one."""
MEAN = {"float32": 1e-4, "bfloat16": 3e-2}
"""Largest mean difference of the log-probabilities of sampler and learner, nats."""
Dtype = Literal["float32", "bfloat16"]
DTYPES: tuple[Dtype, ...] = ("float32", "bfloat16")


@dataclass(frozen=True)
class Batch:
    """Prompts, the responses to each, and the weight of each response token in the loss."""

    prompts: list[list[int]]
    groups: list[list[list[int]]]
    weight: Tensor

    @classmethod
    def drawn(cls, vocabulary: int, *, prompts: int, copies: int, mean: int) -> Batch:
        """Return random tokens in log-normal lengths."""
        asked = texts(lengths(prompts, mean / 2, 4 * mean, seed=1), vocabulary, seed=1)
        answers = texts(lengths(prompts * copies, mean, 4 * mean, seed=2), vocabulary, seed=2)
        groups = [answers[i * copies : (i + 1) * copies] for i in range(prompts)]
        weight = torch.randn(sum(map(len, answers)), generator=torch.Generator().manual_seed(3))
        return cls(asked, groups, weight.to(best_device()) / len(weight))

    def sequences(self) -> Iterator[tuple[list[int], list[int]]]:
        """Yield the prompt and each response."""
        for prompt, group in zip(self.prompts, self.groups, strict=True):
            yield from ((prompt, response) for response in group)


@dataclass(frozen=True)
class Found:
    """Log-probabilities [T], nats, and the gradient of their weighted sum by parameter."""

    logp: Tensor
    gradient: dict[str, Tensor]


def plain(model: Any, batch: Batch, dtype: Dtype) -> Found:
    """Return what Transformers computes, a sequence at a time."""
    model.zero_grad(set_to_none=True)
    found, done = [], 0
    device = best_device()
    low = torch.autocast(device.type, torch.bfloat16) if dtype == "bfloat16" else contextlib.nullcontext()
    for prompt, response in batch.sequences():
        ids = torch.tensor([prompt + response], device=device)
        with low:
            logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
        logp = (logits.float() / TEMPERATURE).log_softmax(-1).gather(1, ids[0, len(prompt) :, None]).squeeze(1)
        (logp * batch.weight[done : done + len(logp)]).sum().backward()
        done += len(logp)
        found.append(logp.detach())
    return Found(torch.cat(found), gradient_of(model))


def native(policy: Policy, batch: Batch, passes: int = 1) -> Found:
    """Return what the learner computes, in so many forward passes whose gradients add up."""
    policy.model.zero_grad(set_to_none=True)
    found, done, count = [], 0, len(batch.prompts)
    for i in range(passes):
        here = slice(i * count // passes, (i + 1) * count // passes)
        logp = score(policy, batch.prompts[here], batch.groups[here], TEMPERATURE, accumulate=True).logp
        (logp * batch.weight[done : done + len(logp)]).sum().backward()
        done += len(logp)
        found.append(logp.detach())
    return Found(torch.cat(found), gradient_of(policy.model))


def gradient_of(model: Any) -> dict[str, Tensor]:
    """Return the gradients by name of their parameter, taken from the model."""
    found = {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


def distance(mine: Found, exact: Found) -> tuple[float, float, float]:
    """Return the relative error of log-probabilities and of the gradient, and the largest error of the former, nats."""
    difference = mine.logp - exact.logp
    if mine.gradient.keys() != exact.gradient.keys():
        raise ValueError(f"gradients of other parameters: {sorted(mine.gradient.keys() ^ exact.gradient.keys())[:3]}")
    off = sum(float((mine.gradient[n] - g).double().square().sum()) for n, g in exact.gradient.items())
    size = sum(float(g.double().square().sum()) for g in exact.gradient.values())
    return float(difference.norm() / exact.logp.norm()), (off / size) ** 0.5, float(difference.abs().max())


def beside(ours: float, peer: float, dtype: Dtype) -> dict[str, Any]:
    """Return an error beside the peer's, with what is wrong with it."""
    values: dict[str, Any] = {"error": ours, "peer": peer, "ratio": ours / max(peer, 1e-12)}
    if not ours <= max(FLOOR, RATIO[dtype] * peer):
        values["wrong"] = f"more than {RATIO[dtype]:g} times the error of Transformers"
    return values


Peers = tuple[Found, dict[Dtype, tuple[float, float, float]]]
"""What is exact, and the errors that Transformers makes."""


def peers_of(size: str, batch: Batch) -> Peers:
    """Return what Transformers computes in float32, and how far it is from that with its fused attention."""
    model = model_of(size, implementation="eager")
    exact = plain(model, batch, "float32")
    model.set_attn_implementation("sdpa")
    return exact, {dtype: distance(plain(model, batch, dtype), exact) for dtype in DTYPES}


def with_kernels(size: str, batch: Batch) -> dict[str, Values]:
    """Return the rows of log-probabilities and gradients with kernels in Triton.

    Raises:
        Unavailable: they cannot run here.
    """
    need_kernels()
    exact, peers = peers_of(size, batch)
    rows: dict[str, Values] = {}
    for dtype, peer in peers.items():
        found = native(policy_of(size, dtype, triton=True), batch)
        rows |= against(f", head by Triton, {dtype}", distance(found, exact), peer, dtype)
    return rows


def against(name: str, ours: Sequence[float], peer: Sequence[float], dtype: Dtype) -> dict[str, Values]:
    """Return the rows of log-probabilities and gradient, whose names end in ``name``, from :func:`distance`."""
    logp = {**beside(ours[0], peer[0], dtype), "largest_nats": ours[2]}
    return {f"log-probabilities{name}": logp, f"gradient{name}": beside(ours[1], peer[1], dtype)}


def compared(size: str, batch: Batch) -> dict[str, Values]:
    """Return the rows of log-probabilities and gradients."""
    exact, peers = peers_of(size, batch)
    rows: dict[str, Values] = {}
    for dtype, peer in peers.items():
        policy = policy_of(size, dtype)
        once = native(policy, batch)
        rows |= against(f", {dtype}", distance(once, exact), peer, dtype)
        split = distance(native(policy, batch, len(batch.prompts)), once)[1]
        wrong = {} if split <= SPLIT[dtype] else {"wrong": f"above {SPLIT[dtype]:g}"}
        rows[f"gradient in several passes, {dtype}"] = {"error": split, **wrong}
    return rows


def sampled(size: str, dtype: Dtype, batch: Batch, *, copies: int, room: int) -> Values:
    """Return how far the log-probabilities of the sampler are from the learner's for the same tokens."""
    policy = policy_of(size, dtype)
    let_end(policy, room / 2)
    requests = Requests(batch.prompts, copies, room, TEMPERATURE, ("equal",))
    responses = complete(TorchSampler(policy), requests)
    learner = score_all(policy, batch.prompts, responses, TEMPERATURE).logp
    difference = (responses.logp - learner).abs()
    values: dict[str, Any] = {"mean_nats": float(difference.mean()), "largest_nats": float(difference.max())}
    if not values["mean_nats"] <= MEAN[dtype]:
        values["wrong"] = f"mean above {MEAN[dtype]:g} nats"
    return values


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and return 1 if a row is wrong."""
    options = options_of(parser_of("equal", main.__doc__).parse_args(arguments))
    report, size = Report("equal", options), "tiny" if options.tiny else "0.5b"
    vocabulary = model_of("tiny").config.vocab_size if options.tiny else 151_936
    shape = {"prompts": 3, "copies": 3, "mean": 12} if options.tiny else {"prompts": 4, "copies": 4, "mean": 96}
    batch = Batch.drawn(vocabulary, **shape)
    report.run(EQUAL[:6], lambda: compared(size, batch))
    copies, room = (4, 16) if options.tiny else (16, 256)
    for dtype in SPLIT:
        work = lambda dtype=dtype: sampled(size, dtype, batch, copies=copies, room=room)  # noqa: E731
        report.run(f"sampler and learner, {dtype}", work)
    report.run(EQUAL[8:], lambda: with_kernels(size, batch))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
