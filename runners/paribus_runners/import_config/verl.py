"""A study from the options of verl: `paribus import-config verl run.sh`. Pure, and needs no verl.

Options that are not given are at the defaults of verl's `ppo_trainer.yaml`, which are no published algorithm: GAE with
a critic, a token-level loss and a dual clip.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paribus.errors import ParibusError, Problem, StudyFileError, did_you_mean
from paribus.recipe.trainer_names import trainer_names
from paribus_runners.capabilities import Capabilities
from paribus_runners.import_config.given import Given, Translated, brief, number_of
from paribus_runners.verl.sizes import ACTOR, CORRECTION, OUT_OF_REACH

OPTIM = f"{ACTOR}optim."
ROLLOUT = "actor_rollout_ref.rollout."
BUFFER = "reward.reward_kwargs.overlong_buffer_cfg."
LOSS = f"{ACTOR}policy_loss."

DEFAULTS: Mapping[str, Any] = {
    "algorithm.adv_estimator": "gae",
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.gamma": 1.0,
    "algorithm.lam": 1.0,
    "algorithm.use_kl_in_reward": False,
    "algorithm.kl_penalty": "kl",
    "algorithm.kl_ctrl.type": "fixed",
    "algorithm.kl_ctrl.kl_coef": 0.001,
    "algorithm.filter_groups.enable": False,
    "algorithm.filter_groups.metric": "reward",
    "algorithm.filter_groups.max_num_gen_batches": 0,
    f"{CORRECTION}rollout_is": None,
    f"{CORRECTION}rollout_is_threshold": 2.0,
    f"{CORRECTION}rollout_rs": None,
    f"{CORRECTION}rollout_rs_threshold": None,
    f"{CORRECTION}bypass_mode": False,
    f"{CORRECTION}loss_type": "ppo_clip",
    f"{LOSS}loss_mode": "vanilla",
    f"{ACTOR}loss_agg_mode": "token-mean",
    f"{ACTOR}loss_scale_factor": None,
    f"{ACTOR}clip_ratio_low": 0.2,
    f"{ACTOR}clip_ratio_high": 0.2,
    f"{ACTOR}clip_ratio_c": 3.0,
    f"{ACTOR}tau_pos": 1.0,
    f"{ACTOR}tau_neg": 1.05,
    f"{ACTOR}use_kl_loss": False,
    f"{ACTOR}kl_loss_coef": 0.001,
    f"{ACTOR}kl_loss_type": "low_var_kl",
    f"{ACTOR}entropy_coeff": 0,
    f"{ACTOR}ppo_mini_batch_size": 256,
    f"{ACTOR}ppo_epochs": 1,
    f"{ACTOR}fsdp_config.dtype": "bfloat16",
    f"{OPTIM}lr": 1e-6,
    f"{OPTIM}betas": [0.9, 0.999],
    f"{OPTIM}weight_decay": 0.01,
    f"{OPTIM}clip_grad": 1.0,
    f"{OPTIM}lr_warmup_steps": -1,
    f"{OPTIM}lr_warmup_steps_ratio": 0.0,
    f"{OPTIM}lr_scheduler_type": "constant",
    f"{OPTIM}override_optimizer_config": None,
    f"{ROLLOUT}n": 1,
    f"{ROLLOUT}temperature": 1.0,
    f"{ROLLOUT}dtype": "bfloat16",
    f"{ROLLOUT}max_num_seqs": 256,
    "critic.optim.lr": 1e-5,
    "critic.cliprange_value": 0.5,
    "trainer.critic_warmup": 0,
    "trainer.total_training_steps": None,
    "trainer.total_epochs": 30,
    "reward.reward_manager.name": "naive",
    "data.train_batch_size": 1024,
    "data.max_response_length": 512,
}
"""Defaults of `ppo_trainer.yaml` of verl 0.9 for what a recipe has; a test compares them with the real ones."""

RENAMED = {
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_kwargs.": "reward.reward_kwargs.",
    "custom_reward_function.": "reward.custom_reward_function.",
}
"""Names of older versions, which verl 0.9 still reads."""

AGGREGATIONS = {
    "token-mean": "token_batch",
    "seq-mean-token-mean": "seq_mean",
    "seq-mean-token-sum": "seq_sum",
    "seq-mean-token-sum-norm": "const",
}
ESTIMATORS = {"kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2", "low_var_kl": "k3", "k3": "k3"}
PLAIN = {"rloo": "group_loo", "rloo_vectorized": "group_loo", "opo": "group_length_weighted"}
"""Estimators that divide by nothing, and their baselines."""
CHAINED = ("token_truncate", "token_mask", "seq_truncate")
"""Corrections that can stand beside a mask."""
WHITENED = {"kind": "batch_whiten", "unit": "token", "eps": 0.0}
DTYPES = {"bfloat16": "bfloat16", "bf16": "bfloat16", "float32": "float32", "fp32": "float32"}
SILENT = (
    "data.return_raw_chat",
    "trainer.resume_mode",
    "trainer.balance_batch",
    f"{ACTOR}use_dynamic_bsz",
    f"{ACTOR}calculate_entropy",
)
"""What changes no number of a recipe."""

NOWHERE = "no part of a recipe"
MANY = 30
"""Options without a place that are named one by one; of a whole configuration there are hundreds."""


def refuse_others(options: Mapping[str, Any], file: str) -> None:
    """Refuse a file of which nothing is for verl, such as a study or the configuration of another trainer.

    Raises:
        StudyFileError: none of its options stands in a section of verl.
    """
    sections = dict.fromkeys(name.partition(".")[0] for name in (*DEFAULTS, *RENAMED))
    found = dict.fromkeys(name.partition(".")[0] for name in options)
    if found and not {*found} & {*sections}:
        message = (
            f"this is no configuration of verl: it has {brief(', '.join(found))}. Sections of verl are "
            f"{', '.join(sections)}"
        )
        raise StudyFileError(file, [Problem(message=message)])


def translate(given: Mapping[str, Any], capabilities: Capabilities) -> Translated:
    """Return the study that does what verl's PPO trainer with these options does.

    Args:
        given: options by dotted name, as written.
        capabilities: what is known of this version of verl, for the names of its options.

    Raises:
        ParibusError: values that verl itself would refuse, or an estimator or a loss that no recipe has.
    """
    given = {_renamed(name): value for name, value in given.items()}
    read, found = Given({**DEFAULTS, **given}), Translated()
    dtype = _dtype(read, f"{ACTOR}fsdp_config.dtype")
    if dtype == "bfloat16":
        found.lost["model.dtype"] = (
            "verl keeps the weights in float32 and computes in bfloat16; here weights are bfloat16, too"
        )
    found.recipe["model"] = {"name": read.text("actor_rollout_ref.model.path", "path/or/hub-name"), "dtype": dtype}
    found.recipe["task"] = _task(read)
    found.recipe |= _schedule(read, found)
    found.recipe |= _advantage(read, found)
    found.recipe |= _loss(read, found)
    found.recipe["kl"] = _kl(read, found)
    found.recipe["correction"] = _correction(read, found)
    found.recipe["filter"] = _filter(read)
    found.recipe["length"] = {"rule": _length_rule(read)}
    found.recipe["optimizer"] = _optimizer(read, found)
    sampler = _dtype(read, f"{ROLLOUT}dtype")
    found.recipe["rollout"] = {
        "engine": "vllm",
        "dtype": "auto" if sampler == dtype else sampler,
        "sequences": read.whole(f"{ROLLOUT}max_num_seqs"),
    }
    if (every := read.whole("trainer.test_freq", -1)) > 0:
        found.study["every"] = every
    if samples := read.whole(f"{ROLLOUT}val_kwargs.n", 0):
        found.study["samples"] = samples
    _lost(found, given, read.used, capabilities)
    return found


def _renamed(name: str) -> str:
    for before, after in RENAMED.items():
        if name.startswith(before):
            return after + name.removeprefix(before)
    return name


def _dtype(read: Given, name: str) -> str:
    if (given := read.text(name)) not in DTYPES:
        raise ParibusError(f"`{name}: {brief(given)}`: here are {', '.join(DTYPES)}")
    return DTYPES[given]


def _task(read: Given) -> dict[str, Any]:
    """Return the task: verl's Parquet files, with its columns."""
    files = [read.optional(f"data.{part}_files") for part in ("train", "val")]
    if None in files:
        return {"kind": "jsonl", "train": "train.jsonl", "heldout": "heldout.jsonl"}
    train, heldout = (str(file[0] if isinstance(file, list) and file else file) for file in files)
    columns = {"prompt": read.text("data.prompt_key", "prompt"), "answer": "reward_model.ground_truth"}
    return {"kind": "dataset", "train": {"path": train}, "heldout": {"path": heldout}, **columns}


def _schedule(read: Given, found: Translated) -> dict[str, Any]:
    """Return the sizes: verl counts prompts of a rollout batch and of a minibatch, a recipe minibatches."""
    prompts, part = read.whole("data.train_batch_size"), read.whole(f"{ACTOR}ppo_mini_batch_size")
    if part < 1 or prompts < part or prompts % part:
        raise ParibusError(
            f"`data.train_batch_size: {prompts}` and `{ACTOR}ppo_mini_batch_size: {part}` (256 unless it is set): verl "
            "needs a multiple, so that minibatches are equal"
        )
    steps = read.whole("trainer.total_training_steps", 0)
    if read.optional("trainer.total_training_steps") is None:
        steps, passes = 100, read.number("trainer.total_epochs")
        found.lost["trainer.total_epochs"] = (
            f"{passes:g} passes over the data: `schedule.steps` counts rollout batches, and 100 stands there until you "
            "write how many"
        )
    read.used.add("trainer.total_epochs")
    schedule = {
        "steps": steps,
        "prompts_per_step": prompts,
        "group_size": read.whole(f"{ROLLOUT}n"),
        "minibatches": prompts // part,
        "epochs": read.whole(f"{ACTOR}ppo_epochs"),
        "max_new_tokens": read.whole("data.max_response_length"),
        "temperature": read.number(f"{ROLLOUT}temperature"),
    }
    return {"schedule": schedule}


def _advantage(read: Given, found: Translated) -> dict[str, Any]:
    """Return baseline and scale of verl's estimator, and the critic that belongs to one of them."""
    name, alone = read.text("algorithm.adv_estimator"), read.number(f"{ROLLOUT}n") == 1
    by_std = read.flag("algorithm.norm_adv_by_std_in_grpo")
    gamma, lam = read.number("algorithm.gamma"), read.number("algorithm.lam")
    critic = {
        "learning_rate": read.number("critic.optim.lr"),
        "clip": _reachable(read.number("critic.cliprange_value")),
        "pretrain_steps": read.whole("trainer.critic_warmup"),
    }
    auxiliary: dict[str, Any] = {"entropy": read.number(f"{ACTOR}entropy_coeff")}
    if name in ("grpo", "grpo_vectorized"):
        scale: Any = {"kind": "group_std", "eps": 1e-6} if by_std and not alone else "none"
        part = {"baseline": "none" if alone else "group_mean", "scale": scale}
    elif name in PLAIN:
        part = {"baseline": PLAIN[name], "scale": "none"}
    elif name == "reinforce_plus_plus":
        part = {"baseline": "batch_mean", "scale": WHITENED}
        if gamma != 1:
            found.lost["algorithm.gamma"] = f"{gamma:g}: here rewards are not discounted without a critic"
    elif name == "reinforce_plus_plus_baseline":
        part = {"baseline": "group_mean", "scale": WHITENED}
        found.lost["algorithm.adv_estimator"] = (
            f"`{name}` subtracts the mean over tokens that is left before it whitens, as `scale: batch_whiten` does"
        )
    elif name == "gae":
        baseline = {"kind": "critic_gae", "gamma": gamma, "policy_lambda": {"kind": "fixed", "value": lam}}
        part = {"baseline": {**baseline, "critic_lambda": lam}, "scale": WHITENED}
        auxiliary["value"] = critic
    else:
        raise ParibusError(
            f"`algorithm.adv_estimator: {brief(name)}`: no recipe has it. Of verl's there are here: gae, grpo, opo, "
            "reinforce_plus_plus, reinforce_plus_plus_baseline, rloo"
        )
    return part | {"auxiliary": auxiliary}


def _reachable(value: float) -> float | None:
    """Return a bound; ``None`` if nothing reaches it."""
    return None if value >= OUT_OF_REACH else value


def _loss(read: Given, found: Translated) -> dict[str, Any]:
    """Return ratio, clip and aggregation of verl's loss."""
    mode, agg = read.text(f"{LOSS}loss_mode"), read.text(f"{ACTOR}loss_agg_mode")
    if agg not in AGGREGATIONS:
        known = ", ".join(AGGREGATIONS)
        raise ParibusError(f"`{ACTOR}loss_agg_mode: {brief(agg)}`: no recipe has it. Of verl's there are here: {known}")
    low, high = read.number(f"{ACTOR}clip_ratio_low"), read.number(f"{ACTOR}clip_ratio_high")
    dual = _reachable(read.number(f"{ACTOR}clip_ratio_c"))
    gate = {"tau_positive": read.number(f"{ACTOR}tau_pos"), "tau_negative": read.number(f"{ACTOR}tau_neg")}
    kind, aggregation = f"{LOSS}rollout_correction.loss_type", _aggregation(read, found, agg)
    bounded = {"kind": "ppo_min", "low": low, "high": high} if _reachable(high) is not None else "none"
    part: dict[str, Any] = {"ratio": "token", "aggregation": aggregation, "clip": bounded}
    if mode == "vanilla":
        if dual is not None and bounded != "none":
            part["clip"] = {"kind": "ppo_dual", "low": low, "high": high, "c": dual}
    elif mode == "gspo":
        part["ratio"] = "seq_geo"
    elif mode == "geo_mean":
        part |= {
            "ratio": "geo_clipped",
            "clip": {"kind": "log_clip", "low": low, "high": high},
            "aggregation": "seq_mean",
        }
    elif mode == "cispo":
        part["clip"] = {"kind": "is_cap_sg", "floor": round(1 - low, 12), "cap": round(1 + high, 12)}
    elif mode == "sapo":
        part |= {"clip": {"kind": "soft_gate", **gate}, "aggregation": "seq_mean"}
    elif mode in ("dppo_tv", "dppo_kl", "clip_cov", "kl_cov"):
        part["clip"] = {"kind": mode, **_bounds(read, mode, low, high)}
    elif mode == "bypass_mode" and read.text(kind) == "reinforce":
        read.used |= {f"{LOSS}rollout_correction.rollout_is", f"{LOSS}rollout_correction.rollout_rs"}
        part |= {"ratio": "none", "clip": "none"}
    else:
        known = (
            "cispo, clip_cov, dppo_kl, dppo_tv, geo_mean, gspo, kl_cov, sapo, vanilla, and bypass_mode with "
            f"`{kind}: reinforce`"
        )
        raise ParibusError(f"`{LOSS}loss_mode: {brief(mode)}`: this loss is not read. Of verl's these are: {known}")
    return part


def _bounds(read: Given, mode: str, low: float, high: float) -> dict[str, float]:
    """Return the parameters of a clip by differences of probabilities or by covariances."""
    if mode.startswith("dppo"):
        return {"low": low, "high": high, "cap": read.number(f"{ACTOR}clip_ratio_c")}
    chosen = {"fraction": read.number(f"{LOSS}{mode}_ratio")}
    if mode == "kl_cov":
        return {**chosen, "beta": read.number(f"{LOSS}ppo_kl_coef")}
    cov = {"cov_low": read.number(f"{LOSS}clip_cov_lb"), "cov_high": read.number(f"{LOSS}clip_cov_ub")}
    return {"low": low, "high": high, **chosen, **cov}


def _aggregation(read: Given, found: Translated, agg: str) -> Any:
    length, width = read.optional(f"{ACTOR}loss_scale_factor"), read.number("data.max_response_length")
    if AGGREGATIONS[agg] != "const":
        return AGGREGATIONS[agg]
    if length is None:
        found.lost[f"{ACTOR}loss_scale_factor"] = (
            "not set, so that verl divides by the padded width of each batch; here `aggregation: const` divides by "
            "`schedule.max_new_tokens`"
        )
        return "const"
    return {"kind": "const", "length": None if float(length) == width else round(float(length))}


def _kl(read: Given, found: Translated) -> Any:
    """Return the KL term: that of the loss, else that of the reward."""
    beta, paid = read.number(f"{ACTOR}kl_loss_coef"), read.number("algorithm.kl_ctrl.kl_coef")
    kinds = read.text(f"{ACTOR}kl_loss_type"), read.text("algorithm.kl_penalty")
    control = read.text("algorithm.kl_ctrl.type")
    in_loss, in_reward = read.flag(f"{ACTOR}use_kl_loss") and beta, read.flag("algorithm.use_kl_in_reward") and paid
    if not in_loss and not in_reward:
        return "off"
    name, kind = (f"{ACTOR}kl_loss_type", kinds[0]) if in_loss else ("algorithm.kl_penalty", kinds[1])
    if kind not in ESTIMATORS:
        raise ParibusError(
            f"`{name}: {brief(kind)}`: no recipe has it. Of verl's there are here: {', '.join(ESTIMATORS)}"
        )
    if in_loss:
        if in_reward:
            found.lost["algorithm.use_kl_in_reward"] = "a recipe has one KL term; that of the loss stands in this one"
        return {"kind": "loss", "estimator": ESTIMATORS[kind], "beta": beta}
    if control != "fixed":
        found.lost["algorithm.kl_ctrl.type"] = f"`{control}`: here the coefficient stays as it is"
    by_token = read.text("algorithm.adv_estimator") in ("gae", "reinforce_plus_plus")
    unit = "token" if by_token else "sequence"
    return {"kind": "reward", "estimator": ESTIMATORS[kind], "unit": unit, "beta": paid}


def _correction(read: Given, found: Translated) -> Any:
    """Return the correction by weights, that by rejection, or both."""
    level, rejects = read.optional(f"{CORRECTION}rollout_is"), read.optional(f"{CORRECTION}rollout_rs")
    bounds, band = read.text(f"{CORRECTION}rollout_is_threshold"), read.text(f"{CORRECTION}rollout_rs_threshold")
    if read.flag(f"{CORRECTION}bypass_mode"):
        found.lost[f"{CORRECTION}bypass_mode"] = "the sampler's probabilities as the old ones; here the learner's are"
    read.used.add(f"{CORRECTION}loss_type")
    weight, mask = _weight(level, bounds), _mask(rejects, band)
    if rejects is not None and mask is None:
        found.lost[f"{CORRECTION}rollout_rs"] = (
            f"`{rejects}`: here only `seq_mean_k1` with two bounds, `correction: geo_mask`"
        )
    if weight is not None and mask is not None:
        if weight["kind"] in CHAINED:
            return {"kind": "chain", "mask": mask, "weight": weight}
        found.lost[f"{CORRECTION}rollout_rs"] = (
            f"`{rejects}`: beside `correction: {weight['kind']}` there is no other mask"
        )
    return weight or mask or "off"


def _weight(level: Any, bounds: str) -> dict[str, Any] | None:
    """Return the correction of tokens or responses by their ratio; ``None`` without one."""
    kind = {"token": "token", "sequence": "seq"}.get(str(level))
    if kind is None:
        return None
    low, both, high = bounds.partition("_")
    if both:
        return {"kind": f"{kind}_mask", "low": _float(low, bounds), "high": _float(high, bounds)}
    return {"kind": f"{kind}_truncate", "cap": _float(bounds, bounds)}


def _mask(rejects: Any, band: str) -> dict[str, Any] | None:
    """Return the rejection of responses; ``None`` without one that a recipe has."""
    if rejects != "seq_mean_k1" or "_" not in band:
        return None
    low, _, high = band.partition("_")  # bounds on sampler over learner, the inverse
    least = 0.0 if _reachable(_float(high, band)) is None else _inverse(high, band)
    return {"kind": "geo_mask", "low": least, "high": _inverse(low, band)}


def _inverse(text: str, whole: str) -> float:
    if (value := _float(text, whole)) > 0:
        return round(1 / value, 12)
    raise ParibusError(f"`{CORRECTION}*_threshold: {brief(whole)}`: a bound is more than 0")


def _float(text: str, whole: str) -> float:
    try:
        return float(text)
    except ValueError:
        given = f"`{CORRECTION}*_threshold: {brief(whole)}`"
        raise ParibusError(f"{given} is no number, and no two such as 0.5_2.0") from None


def _filter(read: Given) -> Any:
    metric = "correct" if read.text("algorithm.filter_groups.metric") == "acc" else "reward_std"
    rounds = read.whole("algorithm.filter_groups.max_num_gen_batches")
    if not read.flag("algorithm.filter_groups.enable"):
        return "none"
    return {"kind": "refill", "metric": metric} | ({"max_generation_batches": rounds} if rounds > 0 else {})


def _length_rule(read: Given) -> Any:
    """Return the rule of verl's reward manager `dapo`."""
    manager, enabled = read.text("reward.reward_manager.name"), read.flag(f"{BUFFER}enable")
    read.used.add(f"{BUFFER}log")
    size, factor = read.whole(f"{BUFFER}len", 0), read.number(f"{BUFFER}penalty_factor", 1.0)
    longest = read.whole("reward.reward_kwargs.max_resp_len", read.whole("data.max_response_length"))
    if manager != "dapo" or not enabled:
        return "none"
    return {"kind": "soft_overlong", "soft_start": longest - size, "hard_cap": longest, "factor": factor}


def _optimizer(read: Given, found: Translated) -> dict[str, Any]:
    betas, more = read.optional(f"{OPTIM}betas"), read.optional(f"{OPTIM}override_optimizer_config") or {}
    if not (isinstance(betas, list | tuple) and len(betas) == 2):
        raise ParibusError(f"`{OPTIM}betas: {brief(betas)}` is no pair of numbers such as [0.9,0.999]")
    eps = (
        more.get("eps", read.number(f"{OPTIM}override_optimizer_config.eps", 1e-8)) if isinstance(more, dict) else 1e-8
    )
    kind, ratio = read.text(f"{OPTIM}lr_scheduler_type"), read.number(f"{OPTIM}lr_warmup_steps_ratio")
    if kind != "constant":
        found.lost[f"{OPTIM}lr_scheduler_type"] = (
            f"`{kind}`: here the learning rate is constant after `optimizer.warmup_steps`"
        )
    warmup = read.whole(f"{OPTIM}lr_warmup_steps")
    if warmup < 0:
        if not 0 <= ratio <= 1:
            raise ParibusError(f"`{OPTIM}lr_warmup_steps_ratio: {ratio:g}` is no share of the steps: expects 0 to 1")
        warmup = round(ratio * found.recipe["schedule"]["steps"])
    return {
        "learning_rate": read.number(f"{OPTIM}lr"),
        "beta1": number_of(f"{OPTIM}betas", betas[0]),
        "beta2": number_of(f"{OPTIM}betas", betas[1]),
        "eps": number_of(f"{OPTIM}override_optimizer_config.eps", eps),
        "weight_decay": read.number(f"{OPTIM}weight_decay"),
        "max_grad_norm": _reachable(read.number(f"{OPTIM}clip_grad")),
        "warmup_steps": warmup,
    }


def _lost(found: Translated, given: Mapping[str, Any], used: set[str], capabilities: Capabilities) -> None:
    """Add what is given and has no place in the study."""
    seen = {*used, *found.lost, *SILENT, *capabilities.options.seeds}
    rest = {name: value for name, value in given.items() if name not in seen and value is not None}
    speed = [name for name in rest if name in capabilities.free]
    if speed:
        found.lost["memory and speed"] = f"{', '.join(speed)}. With `runner: verl` they stand below `verl:`"
    same = {name for name, value in rest.items() if capabilities.always.get(name) == value}
    others = {name: _reason(name, v, capabilities) for name, v in rest.items() if name not in {*speed, *same}}
    unknown = [name for name, text in others.items() if text == NOWHERE]
    if len(unknown) > MANY:
        others = {name: text for name, text in others.items() if name not in unknown}
        others[f"{len(unknown)} more options"] = f"{NOWHERE}, such as those of logs, profilers and checkpoints"
    found.lost |= others


def _reason(name: str, value: Any, capabilities: Capabilities) -> str:
    """Return why an option has no place in a study."""
    for known in trainer_names():
        if known.trainer == "verl" and known.name == name:
            return known.message(name, value)
    if name in capabilities.options.owned:
        return f"here: {capabilities.options.owned[name]}"
    if name in capabilities.always:
        return f"`{value}`: no recipe has it; `runner: verl` sets `{capabilities.always[name]}`"
    if name in capabilities.names:
        return "follows from the recipe here"
    near = _near(name, capabilities)
    return f"{NOWHERE}.{near}" if near else NOWHERE


def _near(name: str, capabilities: Capabilities) -> str:
    """Return the name that was meant by a misspelt one: of the same section, and nearly the same."""
    section, _, last = name.rpartition(".")
    beside = [n.rpartition(".")[2] for n in {*capabilities.names, *DEFAULTS} if n.rpartition(".")[0] == section]
    return did_you_mean(last, beside) if len(last) > 4 else ""
