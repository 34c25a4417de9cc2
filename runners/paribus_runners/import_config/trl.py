"""A study from the options of a TRL script: `paribus import-config trl config.yaml`. Pure, and needs no TRL.

What an option is here is decided by TRL's own reading of it: options that are not given are at the defaults of
``GRPOConfig``, which are no published algorithm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paribus.errors import ParibusError, did_you_mean
from paribus.recipe.trainer_names import trainer_names
from paribus_runners.capabilities import Capabilities
from paribus_runners.import_config.given import Given, Translated, brief

DEFAULTS: Mapping[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_generations": 8,
    "num_iterations": 1,
    "max_completion_length": 512,
    "temperature": 1.0,
    "epsilon": 0.2,
    "loss_type": "dapo",
    "scale_rewards": "group",
    "importance_sampling_level": "token",
    "beta": 0.0,
    "use_bias_correction_kl": True,
    "sync_ref_model": False,
    "mask_truncated_completions": False,
    "top_entropy_quantile": 1.0,
    "entropy_coef": 0.0,
    "use_vllm": False,
    "vllm_importance_sampling_correction": True,
    "vllm_importance_sampling_mode": "sequence_mask",
    "vllm_importance_sampling_clip_max": 3.0,
    "learning_rate": 1e-6,
    "lr_scheduler_type": "linear",
    "warmup_steps": 0,
    "weight_decay": 0.0,
    "adam_beta1": 0.9,
    "adam_beta2": 0.999,
    "adam_epsilon": 1e-8,
    "max_grad_norm": 1.0,
    "max_steps": -1,
    "num_train_epochs": 3.0,
}
"""Defaults of ``GRPOConfig`` of TRL 1.16 for what a recipe has; a test compares them with the real ones."""

SCRIPT = ("model_name_or_path", "dataset_name", "dataset_config", "dataset_train_split", "dataset_test_split",
          "reward_funcs", "dtype", "torch_dtype", "reward_model_name_or_path", "config")  # fmt: skip
"""Options of TRL's scripts beside those of ``GRPOConfig``."""

AGGREGATIONS = {
    "grpo": "seq_mean",
    "dapo": "token_batch",
    "bnpo": "token_micro",
    "dr_grpo": "const",
    "luspo": "seq_sum",
    "cispo": "token_batch",
    "sapo": "seq_mean",
    "vespo": "token_batch",
}
"""What the loss types are here; three are a clip as well."""


def translate(given: Mapping[str, Any], capabilities: Capabilities, processes: int = 1) -> Translated:
    """Return the study that does what a script with these options does.

    Args:
        given: options of ``GRPOConfig`` and of TRL's script, as written.
        capabilities: what is known of this version of TRL, for the names of its options.
        processes: that train; batches are counted for each.

    Raises:
        ParibusError: values that TRL itself would refuse, or a loss that no recipe has.
    """
    read = Given({**DEFAULTS, **given})
    found = Translated()
    found.recipe["model"] = {"name": read.text("model_name_or_path", "path/or/hub-name")}
    if read.flag("bf16") or "bfloat16" in (read.text("dtype"), read.text("torch_dtype")):
        found.recipe["model"]["dtype"] = "bfloat16"
    found.recipe["task"] = _task(read)
    found.recipe |= _objective(read)
    if read.flag("use_vllm"):
        found.recipe["rollout"] = {"engine": "vllm"}
    found.recipe["schedule"] = _schedule(read, found, processes)
    found.recipe["optimizer"] = {
        "learning_rate": read.number("learning_rate"),
        "beta1": read.number("adam_beta1"),
        "beta2": read.number("adam_beta2"),
        "eps": read.number("adam_epsilon"),
        "weight_decay": read.number("weight_decay"),
        "max_grad_norm": read.number("max_grad_norm") or None,
    }
    updates = found.recipe["schedule"]["minibatches"] * found.recipe["schedule"]["epochs"]
    if warmup := read.whole("warmup_steps"):
        found.recipe["optimizer"]["warmup_steps"] = max(1, round(warmup / updates))
    if read.text("lr_scheduler_type") != "constant" and read.text("lr_scheduler_type") != "constant_with_warmup":
        kind = read.text("lr_scheduler_type")
        found.lost["lr_scheduler_type"] = f"`{kind}`: here the learning rate is constant after `optimizer.warmup_steps`"
    if every := read.whole("eval_steps", 0):
        found.study["every"] = max(1, round(every / updates))
    if samples := read.whole("num_generations_eval", 0):
        found.study["samples"] = samples
    _lost(found, given, read.used, capabilities)
    return found


def _task(read: Given) -> dict[str, Any]:
    """Return the task: the dataset of the script, or files that the user names."""
    if not (name := read.text("dataset_name")):
        return {"kind": "jsonl", "train": "train.jsonl", "heldout": "heldout.jsonl"}
    config = {"config": c} if (c := read.text("dataset_config")) else {}
    return {
        "kind": "dataset",
        "train": {"name": name, **config, "split": read.text("dataset_train_split", "train")},
        "heldout": {"name": name, **config, "split": read.text("dataset_test_split", "test")},
    }


def _objective(read: Given) -> dict[str, Any]:
    """Return the factors."""
    loss = read.text("loss_type")
    if loss not in AGGREGATIONS:
        known = ", ".join(sorted(AGGREGATIONS))
        raise ParibusError(f"`loss_type: {brief(loss)}`: this loss is not read. Of TRL's these are: {known}")
    low = read.number("epsilon")
    high = read.number("epsilon_high", low)
    found: dict[str, Any] = {"baseline": "group_mean", "aggregation": AGGREGATIONS[loss]}
    level = read.text("importance_sampling_level")
    if (ratio := {"token": "token", "sequence": "seq_geo"}.get(level)) is None:
        raise ParibusError(f"`importance_sampling_level: {brief(level)}`: TRL has token and sequence")
    found["ratio"] = ratio
    if loss == "cispo":
        found["clip"] = {"kind": "is_cap_sg", "cap": high, "floor": 0.0}
    elif loss == "vespo":
        found["ratio"] = "seq_product"
        found["clip"] = {
            "kind": "vespo",
            "k_positive": read.number("vespo_k_pos", 2.0),
            "lambda_positive": read.number("vespo_lambda_pos", 3.0),
            "k_negative": read.number("vespo_k_neg", 3.0),
            "lambda_negative": read.number("vespo_lambda_neg", 2.0),
        }
    elif loss == "sapo":
        taus = {"tau_positive": read.number("sapo_temperature_pos", 1.0)}
        found["clip"] = {"kind": "soft_gate", **taus, "tau_negative": read.number("sapo_temperature_neg", 1.05)}
    elif delta := read.optional("delta"):
        found["clip"] = {"kind": "two_sided", "low": low, "high": high, "delta": float(delta)}
    else:
        found["clip"] = {"kind": "ppo_min", "low": low, "high": high}
    scale = read.text("scale_rewards").lower()
    scales = {"group": "group_std", "true": "group_std", "batch": "batch_std_raw"}
    found["scale"] = {"kind": scales[scale], "eps": 1e-4} if scale in scales else "none"
    kind = "loss_isw" if read.flag("use_bias_correction_kl") else "loss"
    beta, synced = read.number("beta"), read.flag("sync_ref_model")
    found["kl"] = {"kind": kind, "estimator": "k3", "beta": beta} if beta else "off"
    if beta and synced:
        mix, every = read.number("ref_model_mixup_alpha", 0.6), read.whole("ref_model_sync_steps", 512)
        found["kl"]["reference"] = {"kind": "synced", "every": every, "mix": mix}
    if read.flag("mask_truncated_completions"):
        found["length"] = {"truncated": "mask_loss", "count_masked_rows": True}
    quantile = read.number("top_entropy_quantile")
    found["token_weight"] = {"kind": "top_entropy", "fraction": quantile} if quantile < 1 else "uniform"
    found["auxiliary"] = {"entropy": read.number("entropy_coef")}
    found["correction"] = _correction(read)
    return found


def _correction(read: Given) -> Any:
    """Return the correction, which TRL has for vLLM alone."""
    mode, highest = read.text("vllm_importance_sampling_mode"), read.number("vllm_importance_sampling_clip_max")
    lowest = read.number("vllm_importance_sampling_clip_min", 0.0)
    threshold = read.optional("off_policy_mask_threshold")
    mask = {"kind": "off_policy_mask", "delta": float(threshold)} if threshold is not None else None
    if not (read.flag("vllm_importance_sampling_correction") and read.flag("use_vllm")):
        return mask or "off"
    kind = {"sequence_mask": "seq_mask", "sequence_truncate": "seq_truncate"}.get(mode, mode)
    bounds = {"cap": highest} if kind.endswith("truncate") else {"low": lowest, "high": highest}
    if mask is None:
        return {"kind": kind, **bounds}
    if kind == "seq_mask":
        raise ParibusError(
            "`off_policy_mask_threshold` beside `vllm_importance_sampling_mode: sequence_mask`: a recipe has one mask "
            "of responses. Set the mode to `token_truncate`, or leave the threshold out"
        )
    return {"kind": "chain", "mask": mask, "weight": {"kind": kind, **bounds}}


def _schedule(read: Given, found: Translated, processes: int) -> dict[str, Any]:
    """Return the sizes: TRL counts responses of a device, a recipe prompts of a rollout batch."""
    each, group = read.whole("per_device_train_batch_size"), read.whole("num_generations")
    parts = read.whole("gradient_accumulation_steps")
    cut, whole = read.optional("steps_per_generation"), read.optional("generation_batch_size")
    if cut is not None and whole is not None:
        raise ParibusError("TRL takes `steps_per_generation` or `generation_batch_size`, not both")
    own = read.whole("generation_batch_size", 0)
    responses = own if whole is not None else each * processes * read.whole("steps_per_generation", parts)
    epochs = read.whole("num_iterations")
    if min(each, group, parts, responses, epochs) < 1:
        raise ParibusError("TRL needs batches, groups and iterations of 1 or more, and one of them is smaller")
    count = responses // (each * processes)
    if responses % group or responses % (each * processes) or count % parts:
        raise ParibusError(
            f"{responses} responses of a rollout batch: TRL needs a multiple of `num_generations` ({group}), and of "
            f"`per_device_train_batch_size` x processes x `gradient_accumulation_steps` ({each * processes * parts}). "
            "With several processes, say how many: --processes N"
        )
    minibatches = count // parts
    steps, passes = read.whole("max_steps"), read.number("num_train_epochs")
    if steps > 0:
        steps = max(1, round(steps / (minibatches * epochs)))
    else:
        steps = 100
        found.lost["num_train_epochs"] = (
            f"{passes:g} passes over the data: `schedule.steps` counts rollout batches, and 100 stands there until you "
            "write how many"
        )
    return {
        "steps": steps,
        "prompts_per_step": responses // group,
        "group_size": group,
        "minibatches": minibatches,
        "epochs": epochs,
        "max_new_tokens": read.whole("max_completion_length"),
        "temperature": read.number("temperature"),
    }


def _lost(found: Translated, given: Mapping[str, Any], used: set[str], capabilities: Capabilities) -> None:
    """Add what is given and has no place in the study."""
    table = {name.name: name for name in trainer_names() if name.trainer == "TRL"}
    for name, value in given.items():
        if name in used or name in found.lost or name in ("seed", "data_seed", "use_vllm", "output_dir"):
            continue  # `seeds` and the run folder stand in every study
        if name in table:
            found.lost[name] = table[name].message(name, value)
        elif name not in capabilities.names and name not in SCRIPT:
            near = did_you_mean(name, capabilities.names)
            found.lost[name] = f"TRL has no option `{name}`, and ignores it in a file.{near}"
        elif name.startswith("vllm_"):
            found.lost[name] = "how TRL runs vLLM; here that is `rollout`"
        else:
            found.lost[name] = capabilities.options.owned.get(name, "no part of a recipe")
