"""Low-rank adapters (LoRA, arXiv 2106.09685): the weights of a model stay, small matrices beside them are trained.

The library peft puts an adapter beside each chosen linear layer: y = W x + (alpha / rank) B A x, with B = 0 at first.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from paribus.errors import MissingExtra, RunnerError
from paribus.recipe.recipe import ROUTERS, Lora
from paribus.run_folder.folder import read_json, write_json

NAME = "default"
"""peft's name of an adapter that has none."""
FILE, SETTINGS = "adapter_model.safetensors", "adapter_config.json"
"""The files of a folder that ``peft.PeftModel.from_pretrained`` loads."""
_BASE, _PREFIX = ".base_layer", "base_model.model."

M = TypeVar("M", bound=nn.Module)


def add(model: Any, settings: Lora, seed: int) -> None:
    """Put adapters beside the linear layers that the recipe names, and freeze everything else.

    Args:
        model: a Transformers model on the CPU.
        settings: of the recipe.
        seed: seed of the run, which the initial A follow from.

    Raises:
        MissingExtra: peft is not installed.
        RunnerError: the model has no linear layer of a name.
    """
    try:
        from peft import LoraConfig, inject_adapter_in_model
    except ImportError as error:
        raise MissingExtra("train", f"`model.lora` ({error.name})") from error
    layers = (name for name, layer in model.base_model.named_modules() if isinstance(layer, nn.Linear))
    there = {name.rpartition(".")[2] for name in layers} - ROUTERS
    wanted = sorted(there if settings.layers is None else settings.layers)
    if unknown := [name for name in wanted if name not in there]:
        raise RunnerError(
            f"`model.lora.layers`: {', '.join(unknown)} is the name of no linear layer in the blocks of "
            f"{type(model).__name__}, which has {', '.join(sorted(there)) or 'none'}"
        )
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type] # any number will do
        target_modules=wanted,
        task_type="CAUSAL_LM",
        base_model_name_or_path=model.name_or_path,
        inference_mode=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(Random(f"lora/{seed}").getrandbits(63))
        inject_adapter_in_model(config, model)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.float()  # peft gives them the type of the frozen weights


def copy_of(model: M, policy: nn.Module) -> M:
    """Return a copy of a part of the policy's model that shares the weights which are not trained."""
    return copy.deepcopy(model, {id(p): p for p in policy.parameters() if not p.requires_grad})


def of_the_model(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of the model itself under their names in Transformers, without those of adapters."""
    for name, weights in model.named_parameters():
        if ".lora_" not in name:
            yield name.replace(_BASE, ""), weights


@torch.no_grad()
def merged(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights of a model without adapters that computes the same, under their names in Transformers."""
    for name, weights in of_the_model(model):
        layer: Any = model.get_submodule(name.rpartition(".")[0])
        if name.endswith(".weight") and hasattr(layer, "get_delta_weight"):
            yield name, (weights.float() + layer.get_delta_weight(NAME)).to(weights.dtype)
        else:
            yield name, weights


def has_adapters(model: nn.Module) -> bool:
    """Return whether :func:`add` has been at the model."""
    return hasattr(model, "peft_config")


def save(model: Any, folder: Path) -> None:
    """Write the adapters as peft does; ``PeftModel.from_pretrained`` loads them."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(_adapters(model), folder / FILE, metadata={"format": "pt"})
    model.peft_config[NAME].save_pretrained(str(folder))
    settings = read_json(folder / SETTINGS)
    write_json(folder / SETTINGS, {**settings, "target_modules": sorted(settings["target_modules"])})  # a set otherwise


@torch.no_grad()
def load(model: nn.Module, folder: Path, device: str) -> None:
    """Load the adapters of a folder that :func:`save` wrote.

    Raises:
        KeyError: the file lacks an adapter.
        SafetensorError: the file is damaged.
    """
    found = load_file(folder / FILE, device=device)
    for name, weights in _adapters(model).items():
        weights.copy_(found[name])


def _adapters(model: nn.Module) -> dict[str, Tensor]:
    return {
        f"{_PREFIX}{name.replace(f'.{NAME}', '')}": weights.detach()
        for name, weights in model.named_parameters()
        if ".lora_" in name
    }
