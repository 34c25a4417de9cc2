"""Where the steps of a response end, in tokens: reward functions count characters."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

import torch
from torch import Tensor

from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Responses, written
from paribus_runners.rewards.functions import Steps


def step_rewards(policy: Policy, responses: Responses, steps: Sequence[Sequence[Steps]]) -> Tensor:
    """Return [T, F] the reward of the step that ends at each token, nan where none ends.

    A step ends at the token that completes its last character, or, if that is the last of the response, at the last
    token, so that an end mark belongs to it. A step that ends in an answer of an environment ends at the token before.

    Args:
        policy: its tokenizer wrote the texts.
        responses: N responses.
        steps: [N][F] the steps of each response by function; none of functions of responses.
    """
    found = torch.full((len(responses.ids), len(steps[0]) if steps else 0), torch.nan, dtype=torch.float64)
    first = responses.first.tolist()
    for row, (tokens, by_function) in enumerate(zip(responses.tokens(), steps, strict=True)):
        if not any(by_function):
            continue
        own = written(tokens)
        size = len(policy.decode([tokens])[0])
        for column, ends in enumerate(by_function):
            for end, value in ends:
                place = len(own) - 1
                if end < size:
                    place = max(0, bisect_left(own, _token(policy, tokens, end) + 1) - 1)
                before = found[first[row] + place, column]
                found[first[row] + place, column] = value + before.nan_to_num()
    return found


def _token(policy: Policy, tokens: Sequence[int], end: int) -> int:
    """Return the place of the token that completes the first ``end`` characters."""
    return bisect_left(range(1, len(tokens) + 1), end, key=lambda count: policy.characters(tokens[:count]))
