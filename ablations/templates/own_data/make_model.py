"""Writes the folder `tiny-model`: random weights and one token a character, to try a study on a CPU.

It needs the part `train`. Then name your own model in the study, and delete this file.
"""

import string

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

END, BLANK = "</s>", "<pad>"
SYMBOLS = {symbol: i for i, symbol in enumerate([*string.digits, *string.ascii_lowercase, *" +-=?.", END, BLANK])}

raw = Tokenizer(models.WordLevel(SYMBOLS, unk_token=BLANK))
raw.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
raw.decoder = decoders.Fuse()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=raw, eos_token=END, pad_token=BLANK, unk_token=BLANK, padding_side="left"
)
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=len(SYMBOLS),
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=2,
    bos_token_id=None,
    eos_token_id=SYMBOLS[END],
    pad_token_id=SYMBOLS[BLANK],
)
LlamaForCausalLM(config).save_pretrained("tiny-model")
tokenizer.save_pretrained("tiny-model")
print("wrote tiny-model")  # noqa: T201
