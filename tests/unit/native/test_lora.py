"""Adapters: what they compute, that nothing else is trained, and that peft loads the same from a checkpoint."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from paribus.contract import Evaluate, Options
from paribus.errors import MissingExtra, RunnerError
from paribus.recipe import factors as f
from paribus.recipe.recipe import ChainTask, Lora, Model, Recipe
from paribus.run_folder.checkpoints import published
from paribus.run_folder.folder import RunFolder
from paribus.study.fingerprint import recipe_key
from paribus_runners.native import attention, lora, runner
from paribus_runners.native.learner import Learner
from paribus_runners.native.model_files import ModelFiles, shapes_in
from paribus_runners.native.policy import Policy
from support.native_runs import STATES, changed, lines_of, train_until

JobFolder = Callable[..., Path]
SETTINGS = Lora(rank=3, alpha=6)
IDS = torch.arange(1, 9)


def logits(policy: Policy) -> Tensor:
    """The logits of a few tokens."""
    layout = attention.pack([len(IDS)], [()], policy.device)
    return policy.head.logits(policy.hidden(IDS, layout.positions, layout))


@pytest.fixture
def adapted(chain_model: Path) -> Policy:
    """A policy with adapters that have moved from where they begin."""
    policy = Policy.load(str(chain_model), None, "float32", SETTINGS, 1)
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in policy.trained:
            weights += 0.1 * torch.randn(weights.shape, generator=draw)
    return policy


@pytest.fixture
def low_rank(recipe: Recipe) -> Recipe:
    """The small recipe with adapters in place of weights."""
    return changed(recipe, model=Model(name=recipe.model.name, lora=SETTINGS))


def adapters_of(folder: Path) -> dict[str, Tensor]:
    """The adapters in the newest checkpoint."""
    return load_file(published(RunFolder(folder))[0] / "model" / lora.FILE)


def test_nothing_changes_before_the_first_update(chain_model: Path) -> None:
    """B is 0: equal logits and the same hash as without; A follows from the seed, and all else is frozen."""
    plain = Policy.load(str(chain_model), None, "float32")
    one, same, other = (Policy.load(str(chain_model), None, "float32", SETTINGS, seed) for seed in (1, 1, 2))
    assert torch.equal(logits(one), logits(plain))
    assert one.weights_hash() == plain.weights_hash() == other.weights_hash()
    assert all(torch.equal(a, b) for a, b in zip(one.trained, same.trained, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(one.trained, other.trained, strict=True))
    assert {name.split(".lora_")[1][0] for name, p in one.model.named_parameters() if p.requires_grad} == {"A", "B"}


def test_gradients_are_those_of_the_product(adapted: Policy, chain_model: Path) -> None:
    """With s = alpha / rank and G the gradient of W + s B A: that of B is s G A', that of A is s B' G."""
    whole = Policy.load(str(chain_model), None, "float32")
    weights = dict(lora.merged(adapted.model))
    with torch.no_grad():
        for name, p in whole.model.named_parameters():
            p.copy_(weights[name])
    assert torch.allclose(logits(adapted), logits(whole), atol=1e-5)
    for policy in (adapted, whole):
        logits(policy).log_softmax(-1)[:, 3].sum().backward()
    layers = [(n, m) for n, m in adapted.model.named_modules() if hasattr(m, "lora_A")]
    assert len(layers) == 14
    for name, layer in layers:
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        full = whole.model.get_submodule(name).weight.grad
        assert torch.allclose(b.grad, 2.0 * full @ a.detach().T, atol=1e-4)
        assert torch.allclose(a.grad, 2.0 * b.detach().T @ full, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
def test_a_run_trains_adapters_alone_and_peft_loads_them(
    low_rank: Recipe, job_folder: JobFolder, chain_model: Path
) -> None:
    """The checkpoint holds no weights of the model; peft's own loader gives the logits of the trained policy."""
    folder = job_folder(low_rank)
    runner.run(folder)
    place = published(RunFolder(folder))[0] / "model"
    assert {p.suffix for p in place.iterdir()} >= {".safetensors", ".json"}
    assert not (place / "model.safetensors").exists()
    policy = Policy.load(str(chain_model), None, "float32", SETTINGS, 0)
    before = logits(policy)
    lora.load(policy.model, place, "cpu")
    assert not torch.allclose(before, logits(policy), atol=1e-4)
    theirs = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(chain_model), place).eval()
    with torch.no_grad():
        assert torch.allclose(theirs(IDS[None]).logits[0], logits(policy), atol=1e-5)
    assert lines_of(folder)[-1]["optim/grad_norm"] > 0


@pytest.mark.parametrize("carried", ["plain", "critic", "reference"])
def test_what_is_resumed_is_equal_to_the_bit(low_rank: Recipe, job_folder: JobFolder, carried: str) -> None:
    """SIGTERM after the second step: the next attempt has the metrics and adapters of a run that was left alone."""
    recipe = changed(low_rank, **STATES[carried])
    whole = job_folder(recipe, name="whole")
    runner.run(whole)
    first = job_folder(recipe, name="cut")
    train_until(1, first)
    second = job_folder(recipe, name="cut", token=2)
    runner.run(second)
    assert lines_of(second) == lines_of(whole)
    ends, wanted = adapters_of(second), adapters_of(whole)
    assert all(torch.equal(ends[name], wanted[name]) for name in wanted)
    size = sum(p.stat().st_size for p in published(RunFolder(second))[0].rglob("*") if p.suffix == ".safetensors")
    assert size < sum(p.stat().st_size for p in Path(recipe.model.name).rglob("*.safetensors"))


def test_reference_and_critic_hold_the_frozen_weights_once(adapted: Policy, recipe: Recipe) -> None:
    """They share them with the policy, begin with its adapters, and move alone."""
    recipe = changed(
        recipe, kl=f.KlInLoss(reference=f.SyncedReference(every=1, mix=0.5)), baseline=f.CriticGae(),
        scale=f.BatchWhiten(unit="token"), auxiliary={"value": {}},
    )  # fmt: skip
    learner = Learner.of(recipe, adapted)
    assert learner.reference is not None
    assert learner.critic is not None
    frozen = {id(p) for p in adapted.model.parameters() if not p.requires_grad}
    assert frozen <= {id(p) for p in learner.reference.model.parameters()}
    shared = {id(p) for p in learner.critic.model.parameters()} & frozen
    assert len(shared) >= len(frozen) - 1  # the head of the policy is no part of a critic
    begins = logits(learner.reference)
    assert torch.equal(begins, logits(adapted))
    hashed = adapted.weights_hash()
    with torch.no_grad():
        for p in adapted.trained:
            p.mul_(1.5)
    assert torch.equal(logits(learner.reference), begins)
    learner.sync(recipe, 1)
    assert not torch.equal(logits(learner.reference), begins)
    assert adapted.weights_hash() == hashed
    assert [id(p) for p in learner.optimizer.weights] == [id(p) for p in adapted.trained]


def test_frozen_weights_have_the_type_of_the_computations(chain_model: Path) -> None:
    """With bfloat16 the model takes half the memory; adapters and their moments stay in float32."""
    policy = Policy.load(str(chain_model), None, "bfloat16", SETTINGS)
    types = {p.requires_grad: p.dtype for p in policy.model.parameters()}
    assert types == {True: torch.float32, False: torch.bfloat16}
    plain = Policy.load(str(chain_model), None, "float32")
    assert torch.allclose(logits(policy), logits(plain), atol=0.1)
    logits(policy).sum().backward()
    assert any(p.grad is not None and p.grad.abs().max() > 0 for p in policy.trained)


def test_layers_that_are_not_there_are_named(chain_model: Path) -> None:
    """The message lists what the model has; named layers alone get adapters."""
    with pytest.raises(RunnerError, match=r"layers`: qkv is the name of no linear layer .* down_proj, gate_proj"):
        Policy.load(str(chain_model), None, "float32", Lora(layers=("qkv", "v_proj")))
    policy = Policy.load(str(chain_model), None, "float32", Lora(layers=("v_proj",)))
    assert all(".v_proj." in name for name, p in policy.model.named_parameters() if p.requires_grad)


@pytest.mark.parametrize("name", ["", "tiny", "tiny_moe"])
def test_a_plan_names_the_layers_that_are_not_there(chain_model: Path, name: str) -> None:
    """And the one that was meant; those that are there are no fault, whichever model it is."""

    def faults(*layers: str) -> tuple[str, ...]:
        model = Model(name=name or str(chain_model), lora=Lora(layers=layers))
        return runner.examine(Recipe(model=model, task=ChainTask()), Evaluate(), Options()).faults

    (fault,) = faults("q_prj", "v_proj")
    assert fault.startswith("`model.lora.layers`: `q_prj` is the name of no linear layer in the blocks of the model")
    assert fault.endswith("Did you mean `q_proj`?")
    policy = Policy.load(str(chain_model), None, "float32", Lora(layers=("q_proj", "up_proj", "down_proj")))
    assert policy.trained
    assert faults("q_proj", "up_proj", "down_proj") == ()


def test_experts_keep_their_router(mixture_model: Path) -> None:
    """No adapter stands beside a layer that chooses experts."""
    policy = Policy.load(str(mixture_model), None, "float32", SETTINGS)
    trained = [name for name, p in policy.model.named_parameters() if p.requires_grad]
    assert trained
    assert not [name for name in trained if ".gate." in name or "router" in name]


def test_without_peft_the_remedy_is_named(chain_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run says what to install."""
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(MissingExtra, match="peft"):
        Policy.load(str(chain_model), None, "float32", SETTINGS)


def test_a_plan_refuses_routers(low_rank: Recipe) -> None:
    """Adapters beside layers that choose experts are refused before a run starts; peft is a version that counts."""
    with pytest.raises(ValidationError, match="gate: layers that choose experts get no adapters"):
        Lora(layers=("gate", "v_proj"))
    assert runner.support(low_rank, Options()) == []
    assert "peft" in runner.requirements(low_rank, Options()).versions


def test_a_plan_counts_the_adapters(chain_model: Path, low_rank: Recipe) -> None:
    """The numbers that a plan adds up from the headers of the files are those that are trained."""
    files = ModelFiles(shapes=shapes_in(chain_model))
    policy = Policy.load(str(chain_model), None, "float32", SETTINGS)
    (line,) = files.memory(low_rank)
    assert f"and {sum(p.numel() for p in policy.trained):,} of adapters with gradients" in line


def test_recipes_without_adapters_keep_their_text(recipe: Recipe) -> None:
    """The JSON of a recipe and the key of its fingerprint are those from before there were adapters."""
    assert "lora" not in recipe.model_dump_json()
    assert not [path for path in recipe_key(recipe) if "lora" in path or "gradient_checkpointing" in path]
    adapted = changed(recipe, model=Model(lora=SETTINGS))
    assert recipe_key(adapted)["model.lora.rank"] == 3
    assert Recipe.model_validate_json(adapted.model_dump_json()) == adapted
