"""The tiny models: their sizes, their tokenizer, how they are made once."""

from __future__ import annotations

import ctypes
import dataclasses
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paribus.contract import Hashes, Options
from paribus.errors import ParibusError, RunnerError
from paribus.recipe.recipe import ChainTask, Model, Recipe, SearchTask
from paribus_runners.native import runner
from paribus_runners.native.main import settled
from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Responses
from paribus_runners.native.rollout.sampler import Requests, complete
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.native.tiny import make
from paribus_runners.native.tiny.spec import MODELS, TINY, Stage, WarmUp
from paribus_runners.tasks import chain, search, task_of

POLICY = make.build(TINY, "chain")


@given(st.text(alphabet=chain.SYMBOLS, min_size=1, max_size=40))
def test_tokenizer_round_trip(text: str) -> None:
    """Every text of the task's symbols is one token a symbol, and comes back."""
    ids = POLICY.tokenizer(text).input_ids
    assert len(ids) == len(text)
    assert POLICY.decode([ids]) == [text]
    assert POLICY.decode([[*ids, *POLICY.ends]]) == [text]


def test_prompts_have_one_width() -> None:
    """Short prompts are filled on the left with a symbol that the verifier never takes for part of an answer."""
    ids = POLICY.encode(["a3b5=", "a3b5c8d1e1f1g1h1="])
    assert [len(x) for x in ids] == [chain.WIDTH] * 2
    assert POLICY.decode(ids)[0] == make.BLANK * 12 + "a3b5="


@pytest.mark.parametrize("task", ["search", "chain"])
@pytest.mark.parametrize(("name", "thousands"), [("tiny", 108), ("tiny_moe", 158)])
def test_the_model_is_tiny_and_the_same_each_time(name: str, thousands: int, task: str) -> None:
    """The same few parameters, tied embeddings, and equal weights whenever it is built."""
    one, two = make.build(MODELS[name], task).model, make.build(MODELS[name], task).model
    assert round(sum(p.numel() for p in one.parameters()) / 1000) == thousands
    assert one.config.tie_word_embeddings
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


SCRIPT = """
import dataclasses, sys
from pathlib import Path
from paribus.recipe.recipe import SearchTask
from paribus_runners.native.tiny import make
from paribus_runners.native.tiny.spec import TINY_MOE, Stage, WarmUp
train = make.train
def noted(policy, settings):
    with open(sys.argv[2], "a") as file:
        file.write("made\\n")
    train(policy, settings)
make.train = noted
few = dataclasses.replace(WarmUp.of(SearchTask()), stages=(Stage(traces="clean", steps=2),), prompts=2)
print(make.make(Path(sys.argv[1]), "f" * 64, TINY_MOE, few))
"""


@pytest.mark.slow
def test_two_processes_make_it_once(tmp_path: Path) -> None:
    """Two processes that want the same model at once: one makes it, both get it, nothing half-made is left."""
    command = [sys.executable, "-c", SCRIPT, str(tmp_path / "cache"), str(tmp_path / "made")]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    outputs = [p.communicate(timeout=120)[0].strip() for p in processes]
    assert [p.returncode for p in processes] == [0, 0]
    assert outputs[0] == outputs[1]
    assert (tmp_path / "made").read_text() == "made\n"
    assert {p.name for p in (tmp_path / "cache" / "models").iterdir()} <= {"f" * 64, "f" * 64 + ".lock"}


def test_a_power_cut_leaves_no_empty_files_in_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files are on the disk before the folder gets the name by which all later runs take it."""
    written: list[tuple[bool, set[str]]] = []
    place = tmp_path / "models"
    monkeypatch.setattr(
        os, "sync", lambda: written.append(((place / "f").exists(), {p.name for p in place.glob("f.*.partial/*")}))
    )
    few = dataclasses.replace(WarmUp.of(SearchTask()), stages=(Stage(traces="clean", steps=1),), prompts=2)
    folder = make.make(tmp_path, "f", TINY, few)
    assert written == [(False, {p.name for p in folder.iterdir()})]


def test_it_is_the_same_whatever_the_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under one fingerprint there is one model: it is made with one thread, and the caller's threads come back."""
    few = dataclasses.replace(WarmUp.of(SearchTask()), stages=(Stage(traces="clean", steps=12),), prompts=32)
    made = {}
    for threads in ("1", "2"):
        monkeypatch.setenv("PARIBUS_THREADS", threads)
        with settled():
            folder = make.make(tmp_path / threads, "f" * 64, TINY, few)
            assert torch.get_num_threads() == int(threads)
        made[threads] = Policy.load(str(folder), None, "float32").weights_hash()
    assert made["1"] == made["2"]


def test_threads_are_those_of_the_declared_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """`resources.cpus` comes as OMP_NUM_THREADS; PARIBUS_THREADS goes before it, and without both there is one."""
    for mine, engine, want in ((None, "3", 3), ("2", "3", 2), (None, None, 1), (None, "4,2", 4), (None, "many", 1)):
        for name, value in (("PARIBUS_THREADS", mine), ("OMP_NUM_THREADS", engine)):
            monkeypatch.delenv(name, raising=False) if value is None else monkeypatch.setenv(name, value)
        with settled():
            assert torch.get_num_threads() == want
    monkeypatch.setenv("PARIBUS_THREADS", "0")
    with pytest.raises(ParibusError, match="1 or more"), settled():
        pass


def test_short_runs_do_not_wait_for_the_garbage_collector() -> None:
    """What is loaded is left alone from the beginning: to go through all of it once takes longer than they train."""
    found: list[int] = []

    def note(phase: str, about: dict[str, int]) -> None:
        found.append(about["generation"])

    gc.callbacks.append(note)
    try:
        with settled():
            frozen = gc.get_freeze_count()
        after = gc.get_freeze_count()
    finally:
        gc.callbacks.remove(note)
    assert 2 not in found
    assert frozen > 1000 > after


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="glibc alone has this allocator")
@pytest.mark.parametrize(("environment", "kept"), [({}, True), ({"MALLOC_TRIM_THRESHOLD_": "131072"}, False)])
def test_memory_that_is_freed_is_kept_for_the_next_tensors(environment: dict[str, str], kept: bool) -> None:
    """The same tensors a second time cost no page faults, unless the environment says how memory is allocated."""
    code = """
import resource, torch
from paribus_runners.native.main import settled
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    held = [torch.ones(2**20) for _ in range(20)]
    del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
with settled():
    print(*(faults() for _ in range(4)))
"""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "GLIBC_TUNABLES"))}
    shown = subprocess.run([sys.executable, "-c", code], env=clean | environment, check=True, stdout=subprocess.PIPE)
    first, *_, last = map(int, shown.stdout.split())
    assert first > 10_000
    assert (last < first / 10) is kept


def hashes(**parts: object) -> Hashes:
    """Return the hashes of a recipe."""
    return runner.hashes(Recipe(**parts), Options())


def test_fingerprints_follow_what_they_name() -> None:
    """Sizes, task and warm-up change a tiny model's fingerprint; other models are known by name and revision."""
    tiny = [hashes(task=t).model for t in (SearchTask(), ChainTask(), ChainTask(careful=0.05))]
    tiny.append(hashes(model=Model(name="tiny_moe")).model)
    assert len(set(tiny)) == 4
    assert hashes(model=Model(name="org/model", revision="abc")).model == "org/model@abc"
    data = [hashes(task=t).data for t in (ChainTask(), ChainTask(careful=0.05), SearchTask())]
    assert data[0] == data[1] != data[2]
    assert hashes(task=ChainTask(problems=64)).data != data[0]
    assert hashes(task=ChainTask(problems=64)).model == tiny[1]


def test_what_cannot_be_trained_is_named() -> None:
    """Each model that does not fit has its own sentence; all levels of all factors are trained."""
    recipe = Recipe.model_validate(
        {
            "task": {"kind": "jsonl", "train": "a", "heldout": "b"},
            "token_weight": {"kind": "router_shift"},
            "correction": {"kind": "token_truncate"},
        }
    )
    assert [s.level for s in runner.support(recipe, Options())] == ["unsupported"] * 2
    assert runner.support(Recipe.model_validate({"aggregation": {"kind": "token_micro"}}), Options()) == []


def test_a_skill_that_is_not_learned_is_an_error() -> None:
    """A stage goes on until its loss is low enough, and at its limit says that it is not."""
    stages = (Stage(traces="clean", steps=1, learned=0.1, limit=3),)
    with pytest.raises(RunnerError, match="in 3 updates"):
        make.train(make.build(TINY, "search"), dataclasses.replace(WarmUp.of(SearchTask()), stages=stages, prompts=2))


def _responses(
    cache: Path, name: str, task: SearchTask | ChainTask, room: int
) -> tuple[list[str], list[bool], Responses]:
    """Return what a warmed-up model answers to held-out problems, and whether that is right."""
    model, source = hashes(model=Model(name=name), task=task).model, task_of(task)
    with settled():
        policy = Policy.load(str(make.make(cache, model, MODELS[name], WarmUp.of(task))), None, "float32")
        problems = source.heldout(1000)
        requests = Requests(policy.encode([p.prompt for p in problems]), 1, room, 1.0, ("worth",))
        responses = complete(TorchSampler(policy), requests)
    texts, finished = policy.decode(responses.tokens()), (~responses.truncated).tolist()
    right = [source.verify(p, t, e).correct for p, t, e in zip(problems, texts, finished, strict=True)]
    return texts, right, responses


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_warmed_up_model_is_worth_training(name: str, warm_models: Path) -> None:
    """After its warm-up a search model is right in about half of the cases, and rarely truncated."""
    _, right, responses = _responses(warm_models, name, SearchTask(), search.LIMIT)
    assert 0.4 < sum(right) / 1000 < 0.6
    assert 12 < responses.length.double().mean() < 19
    assert responses.truncated.double().mean() < 0.15


@pytest.mark.slow
def test_written_out_answers_are_rare_and_better(warm_models: Path) -> None:
    """After its warm-up a chain model writes out one answer of ten, and is right then far more often than at once."""
    texts, right, responses = _responses(warm_models, "tiny", ChainTask(), 26)
    careful = [correct for text, correct in zip(texts, right, strict=True) if text[:1] != "#"]
    assert 60 < len(careful) < 140
    assert sum(careful) / len(careful) > (sum(right) - sum(careful)) / (1000 - len(careful)) + 0.1
    assert responses.truncated.double().mean() < 0.06
