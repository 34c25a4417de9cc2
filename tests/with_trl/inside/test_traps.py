"""Numbers of TRL's that change their meaning with a knob: first the trap in TRL's own number, then ours.

What TRL logs is recorded as it is, under `native/trl/`; ours stands beside it, computed from records.
"""

import dataclasses
import inspect
import math
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from trl.generation import vllm_generation
from trl.generation.vllm_generation import VLLMGeneration

from conformance.batches import BATCHES
from conformance.trl_side import DEFAULTS, trainer_of
from paribus.contract import Options
from paribus.recipe.recipe import Recipe
from paribus.recipe.rollout import Rollout
from paribus_runners.trl import runner

TWICE = {"schedule.epochs": 3, "optimizer.learning_rate": 5e-3}
RAW = "native/trl/"


def test_dead_groups_are_counted_by_group_under_every_scale(trained):
    """Under `scale_rewards=batch` TRL's `frac_reward_zero_std` is 0 or 1 for the whole batch; ours stays the share."""
    group, batch = (trained(patch={"scale": scale})[1] for scale in (
        {"kind": "group_std", "eps": 1e-4}, {"kind": "batch_std_raw", "eps": 1e-4},
    ))  # fmt: skip
    assert 0 < group[RAW + "frac_reward_zero_std"] < 1
    assert batch[RAW + "frac_reward_zero_std"] == 0.0
    assert batch["group/zero_std_frac"] == group["group/zero_std_frac"] == group[RAW + "frac_reward_zero_std"]


def test_clipping_is_counted_by_token_under_every_ratio(session):
    """Under sequence level TRL's `clip_ratio` is a share of responses; ours is one of tokens under both."""
    run = session(patch={**TWICE, "ratio": "seq_geo", "clip": {"kind": "ppo_min", "low": 1e-3, "high": 1e-3}})
    run.run(None, 0)
    values = [dict(line.values) for line in run._folder.read_metrics()][1]
    responses, tokens = 8 * 4, len(run._experience.rollouts.responses.ids)
    theirs = values[RAW + "clip_ratio/low_mean"] * 3 * responses
    ours = values["clip/low_frac"] * 3 * tokens
    assert theirs > 1
    assert theirs == pytest.approx(round(theirs), abs=1e-3)
    assert ours == pytest.approx(round(ours), abs=1e-6)
    assert abs(values[RAW + "clip_ratio/low_mean"] - values["clip/low_frac"]) > 1e-4


@pytest.mark.parametrize(("preset", "ours"), [("sapo", "clip/low_frac"), ("cispo", "clip/capped_frac")])
def test_clipping_is_there_under_every_loss(preset, ours, trained):
    """TRL logs no `clip_ratio` under sapo and cispo; ours is there, and so is the ratio."""
    values = trained(preset, TWICE)[1]
    assert not [name for name in values if name.startswith(RAW + "clip_ratio")]
    assert ours in values
    assert values["ratio/max"] > 1


def test_the_mismatch_is_there_without_a_correction(trained):
    """TRL has no `sampling/*` without vLLM and its correction; ours compares what was sampled with what is learned."""
    values = trained()[1]
    assert not [name for name in values if name.startswith(RAW + "sampling/")]
    assert 0 <= values["mismatch/logp_abs_diff_mean"] < 1e-4
    assert values["mismatch/logp_abs_diff_max"] >= values["mismatch/logp_abs_diff_mean"]


def test_the_kl_is_not_multiplied_by_the_ratio(trained):
    """TRL's `kl` carries the ratio under its default; ours is plain k3, the same whichever term is trained."""
    plain, weighted = (
        trained(patch={**TWICE, "kl": {"kind": kind, "estimator": "k3", "beta": 1e-6}})[1]
        for kind in ("loss", "loss_isw")
    )
    assert plain["kl/ref_k3"] == pytest.approx(weighted["kl/ref_k3"], abs=1e-9)
    assert plain[RAW + "kl"] != pytest.approx(weighted[RAW + "kl"], rel=1e-6)


def test_the_seed_reaches_the_sampler(monkeypatch, trained):
    """TRL's engine gets the index of its process as seed, whatever the run's seed is; here two seeds sample apart."""
    given = []
    monkeypatch.setattr(vllm_generation, "LLM", lambda **more: given.append(more), raising=False)
    monkeypatch.setattr(vllm_generation, "is_vllm_available", lambda *_, **__: True)
    accelerator = Accelerator(cpu=True)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")  # so that what TRL sets goes
    model = SimpleNamespace(name_or_path="tiny", named_modules=list, config=None)
    for seed in (0, 1):
        torch.manual_seed(seed)
        VLLMGeneration(model, accelerator, SimpleNamespace(), mode="colocate")
    assert "seed" not in inspect.signature(VLLMGeneration).parameters
    assert [more["seed"] for more in given] == [0, 0]
    vllm = Recipe(rollout=Rollout(engine="vllm"))
    assert [s.level for s in runner.support(vllm, Options()) if s.feature == "rollout.engine"] == ["unsupported"]
    first, second, again = (trained(seed=seed)[1] for seed in (0, 1, 0))
    assert first["response/length_mean"] != second["response/length_mean"]
    assert first["policy/entropy"] == again["policy/entropy"]


def test_a_truncated_distribution_is_refused():
    """Under top_p the sampler's log-probabilities are of the tokens that are left, so TRL corrects what agrees.

    Sampler and learner are one policy here; 0.9 of its probability is left. TRL's weight is 0.9 in place of 1.
    """
    batch = BATCHES["eight"]
    same = dataclasses.replace(batch, sampler=batch.old - math.log(0.9))
    options = {**DEFAULTS, "use_vllm": True, "vllm_importance_sampling_mode": "token_truncate", "loss_type": "grpo"}
    weight = trainer_of(options, same, "scalar")._generate_and_score_completions([{"prompt": "a"}] * batch.rows)
    found = weight["importance_sampling_ratio"][batch.mask]
    assert found.mean() == pytest.approx(0.9, abs=1e-4)
    (problem,) = runner.check_options(Options(passthrough={"top_p": 0.9}))
    assert "trl#6789" in problem.message
