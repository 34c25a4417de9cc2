"""Every clause of a sentence holds in the data: numbers are computed again from the lines, by other code."""

import math

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from paribus.health.detector import Setting
from paribus.health.diagnose import DETECTORS, judge_lines
from paribus.health.finding import RAISED
from paribus.health.profile import load_profile
from paribus.run_folder.folder import MetricLine
from support.health_sentences import CHECKS, LENGTH, LOGP, REWARD, SCORE, checked

STEPS = 160
SETTING = Setting(profile=load_profile("default"), planned=STEPS)
LEVELS = {
    REWARD: (0.05, 0.4, 0.8),
    LENGTH: (10.0, 300.0, 900.0),
    "policy/entropy": (0.02, 0.15, 0.7, 2.5),
    "response/truncated_frac": (0.01, 0.3, 0.7),
    "kl/ref_k3": (0.01, 0.2, 3.0),
    "optim/grad_norm": (0.5, 4.0, 30.0),
    SCORE: (0.2, 0.5, 0.7),
}


def run_of(seed):
    """Return a run whose metrics go from one level to another, each at a step of its own, with noise."""
    rng = np.random.default_rng(seed)
    columns = {}
    for name, levels in LEVELS.items():
        a, b = rng.choice(levels, 2)
        share = np.clip((np.arange(STEPS) - rng.integers(5, 120)) / rng.choice([1, 15]), 0, 1)
        columns[name] = (a + (b - a) * share) * (1 + 0.03 * rng.normal(size=STEPS))
    every = rng.choice([5, 10, 25])
    lines = []
    for s in range(STEPS):
        logged = {n: float(f"{x[s]:.7g}") for n, x in columns.items() if n != SCORE or s % every == 0}
        lines.append(MetricLine(step=s + 1, time_ms=0, values=logged))
    return lines


OTHERS = {
    LOGP: (0.005, 0.03, 0.2),
    "staleness/steps_mean": (0.5, 20.0),
    "kl/old_k3": (0.01, 0.08, 2.0),
    "clip/high_frac": (0.0, 0.02, 0.15, 0.4),
    "clip/low_frac": (0.0, 0.02, 0.15, 0.4),
    "group/zero_std_frac": (0.2, 0.92, 0.96),
    "correction/effective_frac": (0.9, 0.15),
    "signal/rollout_error_frac": (0.01, 0.1, 0.4),
    "perf/time_step_s": (10.0, 60.0, 900.0),
    "signal/repetitive_frac": (0.0, 0.03, 0.2),
    "signal/degenerate_frac": (0.0, 0.3),
    "signal/distinct_frac": (0.9, 0.1),
    "policy/entropy": (0.5, 0.3),
    "optim/grad_norm": (0.5, 1e-12),
    "optim/lr": (0.0, 1e-6),
    "reward/correct_frac": (0.4,),
    "response/length_mean_correct": (200.0,),
    "response/length_mean_incorrect": (150.0, 300.0, 900.0),
}


def other_run_of(seed):
    """Return a run of the other metrics, of which one in three has a reward that is noisy, pays length or format."""
    rng = np.random.default_rng([seed, 1])
    columns = {}
    ramp = np.clip((np.arange(STEPS) - 60) / 60, 0, 1)
    for name, levels in OTHERS.items():
        a, b = rng.choice(levels, 2)
        share = np.clip((np.arange(STEPS) - rng.integers(5, 120)) / rng.choice([1, 15]), 0, 1)
        columns[name] = (a + (b - a) * share) * (1 + 0.03 * rng.normal(size=STEPS))
    kind, wobble = seed % 4, rng.normal(size=STEPS)
    columns[LENGTH] = 200 * (1 + 0.05 * wobble + ramp * (kind == 0))
    columns[REWARD] = 0.4 + 0.02 * rng.normal(size=STEPS) * np.where(ramp > 0, 12 if kind == 1 else 1, 1)
    if kind == 0:
        columns[REWARD] = 0.001 * columns[LENGTH]
    columns["reward/mean"] = columns[REWARD] + 0.4 * ramp * (kind == 2)
    if kind == 3:
        columns |= {LENGTH: np.full(STEPS, 200.0), REWARD: np.full(STEPS, 0.4), "policy/entropy": np.full(STEPS, 0.5)}
        right = rng.uniform(0.3, 0.5, STEPS) * np.where(np.arange(STEPS) < 80, 0.5, 1)
        wrong = np.where(np.arange(STEPS) < 80, 0.2, 1 - right)
        columns |= {"group/all_correct_frac": right, "group/all_wrong_frac": wrong}
    if seed % 5 == 0:
        columns["optim/grad_norm"] = 0.5 * (1 + 39 * (np.arange(STEPS) % 6 == 0) * (np.arange(STEPS) > 90))
    if seed % 5 == 1:
        columns |= {f"clip/{side}_frac": np.where(np.arange(STEPS) < 60, 0.02, 0.0) for side in ("low", "high")}
    bad = rng.integers(100, STEPS, 2)
    lines = []
    for s in range(STEPS):
        logged = {n: float(f"{x[s]:.7g}") for n, x in columns.items()}
        if s == bad[0] and seed % 2:
            logged |= {"optim/loss": math.nan, "kl/ref_k3": math.inf}
        if s == bad[1] and seed % 2:
            logged["signal/clipped_frac"] = 1.25
        lines.append(MetricLine(step=s + 1, time_ms=0, values=logged))
    return lines


@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.integers(0, 100_000))
def test_every_clause_holds_in_the_data(seed):
    """Numbers, steps and directions; no sentence names a cause."""
    for lines in (run_of(seed), other_run_of(seed)):
        for f in judge_lines(SETTING, lines):
            if f.state in RAISED:
                checked(lines, f)


def test_each_check_runs():
    """Fixed draws reach the sentences that are checked: a check that never runs checks nothing."""
    met = set()
    runs = [*map(run_of, (2, 12, 45)), *map(other_run_of, range(8))]
    for lines in runs:
        for f in judge_lines(SETTING, lines):
            if f.state in RAISED:
                checked(lines, f)
                met.add(f.detector)
    assert set(CHECKS) - met == set()
    assert {d.name for d in DETECTORS} - set(CHECKS) == {"mixed_groups", "reward_stall"}
