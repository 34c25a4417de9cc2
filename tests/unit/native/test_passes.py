"""Forward passes have no more tokens than their limit, whatever is cut, and every response is in one of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native import log_probabilities, update
from paribus_runners.native.batch import Batch
from paribus_runners.native.critic import Critic
from paribus_runners.native.limits import Limits
from paribus_runners.native.log_probabilities import by_prompt, score_all
from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout.sampler import Requests, complete
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.tasks import Chain

COPIES = 4


def responses_of(lengths: list[int]) -> Responses:
    """Return responses of these lengths, each token another number."""
    total = sum(lengths)
    return Responses(
        ids=torch.arange(total),
        logp=torch.zeros(total),
        entropy=None,
        length=torch.tensor(lengths),
        truncated=torch.zeros(len(lengths), dtype=torch.bool),
    )


@given(
    prompts=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    size=st.integers(1, 5),
    most=st.integers(1, 120),
    data=st.data(),
)
def test_by_prompt_cuts_groups_that_are_too_large_and_no_others(
    prompts: list[int], size: int, most: int, data: Any
) -> None:
    """All responses in their order, each behind its prompt; a pass above the limit has one response."""
    lengths = [data.draw(st.integers(1, 40)) for _ in range(len(prompts) * size)]
    responses = responses_of(lengths)
    given_prompts = [[i] * n for i, n in enumerate(prompts)]
    seen: list[tuple[int, list[int]]] = []
    whole: dict[int, int] = {}
    for some, groups in by_prompt(given_prompts, responses, most):
        cost = sum(len(p) + sum(len(r) - 1 for r in group) for p, group in zip(some, groups, strict=True))
        assert cost <= most or sum(map(len, groups)) == 1
        for prompt, group in zip(some, groups, strict=True):
            seen += [(prompt[0], response) for response in group]
            whole[prompt[0]] = whole.get(prompt[0], 0) + 1
    assert seen == [(i // size, tokens) for i, tokens in enumerate(responses.tokens())]
    for i, parts in whole.items():
        cost = prompts[i] + sum(n - 1 for n in lengths[i * size : (i + 1) * size])
        assert (parts == 1) == (cost <= most or size == 1)


@given(
    groups=st.lists(
        st.tuples(st.integers(1, 30), st.lists(st.booleans(), min_size=4, max_size=4)), min_size=1, max_size=6
    ),
    most=st.integers(1, 120),
    pairs=st.booleans(),
    data=st.data(),
)
def test_an_update_counts_a_prompt_once_in_each_pass(
    made: Any, groups: list[tuple[int, list[bool]]], most: int, pairs: bool, data: Any
) -> None:
    """Also where few responses to it are trained on: the tokens of a pass are those that it reads."""
    recipe = Recipe()
    lengths = [data.draw(st.integers(1, 40)) for _ in range(4 * len(groups))]
    rollouts = replace(
        made(recipe, [[True, False, True, False]] * len(groups), lengths=lengths),
        prompts=[[1] * n for n, _ in groups],
    )
    if pairs:
        recipe = recipe.model_copy(update={"loss": f.PairDpo()})
    chosen = [[True, True, False, False] if pairs else kept for _, kept in groups]
    rows = torch.tensor([x for kept in chosen for x in kept]).nonzero().squeeze(1)
    batch, unit = Batch(rows, len(rows)), 2 if pairs else 1
    mine = range(len(rows) // unit)
    cut = update._cut(recipe, rollouts, batch, mine, most)
    assert [i for part in cut for i in part] == list(mine)
    costs = []
    for part in cut:
        members = [int(rows[i * unit + j]) for i in part for j in range(unit)]
        read = sum(lengths[i] - 1 for i in members) + sum(groups[g][0] for g in {i // 4 for i in members})
        assert read <= most or len(part) == 1
        costs.append(read)
    for before, part in zip(costs, cut[1:], strict=False):  # the next one would not have fitted
        first = [int(rows[part[0] * unit + j]) for j in range(unit)]
        assert before + sum(lengths[i] - 1 for i in first) + groups[first[0] // 4][0] > most


@pytest.mark.parametrize("tokens", [1, 30, 60])
def test_scores_do_not_depend_on_how_passes_are_cut(
    mixture_model: Any, monkeypatch: pytest.MonkeyPatch, tokens: int
) -> None:
    """Log-probabilities, entropies, routers and experts, with replayed experts too, and the values of a critic."""
    policy = Policy.load(str(mixture_model), None, "float32")
    encoded = policy.encode([p.prompt for p in Chain().training(0, 1, 0, 4)])
    prompts = [encoded[0], encoded[1][6:], encoded[2], encoded[3][3:]]
    responses = complete(TorchSampler(policy), Requests(prompts, COPIES, 10, 0.8, ("test",), with_experts=True))
    small = replace(policy, limits=Limits(responses_at_a_time=512, tokens_a_pass=tokens))
    asked = {"with_entropy": True, "with_router": True, "with_experts": True, "replay": True}
    want, passes, score = score_all(policy, prompts, responses, 0.8, **asked), list[int](), log_probabilities.score

    def counted(of: Policy, some: Any, groups: Any, *rest: Any, **more: Any) -> Any:
        passes.append(sum(map(len, some)) + sum(len(r) - 1 for group in groups for r in group))
        return score(of, some, groups, *rest, **more)

    monkeypatch.setattr(log_probabilities, "score", counted)
    found = score_all(small, prompts, responses, 0.8, **asked)
    assert len(passes) > len(prompts) // 2
    assert max(passes) <= max(tokens, max(map(len, prompts)) + 9)
    for name in ("logp", "entropy", "router"):
        torch.testing.assert_close(getattr(found, name), getattr(want, name), rtol=0, atol=1e-5)
    assert found.experts is not None
    assert want.experts is not None
    assert torch.equal(found.experts.size, want.experts.size)
    assert torch.equal(found.experts.ids.long().sort(-1).values, want.experts.ids.long().sort(-1).values)
    values = [Critic.of(each).values_of_all(prompts, responses) for each in (policy, small)]
    torch.testing.assert_close(values[0], values[1], rtol=0, atol=1e-6)
