"""The sampler agrees with a plain forward pass, whoever else is in the batch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from paribus_runners.native.limits import Limits
from paribus_runners.native.log_probabilities import score, score_all
from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout import torch as sampler
from paribus_runners.native.rollout.sampler import Requests, complete, in_order
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.native.support import truncated
from paribus_runners.tasks import Chain

ROOM = 10


@pytest.fixture(params=["chain_model", "mixture_model"])
def folder(request: pytest.FixtureRequest) -> Path:
    """The folder of a dense model and of one with experts."""
    path: Path = request.getfixturevalue(request.param)
    return path


@pytest.fixture
def policy(folder: Path) -> Policy:
    """The model in this folder."""
    return Policy.load(str(folder), None, "float32")


@pytest.fixture
def prompts(policy: Policy) -> list[list[int]]:
    """Prompts of unequal length: the model's padding is left out of two."""
    full = policy.encode([p.prompt for p in Chain().training(0, 1, 0, 5)])
    return [full[0], full[1][6:], full[2], full[3][3:], full[4]]


def _sample(policy: Policy, prompts: list[list[int]], copies: int = 3) -> Responses:
    return complete(TorchSampler(policy), Requests(prompts, copies, ROOM, 0.7, ("test",)))


def test_log_probabilities_and_entropies_are_those_of_a_plain_forward(
    policy: Policy, prompts: list[list[int]], folder: Path
) -> None:
    """Token by token, the cached sampler gives what the unchanged model gives for the whole sequence alone."""
    plain = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    responses = _sample(policy, prompts)
    found = zip(*(responses.padded(x) for x in (responses.logp, responses.entropy)), strict=True)
    for i, (ids, (got, entropy)) in enumerate(zip(responses.tokens(), found, strict=True)):
        prompt = prompts[i // 3]
        with torch.no_grad():
            logits = plain(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        logp = (logits / 0.7).log_softmax(-1)
        n = len(ids)
        chosen = logp.gather(1, torch.tensor(ids)[:, None]).squeeze(1)
        torch.testing.assert_close(got[:n], chosen, rtol=0, atol=1e-5)
        torch.testing.assert_close(entropy[:n], -(logp.exp() * logp).sum(-1), rtol=0, atol=1e-5)


def test_learner_agrees_with_sampler(policy: Policy, prompts: list[list[int]]) -> None:
    """Packed sequences that share prompts give the log-probabilities that sampling gave."""
    responses = _sample(policy, prompts)
    tokens = responses.tokens()
    groups = [tokens[i : i + 3] for i in range(0, len(tokens), 3)]
    scores = score(policy, prompts, groups, 0.7, with_entropy=True)
    assert scores.entropy is not None
    torch.testing.assert_close(scores.logp.detach(), responses.logp, rtol=0, atol=1e-5)
    torch.testing.assert_close(scores.entropy.detach(), responses.entropy, rtol=0, atol=1e-5)
    scored = score_all(policy, prompts, responses, 0.7).logp
    torch.testing.assert_close(scored, responses.logp, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("rows", "evict"), [(512, 2.0), (512, 0.01), (4, 0.25), (1, 0.25)])
def test_the_batch_around_a_response_does_not_matter(
    policy: Policy, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch, rows: int, evict: float
) -> None:
    """The same draws give the same tokens, whenever finished responses leave and however batches are cut."""
    want = _sample(policy, prompts)
    monkeypatch.setattr(sampler, "EVICT", evict)
    policy = replace(policy, limits=Limits(responses_at_a_time=rows, tokens_a_pass=4096))
    got = _sample(policy, prompts)
    assert torch.equal(got.ids, want.ids)
    assert torch.equal(got.length, want.length)
    assert torch.equal(got.truncated, want.truncated)
    torch.testing.assert_close(got.logp, want.logp, rtol=0, atol=1e-5)


def test_ended_responses_may_be_read_on_for_a_while(
    monkeypatch: pytest.MonkeyPatch, policy: Policy, prompts: list[list[int]]
) -> None:
    """Looking at which have ended only now and then, as on a GPU, changes no response."""
    found = [_sample(policy, prompts)]
    for passes in (4, 16):
        monkeypatch.setitem(sampler.LOOKS, "cpu", passes)
        found.append(_sample(policy, prompts))
    for other in found[1:]:
        assert other.tokens() == found[0].tokens()
        assert other.truncated.equal(found[0].truncated)
        torch.testing.assert_close(other.logp, found[0].logp, rtol=1e-4, atol=1e-5)


def test_truncated_means_without_end_mark(policy: Policy, prompts: list[list[int]]) -> None:
    """A response is truncated exactly if it fills the room without an end mark at its end."""
    responses = _sample(policy, prompts, copies=20)
    for ids, cut in zip(responses.tokens(), responses.truncated.tolist(), strict=True):
        assert cut == (ids[-1] not in policy.ends)
        assert not cut or len(ids) == ROOM
        assert all(i not in policy.ends for i in ids[:-1])
    assert 0 < responses.truncated.sum() < len(responses)


def test_tokens_follow_their_probabilities() -> None:
    """Evenly spread uniform numbers give each token its share, and never one of probability zero."""
    logits = torch.tensor([0.5, 0.25, 0.0, 0.25]).log().expand(1000, 4)
    token, logp, entropy, _ = sampler.draw(logits, torch.arange(1000, dtype=torch.float64) / 1000, 1.0)
    assert token.bincount(minlength=4).tolist() == [500, 250, 0, 250]
    assert logp[0].exp().item() == pytest.approx(0.5)
    assert entropy[0].item() == pytest.approx(1.5 * 0.6931472, abs=1e-6)


def test_the_largest_uniform_number_gives_the_last_possible_token() -> None:
    """Rounding never leads past the vocabulary or to an impossible token."""
    logits = torch.tensor([[0.1, 0.2, 0.7, 0.0]]).log()
    token = sampler.draw(logits, torch.tensor([1 - 2**-53], dtype=torch.float64), 1.0).token
    assert token.tolist() == [2]


def test_probabilities_that_are_not_finite_do_not_stop_sampling() -> None:
    """A policy that has blown up gives tokens and nan, so that the metrics can show it."""
    token, logp, entropy, _ = sampler.draw(torch.full((2, 4), torch.nan), torch.rand(2, dtype=torch.float64), 1.0)
    assert token.max() < 4
    assert bool(logp.isnan().all())
    assert bool(entropy.isnan().all())


@pytest.mark.parametrize("apart", [False, True])
def test_random_numbers_belong_to_their_place(policy: Policy, prompts: list[list[int]], apart: bool) -> None:
    """Equal places give equal responses, other places others; apart, a longer limit only lengthens them."""

    def ids(room: int, *place: int | str) -> list[list[int]]:
        requests = Requests(prompts, 3, room, 0.7, place, apart=apart)
        return complete(TorchSampler(policy), requests).tokens()

    one = ids(ROOM, 0, "rollout", 1, 0)
    assert one == ids(ROOM, 0, "rollout", 1, 0)
    assert one != ids(ROOM, 0, "rollout", 1, 1)
    assert one != ids(ROOM, 0, "rollout", 11, 0)
    assert apart == (one == [row[:ROOM] for row in ids(ROOM + 2, 0, "rollout", 1, 0)])


def test_seeds_of_requests_belong_to_run_step_round_and_prompt() -> None:
    """Samplers with generators of their own get a seed for each prompt, other ones in another step or run."""
    places = [(seed, "rollout", step, round_) for seed in (0, 1) for step in (1, 11) for round_ in (0, 1)]
    seeds = [Requests([[1]] * 3, 2, 4, 1.0, place).seed(i) for place in places for i in range(3)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**63 for seed in seeds)
    assert seeds == [Requests([[1]] * 3, 8, 4, 1.0, place).seed(i) for place in places for i in range(3)]


def test_groups_that_end_in_another_order_are_put_in_order(policy: Policy, prompts: list[list[int]]) -> None:
    """Responses follow their prompts, whichever ended first."""
    whole = _sample(policy, prompts)
    order = [3, 0, 4, 2, 1]
    rows = torch.tensor([3 * i + j for i in order for j in range(3)])
    back = in_order(order, whole.select(rows))
    for name in ("ids", "logp", "entropy", "length", "truncated"):
        assert torch.equal(getattr(back, name), getattr(whole, name))


def test_a_nucleus_holds_the_fewest_tokens_that_reach_top_p() -> None:
    """Against a search over all subsets, with ties; at 1 every token stays."""
    generator = torch.Generator().manual_seed(0)
    for top_p in (0.05, 0.3, 0.5, 0.9, 0.999):
        p = (3 * torch.randn(20, 6, generator=generator, dtype=torch.float64)).softmax(-1)
        p[0] = torch.tensor([0.25, 0.25, 0.25, 0.25, 0, 0])
        kept = truncated(p, top_p, None)
        for row, mine in zip(p.tolist(), kept.tolist(), strict=True):
            sizes = [n for n in range(1, 7) if any(sum(c) >= top_p for c in combinations(row, n))]
            assert sum(x > 0 for x in mine) == sizes[0]
            assert sum(mine) >= top_p
            assert sorted(mine, reverse=True)[: sizes[0]] == sorted(row, reverse=True)[: sizes[0]]
    assert truncated(torch.tensor([[0.25] * 4]), 0.5, None).tolist() == [[0.25, 0.25, 0, 0]]


def test_draws_follow_the_renormalised_nucleus() -> None:
    """Frequencies over evenly spaced numbers are the probabilities, and so say log-probability and entropy."""
    logits = torch.tensor([[2.0, 0.0, 1.0, -1.0]]).double()
    numbers = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    token, logp, entropy, support = sampler.draw(logits.expand(len(numbers), -1), numbers, 0.8, 0.9, record=True)
    p = (logits[0] / 0.8).softmax(-1)
    inside = torch.tensor([p[0], 0, p[2], 0])  # 0.73 and 0.21: the two reach 0.9
    frequencies = torch.bincount(token, minlength=4) / len(numbers)
    torch.testing.assert_close(frequencies.double(), (inside / inside.sum()).double(), rtol=0, atol=1e-4)
    left = inside / inside.sum()
    torch.testing.assert_close(logp, left.log()[token])
    torch.testing.assert_close(entropy[0], -(left * left.log().clamp_min(-99)).sum())
    assert support is not None
    assert (support.ids.view(-1, 2) == torch.tensor([0, 2])).all()
    whole = sampler.draw(logits.expand(len(numbers), -1), numbers, 0.8)[0]
    assert torch.equal(whole, sampler.draw(logits.expand(len(numbers), -1), numbers, 0.8, 1.0)[0])
    assert set(whole.tolist()) == {0, 1, 2, 3}


class _Casts(TorchDispatchMode):
    """Counts how often each of some weights is cast to another type."""

    def __init__(self, weights: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._places, self.counts = {w.data_ptr() for w in weights}, Counter[int]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._to_copy.default and args[0].data_ptr() in self._places:
            self.counts[args[0].data_ptr()] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("head", ["bfloat16", "float32"])
def test_weights_are_cast_once_for_all_tokens(folder: Path, head: str) -> None:
    """In bfloat16 a pass for each token would mostly cast; the logits keep the type of the head."""
    policy = Policy.load(str(folder), None, "bfloat16", head_dtype=head)
    prompts = policy.encode([p.prompt for p in Chain().training(0, 1, 0, 3)])
    with _Casts(policy.trained) as casts:
        responses = complete(TorchSampler(policy), Requests(prompts, 2, ROOM, 1.0, ("test",)))
    assert int(responses.length.max()) > 2
    assert casts.counts
    assert max(casts.counts.values()) <= 2  # by attention and MLP; and the head's, which are the embeddings
    learner = score_all(policy, prompts, responses, 1.0)
    assert float((learner.logp - responses.logp).abs().max()) < (0.2 if head == "bfloat16" else 0.1)
