"""Scores of one evaluation."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.errors import ParibusError
from paribus.stats.evals import accuracy_standard_error, avg_at_k, maj_at_k, pass_at_k

counts = st.integers(1, 12).flatmap(
    lambda k: st.tuples(st.lists(st.integers(0, k), min_size=2, max_size=20), st.just(k))
)


def test_avg_at_k_is_the_mean_share() -> None:
    """Hand value: 0, 2 and 4 of 4 are one half on average."""
    assert avg_at_k([0, 2, 4], 4) == 0.5


def test_pass_at_k_by_enumeration() -> None:
    """Pass@k equals the share of k-subsets of the responses that hold a right one."""
    for samples, right, k in itertools.product([1, 4, 7], range(8), range(1, 8)):
        if right <= samples and k <= samples:
            responses = [1] * right + [0] * (samples - right)
            subsets = list(itertools.combinations(responses, k))
            share = sum(any(s) for s in subsets) / len(subsets)
            assert pass_at_k([right], samples, k) == pytest.approx(share, abs=1e-12)


def test_pass_at_k_is_not_resampled_with_replacement() -> None:
    """One right of 32 makes pass@32 certain and pass@8 a quarter; with replacement: 0.638, 0.224."""
    assert pass_at_k([1], 32, 32) == 1
    assert pass_at_k([1], 32, 8) == pytest.approx(0.25)


def test_pass_at_more_than_sampled_is_refused() -> None:
    """A k above the number of responses is an error that names the remedy."""
    with pytest.raises(ParibusError, match=r"evaluate\.samples"):
        pass_at_k([1, 2], 4, 5)


@given(counts)
def test_pass_at_1_is_the_average(case: tuple[list[int], int]) -> None:
    """Pass@1 is avg@k, and pass@k grows with k."""
    correct, samples = case
    values = [pass_at_k(correct, samples, k) for k in range(1, samples + 1)]
    assert values[0] == pytest.approx(avg_at_k(correct, samples))
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(values))
    assert values[-1] == pytest.approx(sum(c > 0 for c in correct) / len(correct))


def test_majority_splits_ties_and_ignores_missing_answers() -> None:
    """A tie of two gives one half; responses without an answer never win; nothing at all is wrong."""
    assert maj_at_k([{"7": 2, "3": 2, "": 9}], ["7"]) == 0.5
    assert maj_at_k([{"": 5, "3": 1}], ["3"]) == 1
    assert maj_at_k([{"": 5}], [""]) == 0
    assert maj_at_k([{"a": 3, "b": 1}, {"a": 1, "b": 3}], ["a", "a"]) == 0.5


def test_majority_with_several_right_answers() -> None:
    """Where several answers are right, each winner among them counts."""
    assert maj_at_k([{"ab": 2, "cd": 2, "ef": 1}], [frozenset({"ab", "cd"})]) == 1


def test_standard_error_hand_value() -> None:
    """Shares 0 and 1: mean one half, variance one half, error of the mean one half."""
    assert accuracy_standard_error([0, 4], 4) == pytest.approx(0.5)


@given(counts)
def test_standard_error_is_that_of_problem_means(case: tuple[list[int], int]) -> None:
    """The clustered error equals sd of the problem means over root of their number, whatever k is."""
    correct, samples = case
    means = [c / samples for c in correct]
    mean = sum(means) / len(means)
    sd = math.sqrt(sum((m - mean) ** 2 for m in means) / (len(means) - 1))
    assert accuracy_standard_error(correct, samples) == pytest.approx(sd / math.sqrt(len(means)), abs=1e-12)


@pytest.mark.parametrize(("correct", "samples"), [([], 1), ([2], 1), ([-1], 1), ([0], 0)])
def test_impossible_counts_are_refused(correct: list[int], samples: int) -> None:
    """No problems, counts outside 0..k, and k = 0 are errors."""
    with pytest.raises(ValueError, match=r"problem|counts"):
        avg_at_k(correct, samples)


def test_import_is_light() -> None:
    """A runner that imports the scores loads neither numpy nor scipy."""
    code = "import sys, paribus.stats.evals; print('numpy' in sys.modules or 'scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
