"""Every detector: planted fault, near miss, missing metric, recipe without use for it; batch and chunks agree."""

import json
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.health.detector import Setting, finding_of, initial_state, update
from paribus.health.detectors.group_sampling import agreement
from paribus.health.diagnose import DETECTORS, advance, diagnose, findings, initial_states, judge_lines
from paribus.health.profile import load_profile, profile_names
from paribus.recipe.presets import load_preset
from paribus.run_folder.folder import MetricLine
from paribus.study.spec import DETECTORS as NAMES
from paribus.study.spec import PROFILES

BY_NAME = {d.name: d for d in DETECTORS}
STEPS, ONSET, W = 240, 110, 20


def setting(recipe=None):
    """Return the default profile, by default without a recipe; w is 20."""
    return Setting(profile=load_profile("default"), recipe=recipe, planned=600)


def setting_of(name):
    """Return what a detector judges the made-up runs against; one needs the size of the groups."""
    groups = {"schedule.group_size": 8, "schedule.prompts_per_step": 16}
    return setting(grpo(**groups) if name == "mixed_groups" else None)


def run(**curves):
    """Return a run of 240 steps; a curve is a number or a function of the step, and absent where it gives ``None``."""
    noise = random.Random(0)
    lines = []
    for step in range(1, STEPS + 1):
        given_ = {name: curve(step) if callable(curve) else curve for name, curve in curves.items()}
        values = {
            n.replace("__", "/", 1): x * (1 if n in EXACT else 1 + noise.uniform(-0.02, 0.02))
            for n, x in given_.items()
            if x is not None
        }
        lines.append(MetricLine(step=step, time_ms=0, values=values))
    return lines


def at(before, after):
    """Return a curve that jumps at the onset."""
    return lambda step: before if step < ONSET else after


def every(period, before, after):
    """Return a curve that is logged at every so many steps, and jumps at the onset."""
    return lambda step: None if step % period else (before if step < ONSET else after)


def rising(slope, start=0.3):
    """Return a straight line."""
    return lambda step: start + slope * step


def ramp(before, factor):
    """Return a curve that grows from the onset on by this share of its level in a hundred steps."""
    return lambda step: before * (1 + factor * max(0, step - ONSET) / 100)


def spikes(step):
    """Return a gradient norm with three spikes after the onset."""
    return 20.0 if step in (ONSET, ONSET + 5, ONSET + 9, ONSET + 15) else 1.0


def along(step):
    """Return a curve that rises from the onset on and wobbles, so that another may follow it."""
    return (1 + max(0, step - ONSET) / 100) * (1 + 0.1 * math.sin(step * step))


E, R, L, Z = "policy__entropy", "signal__reward", "response__length_mean", "group__zero_std_frac"
G, S, SE, C = "optim__grad_norm", "signal__score", "signal__score_se", "reward__correct_frac"
C_RIGHT, C_WRONG = EXACT = ("group__all_correct_frac", "group__all_wrong_frac")
LEARNS = {R: rising(0.002)}
PLANTED = {
    "nan": ({E: lambda s: math.nan if s == ONSET else 0.5}, "critical"),
    "data_bug": ({Z: at(0.3, 1.2)}, "critical"),
    "rollout_errors": ({"signal__rollout_error_frac": at(0.01, 0.1)}, "warn"),
    "dead_run": ({"perf__time_step_s": at(30, 120)}, "warn"),
    "mixed_groups": ({C: 0.5, C_RIGHT: at(0.1, 0.004), C_WRONG: at(0.1, 0.004)}, "critical"),
    "copied_responses": ({E: 0.6, C_RIGHT: at(0.2, 0.45), C_WRONG: at(0.2, 0.55)}, "critical"),
    "huge_update": ({"kl__old_k3": lambda s: 2.0 if s == ONSET else 0.01}, "critical"),
    "mismatch": ({"mismatch__logp_abs_diff_mean": at(0.01, 0.08)}, "critical"),
    "staleness": ({"staleness__steps_mean": at(3, 12)}, "warn"),
    "kl_blowup": ({"kl__ref_k3": at(0.01, 0.2), R: 0.5}, "warn"),
    "grad_spike": ({G: spikes}, "warn"),
    "dead_update": ({G: at(1.0, 0.0), Z: 0.3}, "critical"),
    "zero_variance": ({Z: at(0.3, 1.0)}, "critical"),
    "effective_batch": ({"correction__effective_frac": at(0.9, 0.1)}, "warn"),
    "clip_saturation_high": ({"clip__high_frac": at(0.01, 0.2)}, "warn"),
    "clip_saturation_low": ({"clip__low_frac": at(0.01, 0.4)}, "critical"),
    "clip_zero": ({"clip__low_frac": at(0.01, 0.0), "clip__high_frac": at(0.01, 0.0)}, "warn"),
    "entropy_collapse": ({E: at(0.8, 0.15)}, "warn"),
    "entropy_explosion": ({E: at(0.5, 1.6)}, "warn"),
    "length_balloon": ({L: ramp(500, 0.8), R: 0.5}, "warn"),
    "length_collapse": ({L: at(500, 120), R: 0.5}, "warn"),
    "truncation": ({"response__truncated_frac": at(0.01, 0.12)}, "warn"),
    "repetition": ({"signal__repetitive_frac": every(10, 0, 0.2)}, "critical"),
    "degenerate_text": ({"signal__degenerate_frac": every(10, 0, 0.9)}, "critical"),
    "reward_noise": ({R: lambda s: 0.5 + (0.15 if s >= ONSET and s % 2 else 0.0)}, "warn"),
    "reward_stall": ({R: lambda s: 0.3 + 0.002 * min(s, 40)}, "note"),
    "reward_crash": ({R: at(0.5, 0.1)}, "critical"),
    "length_reward": ({"reward__mean": along, L: lambda s: 500 * along(s)}, "warn"),
    "format_hacking": ({"reward__mean": rising(0.002), C: 0.5}, "warn"),
    "reward_hacking": ({S: every(5, 0.6, 0.4), SE: every(5, 0.02, 0.02), **LEARNS}, "critical"),
    "eval_regression": ({S: every(5, 0.6, 0.4), SE: every(5, 0.02, 0.02)}, "critical"),
}
NEAR = {
    "nan": {"my__own": lambda s: math.nan},
    "data_bug": {Z: 0.95, "sampling__waste_frac": -0.3},
    "rollout_errors": {"signal__rollout_error_frac": at(0.01, 0.04)},
    "dead_run": {"perf__time_step_s": at(30, 80)},
    "mixed_groups": {C: 0.5, C_RIGHT: at(0.1, 0.02), C_WRONG: at(0.1, 0.02)},
    "copied_responses": {E: at(0.6, 0.1), C_RIGHT: at(0.2, 0.45), C_WRONG: at(0.2, 0.55)},
    "huge_update": {"kl__old_k3": at(0.01, 0.045), "ratio__mean": 1.0},
    "mismatch": {"mismatch__logp_abs_diff_mean": at(0.01, 0.018)},
    "staleness": {"staleness__steps_mean": at(3, 7)},
    "kl_blowup": {"kl__ref_k3": at(0.001, 0.04), R: 0.5},
    "grad_spike": {G: lambda s: 20.0 if s == ONSET else 1.0},
    "dead_update": {G: at(1.0, 0.0), Z: 1.0},
    "zero_variance": {Z: at(0.3, 0.48)},
    "effective_batch": {"correction__effective_frac": at(0.9, 0.3)},
    "clip_saturation_high": {"clip__high_frac": at(0.01, 0.07)},
    "clip_saturation_low": {"clip__low_frac": at(0.01, 0.07)},
    "clip_zero": {"clip__low_frac": 0.0, "clip__high_frac": lambda s: 0.0 if s % 50 else 1e-4},
    "entropy_collapse": {E: at(0.7, 0.19)},
    "entropy_explosion": {E: at(0.5, 0.95)},
    "length_balloon": {L: ramp(500, 0.8), R: rising(0.001)},
    "length_collapse": {L: at(500, 120), R: at(0.5, 0.6)},
    "truncation": {"response__truncated_frac": at(0.03, 0.045)},
    "repetition": {"signal__repetitive_frac": lambda s: None if s % 10 else (1.0 if s == 120 else 0.0)},
    "degenerate_text": {"signal__degenerate_frac": every(10, 0, 0.15)},
    "reward_noise": {R: lambda s: 0.5 + (0.02 if s >= ONSET and s % 2 else 0.0)},
    "reward_stall": {R: lambda s: 0.3 + 0.0002 * s},
    "reward_crash": {R: at(0.5, 0.3)},
    "length_reward": {"reward__mean": along, L: lambda s: 500 * along(s + 1)},
    "format_hacking": {"reward__mean": rising(0.002), C: rising(0.002)},
    "reward_hacking": {S: every(5, 0.6, 0.59), SE: every(5, 0.02, 0.02), **LEARNS},
    "eval_regression": {S: every(5, 0.6, 0.55), SE: every(5, 0.02, 0.02)},
}
NOT_FOR = {
    "staleness": {},
    "kl_blowup": {"kl": "off"},
    "mixed_groups": {"schedule.group_size": 1, "baseline": "none", "scale": "none"},
    "copied_responses": {"schedule.group_size": 1, "baseline": "none", "scale": "none"},
    "zero_variance": {"schedule.group_size": 1, "baseline": "none", "scale": "none"},
    "clip_saturation_high": {"schedule.minibatches": 1, "schedule.epochs": 1},
    "clip_saturation_low": {"clip": "none", "schedule.minibatches": 2},
    "clip_zero": {"ratio": "seq_geo", "schedule.minibatches": 2},
    "format_hacking": {"kl": "off"},
}
"""Detector to a patch of GRPO that leaves it nothing to look for."""


def grpo(**patch):
    """Return GRPO with a patch."""
    from paribus.health.remedies import patched

    recipe = patched(load_preset("grpo").recipe, patch)
    assert recipe is not None, patch
    return recipe


def test_each_detector_has_a_planted_fault_and_a_near_miss():
    """A new detector comes with both, with thresholds (if any) and with remedies."""
    assert set(BY_NAME) == set(PLANTED) == set(NEAR) == set(load_profile("default").thresholds)


@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_fault_is_found_with_evidence_onset_and_remedy(name):
    """The status is as bad as the fault; onset and detection lie after it, within the stated windows."""
    curves, state = PLANTED[name]
    [found] = [f for f in judge_lines(setting_of(name), run(**curves)) if f.detector == name]
    assert found.state == state
    assert found.evidence
    assert found.remedies
    assert found.step_detected is not None
    assert found.step_onset is not None
    assert found.step_onset <= found.step_detected
    if name not in ("reward_stall", "format_hacking", "mixed_groups"):  # their windows begin before
        assert ONSET <= found.step_detected <= ONSET + 10 * W
        assert abs(found.step_onset - ONSET) <= 5 * W


def test_groups_without_spread_explain_a_gradient_of_zero_also_if_recorded_now_and_then():
    """Trainers that update several times on a batch record the share of such groups once for all of them."""

    def state_of(share):
        lines = run(**{G: lambda s: 0.3 if s < 3 else 0.0, Z: lambda s: share(s) if s % 2 else None})[:12]
        return next(f.state for f in judge_lines(setting(), lines) if f.detector == "dead_update")

    assert state_of(lambda s: 0.0 if s < 3 else 1.0) == "ok"
    assert state_of(lambda s: 0.2) == "critical"


def test_mastered_prompts_need_no_long_responses():
    """Once nearly all is right, responses of a few tokens are no fault; they are where nothing has become right."""

    def state_of(reward):
        found = judge_lines(setting(), run(**{L: lambda s: max(4.0, 13 * 0.99**s), R: reward}))
        return next(f.state for f in found if f.detector == "length_collapse")

    assert state_of(lambda s: min(0.97, 0.5 + 0.01 * s)) == "ok"
    assert state_of(0.5) == "critical"
    assert state_of(lambda s: 0.5 + 0.004 * s if s < ONSET else 0.5) == "critical"


@pytest.mark.parametrize("reward", [0.5, rising(0.002), lambda s: min(0.9, 0.3 + 0.01 * s), at(0.3, 0.9)])
def test_a_length_that_is_all_but_gone_is_critical_whatever_the_reward_does(reward):
    """400 tokens become less than two while the reward stays, rises, has risen before, or jumps with them."""
    lines = run(**{L: lambda s: 400 * max(0.004, 1 - max(0, s - ONSET) / 60), R: reward})
    found = next(f for f in judge_lines(setting(), lines) if f.detector == "length_collapse")
    assert found.state == "critical"
    assert abs(found.step_onset - ONSET) <= 4 * W


def test_a_reward_that_has_risen_before_does_not_explain_short_responses():
    """Only the limit in tokens is lifted by it: a fall to a quarter while the reward stays is a warning."""

    def state_of(most):
        lines = run(**{L: at(400, 100), R: lambda s: min(most, 0.3 + 0.01 * s)})
        return next(f.state for f in judge_lines(setting(), lines) if f.detector == "length_collapse")

    assert (state_of(0.9), state_of(0.975)) == ("warn", "ok")  # the latter has no room left


@pytest.mark.parametrize("name", sorted(NEAR))
def test_a_near_miss_is_no_fault(name):
    """Just below a threshold, or where another metric explains it, the status stays ok."""
    detector = BY_NAME[name]
    state, changes = update(detector, setting_of(name), initial_state(), run(**NEAR[name]))
    assert finding_of(detector, setting_of(name), state).state == "ok"
    assert changes == []


@pytest.mark.parametrize("name", sorted(set(PLANTED) - {"nan", "data_bug"}))
def test_without_its_metric_nothing_is_known(name):
    """The finding says what is not recorded; the status is unknown, not ok."""
    detector = BY_NAME[name]
    state, _ = update(detector, setting(), initial_state(), run(budget__optimizer_steps=rising(1)))
    found = finding_of(detector, setting(), state)
    assert found.state == "unknown"
    assert any(m in found.evidence for m in (*detector.needs, *detector.any_of))


@pytest.mark.parametrize("name", sorted(NOT_FOR))
def test_a_recipe_may_leave_nothing_to_look_for(name):
    """Not applicable, with the reason, whatever is logged; with another recipe it applies."""
    curves, state = PLANTED[name]
    at_rest = setting(grpo(**NOT_FOR[name]))
    found = finding_of(BY_NAME[name], at_rest, update(BY_NAME[name], at_rest, initial_state(), run(**curves))[0])
    assert found.state == "not_applicable"
    assert found.evidence
    judged = setting_of(name)
    assert (
        finding_of(BY_NAME[name], judged, update(BY_NAME[name], judged, initial_state(), run(**curves))[0]).state
        == state
    )


def chunked(detector, lines, cuts):
    """Feed the lines in chunks, with the state through JSON between them."""
    state, changes = initial_state(), []
    for a, b in zip([0, *cuts], [*cuts, len(lines)], strict=True):
        state, found = update(
            detector, setting_of(detector.name), json.loads(json.dumps(state, allow_nan=False)), lines[a:b]
        )
        changes += found
    return finding_of(detector, setting_of(detector.name), state), changes


@pytest.mark.parametrize("name", sorted(PLANTED))
@settings(max_examples=5, deadline=None)
@given(st.lists(st.integers(0, STEPS), max_size=6).map(sorted))
def test_chunks_do_not_change_a_verdict(name, cuts):
    """Any chunks, with the state written and read as JSON between them, give the findings of the batch."""
    lines = run(**PLANTED[name][0])
    whole = chunked(BY_NAME[name], lines, [])
    assert whole[1]
    assert chunked(BY_NAME[name], lines, cuts) == whole


def status_of(name, curves, recipe=None):
    """Return the status of a detector on a made-up run."""
    state, _ = update(BY_NAME[name], setting(recipe), initial_state(), run(**curves))
    return state["worst"]["state"] if state["worst"] else state["status"]


def test_a_log_in_which_nothing_was_ever_clipped_raises_nothing():
    """With one update per batch the ratio is 1, so it is unknown without a recipe; with several updates it warns."""
    never = {"clip__low_frac": 0.0, "clip__high_frac": 0.0}
    assert status_of("clip_zero", never) == "unknown"
    assert status_of("clip_zero", never, grpo(**{"schedule.minibatches": 2})) == "warn"


@pytest.mark.parametrize(("share", "dead", "state"), [(0.3, 0.8, "ok"), (0.3, 0.0, "warn"), (0.03, 0.0, "ok")])
def test_a_pause_of_rare_clips_is_no_finding(share, dead, state):
    """A token is clipped now and then, and later none: a surprise where many groups still have a gradient alone."""
    clips = {"clip__low_frac": lambda s: 0.002 if s < ONSET and s * share % 1 < share else 0.0, "clip__high_frac": 0.0}
    assert status_of("clip_zero", clips | {Z: lambda s: 0.0 if s < ONSET else dead}) == state


def test_a_run_without_an_update_is_never_ok():
    """Where the filter leaves nothing there is no gradient norm; the count of updates says that nothing is trained."""
    curves = {"budget__optimizer_steps": 0.0, "reward__mean": 0.3, E: 0.5, Z: 1.0}
    said = judge_lines(setting(), run(**curves))
    assert {f.detector: f for f in said}["dead_update"].state == "critical"
    assert diagnose(said).status == "critical"
    late = {**curves, "budget__optimizer_steps": lambda s: float(max(0, s - 2))}
    assert {f.detector: f.state for f in judge_lines(setting(), run(**late))}["dead_update"] == "unknown"


def test_dual_and_capped_tokens_count_as_clipped():
    """The dual clip adds to what is clipped above, and a run whose tokens are only capped or dual has clipped some."""
    never, moving = {"clip__low_frac": 0.0, "clip__high_frac": 0.0}, grpo(**{"schedule.minibatches": 2})
    for name in ("dual", "capped"):
        assert status_of("clip_zero", never | {f"clip__{name}_frac": 0.02}, moving) == "ok"
        assert status_of("clip_zero", never | {f"clip__{name}_frac": 0.0}, moving) == "warn"
    found = {f.detector: f for f in judge_lines(setting(), run(clip__high_frac=0.05, clip__dual_frac=at(0.0, 0.05)))}
    assert found["clip_saturation_high"].state == "warn"
    assert "% by the dual clip" in found["clip_saturation_high"].evidence


@pytest.mark.parametrize("period", [2, 3, 5])
def test_an_oscillation_is_noise_whatever_its_period(period):
    """A reward that begins to swing is found in short runs and long ones, also where it turns in few of the steps."""
    chance = random.Random(1)
    for points in (100, 600):
        rewards = [0.5 + chance.gauss(0, 0.05) for _ in range(60)]
        rewards += [chance.gauss(0.7 if s % period < period / 2 else 0.3, 0.05) for s in range(60, points)]
        lines = [MetricLine(step=s, time_ms=s, values={"signal/reward": x}) for s, x in enumerate(rewards, 1)]
        [found] = [f for f in judge_lines(replace(setting(), planned=points), lines) if f.detector == "reward_noise"]
        assert (found.state, abs(found.step_onset - 60) <= 15) == ("warn", True)


def test_the_first_right_answers_are_no_noise():
    """A reward that is 0 for a while has no noise until it rises, and then little of it."""
    chance = random.Random(3)
    rewards = [sum(chance.random() < (0.003 if s < 18 else 0.05) for _ in range(64)) / 64 for s in range(60)]
    lines = [MetricLine(step=s, time_ms=s, values={"signal/reward": x}) for s, x in enumerate(rewards, 1)]
    [found] = [f for f in judge_lines(replace(setting(), planned=60), lines) if f.detector == "reward_noise"]
    assert found.state == "ok"


def test_numbers_at_the_end_of_the_floats_are_no_noise():
    """Differences that overflow give neither a warning of numpy nor a finding of "nan"; other rules may judge them."""
    curves = {R: lambda s: 1.7e308 if s % 2 else -1.7e308, E: lambda s: 1.7e308 if s % 3 else 0.5}
    said = judge_lines(setting(), run(**curves))
    [found] = [f for f in said if f.detector == "reward_noise"]
    assert found.state in ("unknown", "ok")
    assert not [f.evidence for f in said if "nan" in f.evidence]


def test_a_share_of_both_sides_is_not_told_as_one_of_above():
    """A trainer like verl logs how many tokens are clipped, not on which side: the finding says so."""
    both = run(signal__clipped_frac=at(0.01, 0.2))
    found = {f.detector: f for f in judge_lines(setting(), both)}
    assert "clipped above or below (the log has only the sum)" in found["clip_saturation_high"].evidence
    assert (found["clip_saturation_high"].state, found["clip_saturation_low"].state) == ("warn", "unknown")


def test_before_training_is_said_of_step_0_alone():
    """A log that starts with a later evaluation has no score from before training."""
    fall = PLANTED["eval_regression"][0]
    lines = run(**fall)
    first = next(line.step for line in lines if S.replace("__", "/") in line.values)
    for lost, says in ((first, "before training"), (0, f"at step {first}")):
        moved = [MetricLine(step=line.step - lost, time_ms=0, values=line.values) for line in lines]
        [found] = [f for f in judge_lines(setting(), moved) if f.detector == "eval_regression"]
        assert f" {says} (standard error" in found.evidence


def test_many_groups_that_differ_a_little_are_not_mixed():
    """With enough groups, prompts of nearly one difficulty still differ from chance, and no alarm is raised."""
    nearly = {C: 0.5, C_RIGHT: 0.007, C_WRONG: 0.007}
    recipe = grpo(**{"schedule.group_size": 8, "schedule.prompts_per_step": 128})
    assert status_of("mixed_groups", nearly, recipe) == "ok"
    assert status_of("mixed_groups", {**nearly, C_RIGHT: 0.004, C_WRONG: 0.004}, recipe) == "critical"


@given(st.floats(0.05, 0.95), st.integers(2, 16), st.floats(0.01, 0.6))
@settings(max_examples=25, deadline=None)
def test_a_group_agrees_as_often_as_its_distribution_says(p, size, correlation):
    """The probability of agreement is that of the beta-binomial, and never below that of independent responses."""
    from scipy import stats

    a, b = (x * (1 - correlation) / correlation for x in (p, 1 - p))
    law = stats.betabinom(size, a, b)
    assert agreement(p, size, correlation) == pytest.approx(law.pmf(0) + law.pmf(size), rel=1e-6)
    assert agreement(p, size, correlation) >= agreement(p, size, 0.0) * (1 - 1e-9)


def test_one_token_with_a_huge_ratio_is_no_huge_update():
    """What only the mean of the ratio shows comes from few tokens; moved probabilities show in both."""
    spike = {"kl__old_k3": lambda s: 3.0 if s == ONSET else 0.01, "ratio__mean": lambda s: 3.9 if s == ONSET else 1.0}
    assert status_of("huge_update", spike) == "ok"
    assert status_of("huge_update", {**spike, "ratio__mean": 1.0}) == "critical"


@pytest.mark.parametrize(
    ("first", "later", "status"),
    [(0.02, 0.4, "warn"), (0.02, 0.6, "critical"), (0.4, 0.4, "warn"), (0.6, 0.6, "critical")],
)
def test_truncation_is_critical_at_a_half(first, later, status):
    """Below a half of the responses the run may learn well."""
    assert status_of("truncation", {"response__truncated_frac": at(first, later)}) == status


@pytest.mark.parametrize(("reward", "status"), [(0.5, "ok"), (0.0, "ok"), (0.3, "critical")])
def test_a_reward_that_is_not_correctness_is_a_bug(reward, status):
    """Where the recipe rewards correctness alone, the mean reward follows from the share of correct responses."""
    lines = [MetricLine(step=s, time_ms=0, values={"reward/mean": reward, "reward/correct_frac": 0.5}) for s in (1, 2)]
    state, _ = update(BY_NAME["data_bug"], setting(grpo(kl="off")), initial_state(), lines)
    assert state["status"] == status


def test_few_evaluations_show_a_hacked_reward_against_the_start():
    """A training reward that rises while the score falls below the start is hacked; one that falls, too, is not."""
    scores = {S: every(40, 0.6, 0.3), SE: every(40, 0.02, 0.02)}
    assert status_of("reward_hacking", {**scores, R: at(0.5, 0.9)}) == "critical"
    assert status_of("reward_hacking", {**scores, R: at(0.5, 0.3)}) == "ok"


def test_one_by_one_is_the_batch_for_all_detectors_together():
    """Feeding single points to the battery gives the batch's findings, and old states are not touched."""
    lines = run(**{**PLANTED["entropy_collapse"][0], **PLANTED["grad_spike"][0], **LEARNS})[:170]
    states, changes = initial_states(), []
    for one in lines:
        before = json.dumps(states)
        after, found = advance(setting(), states, [one])
        assert json.dumps(states) == before
        states, changes = after, changes + found
    assert findings(setting(), states) == judge_lines(setting(), lines)
    assert {f.detector for f in changes} == {"entropy_collapse", "grad_spike"}


def test_a_state_is_strict_json_whatever_is_logged():
    """Metrics that are not finite are reported, and do not enter the state."""
    curves = {name: (lambda s: math.nan if s == ONSET else math.inf) for name in (E, R, L, G, "budget__gen_tokens")}
    states, changes = advance(setting(), initial_states(), run(**curves))
    json.dumps(states, allow_nan=False)
    assert {f.detector for f in changes if f.state == "critical"} >= {"nan", "grad_spike"}


def test_stale_rollouts_are_no_mismatch():
    """Where sampling lags behind by design, the difference holds updates of the policy, and is not judged."""
    curves = PLANTED["mismatch"][0]
    for patch, status in (({}, "critical"), ({"schedule.staleness": 2}, "unknown")):
        state, _ = update(BY_NAME["mismatch"], setting(grpo(**patch)), initial_state(), run(**curves))
        assert state["status"] == status


def test_a_lamp_is_cleared_after_a_calm_window_and_the_run_remembers():
    """Truncation that ends clears the status; the verdict on the run keeps it, with the step at which it ended."""
    detector = BY_NAME["truncation"]
    lines = run(response__truncated_frac=lambda s: 0.12 if 60 <= s < 120 else 0.01)
    state, changes = update(detector, setting(), initial_state(), lines)
    assert [f.state for f in changes] == ["warn", "ok"]
    found = finding_of(detector, setting(), state)
    assert (found.state, found.step_cleared) == ("warn", changes[1].step_detected)
    assert 120 + W <= changes[1].step_detected <= 120 + 3 * W


@pytest.mark.parametrize(("name", "low", "high"), [("low", 0.02, 0.2), ("high", 0.2, 0.02)])
def test_a_tight_bound_is_told_at_a_share_that_a_usual_one_has(name, low, high):
    """With 6% clipped tokens, a bound of 0.02 on that side is reported with the bound; a usual bound is not."""
    detector = BY_NAME[f"clip_saturation_{name}"]
    lines = run(**{f"clip__{name}_frac": 0.06})
    updates = {"schedule.minibatches": 4}
    tight = setting(grpo(**updates, **{"clip.low": low, "clip.high": high}))
    found = finding_of(detector, tight, update(detector, tight, initial_state(), lines)[0])
    assert found.state == "warn"
    assert "the bound is 0.02" in found.evidence
    usual = setting(grpo(**updates, **{"clip.low": high, "clip.high": low}))
    assert finding_of(detector, usual, update(detector, usual, initial_state(), lines)[0]).state == "ok"


@pytest.mark.parametrize(("often", "status"), [(3, "ok"), (1, "critical")])
def test_a_value_now_and_then_raises_nothing(often, status):
    """A third of the points far above a threshold raise nothing, all of them do."""
    detector = BY_NAME["clip_saturation_high"]
    state, _ = update(detector, setting(), initial_state(), run(clip__high_frac=lambda s: 0.0 if s % often else 0.3))
    assert state["status"] == status


def test_the_state_of_all_detectors_is_small():
    """What a run's detectors remember stays below 150 kB, however long the run."""
    curves = {k: v for name in PLANTED for k, v in PLANTED[name][0].items()}
    lines = run(**curves)
    short, long = (json.dumps(advance(setting(), initial_states(), x)[0]) for x in (lines, lines * 3))
    assert len(long) < 150_000
    assert len(long) < 1.3 * len(short)


def test_short_runs_are_judged_in_short_windows():
    """A run of 40 planned steps has windows of 5 points, so that a collapse is found within 20 steps."""
    short = Setting(profile=load_profile("default"), planned=40)
    lines = run(policy__entropy=lambda s: 0.8 if s < 15 else 0.02)[:40]
    found = finding_of(
        BY_NAME["entropy_collapse"], short, update(BY_NAME["entropy_collapse"], short, initial_state(), lines)[0]
    )
    assert found.state == "critical"
    assert 15 <= found.step_onset <= found.step_detected <= 25


def test_a_study_file_may_name_each_detector_and_profile():
    """The lists of the study language, which knows no detectors, are those of the battery."""
    assert tuple(d.name for d in DETECTORS) == NAMES
    assert profile_names() == PROFILES
