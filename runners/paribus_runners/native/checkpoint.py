"""Checkpoints: safetensors and JSON, written whole or not at all, with a hash of every file.

A checkpoint is written to a folder of its own, ``checkpoint.<pid>.partial``, with the manifest last. Two renames put it
in the place of the one before. A process that is killed between them leaves ``checkpoint.<pid>.old`` and the complete
``.partial``, but no ``checkpoint``: :func:`places` names all three.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from paribus.errors import RunFolderError
from paribus.run_folder.attempt_files import MANIFEST, read_manifest
from paribus.run_folder.folder import read_json, write_json
from paribus_runners.native.learner import Learner
from paribus_runners.native.metrics import Spent
from paribus_runners.native.objective.history import Visits
from paribus_runners.native.rollout.queue import RolloutQueue

WEIGHTS, MOMENTS = "model.safetensors", "optimizer.safetensors"
CRITIC, CRITIC_MOMENTS = "critic.safetensors", "critic_optimizer.safetensors"
REFERENCE = "reference.safetensors"
QUEUE, HISTORY = "backlog.safetensors", "history.json"


@dataclass(frozen=True)
class Progress:
    """How far a run is. All random numbers follow from the step.

    Attributes:
        step: steps done.
        spent: their costs.
        history: statistics of the prompts that were trained on; empty without ``baseline: history``.
        queued: rollouts that are still to be trained on.
    """

    step: int = 0
    spent: Spent = field(default_factory=Spent)
    history: Mapping[str, Visits] = field(default_factory=dict)
    queued: RolloutQueue = field(default_factory=RolloutQueue)


def save(folder: Path, run: str, progress: Progress, learner: Learner) -> None:
    """Replace the checkpoint in ``folder``; Transformers can also load it as a model."""
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    policy = learner.policy
    policy.model.config.save_pretrained(partial)
    policy.model.generation_config.save_pretrained(partial)
    policy.tokenizer.save_pretrained(partial)
    save_file(_weights(policy.model), partial / WEIGHTS, metadata={"format": "pt"})
    save_file(_moments(policy.model, learner.optimizer), partial / MOMENTS)
    if learner.critic is not None:
        assert learner.critic_optimizer is not None
        save_file(_weights(learner.critic.model), partial / CRITIC)
        save_file(_moments(learner.critic.model, learner.critic_optimizer), partial / CRITIC_MOMENTS)
    if learner.reference is not None and learner.reference_moves:
        save_file(_weights(learner.reference.model), partial / REFERENCE)
    if progress.history:
        write_json(partial / HISTORY, {prompt: asdict(visits) for prompt, visits in progress.history.items()})
    if progress.queued:
        progress.queued.save(partial / QUEUE)
    hashes = {p.name: _hash(p) for p in sorted(partial.iterdir()) if p.is_file()}
    record = {"run": run, "step": progress.step, "spent": asdict(progress.spent), "files": hashes}
    write_json(partial / MANIFEST, record)
    old = folder.with_name(f"{folder.name}.{os.getpid()}.old")
    if folder.exists():
        folder.replace(old)
    partial.replace(folder)
    shutil.rmtree(old, ignore_errors=True)


def places(folder: Path) -> list[Path]:
    """Return where a checkpoint that belongs into ``folder`` may lie: there, and beside it after a kill."""
    beside = (p for p in sorted(folder.parent.glob(f"{folder.name}.*")) if (p / MANIFEST).exists())
    return [*([folder] if folder.is_dir() else []), *beside]


def read(folder: Path, run: str) -> Progress:
    """Return the progress of a checkpoint after verifying all of its files.

    Raises:
        RunFolderError: there is no checkpoint, it is damaged, or it belongs to another run.
    """
    manifest = read_manifest(folder)
    files, owner = manifest.files, manifest.run
    if manifest.step is None or not all(type(cost) is int for cost in manifest.spent.values()):
        raise RunFolderError(f"the checkpoint {folder} is damaged: {MANIFEST} lacks the step or the costs")
    try:
        damaged = [name for name, digest in files.items() if _hash(folder / name) != digest]
        if not damaged:
            history = read_json(folder / HISTORY) if HISTORY in files else {}
            progress = Progress(
                manifest.step,
                Spent(**manifest.spent),
                {prompt: Visits(**visits) for prompt, visits in history.items()},
                RolloutQueue.load(folder / QUEUE) if QUEUE in files else RolloutQueue(),
            )
    except (KeyError, TypeError, ValueError, AttributeError, OSError, SafetensorError) as error:
        raise RunFolderError(f"the checkpoint {folder} is damaged: {error}") from error
    if owner != run:
        raise RunFolderError(f"the checkpoint {folder} belongs to another run: {owner}")
    if damaged or not {WEIGHTS, MOMENTS} <= files.keys():
        raise RunFolderError(f"the checkpoint {folder} is damaged: {', '.join(damaged) or 'files are missing'}")
    return progress


def load(folder: Path, learner: Learner) -> None:
    """Load weights and optimizer moments from a checkpoint that was read.

    Raises:
        RunFolderError: it does not fit the learner.
    """
    policy, critic = learner.policy, learner.critic
    device = str(policy.device)
    try:
        _load_weights(policy.model, load_file(folder / WEIGHTS, device=device))
        _load_moments(policy.model, learner.optimizer, load_file(folder / MOMENTS, device=device))
        if critic is not None:
            assert learner.critic_optimizer is not None
            _load_weights(critic.model, load_file(folder / CRITIC, device=device))
            moments = load_file(folder / CRITIC_MOMENTS, device=device)
            _load_moments(critic.model, learner.critic_optimizer, moments)
        if learner.reference is not None and learner.reference_moves:
            _load_weights(learner.reference.model, load_file(folder / REFERENCE, device=device))
    except (KeyError, OSError, SafetensorError, RuntimeError) as error:
        raise RunFolderError(f"the checkpoint {folder} does not fit the model: {error}") from error


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().contiguous() for name, p in model.named_parameters()}


@torch.no_grad()
def _load_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.copy_(weights[name])


def _moments(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    state: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        values: dict[str, Any] = optimizer.state.get(parameter, {})
        state |= {f"{name}/{key}": value.contiguous() for key, value in values.items()}
    return state


def _load_moments(model: nn.Module, optimizer: torch.optim.Optimizer, moments: Mapping[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        own = {key.rsplit("/", 1)[1]: value for key, value in moments.items() if key.rsplit("/", 1)[0] == name}
        if own:
            optimizer.state[parameter] = own


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
