"""What a plan sees of a model without its weights: tokenizer, end of a response, length; and what is wrong with them.

Needs no torch. A model on the hub is looked at only if it is in the local cache: a plan downloads no weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus_runners.native import chat

TRAINED = 16
"""Bytes that a run holds for each parameter: weight, gradient and AdamW's two moments in float32."""

_LONGEST_HEADER = 100 << 20  # bytes: safetensors' own bound


@dataclass(frozen=True)
class ModelFiles:
    """What is known of a model.

    Attributes:
        tokenizer: its tokenizer; ``None`` if it is not there.
        unseen: why it is not there.
        ends: tokens that end a response.
        context: tokens of prompt and response together that it was made for; ``None``: not known.
        faults: what is wrong with it.
        parameters: numbers in its safetensors files; ``None`` without such files.
    """

    tokenizer: Any = None
    unseen: str = ""
    ends: tuple[int, ...] = ()
    context: int | None = None
    faults: tuple[str, ...] = ()
    parameters: int | None = None

    @classmethod
    def of(cls, name: str, revision: str | None) -> ModelFiles:
        """Return what is known of the model ``name``: a folder, or a name on the hub."""
        folder = Path(name).expanduser()
        try:
            from huggingface_hub import snapshot_download
            from transformers import AutoTokenizer
        except ImportError as error:
            return cls(unseen=f"not shown, because {error.name} is not installed here")
        try:
            if not folder.is_dir():
                folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
        except (OSError, ValueError):
            return cls(unseen=f"not shown, because the model {name} is not in the hub's cache here")
        config, wrong = _settings(folder / "config.json")
        generation, also_wrong = _settings(folder / "generation_config.json")
        if damaged := [*wrong, *also_wrong]:
            return cls(faults=tuple(f"`model.name: {name}`: {fault}" for fault in damaged))
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder))
        except Exception as error:  # a damaged tokenizer raises whatever its reader meets
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return cls(faults=(f"`model.name: {name}`: its tokenizer cannot be loaded: {reason}",))
        # as `Policy.load` gets them
        ends = chat.ends_of((generation if generation is not None else config or {}).get("eos_token_id"), tokenizer)
        return cls(tokenizer, "", ends, context_of(config), () if ends else (chat.no_end(name),), parameters_in(folder))

    def memory(self) -> list[str]:
        """Return a line on the memory that no setting of a run saves; none if the size of the model is not known."""
        if self.parameters is None:
            return []
        held = f"{TRAINED * self.parameters / 1e9:,.1f} GB"
        return [
            f"memory: {self.parameters:,} parameters; weights, gradients and moments take {held} in each process of a "
            "run, before activations and samples"
        ]

    def turn_warnings(self) -> list[tuple[str, str]]:
        """Return a warning if the chat template ends a turn with a token that ends no response."""
        end = None if self.tokenizer is None or not self.ends else chat.turn_end(self.tokenizer)
        if end is None or end in self.ends:
            return []
        mark, known = (self._shown(one) for one in ((end,), self.ends))
        message = (
            f"the model's chat template ends a turn with {mark}, but a response ends with {known}: one that ends its "
            f'turn runs on to the length limit. Write `"eos_token_id": {[*self.ends, end]}` into '
            "generation_config.json of a local copy of the model"
        )
        return [("end_of_turn", message)]

    def _shown(self, tokens: tuple[int, ...]) -> str:
        return " or ".join(f"`{word}`" for word in self.tokenizer.convert_ids_to_tokens(list(tokens)))


def _settings(path: Path) -> tuple[Mapping[str, Any] | None, list[str]]:
    """Return a file of settings, ``None`` without one; and what is wrong with it."""
    if not path.is_file():
        return None, []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return None, [f"{path.name} cannot be read: {error}"]
    return (found, []) if isinstance(found, dict) else (None, [f"{path.name} is not an object `{{...}}`"])


def parameters_in(folder: Path) -> int | None:
    """Return how many numbers the safetensors files of a folder hold, by their headers; ``None`` if one is damaged."""
    found = 0
    for path in folder.glob("*.safetensors"):
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(length, _LONGEST_HEADER)))
            found += sum(math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__")
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None  # loading it says what is wrong
    return found or None


def context_of(config: Mapping[str, Any] | None) -> int | None:
    """Return the most tokens of a text; ``None`` if the positions are stretched, or it is not stated."""
    config = config or {}
    stretched = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = stretched.get("rope_type", stretched.get("type")) if isinstance(stretched, dict) else None
    if kind in ("linear", "dynamic", "yarn"):
        return None
    named = [config.get(name) for name in ("max_position_embeddings", "n_positions")]
    return next((n for n in named if isinstance(n, int)), None)
