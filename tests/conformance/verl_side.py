"""verl's own functions on a batch: estimators and losses of ``verl.trainer.ppo.core_algos``, and its actor's loss.

Options are those of verl's configuration: ``algorithm.*`` and ``actor.*``, and what :data:`DEFAULTS` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from tensordict import NonTensorData, TensorDict
from torch import Tensor
from verl import DataProto
from verl.trainer.config import AlgoConfig
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.distillation.losses import distillation_ppo_loss
from verl.trainer.ppo import core_algos
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_rejection_mask
from verl.workers.config import ActorConfig, DistillationConfig, DistillationLossConfig
from verl.workers.config.actor import PolicyLossConfig
from verl.workers.reward_manager.dapo import DAPORewardManager
from verl.workers.utils.losses import ppo_loss

from conformance.batches import LIMIT, Batch
from conformance.outcome import Outcome, padded

DEFAULTS: Mapping[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "algorithm.norm_adv_by_std_in_grpo": True,
    "algorithm.gamma": 1.0,
    "algorithm.lam": 1.0,
    "algorithm.use_kl_in_reward": False,
    "reward.reward_kwargs.overlong_buffer_cfg.len": 0,  # 0: off
    "micro_batches": 1,
}


def outcome(options: Mapping[str, Any], batch: Batch, reward: str, actor: ActorConfig | None = None) -> Outcome:
    """Return what verl makes of a batch.

    Args:
        options: differences from the defaults.
        batch: the batch.
        reward: map from correctness to reward.
        actor: the actor's configuration; ``None``: that of the options.
    """
    config = {**DEFAULTS, **options}
    advantage = advantages(config, batch, reward).double()
    mask, weights = corrected(config, batch)
    new = batch.new.clone().requires_grad_()
    actor = actor or actor_of(config)
    whole = {"dp_size": 1, "batch_num_tokens": None, "global_batch_size": None}
    if config["micro_batches"] > 1:
        whole |= {"batch_num_tokens": int(mask.sum()), "global_batch_size": batch.rows}
    value = torch.zeros((), dtype=torch.float64)
    for rows in torch.arange(batch.rows).chunk(config["micro_batches"]):
        data = TensorDict(
            {
                "prompts": torch.ones(len(rows), 1, dtype=torch.long),
                "responses": torch.ones_like(mask[rows], dtype=torch.long),
                "attention_mask": torch.cat([torch.ones(len(rows), 1), batch.text[rows]], 1).long(),
                "response_mask": mask[rows].long(),
                "old_log_probs": batch.old[rows],
                "ref_log_prob": batch.reference[rows],
                "advantages": advantage[rows],
                **({} if weights is None else {"rollout_is_weights": weights[rows]}),
                **{k: NonTensorData(v) for k, v in whole.items()},
            },
            batch_size=len(rows),
        )
        shown = {
            "log_probs": shifted(new[rows], batch.text[rows]),
            "entropy": shifted(batch.entropy[rows], batch.text[rows]),
        }
        if (teacher := distillation_of(config)) is None:
            value = value + ppo_loss(actor, shown, data)[0]
        else:
            data["teacher_logprobs"] = whole_texts(batch.reference[rows], batch.text[rows])
            value = value + distillation_ppo_loss(actor, teacher, shown, data)[0]
    (gradient,) = torch.autograd.grad(value, new)
    return Outcome(padded(advantage, batch.mask), float(value.detach()), gradient)


def critic(options: Mapping[str, Any], batch: Batch) -> Outcome:
    """Return the critic's targets in the place of advantages, its loss, and the gradient with respect to its values."""
    config, mask = {**DEFAULTS, **options}, batch.mask.long()
    reward = torch.zeros_like(batch.new).scatter(1, batch.whole[:, None] - 1, batch.score[:, None])
    gamma, lam = config["algorithm.gamma"], config["algorithm.lam"]
    returns = core_algos.compute_gae_advantage_return(reward, batch.value, mask, gamma, lam)[1]
    new = batch.value_now.clone().requires_grad_()
    clip = config["critic.cliprange_value"]
    value, _ = core_algos.compute_value_loss(new, returns, batch.value, mask, clip, "token-mean")
    (gradient,) = torch.autograd.grad(value, new)
    return Outcome(padded(returns, batch.mask), float(value.detach()), gradient)


def shifted(values: Tensor, mask: Tensor) -> Tensor:
    """Return [values] behind prompts of one token, end to end: the value at a place is that of the next token."""
    empty = values.new_zeros(len(values), 1)
    return torch.cat([values, empty], 1)[torch.cat([mask, ~empty.bool()], 1)]


def whole_texts(values: Tensor, mask: Tensor) -> Tensor:
    """Return [texts, tokens, 1] values of prompts of one token and their responses, nested, as a teacher gives them."""
    flat, counts = shifted(values, mask), mask.sum(1) + 1
    return torch.nested.nested_tensor_from_jagged(flat[:, None], torch.cat([counts.new_zeros(1), counts.cumsum(0)]))


def distillation_of(config: Mapping[str, Any]) -> DistillationConfig | None:
    """Return the settings of distillation by policy gradient, if a row has one."""
    asked = {k.removeprefix("distillation_loss."): v for k, v in config.items() if k.startswith("distillation_loss.")}
    if not asked:
        return None
    loss = DistillationLossConfig(use_policy_gradient=True, loss_max_clamp=None, log_prob_min_clamp=None, **asked)
    return DistillationConfig(distillation_loss=loss)


def advantages(config: Mapping[str, Any], batch: Batch, reward: str) -> Tensor:
    """Return [N, W] the advantages of an estimator."""
    scores = torch.zeros_like(batch.new)
    scores[torch.arange(batch.rows), batch.whole - 1] = batch.reward(reward)
    if buffer := config["reward.reward_kwargs.overlong_buffer_cfg.len"]:
        scores = scored_by_dapo(buffer, batch, reward)
    beta = config["algorithm.kl_ctrl.kl_coef"] if config["algorithm.use_kl_in_reward"] else 0.0
    rewards = core_algos.compute_rewards(scores, batch.old * batch.mask, batch.reference * batch.mask, beta)
    mask, estimator = batch.mask.long(), config["algorithm.adv_estimator"]
    if estimator == "gae":
        gamma, lam = config["algorithm.gamma"], config["algorithm.lam"]
        return core_algos.compute_gae_advantage_return(rewards, batch.value, mask, gamma, lam)[0]
    by_std = {"norm_adv_by_std_in_grpo": config["algorithm.norm_adv_by_std_in_grpo"]}
    return core_algos.get_adv_estimator_fn(estimator)(
        token_level_rewards=rewards, response_mask=mask, index=batch.group.numpy(),
        **(by_std if estimator == "grpo" else {}),
        config=AlgoConfig(gamma=config["algorithm.gamma"], lam=config["algorithm.lam"], **by_std),
    )[0]  # fmt: skip


def scored_by_dapo(buffer: int, batch: Batch, reward: str) -> Tensor:
    """Return [N, W] the token-level scores of verl's DAPO reward manager."""
    rewards = iter(batch.reward(reward).tolist())
    manager = DAPORewardManager(
        tokenizer=SimpleNamespace(decode=lambda *_, **__: "", eos_token="<eos>"),
        num_examine=0,
        compute_score=lambda **_: next(rewards),
        max_resp_len=LIMIT,
        overlong_buffer_cfg=SimpleNamespace(enable=True, len=buffer, penalty_factor=1.0, log=False),
    )
    prompts = torch.ones(batch.rows, 1, dtype=torch.long)
    data = DataProto.from_dict(
        tensors={
            "prompts": prompts,
            "responses": torch.ones_like(batch.mask, dtype=torch.long),
            "attention_mask": torch.cat([prompts, batch.mask.long()], 1),
        },
        non_tensors={
            "reward_model": np.array([{"ground_truth": ""}] * batch.rows),
            "data_source": np.array([""] * batch.rows, dtype=object),
        },
    )
    return manager(data).double()


def corrected(config: Mapping[str, Any], batch: Batch) -> tuple[Tensor, Tensor | None]:
    """Return the response mask [N, W] after rejection, and importance weights [N, W] or None."""
    asked = {
        k.removeprefix("algorithm.rollout_correction."): v for k, v in config.items() if ".rollout_correction." in k
    }
    if not asked:
        return batch.mask, None
    weights, mask, _ = compute_rollout_correction_and_rejection_mask(
        batch.old, batch.sampler, batch.mask.long(), **asked
    )
    return mask.bool(), None if weights is None else weights.batch["rollout_is_weights"]


def actor_of(config: Mapping[str, Any]) -> ActorConfig:
    """Return the actor's configuration."""
    actor = {k.removeprefix("actor."): v for k, v in config.items() if k.startswith("actor.")}
    named = [k for k in actor if k.startswith("policy_loss.")]
    policy = {"loss_mode": "vanilla"} | {k.removeprefix("policy_loss."): actor.pop(k) for k in named}
    if policy["loss_mode"] == "bypass_mode":
        policy["rollout_correction"] = RolloutCorrectionConfig(loss_type="reinforce", rollout_is=None)
    return ActorConfig(
        strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1, policy_loss=PolicyLossConfig(**policy), **actor
    )
