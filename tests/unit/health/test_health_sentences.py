"""Every clause of a sentence holds in the data: numbers are computed again from the lines, by other code."""

import re
import statistics

import numpy as np
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from paribus.health.detector import Setting
from paribus.health.diagnose import judge_lines
from paribus.health.finding import RAISED
from paribus.health.profile import load_profile
from paribus.run_folder.folder import MetricLine

STEPS, W = 160, 5
SETTING = Setting(profile=load_profile("default"), planned=STEPS)
REWARD, SCORE, LENGTH = "signal/reward", "signal/score", "response/length_mean"
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


def column(lines, name, until):
    """Return the values of a metric up to a step."""
    return [line.values[name] for line in lines if line.step <= until and name in line.values]


def shown(x):
    """Return a number as sentences show it."""
    return f"{x:.3g}"


def last(lines, name, until):
    """Return the median of the last w values."""
    return shown(statistics.median(column(lines, name, until)[-W:]))


def first(lines, name):
    """Return the median of the first w values."""
    return shown(statistics.median(column(lines, name, STEPS)[:W]))


def check_crash(lines, f, says):
    """The best mean of w points so far, and the last one."""
    [(best, now)] = re.findall(r"fell from (\S+) to (\S+) \(means of 5 points\)", says)
    values = column(lines, REWARD, f.step_detected)
    means = [sum(values[i : i + W]) / W for i in range(len(values) - W + 1)]
    assert (best, now) == (shown(max(means)), shown(means[-1]))


def check_balloon(lines, f, says):
    """Length and reward at the named step, and now."""
    if "wrong answers" in says:
        return
    [(a, b, since, r0, r1)] = re.findall(
        r"from (\S+) to (\S+) tokens since step (\d+), .* from (\S+) to ([^\s;]+)", says
    )
    assert (a, r0) == (last(lines, LENGTH, int(since)), last(lines, REWARD, int(since)))
    assert (b, r1) == (last(lines, LENGTH, f.step_detected), last(lines, REWARD, f.step_detected))


def check_entropy(lines, f, says):
    """The median of the last and of the first points."""
    [(now, before)] = re.findall(r"entropy (\S+) nats/token \(median of 5 points\), (\S+) in the first 5", says)
    assert (now, before) == (last(lines, "policy/entropy", f.step_detected), first(lines, "policy/entropy"))


def check_truncation(lines, f, says):
    """The mean of the last and of the first points."""
    [(now, before)] = re.findall(r"(\S+)% of the responses are truncated, (\S+)% in the first 5 points", says)
    values = column(lines, "response/truncated_frac", f.step_detected)
    assert (now, before) == (f"{100 * sum(values[-W:]) / W:.1f}", f"{100 * sum(values[:W]) / W:.1f}")


def check_hacking(lines, f, says):
    """Both means of evaluations, and which way the reward went."""
    found = re.findall(r"fell from (\S+) \(mean of (\d+) evaluations until step (\d+)\) to (\S+) \(the last", says)
    [(before, size, until, now)] = found
    scores = column(lines, SCORE, f.step_detected)
    assert now == shown(sum(scores[-int(size) :]) / int(size))
    assert before == shown(sum(column(lines, SCORE, int(until))[-int(size) :]) / int(size))
    assert f.step_onset > int(until)


def check_regression(lines, f, says):
    """The last two evaluations and the first."""
    [(now, before)] = re.findall(r"score is (\S+) \(the last two evaluations\), (\S+) at step 1 ", says)
    scores = column(lines, SCORE, f.step_detected)
    assert (now, before) == (shown(sum(scores[-2:]) / 2), shown(scores[0]))


def check_shrunk(lines, f, says):
    """The median of the first and of the last points."""
    [(before, now)] = re.findall(r"shrank from (\S+) to (\S+) tokens", says)
    assert (before, now) == (first(lines, LENGTH), last(lines, LENGTH, f.step_detected))


def check_kl(lines, f, says):
    """The median now."""
    [now] = re.findall(r"KL to the reference (\S+) nats", says)
    assert now == f"{statistics.median(column(lines, 'kl/ref_k3', f.step_detected)[-W:]):.2g}"


CHECKS = {
    "reward_crash": check_crash,
    "length_balloon": check_balloon,
    "entropy_collapse": check_entropy,
    "entropy_explosion": check_entropy,
    "truncation": check_truncation,
    "reward_hacking": check_hacking,
    "eval_regression": check_regression,
    "length_collapse": check_shrunk,
    "kl_blowup": check_kl,
}


@settings(max_examples=12, deadline=None, phases=(Phase.explicit, Phase.reuse, Phase.generate))
@given(st.integers(0, 100_000))
def test_every_clause_holds_in_the_data(seed):
    """Numbers, steps and directions; no sentence names a cause."""
    lines = run_of(seed)
    for f in judge_lines(SETTING, lines):
        if f.state in RAISED:
            checked(lines, f)


def checked(lines, f):
    """Hold a finding to the lines."""
    assert f.step_onset is not None
    assert f.step_detected is not None
    assert f.step_onset <= f.step_detected
    assert not re.search("suspect|because|the prompts are|the limit is too", f.evidence)
    if f.detector in CHECKS:
        CHECKS[f.detector](lines, f, f.evidence.partition("; a warning")[0])


def test_each_check_runs():
    """Fixed draws reach the sentences that are checked: a check that never runs checks nothing."""
    met = set()
    for seed in (2, 12, 45):
        lines = run_of(seed)
        for f in judge_lines(SETTING, lines):
            if f.state in RAISED:
                checked(lines, f)
                met.add(f.detector)
    assert set(CHECKS) <= met
