"""TRL's own trainers on a batch: real, of a tiny model, but responses, rewards and log-probabilities are given.

Options are those of ``GRPOConfig`` and ``RLOOConfig``, and what :data:`DEFAULTS` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer
from trl.rewards import get_soft_overlong_punishment
from trl.trainer.utils import split_tensor_dict

from conformance.batches import LIMIT, Batch
from conformance.outcome import Outcome, padded

DEFAULTS: Mapping[str, Any] = {
    "trainer": "GRPOTrainer",
    "soft_punish_cache": 0,  # of get_soft_overlong_punishment; 0: not among the reward functions
    "second_reward": False,  # two reward functions
    "gradient_accumulation_steps": 1,
}
TRAINERS = {
    "GRPOTrainer": (GRPOTrainer, GRPOConfig),
    "RLOOTrainer": (RLOOTrainer, RLOOConfig),
    "GMPOTrainer": (GMPOTrainer, GMPOConfig),
}
PAD, EOS, WORD = 0, 1, 2


def outcome(options: Mapping[str, Any], batch: Batch, reward: str) -> Outcome:
    """Return what TRL makes of a batch.

    Args:
        options: differences from the defaults.
        batch: the batch.
        reward: map from correctness to reward.
    """
    config = {**DEFAULTS, **options}
    trainer = trainer_of(config, batch, reward)
    inputs = trainer._generate_and_score_completions([{"prompt": "a"}] * batch.rows)
    parts = config["gradient_accumulation_steps"]
    trainer.current_gradient_accumulation_steps = parts
    leaf = batch.new.clone().requires_grad_()
    value = torch.zeros((), dtype=torch.float64)
    rows = torch.arange(batch.rows).chunk(parts)
    for mine, part in zip(rows, split_tensor_dict(inputs, parts), strict=True):
        trainer.now = leaf[mine], batch.entropy[mine]
        value = value + trainer._compute_loss(trainer.model, part)
    (gradient,) = torch.autograd.grad(value, leaf)
    return Outcome(padded(inputs["advantages"], batch.mask), float(value.detach()), gradient)


class Given:
    """Takes the place of sampling, scoring and the model's forward pass, and of nothing else.

    Attributes:
        batch: the batch.
        rewards: [N, K] of K reward functions.
        now: log-probabilities and entropies, each [n, W], of the responses whose loss is asked for.
    """

    batch: Batch
    rewards: Tensor
    now: tuple[Tensor, Tensor]

    def _generate(self, prompts):
        lengths, truncated = self.batch.whole.tolist(), self.batch.truncated.tolist()
        ids = [[WORD] * (n - 1) + [WORD if cut else EOS] for n, cut in zip(lengths, truncated, strict=True)]
        texts = [""] * len(ids)
        if isinstance(self, RLOOTrainer):
            return [[WORD]] * len(ids), ids, texts
        sampled = [row[:n] for row, n in zip(self.batch.sampler.tolist(), lengths, strict=True)]
        tools = None
        if self.batch.written is not None:
            tools = [row[:n] for row, n in zip(self.batch.written.long().tolist(), lengths, strict=True)]
        return [[WORD]] * len(ids), ids, tools, texts, sampled, {}, None, None

    def _calculate_rewards(self, *_):
        return self.rewards

    def _get_per_token_logps_and_entropies(self, model, *_, **__):
        if torch.is_grad_enabled():
            return (*self.now, None)
        return (self.batch.reference if model is self.ref_model else self.batch.old), None, None


def trainer_of(config: Mapping[str, Any], batch: Batch, reward: str) -> Any:
    """Return a trainer on a batch."""
    options = {k: v for k, v in config.items() if k not in DEFAULTS}
    given = {k: options.pop(k) for k in ("beta", "use_vllm") if k in options}  # they would load a model, or vLLM
    kind, arguments = TRAINERS[config["trainer"]]
    rewards = [batch.reward(reward)]
    if config["soft_punish_cache"]:
        punish = get_soft_overlong_punishment(LIMIT, config["soft_punish_cache"])
        rewards.append(torch.tensor(punish([[WORD] * n for n in batch.length.tolist()]), dtype=torch.float64))
    if config["second_reward"]:
        rewards.append(batch.second)
    parts = config["gradient_accumulation_steps"]
    model, tokenizer = tiny()
    trainer = type("Given" + kind.__name__, (Given, kind), {})(
        model=model,
        processing_class=tokenizer,
        reward_funcs=[named(f"reward{i}") for i in range(len(rewards))],
        train_dataset=Dataset.from_list([{"prompt": "a"}]),
        args=arguments(
            output_dir=str(folder()), use_cpu=True, bf16=False, report_to="none", max_completion_length=LIMIT,
            per_device_train_batch_size=batch.rows // parts, gradient_accumulation_steps=parts,
            steps_per_generation=parts, num_generations=batch.size, num_iterations=2,
            **({"beta": 0.0} | options),
        ),
    )  # fmt: skip
    trainer.batch, trainer.rewards = batch, torch.stack(rewards, 1)
    trainer.beta, trainer.use_vllm = given.get("beta", 0.0), given.get("use_vllm", False)
    trainer.ref_model = object()
    trainer.model.train()
    return trainer


def named(name: str) -> Any:
    """Return a reward function of a name; it is never called."""
    function = lambda **_: []  # noqa: E731
    function.__name__ = name
    return function


@cache
def folder() -> Path:
    """Return a folder for what a trainer may write."""
    return Path(mkdtemp(prefix="conformance-"))


@cache
def tiny() -> tuple[Any, Any]:
    """Return a model and a tokenizer that a trainer accepts; neither is ever asked."""
    words = Tokenizer(models.WordLevel({"<pad>": PAD, "<eos>": EOS, "a": WORD}, unk_token="<pad>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>")
    config = Qwen2Config(
        vocab_size=3, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
        num_key_value_heads=1, pad_token_id=PAD, eos_token_id=EOS, bos_token_id=None,
    )  # fmt: skip
    return Qwen2ForCausalLM(config), tokenizer
