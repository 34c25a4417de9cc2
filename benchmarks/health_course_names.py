"""What trainers log of a run of `health_courses.py`: its metrics with noise, under the names of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from health_course_plan import Array, Plan, wave

TRAINERS = ("trl", "verl", "open_instruct", "prime_rl", "native")


def measured(p: Plan) -> dict[str, Array]:
    """Return what a trainer measures at each step; NaN stands for a metric that was not measured."""
    rng, count = p.rng, p.steps

    def unit() -> Array:
        return wave(rng, p.noise, count)

    spread = {"entropy": 0.05, "length": 0.04, "kl": 0.15, "grad": 0.18, "clip_low": 0.25, "clip_high": 0.25,
              "mismatch": 0.1, "seconds": 0.06, "stale": 0.1, "moved": 0.25}  # fmt: skip
    found = {n: p.curves[n] * np.exp(np.clip(s * p.rough * unit(), -1.2, 1.2)) for n, s in spread.items()}
    chance = np.clip(p.skill + 0.02 * p.rough * unit(), 0.0, 1.0)
    # prompts differ in difficulty, so that groups agree more often than chance
    prompts = max(1, p.responses // p.group)
    right = np.empty(count)
    equal = np.empty(count)
    all_right = np.empty(count)
    for i, c in enumerate(chance):
        c = min(max(float(c), 1e-6), 1 - 1e-6)
        rates = rng.beta(1.2 * c + 1e-3, 1.2 * (1 - c) + 1e-3, prompts)
        hits = rng.binomial(p.group, rates)
        right[i] = hits.sum() / (prompts * p.group)
        all_right[i] = (hits == p.group).mean()
        equal[i] = all_right[i] + (hits == 0).mean()
    found["right"] = right
    found["all_right"], found["all_wrong"], found["equal"] = all_right, equal - all_right, equal
    found["reward"] = p.floor + (p.scale - p.floor) * right + np.asarray(p.extra) * abs(p.scale)
    for name in ("truncated", "errors"):
        found[name] = rng.binomial(p.responses, np.clip(p.curves[name], 0, 1)) / p.responses
    found["lr"] = p.curves["lr"]
    found["loss"] = rng.normal(0.0, 0.03, count)
    heldout = p.skill if p.heldout is None else p.heldout
    due = np.arange(count) % p.every == 0
    found["score"] = np.where(due, rng.binomial(p.problems, np.clip(heldout, 0, 1)) / p.problems, np.nan)
    for name, times in p.after.items():
        found[name] = found[name] * times
    return found


def _records(found: Mapping[str, Array], names: Mapping[str, str], optional: frozenset[str]) -> list[dict[str, float]]:
    """Return records; a metric that was not measured is left out, one that is NaN as a fault is kept."""
    rows = []
    for i in range(len(found["reward"])):
        row = {"step": i + 1}
        for key, name in names.items():
            x = float(found[key][i])
            if not (math.isnan(x) and key in optional):
                row[name] = x
        rows.append(row)
    return rows


_OPTIONAL = frozenset({"score"})


def _trl(found: dict[str, Array], p: Plan) -> list[dict[str, float]]:
    names = {
        "loss": "loss", "grad": "grad_norm", "lr": "learning_rate", "reward": "reward",
        "length": "completions/mean_length", "truncated": "completions/clipped_ratio",
        "entropy": "entropy", "kl": "kl", "clip_low": "clip_ratio/low_mean",
        "clip_high": "clip_ratio/high_mean", "equal": "frac_reward_zero_std", "seconds": "step_time",
        "mismatch": "sampling/sampling_logp_difference/mean", "score": "eval_reward",
    }  # fmt: skip
    if p.rng.uniform() < 0.5:
        names["right"] = "rewards/accuracy_reward/mean"
    return _records(found, names, _OPTIONAL)


def _verl(found: dict[str, Array], p: Plan) -> list[dict[str, float]]:
    found["both"] = found["clip_low"] + found["clip_high"]
    found["k3"] = found["mismatch"] ** 1.0 / 10
    val = "val-core/openai/gsm8k/reward/mean@1" if p.rng.uniform() < 0.5 else "val-core/math/acc/mean@1"
    names = {
        "loss": "actor/pg_loss", "grad": "actor/grad_norm", "lr": "actor/lr", "reward": "critic/score/mean",
        "length": "response_length/mean", "truncated": "response_length/clip_ratio", "entropy": "actor/entropy",
        "kl": "actor/kl_loss", "both": "actor/pg_clipfrac", "moved": "actor/ppo_kl", "seconds": "timing_s/step",
        "k3": "rollout_corr/k3_kl", "score": val,
    }  # fmt: skip
    return _records(found, names, _OPTIONAL)


def _open_instruct(found: dict[str, Array], p: Plan) -> list[dict[str, float]]:
    found["both"] = found["clip_low"] + found["clip_high"]
    found["stop"] = 1 - found["truncated"]
    names = {
        "loss": "loss/total_avg", "grad": "optim/grad_norm", "lr": "lr", "reward": "scores",
        "length": "val/sequence_lengths", "stop": "val/stop_rate", "entropy": "policy/entropy_avg",
        "both": "policy/clipfrac_avg", "mismatch": "debug/vllm_vs_local_logprob_diff_mean", "kl": "objective/kl_avg",
        "score": "eval/scores",
    }  # fmt: skip
    return _records(found, names, _OPTIONAL)


def _prime_rl(found: dict[str, Array], p: Plan) -> list[dict[str, float]]:
    found["k3"] = found["mismatch"] / 10
    names = {
        "grad": "optim/grad_norm", "lr": "optim/lr", "loss": "loss/mean", "reward": "reward/all/mean",
        "length": "seq_len/all/mean", "truncated": "is_truncated/all/mean", "entropy": "entropy/all/mean",
        "clip_low": "is_masked_low/all/mean", "clip_high": "is_masked_high/all/mean", "k3": "mismatch_kl/all/mean",
        "errors": "error/all/mean", "seconds": "time/step", "score": "eval/aime24/avg@8",
    }  # fmt: skip
    return _records(found, names, _OPTIONAL)


def _native(found: dict[str, Array], p: Plan) -> list[dict[str, float]]:
    found["se"] = np.sqrt(np.maximum(found["score"] * (1 - found["score"]), 0.002) / p.problems)
    names = {
        "loss": "optim/loss", "grad": "optim/grad_norm", "lr": "optim/lr", "reward": "reward/mean",
        "right": "reward/correct_frac", "length": "response/length_mean", "truncated": "response/truncated_frac",
        "entropy": "policy/entropy", "kl": "kl/ref_k3", "clip_low": "clip/low_frac", "clip_high": "clip/high_frac",
        "equal": "group/zero_std_frac", "all_right": "group/all_correct_frac", "all_wrong": "group/all_wrong_frac",
        "seconds": "perf/time_step_s", "mismatch": "mismatch/logp_abs_diff_mean", "stale": "staleness/steps_mean",
        "errors": "signal/rollout_error_frac", "moved": "kl/old_k3", "score": "eval/heldout/avg_at_1",
        "se": "signal/score_se",
    }  # fmt: skip
    return _records(found, names, _OPTIONAL | {"se"})


NAMES: Mapping[str, Callable[[dict[str, Array], Plan], list[dict[str, Any]]]] = {
    "trl": _trl,
    "verl": _verl,
    "open_instruct": _open_instruct,
    "prime_rl": _prime_rl,
    "native": _native,
}
