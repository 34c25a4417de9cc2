"""The rollouts of one step: responses, verdicts, and what the filter kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from paribus.recipe import factors as f
from paribus_runners.native.objective import kl
from paribus_runners.native.objective.advantage import Scored
from paribus_runners.native.responses import Responses


@dataclass(frozen=True)
class Rollouts:
    """All responses of a step, including those that the filter dropped.

    Attributes:
        prompts: tokens of the prompt of each of P groups.
        problems: identity of the prompt of each group, the same at every visit.
        born: [P] optimizer updates that the policy had seen when it sampled the group.
        carried: [P] whether the group is surplus that was sampled for an earlier step.
        responses: N responses, groups one after the other.
        scored: verdicts, and everything else that rewards depend on.
        reference: [T] log-probabilities under the reference; ``None`` without one.
        steps: [T, F] what functions of steps returned for the step that ends at each token, nan where none ends or the
            function is of responses; ``None`` without functions of steps.
        kept: [N] which responses take part in the baseline: filter and length rule kept them.
        rounds: sampling rounds.
        seconds_sampling: seconds spent in sampling.
        seconds_reward: seconds spent in verification.
    """

    prompts: list[list[int]]
    problems: list[str]
    born: Tensor
    carried: Tensor
    responses: Responses
    scored: Scored
    reference: Tensor | None
    kept: Tensor
    rounds: int
    seconds_sampling: float
    seconds_reward: float
    steps: Tensor | None = None

    @property
    def fresh(self) -> Tensor:
        """[N] True on the responses that were sampled for this step."""
        return ~self.carried[self.scored.group]

    def groups(self, chosen: Sequence[int]) -> Rollouts:
        """Return only the groups ``chosen``, with no rounds and no seconds."""
        size = len(self.responses) // len(self.prompts)
        places = torch.tensor(chosen, dtype=torch.long)
        rows = (places[:, None] * size + torch.arange(size)).flatten()
        return Rollouts(
            prompts=[self.prompts[i] for i in chosen],
            problems=[self.problems[i] for i in chosen],
            born=self.born[places],
            carried=self.carried[places],
            responses=self.responses.select(rows),
            scored=Scored(
                group=torch.arange(len(chosen)).repeat_interleave(size),
                groups=len(chosen),
                **{name: getattr(self.scored, name)[rows] for name in PER_RESPONSE},
            ),
            reference=None if self.reference is None else self.reference[self.responses.places(rows)],
            kept=self.kept[rows],
            rounds=0,
            seconds_sampling=0.0,
            seconds_reward=0.0,
            steps=None if self.steps is None else self.steps[self.responses.places(rows)],
        )

    @staticmethod
    def join(parts: Sequence[Rollouts]) -> Rollouts:
        """Return the groups of all parts, one part after the other."""
        if len(parts) == 1:
            return parts[0]
        offsets = [sum(p.scored.groups for p in parts[:i]) for i in range(len(parts))]
        steps = [p.steps for p in parts if p.steps is not None]
        references = [p.reference for p in parts if p.reference is not None]
        return Rollouts(
            prompts=[x for p in parts for x in p.prompts],
            problems=[x for p in parts for x in p.problems],
            born=torch.cat([p.born for p in parts]),
            carried=torch.cat([p.carried for p in parts]),
            responses=Responses.concat([p.responses for p in parts]),
            scored=Scored(
                group=torch.cat([p.scored.group + o for p, o in zip(parts, offsets, strict=True)]),
                groups=sum(p.scored.groups for p in parts),
                **{name: torch.cat([getattr(p.scored, name) for p in parts]) for name in PER_RESPONSE},
            ),
            reference=torch.cat(references) if references else None,
            kept=torch.cat([p.kept for p in parts]),
            rounds=sum(p.rounds for p in parts),
            seconds_sampling=sum(p.seconds_sampling for p in parts),
            seconds_reward=sum(p.seconds_reward for p in parts),
            steps=torch.cat(steps) if steps else None,
        )


PER_RESPONSE = tuple(x.name for x in fields(Scored) if x.name not in ("group", "groups"))
"""The fields of :class:`Scored` with one value a response."""


def charges(level: f.Kl, responses: Responses, reference: Tensor) -> Tensor:
    """Return [T] the KL penalty of each token in the reward, float64.

    Args:
        level: the KL term.
        responses: the responses, with their log-probabilities from sampling.
        reference: [T] log-probabilities under the reference.
    """
    return kl.charge(level, responses.logp.double(), reference.double())
