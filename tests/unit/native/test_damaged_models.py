"""Model folders that lack weights, are cut or want what is not computed here: an error that names it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paribus.errors import RunnerError
from paribus_runners.native.model_files import ModelFiles
from paribus_runners.native.policy import Policy

Weights = dict[str, torch.Tensor]


@pytest.fixture
def changed_weights(chain_model: Path, tmp_path: Path) -> Callable[[Callable[[Weights], Weights]], Path]:
    """Makes a copy of a model with other weights."""

    def make(change: Callable[[Weights], Weights]) -> Path:
        folder = tmp_path / "model"
        shutil.copytree(chain_model, folder)
        save_file(change(load_file(folder / "model.safetensors")), folder / "model.safetensors", {"format": "pt"})
        return folder

    return make


def loaded(folder: Path) -> str:
    """Return what is said of a model that cannot be loaded."""
    with pytest.raises(RunnerError) as caught:
        Policy.load(str(folder), None, "float32")
    assert f"`model.name: {folder}`" in str(caught.value)
    return str(caught.value)


def test_weights_that_are_not_there_are_not_drawn(changed_weights: Callable[..., Path]) -> None:
    """Transformers would fill them in, other ones each time."""
    folder = changed_weights(lambda weights: {k: v for k, v in weights.items() if "layers.0.self_attn.q_proj" not in k})
    assert "lacks 1 of its weights, such as `model.layers.0.self_attn.q_proj.weight`" in loaded(folder)


def test_weights_of_other_names_are_named(changed_weights: Callable[..., Path]) -> None:
    """As a trainer leaves them that wraps its model."""
    said = loaded(changed_weights(lambda weights: {f"policy.{k}": v for k, v in weights.items()}))
    assert "of its weights" in said
    assert "The files have others, such as `policy." in said


def test_a_file_that_was_cut_is_told(chain_model: Path, tmp_path: Path) -> None:
    """Half copied, or empty."""
    for kept in (0.5, 0.0):
        folder = tmp_path / f"kept {kept}"
        shutil.copytree(chain_model, folder)
        whole = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(whole[: int(len(whole) * kept)])
        assert "cannot be loaded" in loaded(folder)


def test_weights_of_another_shape_are_told(changed_weights: Callable[..., Path]) -> None:
    """Such as those of another size of the same family."""
    folder = changed_weights(lambda weights: {k: v[:-1].clone() if "q_proj" in k else v for k, v in weights.items()})
    assert "cannot be loaded" in loaded(folder)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"attn_logit_softcapping": 50.0}, "`attn_logit_softcapping: 50.0` in its config.json"),
        (
            {"final_logit_softcapping": 30.0},
            "`final_logit_softcapping: 30.0` in its config.json",
        ),
        ({"model_type": "gpt_oss"}, "sinks in its attention"),
        ({"text_config": {"attn_logit_softcapping": 20.0}}, "`attn_logit_softcapping: 20.0` in its config.json"),
        ({"attn_logit_softcapping": None}, ""),
    ],
)
def test_a_plan_refuses_what_no_code_here_computes(
    chain_model: Path, tmp_path: Path, setting: dict[str, Any], said: str
) -> None:
    """From config.json, before the weights are loaded."""
    shutil.copytree(chain_model, tmp_path / "model")
    file = tmp_path / "model" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | setting))
    faults = ModelFiles.of(str(tmp_path / "model"), None).faults
    assert bool(faults) is bool(said)
    assert all(
        fault == f"`model.name: {tmp_path / 'model'}` has {said}, which no code here computes. Name another model."
        for fault in faults
    )
