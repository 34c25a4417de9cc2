"""What a checkpoint of the native runner holds: safetensors and JSON, and the policy as a model of Transformers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from paribus.contract import Job
from paribus.errors import RunFolderError
from paribus.run_folder.checkpoints import damaged_files, publish, read_manifest
from paribus.run_folder.folder import RunFolder, read_json, write_json
from paribus_runners.native import lora
from paribus_runners.native.learner import Learner
from paribus_runners.native.metrics import Spent
from paribus_runners.native.objective.history import Visits
from paribus_runners.native.rollout.queue import RolloutQueue
from paribus_runners.native.rollout.retired import Retired

MODEL = "model"
"""The folder in a checkpoint that ``from_pretrained`` loads: that of Transformers, or of peft for adapters.

It holds nothing else, as vLLM reads every safetensors."""
MOMENTS = "optimizer.safetensors"
CRITIC, CRITIC_MOMENTS = "critic.safetensors", "critic_optimizer.safetensors"
REFERENCE = "reference.safetensors"
QUEUE, HISTORY, RETIRED = "backlog.safetensors", "history.json", "retired.json"


@dataclass(frozen=True)
class Progress:
    """How far a run is. All random numbers follow from the step.

    Attributes:
        step: steps done.
        spent: their costs.
        history: statistics of the prompts that were trained on; empty without ``baseline: history``.
        queued: rollouts that are still to be trained on.
        retired: prompts that are left out; empty without ``schedule.retire_at``.
    """

    step: int = 0
    spent: Spent = field(default_factory=Spent)
    history: Mapping[str, Visits] = field(default_factory=dict)
    queued: RolloutQueue = field(default_factory=RolloutQueue)
    retired: Retired = field(default_factory=Retired)


def save(folder: RunFolder, job: Job, progress: Progress, learner: Learner) -> Path:
    """Write the state after ``progress.step`` as the newest checkpoint; return its folder.

    Raises:
        RunFolderError: as :func:`paribus.run_folder.checkpoints.publish`.
    """
    return publish(folder, job, progress.step, partial(_write, progress, learner), asdict(progress.spent))


def _write(progress: Progress, learner: Learner, place: Path) -> None:
    try:
        if lora.has_adapters(learner.policy.model):
            lora.save(learner.policy.model, place / MODEL)
        else:
            learner.policy.model.save_pretrained(place / MODEL)
        learner.policy.tokenizer.save_pretrained(place / MODEL)
        save_file(_moments(learner.policy.model, learner.optimizer), place / MOMENTS)
        if learner.critic is not None:
            assert learner.critic_optimizer is not None
            save_file(_weights(learner, learner.critic.model), place / CRITIC)
            save_file(_moments(learner.critic.model, learner.critic_optimizer), place / CRITIC_MOMENTS)
        if learner.reference is not None and learner.reference_moves:
            save_file(_weights(learner, learner.reference.model), place / REFERENCE)
        if progress.queued:
            progress.queued.save(place / QUEUE)
    except SafetensorError as error:  # the library's own for a disk that is full
        raise OSError(str(error)) from error
    if progress.history:
        write_json(place / HISTORY, {prompt: asdict(visits) for prompt, visits in progress.history.items()})
    if progress.retired != Retired():
        write_json(place / RETIRED, progress.retired.record())


def read(place: Path, run: str) -> Progress:
    """Return the progress of a checkpoint after verifying all of its files.

    Raises:
        RunFolderError: there is no checkpoint, it is damaged, or it belongs to another run.
    """
    manifest = read_manifest(place)
    if manifest.run != run:
        raise RunFolderError(f"the checkpoint {place} belongs to another run: {manifest.run}")
    if damaged := damaged_files(place):
        raise RunFolderError(f"the checkpoint {place} is damaged: {', '.join(damaged)}")
    if MOMENTS not in manifest.files:
        raise RunFolderError(f"the checkpoint {place} is not of the native runner")
    try:
        history = read_json(place / HISTORY) if HISTORY in manifest.files else {}
        return Progress(
            manifest.step,
            Spent(**manifest.spent),
            {prompt: Visits(**visits) for prompt, visits in history.items()},
            RolloutQueue.load(place / QUEUE) if QUEUE in manifest.files else RolloutQueue(),
            Retired.of(read_json(place / RETIRED)) if RETIRED in manifest.files else Retired(),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OSError, SafetensorError) as error:
        raise RunFolderError(f"the checkpoint {place} is damaged: {error}") from error


def load(place: Path, learner: Learner) -> None:
    """Load weights and optimizer moments from a checkpoint that was read.

    Raises:
        RunFolderError: it does not fit the learner.
    """
    policy, critic = learner.policy, learner.critic
    device = str(policy.device)
    try:
        if lora.has_adapters(policy.model):
            lora.load(policy.model, place / MODEL, device)
        else:
            policy.model.load_state_dict(_model(place / MODEL).state_dict())
        _load_moments(policy.model, learner.optimizer, load_file(place / MOMENTS, device=device))
        if critic is not None:
            assert learner.critic_optimizer is not None
            _load_weights(_weights(learner, critic.model), load_file(place / CRITIC, device=device))
            moments = load_file(place / CRITIC_MOMENTS, device=device)
            _load_moments(critic.model, learner.critic_optimizer, moments)
        if learner.reference is not None and learner.reference_moves:
            _load_weights(_weights(learner, learner.reference.model), load_file(place / REFERENCE, device=device))
    except (KeyError, ValueError, OSError, SafetensorError, RuntimeError) as error:
        raise RunFolderError(f"the checkpoint {place} does not fit the model: {error}") from error


def _model(folder: Path) -> nn.Module:
    """Return the policy as users load it, on the CPU."""
    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, use_safetensors=True)
    return model


def _weights(learner: Learner, model: nn.Module) -> dict[str, Tensor]:
    """Return the weights that a network does not share with the policy."""
    shared = {id(p) for p in learner.policy.model.parameters()}
    return {name: p.detach().contiguous() for name, p in model.named_parameters() if id(p) not in shared}


@torch.no_grad()
def _load_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    for name, parameter in own.items():
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
