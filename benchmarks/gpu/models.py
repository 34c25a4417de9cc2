"""Models of random weights in the shape of Qwen2.5, a tokenizer, problems and lengths, all made on the spot.

A model whose weights are drawn never ends a text: its end mark is one token of 150,000. :func:`let_end` changes it so
that every token ends the text with the same small probability. Lengths then differ as those of a trained model do, and
any sampler, of whatever program, has to cope with them; no limit of a request is in play.
"""

from __future__ import annotations

import json
import math
import random
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from paribus.recipe.recipe import Lora
from paribus_runners.native import attention, gradient_checkpointing, lora
from paribus_runners.native.policy import Policy, best_device

CONFIGURATIONS = Path(__file__).with_name("qwen2.5")
END = 0
"""Token of the end mark, which also pads."""
SPREAD = 1.0
"""Standard deviation of the logarithm of a length."""
SYMBOLS = (*map(chr, range(33, 127)), "Ġ", "Ċ")
"""What a prompt may hold, one token each, as byte-level BPE writes it: printable characters, blank and line feed."""
LAYERS = ("self_attn.o_proj", "mlp.down_proj")
"""Layers that add to the residual stream."""


def configuration(size: str) -> dict[str, Any]:
    """Return the configuration of a size: ``0.5b``, ``1.5b``, ``7b``, ``small`` or ``tiny``."""
    found: dict[str, Any] = json.loads((CONFIGURATIONS / f"{size}.json").read_text())
    return found


def model_of(size: str, *, implementation: str = attention.NAME, dtype: torch.dtype = torch.float32) -> Any:
    """Return a model of random weights (seed 0) on the best device, in evaluation mode."""
    values = configuration(size)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    torch.manual_seed(0)
    with torch.device(best_device()):  # 7 billion numbers are drawn on a GPU within a second
        model = AutoModelForCausalLM.from_config(config, attn_implementation=implementation, dtype=dtype)
    return model.to(best_device()).eval()


def policy_of(
    size: str,
    dtype: str,
    *,
    trained: str = "float32",
    tokenizer: Any = None,
    adapters: Lora | None = None,
    again: bool = False,
    triton: bool = False,
) -> Policy:
    """Return a policy as a run has it: weights of the type ``trained``, or of ``dtype`` beneath adapters.

    Args:
        size: of the configuration.
        dtype: type of the computations.
        trained: type of the weights without adapters.
        tokenizer: where texts are needed.
        adapters: what is trained in place of the weights.
        again: compute blocks again in the backward pass.
        triton: let kernels in Triton make log-probabilities of logits.
    """
    model = model_of(size, dtype=getattr(torch, trained if adapters is None else dtype))
    if adapters is not None:
        lora.add(model, adapters, 0)
    if again:
        gradient_checkpointing.switch_on(model)
    kind = getattr(torch, dtype)
    return Policy(model, tokenizer, kind, (END,), 0, best_device(), kind, triton=triton)


@torch.no_grad()
def let_end(policy: Policy, mean: float) -> float:
    """Change a random model so that a token is the end mark with probability 1 / ``mean``; return what it is then.

    No block writes to the first channel, and all embeddings have 1 there, so it is nearly the same wherever the model
    is; the end mark's row of the head reads it, with a weight that is found by halving an interval.
    """
    model, head = policy.model, policy.model.get_output_embeddings()
    for name, layer in model.base_model.named_modules():
        if name.endswith(LAYERS):
            layer.weight[0] = 0
    model.get_input_embeddings().weight[:, 0] = 1
    ids = torch.randint(1, len(head.weight), (128,), generator=torch.Generator().manual_seed(0)).to(policy.device)
    layout = attention.pack([len(ids)], [()], policy.device)
    hidden = policy.hidden(ids, layout.positions, layout).float()[16:]
    logits = hidden @ head.weight.float().T
    end = logits[:, END].clone()
    logits[:, END] = -math.inf
    others = logits.logsumexp(1)

    def ending(weight: float) -> float:
        return float(torch.sigmoid(end + weight * hidden[:, 0] - others).mean())

    low, high = -100.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if ending(middle) < 1 / mean else (low, middle)
    head.weight[END, 0] += high
    return ending(high)


def write(size: str, folder: Path, mean: float) -> None:
    """Write a model that ends texts after ``mean`` tokens, and its tokenizer, where ``from_pretrained`` finds them."""
    policy = policy_of(size, "float32")
    let_end(policy, mean)
    policy.model.generation_config.eos_token_id = policy.model.generation_config.pad_token_id = END
    policy.model.save_pretrained(folder)
    _write_words(folder, len(policy.model.get_output_embeddings().weight))


def tokenizer_of(folder: Path) -> Any:
    """Return the tokenizer of a folder."""
    return AutoTokenizer.from_pretrained(folder)


def _write_words(folder: Path, vocabulary: int) -> None:
    """Write a tokenizer in Qwen's own files: characters, and words that end with 0 or 1."""
    known = {"<|endoftext|>": END, **{symbol: i for i, symbol in enumerate(SYMBOLS, 1)}}
    known |= {f"Ġ{_letters(i)}{i % 2}": i for i in range(len(known), vocabulary)}
    (folder / "vocab.json").write_text(json.dumps(known))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    marks = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>", "unk_token": None, "padding_side": "left"}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer", **marks}))


def _letters(number: int) -> str:
    found = ""
    while number or not found:
        number, last = divmod(number, 26)
        found = string.ascii_lowercase[last] + found
    return found


def write_problems(file: Path, count: int, characters: int) -> None:
    """Write problems whose answer is 0 or 1: the last digit that a random model writes is right every other time."""
    draw = random.Random(0)
    letters = (draw.choices(string.ascii_lowercase, k=characters - 1) for _ in range(count))
    lines = [json.dumps({"prompt": "".join(x) + "=", "answer": draw.choice("01")}) for x in letters]
    file.write_text("\n".join(lines) + "\n")


def lengths(count: int, mean: float, most: int, seed: int = 0) -> list[int]:
    """Return lengths drawn from a log-normal distribution of this mean; those above ``most`` are cut there."""
    draw = random.Random(seed)
    centre = math.log(mean) - SPREAD**2 / 2
    return [min(most, max(1, round(draw.lognormvariate(centre, SPREAD)))) for _ in range(count)]


def texts(lengths: Sequence[int], vocabulary: int, seed: int = 0) -> list[list[int]]:
    """Return random tokens, none of them the end mark, in these lengths."""
    generator = torch.Generator().manual_seed(seed)
    drawn: Tensor = torch.randint(END + 1, vocabulary, (sum(lengths),), generator=generator)
    return [part.tolist() for part in drawn.split(list(lengths))]
