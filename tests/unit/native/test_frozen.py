"""Frozen parameters: what the entries mean, and that a run trains the others alone, and resumes to the bit."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from safetensors.torch import load_file

from paribus.contract import Evaluate
from paribus.errors import RunnerError
from paribus.recipe.recipe import Lora, Model, Recipe
from paribus.run_folder.checkpoints import published
from paribus.run_folder.folder import RunFolder
from paribus_runners.native import attention, frozen, main, runner
from paribus_runners.native.checkpoint import MOMENTS
from paribus_runners.native.examine import examine
from paribus_runners.native.head import _Chunked, _Settings
from paribus_runners.native.held import Held
from paribus_runners.native.learner import Learner
from paribus_runners.native.model_files import ModelFiles
from paribus_runners.native.tiny.make import build
from paribus_runners.native.tiny.spec import MODELS
from support.native_runs import STATES, changed, lines_of, same, train_until, weights_of

JobFolder = Callable[..., Path]
NAMES = frozen.names_of(MODELS["tiny"])


@pytest.mark.parametrize("name", MODELS)
def test_a_plan_knows_the_parameters_of_tiny_models(name: str) -> None:
    """They are those of the model that Transformers builds."""
    assert sorted(frozen.names_of(MODELS[name])) == sorted(
        n for n, _ in build(MODELS[name], "chain").model.named_parameters()
    )


@pytest.mark.parametrize(
    ("settings", "trained"),
    [
        ({"freeze": ("embeddings",)}, lambda n: "embed" not in n),
        ({"freeze": ("embeddings", "first_1")}, lambda n: "layers.1." in n or n == "model.norm.weight"),
        ({"train": ("last_1",)}, lambda n: "layers.1." in n),
        ({"train": ("blocks",)}, lambda n: "layers" in n),
        ({"train": ("*norm*",)}, lambda n: "norm" in n),
        ({"freeze": ("model.layers.[0]*.mlp.*",)}, lambda n: not ("layers.0." in n and "mlp" in n)),
        ({}, lambda n: True),
    ],
)
def test_entries_mean_parameters(settings: dict[str, tuple[str, ...]], trained: Callable[[str], bool]) -> None:
    """Words for parts, numbers of blocks, and names with signs for any text."""
    assert frozen.chosen(Model(**settings), NAMES) == {n for n in NAMES if trained(n)}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"freeze": ("*.mpl.*",)}, r"`model.freeze`: `\*.mpl.\*` means no parameter. Near it: `\*.mlp.\*`"),
        ({"train": ("model.layers.1.mlp.up_proj",)}, r"Near it: `model.layers.1.mlp.up_proj.weight`"),
        ({"train": ("last_3",)}, r"`last_3` means no parameter of this model, which has 2 blocks"),
        ({"freeze": ("head",)}, r"the output layer of this model has the weights of its embeddings"),
        ({"freeze": ("*",)}, r"nothing is trained"),
        ({"train": ("*",)}, r"means all 20 parameters: remove it"),
    ],
)
def test_an_entry_that_means_nothing_is_refused_by_the_plan(settings: dict[str, tuple[str, ...]], message: str) -> None:
    """The message names what is near it."""
    recipe = Recipe(model=Model(**settings))
    [fault] = examine(recipe, Evaluate()).faults
    with pytest.raises(RunnerError, match=message) as found:
        frozen.chosen(recipe.model, NAMES)
    assert fault == str(found.value)


def test_there_is_one_way_to_say_what_is_trained() -> None:
    """Adapters, `train` and `freeze` exclude each other, and signs of regular expressions are refused."""
    for settings in ({"train": ("blocks",), "freeze": ("head",)}, {"freeze": ("head",), "lora": Lora()}):
        with pytest.raises(ValidationError, match="exclude each other"):
            Model.model_validate(settings)
    with pytest.raises(ValidationError):
        Model(freeze=("(a+)+$",))


@pytest.mark.parametrize("carried", ["critic", "reference"])
def test_a_run_trains_the_others_alone_and_resumes_to_the_bit(
    recipe: Recipe, job_folder: JobFolder, tmp_path: Path, carried: str
) -> None:
    """Frozen weights stay equal to the bit and have no moments; after SIGTERM a run goes on as if never cut."""
    model = Model(name=recipe.model.name, freeze=("embeddings", "first_1"))
    recipe = changed(recipe, **{**STATES[carried], "model": model})
    whole, cut = job_folder(recipe, name="whole"), job_folder(recipe, name="cut")
    runner.run(whole)
    before = dict(main.initial_policy(recipe, tmp_path, 0).model.named_parameters())
    after, trained = weights_of(whole), frozen.chosen(model, NAMES)
    assert {n for n in after if not torch.equal(after[n], before[n])} == trained
    moments = load_file(published(RunFolder(whole))[0] / f"{MOMENTS}.safetensors")
    assert {name.rpartition("/")[0] for name in moments} == trained
    train_until(1, cut)
    second = job_folder(recipe, name="cut", token=2)
    runner.run(second)
    assert same(weights_of(second), after)
    assert lines_of(second) == lines_of(whole)


def test_gradients_are_those_of_the_whole_model(recipe: Recipe, tmp_path: Path) -> None:
    """A trained parameter has the gradient that it has where all are trained; a reference shares what is frozen."""
    some = changed(recipe, model=Model(name=recipe.model.name, train=("last_1",)))
    policies = [main.initial_policy(each, tmp_path, 0) for each in (recipe, some)]
    for policy in policies:
        ids = torch.arange(1, 9)
        layout = attention.pack([len(ids)], [()], policy.device)
        logits = policy.head.logits(policy.hidden(ids, layout.positions, layout))
        logits.log_softmax(-1)[:, 3].sum().backward()
    whole, part = (dict(policy.model.named_parameters()) for policy in policies)
    for name, weights in part.items():
        assert (weights.grad is None) == (".layers.1." not in name)
        assert weights.grad is None or torch.equal(weights.grad, whole[name].grad)
    learner = Learner.of(changed(some, **STATES["reference"]), policies[1])
    assert learner.reference is not None
    shared = zip(learner.policy.model.parameters(), learner.reference.model.parameters(), strict=True)
    assert [a is b for a, b in shared] == [".layers.1." not in name for name in part]


def test_a_frozen_output_layer_hands_gradients_on() -> None:
    """The chunked head's hidden states have the gradient of a plain product; its weights have none."""
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 4, generator=draw, dtype=torch.float64, requires_grad=True)
    weight, targets = torch.randn(7, 4, generator=draw, dtype=torch.float64), torch.arange(5)
    (hidden @ weight.T).log_softmax(-1)[torch.arange(5), targets].sum().backward()
    wanted, hidden.grad = hidden.grad, None
    _Chunked.apply(hidden, weight, None, targets, _Settings(torch.float64, 1.0, 2))[0].sum().backward()
    assert torch.allclose(hidden.grad, wanted, atol=1e-12)
    assert weight.grad is None


def test_a_plan_says_how_much_is_trained_and_held() -> None:
    """16 bytes a trained number, 4 a frozen one; a reference has its own of the trained alone."""
    shapes = dict.fromkeys(NAMES, (3,))
    files, model = ModelFiles(shapes=shapes), Model(name="x", train=("last_1",))
    trained = 3 * sum(".1." in name for name in NAMES)
    assert files.memory(Recipe(model=model))[0].startswith(
        f"memory: {3 * len(NAMES)} parameters, of which {trained} are trained"
    )
    held = Held(weights=3 * len(NAMES), trained=trained, inside=True)
    assert held.bytes(Recipe()) == 16 * trained + 4 * (3 * len(NAMES) - trained)
    assert math.isclose(held.bytes(changed(Recipe(), **STATES["reference"])) - held.bytes(Recipe()), 4 * trained)
    facts = examine(Recipe(model=Model(freeze=("embeddings",))), Evaluate()).facts
    assert facts == (f"trained with `model.freeze: [embeddings]`: {len(NAMES) - 1} of {len(NAMES)} parameters",)
