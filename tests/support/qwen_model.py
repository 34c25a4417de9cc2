"""A random model of the architecture of Qwen2.5 with two layers, and a tokenizer in Qwen's own files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer
from transformers import Qwen2ForCausalLM, Qwen2Tokenizer

from support.chat_model import CHAT, save_random

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")


def save_qwen_model(folder: Path, texts: Iterable[str]) -> Path:
    """Write the model into a folder, and return the folder.

    Args:
        folder: where it goes.
        texts: what the pairs of bytes are learned from that the tokenizer joins.
    """
    folder.mkdir(parents=True)
    learned = ByteLevelBPETokenizer()
    learned.train_from_iterator(texts, vocab_size=400, min_frequency=2, special_tokens=[], show_progress=False)
    learned.save_model(str(folder))  # vocab.json and merges.txt, which AutoTokenizer reads for this architecture
    words = Qwen2Tokenizer.from_pretrained(str(folder))
    words.add_special_tokens(
        {"pad_token": SPECIAL[0], "eos_token": SPECIAL[2], "additional_special_tokens": SPECIAL[1:]}
    )
    words.chat_template = CHAT
    return save_random(
        folder,
        Qwen2ForCausalLM,
        words,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        tie_word_embeddings=True,
    )
