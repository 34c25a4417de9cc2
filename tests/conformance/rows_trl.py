"""Rows about TRL 1.16."""

from __future__ import annotations

from typing import Any

from conformance.reproductions import kl_times_sequence_ratio, unbounded_ratio
from conformance.row import Row

OVERLONG = {"length.rule": {"kind": "soft_overlong", "soft_start": 24, "hard_cap": 40}}
MASKED = {"length.truncated": "mask_loss", "length.count_masked_rows": True}
SEQUENCE = {"ratio": "seq_product", "aggregation": "seq_mean"}
LOO = {"baseline": "group_loo", "scale": "none", **SEQUENCE}
WHITENED = {"kind": "batch_whiten", "unit": "sequence", "ddof": 1, "eps": 1e-4}
NO_SAMPLING = "TRL has no dynamic sampling: `filter: none`"


def trl(*levels: str, options: dict[str, Any] | None = None, **rest: Any) -> Row:
    """Return a row about TRL."""
    return Row(levels=levels, library="TRL", options=options or {}, **rest)


def corrected(level: str, mode: str, patch: dict[str, Any], **bounds: float) -> Row:
    """Return a row about the correction between sampler and learner."""
    names = {f"vllm_importance_sampling_{k}": v for k, v in {"mode": mode, **bounds}.items()}
    return trl(
        f"correction: {level}", options={"use_vllm": True, **names}, patch={"correction": {"kind": level} | patch}
    )


VESPO = {"ratio": "seq_product", "clip": "vespo", "aggregation": "token_batch"}
AGREE = [
    trl("preset: grpo", preset="grpo", options={"beta": 0.04, "use_bias_correction_kl": False}),
    trl(
        "preset: dapo", preset="dapo", patch={"filter": "none", **OVERLONG}, note=NO_SAMPLING,
        options={"loss_type": "dapo", "epsilon_high": 0.28, "soft_punish_cache": 16},
    ),
    trl("preset: dr_grpo", preset="dr_grpo", options={"loss_type": "dr_grpo", "scale_rewards": "none"}),
    trl(
        "preset: gspo", preset="gspo",
        options={"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    ),
    trl(
        "preset: cispo", preset="cispo", options={"loss_type": "cispo", "epsilon_high": 1.28},
        note="`epsilon_high` is the cap itself",
    ),
    trl("preset: sapo", preset="sapo", options={"loss_type": "sapo"}),
    trl(
        "preset: gmpo", "ratio: geo_clipped", "clip: log_clip", preset="gmpo",
        options={"trainer": "GMPOTrainer", "epsilon": 0.4}, note="`epsilon` bounds log r",
    ),
    trl("preset: lite_ppo", preset="lite_ppo", options={"loss_type": "dapo", "scale_rewards": "batch"}),
    trl(
        "preset: olmo3", preset="olmo3", patch={"filter": "none", "reward.factor": 1.0},
        note=f"{NO_SAMPLING}; `reward.factor: 1`",
        options={
            "loss_type": "dapo", "scale_rewards": "none", "epsilon_high": 0.272, "use_vllm": True,
            "vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": 2.0,
        },
    ),
    trl(
        "preset: gdpo_multireward", preset="gdpo_multireward",
        options={"second_reward": True, "multi_objective_aggregation": "normalize_then_sum"},
    ),
    trl("length.rule: soft_overlong", options={"soft_punish_cache": 16}, patch=OVERLONG),
    trl(
        "length.truncated: mask_loss", options={"mask_truncated_completions": True}, patch=MASKED,
        note="masked rows count: `count_masked_rows: true`",
    ),
    trl(
        "length.truncated: mask_loss", patch={**MASKED, "aggregation": "token_batch"},
        options={"mask_truncated_completions": True, "loss_type": "dapo"},
    ),
    trl("baseline: group_mean", "scale: group_std"),
    trl("baseline: group_mean", "scale: none", options={"scale_rewards": "none"}, patch={"scale": "none"}),
    trl("baseline: group_loo", "ratio: seq_product", options={"trainer": "RLOOTrainer"}, patch=LOO),
    trl(
        "scale: batch_std_raw", options={"scale_rewards": "batch"},
        patch={"scale": {"kind": "batch_std_raw", "unit": "sequence", "ddof": 1, "eps": 1e-4}},
    ),
    trl(
        "scale: batch_whiten", options={"trainer": "RLOOTrainer", "normalize_advantages": True},
        patch={**LOO, "scale": WHITENED}, note="`unit: sequence`",
    ),
    trl("ratio: token", "clip: ppo_min", options={"epsilon": 0.1, "epsilon_high": 0.4},
        patch={"clip": {"kind": "ppo_min", "low": 0.1, "high": 0.4}}),
    trl("ratio: seq_geo", "clip: ppo_min", options={"importance_sampling_level": "sequence"},
        patch={"ratio": "seq_geo"}),
    trl("ratio: seq_geo_token", options={"importance_sampling_level": "sequence"}, patch={"ratio": "seq_geo_token"},
        note="A is constant in a response, where both ratios of GSPO have one gradient"),
    trl("clip: none", options={"epsilon": 1e9, "epsilon_high": 1e9}, patch={"clip": "none"},
        note="bounds that no ratio reaches"),
    trl("clip: two_sided", options={"delta": 1.5}, patch={"clip": {"kind": "two_sided", "delta": 1.5}}),
    trl(
        "preset: deepseek_v32", preset="deepseek_v32", patch={"kl.beta": 0.3, "correction.delta": 0.1},
        options={"scale_rewards": "none", "beta": 0.3, "off_policy_mask_threshold": 0.1},
    ),
    trl("ratio: seq_product", "clip: vespo", options={"loss_type": "vespo"}, patch=VESPO),
    trl(
        "clip: vespo", patch={**VESPO, "clip": {"kind": "vespo", "k_positive": 0.5, "lambda_positive": 0.4,
                                                "k_negative": 0.7, "lambda_negative": 0.3}},
        options={"loss_type": "vespo", "vespo_k_pos": 0.5, "vespo_lambda_pos": 0.4, "vespo_k_neg": 0.7,
                 "vespo_lambda_neg": 0.3},
    ),
    trl("correction: off_policy_mask", options={"off_policy_mask_threshold": 0.05},
        patch={"correction": {"kind": "off_policy_mask", "delta": 0.05}}),
    trl(
        "correction: chain", note="the mask by the sign of the advantage beside TIS of vLLM's log-probabilities",
        options={
            "off_policy_mask_threshold": 0.05, "use_vllm": True, "vllm_importance_sampling_mode": "token_truncate",
            "vllm_importance_sampling_clip_max": 1.5,
        },
        patch={"correction": {"kind": "chain", "mask": {"kind": "off_policy_mask", "delta": 0.05},
                              "weight": {"kind": "token_truncate", "cap": 1.5}}},
    ),
    trl("clip: is_cap_sg", options={"loss_type": "cispo", "epsilon_high": 2.0},
        patch={"clip": {"kind": "is_cap_sg", "cap": 2.0}, "aggregation": "token_batch"}),
    trl("clip: soft_gate", options={"loss_type": "sapo", "sapo_temperature_pos": 0.7, "sapo_temperature_neg": 1.6},
        patch={"clip": {"kind": "soft_gate", "tau_positive": 0.7, "tau_negative": 1.6}}),
    trl("aggregation: seq_mean"),
    trl("aggregation: seq_mean", options={"gradient_accumulation_steps": 2}, note="in two parts of equal size"),
    trl("aggregation: token_batch", options={"loss_type": "dapo"}, patch={"aggregation": "token_batch"}),
    trl("aggregation: token_batch", options={"loss_type": "dapo", "gradient_accumulation_steps": 2},
        patch={"aggregation": "token_batch"}, note="in two parts"),
    trl("aggregation: token_micro", options={"loss_type": "bnpo", "gradient_accumulation_steps": 2},
        patch={"aggregation": "token_micro"}, note="in two parts"),
    trl("aggregation: const", options={"loss_type": "dr_grpo"}, patch={"aggregation": "const"}),
    trl("aggregation: seq_sum", options={"loss_type": "luspo"}, patch={"aggregation": "seq_sum"}),
    trl("kl: loss (k3)", options={"beta": 0.3, "use_bias_correction_kl": False},
        patch={"kl": {"kind": "loss", "estimator": "k3", "beta": 0.3}}),
    trl("kl: loss_isw (k3)", options={"beta": 0.3}, patch={"kl": {"kind": "loss_isw", "estimator": "k3", "beta": 0.3}}),
    trl("kl: reward (k1)", options={"trainer": "RLOOTrainer", "beta": 0.05},
        patch={**LOO, "kl": {"kind": "reward", "estimator": "k1", "beta": 0.05}}),
    corrected("token_truncate", "token_truncate", {"cap": 1.5}, clip_max=1.5),
    corrected("token_mask", "token_mask", {"low": 0.7, "high": 1.5}, clip_min=0.7, clip_max=1.5),
    corrected("seq_truncate", "sequence_truncate", {"cap": 1.5}, clip_max=1.5),
    corrected("seq_mask", "sequence_mask", {"low": 0.5, "high": 3.0}, clip_min=0.5, clip_max=3.0),
    trl("token_weight: top_entropy", options={"top_entropy_quantile": 0.2},
        patch={"token_weight": {"kind": "top_entropy", "fraction": 0.2}}, batches=("scalar", "limit")),
    trl("auxiliary.entropy", options={"entropy_coef": 0.1}, patch={"auxiliary.entropy": 0.1}),
]  # fmt: skip
DEVIATE = [
    trl(
        "preset: rloo", preset="rloo", options={"trainer": "RLOOTrainer", "beta": 0.03},
        does={**SEQUENCE, "clip": "ppo_min"},
        reason="`RLOOTrainer` adds what the paper does not have: the ratio of whole responses, a product over all "
        "tokens, and PPO's clip on it.",
    ),
    trl(
        "preset: reinforce_pp", preset="reinforce_pp", patch={"kl": "off"},
        options={"trainer": "RLOOTrainer", "normalize_advantages": True},
        does={**LOO, "scale": WHITENED},
        reason="What TRL's index of papers gives for REINFORCE++ has a leave-one-out baseline and the product ratio.",
    ),
    trl(
        "preset: dr_grpo", preset="dr_grpo", options={"loss_type": "dr_grpo"},
        does={"scale": {"kind": "group_std", "eps": 1e-4}},
        reason='`loss_type="dr_grpo"` is half of Dr. GRPO: `scale_rewards` still divides by the std of the group.',
    ),
    trl(
        "preset: gspo", preset="gspo",
        options={"loss_type": "dapo", "importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
        does={"aggregation": "token_batch"},
        reason='Under the default `loss_type="dapo"` a response weighs as much as it has tokens.',
    ),
    trl(
        "preset: dapo_paper_agg", preset="dapo_paper_agg", options={"loss_type": "dapo", "epsilon_high": 0.28},
        patch={"filter": "none", "length.rule": "none"}, does={"aggregation": "token_batch"},
        reason="Eq. 8 of DAPO divides by the tokens of each group; TRL, as DAPO's code, by those of the batch.",
    ),
    trl(
        "clip: is_cap_sg", options={"loss_type": "cispo", "epsilon_high": 0.28},
        patch={"clip": {"kind": "is_cap_sg", "cap": 1.28}, "aggregation": "token_batch"},
        does={"clip": {"kind": "is_cap_sg", "cap": 0.28}},
        reason="`epsilon_high` is the cap of r, not of r - 1 as in the paper: with values that are usual elsewhere "
        "every token weighs about that value.",
    ),
    trl(
        "kl: loss (k3)", options={"beta": 0.3}, patch={"kl": {"kind": "loss", "estimator": "k3", "beta": 0.3}},
        does={"kl": {"kind": "loss_isw", "estimator": "k3", "beta": 0.3}},
        reason="`use_bias_correction_kl` is on by default and multiplies k3 by the ratio, which is DeepSeek-V3.2's "
        "term and not GRPO's.",
    ),
    trl(
        "kl: loss_isw (k3)", options={"beta": 0.3, "importance_sampling_level": "sequence"},
        patch={"ratio": "seq_geo", "kl": {"kind": "loss_isw", "estimator": "k3", "beta": 0.3}},
        does=kl_times_sequence_ratio,
        reason="With GSPO's ratio, k3 is multiplied by the ratio of the response, not of the token.",
    ),
    trl(
        "token_weight: top_entropy", options={"top_entropy_quantile": 0.2}, batches=("eight",),
        patch={"token_weight": {"kind": "top_entropy", "fraction": 0.2}},
        does={"token_weight": {"kind": "top_entropy", "fraction": 0.201}},
        reason="Kept is what reaches the interpolated quantile, here 144 of 717 tokens; ours rounds, to 143.",
    ),
    trl(
        "ratio: seq_product", options={"trainer": "RLOOTrainer"}, patch=LOO, batches=("far",), does=unbounded_ratio,
        reason="Log r is not bounded; ours is kept within -20 and 20, beyond which there is no gradient. Only the "
        "product over a response gets there.",
    ),
    trl(
        "length.truncated: mask_loss", options={"mask_truncated_completions": True}, batches=("limit",),
        patch={"length.truncated": "mask_loss"}, does={"length.count_masked_rows": True},
        reason="Responses that are masked as a whole stay in the denominator of the mean over responses.",
    ),
]  # fmt: skip
