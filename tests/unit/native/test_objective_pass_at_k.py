"""pass@k as the objective: by enumeration of all outcomes, of all sets of k responses, and in special cases."""

from __future__ import annotations

from itertools import combinations, product
from math import comb
from statistics import fmean, pstdev
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paribus.errors import RunnerError
from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.experience import weigh
from paribus_runners.native.objective import baseline, pass_at_k

SETS = [(n, k) for n in range(1, 7) for k in range(1, n + 1)]
UNBIASED = [(n, k, "none") for n, k in SETS] + [(n, k, "loo_minus_one") for n, k in SETS if k > 1]
rewards = st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0, 3.0]), min_size=5, max_size=5)


def _level(k: int, control: Any) -> f.PassAtK:
    return f.PassAtK(k=k, control=control)


def _centred(level: f.Baseline, *groups: Any) -> Tensor:
    R = torch.tensor([x for g in groups for x in g], dtype=torch.float64)
    group = torch.tensor([i for i, g in enumerate(groups) for _ in g])
    return baseline.centre(level, R, group, len(groups))


def _of_bernoulli(n: int, level: f.PassAtK, p: float) -> float:
    """Return E[(1/n) sum A d log P(y) / dp] over all 2^n outcomes of n tries that succeed with probability p."""
    total = 0.0
    for outcome in product((0.0, 1.0), repeat=n):
        chance = p ** sum(outcome) * (1 - p) ** (n - sum(outcome))
        scores = [1 / p if y else -1 / (1 - p) for y in outcome]
        total += chance * fmean(a * s for a, s in zip(_centred(level, outcome).tolist(), scores, strict=True))
    return total


@pytest.mark.parametrize("p", [0.1, 0.5, 0.85])
@pytest.mark.parametrize(("n", "k", "control"), UNBIASED)
def test_the_expected_gradient_is_that_of_pass_at_k(n: int, k: int, control: str, p: float) -> None:
    """For every k up to the size of the group, over all outcomes: d (1 - (1 - p)^k) / dp = k (1 - p)^(k - 1)."""
    assert _of_bernoulli(n, _level(k, control), p) == pytest.approx(k * (1 - p) ** (k - 1), rel=1e-9)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.85])
@pytest.mark.parametrize(("n", "k"), [(n, k) for n, k in SETS if k < n])
def test_the_mean_over_all_sets_takes_one_constant_out(n: int, k: int, p: float) -> None:
    """The analytical advantages without their sigma lead to pass@k as well, (n - k) / (n k) times as fast."""
    want = (n - k) / (n * k) * k * (1 - p) ** (k - 1)
    assert _of_bernoulli(n, _level(k, "mean"), p) == pytest.approx(want, rel=1e-9)


@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("control", ["none", "loo_minus_one"])
def test_the_expected_gradient_is_that_of_the_largest_of_k_rewards(k: int, control: str) -> None:
    """With rewards of three sizes, by enumeration on a softmax policy: the gradient of E[max of k rewards]."""
    if k == 1 and control != "none":
        return
    R, n = torch.tensor([0.0, 0.7, 2.0], dtype=torch.float64), 3
    logits = torch.tensor([0.4, -0.1, -0.8], dtype=torch.float64, requires_grad=True)
    logp = logits.log_softmax(0)
    best = sum((logp[list(x)].sum().exp() * R[list(x)].max() for x in product(range(3), repeat=k)), torch.zeros(()))
    surrogate = torch.zeros((), dtype=torch.float64)
    for arms in map(list, product(range(3), repeat=n)):
        A = _centred(_level(k, control), R[arms].tolist())
        surrogate = surrogate + logp[arms].sum().exp().detach() * (A * logp[arms]).sum() / n
    one, other = (torch.autograd.grad(x, logits, retain_graph=True)[0] for x in (best, surrogate))
    torch.testing.assert_close(other, one, rtol=1e-9, atol=1e-12)


@given(rewards, st.sampled_from([1, 2, 3, 4, 5]))
def test_every_number_is_a_mean_over_sets(reward: list[float], k: int) -> None:
    """The definitions of both papers, written down as sums over all sets of k of five responses."""
    R, places = reward, range(5)
    M = [fmean(max(R[j] for j in s) for s in combinations(places, k) if i in s) for i in places]
    every = [max(R[j] for j in s) for s in combinations(places, k)]
    spread = max(R) > min(R)
    want = {"none": [k * m for m in M], "mean": [(m - fmean(every)) * spread for m in M]}
    if k > 1:
        rest = [[j for j in places if j != i] for i in places]
        b = [fmean(max(R[j] for j in s) for s in combinations(rest[i], k - 1)) for i in places]
        want["loo_minus_one"] = [k * (M[i] - b[i]) * spread for i in places]
    for control, expected in want.items():
        got = _centred(_level(k, control), R, [1.0, 2.0, 3.0, 4.0, 5.0])[:5]
        torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)
    std = pass_at_k.deviation(_level(k, "none"), torch.tensor(R, dtype=torch.float64), torch.zeros(5).long())
    torch.testing.assert_close(std, torch.full((5,), pstdev(every), dtype=torch.float64), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("right", range(1, 8))
@pytest.mark.parametrize("k", [1, 2, 4, 7])
def test_the_analytical_advantages_of_right_and_wrong_responses(right: int, k: int, made: Any) -> None:
    """(1 - rho) / sigma and (1 - rho - C(N_neg - 1, k - 1) / C(N - 1, k - 1)) / sigma (arXiv 2508.10751)."""
    n, wrong = 8, 8 - right
    recipe = Recipe.model_validate(
        {
            "reward": {"map": "binary01"},
            "baseline": {"kind": "pass_at_k", "k": k, "control": "mean"},
            "scale": {"kind": "pass_at_k_std", "eps": 1e-6},
        }
    )
    correct = [i < right for i in range(n)]
    A = weigh(recipe, made(recipe, [correct], lengths=[1] * n)).advantage
    rho = 1 - comb(wrong, k) / comb(n, k)
    sigma = (rho * (1 - rho)) ** 0.5
    good = (1 - rho) / (sigma + 1e-6)
    bad = (1 - rho - comb(wrong - 1, k - 1) / comb(n - 1, k - 1)) / (sigma + 1e-6)
    want = torch.tensor([good if y else bad for y in correct], dtype=torch.float64)
    torch.testing.assert_close(A, want, rtol=1e-9, atol=1e-9)


@given(rewards)
def test_the_best_of_one_response_is_itself(reward: list[float]) -> None:
    """With k = 1 the levels are no baseline and the group's mean."""
    for control, plain in (("none", f.NoBaseline()), ("mean", f.GroupMean())):
        torch.testing.assert_close(_centred(_level(1, control), reward), _centred(plain, reward))


@pytest.mark.parametrize("control", ["loo_minus_one", "mean"])
@pytest.mark.parametrize("value", [0.1, 1 / 3, -1.0])
def test_groups_without_spread_have_no_pass_at_k_advantage(control: str, value: float) -> None:
    """Equal rewards give exactly 0, and the next group keeps its advantages."""
    A = _centred(_level(3, control), [value] * 4, [0.0, 0.0, 1.0, 0.0])
    assert A[:4].tolist() == [0.0] * 4
    assert A[4:].abs().max() > 0.1


def test_only_a_response_that_is_better_than_the_rest_counts_in_the_largest_sets() -> None:
    """With k = G all responses but the best one have 0, and that has G times its lead (arXiv 2503.19595)."""
    assert _centred(_level(4, "loo_minus_one"), [0.0, 3.0, 1.0, 0.5]).tolist() == pytest.approx([0, 8, 0, 0])


def test_a_group_smaller_than_k_is_refused() -> None:
    """A file of responses may have groups that no recipe would sample."""
    with pytest.raises(RunnerError, match="a group has 2"):
        _centred(_level(3, "none"), [0.0, 1.0, 1.0], [0.0, 1.0])
