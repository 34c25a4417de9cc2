"""Processes that sample while others train: the numbers of a run in which each does both, and its ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paribus.contract import Checkpoints, Job, Options
from paribus.errors import ParibusError
from paribus.recipe import factors as f
from paribus.recipe.compute import Compute
from paribus.recipe.recipe import ChainTask, Lora, Model, Recipe
from paribus.run_folder.checkpoints import MANIFEST, published
from paribus.run_folder.folder import RunFolder, read_json
from paribus_runners.native import main, trainer, update
from paribus_runners.native.learner import Learner
from paribus_runners.native.rollout.collect import collect as sample
from paribus_runners.native.runner import NativeRunner
from paribus_runners.native.world import World
from paribus_runners.tasks import Grader
from paribus_runners.tasks.chain import Chain
from support.native_runs import (
    STATES,
    changed,
    ended,
    lines_of,
    same,
    signal_after,
    stopped_and_gone_on,
    train_in,
    weights_of,
)
from support.ranks import ends_of_ranks, in_ranks
from support.site import until

JobFolder = Callable[..., Path]
TEAMS = {"sampling_processes": 1}
MORE: dict[str, dict[str, Any]] = {
    "further ahead": {"schedule": {"steps": 5, "staleness": 2}},
    "offloaded": {"compute": {"offload": ("optimizer", "reference")}, "kl": f.KlInLoss()},
    "adapters": {"model": "adapters", "kl": f.KlInReward(beta=0.1)},
    "bfloat16": {"model": "bfloat16"},
    "other reference": {"kl": "other"},
    "prompts that come back": {**STATES["history"], "task": ChainTask(problems=14)},
    "short budget": {"schedule": {"steps": 4, "prompts": 20}},
}
"""Recipes beside those of :data:`STATES`, by what could be wrong in two teams alone."""


@pytest.fixture
def ahead(recipe: Recipe) -> Callable[..., Recipe]:
    """Return a function that changes the recipe, which samples a step ahead."""
    name = recipe.model.name
    named: dict[str, Any] = {
        "adapters": Model(name=name, lora=Lora(rank=4)),
        "bfloat16": Model(name=name, dtype="bfloat16", trained_dtype="bfloat16"),
        "other": f.KlInLoss(reference=f.ModelReference(name=name)),
    }

    def make(apart: Mapping[str, Any] = MappingProxyType({}), /, **changes: Any) -> Recipe:
        changes = {k: named[v] if isinstance(v, str) else v for k, v in changes.items()}
        changes["schedule"] = {"steps": 4, "staleness": 1, **changes.get("schedule", {})}
        return changed(recipe, **{**changes, "compute": {**changes.get("compute", {}), **apart}})

    return make


def _states(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    """Return all tensors of the newest checkpoint, by file; what is not a tensor is in ``text``."""
    (place,) = published(RunFolder(folder))[:1]
    text = {p.name: torch.tensor(list(p.read_bytes())) for p in place.glob("*.json") if p.name != MANIFEST}
    return {"text": text} | {p.relative_to(place).as_posix(): load_file(p) for p in place.rglob("*.safetensors")}


@pytest.mark.parametrize("case", [*STATES, *MORE])
def test_one_process_a_team_gives_the_numbers_of_one_process(
    ahead: Callable[..., Recipe], job_folder: JobFolder, case: str
) -> None:
    """To the bit: what is sampled and what is trained on is the same, only at the same time."""
    changes = {**STATES, **MORE}[case]
    one, two = job_folder(ahead(**changes), name="one"), job_folder(ahead(TEAMS, **changes), name="two")
    train_in(1, one)
    train_in(2, two)
    assert lines_of(two) == lines_of(one)
    assert RunFolder(two).read_evaluations() == RunFolder(one).read_evaluations() != ()
    mine, its = _states(two), _states(one)
    assert mine.keys() == its.keys()
    assert all(same(mine[name], its[name]) for name in its)
    assert read_json(two / "result.json") == read_json(one / "result.json")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "samplers", "sharding", "case"),
    [
        *((3, 2, "none", case) for case in ("critic", "retired", "surplus")),
        *((3, 1, "optimizer", case) for case in ("critic", "reference", "truncated")),
        *((4, 2, "weights", case) for case in ("reference", "surplus")),
    ],
)
def test_larger_teams_give_the_numbers_of_one_process(
    ahead: Callable[..., Recipe], job_folder: JobFolder, size: int, samplers: int, sharding: Any, case: str
) -> None:
    """As far as other sums round; those that train share their optimizer, and those that sample have none."""
    changes = STATES[case]
    apart = {"sharding": sharding, "sampling_processes": samplers}
    one, teams = job_folder(ahead(**changes), name="one"), job_folder(ahead(apart, **changes), name="teams")
    train_in(1, one)
    train_in(size, teams)
    for line, expected in zip(lines_of(teams), lines_of(one), strict=True):
        assert line == pytest.approx(expected, rel=1e-4, abs=1e-4)
    for name, weight in weights_of(one).items():
        torch.testing.assert_close(weights_of(teams)[name], weight, rtol=1e-4, atol=1e-4)
    parts = [p.name for p in published(RunFolder(teams))[0].glob("optimizer*")]
    assert len(parts) == (1 if sharding == "none" else size - samplers)


def test_the_teams_work_at_the_same_time(
    ahead: Callable[..., Recipe], job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Updates wait until the other team samples the step after, and that waits until there are updates."""
    collect, updates = sample, update.updates

    def meet(own: str, other: str) -> None:
        (tmp_path / own).touch()
        until((tmp_path / other).exists)

    def slow_collect(recipe: Recipe, source: Any, step: int, *more: Any) -> Any:
        if step > 1:
            meet(f"sampling {step}", f"updating {step - 1}")
        return collect(recipe, source, step, *more)

    def slow_updates(recipe: Recipe, learner: Learner, experience: Any, seed: int, step: int) -> Any:
        if step < recipe.schedule.steps:
            meet(f"updating {step}", f"sampling {step + 1}")
        return updates(recipe, learner, experience, seed, step)

    monkeypatch.setattr(trainer, "collect", slow_collect)
    monkeypatch.setattr(trainer, "updates", slow_updates)
    folder = job_folder(ahead(TEAMS))
    train_in(2, folder)
    for line in list(RunFolder(folder).read_metrics())[1:]:
        assert 0 < line.values["perf/time_sync_s"] < line.values["perf/time_step_s"]


def test_a_process_holds_what_its_team_needs(ahead: Callable[..., Recipe], tmp_path: Path) -> None:
    """One that samples has nothing to train with; one that trains has a reference only if checkpoints hold it."""

    def action(here: World) -> dict[str, Any]:
        found = {}
        kinds = {
            "fixed": {"kl": f.KlInLoss()},
            "synced": {"kl": f.KlInLoss(reference=f.SyncedReference(every=1, mix=0.3))},
            "critic": STATES["critic"],
        }
        for name, changes in kinds.items():
            recipe = ahead(TEAMS, **changes)
            learner = Learner.of(recipe, main.initial_policy(recipe, tmp_path, 0), here)
            found[name] = (len(learner.optimizer.weights), learner.reference is not None, learner.critic is not None)
        return found

    trains, samples = in_ranks(2, tmp_path / "ranks", action, 1)
    assert samples == {"fixed": (0, True, False), "synced": (0, True, False), "critic": (0, False, False)}
    count = trains["fixed"][0]
    assert count > 0
    assert trains == {"fixed": (count, False, False), "synced": (count, True, False), "critic": (count, False, True)}


def test_a_process_that_only_trains_has_no_workers() -> None:
    """It grades nothing: not even a function that cannot be loaded is missed."""
    function = f.RewardFunction(path="no_such_file.score")
    with Grader(Chain(), {"own": function}, idle=True) as grader:
        assert isinstance(grader.task, Chain)
        assert grader.confined == ""
    with pytest.raises(ParibusError):
        Grader(Chain(), {"own": function})


@pytest.mark.slow
@pytest.mark.parametrize(("case", "first", "then"), [("reference", 2, 2), ("surplus", 2, 2), ("reference", 2, 3)])
def test_a_run_that_was_stopped_goes_on(
    ahead: Callable[..., Recipe],
    job_folder: JobFolder,
    monkeypatch: pytest.MonkeyPatch,
    case: str,
    first: int,
    then: int,
) -> None:
    """Its checkpoint holds the rollouts of the step that comes; to the bit in as many processes."""
    recipe = ahead(TEAMS, **STATES[case])
    recipe = changed(recipe, schedule={"steps": 3})
    on, whole = stopped_and_gone_on(recipe, job_folder, monkeypatch, first, then)
    if first == then:
        assert lines_of(on) == lines_of(whole)
        assert same(weights_of(on), weights_of(whole))
    for line, expected in zip(lines_of(on), lines_of(whole), strict=True):
        assert line == pytest.approx(expected, rel=1e-4, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
def test_a_stop_that_one_process_sees_first_is_a_stop_of_all(
    ahead: Callable[..., Recipe], job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch, who: int
) -> None:
    """At the end of a step, so that the others begin none that they could not end."""
    folder = job_folder(ahead(TEAMS, schedule={"steps": 10}), checkpoint=Checkpoints(every=100))

    def train(here: World) -> None:
        if here.number == who:
            signal_after(monkeypatch, 2)
        main.train(RunFolder(folder), Job.model_validate_json((folder / "job.json").read_bytes()), here)

    assert ends_of_ranks(2, folder / "ranks", train, 1) == [75, 75]
    assert [place.name for place in published(RunFolder(folder))] == ["step-000002"]


@pytest.mark.slow
def test_a_stop_before_the_updates_keeps_the_step_before(
    ahead: Callable[..., Recipe], job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the process that trains holds then is a whole state; the rollouts that are sampled meanwhile are lost."""
    folder = job_folder(ahead(TEAMS, schedule={"steps": 10}), checkpoint=Checkpoints(every=100))

    before, collect = Learner.before, sample

    def slow_before(self: Learner, recipe: Recipe, rollouts: Any) -> Any:
        if len(lines_of(folder)) == 3:  # of the steps 0, 1 and 2
            os.kill(os.getpid(), signal.SIGTERM)
            until(lambda: self.world.while_waiting())  # type: ignore[func-returns-value]
        return before(self, recipe, rollouts)

    def late_collect(recipe: Recipe, source: Any, step: int, *more: Any) -> Any:
        if step == 4:
            os.kill(os.getpid(), signal.SIGTERM)
        return collect(recipe, source, step, *more)

    monkeypatch.setattr(Learner, "before", slow_before)
    monkeypatch.setattr(trainer, "collect", late_collect)

    def train(here: World) -> None:
        main.train(RunFolder(folder), Job.model_validate_json((folder / "job.json").read_bytes()), here)

    assert ends_of_ranks(2, folder / "ranks", train, 1) == [75, 75]
    assert [place.name for place in published(RunFolder(folder))] == ["step-000002"]


@pytest.mark.slow
@pytest.mark.parametrize(("end", "who"), [(signal.SIGTERM, 0), (signal.SIGKILL, 0), (signal.SIGKILL, 1)])
def test_a_run_ends_while_one_team_samples(
    ahead: Callable[..., Recipe], job_folder: JobFolder, end: signal.Signals, who: int
) -> None:
    """SIGTERM to all: both teams end the step, and a checkpoint is kept. SIGKILL to one of either team."""
    recipe = ahead(TEAMS, schedule={"steps": 10_000})
    folder = job_folder(recipe, options=Options(own={"processes": 2}), checkpoint=Checkpoints(every=10_000))
    both = lambda signs: all(sign.step > 1 for sign in signs.values())  # noqa: E731
    report, pids = ended(folder, both, end, who)
    if end == signal.SIGTERM:
        assert report["do"] == "release"
        (place,) = published(RunFolder(folder))
        assert place.name == f"step-{lines_of(folder)[-1]['step']:06.0f}"
    else:
        assert (report["do"], report["kind"]) == ("fail", "infrastructure")
        assert f"process {who} of 2 was killed by SIGKILL" in RunFolder(folder).log.read_text()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_teams_that_cannot_be_are_refused(job_folder: JobFolder) -> None:
    """Rollouts of the same step, and a team of nobody: by the plan, or where a run counts its processes."""
    base = Recipe(task=ChainTask(), compute=Compute(sampling_processes=1))
    later = changed(base, schedule={"staleness": 1})

    def faults(recipe: Recipe, **own: Any) -> list[str]:
        found = NativeRunner().support(recipe, Options(own=own))
        return [x.reason for x in found if x.feature == "compute"]

    (reason,) = faults(base)
    assert "set `schedule.staleness: 1`" in reason
    (reason,) = faults(later, processes=1)
    assert "leaves none of 1 process to train: set `resources.gpus`, or on CPUs `runner.processes`, to 2" in reason
    assert faults(later, processes=2) == faults(later) == []
    assert NativeRunner().requirements(later, Options()).least_gpus == 2
    assert NativeRunner().requirements(later, Options(own={"processes": 2})).least_gpus == 0
    with pytest.raises(ParibusError, match="leaves none of 1 process to train"):
        main.run(job_folder(later))
