"""Rows about verl 0.9."""

from __future__ import annotations

from typing import Any

from conformance.reproductions import (
    clamped_k3,
    distilled_apart,
    entropy_aggregated_like_the_loss,
    k3_with_gradient_of_k2,
    rejected_by_inverse_bounds,
)
from conformance.row import Row

OVERLONG = {"length.rule": {"kind": "soft_overlong", "soft_start": 24, "hard_cap": 40}}
TOKENS = {"actor.loss_agg_mode": "token-mean"}
WHITENED = {"kind": "batch_whiten", "unit": "token", "ddof": 1, "eps": 0.0}
UNDER_THE_ROOT = "verl adds 1e-8 to the variance: `eps: 0`"
CRITIC = {
    "baseline": {"kind": "critic_gae", "policy_lambda": {"kind": "fixed", "value": 0.9}},
    "auxiliary.value": {"clip": None},
}
DISTILLED = {"distillation_loss.loss_mode": "k1", "distillation_loss.distillation_loss_coef": 0.3}
REINFORCE = {"actor.policy_loss.loss_mode": "bypass_mode", "actor.loss_agg_mode": "seq-mean-token-sum"}
VALUE = "the loss is written with log pi, ours with a ratio of 1: one gradient, two values, so the loss is not compared"


def verl(*levels: str, options: dict[str, Any] | None = None, **rest: Any) -> Row:
    """Return a row about verl."""
    return Row(levels=levels, library="verl", options=options or {}, **rest)


def corrected(level: str, options: dict[str, Any], patch: dict[str, Any], **rest: Any) -> Row:
    """Return a row about the correction between sampler and learner."""
    names = {f"algorithm.rollout_correction.{k}": v for k, v in options.items()}
    return verl(f"correction: {level}", options=names, patch={"correction": {"kind": level} | patch}, **rest)


def chained(level: str, options: dict[str, Any], patch: dict[str, Any]) -> Row:
    """Return a row about the weight beside a mask of responses."""
    names = {**options, "rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.000001_1000000"}
    chain = {"kind": "chain", "mask": {"kind": "geo_mask", "low": 1e-6, "high": 1e6}, "weight": {"kind": level} | patch}
    return verl(
        f"correction.weight: {level}", patch={"correction": chain}, note="beside a mask that rejects nothing",
        options={f"algorithm.rollout_correction.{k}": v for k, v in names.items()},
    )  # fmt: skip


def kl(kind: str, estimator: str, beta: float) -> dict[str, Any]:
    """Return the patch that sets a KL term."""
    return {"kl": {"kind": kind, "estimator": estimator, "beta": beta}}


def kl_loss(kind: str, beta: float) -> dict[str, Any]:
    """Return verl's options of a KL term in the loss."""
    return {"actor.use_kl_loss": True, "actor.kl_loss_type": kind, "actor.kl_loss_coef": beta}


def kl_reward(beta: float) -> dict[str, Any]:
    """Return verl's options of k1 in the reward."""
    return {"algorithm.use_kl_in_reward": True, "algorithm.kl_ctrl.kl_coef": beta}


def band(low: float, high: float) -> dict[str, Any]:
    """Return verl's options of a clip."""
    return {"actor.clip_ratio_low": low, "actor.clip_ratio_high": high}


AGREE = [
    verl("preset: grpo", preset="grpo", options=kl_loss("low_var_kl", 0.04)),
    verl(
        "preset: dapo", preset="dapo", patch={"filter": "none", **OVERLONG},
        options={**TOKENS, **band(0.2, 0.28), "reward.reward_kwargs.overlong_buffer_cfg.len": 16},
        note="the group filter lies outside of verl's loss code: `filter: none`",
    ),
    verl(
        "preset: dr_grpo", preset="dr_grpo",
        options={
            "algorithm.norm_adv_by_std_in_grpo": False, "actor.loss_agg_mode": "seq-mean-token-sum-norm",
            "actor.loss_scale_factor": 40,
        },
    ),
    verl("preset: gspo", preset="gspo", options={"actor.policy_loss.loss_mode": "gspo", **band(3e-4, 4e-4)}),
    verl(
        "preset: gspo_token", preset="gspo_token",
        options={"actor.policy_loss.loss_mode": "gspo", **band(3e-4, 4e-4)},
    ),
    verl(
        "preset: gmpo", "ratio: geo_clipped", "clip: log_clip", preset="gmpo",
        options={"actor.policy_loss.loss_mode": "geo_mean", **band(0.4, 0.4)}, note="`clip_ratio_*` bound log r",
    ),
    verl(
        "preset: cispo", preset="cispo", options={**TOKENS, "actor.policy_loss.loss_mode": "cispo", **band(1.0, 0.28)},
        note="cap is 1 + `clip_ratio_high`, floor is 1 - `clip_ratio_low`",
    ),
    verl("preset: sapo", preset="sapo", options={"actor.policy_loss.loss_mode": "sapo"}),
    verl(
        "preset: rloo", "ratio: none", "clip: none", preset="rloo", parts=("advantage", "gradient"), note=VALUE,
        options={**REINFORCE, "algorithm.adv_estimator": "rloo", **kl_reward(0.03)},
    ),
    verl(
        "preset: reinforce_pp", "kl.unit: token", preset="reinforce_pp", patch={"kl.beta": 0.3, "scale.eps": 0.0},
        options={**TOKENS, "algorithm.adv_estimator": "reinforce_plus_plus", **kl_reward(0.3)},
        note=UNDER_THE_ROOT,
    ),
    verl(
        "preset: ppo", "kl.unit: token", preset="ppo", patch={"kl.beta": 0.3, "scale.eps": 0.0},
        options={**TOKENS, "algorithm.adv_estimator": "gae", **kl_reward(0.3)}, note=UNDER_THE_ROOT,
    ),
    verl(
        "preset: olmo3", preset="olmo3", patch={"filter": "none", "reward.factor": 1.0},
        note="`filter: none`, `reward.factor: 1`",
        options={
            **TOKENS, **band(0.2, 0.272), "algorithm.norm_adv_by_std_in_grpo": False,
            "algorithm.rollout_correction.rollout_is": "token",
            "algorithm.rollout_correction.rollout_is_threshold": 2.0,
        },
    ),
    verl("length.rule: soft_overlong", options={"reward.reward_kwargs.overlong_buffer_cfg.len": 16}, patch=OVERLONG,
        note="verl has no floor at -1, which no response reaches"),
    verl("baseline: none", "scale: none", batches=("alone",), patch={"baseline": "none", "scale": "none"},
        options={"algorithm.norm_adv_by_std_in_grpo": False}, note="groups of one keep their reward"),
    verl("baseline: group_mean", "scale: group_std"),
    verl("baseline: group_mean", "scale: none", options={"algorithm.norm_adv_by_std_in_grpo": False},
        patch={"scale": "none"}),
    verl("baseline: group_loo", options={"algorithm.adv_estimator": "rloo"},
        patch={"baseline": "group_loo", "scale": "none"}),
    verl("baseline: group_loo", options={"algorithm.adv_estimator": "rloo_vectorized"},
        patch={"baseline": "group_loo", "scale": "none"}),
    verl("baseline: group_length_weighted", options={"algorithm.adv_estimator": "opo"},
        patch={"baseline": "group_length_weighted", "scale": "none"}),
    verl("baseline: pass_at_k", batches=("scalar",), note="k = G = 4, and verl divides by G: `reward.factor: 1/4`",
        options={"algorithm.adv_estimator": "grpo_passk", "algorithm.norm_adv_by_std_in_grpo": False},
        patch={"baseline": {"kind": "pass_at_k", "k": 4}, "scale": "none", "reward.factor": 0.25}),
    verl("baseline: batch_mean", "scale: batch_whiten", options={"algorithm.adv_estimator": "reinforce_plus_plus"},
        patch={"baseline": "batch_mean", "scale": WHITENED}, note=UNDER_THE_ROOT),
    verl("baseline: critic_gae", options={"algorithm.adv_estimator": "gae", "algorithm.lam": 0.9},
        patch={**CRITIC, "scale": WHITENED}, note=UNDER_THE_ROOT),
    verl("ratio: token", "clip: ppo_min", options=band(0.1, 0.4),
        patch={"clip": {"kind": "ppo_min", "low": 0.1, "high": 0.4}}),
    verl("ratio: token", "clip: none", options={**band(1e9, 1e9), "actor.clip_ratio_c": 1e9}, patch={"clip": "none"}),
    verl("ratio: seq_geo", options={"actor.policy_loss.loss_mode": "gspo"}, patch={"ratio": "seq_geo"},
        note="verl writes GSPO as GSPO-token; A is constant in a response"),
    verl("ratio: seq_geo_token", options={"actor.policy_loss.loss_mode": "gspo"}, patch={"ratio": "seq_geo_token"}),
    verl("clip: ppo_dual", options={"actor.clip_ratio_c": 1.8}, patch={"clip": {"kind": "ppo_dual", "c": 1.8}}),
    verl("clip: is_cap_sg", options={"actor.policy_loss.loss_mode": "cispo", **band(0.3, 0.5)},
        patch={"clip": {"kind": "is_cap_sg", "cap": 1.5, "floor": 0.7}}),
    verl("clip: soft_gate", options={"actor.policy_loss.loss_mode": "sapo", "actor.tau_pos": 0.7, "actor.tau_neg": 1.6},
        patch={"clip": {"kind": "soft_gate", "tau_positive": 0.7, "tau_negative": 1.6}}),
    verl("clip: dppo_tv",
        options={"actor.policy_loss.loss_mode": "dppo_tv", **band(0.05, 0.08), "actor.clip_ratio_c": 1.3},
        patch={"clip": {"kind": "dppo_tv", "low": 0.05, "high": 0.08, "cap": 1.3}}),
    verl("clip: dppo_kl",
        options={"actor.policy_loss.loss_mode": "dppo_kl", **band(0.01, 0.02), "actor.clip_ratio_c": 1.3},
        patch={"clip": {"kind": "dppo_kl", "low": 0.01, "high": 0.02, "cap": 1.3}}),
    verl("clip: clip_cov", patch={"clip": {"kind": "clip_cov", "fraction": 1.0, "cov_low": 0.2, "cov_high": 2.0}},
        options={
            "actor.policy_loss.loss_mode": "clip_cov", "actor.policy_loss.clip_cov_ratio": 1.0,
            "actor.policy_loss.clip_cov_lb": 0.2, "actor.policy_loss.clip_cov_ub": 2.0,
        },
        note="all tokens in the range are drawn, so that nothing is random"),
    verl("clip: kl_cov", patch={"clip": {"kind": "kl_cov", "fraction": 0.05, "beta": 0.7}},
        options={
            "actor.policy_loss.loss_mode": "kl_cov", "actor.policy_loss.kl_cov_ratio": 0.05,
            "actor.policy_loss.ppo_kl_coef": 0.7,
        }),
    verl("aggregation: seq_mean"),
    verl("aggregation: seq_mean", options={"micro_batches": 2}, note="in two parts"),
    verl("aggregation: token_batch", options=TOKENS, patch={"aggregation": "token_batch"}),
    verl("aggregation: token_batch", options={**TOKENS, "micro_batches": 3}, patch={"aggregation": "token_batch"},
        note="in three parts"),
    verl("aggregation: const", patch={"aggregation": "const"},
        options={"actor.loss_agg_mode": "seq-mean-token-sum-norm", "actor.loss_scale_factor": 40}),
    verl("aggregation: seq_sum", options={"actor.loss_agg_mode": "seq-mean-token-sum"},
        patch={"aggregation": "seq_sum"}),
    verl("kl: loss (k2)", options=kl_loss("k2", 0.3), patch=kl("loss", "k2", 0.3)),
    verl("kl: loss (k3)", options=kl_loss("k3", 0.3), patch=kl("loss", "k3", 0.3)),
    verl("kl: reward (k1)", options={**kl_reward(0.05)}, patch=kl("reward", "k1", 0.05)),
    verl("kl: advantage", options=DISTILLED, patch=kl("advantage", "k1", 0.3), batches=("fresh",),
        parts=("loss", "gradient"), note="distillation by policy gradient beside rewards, in the first update"),
    corrected("token_truncate", {"rollout_is": "token", "rollout_is_threshold": 1.5}, {"cap": 1.5}),
    corrected("token_mask", {"rollout_is": "token", "rollout_is_threshold": "0.7_1.5"}, {"low": 0.7, "high": 1.5}),
    corrected("seq_truncate", {"rollout_is": "sequence", "rollout_is_threshold": 1.5}, {"cap": 1.5}),
    corrected("seq_mask", {"rollout_is": "sequence", "rollout_is_threshold": "0.5_3.0"}, {"low": 0.5, "high": 3.0}),
    chained("token_truncate", {"rollout_is": "token", "rollout_is_threshold": 1.5}, {"cap": 1.5}),
    chained("token_mask", {"rollout_is": "token", "rollout_is_threshold": "0.7_1.5"}, {"low": 0.7, "high": 1.5}),
    chained("seq_truncate", {"rollout_is": "sequence", "rollout_is_threshold": 1.5}, {"cap": 1.5}),
    verl("loss: opmd", parts=("advantage", "gradient"), note=f"`unit: token`; {VALUE}",
        options={"actor.policy_loss.loss_mode": "dro", "actor.policy_loss.dro_beta": 0.3,
                 "actor.loss_agg_mode": "seq-mean-token-sum"},
        patch={"loss": {"kind": "opmd", "tau": 0.3, "unit": "token"}, "ratio": "none", "clip": "none",
               "aggregation": "seq_sum"}),
    verl("auxiliary.value", critic=True, options={"algorithm.lam": 0.9, "critic.cliprange_value": 0.3},
        patch={**CRITIC, "scale": "none", "baseline.critic_lambda": 0.9, "auxiliary.value": {"clip": 0.3}},
        note="the critic's targets, loss and gradient with respect to its values"),
    verl("auxiliary.entropy", options={**TOKENS, "actor.entropy_coeff": 0.1},
        patch={"aggregation": "token_batch", "auxiliary.entropy": 0.1}),
]  # fmt: skip
DEVIATE = [
    verl(
        "preset: dapo_paper_agg", preset="dapo_paper_agg", options={**TOKENS, **band(0.2, 0.28)},
        patch={"filter": "none", "length.rule": "none"}, does={"aggregation": "token_batch"},
        reason="Eq. 8 of DAPO divides by the tokens of each group; verl, as DAPO's code, by those of the batch.",
    ),
    verl(
        "preset: reinforce_pp_baseline", preset="reinforce_pp_baseline",
        options={**TOKENS, **kl_loss("k2", 0.01), "algorithm.adv_estimator": "reinforce_plus_plus_baseline"},
        does={"scale": WHITENED},
        reason="Statistics weigh a response by its tokens, and the mean that comes out of that is subtracted again.",
    ),
    verl(
        "baseline: critic_gae", patch={**CRITIC, "scale": "none"}, does={"scale": WHITENED},
        options={"algorithm.adv_estimator": "gae", "algorithm.lam": 0.9},
        reason="Advantages of GAE are always whitened over the tokens of the batch.",
    ),
    verl(
        "baseline: group_mean", batches=("alone",), patch={"scale": "none"}, does={"baseline": "none"},
        options={"algorithm.norm_adv_by_std_in_grpo": False},
        reason="A group of one keeps its raw reward; its mean would leave 0.",
    ),
    verl(
        "clip: ppo_min", options={"actor.clip_ratio_c": 3.0}, does={"clip": {"kind": "ppo_dual", "c": 3.0}},
        reason="Dual clip is always on, with c = 3: tokens with A < 0 and r > 3 have no gradient. It can only be put "
        "out of reach.",
    ),
    verl(
        "clip: is_cap_sg", options={"actor.policy_loss.loss_mode": "cispo"},
        patch={"clip": {"kind": "is_cap_sg", "cap": 1.2}},
        does={"clip": {"kind": "is_cap_sg", "cap": 1.2, "floor": 0.8}},
        reason="The lower bound is on by default, at 1 - `clip_ratio_low` = 0.8; the paper has none.",
    ),
    verl(
        "aggregation: const", options={"actor.loss_agg_mode": "seq-mean-token-sum-norm"}, batches=("eight",),
        patch={"aggregation": "const"}, does={"aggregation": {"kind": "const", "length": 24}},
        reason="Without `loss_scale_factor` the constant is the width of the padded batch, 24 here, which changes from "
        "batch to batch.",
    ),
    verl(
        "kl: advantage", options=DISTILLED, patch=kl("advantage", "k1", 0.3), does=distilled_apart,
        reason="The log ratio is that of the policy in each update, not of the one that sampled, and is clipped apart "
        "from the rewards, with a dual clip.",
    ),
    verl(
        "kl: loss (k3)", options=kl_loss("k3+", 0.3), patch=kl("loss", "k3", 0.3), does=k3_with_gradient_of_k2,
        reason="A `+` behind the estimator keeps its value and takes the gradient of k2.",
    ),
    verl(
        "kl: loss (k3)", options=kl_loss("k3", 0.3), patch=kl("loss", "k3", 0.3), does=clamped_k3, batches=("far",),
        reason="k3 is cut off at 10, so tokens furthest from the reference are not pulled back.",
    ),
    corrected(
        "geo_mask", {"rollout_is": None, "rollout_rs": "seq_mean_k1", "rollout_rs_threshold": "0.7_1.25"},
        {"low": 0.7, "high": 1.25}, does=rejected_by_inverse_bounds,
        reason="Bounds of `rollout_rs` on k1 are of sampler over learner, the inverse of w, which `rollout_is` bounds; "
        "and what it rejects leaves the denominator, while here it has weight 0 and counts.",
    ),
    verl(
        "auxiliary.entropy", options={"actor.entropy_coeff": 0.1}, patch={"auxiliary.entropy": 0.1},
        does=entropy_aggregated_like_the_loss,
        reason="The entropy bonus is aggregated like the policy loss; here it is the mean over tokens.",
    ),
]  # fmt: skip
