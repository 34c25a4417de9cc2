"""Attention refuses what it would compute wrongly."""

from __future__ import annotations

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM

from paribus.errors import RunnerError
from paribus_runners.native import attention

SIZES = {
    "vocab_size": 8,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "use_sliding_window": True,
    "sliding_window": 4,
    "attn_implementation": attention.NAME,
}


@pytest.mark.parametrize(
    "model",
    [
        Qwen2ForCausalLM(Qwen2Config(intermediate_size=8, max_window_layers=0, **SIZES)),
        Qwen2MoeForCausalLM(Qwen2MoeConfig(moe_intermediate_size=8, shared_expert_intermediate_size=8, **SIZES)),
    ],
    ids=["qwen2", "qwen2_moe"],
)
def test_a_window_shorter_than_a_sequence_is_refused(model: torch.nn.Module) -> None:
    """Within its window a model with one works; beyond it says so, whether it hands the window on or not."""
    for length in (4, 5):
        layout = attention.pack([length], [()], torch.device("cpu"))
        ids = torch.arange(length)[None]
        if length == 4:
            assert model(ids, layout=layout).logits.shape == (1, 4, 8)
        else:
            with pytest.raises(RunnerError, match="sliding_window=4 at 5 tokens"):
                model(ids, layout=layout)
