"""AdamW that is dealt out, in host memory, or on float32 copies: the same steps, less memory, and checkpoints."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from paribus.contract import Job, Options
from paribus.recipe import factors as f
from paribus.recipe.compute import Compute
from paribus.recipe.recipe import Lora, Model, Optimizer, Recipe
from paribus.run_folder.checkpoints import published
from paribus.run_folder.folder import RunFolder
from paribus_runners.native import checkpoint_parts, head, resume
from paribus_runners.native.checkpoint_parts import PartMissing, Parts
from paribus_runners.native.host_memory import HostMemory
from paribus_runners.native.learner import Learner
from paribus_runners.native.log_probabilities import score
from paribus_runners.native.optimizer import ALIGNED, Adam, deal
from paribus_runners.native.policy import Policy
from paribus_runners.native.runner import NativeRunner
from paribus_runners.native.world import World
from support.native_runs import STATES, changed, lines_of, same, stopped_and_gone_on, train_in, weights_of
from support.ranks import ends_of_ranks, in_ranks
from support.site import until

JobFolder = Callable[..., Path]
SHARDED = Compute(sharding="optimizer")
SETTINGS = Optimizer(weight_decay=0.1)
CRITIC = {name: STATES["critic"][name] for name in ("baseline", "scale", "auxiliary")}


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    """Return layers of odd sizes, of which one is not trained."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(13, 37), nn.Linear(37, 5, bias=False), nn.Linear(5, 3)).to(dtype)
    model[1].weight.requires_grad_(False)
    return model


def stepped(model: nn.Module, optimizer: Adam, rank: int = 0, size: int = 1, steps: int = 3) -> list[float]:
    """Give the weights gradients of which each process has a part, step, and return the norms."""
    norms = []
    for step in range(steps):
        optimizer.zero()
        for place, weight in enumerate(optimizer.weights):
            if (place + step) % 4:  # some have none
                torch.manual_seed(100 * step + place)
                whole = torch.randn(weight.shape)
                weight.grad = (whole if rank == 0 else torch.zeros_like(whole)) if size > 1 else whole
        norms.append(optimizer.step(1.0))
    return norms


@given(st.lists(st.integers(1, 3000), min_size=1), st.integers(1, 9))
def test_all_numbers_are_dealt_out_once_in_about_equal_parts(sizes: list[int], processes: int) -> None:
    """Neighbours, cut at multiples of what a vector instruction takes at once."""
    shares = deal(sizes, processes)
    whole = [(p.weight, p.first, p.end) for share in shares for p in share]
    assert whole == sorted(whole)
    for weight, size in enumerate(sizes):
        ends = [(first, end) for w, first, end in whole if w == weight]
        assert ends[0][0] == 0
        assert ends[-1][1] == size
        assert all(a[1] == b[0] and a[1] % ALIGNED == 0 for a, b in pairwise(ends))
    for share in shares:
        assert abs(sum(p.end - p.first for p in share) - sum(sizes) / processes) <= ALIGNED + 1


def test_it_steps_as_adamw_does() -> None:
    """With gradients clipped, and weights without a gradient left as they are."""
    model, plain = network(), network()
    trained = [p for p in plain.parameters() if p.requires_grad]
    other = torch.optim.AdamW(trained, lr=0.01, betas=(0.9, 0.99), eps=1e-8, weight_decay=0.1, fused=True)
    optimizer = Adam(model, SETTINGS, 0.01)
    for step in range(3):
        optimizer.zero()
        for place, (mine, its) in enumerate(zip(optimizer.weights, trained, strict=True)):
            torch.manual_seed(100 * step + place)
            its.grad = torch.randn(its.shape) if (place + step) % 4 else None
            mine.grad = None if its.grad is None else its.grad.clone()
        expected = float(torch.nn.utils.clip_grad_norm_(trained, 1.0))
        other.step()
        assert optimizer.step(1.0) == expected
    assert same(model.state_dict(), plain.state_dict())


@pytest.mark.parametrize("size", [2, 3, 7])
@pytest.mark.parametrize("offload", [(), ("optimizer",)])
def test_processes_that_share_the_optimizer_hold_a_part_and_step_alike(
    tmp_path: Path, size: int, offload: tuple[Any, ...]
) -> None:
    """To the bit, as one process that holds everything."""
    one = network()
    norms = stepped(one, Adam(one, SETTINGS, 0.01))

    def action(here: World) -> tuple[dict[str, Tensor], list[float], int]:
        model = network()
        optimizer = Adam(model, SETTINGS, 0.01, Compute(sharding="optimizer", offload=offload), here)
        found = stepped(model, optimizer, here.rank, size)
        held = sum(v.numel() for k, v in optimizer.state().items() if "exp_avg_sq" in k)
        return model.state_dict(), found, held

    ranks = in_ranks(size, tmp_path / "ranks", action)
    for weights, found, _ in ranks:
        assert same(weights, one.state_dict())
        assert found == norms
    numbers = sum(p.numel() for p in one.parameters() if p.requires_grad)
    assert sum(held for *_, held in ranks) == numbers
    assert max(held for *_, held in ranks) <= numbers / size + ALIGNED


def test_a_state_goes_on_in_other_numbers_of_processes(tmp_path: Path) -> None:
    """Saved by three, loaded by one and by two: the next steps are those of a run that was not stopped."""
    whole = network()
    stepped(whole, Adam(whole, SETTINGS, 0.01), steps=2)
    first = copy.deepcopy(whole.state_dict())

    def save(here: World) -> dict[str, Tensor]:
        model = network()
        optimizer = Adam(model, SETTINGS, 0.01, SHARDED, here)
        stepped(model, optimizer, here.rank, 3, steps=2)
        return optimizer.state()

    parts = in_ranks(3, tmp_path / "save", save)

    def go_on(here: World) -> dict[str, Tensor]:
        model = network()
        model.load_state_dict(first)
        optimizer = Adam(model, SETTINGS, 0.01, SHARDED, here)
        optimizer.load(parts)
        stepped(model, optimizer, here.rank, here.size)
        return model.state_dict()

    one = go_on(World())
    assert not same(one, first)
    for found in in_ranks(2, tmp_path / "load", go_on):
        assert same(found, one)
    again = network()
    again.load_state_dict(first)
    plain = Adam(again, SETTINGS, 0.01)
    reference = network()
    kept = Adam(reference, SETTINGS, 0.01)
    stepped(reference, kept, steps=2)
    plain.load([kept.state()])
    stepped(again, plain)
    stepped(reference, kept)
    assert same(again.state_dict(), reference.state_dict())
    assert same(one, reference.state_dict())
    with pytest.raises(ValueError, match=r"of 0\.weight is there for \d+ of 481 numbers"):
        Adam(network(), SETTINGS, 0.01).load(parts[1:])


def test_weights_in_bfloat16_move_by_steps_that_they_would_round_away() -> None:
    """300 steps of 1e-4 of the weight: a float32 copy adds them up; bfloat16 alone would stay where it is."""
    model = nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    optimizer = Adam(model, Optimizer(beta1=0.0, beta2=0.0), 1e-4)
    for _ in range(300):
        optimizer.zero()
        model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        assert model.weight.grad is None  # the hook has added it to the sum in float32
        optimizer.step(None)
    assert model.weight.dtype == torch.bfloat16
    torch.testing.assert_close(model.weight.detach().float(), torch.full((4, 4), 0.97), rtol=2**-8, atol=0)
    masters = {k: v for k, v in optimizer.state().items() if k.endswith("/master")}
    torch.testing.assert_close(masters["weight/master"], torch.full((4, 4), 0.97), rtol=1e-5, atol=0)
    again = nn.Linear(4, 4, bias=False).to(torch.bfloat16)
    again.load_state_dict(model.state_dict())
    loaded = Adam(again, Optimizer(), 1e-4)
    loaded.load([optimizer.state()])
    assert same(loaded.state(), optimizer.state())


def test_gradients_of_bfloat16_weights_are_summed_in_float32(
    chain_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many passes, also in pieces of the vocabulary: near the float32 sum of what each pass gives."""
    monkeypatch.setattr(head, "SMALL", 1)
    monkeypatch.setattr(head, "CHUNK", 64)
    policy = Policy.load(str(chain_model), None, "bfloat16", trained_dtype="bfloat16")
    assert {p.dtype for p in policy.trained} == {torch.bfloat16}
    optimizer = Adam(policy.model, SETTINGS, 0.01)
    batches = [([[1, 2, 3 + i]], [[[4, 5, 6 + i, 7], [8, 9]]]) for i in range(12)]
    single = []
    for batch in batches:
        optimizer.zero()
        score(policy, *batch, 1.0, accumulate=True).logp.sum().backward()
        single.append([g.clone() for g in optimizer.gradients])
    optimizer.zero()
    for batch in batches:
        score(policy, *batch, 1.0, accumulate=True).logp.sum().backward()
    for total, parts in zip(optimizer.gradients, zip(*single, strict=True), strict=True):
        assert total.dtype == torch.float32
        torch.testing.assert_close(total, sum(parts), rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["critic", "offloaded", "bfloat16"])
def test_a_run_has_the_numbers_of_one_that_shares_nothing(recipe: Recipe, job_folder: JobFolder, case: str) -> None:
    """Two processes with and without: metrics and weights to the bit; each has written its part of the checkpoint."""
    compute, more = SHARDED, CRITIC if case == "critic" else {}
    if case == "offloaded":
        compute, more = Compute(sharding="optimizer", offload=("optimizer", "reference")), {"kl": f.KlInLoss()}
    if case == "bfloat16":
        more = {"model": Model(name=recipe.model.name, dtype="bfloat16", trained_dtype="bfloat16")}
    recipe = changed(recipe, **more)
    usual, shared = job_folder(recipe, name="usual"), job_folder(changed(recipe, compute=compute), name="shared")
    train_in(2, usual)
    train_in(2, shared)
    assert lines_of(shared) == lines_of(usual)
    assert same(weights_of(shared), weights_of(usual))
    (place,) = published(RunFolder(shared))
    names = {p.name for p in place.glob("*optimizer*")}
    parts = {f"optimizer-0000{n}-of-00002.safetensors" for n in (1, 2)}
    assert names == (parts | {f"critic_{name}" for name in parts} if case == "critic" else parts)
    assert not list((shared / "parts").glob("step-*"))
    if case == "bfloat16":
        assert {w.dtype for w in weights_of(shared).values()} == {torch.bfloat16}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "first", "then"), [("critic", 2, 1), ("critic", 3, 2), ("critic", 1, 2), ("half", 2, 2)]
)
def test_a_run_that_was_stopped_goes_on_in_more_or_fewer_processes(
    recipe: Recipe, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch, case: str, first: int, then: int
) -> None:
    """All get SIGTERM after the second step: each leaves its part, and the first one makes a checkpoint of them.

    In as many processes as before, the run goes on to the bit; else as far as other sums round.
    """
    half = Model(name=recipe.model.name, dtype="bfloat16", trained_dtype="bfloat16")
    recipe = changed(recipe, compute=SHARDED, **(CRITIC if case == "critic" else {"model": half}))
    on, whole = stopped_and_gone_on(recipe, job_folder, monkeypatch, first, then)
    lines, expected = lines_of(on), lines_of(whole)
    if first == then:
        assert lines == expected
        assert same(weights_of(on), weights_of(whole))
    for mine, its in zip(lines, expected, strict=True):
        assert mine == pytest.approx(its, rel=1e-4, abs=1e-4)


def test_the_first_process_waits_for_no_part_of_one_that_has_left(
    recipe: Recipe, policy: Policy, tmp_path: Path
) -> None:
    """It says which; a part that came before counts."""
    recipe = changed(recipe, compute=SHARDED)
    attempt, place = RunFolder(tmp_path / "a1"), tmp_path / "checkpoint"
    attempt.path.mkdir()
    place.mkdir()

    def action(here: World) -> str:
        parts = Parts(attempt, Learner.of(recipe, policy, here))
        if here.rank == 1:
            with parts.noting_an_early_end():
                parts.put(3)
                raise SystemExit(75)
        parts.take(3, place)
        with pytest.raises(PartMissing) as caught:
            parts.take(4, place)
        return str(caught.value)

    assert ends_of_ranks(2, tmp_path / "ranks", action) == [0, 75]
    said = pickle.loads((tmp_path / "ranks" / "0.pickle").read_bytes())
    assert said == "process 1 of 2 has left before step 4 was saved"
    assert [p.name for p in place.iterdir()] == ["optimizer-00002-of-00002.safetensors"]


def test_a_part_that_comes_too_late_is_no_failure(
    recipe: Recipe, policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three processes one leaves without its part; the first waits for no part while the third writes its own."""
    recipe = changed(recipe, compute=SHARDED)
    attempt, place, writing, over = RunFolder(tmp_path / "a1"), tmp_path / "c", tmp_path / "writing", tmp_path / "over"
    attempt.path.mkdir()
    place.mkdir()
    write = checkpoint_parts.write_optimizers

    def late(*given: Any) -> None:
        writing.touch()
        until(over.exists)
        write(*given)

    def action(here: World) -> None:
        parts = Parts(attempt, Learner.of(recipe, policy, here))
        if here.rank == 0:
            until(writing.exists)
            with pytest.raises(PartMissing, match="process 1 of 3"):
                parts.take(3, place)
            over.touch()
            return
        with parts.noting_an_early_end():
            if here.rank == 2:
                monkeypatch.setattr(checkpoint_parts, "write_optimizers", late)
                parts.put(3)
            raise SystemExit(75)

    assert ends_of_ranks(3, tmp_path / "ranks", action) == [0, 75, 75]


def test_a_checkpoint_without_a_part_is_not_used(
    recipe: Recipe, job_folder: JobFolder, caplog: pytest.LogCaptureFixture
) -> None:
    """The manifest names all of them."""
    folder = job_folder(changed(recipe, compute=SHARDED))
    train_in(2, folder)
    (place,) = published(RunFolder(folder))
    (place / "optimizer-00002-of-00002.safetensors").unlink()
    job = Job.model_validate_json((folder / "job.json").read_bytes())
    later = job.model_copy(update={"token": 2})
    assert resume.find(RunFolder(folder.with_name("a2")), later) is None
    assert "is damaged: optimizer-00002-of-00002.safetensors" in caplog.text


def test_a_reference_in_host_memory_has_weights_while_it_computes(policy: Policy) -> None:
    """And none of its own between."""
    before = {name: p.clone() for name, p in policy.model.named_parameters()}
    reference = policy.frozen()
    resting = HostMemory(reference.model, policy.model)
    assert all(p.numel() == 0 for p in reference.model.parameters())
    with resting.at_hand():
        assert same(dict(reference.model.named_parameters()), before)
    assert all(p.numel() == 0 for p in reference.model.parameters())
    assert same(dict(policy.model.named_parameters()), before)


def test_adapters_share_what_is_not_moved(chain_model: Path) -> None:
    """A reference beside adapters keeps the policy's weights, which are the policy's."""
    policy = Policy.load(str(chain_model), None, "float32", Lora(rank=4))
    reference = policy.frozen()
    HostMemory(reference.model, policy.model)
    assert all(p.numel() for p in policy.model.parameters())
    empty = [name for name, p in reference.model.named_parameters() if not p.numel()]
    assert empty
    assert all(".lora_" in name for name in empty)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"name": "tiny", "trained_dtype": "bfloat16"}}, "computations in float32 would gain nothing"),
        (
            {"model": {"name": "tiny", "dtype": "bfloat16", "trained_dtype": "bfloat16", "lora": {"rank": 4}}},
            "adapters are trained in float32",
        ),
    ],
)
def test_weights_in_bfloat16_need_computations_in_it(changes: dict[str, Any], message: str) -> None:
    """The message says why."""
    with pytest.raises(ValueError, match=message):
        Recipe.model_validate(changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compute": Compute(offload=("reference",))}, "for a reference that stays as it is"),
        ({"model": Model(dtype="bfloat16", trained_dtype="bfloat16")}, "rounds to 8 bits, which loses small changes"),
    ],
)
def test_a_reference_that_follows_is_refused_where_it_would_not(changes: dict[str, Any], message: str) -> None:
    """Where mixing would round the policy away, or would change what is in host memory."""
    recipe = changed(Recipe(kl=f.KlInLoss(reference=f.SyncedReference(every=1, mix=0.3))), **changes)
    (found,) = NativeRunner().support(recipe, Options())
    assert found.feature == "compute"
    assert message in found.reason


def test_a_list_of_what_is_offloaded_has_one_order() -> None:
    """So that two ways to write it are one run; a recipe without it has the text from before."""
    assert Compute(offload=("reference", "optimizer")).offload == ("optimizer", "reference")
    assert "offload" not in json.loads(Compute(gradient_checkpointing=True).model_dump_json())
