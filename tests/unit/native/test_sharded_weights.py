"""Weights that processes share: the numbers of a run that shares nothing, on any number of processes."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from paribus.contract import Checkpoints, Options
from paribus.errors import RunnerError
from paribus.recipe import factors as f
from paribus.recipe.compute import Compute
from paribus.recipe.recipe import ChainTask, Lora, Model, Recipe
from paribus.recipe.rollout import Rollout
from paribus.run_folder.checkpoints import published
from paribus.run_folder.folder import RunFolder, read_json
from paribus_runners.native import head, main, requirements, update
from paribus_runners.native.learner import Learner
from paribus_runners.native.limits import USUAL, Limits
from paribus_runners.native.policy import Policy
from paribus_runners.native.runner import NativeRunner
from paribus_runners.native.sharded_weights import ShardedWeights, own_part
from paribus_runners.native.world import World
from support.native_runs import (
    changed,
    ended,
    lines_of,
    same,
    stopped_and_gone_on,
    train_in,
    weights_of,
)
from support.ranks import in_ranks

JobFolder = Callable[..., Path]
SHARDED = Compute(sharding="weights")
AGAIN = Compute(sharding="weights", gradient_checkpointing=True)
OFFLOADED = Compute(sharding="weights", offload=("optimizer", "reference"))
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "checkpointing": {"compute": AGAIN},
    "reference": {"compute": OFFLOADED, "kl": f.KlInLoss()},
    "synced": {"kl": f.KlInLoss(reference=f.SyncedReference(every=1, mix=0.3)), "schedule": {"staleness": 1}},
    "whole batch": {"clip": f.ClipCov(fraction=0.1, cov_low=-1.0)},
    "few": {"schedule": {"prompts_per_step": 2, "group_size": 2}, "kl": f.KlInLoss()},
    "untied": {"model": "untied"},
    "frozen": {"model": "frozen"},
    "experts": {"model": "experts", "token_weight": f.RouterShift(), "rollout": Rollout(routing_replay="learner")},
}


@pytest.fixture
def model_of(chain_model: Path, mixture_model: Path, untied_qwen: Path) -> dict[str, Model]:
    """The models of the cases."""
    return {
        "untied": Model(name=str(untied_qwen)),
        "frozen": Model(name=str(chain_model), freeze=("*embed_tokens*", "*layers.0.*")),
        "experts": Model(name=str(mixture_model)),
    }


def _equal(mine: Path, its: Path, tolerance: float) -> None:
    """Compare metrics and weights of two runs."""
    for line, expected in zip(lines_of(mine), lines_of(its), strict=True):
        assert line == pytest.approx(expected, rel=tolerance, abs=tolerance)
    weights = weights_of(mine)
    assert weights.keys() == weights_of(its).keys()
    for name, weight in weights_of(its).items():
        torch.testing.assert_close(weights[name], weight, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("case", [c if c == "plain" else pytest.param(c, marks=pytest.mark.slow) for c in CASES])
def test_a_run_has_the_numbers_of_one_that_shares_nothing(
    recipe: Recipe,
    job_folder: JobFolder,
    model_of: dict[str, Model],
    monkeypatch: pytest.MonkeyPatch,
    case: str,
    size: int,
) -> None:
    """As far as float32 rounds another order of sums; processes have another number of passes, some make none."""
    monkeypatch.setitem(USUAL, "cpu", Limits(responses_at_a_time=512, tokens_a_pass=256))
    monkeypatch.setattr(head, "SMALL", 1)
    given: dict[str, Any] = {"compute": SHARDED} | CASES[case]
    if "model" in given:
        given["model"] = model_of[given["model"]]
    plain = given["compute"].model_copy(update={"sharding": "none"})
    usual, shared = (
        job_folder(changed(recipe, **given | {"compute": plain}), name="usual"),
        job_folder(changed(recipe, **given), name="shared"),
    )
    train_in(size, usual)
    train_in(size, shared)
    _equal(shared, usual, 1e-4)
    (place,) = published(RunFolder(shared))
    parts = {f"optimizer-0000{n + 1}-of-0000{size}.safetensors" for n in range(size)}
    assert {p.name for p in place.glob("*optimizer*")} == parts
    loaded = AutoModelForCausalLM.from_pretrained(place / "model")
    assert type(loaded).__name__ in read_json(place / "model" / "config.json")["architectures"]
    assert not type(loaded).__name__.startswith("FSDP")


@pytest.mark.slow
def test_shares_of_weights_in_bfloat16_are_float32(recipe: Recipe, job_folder: JobFolder) -> None:
    """They are whole in bfloat16, so the first numbers are those of a run that shares nothing, and others near them."""
    half = Model(name=recipe.model.name, dtype="bfloat16", trained_dtype="bfloat16")
    recipe = changed(recipe, model=half)
    usual, shared = job_folder(recipe, name="usual"), job_folder(changed(recipe, compute=SHARDED), name="shared")
    train_in(2, usual)
    train_in(2, shared)
    first, expected = lines_of(shared)[0], lines_of(usual)[0]
    assert first == expected
    assert {w.dtype for w in weights_of(shared).values()} == {torch.bfloat16}
    for name, weight in weights_of(usual).items():
        torch.testing.assert_close(weights_of(shared)[name], weight, rtol=0.02, atol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "first", "then"),
    [("float32", 2, 2), ("bfloat16", 2, 2), ("float32", 4, 2), ("float32", 2, 4), ("float32", 2, 1), ("float32", 1, 2)],
)
def test_a_run_that_was_stopped_goes_on_in_more_or_fewer_processes(
    recipe: Recipe, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch, case: str, first: int, then: int
) -> None:
    """All get SIGTERM after the second step: each leaves its part, and the first one makes a checkpoint of them.

    In as many processes as before, the run goes on to the bit; else as far as other sums round.
    """
    half = {"model": Model(name=recipe.model.name, dtype="bfloat16", trained_dtype="bfloat16")}
    recipe = changed(recipe, compute=SHARDED, **(half if case == "bfloat16" else {}))
    on, whole = stopped_and_gone_on(recipe, job_folder, monkeypatch, first, then)
    if first == then:
        assert lines_of(on) == lines_of(whole)
        assert same(weights_of(on), weights_of(whole))
    _equal(on, whole, 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("first", "then"), [(1, 2), (2, 1)])
def test_a_reference_that_follows_goes_on_beside_frozen_weights(
    recipe: Recipe, job_folder: JobFolder, model_of: dict[str, Model], first: int, then: int
) -> None:
    """What it shares with the policy in one process, and not in several, is in no checkpoint."""
    moving = f.KlInLoss(reference=f.SyncedReference(every=1, mix=0.3))
    recipe = changed(recipe, model=model_of["frozen"], kl=moving, compute=SHARDED)
    short = changed(recipe, schedule={"steps": 2})
    begun, whole = job_folder(short, name="cut"), job_folder(recipe, name="whole")
    train_in(first, begun)
    on = job_folder(recipe, name="cut", token=2)
    train_in(then, on)
    train_in(first, whole)
    assert [x["step"] for x in lines_of(on)] == [0, 1, 2, 3]
    _equal(on, whole, 1e-4)


def test_a_reference_beside_shared_weights_leaves_the_device_whole(
    recipe: Recipe, model_of: dict[str, Model], tmp_path: Path
) -> None:
    """Also its frozen weights, which it shares with the policy where processes share none."""
    recipe = changed(recipe, model=model_of["frozen"], compute=OFFLOADED, kl=f.KlInLoss())

    def action(here: World) -> tuple[int, int]:
        learner = Learner.of(recipe, main.initial_policy(recipe, tmp_path, 0), here)
        assert learner.reference is not None
        resting = sum(p.numel() for p in learner.reference.model.parameters())
        with learner.reference.at_hand():
            return resting, sum(p.numel() for p in learner.reference.model.parameters())

    policy = Policy.load(recipe.model.name, None, "float32")
    assert in_ranks(2, tmp_path / "ranks", action) == [(0, sum(p.numel() for p in policy.model.parameters()))] * 2


def test_models_that_cannot_be_sharded_are_refused_by_name(recipe: Recipe, tmp_path: Path) -> None:
    """One whose blocks share a weight, and one that keeps some of its weights in float32."""

    def action(here: World) -> list[str]:
        tied, mixed = (Policy.load(recipe.model.name, None, "float32").model for _ in range(2))
        tied.model.layers[1].mlp.up_proj.weight = tied.model.layers[0].mlp.up_proj.weight
        mixed.to(torch.bfloat16).model.norm.float()
        said = []
        for model, dtype in ((tied, torch.float32), (mixed, torch.bfloat16)):
            with pytest.raises(RunnerError) as caught:
                ShardedWeights(model, here, dtype)
            said.append(str(caught.value))
        return said

    tied, mixed = in_ranks(2, tmp_path / "ranks", action)[0]
    assert tied.startswith("`compute.sharding: weights` cannot shard LlamaForCausalLM: ")
    assert "keeps some weights in float32" in mixed


def test_a_process_keeps_its_share_alone_while_weights_are_updated(recipe: Recipe, tmp_path: Path) -> None:
    """Of weights and gradients; afterwards all have what AdamW made of all shares."""

    def action(here: World) -> tuple[int, int, int, bool]:
        policy = Policy.load(recipe.model.name, None, "float32")
        everything = sum(p.numel() for p in policy.trained)
        learner = Learner.of(changed(recipe, compute=SHARDED), policy, here)
        before = {name: p.detach().clone() for name, p in learner.policy.model.named_parameters()}
        with learner.sharded():
            held = sum(own_part(p).numel() for p in learner.policy.model.parameters())
            update.without_tokens(learner.policy).backward()
            for weight in learner.optimizer.weights:
                assert weight.grad is not None
                own_part(weight.grad).fill_(1.0)
            gradients = sum(own_part(w.grad).numel() for w in learner.optimizer.weights if w.grad is not None)
            norm = learner.optimizer.step(None)
            for limit, scale in ((2 * norm, 1.0), (1.0, 1 / norm)):
                for weight in learner.optimizer.weights:
                    assert weight.grad is not None
                    own_part(weight.grad).fill_(1.0)
                assert learner.optimizer.step(limit) == pytest.approx(norm)
                for weight in learner.optimizer.weights:
                    assert weight.grad is not None
                    torch.testing.assert_close(own_part(weight.grad), torch.full_like(own_part(weight.grad), scale))
        assert norm == pytest.approx(everything**0.5)
        rate = recipe.optimizer.learning_rate
        after = dict(learner.policy.model.named_parameters())
        steps = torch.cat([(before[k] - after[k]).flatten() for k in before])
        moved = bool(steps.min() > 2 * rate) and bool(steps.max() - steps.min() < 1e-6)  # all have had one gradient
        return everything, held, gradients, moved

    found = in_ranks(3, tmp_path / "ranks", action)
    assert sum(held for _, held, _, _ in found) == found[0][0]
    for everything, held, gradients, moved in found:
        assert held == gradients <= everything * 0.35
        assert moved


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_ends_in_the_middle_of_an_update(recipe: Recipe, job_folder: JobFolder, end: signal.Signals) -> None:
    """SIGTERM to all: a checkpoint is kept, though processes wait for each other in a backward pass. SIGKILL to one."""
    long = {"steps": 10_000, "epochs": 60}
    recipe = changed(recipe, schedule=long, compute=SHARDED)
    folder = job_folder(recipe, options=Options(own={"processes": 2}), checkpoint=Checkpoints(every=1))
    updating = lambda signs: all(sign.step > 1 and sign.phase == "update" for sign in signs.values())  # noqa: E731
    report, pids = ended(folder, updating, end, 0 if end == signal.SIGTERM else 1)
    if end == signal.SIGTERM:
        assert report["do"] == "release"
        assert read_json(folder / "checkpoints" / "index.json")
    else:
        assert (report["do"], report["kind"]) == ("fail", "infrastructure")
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_a_model_of_another_shape_is_refused(recipe: Recipe, tmp_path: Path) -> None:
    """A checkpoint that does not fit is no half of the weights."""

    def action(here: World) -> str:
        shared = ShardedWeights(Policy.load(recipe.model.name, None, "float32").model, here, torch.float32)
        shared.gather()
        state: dict[str, Tensor] = {k: v.clone() for k, v in shared.state().items()}
        shared.load(state)
        assert same(state, shared.state())
        name = next(k for k in state if "embed_tokens" in k)
        state[name] = state[name][1:]
        with pytest.raises(RuntimeError, match="has the shape") as caught:
            shared.load(state)
        return str(caught.value)

    assert all("embed_tokens" in said for said in in_ranks(2, tmp_path / "ranks", action))


def test_what_cannot_be_sharded_is_refused_before_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Adapters, critics and old versions of PyTorch."""
    critic = {
        "baseline": f.CriticGae(), "scale": f.BatchWhiten(unit="token"), "auxiliary": {"value": {"pretrain_steps": 1}},
    }  # fmt: skip
    base = Recipe(task=ChainTask(), compute=SHARDED)
    reasons = {
        "adapters": changed(base, model=Model(name="tiny", lora=Lora())),
        "critic": changed(base, **critic),
        "fine": base,
    }
    found = {
        name: [x.reason for x in NativeRunner().support(recipe, Options()) if x.feature == "compute"]
        for name, recipe in reasons.items()
    }
    assert "with `model.lora` none are" in found["adapters"][0]
    assert "does not shard a critic" in found["critic"][0]
    assert found["fine"] == []
    monkeypatch.setattr(requirements, "versions", lambda *names: {"torch": "2.9.1+cu128"})
    (reason,) = requirements.sharding_faults(base)
    assert "needs PyTorch 2.13 or newer, and 2.9.1+cu128 is installed" in reason
