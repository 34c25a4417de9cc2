"""A small model that reads and writes single symbols, made on the spot: for benchmarks beside TRL.

It runs in TRL's environment, too, and so imports nothing of Paribus.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM


def tiny_model(
    symbols: Sequence[str], *, intermediate: int, positions: int, width: int = 128, layers: int = 2, words: int = 0
) -> tuple[Qwen2ForCausalLM, PreTrainedTokenizerFast]:
    """Return a Qwen2 of random weights (seed 0), with four heads, and its tokenizer.

    Args:
        symbols: what it reads and writes, beside padding (token 0) and the end of a text (token 1).
        intermediate: width between the two layers of each block.
        positions: most tokens of a text.
        width: channels of a token between the blocks.
        layers: how many blocks.
        words: rows of the head at least; those without a symbol are written as nothing.
    """
    known = ["<pad>", "<eos>", *symbols]
    tokenizer = Tokenizer(models.WordLevel({s: i for i, s in enumerate(known)}, unk_token="<pad>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=max(words, len(known)), hidden_size=width, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=positions, tie_word_embeddings=True,
        pad_token_id=0, eos_token_id=1, bos_token_id=None,
    )  # fmt: skip
    return Qwen2ForCausalLM(config), fast


def save(folder: Path, model: Qwen2ForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write both where ``from_pretrained`` finds them."""
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
