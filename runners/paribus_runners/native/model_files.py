"""What a plan sees of a model without its weights: tokenizer, end of a response, length; and what is wrong with them.

Needs no torch. A model on the hub is looked at only if it is in the local cache: a plan downloads no weights.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paribus.errors import RunnerError, no_folder
from paribus.evaluate import Evaluate
from paribus.recipe.analysis.facts import other_reference
from paribus.recipe.recipe import ROUTERS, Lora, Model, Recipe
from paribus_runners.native import chat
from paribus_runners.native.frozen import chosen, is_head
from paribus_runners.native.held import Held, of_weight
from paribus_runners.native.limits import Device, in_words, usable
from paribus_runners.native.memory import Architecture, Phases

FROZEN = {"float32": 4, "bfloat16": 2}
"""Bytes of a parameter beside adapters, by `model.dtype`."""
PROCESSES = (2, 4, 8)
"""Of how many processes a plan shows what each holds where they share the optimizer, and the study does not say."""
CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
"""Keys of a config.json that bound what goes into a softmax, as Gemma 2 does."""
SINKS = frozenset({"gpt_oss"})
"""Kinds of models whose attention gives a share to no token."""

GPUS = (24, 48, 80, 141)
"""Memory of common GPUs, GB."""

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
        shapes: name to shape of the tensors in its safetensors files; empty without such files.
        config: what its config.json says.
    """

    tokenizer: Any = None
    unseen: str = ""
    ends: tuple[int, ...] = ()
    context: int | None = None
    faults: tuple[str, ...] = ()
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, revision: str | None, field: str = "model.name") -> ModelFiles:
        """Return what is known of a model, a folder or a name on the hub, that the recipe names at ``field``."""
        folder = Path(name).expanduser()
        try:
            from huggingface_hub import snapshot_download
            from huggingface_hub.errors import HFValidationError
            from transformers import AutoTokenizer
        except ImportError as error:
            return cls(unseen=f"not shown, because {error.name} is not installed here")
        try:
            if not folder.is_dir():
                folder = Path(snapshot_download(name, revision=revision, local_files_only=True))
        except (OSError, ValueError) as error:
            if isinstance(error, HFValidationError) and not folder.is_absolute() and name.count("/") < 2:
                known = no_folder(folder) or f", and there is no folder {folder}."
                return cls(faults=(f"`{field}: {name}` is no name that the hub can have{known}",))
            return cls(unseen=f"not shown, because the model {name} is not in the hub's cache here{no_folder(folder)}")
        config, wrong = _settings(folder / "config.json")
        generation, also_wrong = _settings(folder / "generation_config.json")
        if damaged := [*wrong, *also_wrong]:
            return cls(faults=tuple(f"`{field}: {name}`: {fault}" for fault in damaged))
        try:
            tokenizer = AutoTokenizer.from_pretrained(str(folder))
        except Exception as error:  # a damaged tokenizer raises whatever its reader meets
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            return cls(faults=(f"`{field}: {name}`: its tokenizer cannot be loaded: {reason}",))
        # as `Policy.load` gets them
        ends = chat.ends_of((generation if generation is not None else config or {}).get("eos_token_id"), tokenizer)
        faults = [*(() if ends else (chat.no_end(name),)), *_bounds(config or {}, f"{field}: {name}")]
        return cls(tokenizer, "", ends, context_of(config), tuple(faults), shapes_in(folder), config or {})

    def memory(self, recipe: Recipe, processes: int | None = None) -> list[str]:
        """Return a line on what a run holds of weights and optimizer; none if the size of the model is not known.

        Args:
            recipe: says what is trained, in which types, and what is dealt out or offloaded.
            processes: of the run; ``None``: not known.
        """
        if not self.shapes:
            return []
        samplers = recipe.compute.sampling_processes
        counts = (processes,) if processes else PROCESSES if recipe.compute.sharding != "none" else (1,)
        if samplers:  # what follows is of those that train
            counts = (max(1, processes - samplers),) if processes else counts
        several = f" of {', '.join(map(str, counts[:-1]))} or {counts[-1]} processes" if len(counts) > 1 else " process"
        which = f" that train{'' if len(counts) > 1 else 's'} ({samplers} more sample)" if samplers else ""
        rest = f"in each{several} of a run{which}, before activations and samples"
        here = "optimizer" not in recipe.compute.offload
        moving, beside = ("gradients and moments", "") if here else ("gradients", "; moments are in host memory")
        held = [self._held(recipe, count) for count in counts]
        numbers, still = self.numbers, held[0].still
        sizes = [each.moving(recipe) for each in held]
        if recipe.model.lora is not None:
            added = ", ".join(map(in_words, sizes))
            return [
                f"memory: {numbers:,} parameters in {recipe.model.dtype} take {in_words(still)}, and "
                f"{held[0].trained:,} of adapters with {moving} {added}, {rest}{beside}"
            ]
        size = ", ".join(in_words(still + each) for each in sizes)
        if held[0].inside:
            return [
                f"memory: {numbers:,} parameters, of which {held[0].trained:,} are trained; weights, and {moving} "
                f"of these, take {size} {rest}{beside}"
            ]
        what = f"weights, {moving}" if here else f"weights and {moving}"
        return [f"memory: {numbers:,} parameters; {what} take {size} {rest}{beside}"]

    def phases(self, recipe: Recipe, evaluate: Evaluate, prompt: int, processes: int | None = None) -> list[str]:
        """Return a line on the peak memory of each phase, and one on what a GPU has room for.

        None if sizes of the model or its prompts are not known, if the reference is another model, or if an environment
        answers turns.

        Args:
            recipe: what is trained.
            evaluate: how it is evaluated.
            prompt: tokens of the longest prompt; 0: not known.
            processes: of the run; ``None``: not known.
        """
        model = Architecture.of(self.config)
        if model is None or not self.shapes or not prompt or self.faults or other_reference(recipe) is not None:
            return []
        if recipe.turns.kind != "single":
            return []
        sharded = recipe.compute.sharding != "none"
        samplers = recipe.compute.sampling_processes
        count = max(processes or (PROCESSES[-1] if sharded else 1) + samplers, 1 + samplers)
        held = self._held(recipe, count - samplers)
        places: dict[Device, str] = {"cuda": "a GPU", "cpu": "CPU cores"}
        every = {x: Phases(model=model, held=held, recipe=recipe, prompt=prompt, device=x) for x in places}
        shown = []
        for device, phases in every.items():
            parts = (f"{name} {in_words(size)}" for name, size in phases.by_name(evaluate).items())
            shown.append(f"on {places[device]} {', '.join(parts)}")
        rest = "" if recipe.rollout.engine == "torch" else "; vLLM has a limit of its own"
        one = f"one of {count} processes" if count > 1 else "one process"
        rest += f" ({samplers} of them have rollout and evaluation, the others the rest)" if samplers else ""
        lines = [f"peak memory of {one}, computed for responses at their limit: {'; '.join(shown)}{rest}"]
        if processes is None:  # else the run is for CPUs
            who, each = ("one process", "") if count == 1 else (f"{count} processes", " each")
            lines.append(f"{who} {_fitting(every['cuda'], evaluate, each)}")
        return lines

    @property
    def numbers(self) -> int:
        """How many numbers the weights have."""
        return sum(map(math.prod, self.shapes.values()))

    @property
    def parameters(self) -> Mapping[str, tuple[int, ...]]:
        """The parameters of the model, each once: an output layer that is the embeddings has none of its own.

        None of a mixture of experts, which Transformers stores under other names than it trains.
        """
        tied = self.config.get("tie_word_embeddings", False)
        if any("experts" in name.split(".") for name in self.shapes):
            return {}
        return {name: shape for name, shape in self.shapes.items() if not (tied and is_head(name))}

    def _held(self, recipe: Recipe, processes: int) -> Held:
        """Return what one of some processes holds."""
        model, numbers = recipe.model, self.numbers
        if model.lora is not None:
            added, frozen = self._adapters(model.lora), FROZEN[model.dtype]
            return Held(weights=numbers, trained=added, frozen=frozen, processes=processes)
        trained, weight = self._trained(model), of_weight(model)
        return Held(weights=numbers, trained=trained, frozen=weight, inside=trained < numbers, processes=processes)

    def _trained(self, model: Model) -> int:
        """Return how many numbers are trained; all if an entry means none, which others report."""
        parameters = self.parameters
        with suppress(RunnerError):
            if parameters and (model.train is not None or model.freeze is not None):
                return sum(math.prod(parameters[name]) for name in chosen(model, [*parameters]))
        return self.numbers

    def _adapters(self, settings: Lora) -> int:
        """Return how many numbers the adapters have: rank x (in + out) beside each linear layer."""
        found = 0
        for name, shape in self.shapes.items():
            layer = layer_of(name)
            if layer and len(shape) == 2 and (settings.layers is None or layer in settings.layers):
                found += settings.rank * sum(shape)
        return found

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


def _fitting(phases: Phases, evaluate: Evaluate, each: str) -> str:
    """Return what a process computes at once with the memory of some GPUs, and which of them has not enough."""
    fits, short = list[str](), ""
    for size in GPUS:
        found = phases.fitting(evaluate, usable(size * 10**9))
        name, peak = found.largest(evaluate)
        if peak > usable(size * 10**9):
            short = f"with {size} GB{each}: not enough ({name} {in_words(peak)}, and a tenth must stay free)"
            continue
        as_usual = found.at_once == phases.at_once
        fits.append(f"with {size} GB of GPU memory{each}{' or more' if as_usual else ''}: {found.about()}")
        if as_usual:
            break
    return "; ".join([*fits, *([short] if short else [])])


def _settings(path: Path) -> tuple[Mapping[str, Any] | None, list[str]]:
    """Return a file of settings, ``None`` without one; and what is wrong with it."""
    if not path.is_file():
        return None, []
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return None, [f"{path.name} cannot be read: {error}"]
    return (found, []) if isinstance(found, dict) else (None, [f"{path.name} is not an object `{{...}}`"])


def layer_of(name: str) -> str:
    """Return the layer of a block that a weight is of, e.g. ``q_proj``; empty for others, for routers and experts."""
    parts = name.split(".")
    if parts[-1] != "weight" or "experts" in parts or not any(map(str.isdigit, parts)):
        return ""  # head and embeddings are in no block
    return "" if parts[-2] in ROUTERS else parts[-2]


def shapes_in(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the tensors that the safetensors files of a folder hold, by their headers; none if one is damaged."""
    found: dict[str, tuple[int, ...]] = {}
    for path in folder.glob("*.safetensors"):
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(length, _LONGEST_HEADER)))
            found |= {name: tuple(map(int, x["shape"])) for name, x in header.items() if name != "__metadata__"}
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return {}  # loading it says what is wrong
    return found


def _bounds(config: Mapping[str, Any], where: str) -> list[str]:
    """Return what of a model's attention or logits no code here computes."""
    found = []
    for each in (config, config.get("text_config")):
        if isinstance(each, Mapping):
            found += [f"`{name}: {each[name]}` in its config.json" for name in CAPS if each.get(name) is not None]
            found += ["sinks in its attention"] if each.get("model_type") in SINKS else []
    return [f"`{where}` has {each}, which no code here computes. Name another model." for each in found]


def context_of(config: Mapping[str, Any] | None) -> int | None:
    """Return the most tokens of a text; ``None`` if the positions are stretched, or it is not stated."""
    config = config or {}
    stretched = config.get("rope_scaling") or config.get("rope_parameters") or {}
    kind = stretched.get("rope_type", stretched.get("type")) if isinstance(stretched, dict) else None
    if kind in ("linear", "dynamic", "yarn"):
        return None
    named = [config.get(name) for name in ("max_position_embeddings", "n_positions")]
    return next((n for n in named if isinstance(n, int)), None)
