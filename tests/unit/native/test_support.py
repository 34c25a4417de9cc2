"""``schedule.top_p`` and ``schedule.top_k``: sampler and learner take their probabilities over the same tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.generation.logits_process import TopKLogitsWarper, TopPLogitsWarper

from paribus.recipe import factors as f
from paribus.recipe.analysis import untrainable
from paribus.recipe.recipe import Recipe
from paribus_runners.native import head
from paribus_runners.native import main as runner
from paribus_runners.native.attention import pack
from paribus_runners.native.head import Head
from paribus_runners.native.log_probabilities import score_all
from paribus_runners.native.policy import Policy
from paribus_runners.native.requirements import sampler_faults
from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout.sampler import Requests, complete
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.native.support import Support, restricted, truncated
from paribus_runners.tasks import Chain
from support.native_runs import changed, lines_of

SETS = [[3], [0, 1], [1, 2, 4], [0, 1, 2, 3, 4], [2]]


def _support(sets: list[list[int]]) -> Support:
    return Support(torch.tensor([i for s in sets for i in s]), torch.tensor(list(map(len, sets))))


@settings(max_examples=60, deadline=None)
@given(top_p=st.sampled_from([0.2, 0.6, 0.9, 1.0]), top_k=st.sampled_from([None, 1, 2, 4, 9]), seed=st.integers(0, 99))
def test_top_k_comes_before_top_p(top_p: float, top_k: int | None, seed: int) -> None:
    """By hand: the k most likely tokens, and of these the fewest that reach the share of what they have together."""
    p = (2 * torch.randn(40, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).softmax(-1)
    for row, got in zip(p.tolist(), truncated(p, top_p, top_k).tolist(), strict=True):
        order = sorted(range(7), key=lambda i: -row[i])[:top_k]
        share, want = top_p * sum(row[i] for i in order), set[int]()
        for i in order:
            if top_p < 1 and sum(row[j] for j in want) >= share:
                break
            want.add(i)
        assert got == [x if i in want else 0 for i, x in enumerate(row)]


@pytest.mark.parametrize(("top_p", "top_k"), [(0.9, None), (0.3, 20), (1.0, 7), (0.99, 3)])
def test_the_support_is_that_of_transformers(top_p: float, top_k: int | None) -> None:
    """Its own warpers, top-k before top-p, leave the same tokens, with the same log-probabilities."""
    logits = 3 * torch.randn(50, 101, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    scores = logits if top_k is None else TopKLogitsWarper(top_k)(None, logits)
    if top_p < 1:
        scores = TopPLogitsWarper(top_p)(None, scores)
    outside = truncated(logits.softmax(-1), top_p, top_k) == 0
    assert torch.equal(outside, scores.isinf())
    torch.testing.assert_close(restricted(logits, outside)[0], scores.log_softmax(-1))


def test_supports_are_taken_apart_and_put_together() -> None:
    """Indices, masks and runs of places give their sets, in order."""
    whole = _support(SETS)

    def sets(support: Support) -> list[list[int]]:
        ends = [0, *support.size.cumsum(0).tolist()]
        return [support.ids[a:b].tolist() for a, b in pairwise(ends)]

    assert sets(whole.select(torch.tensor([4, 0, 2]))) == [[2], [3], [1, 2, 4]]
    assert sets(whole.select(torch.tensor([False, True, False, True, False]))) == [[0, 1], [0, 1, 2, 3, 4]]
    assert sets(whole.between(1, 4)) == SETS[1:4]
    assert sets(Support.join([whole.between(0, 2), whole.between(2, 5)])) == SETS
    assert (~whole.outside(6)).tolist() == [[i in s for i in range(6)] for s in SETS]


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("entropy", [False, True])
def test_chunks_over_a_support_agree_with_the_textbook(
    monkeypatch: pytest.MonkeyPatch, rows: int, entropy: bool
) -> None:
    """Log pi(y) - log pi(S) and the entropy over S, with their gradients, however many rows a chunk has."""
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(5, 3, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(2))
    targets, support = torch.tensor([3, 1, 2, 0, 2]), _support(SETS)
    monkeypatch.setattr(head, "CHUNK", rows * 5)
    monkeypatch.setattr(head, "SMALL", 0 if rows < 5 else 9)
    got = Head(weight, None, 1.0, torch.float64).score(hidden, targets, 0.7, with_entropy=entropy, support=support)
    logp = (hidden @ weight.T / 0.7).log_softmax(-1)
    want = []
    for row, inside, y in zip(logp, SETS, targets.tolist(), strict=True):
        p = row[inside].exp() / row[inside].exp().sum()
        want.append((p[inside.index(y)].log(), -(p * p.log()).sum()))
    for ours, theirs in zip(got[: 1 + entropy], zip(*want, strict=True), strict=False):
        assert ours is not None
        torch.testing.assert_close(ours, torch.stack(theirs))
        a, b = (
            torch.autograd.grad((x * torch.arange(1.0, 6)).sum(), [hidden, weight], retain_graph=True)
            for x in (ours, torch.stack(theirs))
        )
        torch.testing.assert_close(a, b)


@pytest.fixture
def sampled(policy: Policy) -> tuple[list[list[int]], Responses]:
    """Prompts, and responses to them with a third of the symbols left out or more."""
    prompts = policy.encode([p.prompt for p in Chain().training(0, 1, 0, 4)])
    requests = Requests(prompts, 3, 8, 0.7, ("test",), top_p=0.9, top_k=5, with_support=True)
    return prompts, complete(TorchSampler(policy), requests)


def test_the_learner_finds_the_probabilities_of_the_sampler(
    policy: Policy, sampled: tuple[list[list[int]], Responses]
) -> None:
    """Log-probabilities and entropies agree over the support; over the whole vocabulary they are off by log pi(S)."""
    prompts, responses = sampled
    support = responses.support
    assert support is not None
    assert len(support.size) == len(responses.ids)
    assert support.size.max() <= 5
    assert support.size.unique().numel() > 1
    outside = support.outside(len(policy.head.weight))
    assert not outside[torch.arange(len(responses.ids)), responses.ids].any()
    scores = score_all(policy, prompts, responses, 0.7, with_entropy=True)
    torch.testing.assert_close(scores.logp, responses.logp, rtol=0, atol=1e-5)
    torch.testing.assert_close(scores.entropy, responses.entropy, rtol=0, atol=1e-5)
    whole = score_all(policy, prompts, replace(responses, support=None), 0.7).logp
    lost = responses.logp - whole
    assert lost.min() > -1e-5
    assert lost.max() > 0.05
    nothing = replace(responses.select(torch.tensor([], dtype=torch.long)), support=None)
    assert Responses.concat([nothing, responses]).support is not None  # a process may have had no prompt to sample
    some = responses.select(torch.tensor([7, 2]))
    again = score_all(policy, [prompts[2], prompts[0]], some, 0.7).logp
    torch.testing.assert_close(again, some.logp, rtol=0, atol=1e-5)


def test_the_support_stays_when_the_weights_move(policy: Policy, sampled: tuple[list[list[int]], Responses]) -> None:
    """After an update the learner takes the same tokens, not those that it would leave now."""
    prompts, responses = sampled
    assert responses.support is not None
    with torch.no_grad():
        generator = torch.Generator().manual_seed(0)
        for x in policy.trained:
            x += 0.3 * x.std() * torch.randn(x.shape, generator=generator)
    got = score_all(policy, prompts, responses, 0.7).logp
    full = []
    for i, ids in enumerate(responses.tokens()):
        n = len(prompts[i // 3])
        with torch.no_grad():
            out = policy.model(input_ids=torch.tensor([prompts[i // 3] + ids]), use_cache=False, layout=_alone(n, ids))
        full.append(out.logits[0, n - 1 : -1] / 0.7)
    logits = torch.cat(full)
    want = restricted(logits, responses.support.outside(logits.shape[1]))[0]
    torch.testing.assert_close(got, want.gather(1, responses.ids[:, None]).squeeze(1), rtol=0, atol=1e-4)
    now = truncated(logits.softmax(-1), 0.9, 5) == 0
    assert (now != responses.support.outside(logits.shape[1])).any()


def _alone(prompt: int, ids: list[int]) -> object:
    return pack([prompt + len(ids)], [()], torch.device("cpu"))


def test_a_run_samples_and_learns_over_the_same_tokens(recipe: Recipe, job_folder: Callable[..., Path]) -> None:
    """Sampler and learner agree in each step under a correction, and the metric says how many tokens are left."""
    schedule = {"top_p": 0.9, "top_k": 6, "steps": 2, "minibatches": 1, "epochs": 1}
    path = job_folder(changed(recipe, schedule=schedule, correction=f.TokenTruncate(), kl=f.KlInLoss()))
    runner.run(path)
    for line in lines_of(path)[1:]:
        assert 1 < line["sampling/support_mean"] < 6
        assert line["mismatch/logp_abs_diff_max"] < 1e-4
        assert line["ratio/mean"] == pytest.approx(1, abs=1e-4)


def test_what_needs_the_whole_distribution_is_refused() -> None:
    """Pairs, NLL, greedy sampling and vLLM, each with a sentence; defaults leave the text of recipes as it was."""
    cut = f.Schedule(top_p=0.9)
    for levels in ({"loss": f.PairDpo(), "baseline": f.NoBaseline()}, {"auxiliary": f.Auxiliary(positive_nll=0.1)}):
        with pytest.raises(ValueError, match=r"under the whole distribution, and with `schedule\.top_p`"):
            Recipe(schedule=cut, **levels)
    assert "`schedule.top_k: 1` trains nothing" in untrainable(Recipe(schedule=f.Schedule(top_k=1)))
    faults = list(sampler_faults(Recipe.model_validate({"rollout": {"engine": "vllm"}, "schedule": {"top_k": 9}})))
    assert any("does not say which tokens it left out" in fault for fault in faults)
    assert "top_" not in Recipe().model_dump_json()
    assert not list(sampler_faults(Recipe(schedule=cut)))
