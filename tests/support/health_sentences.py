"""Holds the sentences of findings to the lines that were judged: numbers are computed again, by other code.

Windows have five points, so a run has at most 150 of them or says so.
"""

import itertools
import math
import re
import statistics

import numpy as np
import pytest

W = 5
REWARD, SCORE, LENGTH = "signal/reward", "signal/score", "response/length_mean"
LOGP = "mismatch/logp_abs_diff_mean"


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
    return shown(statistics.median(column(lines, name, math.inf)[:W]))


def check_crash(lines, f, says):
    """The best mean of w points so far, and the last one."""
    [(best, now)] = re.findall(r"fell from (\S+) to (\S+) \(means of 5 points\)", says)
    values = column(lines, REWARD, f.step_detected)
    means = [sum(values[i : i + W]) / W for i in range(len(values) - W + 1)]
    assert (best, now) == (shown(max(means)), shown(means[-1]))


def check_balloon(lines, f, says):
    """Length and reward at the named step, and now."""
    if "wrong answers" in says:
        [(now, before)] = re.findall(r"are (\S+) times as long as right ones, (\S+) times before", says)
        right, wrong = (column(lines, f"{LENGTH}_{x}", f.step_detected) for x in ("correct", "incorrect"))
        ratios = [statistics.median(wrong[-i:][:W]) / statistics.median(right[-i:][:W]) for i in (W, W + 25)]
        assert (now, before) == tuple(f"{x:.2g}" for x in ratios)
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
    entropies = column(lines, "policy/entropy", f.step_detected)
    if least := re.findall(r", (\S+) at the least", says):
        assert least == [shown(min(statistics.median(entropies[i - W : i]) for i in range(W, len(entropies) + 1)))]
    for moved, what, then, now in re.findall(
        r"the reward moved by (\S+) and the (length|truncated share) went from (\S+) to (\S+) in 12 points", says
    ):
        rewards = column(lines, REWARD, f.step_detected)
        assert float(moved) < 0
        assert moved == f"{statistics.median(rewards[-W:]) - statistics.median(rewards[-W - 12 : -12]):+.2g}"
        name = LENGTH if what == "length" else "response/truncated_frac"
        known = column(lines, name, f.step_detected)
        assert (then, now) == (shown(statistics.median(known[-W - 12 : -12])), last(lines, name, f.step_detected))


def check_truncation(lines, f, says):
    """The mean of the last and of the first points."""
    [(now, before)] = re.findall(r"(\S+)% of the responses are truncated, (\S+)% in the first 5 points", says)
    values = column(lines, "response/truncated_frac", f.step_detected)
    assert (now, before) == (f"{100 * sum(values[-W:]) / W:.1f}", f"{100 * sum(values[:W]) / W:.1f}")


def check_hacking(lines, f, says):
    """Both means of evaluations, and which way the reward went."""
    found = re.findall(r"fell from (\S+) \(mean of (\d+) evaluations until step (\d+)\) to (\S+) \(the last", says)
    [(before, size, until, now)] = found
    due = re.findall(r": a quarter of that gain and this fall are (\S+), more than", says)
    scores = column(lines, SCORE, f.step_detected)
    assert now == shown(sum(scores[-int(size) :]) / int(size))
    assert before == shown(sum(column(lines, SCORE, int(until))[-int(size) :]) / int(size))
    assert f.step_onset > int(until)
    drop = statistics.fmean(scores[-int(size) :]) - statistics.fmean(column(lines, SCORE, int(until))[-int(size) :])
    [limit] = re.findall(r"more than (\S+), which chance explains", says)
    # noise of 3% makes this difference in one run in forty: the limit is beyond
    assert (
        (float(due[0]) if due else -drop)
        >= 0.99 * float(limit)
        >= 0.99 * 2 * 0.03 * float(now) * (2 / int(size)) ** 0.5
    )
    [(r0, r1)] = re.findall(r"the training reward went from (\S+) to ([^\s;:]+)", says)
    looked = [line.step for line in lines if SCORE in line.values and line.step <= f.step_detected]
    rewards = {}
    for since, step in zip([0, *looked], looked, strict=False):
        known = [x.values[REWARD] for x in lines if since < x.step <= step][-W:]
        rewards[step] = sum(known) / len(known)
    best = looked.index(int(until)) + 1
    assert r0 == shown(statistics.fmean(rewards[s] for s in looked[best - int(size) : best]))
    assert r1 == shown(statistics.fmean(rewards[s] for s in looked[-int(size) :]))
    if due:
        gain = statistics.fmean(rewards[s] for s in looked[-int(size) :]) - statistics.fmean(
            rewards[s] for s in looked[best - int(size) : best]
        )
        assert -drop > 0
        assert float(due[0]) == pytest.approx(
            0.25 * gain / max(1.0, *column(lines, REWARD, f.step_detected)) - drop, rel=0.06
        )


def check_regression(lines, f, says):
    """The last two evaluations and the first."""
    [(now, before)] = re.findall(r"score is (\S+) \(the last two evaluations\), (\S+) at step 1 \(standard", says)
    scores = column(lines, SCORE, f.step_detected)
    assert (now, before) == (shown(sum(scores[-2:]) / 2), shown(scores[0]))


def check_shrunk(lines, f, says):
    """The median of the first and of the last points."""
    [(before, now)] = re.findall(r"shrank from (\S+) to (\S+) tokens", says)
    assert (before, now) == (first(lines, LENGTH), last(lines, LENGTH, f.step_detected))


def check_kl(lines, f, says):
    """The medians now and before, and the fall of the reward; or the mean of all points."""
    for now, times in re.findall(r"reference (\S+) nats/token, (\S+) times its mean since the beginning", says):
        known = column(lines, "kl/ref_k3", f.step_detected)
        assert now == two(statistics.median(known[-W:]))
        assert times == two(statistics.median(known[-W:]) / statistics.fmean(known))
        return
    [(now, before, when)] = re.findall(r"KL to the reference (\S+) nats/token, (\S+) ([^;]+)", says)
    known = column(lines, "kl/ref_k3", f.step_detected)
    assert now == two(statistics.median(known[-W:]))
    if ago := re.findall(r"up to (\d+) points before", when):
        assert before == two(statistics.median(known[: -int(ago[0])][-W:]))
        assert len(known) >= W + int(ago[0])
    else:
        assert (before, when) == (two(statistics.median(known[:W])), "in the first 5 points")
    for then, since in re.findall(r"the reward fell from (\S+) to (\S+)", says):
        rewards = column(lines, REWARD, f.step_detected)
        assert (then, since) == (shown(sum(rewards[-W - 12 : -12]) / W), shown(sum(rewards[-W:]) / W))


def two(x):
    """Return a number with two digits."""
    return f"{x:.2g}"


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


def median_of(lines, name, f):
    """Return the median of the last w values at the detection."""
    return statistics.median(column(lines, name, f.step_detected)[-W:])


def newest(lines, name, f):
    """Return the value at the detection."""
    return column(lines, name, f.step_detected)[-1]


def check_mismatch(lines, f, says):
    """The median now and a limit below it, or that of the first points."""
    names = {"|log p learner - log p sampler|": LOGP, "effective sample of the weights": "correction/effective_frac"}
    if found := re.findall(r"^(.*) (\S+), limit (\S+)$", says):
        [(name, now, limit)] = found
        median = median_of(lines, names[name], f)
        assert (now, median > float(limit)) == (two(median), names[name] == LOGP)
    else:
        [(before, now)] = re.findall(r"sampler\| grew from (\S+) to (\S+) and is still growing", says)
        assert (before, now) == (
            two(statistics.median(column(lines, LOGP, math.inf)[:W])),
            two(median_of(lines, LOGP, f)),
        )


def check_staleness(lines, f, says):
    """The median now and a limit below it; no recipe is named, as none is known."""
    [(now, limit)] = re.findall(r"^rollouts are (\S+) updates old when trained on; the limit is (\S+)$", says)
    assert now == shown(median_of(lines, "staleness/steps_mean", f))
    assert float(now) > float(limit)


def check_huge(lines, f, says):
    """The newest value of a single batch, or the median."""
    [(batch, now)] = re.findall(r"the updates on (one|a) batch moved? the policy by (\S+) nats", says)
    moved = newest(lines, "kl/old_k3", f) if batch == "one" else median_of(lines, "kl/old_k3", f)
    assert now == two(moved)


def check_spike(lines, f, says):
    """The norm now, the usual one before, and how many points are above the limit."""
    norms = column(lines, "optim/grad_norm", f.step_detected)
    usual = {shown(statistics.median(norms[i : i + 13])) for i in range(len(norms) - 12)}
    if found := re.findall(r"norm is (\S+) \(median of 5 points\), (\S+) before", says):
        assert found[0][0] == last(lines, "optim/grad_norm", f.step_detected)
        assert found[0][1] in usual
    elif found := re.findall(r"norm (\S+), (\S+) before; (\d+) spikes above 20 times the usual norm in (\d+) ", says):
        [(now, before, many, points)] = found
        assert (now, before in usual, points) == (shown(norms[-1]), True, str(len(norms)))
        assert sum(g > 20 * statistics.median(norms) for g in norms[13:]) == int(many)
    else:
        [(now, before, count, limit)] = re.findall(r"norm (\S+), (\S+) before; (\d+) points above (\S+) in 13", says)
        assert (now, before in usual) == (shown(norms[-1]), True)
        assert sum(g > float(limit) for g in norms[-13:]) == int(count)


def check_dead(lines, f, says):
    """All norms, or rates, of so many points; or how far each metric may have moved."""
    if found := re.findall(r"the gradient norm is (\S+) at most in (\d+) points", says):
        assert found[0][0] == two(max(column(lines, "optim/grad_norm", f.step_detected)[-int(found[0][1]) :]))
    elif found := re.findall(r"the learning rate is 0 in (\d+) points", says):
        assert not any(column(lines, "optim/lr", f.step_detected)[-int(found[0]) :])
    else:
        most = re.findall(r"entropy moved by (\S+)% at most, length by (\S+)% and reward by (\S+)%", says)
        for name, bound in zip(("policy/entropy", LENGTH, REWARD), most[0], strict=True):
            values = column(lines, name, f.step_detected)
            before, now = statistics.fmean(values[:25]), statistics.fmean(values[-25:])
            assert abs(now - before) / (1 if name == REWARD else before) <= float(bound) / 100 + 5e-4


def check_clipped(lines, f, says):
    """The median share, and the entropy before and now."""
    [(now, where)] = re.findall(r"^(\S+)% of the trained tokens are clipped (above|below)", says)
    name = "clip/high_frac" if where == "above" else "clip/low_frac"
    assert now == f"{100 * median_of(lines, name, f):.1f}"
    for then, since in re.findall(r"entropy went from (\S+) in the first 5 points to (\S+)", says):
        assert (then, since) == (first(lines, "policy/entropy"), last(lines, "policy/entropy", f.step_detected))


def check_unclipped(lines, f, says):
    """Nothing in so many points, and something before."""
    [count] = re.findall(r"^no token was clipped in (\d+) points, although tokens were clipped earlier$", says)
    clipped = [
        a + b for a, b in zip(*(column(lines, f"clip/{x}_frac", f.step_detected) for x in ("low", "high")), strict=True)
    ]
    assert (any(clipped[-int(count) :]), any(clipped[: -int(count)])) == (False, True)


def check_equal(lines, f, says):
    """The medians of all, all right and all wrong groups."""
    [now] = re.findall(r"^rewards are equal in (\S+)% of the groups", says)
    assert now == f"{100 * median_of(lines, 'group/zero_std_frac', f):.0f}"
    for found in re.findall(r": all right in (\S+)%, all wrong in (\S+)%", says):
        names = ("group/all_correct_frac", "group/all_wrong_frac")
        assert found == tuple(f"{100 * median_of(lines, name, f):.0f}" for name in names)


def check_copied(lines, f, says):
    """The means of both shares, which make up all groups, and the entropy."""
    [(right, wrong, count, entropy)] = re.findall(
        r"all right \((\S+)%\) or all wrong \((\S+)%\) for (\d+) points, .* an entropy of (\S+) nats", says
    )
    rights, wrongs = (
        column(lines, f"group/all_{x}_frac", f.step_detected)[-int(count) :] for x in ("correct", "wrong")
    )
    assert (right, wrong) == tuple(f"{100 * statistics.fmean(x):.0f}" for x in (rights, wrongs))
    assert all(math.isclose(a + b, 1, abs_tol=1e-6) for a, b in zip(rights, wrongs, strict=True))
    assert entropy == two(median_of(lines, "policy/entropy", f))


def share_of(name, text, take=median_of):
    """Return the check of a sentence with a share in whole percent."""

    def check(lines, f, says):
        [now] = re.findall(text, says)
        assert now == f"{100 * take(lines, name, f):.0f}"

    return check


def check_slow(lines, f, says):
    """The newest step, the limit, and the usual ones before."""
    seconds = column(lines, "perf/time_step_s", f.step_detected)
    if found := re.findall(r"a step took (\S+) s, the limit is (\S+) s", says):
        assert found[0][0] == f"{seconds[-1]:.0f}"
        assert seconds[-1] > float(found[0][1])
    else:
        [(now, usual)] = re.findall(r"^steps take (\S+) s, (\S+) s before$", says)
        assert (now, usual) == (shown(seconds[-1]), shown(statistics.median(seconds[-5 - W : -5])))


def check_degenerate(lines, f, says):
    """The share of one of both faults."""
    if found := re.findall(r"^(\S+)% of the samples repeat a single character", says):
        assert found[0] == f"{100 * newest(lines, 'signal/degenerate_frac', f):.0f}"
    else:
        [distinct] = re.findall(r"^samples of different prompts are the same: (\S+)% are distinct", says)
        assert distinct == f"{100 * newest(lines, 'signal/distinct_frac', f):.0f}"


def check_noise(lines, f, says):
    """The noise of the last points, and the mean of that of those until the named step, or the largest."""
    pattern = r"varies by (\S+) over (\d+) points, and by (\S+) (in the mean|at most) until step (\d+)"
    [(now, count, before, how, until)] = re.findall(pattern, says)
    rewards, size = column(lines, REWARD, f.step_detected), int(count)
    share = min(rewards) >= 0 and max(rewards) <= 1
    assert share == (how == "in the mean")
    values = [math.asin(x**0.5) for x in rewards] if share else rewards

    def noise(end):
        steps = [b - a for a, b in itertools.pairwise(values[end - size : end])]
        return statistics.fmean(sorted(abs(s - statistics.median(steps)) for s in steps)[:-1]) * math.pi**0.5 / 2

    earlier = [noise(end) for end in range(size, len(column(lines, REWARD, int(until))) + 1)]
    assert (now, before) == (two(noise(len(values))), two((statistics.fmean if share else max)(earlier)))


def check_follows(lines, f, says):
    """Correlation, lengths, the gain of the reward and that of the score."""
    if "since the beginning" in says:
        check_unearned(lines, f, says)
        return
    [(r, limit, count, before, now, gain)] = re.findall(
        r"\(correlation (\S+), limit (\S+)\); over (\d+) points the length grew from (\S+) to (\S+) tokens and the "
        r"reward by ([^\s,;]+)", says
    )  # fmt: skip
    lengths, rewards = (column(lines, x, f.step_detected)[-int(count) :] for x in (LENGTH, REWARD))
    assert r == f"{np.corrcoef(np.diff(rewards), np.diff(lengths))[0, 1]:.2f}"
    assert float(r) >= float(limit)
    assert (before, now) == (shown(statistics.fmean(lengths[:W])), shown(statistics.fmean(lengths[-W:])))
    assert gain == two(statistics.fmean(rewards[-W:]) - statistics.fmean(rewards[:W]))


def check_unearned(lines, f, says):
    """Lengths, and the gains of reward and score between the first and the last evaluations."""
    [(before, now, size, gain, moved, most)] = re.findall(
        r"grew from (\S+) to (\S+) tokens since the beginning; from the first ?(\d*) to the last ?\d* evaluations? "
        r"the reward rose by (\S+), and the held-out score moved by (\S+), (\S+) at most", says
    )  # fmt: skip
    lengths, scores = (column(lines, x, f.step_detected) for x in (LENGTH, SCORE))
    assert (before, now) == (shown(statistics.fmean(lengths[:W])), shown(statistics.fmean(lengths[-W:])))
    size = int(size or 1)
    assert size == len(scores) // 3
    assert moved == f"{statistics.fmean(scores[-size:]) - statistics.fmean(scores[:size]):+.2g}"
    assert float(moved) <= float(most) <= 0.5 * float(gain) * 1.03


def check_format(lines, f, says):
    """The rise of the reward, and the slope of the share of correct responses; or their gains since the beginning."""
    for found in re.findall(
        r"rose by (\S+) since the beginning and .* by (\S+), whose .* \(correlation (\S+) over (\d+)", says
    ):
        rewards, right = (column(lines, f"reward/{x}", f.step_detected) for x in ("mean", "correct_frac"))
        gains = [statistics.fmean(x[-W:]) - statistics.fmean(x[:W]) for x in (rewards, right)]
        r = np.corrcoef(*(np.diff(x[-int(found[3]) :]) for x in (rewards, right)))[0, 1]
        assert found[:3] == (two(gains[0]), f"{gains[1]:+.2g}", f"{r:.2f}")
        return
    [(gain, count, moved)] = re.findall(r"rose by (\S+) over (\d+) points; .* responses moved by (\S+)$", says)
    rewards, right = (column(lines, f"reward/{x}", f.step_detected)[-int(count) :] for x in ("mean", "correct_frac"))
    assert gain == two(statistics.median(rewards[-W:]) - statistics.median(rewards[:W]))
    slopes = [(b - a) / (j - i) for (i, a), (j, b) in itertools.combinations(enumerate(right), 2)]
    assert float(moved) == float(f"{int(count) * statistics.median(slopes):+.2g}")


def check_nan(lines, f, says):
    """Exactly the metrics that are not finite in that line."""
    [(step, names)] = re.findall(r"^not finite at step (\d+): (.*)$", says)
    [line] = [x for x in lines if x.step == int(step)]
    assert names.split(", ") == sorted(k for k, v in line.values.items() if not math.isfinite(v))


def check_data(lines, f, says):
    """The value in the line of the detection."""
    [(name, value)] = re.findall(r"^(\S+) is (\S+), a share must be from 0 to 1$", says)
    assert value == f"{newest(lines, name, f):.4g}"


CHECKS |= {
    "nan": check_nan,
    "data_bug": check_data,
    "mismatch": check_mismatch,
    "staleness": check_staleness,
    "huge_update": check_huge,
    "grad_spike": check_spike,
    "dead_update": check_dead,
    "clip_saturation_high": check_clipped,
    "clip_saturation_low": check_clipped,
    "clip_zero": check_unclipped,
    "zero_variance": check_equal,
    "copied_responses": check_copied,
    "effective_batch": share_of(
        "correction/effective_frac", r"^the effective sample of the weights is (\S+)% of the batch$"
    ),
    "rollout_errors": share_of("signal/rollout_error_frac", r"^(\S+)% of the rollouts are empty, aborted or failed$"),
    "dead_run": check_slow,
    "repetition": share_of("signal/repetitive_frac", r"^(\S+)% of the samples are repetitive$", newest),
    "degenerate_text": check_degenerate,
    "reward_noise": check_noise,
    "length_reward": check_follows,
    "format_hacking": check_format,
}
"""All detectors but `mixed_groups`, which needs a recipe, and `reward_stall`, which is a note."""


def checked(lines, f):
    """Hold a finding to the lines."""
    assert f.step_onset is not None
    assert f.step_detected is not None
    assert f.step_onset <= f.step_detected
    assert not re.search("suspect|because|the prompts are|the limit is too", f.evidence)
    if f.detector in CHECKS:
        CHECKS[f.detector](lines, f, f.evidence.partition("; a warning")[0])
