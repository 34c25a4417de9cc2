"""Which parameters of a model are trained: those that `model.train` names, or all but those that `model.freeze` names.

Goes by names alone, so that a plan can do it with the header of a file. No torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from paribus.errors import RunnerError
from paribus.recipe.recipe import Model
from paribus_runners.native.tiny.spec import TinySpec

EMBEDDINGS = frozenset({"embed_tokens", "embed_in", "embed_positions", "word_embeddings", "wte", "wpe"})
"""Names of modules of Transformers that turn tokens or positions into channels."""
HEADS = frozenset({"lm_head", "embed_out"})
"""Names of modules that turn channels into logits."""
_BLOCKS = re.compile(r"(first|last)_(\d+)")


def chosen(model: Model, names: Sequence[str]) -> frozenset[str]:
    """Return the names of the parameters that are trained.

    Args:
        model: settings of a recipe.
        names: of all parameters, e.g. ``model.layers.0.mlp.up_proj.weight``; embeddings that are also the output layer
            come once, under the name of the embeddings.

    Raises:
        RunnerError: an entry means no parameter, or all together leave nothing to train or nothing out.
    """
    field, entries = ("model.freeze", model.freeze) if model.train is None else ("model.train", model.train)
    if entries is None:
        return frozenset(names)
    named = frozenset(name for entry in entries for name in _meant(field, entry, names))
    found = named if model.train is not None else frozenset(names) - named
    if len(found) == len(names):
        raise RunnerError(f"`{field}: [{', '.join(entries)}]` means all {len(names)} parameters: remove it")
    if not found:
        raise RunnerError(f"`{field}: [{', '.join(entries)}]` means all {len(names)} parameters: nothing is trained")
    return found


def is_head(name: str) -> bool:
    """Return whether a parameter is of the output layer."""
    return not HEADS.isdisjoint(name.split("."))


def names_of(spec: TinySpec) -> list[str]:
    """Return the names of the parameters of a tiny model, which a plan knows before it is made."""
    inner = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
    if spec.mixture is None:
        inner += ["mlp.gate_proj.weight", "mlp.up_proj.weight", "mlp.down_proj.weight"]
    else:
        shared = (f"mlp.shared_expert.{name}.weight" for name in ("gate_proj", "up_proj", "down_proj"))
        inner += ["mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj", *shared]
        inner += ["mlp.shared_expert_gate.weight"]
    inner += ["input_layernorm.weight", "post_attention_layernorm.weight"]
    each = [name if "mlp" in name or "norm" in name else f"{name}.weight" for name in inner]
    blocks = [f"model.layers.{layer}.{name}" for layer in range(spec.layers) for name in each]
    return ["model.embed_tokens.weight", *blocks, "model.norm.weight"]


def _meant(field: str, entry: str, names: Sequence[str]) -> list[str]:
    """Return the parameters that an entry means."""
    test = _test(entry, names)
    if found := [name for name in names if test(name)]:
        return found
    blocks = _blocks(names)
    if entry == "head":
        raise RunnerError(
            f"`{field}`: `head` means no parameter: the output layer of this model has the weights of its embeddings. "
            "Name `embeddings`"
        )
    if _BLOCKS.fullmatch(entry) or entry in ("blocks", "embeddings"):
        raise RunnerError(f"`{field}`: `{entry}` means no parameter of this model, which has {len(blocks)} blocks")
    words = sorted({part for name in names for part in name.split(".")} - set(map(str, blocks)))
    near = get_close_matches(entry, names, n=2, cutoff=0.6) or [
        f"*.{word}.*" for part in re.split(r"[.*?]+", entry) for word in get_close_matches(part, words, n=1)
    ]
    hint = f" Near it: {', '.join(f'`{name}`' for name in near)}." if near else ""
    raise RunnerError(f"`{field}`: `{entry}` means no parameter.{hint} A name is e.g. `{names[len(names) // 2]}`")


def _test(entry: str, names: Sequence[str]) -> Callable[[str], bool]:
    if (found := _BLOCKS.fullmatch(entry)) is not None:
        blocks, count = sorted(_blocks(names)), int(found[2])
        wanted: Collection[int | None] = blocks[:count] if found[1] == "first" else blocks[len(blocks) - count :]
        if not 0 < count <= len(blocks):
            wanted = ()
        return lambda name: _block(name) in wanted
    match entry:
        case "blocks":
            return lambda name: _block(name) is not None
        case "embeddings":
            return lambda name: not EMBEDDINGS.isdisjoint(name.split("."))
        case "head":
            return is_head
        case _:
            return lambda name: fnmatchcase(name, entry)


def _blocks(names: Sequence[str]) -> set[int]:
    return {block for name in names if (block := _block(name)) is not None}


def _block(name: str) -> int | None:
    """Return the number of the block that a parameter is in; ``None`` outside of blocks."""
    return next((int(part) for part in name.split(".") if part.isascii() and part.isdigit()), None)
