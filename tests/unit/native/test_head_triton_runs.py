"""``compute.head: triton`` in whole runs, in recipes and plans, and where it is refused."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from paribus.contract import Options
from paribus.errors import RunnerError
from paribus.recipe.compute import Compute
from paribus.recipe.recipe import Model, Recipe
from paribus.study.fingerprint import ADDED
from paribus_runners.native import head, main, requirements
from paribus_runners.native.runner import NativeRunner

KERNELS = Compute(head="triton")


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are not interpreted."""
    monkeypatch.delenv(requirements.INTERPRET, raising=False)


def _reasons(recipe: Recipe, **own: int) -> list[str]:
    return [x.reason for x in NativeRunner().support(recipe, Options(own=own)) if x.feature == "compute"]


@pytest.mark.parametrize("truncated", [False, True])
def test_a_run_with_kernels_is_the_run_without(
    recipe: Recipe, job_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, truncated: bool
) -> None:
    """Metrics of all steps and the last weights agree within 1e-4, also if top-p leaves tokens out."""
    pytest.importorskip("triton")
    from paribus_runners.native import head_triton

    monkeypatch.setattr(head, "SMALL", 0)
    monkeypatch.setattr(head, "CHUNK", 2000)
    used: list[int] = []
    plain = head_triton.Kernels.reduce
    monkeypatch.setattr(head_triton.Kernels, "reduce", lambda *x: used.append(len(x[1])) or plain(*x))
    values = recipe.model_dump()
    values["schedule"] |= {"steps": 2, "group_size": 4, "epochs": 1, "top_p": 0.9 if truncated else 1.0}
    values["auxiliary"]["entropy"] = 0.01
    lines, weights = [], []
    for name in ("torch", "triton"):
        folder = job_folder(Recipe.model_validate(values | {"compute": {"head": name}}), name=name)
        assert not used
        NativeRunner().run(folder)
        lines.append([json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()])
        weights.append(load_file(next(folder.glob("checkpoints/*/model/model.safetensors"))))
    assert used
    for ours, theirs in zip(*lines, strict=True):
        assert ours["values"].keys() == theirs["values"].keys()
        for name, value in ours["values"].items():
            assert name.startswith("perf/") or value == pytest.approx(theirs["values"][name], rel=1e-4, abs=1e-4), name
    for name, value in weights[0].items():
        torch.testing.assert_close(value, weights[1][name], rtol=0, atol=1e-4)


@pytest.mark.usefixtures("on_a_gpu")
def test_a_run_without_gpu_is_refused_before_the_model_is_loaded(job_folder: Callable[..., Path]) -> None:
    """The sentence says what to set; the model of the recipe does not exist, and nobody has looked."""
    away = Recipe(model=Model(name="/no/such/model"), compute=KERNELS)
    with pytest.raises(RunnerError, match=r"`compute\.head: triton` needs an NVIDIA GPU, and this run has none: set"):
        main.run(job_folder(away))


def test_a_machine_without_compiler_is_refused(monkeypatch: pytest.MonkeyPatch, on_a_gpu: None) -> None:
    """Triton builds what starts its kernels with the C compiler of the machine."""
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setattr(requirements.shutil, "which", lambda name: None)
    assert "needs a C compiler" in requirements.no_kernels(KERNELS, "cuda")
    monkeypatch.setenv("CC", "cc")
    assert requirements.no_kernels(KERNELS, "cuda") == ""
    assert requirements.no_kernels(Compute(), "cpu") == ""


def test_plans_name_what_is_missing(monkeypatch: pytest.MonkeyPatch, on_a_gpu: None) -> None:
    """An environment without Triton, and processes on CPUs; a study that asks for no GPU is refused as well."""
    recipe, runner = Recipe(compute=KERNELS), NativeRunner()
    assert "`runner.processes: 2` is for CPUs" in _reasons(recipe, processes=2)[0]
    assert runner.requirements(recipe, Options()).least_gpus == 0.01
    assert runner.requirements(Recipe(), Options()).least_gpus == 0
    monkeypatch.setattr(requirements, "versions", lambda *names: {})
    (reason,) = _reasons(recipe)
    assert "needs Triton, which is not installed in this environment" in reason
    assert _reasons(Recipe()) == []
    assert not os.environ.get(requirements.INTERPRET)
    monkeypatch.setenv(requirements.INTERPRET, "1")
    assert runner.requirements(recipe, Options()).least_gpus == 0


def test_recipes_from_before_keep_their_text() -> None:
    """The default is left out, and counts as what earlier fingerprints meant."""
    assert "head" not in json.loads(Compute(gradient_checkpointing=True).model_dump_json())
    assert json.loads(KERNELS.model_dump_json())["head"] == "triton"
    assert ADDED["compute.head"] == Compute().head == "torch"
    assert "compute" not in json.loads(Recipe().model_dump_json())
