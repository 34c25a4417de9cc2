"""Faults as other tools draw them, and the healthy course next to each: slow, without a break, over the whole run."""

import numpy as np
import pytest

from paribus.health.detector import Setting
from paribus.health.diagnose import diagnose, judge_lines
from paribus.health.finding import RAISED
from paribus.health.import_logs import canonical
from paribus.health.profile import load_profile
from paribus.health.signals import with_signals
from paribus.run_folder.folder import MetricLine
from support.health_sentences import checked

STEPS = 150
SETTING = Setting(profile=load_profile("default"), planned=STEPS)
T = np.arange(STEPS) / (STEPS - 1)
REWARD, TOTAL, SCORE, LENGTH = "signal/reward", "reward/mean", "signal/score", "response/length_mean"


def lines_of(columns, every=10):
    """Return metric lines; the held-out score has a value at every tenth step."""
    return [
        MetricLine(
            step=s + 1,
            time_ms=0,
            values={n: float(f"{x[s]:.7g}") for n, x in columns.items() if n != SCORE or s % every == 0},
        )
        for s in range(STEPS)
    ]


def raised(columns, every=10):
    """Return the detectors that raise, each with sentences that hold in the data."""
    lines = lines_of(columns, every)
    found = [f for f in judge_lines(SETTING, lines) if f.state in RAISED]
    for f in found:
        checked(lines, f)
    return {f.detector: f for f in found}


@pytest.mark.parametrize(("power", "ill"), [(1.0, False), (1.4, False), (2.4, True)])
def test_a_large_kl_that_grows_ever_faster_is_raised(power, ill):
    """Growth in proportion to the steps is usual however far it gets; growth with their square is not."""
    noise = np.random.default_rng(0).normal(0, 0.03, STEPS)
    found = raised({"kl/ref_k3": 0.02 + 4.5 * T**power * (1 + noise), REWARD: np.full(STEPS, 0.4)})
    assert ("kl_blowup" in found) is ill


def test_a_kl_below_a_nat_may_grow_faster():
    """It grows with the square of the steps in many a healthy run that starts slowly."""
    assert not raised({"kl/ref_k3": 0.001 + 0.8 * T**2.4, REWARD: np.full(STEPS, 0.4)})


@pytest.mark.parametrize(("count", "ill"), [(1, False), (6, True)])
def test_huge_gradients_far_apart_are_counted_over_the_whole_run(count, ill):
    """Six spikes of a hundred times the usual norm never lie within one window; a single one is no fault."""
    norms = 0.5 * np.exp(np.random.default_rng(1).normal(0, 0.1, STEPS))
    norms[np.linspace(20, STEPS - 1, count).astype(int)] *= 100
    found = raised({"optim/grad_norm": norms})
    assert ("grad_spike" in found) is ill
    if ill:
        assert found["grad_spike"].state == "warn"
        assert found["grad_spike"].step_onset == 21


def test_huge_gradients_are_raised_in_as_few_healthy_runs_as_stated():
    """With the stated rate of one in a thousand steps, whatever the length: at most one run in a thousand."""
    rng, alarms = np.random.default_rng(2), 0
    for _ in range(60):
        norms = np.where(rng.uniform(size=600) < 0.001, 50.0, 0.5) * np.exp(rng.normal(0, 0.1, 600))
        lines = [MetricLine(step=s, time_ms=0, values={"optim/grad_norm": float(x)}) for s, x in enumerate(norms)]
        found = judge_lines(Setting(profile=load_profile("default"), planned=600), lines)
        alarms += any(f.state in RAISED for f in found)
    assert alarms <= 1


@pytest.mark.parametrize(("earned", "ill"), [(0.9, False), (0.05, True)])
def test_length_and_reward_that_rise_without_the_score_are_raised(earned, ill):
    """Longer responses with more reward are no fault if the held-out score rises, too, even by less."""
    rng = np.random.default_rng(3)
    reward = 0.2 + 0.65 * T
    found = raised({
        TOTAL: reward + rng.normal(0, 0.02, STEPS),
        REWARD: reward + rng.normal(0, 0.02, STEPS),
        LENGTH: 380 * (1 + 2.6 * T) + rng.normal(0, 12, STEPS),
        SCORE: 0.2 + earned * 0.65 * T + rng.normal(0, 0.015, STEPS),
    }, every=5)  # fmt: skip
    assert ("length_reward" in found) is ill
    assert ("reward_hacking" in found) is False


@pytest.mark.parametrize(("weight", "ill"), [(1.0, False), (0.05, True)])
def test_a_reward_that_is_all_format_is_raised(weight, ill):
    """Rare right answers hardly count where the weight of correctness is a twentieth of that of the format."""
    rng = np.random.default_rng(4)
    right = 0.2 + 0.1 * T + rng.normal(0, 0.02, STEPS)
    form = np.clip(0.35 + 4 * T, 0, 0.95) + rng.normal(0, 0.05, STEPS)
    found = raised({
        TOTAL: weight * right + 0.1 * form, "reward/correct_frac": right * weight, REWARD: right * weight
    })  # fmt: skip
    assert ("format_hacking" in found) is ill


def test_a_part_of_the_reward_in_units_of_its_own_is_judged_as_such():
    """Two for a hit is no share of correct responses, and is the part of the reward that correctness makes."""
    records = {
        s: {"reward": 2.0, "rewards/correctness_reward_func/mean": 2.0 - s % 2, "grad_norm": 1.0} for s in range(9)
    }
    log = canonical(records, "a log", "trl")
    assert log.mapped.keys["rewards/correctness_reward_func/mean"][0] == "signal/task_reward"
    line = with_signals(log.lines)[0]
    assert line.values["signal/task_reward"] == 2.0
    assert "reward/correct_frac" not in line.values


def test_few_evaluations_show_a_score_that_falls_while_the_reward_rises():
    """The fall alone is within the noise of six evaluations; with the reward that rises it is not."""
    scores = np.repeat([0.42, 0.45, 0.46, 0.44, 0.42, 0.41], 25)
    reward = 0.4 + 0.5 * T
    columns = {SCORE: scores, "signal/score_se": np.full(STEPS, 0.022)}
    assert "reward_hacking" in raised({**columns, REWARD: reward}, every=25)
    assert "reward_hacking" not in raised({**columns, REWARD: np.full(STEPS, 0.5)}, every=25)


def test_equal_rewards_from_the_start_are_raised_since_the_start():
    """The metric has no change to look for: nothing was ever learned."""
    found = raised({"group/zero_std_frac": np.full(STEPS, 1.0), REWARD: np.full(STEPS, 1.0)})
    assert (found["zero_variance"].state, found["zero_variance"].step_onset) == ("critical", 1)


@pytest.mark.parametrize(("begins", "ill"), [(0.88, False), (0.3, True)])
def test_a_slow_start_has_groups_without_spread_for_a_while(begins, ill):
    """Twelve steps without spread are a fault where groups had it, and may begin a run on hard prompts."""
    share = np.concatenate([np.full(15, begins), np.full(12, 1.0), np.full(STEPS - 27, 0.5)])
    found = raised({"group/zero_std_frac": share, REWARD: np.where(share < 0.9, 0.3, 0.005)})
    assert ("zero_variance" in found) is ill


def test_a_fall_from_which_a_reward_has_risen_before_is_its_noise():
    """Seasons of a hard task; without such seasons it is a crash, whose onset is not the rise before it."""
    seasons = 0.14 + 0.12 * np.sin(np.arange(STEPS) / 4) + np.random.default_rng(5).normal(0, 0.005, STEPS)
    assert "reward_crash" not in raised({REWARD: seasons})
    found = raised({REWARD: np.where(np.arange(STEPS) < 100, 0.05 + 0.3 * (T > 0.2), 0.02)})
    assert found["reward_crash"].step_onset == 101


@pytest.mark.parametrize(("reward", "ill"), [(0.98, False), (0.6, True)])
def test_who_has_mastered_the_prompts_explores_little(reward, ill):
    """Low entropy is no warning where nearly all answers are right."""
    found = raised({"policy/entropy": np.where(T < 0.5, 0.9, 0.15), REWARD: np.full(STEPS, reward)})
    assert ("entropy_collapse" in found) is ill


def test_a_policy_that_breaks_at_once_is_a_crash_before_it_is_truncation():
    """As with a learning rate a hundred times too high: the limit of the length is not what has changed."""
    lines = lines_of({
        REWARD: np.where(T < 0.3, 0.5, 0.0),
        "response/truncated_frac": np.where(T < 0.3, 0.02, 1.0),
        "policy/entropy": np.where(T < 0.3, 0.8, 1e-4),
    })  # fmt: skip
    found = diagnose(judge_lines(SETTING, lines), near=5)
    assert [f.detector for f in found.raised][:3] == ["entropy_collapse", "reward_crash", "truncation"]
    assert "the policy broke" in found.sentence


def test_a_reward_for_length_that_ends_at_the_limit_is_critical():
    """Truncation, its effect, must not lead the verdict."""
    rng = np.random.default_rng(6)
    length = np.clip(13 + 60 * T + rng.normal(0, 1, STEPS), 0, 40)
    columns = {LENGTH: length, TOTAL: length / 40, "response/truncated_frac": np.clip((length - 20) / 20, 0, 1)}
    found = diagnose(judge_lines(SETTING, lines_of(columns)), near=5)
    assert found.first is not None
    assert (found.first.detector, found.first.state) == ("length_reward", "critical")


RECORDED = {
    LENGTH: [15.5, 17.0, 18.8, 19.1, 20.7, 23.2, 20.4, 22.9, 24.2, 20.4, 24.9, 23.8, 23.6, 22.1, 29.1, 31.7, 36.1, 36.6,
             37.0, 37.0, 37.0, 36.9, 37.0, 36.8, 37.0, 37.0, 37.0, 37.0],
    "response/truncated_frac": [0.06, 0.13, 0.12, 0.16, 0.2, 0.29, 0.27, 0.28, 0.36, 0.27, 0.37, 0.33, 0.3, 0.24, 0.48,
                                0.66, 0.91, 0.94, 0.97, 1.0, 1.0, 0.99, 1.0, 0.98, 1.0, 1.0, 1.0, 1.0],
    REWARD: [0.49, 0.48, 0.6, 0.66, 0.62, 0.6, 0.64, 0.6, 0.52, 0.59, 0.52, 0.56, 0.58, 0.69, 0.42, 0.28, 0.06, 0.03,
             0.03, 0.0, 0.0, 0.0, 0.0, 0.02, 0.0, 0.0, 0.0, 0.0],
}  # fmt: skip
"""A run of the tiny model that is rewarded for length from step 11 on (benchmarks/health_faults.py)."""


def test_what_drifts_before_it_jumps_has_the_onset_of_the_jump():
    """A length grows after the best reward, as the sentence says; a share near 1 grows no more by a factor."""
    rows = [dict(zip(RECORDED, row, strict=True)) for row in zip(*RECORDED.values(), strict=True)]
    lines = [MetricLine(step=s, time_ms=0, values=row) for s, row in enumerate(rows, start=1)]
    found = {f.detector: f for f in judge_lines(Setting(profile=load_profile("default"), planned=40), lines)}
    assert "since step 5" in found["length_balloon"].evidence
    for name in ("length_balloon", "truncation"):
        assert found[name].state == "critical"
        assert 11 <= found[name].step_onset <= 17


def test_a_crash_begins_where_the_reward_leaves_its_level():
    """A fall at once with a slow one behind it is no straight line from the best mean on."""
    reward = [
        0.49,
        0.48,
        0.6,
        0.66,
        0.62,
        0.6,
        0.64,
        0.6,
        0.52,
        0.59,
        0.34,
        0.4,
        0.38,
        0.4,
        0.38,
        0.28,
        0.23,
        0.18,
        0.23,
    ]
    reward += [0.15, 0.15, 0.2, 0.07, 0.13, 0.12, 0.15, 0.12, 0.1, 0.18, 0.09, 0.11, 0.06, 0.12, 0.07, 0.08, 0.1, 0.07]
    lines = [MetricLine(step=s, time_ms=0, values={"reward/correct_frac": x}) for s, x in enumerate(reward, 1)]
    setting = Setting(profile=load_profile("default"), recipe=None, planned=len(lines))
    [said] = [f for f in judge_lines(setting, with_signals(lines)) if f.detector == "reward_crash"]
    assert (said.state, said.step_onset) == ("critical", 11)
