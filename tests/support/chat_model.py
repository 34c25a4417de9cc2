"""A random model of a few thousand parameters with a tokenizer of its own that has a chat template."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

CHAT = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""A template as Qwen2.5 has it, without its default system prompt."""


def chat_tokenizer(template: str | None = CHAT, *, begins: bool = False, end: bool = True) -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token a printable character.

    Args:
        template: the chat template.
        begins: the tokenizer puts ``<s>`` before every text, as Llama's does.
        end: it names a token that ends a response.
    """
    special = ["<pad>", "<s>", "<|im_start|>", "<|im_end|>", "<unk>"]
    symbols = sorted(set(string.printable) - set("\r\x0b\x0c"))
    raw = Tokenizer(models.WordLevel({s: i for i, s in enumerate([*special, *symbols])}, unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    raw.decoder = decoders.Fuse()
    if begins:
        raw.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    made = PreTrainedTokenizerFast(
        tokenizer_object=raw,
        pad_token="<pad>",
        bos_token="<s>",
        unk_token="<unk>",
        eos_token="<|im_end|>" if end else None,
        additional_special_tokens=["<|im_start|>", "<|im_end|>"],
    )
    made.chat_template = template
    return made


def save_chat_model(folder: Path, template: str | None = CHAT, *, begins: bool = False, end: bool = True) -> Path:
    """Write a random Llama with :func:`chat_tokenizer` into a folder, and return the folder."""
    words = chat_tokenizer(template, begins=begins, end=end)
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
    return save_random(folder, LlamaForCausalLM, words, **sizes)  # for a Qwen2, AutoTokenizer makes one of its own kind


def save_random(
    folder: Path, architecture: type[PreTrainedModel], words: PreTrainedTokenizerBase, **config: Any
) -> Path:
    """Write a random model of 16 channels and its tokenizer into a folder, and return the folder."""
    settings = architecture.config_class(
        vocab_size=len(words),
        hidden_size=16,
        intermediate_size=32,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        bos_token_id=None,
        **config,
    )
    torch.manual_seed(0)
    architecture(settings).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder
