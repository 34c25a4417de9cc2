"""Blocks that are computed again: the same numbers, with less memory."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paribus.errors import RunnerError
from paribus.recipe import factors as f
from paribus.recipe.compute import Compute
from paribus.recipe.recipe import Lora, Model, Recipe
from paribus_runners.native import gradient_checkpointing, runner
from paribus_runners.native.log_probabilities import score
from paribus_runners.native.policy import Policy
from support.native_runs import changed, lines_of, same, weights_of

JobFolder = Callable[..., Path]


def kept_bytes(policy: Policy) -> int:
    """Bytes that a pass keeps for its backward pass; the gradients are left in the parameters."""
    seen: dict[int, int] = {}

    def note(tensor: Tensor) -> Tensor:
        seen[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    weights = {p.data_ptr() for p in policy.model.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        scores = score(policy, [[1, 2, 3, 4]] * 4, [[[5, 6, 7, 8], [1, 2, 3]]] * 4, 1.0)
    scores.logp.sum().backward()
    return sum(size for place, size in seen.items() if place not in weights)


@pytest.mark.parametrize("model", ["chain_model", "mixture_model"])
def test_gradients_are_equal_to_the_bit_and_memory_is_less(model: str, request: pytest.FixtureRequest) -> None:
    """For a dense model and one with experts, and for a copy of it, as a critic makes one."""
    plain = Policy.load(str(request.getfixturevalue(model)), None, "float32")
    again = Policy.load(str(request.getfixturevalue(model)), None, "float32")
    gradient_checkpointing.switch_on(again.model)
    copied = Policy(copy.deepcopy(again.model), again.tokenizer, again.dtype, again.ends, again.width, again.device)
    whole, less, copied_less = kept_bytes(plain), kept_bytes(again), kept_bytes(copied)
    assert less == copied_less < whole / 2
    for policy in (again, copied):
        for a, b in zip(plain.model.parameters(), policy.model.parameters(), strict=True):
            assert (a.grad is None and b.grad is None) or torch.equal(a.grad, b.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("lora", [None, Lora(rank=4)])
def test_a_run_has_the_same_numbers(recipe: Recipe, job_folder: JobFolder, lora: Lora | None) -> None:
    """Metrics and weights of a run with critic are equal to the bit with and without; with adapters the metrics are."""
    recipe = changed(
        recipe, model=Model(name=recipe.model.name, lora=lora), baseline=f.CriticGae(),
        scale=f.BatchWhiten(unit="token"), auxiliary={"value": {}},
    )  # fmt: skip
    kept, again = (
        job_folder(recipe, name="kept"),
        job_folder(changed(recipe, compute=Compute(gradient_checkpointing=True)), name="again"),
    )
    runner.run(kept)
    runner.run(again)
    assert lines_of(kept) == lines_of(again)
    if lora is None:
        assert same(weights_of(kept), weights_of(again))


def test_a_model_without_blocks_is_refused() -> None:
    """The message names the setting."""
    with pytest.raises(RunnerError, match=r"`compute\.gradient_checkpointing`: Linear has no blocks"):
        gradient_checkpointing.switch_on(nn.Linear(2, 2))
