"""Entropy and mismatch are recorded whatever the sampler gives and the recipe corrects."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from paribus.contract import Evaluate
from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import RunFolder
from paribus_runners.native import learner
from paribus_runners.native.limits import USUAL, Limits
from paribus_runners.native.main import run
from paribus_runners.native.rollout import collect, engine
from paribus_runners.native.rollout.sampler import Finished, Requests
from paribus_runners.native.rollout.torch import TorchSampler

EVALUATE = Evaluate(every=9, problems=2, samples=1)
ONE = {"minibatches": 1, "epochs": 1}


class _Silent(TorchSampler):
    """Gives no entropies, as an inference engine does."""

    def sample(self, requests: Requests) -> Iterator[Finished]:
        """Yield what the other one does, without entropies."""
        for finished in super().sample(requests):
            yield finished._replace(responses=dataclasses.replace(finished.responses, entropy=None))


def _wrong(*off: float) -> type[TorchSampler]:
    """Return a sampler whose log-probabilities are too low by these amounts, token after token."""

    class Wrong(TorchSampler):
        def sample(self, requests: Requests) -> Iterator[Finished]:
            for finished in super().sample(requests):
                responses = finished.responses
                shift = torch.tensor(off)[torch.arange(len(responses.ids)) % len(off)]
                yield finished._replace(responses=dataclasses.replace(responses, logp=responses.logp - shift))

    return Wrong


def _changed(recipe: Recipe, schedule: dict[str, Any], **changes: Any) -> Recipe:
    return Recipe.model_validate(
        {**dict(recipe), "schedule": recipe.schedule.model_copy(update={"steps": 2, **schedule}), **changes}
    )


def _steps(folder: Path) -> list[dict[str, float]]:
    run(folder)
    return [line.values for line in RunFolder(folder).read_metrics()][1:]


@pytest.mark.parametrize(
    ("schedule", "changes", "passes"),
    [
        (ONE, {}, 0),
        ({**ONE, "epochs": 2}, {"auxiliary": f.Auxiliary(entropy=0.01)}, 0),
        ({}, {}, 2),
        (ONE, {"filter": f.Drop()}, 2),
        (ONE, {"token_weight": f.TopEntropy(fraction=0.3)}, 2),
        (ONE, {"correction": f.TokenTruncate()}, 0),
        ({**ONE, "epochs": 2}, {"correction": f.TokenTruncate()}, 2),
        (ONE, {"correction": f.TokenTruncate(), "filter": f.Drop()}, 2),
        (ONE, {"correction": f.TokenTruncate(), "token_weight": f.AdvantageReweight()}, 2),
        ({**ONE, "staleness": 1}, {}, 2),
        ({}, {"filter": f.RefillAsync(max_generation_batches=2)}, None),
    ],
    ids=[
        "one",
        "bonus",
        "four",
        "drop",
        "top_entropy",
        "correction",
        "correction_twice",
        "correction_drop",
        "correction_reweight",
        "stale",
        "refill_async",
    ],
)
def test_the_entropy_does_not_depend_on_who_computes_it(
    schedule: dict[str, Any],
    changes: dict[str, Any],
    passes: int | None,
    recipe: Recipe,
    job_folder: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A sampler without entropies leads to the same metric, with a pass only where the update's own is too late."""
    recipe = _changed(recipe, schedule, **changes)
    want = _steps(job_folder(recipe, name="loud", evaluate=EVALUATE))
    calls: list[bool] = []
    for module in (learner, collect):
        plain = module.score_all

        def counted(*args: Any, plain: Any = plain, **more: Any) -> Any:
            calls.append(True)
            return plain(*args, **more)

        monkeypatch.setattr(module, "score_all", counted)
    monkeypatch.setattr(engine, "TorchSampler", _Silent)
    got = _steps(job_folder(recipe, name="silent", evaluate=EVALUATE))
    assert passes is None or len(calls) == passes
    assert want[0]["policy/entropy"] > 0.1
    for ours, theirs in zip(got, want, strict=True):
        assert ours["policy/entropy"] == pytest.approx(theirs["policy/entropy"], rel=0, abs=1e-6)
        assert ours.keys() == theirs.keys()


@pytest.mark.parametrize("correction", [f.NoCorrection(), f.TokenTruncate(cap=1.001)], ids=lambda x: x.kind)
def test_mismatch_is_recorded_with_and_without_a_correction(
    correction: f.Correction, recipe: Recipe, job_folder: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sampler that is off by known amounts: mean, largest, k3 and effective sample size are those by hand."""
    off = torch.tensor([0.1, -0.2, 0.0, 0.3])
    monkeypatch.setattr(engine, "TorchSampler", _wrong(*off.tolist()))
    values = _steps(job_folder(_changed(recipe, ONE, correction=correction), evaluate=EVALUATE))[0]
    share = 1e-2  # the number of tokens is not a multiple of four
    d = off.double()
    assert values["mismatch/logp_abs_diff_mean"] == pytest.approx(float(d.abs().mean()), rel=share)
    assert values["mismatch/logp_abs_diff_max"] == pytest.approx(0.3, abs=1e-5)
    assert values["mismatch/k3"] == pytest.approx(float((d.exp() - 1 - d).mean()), rel=3 * share)
    effective = float(d.exp().sum() ** 2 / (4 * (2 * d).exp().sum()))
    assert values["mismatch/effective_frac"] == pytest.approx(effective, rel=share)
    assert not math.isclose(effective, 1, rel_tol=2 * share)


CORRECTIONS: list[tuple[f.Correction, dict[str, Any]]] = [
    (f.TokenTruncate(cap=1.1), {"clip": f.PpoMin(low=0.1, high=0.1), "filter": f.Refill(metric="correct")}),
    (f.TokenMask(low=0.85, high=1.15), {"schedule": {"staleness": 1}, "kl": f.KlInLoss(beta=0.1)}),
    (f.SequenceTruncate(cap=1.1), {"length": f.Length(truncated="mask_loss"), "token_weight": f.TopEntropy()}),
    (f.SequenceMask(low=0.7, high=1.3), {"filter": f.RefillAsync(metric="correct"), "clip": f.CappedWeight()}),
    (f.GeometricMask(low=0.97, high=1.03), {"ratio": f.SequenceGeometric(), "aggregation": f.TokenBatch()}),
]


@pytest.mark.parametrize(("correction", "changes"), CORRECTIONS, ids=[c.kind for c, _ in CORRECTIONS])
def test_the_only_update_corrects_as_a_pass_before_it_would(
    correction: f.Correction,
    changes: dict[str, Any],
    recipe: Recipe,
    job_folder: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same metrics and samples to rounding, in several forward passes an update, and without the pass before."""
    monkeypatch.setattr(engine, "TorchSampler", _wrong(0.1, -0.2, 0.0, 0.3))
    monkeypatch.setitem(USUAL, "cpu", Limits(responses_at_a_time=512, tokens_a_pass=250))
    calls: list[bool] = []
    plain = learner.score_all

    def counted(*args: Any, **more: Any) -> Any:
        calls.append(True)
        return plain(*args, **more)

    monkeypatch.setattr(learner, "score_all", counted)
    recipe = _changed(recipe, {**ONE, **changes.pop("schedule", {})}, correction=correction, **changes)
    folder = job_folder(recipe, name="within", evaluate=EVALUATE)
    got = _steps(folder)
    assert not calls
    monkeypatch.setattr(learner, "corrected_by_the_update", lambda _: False)
    other = job_folder(recipe, name="before", evaluate=EVALUATE)
    want = _steps(other)
    assert len(calls) == len(want) == 2
    assert 0 < want[0]["correction/changed_frac"] < 1
    for ours, theirs in zip(got, want, strict=True):
        assert ours.keys() == theirs.keys()
        for name in (x for x in ours if not x.startswith("perf/")):
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4, abs=2e-5), name
    ours, theirs = ([json.loads(x) for x in (p / "samples.jsonl").read_text().splitlines()] for p in (folder, other))
    assert [x["response"] for x in ours] == [x["response"] for x in theirs]
    assert sum("logp_abs_diff_mean" in x for x in ours) > 0
    for mine, its in zip(ours, theirs, strict=True):
        assert mine.get("logp_abs_diff_mean") == pytest.approx(its.get("logp_abs_diff_mean"), abs=1e-5)


def test_a_sampler_that_agrees_has_no_mismatch(recipe: Recipe, job_folder: Callable[..., Path]) -> None:
    """The code that trains also samples: k3 is 0 and every token counts."""
    values = _steps(job_folder(recipe, evaluate=EVALUATE))[0]
    assert values["mismatch/k3"] == pytest.approx(0, abs=1e-7)  # what float32 rounds, not the same on every CPU
    assert values["mismatch/effective_frac"] == pytest.approx(1, abs=1e-6)
