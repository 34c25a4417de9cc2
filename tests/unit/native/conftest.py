"""Models and jobs for the tests of the native runner."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from paribus.contract import Evaluate, Job
from paribus.recipe.recipe import ChainTask, Model, Recipe
from paribus_runners.native.batch import minibatches, passes, tokens_of
from paribus_runners.native.experience import Experience, weigh
from paribus_runners.native.main import settled
from paribus_runners.native.objective.advantage import Scored
from paribus_runners.native.objective.filter import good_groups, present
from paribus_runners.native.objective.loss import loss
from paribus_runners.native.objective.whole_batch import prepared
from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout.rollouts import Rollouts, charges
from paribus_runners.native.tiny import make
from paribus_runners.native.tiny.spec import TINY, TINY_MOE, Stage, TinySpec, WarmUp
from paribus_runners.tasks import chain


@pytest.fixture(autouse=True)
def _settled() -> Iterator[None]:
    with settled():
        yield


@pytest.fixture(scope="session")
def chain_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model that has learned to answer at once, right in about one case of ten; made in seconds."""
    return _saved(TINY, tmp_path_factory.mktemp("models") / "chain")


@pytest.fixture(scope="session")
def mixture_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with experts."""
    return _saved(TINY_MOE, tmp_path_factory.mktemp("models") / "mixture")


def _saved(spec: TinySpec, folder: Path) -> Path:
    policy = make.build(spec, "chain")
    settings = dataclasses.replace(
        WarmUp.of(ChainTask(careful=0.3)),
        stages=(Stage(traces="noisy", steps=80),),
        prompts=32,
        learning_rate=3e-3,
        rise_steps=10,
    )
    with settled():
        make.train(policy, settings)
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)
    return folder


def _qwen(folder: Path, *, tied: bool) -> Path:
    words = make.tokenizer(chain.SYMBOLS)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    ends = {"eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id, "bos_token_id": None}
    config = Qwen2Config(vocab_size=len(words), num_key_value_heads=2, tie_word_embeddings=tied, **sizes, **ends)
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    words.save_pretrained(folder)
    return folder


@pytest.fixture
def tied_qwen(tmp_path: Path) -> Path:
    """A random tiny Qwen2 whose head is the embedding."""
    return _qwen(tmp_path / "qwen", tied=True)


@pytest.fixture
def untied_qwen(tmp_path: Path) -> Path:
    """A random tiny Qwen2 with a head of its own."""
    return _qwen(tmp_path / "qwen", tied=False)


@pytest.fixture
def policy(chain_model: Path) -> Policy:
    """A fresh copy of the chain model."""
    return Policy.load(str(chain_model), None, "float32")


@pytest.fixture
def recipe(chain_model: Path) -> Recipe:
    """A small recipe with four updates a step on the chain model."""
    return Recipe.model_validate(
        {
            "model": Model(name=str(chain_model)),
            "task": ChainTask(),
            "schedule": {
                "steps": 3,
                "prompts_per_step": 6,
                "group_size": 8,
                "minibatches": 2,
                "epochs": 2,
                "max_new_tokens": 12,
            },
        }
    )


@pytest.fixture
def job_folder(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes ``job.json`` into the folder of an attempt and returns the folder."""

    def write(recipe: Recipe, *, name: str = "run", token: int = 1, seed: int = 0, **more: Any) -> Path:
        folder = tmp_path / name / f"a{token}"
        folder.mkdir(parents=True)
        job = Job(
            run="f" * 64,
            study="s",
            arm=name,
            runner="native",
            seed=seed,
            token=token,
            recipe=recipe,
            evaluate=more.pop("evaluate", Evaluate(every=2, problems=10, samples=2)),
            cache=str(tmp_path / "cache"),
            **more,
        )
        (folder / "job.json").write_text(job.model_dump_json())
        return folder

    return write


def _made(
    recipe: Recipe,
    correct: Sequence[Sequence[bool]],
    *,
    lengths: Sequence[int] | None = None,
    truncated: Sequence[bool] | None = None,
    formatted: Sequence[bool] | None = None,
    problems: Sequence[str] | None = None,
    logp: Tensor | None = None,
    reference: Tensor | None = None,
    seed: int = 0,
) -> Rollouts:
    flat = torch.tensor([y for group in correct for y in group], dtype=torch.bool)
    n, groups = len(flat), len(correct)
    L = torch.tensor([1 + (5 * i + seed) % 7 for i in range(n)] if lengths is None else lengths)
    ends = torch.zeros(n, dtype=torch.bool) if truncated is None else torch.tensor(truncated)
    g = torch.Generator().manual_seed(seed)
    shape = n, int(L.max())
    mask = torch.arange(shape[1]) < L[:, None]
    drawn = [(-0.1 - 2 * torch.rand(shape, generator=g, dtype=torch.float64))[mask] for _ in range(3)]
    logp = drawn[0] if logp is None else logp
    responses = Responses(torch.ones(len(logp), dtype=torch.long), logp, -drawn[2], L, ends)
    if reference is None and (recipe.kl.kind != "off" or recipe.loss.kind == "pair_dpo"):
        reference = logp + 0.3 * (drawn[1] + 1.1)
    scored = Scored(
        group=torch.arange(groups).repeat_interleave(torch.tensor([len(x) for x in correct])),
        groups=groups,
        score=3 * flat.double() - 1,
        correct=flat,
        formatted=flat if formatted is None else torch.tensor(formatted),
        length=L,
        truncated=ends,
        kl=torch.zeros(n, dtype=torch.float64),
    )
    if reference is not None:
        scored = dataclasses.replace(scored, kl=responses.padded(charges(recipe.kl, responses, reference)).sum(1))
    return Rollouts(
        prompts=[[1]] * groups,
        problems=[f"p{i}" for i in range(groups)] if problems is None else list(problems),
        born=torch.zeros(groups),
        carried=torch.zeros(groups, dtype=torch.bool),
        responses=responses,
        scored=scored,
        reference=reference,
        kept=present(recipe, scored) & good_groups(recipe, scored)[scored.group],
        rounds=1,
        seconds_sampling=0.0,
        seconds_reward=0.0,
    )


@pytest.fixture(scope="session")
def made() -> Callable[..., Rollouts]:
    """Return a function that makes rollouts from correctness [P][G], filtered as the recipe says.

    Lengths are ragged unless given, and log-probabilities drawn; the task's score is 2 and -1, unlike all maps of it.
    """
    return _made


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The experience, the loss of all optimizer batches of an epoch, and its gradient [T]."""

    experience: Experience
    loss: float
    gradient: Tensor


def _outcome(recipe: Recipe, rollouts: Rollouts, new: Tensor | None = None, **weighed: Any) -> Outcome:
    experience = weigh(recipe, rollouts, **weighed)
    leaf = (experience.old if new is None else new).detach().clone().requires_grad_()
    entropy = rollouts.responses.entropy
    value = 0 * leaf.sum()
    for batch in minibatches(recipe, experience, Random(0)):
        tokens, at = tokens_of(recipe, experience, batch), rollouts.responses.places(batch.rows)
        shift = None
        if recipe.token_weight.kind == "router_shift":
            shift = torch.ones(len(tokens.row), dtype=torch.float64)
        for one in passes(recipe, tokens):
            here = prepared(recipe, one, leaf.detach()[at], Random(0))
            value = value + loss(here.recipe, leaf[at], here.tokens, entropy[at], shift).value
    (gradient,) = torch.autograd.grad(value, leaf)
    return Outcome(experience, float(value.detach()), gradient)


@pytest.fixture(scope="session")
def outcome() -> Callable[..., Outcome]:
    """Return a function that weighs rollouts and takes the loss of one epoch, by default at the old probabilities.

    Both passes of Lopti are taken from the same probabilities; routers have not moved.
    """
    return _outcome
