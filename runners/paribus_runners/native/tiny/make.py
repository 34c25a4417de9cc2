"""Makes the tiny model: builds it, warms it up on generated traces, saves it as a Hugging Face folder."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from random import Random

import torch
from filelock import FileLock
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from paribus_runners.native import attention
from paribus_runners.native.policy import PROMPT_WIDTH, Policy
from paribus_runners.native.score import score
from paribus_runners.native.task import chain as adding
from paribus_runners.native.task import search
from paribus_runners.native.tiny.spec import TINY, TinySpec, WarmUp

BLANK, END = "_", "$"
SHORT = 4
"""Digits of the longest problem in the first stage of the task ``chain``."""
Trace = tuple[str, str, bool]
"""Prompt, response, and whether the response ends with the end mark."""


def make(cache: Path, fingerprint: str, warm_up: WarmUp) -> Path:
    """Return the folder of the warmed-up model; whoever holds the lock first makes it.

    Args:
        cache: folder for things that runs share.
        fingerprint: identity of the model; names the folder.
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
            policy = build(TINY, warm_up.task)
            train(policy, warm_up)
            policy.model.save_pretrained(partial)
            policy.tokenizer.save_pretrained(partial)
            partial.replace(folder)
    return folder


def tokenizer(symbols: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token a symbol, the blank that fills prompts, and the end mark."""
    vocabulary = {s: i for i, s in enumerate([*symbols, END, BLANK])}
    raw = Tokenizer(models.WordLevel(vocabulary, unk_token=BLANK))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    raw.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=raw, eos_token=END, pad_token=BLANK, unk_token=BLANK, padding_side="left"
    )


def build(spec: TinySpec, task: str) -> Policy:
    """Return the untrained model with its tokenizer, on the CPU."""
    module = adding if task == "chain" else search
    words = tokenizer(module.SYMBOLS)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=spec.hidden,
        intermediate_size=spec.inner,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        rms_norm_eps=spec.rms_eps,
        initializer_range=spec.initializer_range,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        attn_implementation=attention.NAME,
    )
    setattr(config, PROMPT_WIDTH, module.WIDTH)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        model = LlamaForCausalLM(config).eval()
    return Policy(model, words, torch.float32, (int(words.eos_token_id),), module.WIDTH, torch.device("cpu"))


def train(policy: Policy, settings: WarmUp) -> None:
    """Train on generated traces: cross-entropy of the response tokens, a mean over all tokens of a batch."""
    stages = {"short": settings.short_steps, "clean": settings.clean_steps, "noisy": settings.noisy_steps}
    traces = chain.from_iterable(
        repeat(TRACES[settings.task](settings, stage), steps) for stage, steps in stages.items()
    )
    total = sum(stages.values())
    optimizer = torch.optim.AdamW(
        policy.model.parameters(),
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        weight_decay=settings.weight_decay,
        fused=True,
    )
    for step, source in enumerate(traces):
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate * rate(step, total, settings.rise_steps)
        batch = list(islice(source, settings.batch))
        prompts = policy.encode([prompt for prompt, _, _ in batch])
        texts: list[list[int]] = policy.tokenizer([text for _, text, _ in batch]).input_ids
        responses = [[ids + list(policy.ends) * ends] for ids, (_, _, ends) in zip(texts, batch, strict=True)]
        logp, _ = score(policy, prompts, responses, temperature=1.0)
        optimizer.zero_grad()
        (-logp.mean()).backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(policy.model.parameters(), settings.max_grad_norm)
        optimizer.step()


def rate(step: int, total: int, rise: int) -> float:
    """Return the factor of the learning rate: linear rise, flat to 60 %, then linear to 2 %."""
    fall = 1.0 - 0.98 * max(0.0, step / total - 0.6) / 0.4
    return min(1.0, (step + 1) / rise) * fall


def _search(settings: WarmUp, stage: str) -> Iterator[Trace]:
    random = Random(f"search/warm-up/{stage}")
    for prompt, _ in search.draw(random):
        text, ends = search.trace(random, prompt, search.NOISY if stage == "noisy" else search.CLEAN)
        yield prompt, text, ends


def _chain(settings: WarmUp, stage: str) -> Iterator[Trace]:
    random = Random(f"chain/warm-up/{stage}")
    habits = adding.noisy(settings.careful) if stage == "noisy" else adding.CLEAN
    for prompt, _ in adding.draw(random, SHORT if stage == "short" else len(adding.LETTERS)):
        yield prompt, adding.trace(random, prompt, habits), True


TRACES: dict[str, Callable[[WarmUp, str], Iterator[Trace]]] = {"search": _search, "chain": _chain}
