"""Identities of DCPO's advantages from all visits to a prompt (arXiv 2509.02333)."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus_runners.native.experience import weigh
from paribus_runners.native.objective.history import Visits, smooth, visit

EXACT = f.HistorySmooth(ddof=0, eps=0)
DCPO = Recipe(baseline=f.History(), scale=EXACT)
rewards_of_4 = st.lists(st.lists(st.integers(-3, 3), min_size=4, max_size=4), min_size=1, max_size=6)
ONE = torch.zeros(4, dtype=torch.long)


def _double(values: list[float] | list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _visited(groups: list[list[int]], level: f.HistorySmooth = EXACT) -> Visits:
    """Return the statistics of one prompt after these groups."""
    history: dict[str, Visits] = {}
    for rewards in groups:
        (history["p"],) = visit(history, level, ["p"], _double(rewards), ONE)
    return history["p"]


@given(rewards_of_4)
def test_cumulative_statistics_are_those_of_all_rewards(groups: list[list[int]]) -> None:
    """Mean and variance after any number of visits equal numpy's over everything seen, with ddof 0."""
    found, flat = _visited(groups), np.array(groups).ravel()
    assert found.count == len(groups)
    assert found.mean == pytest.approx(flat.mean(), abs=1e-12)
    assert found.var == pytest.approx(flat.var(), abs=1e-12)


def test_the_variance_of_a_group_has_the_ddof_of_the_level() -> None:
    """With ddof 1 the variance of the first visit is that of the sample."""
    assert _visited([[1, 0, 0, 0]], f.HistorySmooth(ddof=1)).var == pytest.approx(0.25)
    assert _visited([[1, 0, 0, 0]], f.HistorySmooth(ddof=0)).var == pytest.approx(3 / 16)


@pytest.mark.parametrize("ddof", [0, 1])
@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_the_first_visit_is_grpo(ddof: Any, eps: float, made: Any) -> None:
    """With nothing remembered A is that of GRPO, and a group without spread has 0."""
    dcpo = Recipe(baseline=f.History(), scale=f.HistorySmooth(ddof=ddof, eps=eps))
    grpo = Recipe(scale=f.GroupStd(ddof=ddof, eps=eps))
    correct = [[True, False, False], [True, True, False], [True] * 3]
    one, two = (weigh(r, made(r, correct)).advantage for r in (dcpo, grpo))
    torch.testing.assert_close(one, two)


@given(rewards_of_4.filter(lambda x: len(x) > 1 and len({v for g in x for v in g}) > 1), st.integers(-3, 3))
def test_a_uniform_group_later_on_has_a_share_of_the_total(groups: list[list[int]], value: int) -> None:
    """At visit i >= 3, A_new = 0 leaves A = A_tot / i."""
    groups = [*groups, [value] * 4]
    found, flat = _visited(groups), np.array(groups).ravel()
    want = (value - flat.mean()) / flat.std() / len(groups)
    assert smooth(EXACT, _double(groups[-1]), ONE, [found]).tolist() == pytest.approx([want] * 4, abs=1e-9)


def test_the_smaller_of_two_mixtures_by_hand() -> None:
    """Visit 3: A_new and A_tot mixed 2 to 1 and 1 to 2; each response takes the one of smaller size."""
    groups = [[0, 0, 0, 1], [0, 0, 0, 0], [1, 1, 1, 0]]
    new = [(r - 0.75) / (3 / 16) ** 0.5 for r in groups[-1]]
    total = [(r - 4 / 12) / (2 / 9) ** 0.5 for r in groups[-1]]
    mixed = [((2 * n + t) / 3, (n + 2 * t) / 3) for n, t in zip(new, total, strict=True)]
    want = [min(pair, key=abs) for pair in mixed]
    assert {pair.index(w) for pair, w in zip(mixed, want, strict=True)} == {0, 1}
    assert smooth(EXACT, _double(groups[-1]), ONE, [_visited(groups)]).tolist() == pytest.approx(want)


def test_eps_is_added_to_both_standard_deviations() -> None:
    """The group's and the history's std both have eps beside them, not under the root."""
    level = f.HistorySmooth(ddof=0, eps=0.5)
    first, second = [1, 0, 0, 0], [1, 1, 0, 0]
    new, total = (1 - 0.5) / (0.5 + 0.5), (1 - 3 / 8) / (math.sqrt(15 / 64) + 0.5)
    got = smooth(level, _double(second), ONE, [_visited([first, second])])
    assert float(got[0]) == pytest.approx((new + total) / 2)


def test_a_prompt_that_never_had_spread_has_no_advantage() -> None:
    """Equal rewards at every visit give exactly 0, even without eps."""
    assert smooth(EXACT, _double([1, 1, 1, 1]), ONE, [_visited([[1] * 4] * 3)]).tolist() == [0.0] * 4


def test_visits_are_counted_by_prompt(made: Any) -> None:
    """A prompt that comes twice in a step is visited twice, one that the filter took out is not, others stay."""
    recipe = Recipe(baseline=f.History(), scale=EXACT, filter=f.Drop())
    correct = [[True, False], [False, False], [True, False], [True, True]]
    rollouts = made(recipe, correct, problems=["a", "b", "a", "c"])
    before = {"a": Visits(1, 2.0, 0.0), "z": Visits(5, 1.0, 1.0)}
    found = weigh(recipe, rollouts, visited=before)
    assert {k: v.count for k, v in found.history.items()} == {"a": 3, "z": 5}
    assert found.history["a"].mean == pytest.approx((2 + 0.5 + 0.5) / 3)
    assert before["a"].count == 1
    first, second = found.advantage[rollouts.responses.first[[0, 4]]]
    assert float(first) != float(second)


def test_the_current_visit_is_in_the_history(made: Any) -> None:
    """A at the second visit reads mean and std with that visit in them."""
    rollouts = [made(DCPO, [g]) for g in ([True, False, False], [True, True, False])]
    first = weigh(DCPO, rollouts[0])
    second = weigh(DCPO, rollouts[1], visited=first.history)
    R = np.array([2, -1, -1, 2, 2, -1])
    new, total = (R[3:] - R[3:].mean()) / R[3:].std(), (R[3:] - R.mean()) / R.std()
    assert second.advantage[rollouts[1].responses.first].tolist() == pytest.approx(((new + total) / 2).tolist())
    counts = list(accumulate(e.history["p0"].count for e in (first, second)))
    assert counts == [1, 3]
