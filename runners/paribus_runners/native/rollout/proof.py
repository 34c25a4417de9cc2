"""The proof that a sampler with weights of its own has those of the learner: both score the same samples."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from paribus.errors import StaleSampler
from paribus_runners.native.log_probabilities import score_all
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.sampler import Finished, Requests, Sampler, complete

LARGEST, MEAN = "mismatch/sync_logp_abs_diff_max", "mismatch/sync_logp_abs_diff_mean"
STILL = 0.1
"""A sampler stands still if its log-probabilities move by less than this part of what the learner's move by."""


@dataclass(frozen=True)
class Bounds:
    """How far sampler and learner may be apart when both have the same weights; nats.

    Attributes:
        largest: bound on any token.
        mean: bound on the mean over tokens.
        least: root mean square of the learner's movement below which rounding hides whether the sampler moved as well.
    """

    largest: float
    mean: float
    least: float

    @classmethod
    def of(cls, *types: torch.dtype) -> Bounds:
        """Return the bounds for the types in which learner and sampler compute."""
        exact = all(x == torch.float32 for x in types)
        return cls(1e-3, 1e-3, 1e-6) if exact else cls(math.inf, 0.1, 1e-4)


class Scored(NamedTuple):
    """Tokens [T] with their log-probabilities by sampler and learner, float64, nats."""

    ids: Tensor
    sampler: Tensor
    learner: Tensor


class ProvenSampler:
    """A sampler that shows after each load that it has the weights. Implements :class:`.sampler.Sampler`.

    It samples from the same prompts with the same random numbers each time, and the learner scores what comes out.
    Two things show weights that were not taken over. The two disagree by more than rounding explains. Or, after an
    update so small that the samples are the same and the two still agree, the learner's log-probabilities of these
    samples have moved and the sampler's have not.

    Args:
        inner: what samples.
        policy: the learner's policy, whose weights it gets.
        probe: what to sample after each load.
        bounds: how far the two may be apart.
    """

    def __init__(self, inner: Sampler, policy: Policy, probe: Requests, bounds: Bounds) -> None:
        self._inner, self._policy, self._probe, self._bounds = inner, policy, probe, bounds
        self._before: Scored | None = None

    @property
    def all_at_once(self) -> bool:
        """As the inner sampler."""
        return self._inner.all_at_once

    def sample(self, requests: Requests) -> Iterator[Finished]:
        """Sample, as the inner sampler does."""
        return self._inner.sample(requests)

    def load(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, float]:
        """Load the weights and prove it; return how far sampler and learner are apart.

        Raises:
            StaleSampler: the sampler does not have the learner's weights.
        """
        found = self._inner.load(weights)
        responses = complete(self._inner, self._probe)
        logp = score_all(self._policy, self._probe.prompts, responses, self._probe.temperature).logp
        scored = Scored(responses.ids, responses.logp.double(), logp.double())
        before, self._before = self._before, scored
        return {**found, **prove(scored, before, self._bounds)}

    def rest(self) -> None:
        """Rest, as the inner sampler does."""
        self._inner.rest()


def prove(now: Scored, before: Scored | None, bounds: Bounds) -> dict[str, float]:
    """Return the largest and the mean difference between sampler and learner.

    A learner that is not finite has no weights to compare with, so nothing is proven.

    Args:
        now: samples after the weights were loaded.
        before: the same after the load before; ``None`` for the first.
        bounds: how far the two may be apart.

    Raises:
        StaleSampler: the sampler does not have the learner's weights.
    """
    apart = (now.learner - now.sampler).abs()
    largest, mean = float(apart.max()), float(apart.mean())
    if now.learner.isfinite().all():
        if not (largest <= bounds.largest and mean <= bounds.mean):
            raise StaleSampler(_message(_distance(len(apart), largest, mean, bounds)))
        if before is not None and torch.equal(now.ids, before.ids):
            learner, sampler = _movement(now.learner, before.learner), _movement(now.sampler, before.sampler)
            if learner > bounds.least and sampler < STILL * learner:
                raise StaleSampler(_message(_stillness(len(apart), learner, sampler)))
    return {LARGEST: largest, MEAN: mean}


def _distance(tokens: int, largest: float, mean: float, bounds: Bounds) -> str:
    limit = f"the mean may be {bounds.mean:g}" if math.isinf(bounds.largest) else f"any may be {bounds.largest:g}"
    return (
        f"its log-probabilities of the same {tokens} tokens differ by {mean:.2g} in the mean and {largest:.2g} at "
        f"most; {limit}"
    )


def _stillness(tokens: int, learner: float, sampler: float) -> str:
    return (
        f"an update moved the learner's log-probabilities of the same {tokens} tokens by {learner:.2g} (root mean "
        f"square), and the sampler's by {sampler:.2g}"
    )


def _movement(now: Tensor, before: Tensor) -> float:
    return float((now - before).square().mean().sqrt())


def _message(evidence: str) -> str:
    return (
        f"the sampler does not have the learner's weights: {evidence}. `paribus retry` starts it again from the newest "
        "checkpoint; if it happens again, set `rollout.engine: torch`, and report model and versions"
    )
