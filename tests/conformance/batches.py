"""The fixed, seeded batches on which the objective is compared with other libraries."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

LIMIT = 40
"""Generation limit of all batches, tokens."""
GARBAGE = -3.0
"""What stands behind the end of a response: finite, and seen at once if it leaks into a result."""
DRIFTS = (1e-4, 0.02, 0.15, 0.5, 0.8)
"""Scales of log new/old of a response, nats: from inside the band of GSPO to outside of that of dual clip."""


@dataclass(frozen=True)
class Batch:
    """P groups of G responses, padded on the right to W tokens; all values are exact in float32.

    Attributes:
        name: what a row of the table calls it.
        size: G.
        score: [N] the task's score.
        second: [N] another reward of the same responses, 1 or -1.
        correct: [N] correctness.
        length: [N] tokens that the model wrote.
        truncated: [N] whether the length limit ended the response.
        new: [N, W] log-probability under the policy that is updated.
        old: [N, W] the same under the learner before the updates.
        sampler: [N, W] the same under the sampler.
        reference: [N, W] the same under the reference.
        entropy: [N, W] entropy of the policy.
        value: [N, W] the critic's value.
        written: [N, W] True on the tokens that the model wrote, where an environment wrote others between them.
    """

    name: str
    size: int
    score: Tensor
    second: Tensor
    correct: Tensor
    length: Tensor
    truncated: Tensor
    new: Tensor
    old: Tensor
    sampler: Tensor
    reference: Tensor
    entropy: Tensor
    value: Tensor
    written: Tensor | None = None

    @property
    def rows(self) -> int:
        """N."""
        return len(self.score)

    @property
    def groups(self) -> int:
        """P."""
        return self.rows // self.size

    @property
    def group(self) -> Tensor:
        """[N] index of the group of each response."""
        return torch.arange(self.rows) // self.size

    @property
    def value_now(self) -> Tensor:
        """[N, W] the value under the critic that is updated."""
        return self.value + self.new - self.old

    @property
    def mask(self) -> Tensor:
        """[N, W] True on the tokens of a response that the model wrote."""
        return torch.arange(self.new.shape[1]) < self.length[:, None] if self.written is None else self.written

    @property
    def whole(self) -> Tensor:
        """[N] tokens of a response, with those that an environment wrote."""
        place = torch.arange(1, self.new.shape[1] + 1)
        return (self.mask * place).amax(1)

    @property
    def text(self) -> Tensor:
        """[N, W] True on all of these."""
        return torch.arange(self.new.shape[1]) < self.whole[:, None]

    def reward(self, kind: str) -> Tensor:
        """Return [N] the reward under a map of :class:`paribus.recipe.factors.Reward`."""
        y = self.correct.double()
        return {"scalar": self.score, "binary01": y, "pm1": 2 * y - 1}[kind]


def make(name: str, seed: int, groups: int, size: int, longest: int, *, binary: bool = True, far: float = 1.0) -> Batch:
    """Draw a batch; the second group is all right and the third all wrong if there are that many.

    Args:
        name: its name.
        seed: of everything that is drawn.
        groups: P.
        size: G.
        longest: W; every fifth response has it, and is truncated where it is the limit.
        binary: scores 0 and 1, else any number.
        far: multiplies log new/old and log new/reference.
    """
    draw = torch.Generator().manual_seed(seed)
    rows = groups * size

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw)

    length = torch.randint(1, longest + 1, (rows,), generator=draw)
    length[torch.rand(rows, generator=draw) < 0.2] = longest
    correct = torch.rand(rows, generator=draw) < 0.4
    if size > 1:
        correct[::size], correct[1::size] = True, False
    if groups > 3:
        correct[size : 2 * size], correct[2 * size : 3 * size] = True, False
    score = correct.float() if binary else normal(rows)
    old = -0.05 - far * normal(rows, longest).abs()
    drift = torch.tensor(DRIFTS)[torch.randint(len(DRIFTS), (rows, 1), generator=draw)]
    new = (old + far * drift * (normal(rows, 1) / 4 + normal(rows, longest))).clamp_max(-1e-3)
    fields = {
        "new": new,
        "old": old,
        "sampler": old - 0.4 * normal(rows, longest),
        "reference": new - far * 0.5 * normal(rows, longest),
        "entropy": normal(rows, longest).abs(),
        "value": 0.5 + 0.3 * normal(rows, longest),
    }
    pad = torch.arange(longest) >= length[:, None]
    return Batch(
        name=name, size=size, score=score.double(), second=normal(rows).sign().double(), correct=correct, length=length,
        truncated=length == LIMIT, **{k: v.masked_fill(pad, GARBAGE).double() for k, v in fields.items()},
    )  # fmt: skip


def before_an_update(batch: Batch) -> Batch:
    """Return the batch with the old policy as the one that is updated, so that every ratio is 1."""
    return replace(batch, new=batch.old.clone())


def answered(batch: Batch, seed: int) -> Batch:
    """Return the batch under the name ``turns``, with answers of an environment before some tokens, as holes."""
    draw = torch.Generator().manual_seed(seed)
    shape = batch.mask.shape
    before = torch.randint(1, 5, shape, generator=draw) * (torch.rand(shape, generator=draw) < 0.15) * batch.mask
    before[:, 0] = 0
    place = (before.cumsum(1) + torch.arange(shape[1])).clamp_min(0)
    width = int(place[batch.mask].max()) + 1
    rows = torch.arange(batch.rows)[:, None].expand(shape)[batch.mask]
    written = torch.zeros(batch.rows, width, dtype=torch.bool)
    written[rows, place[batch.mask]] = True
    names = ("new", "old", "sampler", "reference", "entropy", "value")
    wide = {k: torch.full(written.shape, GARBAGE, dtype=torch.float64) for k in names}
    return replace(
        batch, name="turns", written=written,
        **{k: v.masked_scatter(written, getattr(batch, k)[batch.mask]) for k, v in wide.items()},
    )  # fmt: skip


BATCHES = {
    b.name: b
    for b in (
        make("eight", 1, groups=6, size=8, longest=24),
        make("two", 2, groups=12, size=2, longest=24),
        make("scalar", 3, groups=5, size=4, longest=24, binary=False),
        make("limit", 4, groups=4, size=8, longest=LIMIT),
        make("alone", 5, groups=8, size=1, longest=24),
        make("far", 10, groups=4, size=4, longest=24, far=9.0),
        before_an_update(make("fresh", 11, groups=6, size=8, longest=24)),
        answered(make("turns", 12, groups=6, size=8, longest=24), 13),
    )
}
"""By name. ``alone``: groups of one; ``far``: old policy and reference are far away; ``fresh``: no update was made yet;
``turns``: masks have holes. Rows ask for these four by name."""
ORDINARY = ("eight", "two", "scalar", "limit")
"""The batches of a row that names none."""
