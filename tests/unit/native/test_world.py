"""Two processes compute what one computes: sums, shares, gradients, whole runs."""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paribus.contract import Evaluate, EvaluationSet, Job
from paribus.errors import RunnerError
from paribus.recipe import factors as f
from paribus.recipe.presets import load_preset
from paribus.recipe.recipe import FACTORS, Model, Recipe
from paribus.recipe.rollout import Rollout
from paribus.run_folder.folder import RunFolder, read_json
from paribus_runners.native import main, update, world
from paribus_runners.native.batch import minibatches, passes, tokens_of
from paribus_runners.native.experience import weigh
from paribus_runners.native.learner import Learner
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.collect import Source, collect
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.native.world import World
from paribus_runners.tasks import Chain
from support.native_runs import STATES, changed, lines_of
from support.ranks import ends_of_ranks, in_ranks

JobFolder = Callable[..., Path]


class _One(World):
    """What one process of several sees of shares, without the others."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.samples = rank, size, True


@given(st.lists(st.integers(0, 50)), st.integers(1, 9))
def test_shares_are_neighbours_and_none_is_left_out(costs: list[int], size: int) -> None:
    """Each item belongs to one process, in order, and no share is above a fair one by more than the largest item."""
    shares = [_One(rank, size).share(costs) for rank in range(size)]
    assert [i for share in shares for i in share] == list(range(len(costs)))
    for share in shares:
        assert sum(costs[i] for i in share) <= sum(costs) / size + max(costs, default=0) + 1
    turns = [_One(rank, size).turns(len(costs)) for rank in range(size)]
    assert sorted(i for turn in turns for i in turn) == list(range(len(costs)))


def test_one_process_changes_nothing() -> None:
    """It has all of the work, and what it gathers is what it has."""
    parameter = torch.nn.Parameter(torch.ones(2))
    value = [object()]
    assert World().gather(value)[0] is value
    World().sum_gradients([parameter])
    assert parameter.grad is None
    assert list(World().share([3, 1])) == list(World().turns(2)) == [0, 1]


def test_values_are_gathered_and_gradients_summed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the ranks, of any size; a gradient that only one has counts, one that none has stays absent."""
    monkeypatch.setattr(world, "BUCKET", 5)

    def action(here: World) -> Any:
        gathered = here.gather({"rank": here.rank, "numbers": torch.arange(1000 * here.rank)})
        ones = [torch.nn.Parameter(torch.ones(shape)) for shape in ((4,), (2, 2), (3,), (6,))]
        ones[0].grad = torch.full((4,), 1.0 + here.rank)
        if here.rank == 1:
            ones[1].grad = torch.full((2, 2), 5.0)
        ones[3].grad = torch.full((6,), -1.0)
        here.sum_gradients(ones)
        return gathered, [p.grad for p in ones]

    for gathered, (first, second, third, fourth) in in_ranks(3, tmp_path / "ranks", action):
        assert [x["rank"] for x in gathered] == [0, 1, 2]
        assert [len(x["numbers"]) for x in gathered] == [0, 1000, 2000]
        assert first.tolist() == [6.0] * 4
        assert second.tolist() == [[5.0, 5.0], [5.0, 5.0]]
        assert third is None
        assert fourth.tolist() == [-3.0] * 6


def test_processes_meet_in_a_folder_of_any_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of the temporary folder is the user's; and no variable of the environment is needed."""
    monkeypatch.setattr(world, "MEETING", timedelta(seconds=300))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert in_ranks(2, tmp_path / "a b%20\u00fc", lambda here: here.gather(here.rank)) == [[0, 1], [0, 1]]


def test_a_process_whose_others_never_come_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the meeting is bounded: whoever is in training is slow, not lost."""
    monkeypatch.setattr(world, "MEETING", timedelta(seconds=1))
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with pytest.raises(RunnerError, match="process 1 of 2 has waited 1 s for the others to start"):
        World.join(tmp_path / "meeting", 1, 2, cpu=True)


def test_fewer_gpus_than_processes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two would share a GPU, or all would train on the CPU without a word."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(RunnerError, match="trains in 2 processes, each on a GPU of its own, and PyTorch finds 1 on"):
        World.join(tmp_path / "meeting", 0, 2, cpu=False)


def test_a_process_that_waits_is_left_when_the_run_must_stop(tmp_path: Path) -> None:
    """The other one never comes."""
    left = tmp_path / "left"

    def action(here: World) -> None:
        def leave() -> None:
            left.touch()
            raise SystemExit(75)

        if here.rank == 0:
            here.while_waiting = leave
            here.gather(1)
        else:
            while not left.exists():
                time.sleep(0.01)

    assert ends_of_ranks(2, tmp_path / "ranks", action) == [75, 0]


def test_a_process_that_lost_another_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If nobody ends it before."""
    monkeypatch.setattr(world, "LOST_S", 0.1)
    met = tmp_path / "met"

    def action(here: World) -> str:
        if here.rank == 1:
            while not met.exists():
                time.sleep(0.01)
            return ""
        met.touch()
        with pytest.raises(RunnerError) as caught:
            here.gather(1)
        return str(caught.value)

    assert "process 0 of 2 has lost another one" in in_ranks(2, tmp_path / "ranks", action)[0]


PAIRS = load_preset("pair_dpo_extremes").recipe
CASES: dict[str, dict[str, Any]] = {
    **STATES,
    "reference in the reward": {
        "kl": f.KlInReward(beta=0.05),
        "scale": f.NoScale(),
        "filter": f.Refill(metric="correct"),
    },
    "corrected by the update": {
        "correction": f.SequenceTruncate(cap=1.01),
        "schedule": {"minibatches": 1, "epochs": 1, "staleness": 1},
    },
    "refill": {"filter": f.Refill(metric="correct"), "schedule": {"prompts_per_step": 40, "group_size": 16}},
    "refill in unequal chunks": {
        "filter": f.Refill(metric="correct"),
        "schedule": {"prompts_per_step": 80, "group_size": 7, "steps": 1, "epochs": 1, "minibatches": 1},
    },
    "a group at a time": {
        "filter": f.Refill(metric="correct"),
        "schedule": {"prompts_per_step": 3, "group_size": 300, "steps": 1},
    },
    "pairs": {name: getattr(PAIRS, name) for name in ("loss", *FACTORS) if name != "schedule"},
    "two passes": {"schedule": {"update": f.Lopti()}},
    "unequal shares": {"schedule": {"prompts_per_step": 5, "minibatches": 3}},
    "an empty share": {"schedule": {"prompts_per_step": 1, "minibatches": 1}},
}


def _trained(folder: Path) -> None:
    """Train in this process, or in its rank of several."""
    job = Job.model_validate_json((folder / "job.json").read_bytes())
    main.train(RunFolder(folder), job)


def _train_in(size: int, folder: Path) -> None:
    job = Job.model_validate_json((folder / "job.json").read_bytes())
    in_ranks(size, folder / "ranks", lambda here: main.train(RunFolder(folder), job, here))


def assert_nearly_equal_runs(several: Path, one: Path) -> None:
    """Check metrics to 1e-5 in the first step, and what was sampled and counted exactly in all.

    Sums in another order differ by what float32 rounds, on some CPUs ten times as much as on others.
    """
    lines, expected = lines_of(several), lines_of(one)
    assert [sorted(line) for line in lines] == [sorted(line) for line in expected]
    for line, other in zip(lines, expected, strict=True):
        allowed = 1e-5 if line["step"] <= 1 else 1e-4  # from then on, the weights differ by rounding
        assert line == pytest.approx(other, rel=allowed, abs=allowed)
    a, b = RunFolder(several), RunFolder(one)
    assert a.read_evaluations() == b.read_evaluations()
    shown = [[json.loads(x)["response"] for x in f.samples.read_text().splitlines()] for f in (a, b)]
    assert shown[0] == shown[1]
    assert read_json(a.result) == read_json(b.result)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_as_one(recipe: Recipe, job_folder: JobFolder, case: str) -> None:
    """Metrics, samples and evaluations, with a set of its own that is sampled with other random numbers."""
    recipe = changed(recipe, **CASES[case])
    sets = {"more": EvaluationSet(problems=3, samples=2, temperature=0.5, top_p=0.9)}
    chosen = Evaluate(every=2, problems=5, samples=2, sets=sets)
    one, two = (job_folder(recipe, name=name, evaluate=chosen) for name in ("one", "two"))
    _trained(one)
    _train_in(2, two)
    assert_nearly_equal_runs(two, one)
    assert read_json(two / "environment.json")["processes"] == 2


def test_three_processes_refill_as_one(recipe: Recipe, job_folder: JobFolder) -> None:
    """What is sampled before a round ends is the same, though shares of a chunk are unequal."""
    schedule = {"prompts_per_step": 40, "group_size": 16, "steps": 1}
    recipe = changed(recipe, filter=f.Refill(metric="correct"), schedule=schedule)
    one, three = (job_folder(recipe, name=name) for name in ("one", "three"))
    _trained(one)
    _train_in(3, three)
    assert_nearly_equal_runs(three, one)


@pytest.mark.parametrize(
    "more",
    [
        {"token_weight": f.RouterShift()},
        {"rollout": Rollout(routing_replay="learner")},
        {"rollout": Rollout(routing_replay="sampler"), "schedule": {"staleness": 1}},
    ],
    ids=["shift", "learner", "sampler"],
)
def test_three_processes_route_experts_as_one(
    recipe: Recipe, job_folder: JobFolder, mixture_model: Path, more: dict[str, Any]
) -> None:
    """An expert that only one of them uses is trained by all; experts go with responses from one to another."""
    recipe = changed(recipe, model=Model(name=str(mixture_model)), **more)
    one, three = job_folder(recipe, name="one"), job_folder(recipe, name="three")
    _trained(one)
    _train_in(3, three)
    assert_nearly_equal_runs(three, one)


def test_entropies_that_the_sampler_does_not_give_are_those_of_one_process(
    recipe: Recipe, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each process computes those of its share."""
    sample = TorchSampler.sample

    def blind(self: TorchSampler, requests: Any) -> Any:
        for finished in sample(self, requests):
            yield finished._replace(responses=finished.responses.__class__(
                **{**vars(finished.responses), "entropy": None}
            ))  # fmt: skip

    monkeypatch.setattr(TorchSampler, "sample", blind)
    recipe = changed(recipe, token_weight=f.TopEntropy())
    one, two = job_folder(recipe, name="one"), job_folder(recipe, name="two")
    _trained(one)
    _train_in(2, two)
    assert_nearly_equal_runs(two, one)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 5])
@pytest.mark.parametrize("case", ["plain", "pairs", "critic"])
def test_gradients_are_those_of_one_process(
    recipe: Recipe, policy: Policy, tmp_path: Path, case: str, size: int, dtype: torch.dtype
) -> None:
    """To 1e-5 of their norm, also where some processes have nothing to do.

    In float64, of samples whose log-probabilities are not rounded in shares, to 1e-6 (seen: 2e-8, as the model's norms
    stay in float32): the rest is what float32 rounds.
    """
    recipe = changed(recipe, **CASES[case], schedule={"prompts_per_step": 4, "group_size": 6})
    exact = dtype == torch.float64
    model = copy.deepcopy(policy.model).to(dtype)
    trained = replace(policy, model=model, head_dtype=dtype)

    def gradients(here: World) -> list[torch.Tensor]:
        reference = Learner.of(recipe, policy).reference
        source = Source(policy, reference, Chain(), 0, TorchSampler(policy), world=World() if exact else here)
        rollouts = collect(recipe, source, 1).rollouts
        learner = Learner.of(recipe, trained, here)
        experience = weigh(recipe, rollouts, learner.before(recipe, rollouts))
        found = []
        for batch in minibatches(recipe, experience, Random(0)):
            for tokens in passes(recipe, tokens_of(recipe, experience, batch)):
                learner.optimizer.zero()
                list(update.backward(recipe, learner, rollouts, batch, tokens))
                here.sum_gradients(list(model.parameters()))
                found += [p.grad.clone() for p in model.parameters()]
        return found

    expected = gradients(World())
    for mine in in_ranks(size, tmp_path / "ranks", gradients):
        a, b = (torch.cat([g.flatten() for g in x]).double() for x in (mine, expected))
        assert float((a - b).norm()) <= (1e-6 if exact else 1e-5) * float(b.norm())
        assert float(b.norm()) > 0


def test_processes_that_drift_apart_end_the_run(
    recipe: Recipe, job_folder: JobFolder, capfd: pytest.CaptureFixture[str]
) -> None:
    """Weights that differ by one bit show in the norm of the gradients."""
    folder = job_folder(recipe)
    job = Job.model_validate_json((folder / "job.json").read_bytes())

    def action(here: World) -> None:
        step = torch.optim.AdamW.step

        def other(self: torch.optim.AdamW) -> None:
            step(self)
            if here.rank == 1:
                with torch.no_grad():
                    next(p for g in self.param_groups for p in g["params"]).mul_(1.001)

        torch.optim.AdamW.step = other  # type: ignore[method-assign]
        main.train(RunFolder(folder), job, here)

    assert 1 in ends_of_ranks(2, folder / "ranks", action)
    assert "have drifted apart" in capfd.readouterr().err
