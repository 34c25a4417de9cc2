"""Rules alarm on healthy noise at most as often as they state, and are sure of what they say."""

import math

import numpy as np
import pytest
from scipy import stats

from paribus.health.detector import Setting, finding_of, initial_state, update
from paribus.health.diagnose import DETECTORS
from paribus.health.evaluations import quantile, score_error
from paribus.health.profile import load_profile
from paribus.run_folder.folder import MetricLine

BY_NAME = {d.name: d for d in DETECTORS}
PROFILE = load_profile("default")
REWARD, SCORE, ERROR, KL = "signal/reward", "signal/score", "signal/score_se", "kl/ref_k3"


def found(name, columns):
    """Return the finding of a detector on columns of values; shorter ones have a value at every so many steps."""
    count = max(map(len, columns.values()))
    steps = {n: range(0, len(x) * (count // len(x)), count // len(x)) for n, x in columns.items()}
    lines = [
        MetricLine(
            step=s, time_ms=0, values={n: float(x[s // (count // len(x))]) for n, x in columns.items() if s in steps[n]}
        )
        for s in range(count)
    ]
    setting = Setting(profile=PROFILE, planned=count)
    return finding_of(BY_NAME[name], setting, update(BY_NAME[name], setting, initial_state(), lines)[0])


def scores(rng, problems, share, count, recorded):
    """Return the evaluations of a policy that does not change, and a reward that stays."""
    drawn = rng.binomial(problems, share, count) / problems
    errors = {ERROR: np.sqrt(np.maximum(drawn * (1 - drawn), 0.002) / problems)} if recorded else {}
    return {SCORE: drawn, REWARD: np.full(3 * count, share), **errors}


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize(("problems", "count"), [(30, 30), (200, 12)])
def test_evaluations_that_only_vary_rarely_alarm(problems, count, recorded):
    """Stated are 1% of the runs; chance alone hardly gives six of 80."""
    rng = np.random.default_rng([problems, recorded])
    drawn = [scores(rng, problems, 0.4, count, recorded) for _ in range(80)]
    for name in ("reward_hacking", "eval_regression"):
        assert sum(found(name, d).state != "ok" for d in drawn) <= 5


def test_the_error_of_scores_is_that_of_their_noise():
    """Over many draws the squares are right for noise on a trend, and one break does not enlarge them twofold."""
    rng = np.random.default_rng(0)
    noise = 3 + rng.normal(0, 0.5, (400, 30)) + np.linspace(0, 8, 30)  # no share: nothing is assumed
    squares = [score_error(list(x))[0] ** 2 for x in noise]
    assert np.mean(squares) == pytest.approx(0.25, rel=0.1)
    broken = [score_error(list(x + 4 * (np.arange(30) > 15)))[0] ** 2 for x in noise]
    assert np.mean(broken) < 0.5
    expected = 2 * np.mean(squares) ** 2 / np.var(squares)
    assert score_error(list(noise[0]))[1] == pytest.approx(expected, rel=0.3)


@pytest.mark.parametrize("free", [2.1, 6.0, math.inf])
def test_quantiles_are_those_of_student(free):
    """Far out, too."""
    for level in (0.01, 1e-6):
        assert quantile(level, free) == pytest.approx(stats.t.isf(level, free), rel=1e-6)


def test_the_first_evaluation_stays_the_first():
    """However many evaluations follow, the score is compared with the first."""
    slow = np.concatenate([np.linspace(0.6, 0.5, 90), np.full(60, 0.5)])
    said = found("eval_regression", {SCORE: slow, ERROR: np.full(150, 0.01), REWARD: np.full(300, 0.5)})
    assert said.state == "critical"
    assert "0.6 before training" in said.evidence


def test_a_policy_that_varies_more_than_its_error_is_given_room():
    """Recorded errors are those over problems; where scores vary half as much again, a fall must exceed that."""
    rng = np.random.default_rng(3)
    loud = [{SCORE: 0.5 + rng.normal(0, 0.03, 40), ERROR: np.full(40, 0.02)} for _ in range(40)]
    assert sum(found("reward_hacking", {**x, REWARD: np.full(120, 0.5)}).state != "ok" for x in loud) <= 6


@pytest.mark.parametrize("rate", [1e-4, 2e-3])
def test_a_kl_in_proportion_to_the_steps_is_no_blow_up(rate):
    """However far it gets."""
    steps = np.arange(600)
    assert found("kl_blowup", {KL: rate * steps + 1e-4, REWARD: np.full(600, 0.5)}).state == "ok"


def test_a_kl_that_takes_a_hundred_steps_to_blow_up_is_found():
    """Twentyfold, though within half a window it is never five times what it was."""
    steps = np.arange(600)
    kl = 2.5e-4 * (steps + 1.0) ** 0.7 * np.exp(math.log(20) * (1 - np.exp(-np.clip(steps - 250, 0, None) / 60)))
    said = found("kl_blowup", {KL: kl, REWARD: np.full(600, 0.5)})
    assert said.state == "warn"
    assert 240 <= said.step_onset <= 300


@pytest.mark.parametrize(("slope", "state"), [(0.0, "note"), (0.0012, "ok")])
def test_a_noisy_reward_that_stays_is_a_plateau(slope, state):
    """Its mean moves by chance, and the noise says by how much; a rise beyond it is none."""
    rng = np.random.default_rng(1)
    assert found("reward_stall", {REWARD: 0.2 + slope * np.arange(600) + rng.normal(0, 0.06, 600)}).state == state
