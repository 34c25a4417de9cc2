"""Makes a tiny model: builds it, warms it up on generated traces, and saves it as a Hugging Face folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import torch
from filelock import FileLock
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
)

from paribus.errors import RunnerError
from paribus_runners.native import attention, elementwise
from paribus_runners.native.log_probabilities import score
from paribus_runners.native.policy import PROMPT_WIDTH, Policy
from paribus_runners.native.tiny.spec import WINDOW, Stage, TinySpec, WarmUp
from paribus_runners.tasks import chain, search

BLANK, END = "_", "$"
SHORT = 4
"""Digits of the longest problem in the first stage of the task ``chain``."""


class Lesson(NamedTuple):
    """A prompt with traces, each with whether the end mark follows."""

    prompt: str
    traces: list[tuple[str, bool]]


def make(cache: Path, fingerprint: str, spec: TinySpec, warm_up: WarmUp) -> Path:
    """Return the folder of the warmed-up model; the first process that holds the lock makes it.

    Args:
        cache: folder for things that runs share.
        fingerprint: identity of the model; names the folder.
        spec: its sizes.
        warm_up: task and settings of the supervised training.
    """
    folder = cache / "models" / fingerprint
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not folder.is_dir():
            partial = folder.with_suffix(f".{os.getpid()}.partial")
            shutil.rmtree(partial, ignore_errors=True)
            with one_thread():
                policy = build(spec, warm_up.task)
                train(policy, warm_up)
            policy.model.save_pretrained(partial)
            policy.tokenizer.save_pretrained(partial)
            os.sync()  # a power cut must leave no empty files under a name that later runs trust
            partial.replace(folder)
    return folder


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread for the duration: with more, sums have another order, and the model other weights."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def tokenizer(symbols: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token a symbol, the padding blank and the end mark."""
    vocabulary = {s: i for i, s in enumerate([*symbols, END, BLANK])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token=BLANK))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    raw.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=END, pad_token=BLANK, unk_token=BLANK, padding_side="left"
    )


def build(spec: TinySpec, task: str) -> Policy:
    """Return the untrained model with its tokenizer, on the CPU."""
    module = chain if task == "chain" else search
    words = tokenizer(module.SYMBOLS)
    sizes = {
        "vocab_size": len(words),
        "hidden_size": spec.hidden,
        "num_hidden_layers": spec.layers,
        "num_attention_heads": spec.heads,
        "num_key_value_heads": spec.heads,
        "rms_norm_eps": spec.rms_eps,
        "initializer_range": spec.initializer_range,
        "rope_parameters": {"rope_type": "default", "rope_theta": spec.rope_theta},
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": words.eos_token_id,
        "pad_token_id": words.pad_token_id,
        "attn_implementation": attention.NAME,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        model = _untrained(spec, sizes)
    elementwise.lean(model)
    setattr(model.config, PROMPT_WIDTH, module.WIDTH)
    return Policy(model, words, torch.float32, (int(words.eos_token_id),), module.WIDTH, torch.device("cpu"))


def _untrained(spec: TinySpec, sizes: dict[str, Any]) -> Any:
    if spec.mixture is None:
        return LlamaForCausalLM(LlamaConfig(intermediate_size=spec.inner, **sizes)).eval()
    config = Qwen2MoeConfig(
        num_experts=spec.mixture.experts,
        num_experts_per_tok=spec.mixture.per_token,
        moe_intermediate_size=spec.mixture.inner,
        shared_expert_intermediate_size=spec.mixture.shared,
        norm_topk_prob=True,
        qkv_bias=False,
        **sizes,
    )
    return Qwen2MoeForCausalLM(config).eval()


def train(policy: Policy, settings: WarmUp) -> None:
    """Train on generated traces: cross-entropy of the response tokens, a mean over all tokens of a batch.

    Raises:
        RunnerError: a skill isn't learned within the limit of its stage.
    """
    optimizer = torch.optim.AdamW(
        policy.model.parameters(),
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
        fused=True,
    )
    done = 0
    for stage in settings.stages:
        source = TRACES[settings.task](settings, stage.traces)
        losses: list[float] = []
        while len(losses) < stage.steps or not _learned(stage, losses):
            fall = 1 - 0.98 * len(losses) / stage.steps if stage is settings.stages[-1] else 1.0
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * min(1.0, (done + 1) / settings.rise_steps) * fall
            losses.append(_update(policy, optimizer, list(islice(source, settings.prompts)), settings.max_grad_norm))
            done += 1


def _learned(stage: Stage, losses: list[float]) -> bool:
    if stage.learned is None or sum(losses[-WINDOW:]) < stage.learned * WINDOW:
        return True
    if len(losses) >= stage.limit:
        raise RunnerError(
            f"the tiny model did not learn its {stage.traces} traces in {stage.limit} updates (loss {losses[-1]:.3f}, "
            f"wanted {stage.learned}): report the versions of torch and transformers and the processor"
        )
    return False


def _update(policy: Policy, optimizer: torch.optim.Optimizer, batch: Sequence[Lesson], max_norm: float) -> float:
    texts = [text for lesson in batch for text, _ in lesson.traces]
    ids = iter(policy.tokenizer(texts).input_ids)
    responses = [[next(ids) + list(policy.ends) * ends for _, ends in lesson.traces] for lesson in batch]
    loss = -score(policy, policy.encode([lesson.prompt for lesson in batch]), responses, temperature=1.0).logp.mean()
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(policy.model.parameters(), max_norm)
    optimizer.step()
    return float(loss.detach())


def _search(settings: WarmUp, stage: str) -> Iterator[Lesson]:
    random = Random(f"search/warm-up/{stage}")
    habits = search.NOISY if stage == "noisy" else search.CLEAN
    for prompt, _ in search.draw(random):
        yield Lesson(prompt, [search.trace(random, prompt, habits) for _ in range(settings.traces)])


def _chain(settings: WarmUp, stage: str) -> Iterator[Lesson]:
    random = Random(f"chain/warm-up/{stage}")
    habits = chain.noisy(settings.careful) if stage == "noisy" else chain.CLEAN
    for prompt, _ in chain.draw(random, SHORT if stage == "short" else len(chain.LETTERS)):
        yield Lesson(prompt, [(chain.trace(random, prompt, habits), True) for _ in range(settings.traces)])


TRACES: dict[str, Callable[[WarmUp, str], Iterator[Lesson]]] = {"search": _search, "chain": _chain}
