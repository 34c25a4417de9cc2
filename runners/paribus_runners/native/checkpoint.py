"""Checkpoints: safetensors and JSON, whole or not there, with a hash of every file."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from paribus.errors import RunFolderError
from paribus.track.folder import read_json, write_json
from paribus_runners.native.metrics import Spent
from paribus_runners.native.policy import Policy

MANIFEST = "paribus.json"
WEIGHTS, MOMENTS = "model.safetensors", "optimizer.safetensors"


@dataclass(frozen=True)
class Progress:
    """Where a run stands: steps done, and what they cost. All random numbers follow from the step."""

    step: int = 0
    spent: Spent = field(default_factory=Spent)


def save(folder: Path, run: str, progress: Progress, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    """Replace the checkpoint in ``folder``; Transformers can load it as a model, too."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    policy.model.config.save_pretrained(partial)
    policy.model.generation_config.save_pretrained(partial)
    policy.tokenizer.save_pretrained(partial)
    save_file(_weights(policy), partial / WEIGHTS, metadata={"format": "pt"})
    save_file(_moments(policy, optimizer), partial / MOMENTS)
    hashes = {p.name: _hash(p) for p in sorted(partial.iterdir()) if p.is_file()}
    write_json(partial / MANIFEST, {"run": run, **asdict(progress), "files": hashes})
    old = folder.with_name(f"{folder.name}.{os.getpid()}.old")
    if folder.exists():
        folder.replace(old)
    partial.replace(folder)
    shutil.rmtree(old, ignore_errors=True)


def read(folder: Path, run: str) -> Progress:
    """Return how far a checkpoint is, after checking all of its files.

    Raises:
        RunFolderError: there is no checkpoint, it is damaged, or it belongs to another run.
    """
    raw = read_json(folder / MANIFEST)
    try:
        files, owner = raw["files"], raw["run"]
        progress = Progress(int(raw["step"]), Spent(**raw["spent"]))
        damaged = [name for name, digest in files.items() if _hash(folder / Path(name).name) != digest]
    except (KeyError, TypeError, ValueError, AttributeError, OSError) as error:
        raise RunFolderError(f"the checkpoint {folder} is damaged: {error}") from error
    if owner != run:
        raise RunFolderError(f"the checkpoint {folder} belongs to another run: {owner}")
    if damaged or not {WEIGHTS, MOMENTS} <= files.keys():
        raise RunFolderError(f"the checkpoint {folder} is damaged: {', '.join(damaged) or 'files are missing'}")
    return progress


def load(folder: Path, policy: Policy, optimizer: torch.optim.Optimizer) -> None:
    """Take weights and moments over from a checkpoint that was read.

    Raises:
        RunFolderError: it does not fit the model.
    """
    device = str(policy.device)
    try:
        weights = load_file(folder / WEIGHTS, device=device)
        moments = load_file(folder / MOMENTS, device=device)
        with torch.no_grad():
            for name, parameter in policy.model.named_parameters():
                parameter.copy_(weights[name])
    except (KeyError, SafetensorError, RuntimeError) as error:
        raise RunFolderError(f"the checkpoint {folder} does not fit the model: {error}") from error
    for name, parameter in policy.model.named_parameters():
        own = {key.rsplit("/", 1)[1]: value for key, value in moments.items() if key.rsplit("/", 1)[0] == name}
        if own:
            optimizer.state[parameter] = own


def _weights(policy: Policy) -> dict[str, Tensor]:
    return {name: p.detach().contiguous() for name, p in policy.model.named_parameters()}


def _moments(policy: Policy, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for name, parameter in policy.model.named_parameters():
        values: dict[str, Any] = optimizer.state.get(parameter, {})
        state |= {f"{name}/{key}": value.contiguous() for key, value in values.items()}
    return state


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
