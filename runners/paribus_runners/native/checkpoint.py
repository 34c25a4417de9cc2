"""What a checkpoint of the native runner holds: safetensors and JSON, and the policy as a model of Transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

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
from paribus_runners.native.optimizer import Adam
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.queue import RolloutQueue
from paribus_runners.native.rollout.retired import Retired

MODEL = "model"
"""The folder in a checkpoint that ``from_pretrained`` loads: that of Transformers, or of peft for adapters.

It holds nothing else, as vLLM reads every safetensors."""
MOMENTS, CRITIC_MOMENTS = "optimizer", "critic_optimizer"
"""What the names of an optimizer's files begin with: one file, or one of each process (:mod:`.checkpoint_parts`)."""
CRITIC = "critic.safetensors"
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

    def sampled(self, queued: RolloutQueue, retired: Retired) -> Progress:
        """Return the same with another queue, and other prompts that are left out."""
        return replace(self, queued=queued, retired=retired)


def save(
    folder: RunFolder,
    job: Job,
    progress: Progress,
    learner: Learner,
    take_others: Callable[[int, Path], None] = lambda step, place: None,
) -> Path:
    """Write the state after ``progress.step`` as the newest checkpoint; return its folder.

    Args:
        folder: the folder of the attempt.
        job: its job.
        progress: how far it is.
        learner: this process's.
        take_others: puts what other processes hold into the checkpoint; gets step and folder.

    Raises:
        RunFolderError: as :func:`paribus.run_folder.checkpoints.publish`.
    """

    def write(place: Path) -> None:
        _write(progress, learner, place)
        take_others(progress.step, place)

    return publish(folder, job, progress.step, write, asdict(progress.spent))


def _write(progress: Progress, learner: Learner, place: Path) -> None:
    with _full_disks():
        if lora.has_adapters(learner.policy.model):
            lora.save(learner.policy.model, place / MODEL)
        else:
            shared = learner.policy.shared
            learner.policy.model.save_pretrained(place / MODEL, state_dict=None if shared is None else shared.state())
        learner.policy.tokenizer.save_pretrained(place / MODEL)
        write_optimizers(learner, place)
        if learner.critic is not None:
            save_file(_weights(learner, learner.critic.model), place / CRITIC)
        if learner.reference is not None and learner.reference_moves:
            save_file(_moved(learner, learner.reference.model), place / REFERENCE)
        if progress.queued:
            progress.queued.save(place / QUEUE)
    if progress.history:
        write_json(place / HISTORY, {prompt: asdict(visits) for prompt, visits in progress.history.items()})
    if progress.retired != Retired():
        write_json(place / RETIRED, progress.retired.record())


def write_optimizers(learner: Learner, place: Path) -> None:
    """Write what the optimizers of this process hold into a folder, a file each.

    Raises:
        OSError: they cannot be written.
    """
    world = learner.world
    share = f"-{world.rank + 1:05d}-of-{world.size:05d}" if learner.optimizer.sharded else ""
    with _full_disks():
        for name, optimizer in _optimizers(learner):
            save_file(optimizer.state(), place / f"{name}{share}.safetensors")


@contextmanager
def _full_disks() -> Iterator[None]:
    """Raise the usual error where safetensors raises its own: for a disk that is full."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error


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
    if not any(name.startswith(MOMENTS) for name in manifest.files):
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
        elif policy.shared is not None:
            policy.shared.load(_model(place / MODEL, policy).state_dict())
        else:
            policy.model.load_state_dict(_model(place / MODEL, policy).state_dict())
        if critic is not None:
            _load_weights(_weights(learner, critic.model), load_file(place / CRITIC, device=device))
        for name, optimizer in _optimizers(learner):
            optimizer.load(load_file(file) for file in sorted(place.glob(f"{name}*.safetensors")))
        if learner.reference is not None and learner.reference_moves:
            _load_weights(_moved(learner, learner.reference.model), load_file(place / REFERENCE, device=device))
    except (KeyError, ValueError, OSError, SafetensorError, RuntimeError) as error:
        raise RunFolderError(f"the checkpoint {place} does not fit the model: {error}") from error


def _model(folder: Path, policy: Policy) -> nn.Module:
    """Return the policy as users load it, on the CPU, with weights of the types that it has."""
    dtype = next(policy.model.parameters()).dtype
    model: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, use_safetensors=True)
    return model


def _moved(learner: Learner, reference: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a reference that follow those of the policy: the others are as they were loaded."""
    trained = {name for name, p in learner.policy.model.named_parameters() if p.requires_grad}
    return {name: p.detach().contiguous() for name, p in reference.named_parameters() if name in trained}


def _weights(learner: Learner, model: nn.Module) -> dict[str, Tensor]:
    """Return the weights that a network does not share with the policy."""
    shared = {id(p) for p in learner.policy.model.parameters()}
    return {name: p.detach().contiguous() for name, p in model.named_parameters() if id(p) not in shared}


@torch.no_grad()
def _load_weights(own: Mapping[str, Tensor], weights: Mapping[str, Tensor]) -> None:
    for name, parameter in own.items():
        parameter.copy_(weights[name])


def _optimizers(learner: Learner) -> Iterator[tuple[str, Adam]]:
    if learner.world.trains:
        yield MOMENTS, learner.optimizer
    if learner.critic_optimizer is not None:
        yield CRITIC_MOMENTS, learner.critic_optimizer
