"""A run without memory says in which phase and what helps; what cannot fit fails before the first update."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from paribus.contract import Evaluate
from paribus.errors import RunnerError
from paribus.recipe import factors as f
from paribus.recipe.compute import Compute
from paribus.recipe.patch import apply
from paribus.recipe.recipe import Model, Recipe
from paribus.run_folder.phases import Phases
from paribus_runners.native import out_of_memory, trainer
from paribus_runners.native.learner import Learner
from paribus_runners.native.policy import Policy
from paribus_runners.native.tiny.make import tokenizer
from paribus_runners.tasks import chain
from support.native_runs import changed, lines_of, same, train_in, weights_of

JobFolder = Callable[..., Path]
CRITIC = {"baseline": "critic_gae", "auxiliary.value": {"pretrain_steps": 0}, "scale": "none"}

LIMITED = """
import resource, sys
from pathlib import Path
from paribus.errors import RunnerError
from paribus.run_folder.phases import Phases
from paribus_runners.native import main
path, phase, room, from_the_start = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]) * 2**20, sys.argv[4] == "limited"
own, loose = Phases.enter, resource.getrlimit(resource.RLIMIT_AS)

def limit(more):
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, loose[1]))

def enter(self, now, step=None):
    own(self, now, step)
    if now == phase:
        limit(room)

Phases.enter = enter
if from_the_start:
    limit(2**36)
try:
    main.run(path)
except RunnerError as error:
    resource.setrlimit(resource.RLIMIT_AS, loose)
    print(error)
"""
"""Trains a job; from the beginning of a phase on, the process gets so many MiB more than it has."""


def said(folder: Path, phase: str, room: int, *, limited: bool = False) -> str:
    """Return what a run says that has no more memory than this from a phase on."""
    arguments = [str(folder), phase, str(room), "limited" if limited else ""]
    shown = subprocess.run([sys.executable, "-c", LIMITED, *arguments], check=True, stdout=subprocess.PIPE, text=True)
    return shown.stdout.strip()


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A random Qwen2 whose MLPs are wide, so that passes take far more than what others have freed."""
    words = tokenizer(chain.SYMBOLS)
    ends = {"eos_token_id": words.eos_token_id, "pad_token_id": words.pad_token_id, "bos_token_id": None}
    config = Qwen2Config(
        vocab_size=len(words), hidden_size=256, intermediate_size=3072, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, tie_word_embeddings=True, **ends,
    )  # fmt: skip
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(tmp_path / "wide")
    words.save_pretrained(tmp_path / "wide")
    return tmp_path / "wide"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("phase", "where", "helps"),
    [
        ("evaluation", "in an evaluation: it asked for", "fewer `evaluate.problems`"),
        ("rollout", "while it sampled responses at step 1: it asked for", "a smaller `schedule.prompts_per_step`"),
        ("old_pass", "in the pass before its updates at step 1: it asked for", "`model.dtype: bfloat16`"),
        ("update", "in an update at step 1: it asked for", "`compute.gradient_checkpointing: true`"),
    ],
)
def test_the_phase_without_memory_is_named_with_what_helps(
    recipe: Recipe, wide: Path, job_folder: JobFolder, phase: str, where: str, helps: str
) -> None:
    """The allocator itself refuses: from the beginning of the phase the process may not grow by more than 8 MiB."""
    schedule = {"prompts_per_step": 32, "max_new_tokens": 64, "minibatches": 1}
    recipe = changed(recipe, model=Model(name=str(wide)), schedule=schedule, correction={"kind": "token_truncate"})
    evaluate = Evaluate(every=2, problems=256 if phase == "evaluation" else 2, samples=1)
    found = said(job_folder(recipe, evaluate=evaluate), phase, 8)
    assert found.startswith(f"out of memory {where}")
    assert "MiB more. What helps: " in found
    assert helps in found
    assert found.endswith("`paribus plan` predicts the peak of each phase.")


@pytest.mark.slow
def test_a_run_whose_longest_responses_do_not_fit_fails_before_its_first_update(
    recipe: Recipe, wide: Path, job_folder: JobFolder
) -> None:
    """Its responses are short and would fit; those that its limits allow would not, and nothing is trained before."""
    schedule = {"prompts_per_step": 2, "max_new_tokens": 400, "minibatches": 1, "epochs": 1}
    recipe = changed(recipe, model=Model(name=str(wide)), schedule=schedule)
    evaluate = Evaluate(every=2, problems=2, samples=1)
    fits = job_folder(recipe, name="fits", evaluate=evaluate)
    assert said(fits, "update", 150) == ""
    assert json.loads((fits / "result.json").read_text())["status"] == "succeeded"
    folder = job_folder(recipe, name="limited", evaluate=evaluate)
    assert said(folder, "update", 150, limited=True).startswith("out of memory in an update at step 1: it asked for")
    assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [0]
    assert said(job_folder(recipe, name="enough", evaluate=evaluate), "update", 2**12, limited=True) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "compute",
    [Compute(), Compute(sharding="weights"), Compute(sharding="optimizer"), Compute(sampling_processes=1)],
    ids=["usual", "shared", "optimizer", "teams"],
)
def test_a_run_that_rehearses_has_the_same_numbers(
    recipe: Recipe, job_folder: JobFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compute: Compute
) -> None:
    """Two processes, with and without; also with a critic where nothing is divided."""
    if compute == Compute():
        recipe = Recipe.model_validate(apply(recipe.model_dump(mode="json"), CRITIC).values)
    recipe = changed(recipe, compute=compute, schedule={"staleness": compute.sampling_processes, "steps": 2})
    folders, notes = [job_folder(recipe, name=name) for name in ("free", "limited")], tmp_path / "notes"
    notes.mkdir()
    train_in(2, folders[0])
    monkeypatch.setattr(trainer, "is_limited", lambda device: True)
    rehearse = trainer.rehearse

    def noted(*some: Any) -> None:
        rehearse(*some)
        (notes / f"{os.getpid()}").touch()

    monkeypatch.setattr(trainer, "rehearse", noted)
    train_in(2, folders[1])
    assert len([*notes.iterdir()]) == 2 - compute.sampling_processes
    assert lines_of(folders[0]) == lines_of(folders[1])
    assert same(*(weights_of(folder) for folder in folders))


def test_a_rehearsal_changes_no_weight(recipe: Recipe, policy: Policy, made: Callable[..., Any]) -> None:
    """Weights, gradients, moments and random numbers are as before."""
    learner = Learner.of(recipe, policy)
    before, state = policy.weights_hash(), torch.get_rng_state()
    out_of_memory.rehearse(recipe, learner, made(recipe, [[True, False]]))
    assert policy.weights_hash() == before
    assert torch.get_rng_state().equal(state)
    assert learner.optimizer.state() == {}
    assert all(p.grad is None for p in policy.model.parameters())


@pytest.mark.parametrize(
    ("limit", "budget", "processes", "lengths", "several"),
    [
        (12, 4096, 1, [[12] * 8] * 3, False),  # 6 prompts in two updates
        (12, 4096, 2, [[12] * 8, [12] * 4], False),
        (1000, 4096, 1, [[1000] * 4 + [100]], True),  # the rest of the pass
        (2100, 4096, 1, [[2100, 1997]], True),
        (9000, 4096, 1, [[9000]], True),
        (12, 11 * 24 + 3, 1, [[12] * 8] * 3, False),
        (12, 11 * 24 + 2, 1, [[12] * 8, [12] * 8, [12] * 7 + [11]], True),
    ],
)
def test_what_is_rehearsed_fills_a_pass(
    recipe: Recipe, limit: int, budget: int, processes: int, lengths: list[list[int]], several: bool
) -> None:
    """As many of the longest as fit, one more that takes the rest, and never more tokens than a pass has."""
    recipe = changed(recipe, schedule={"max_new_tokens": limit})
    prompts, texts, others = out_of_memory._longest(recipe, [3], budget, processes)
    assert [[len(response) for response in group] for group in texts] == lengths
    assert prompts == [[3]] * len(lengths)
    assert others is several
    assert limit > budget or len(lengths) + sum(n - 1 for group in lengths for n in group) <= budget


def test_a_rehearsal_has_the_larger_minibatch(recipe: Recipe) -> None:
    """Of three groups in two minibatches one has two."""
    recipe = changed(recipe, schedule={"prompts_per_step": 3, "minibatches": 2})
    _, texts, several = out_of_memory._longest(recipe, [3], 4096, 1)
    assert [len(group) for group in texts] == [8, 8]
    assert not several


def test_a_rehearsal_of_pairs_has_one_of_each_group(recipe: Recipe) -> None:
    """The other responses of a group are in no update."""
    pairs = recipe.model_copy(update={"loss": f.PairDpo()})
    prompts, texts, several = out_of_memory._longest(pairs, [3], 4096, 1)
    assert [len(group) for group in texts] == [2, 2, 2]
    assert len(prompts) == 3  # of six in two minibatches
    assert not several


def test_pairs_stay_together_in_a_rehearsal(recipe: Recipe) -> None:
    """A pair above the budget is a pass of its own."""
    pairs = changed(recipe, schedule={"max_new_tokens": 3000}).model_copy(update={"loss": f.PairDpo()})
    _, texts, several = out_of_memory._longest(pairs, [3], 4096, 1)
    assert [len(response) for group in texts for response in group] == [3000, 3000]
    assert several


def test_gradients_of_passes_before_are_there_in_a_rehearsal(
    recipe: Recipe, policy: Policy, made: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An update of several passes holds them from its second one on; one of a single pass does not."""
    found, own = list[bool](), out_of_memory.score

    def scored(*some: Any, **more: Any) -> Any:
        found.append(any(p.grad is not None for p in policy.model.parameters()))
        return own(*some, **more)

    monkeypatch.setattr(out_of_memory, "score", scored)
    learner = Learner.of(recipe, policy)
    for limit in (12, 400):
        longer = changed(recipe, schedule={"max_new_tokens": limit})
        out_of_memory.rehearse(longer, learner, made(recipe, [[True, False]]))
    assert found == [False, True]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has"),
            ": it asked for 2.50 GiB more",
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), ""),
        (RuntimeError("CUDA error: out of memory"), ""),
        (MemoryError(), ""),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), None),
    ],
)
def test_errors_of_memory_are_told_from_others(recipe: Recipe, error: Exception, words: str | None) -> None:
    """Of a GPU, of a library on it, and of Python; any other stays what it is."""
    phases = Phases()
    phases.enter("update", 7)

    def fail() -> None:
        with out_of_memory.named(phases, recipe, "cuda"):
            raise error

    if words is None:
        with pytest.raises(RuntimeError, match="shapes"):
            fail()
        return
    with pytest.raises(RunnerError) as raised:
        fail()
    assert str(raised.value).startswith(f"out of memory in an update at step 7{words}. What helps: ")


def test_only_what_would_help_is_named(recipe: Recipe) -> None:
    """What is set, what is for GPUs alone on a CPU, and what changes another phase, is left out."""
    free = out_of_memory.text("update", 1, "", recipe, "cuda")
    assert "`compute.gradient_checkpointing: true`, `optimizer` in `compute.offload`" in free
    compute = Compute(gradient_checkpointing=True, offload=("optimizer",))
    tight = out_of_memory.text("update", 1, "", changed(recipe, compute=compute), "cuda")
    assert "gradient_checkpointing" not in tight
    assert "offload" not in tight
    assert "(now 12)" in tight
    assert "offload" not in out_of_memory.text("update", 1, "", recipe, "cpu")
    loading = out_of_memory.text("start", 0, "", recipe, "cpu")
    assert loading.startswith(
        "out of memory while it loaded. What helps: `model.trained_dtype: bfloat16`, `model.lora`, a smaller model. "
    )
