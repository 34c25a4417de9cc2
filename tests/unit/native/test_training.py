"""Whole runs: determinism, edge cases, other models."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen2Config, Qwen2ForCausalLM

from paribus.contract import Evaluate, Options
from paribus.errors import RunFolderError, RunnerError
from paribus.recipe import factors as f
from paribus.recipe.analysis.facts import CAPS, weighs_sampler
from paribus.recipe.recipe import JsonlTask, Model, Recipe
from paribus.run_folder.folder import RunFolder, read_json
from paribus.run_folder.metrics import STEP_METRICS, find_metric
from paribus_runners.native import runner
from paribus_runners.native.policy import Policy
from paribus_runners.native.tiny.make import tokenizer
from paribus_runners.rewards.verifiers import Verdict
from paribus_runners.tasks import Chain
from support.native_runs import changed, lines_of, same, weights_of

JobFolder = Callable[..., Path]


def test_a_run_leaves_what_the_platform_reads(recipe: Recipe, job_folder: JobFolder) -> None:
    """Every file of the contract is there, every metric is canonical, evaluations are where they should be."""
    path = job_folder(recipe)
    runner.run(path)
    folder = RunFolder(path)
    lines = list(folder.read_metrics())
    assert [line.step for line in lines] == [0, 1, 2, 3]
    names = set().union(*(line.values for line in lines))
    assert all(find_metric(n) for n in names)
    only_with = (
        "kl/ref_",
        "kl/advantage_share",
        "clip/high_prob_",
        "clip/dual_",
        "clip/capped_",
        "clip/weight_mean",
        "clip/chosen_frac",
        "clip/bound_",
        "clip/positive_share",
        "group/pass_at_k",
        "sampling/retired_frac",
        "sampling/support_mean",
        "sampling/temperature",
        "turns/",
        "group/steps_mean",
        "response/length_mean_kept",
        "correction/",
        "critic/",
        "router/",
        "history/",
        "reward/failed_",
        "mismatch/sync_",
        "mismatch/routing_frac",
        "perf/time_sync_s",
    )
    assert all(m.name in names or m.name.startswith(only_with) for m in STEP_METRICS)
    assert set(lines[0].values) == {n for n in names if n.startswith("eval/")} | {
        "perf/time_eval_s",
        "perf/time_step_s",
    }
    assert [e.step for e in folder.read_evaluations()] == [0, 2, 3]
    assert all("eval/heldout/avg_at_2" in lines[i].values for i in (0, 2, 3))
    assert "eval/heldout/avg_at_2" not in lines[1].values
    assert read_json(folder.result)["status"] == "succeeded"
    assert read_json(folder.environment)["torch"] == torch.__version__
    assert (
        read_json(folder.environment)["initial_weights"]
        == Policy.load(recipe.model.name, None, "float32").weights_hash()
    )
    kept = Counter(s["step"] for s in map(json.loads, folder.samples.read_text().splitlines()))
    assert kept == {0: 8, 1: 16, 2: 16 + 8, 3: 16 + 8}  # an evaluation, and two groups of each step
    assert lines[3].values["budget/optimizer_steps"] == 12
    assert lines[1].values["mismatch/logp_abs_diff_max"] < 1e-4
    assert lines[3].values["budget/gen_tokens"] == sum(line.values["response/length_mean"] * 48 for line in lines[1:])


def test_evaluations_agree_with_their_metrics(recipe: Recipe, job_folder: JobFolder) -> None:
    """Counts per problem, answers and metrics of an evaluation tell the same story."""
    path = job_folder(recipe)
    runner.run(path)
    for evaluation in RunFolder(path).read_evaluations():
        (line,) = (x for x in lines_of(path) if x["step"] == evaluation.step)
        assert line["eval/heldout/avg_at_2"] == sum(evaluation.correct) / 20
        assert line["eval/heldout/truncated_frac"] == sum(evaluation.truncated) / 20
        for correct, answers, right in zip(evaluation.correct, evaluation.answers, evaluation.right, strict=True):
            assert sum(answers.values()) == 2
            assert sum(answers[a] for a in right) == correct


def test_the_same_seed_gives_the_same_run(recipe: Recipe, job_folder: JobFolder) -> None:
    """Metrics and final weights are equal to the bit; another seed differs from its first step."""
    paths = [job_folder(recipe, name=n, seed=s) for n, s in (("one", 0), ("two", 0), ("other", 1))]
    for path in paths:
        runner.run(path)
    one, two, other = (lines_of(p) for p in paths)
    assert one == two
    assert sum(line.get("optim/grad_norm", 0) for line in one) > 0
    assert same(weights_of(paths[0]), weights_of(paths[1]))
    assert one[1] != other[1]


def test_arms_with_one_seed_see_the_same_first_rollouts(recipe: Recipe, job_folder: JobFolder) -> None:
    """Arms that differ in the objective only are paired: their first rollouts are the same."""
    paths = [job_folder(recipe, name="a"), job_folder(changed(recipe, aggregation=f.TokenBatch()), name="b")]
    for path in paths:
        runner.run(path)
    a, b = (lines_of(p) for p in paths)
    for name in ("policy/entropy", "reward/mean", "response/length_mean"):
        assert a[1][name] == b[1][name]
    assert a[2] != b[2]


def test_a_run_without_any_spread_ends_well(
    recipe: Recipe, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If every response is right, advantages are zero, weights stay, and metrics say so."""
    monkeypatch.setattr(Chain, "verify", lambda *_: Verdict.of(True, "x"))
    path = job_folder(recipe)
    runner.run(path)
    last = lines_of(path)[-1]
    assert last["group/all_correct_frac"] == last["group/zero_std_frac"] == 1
    assert last["optim/grad_norm"] == last["optim/loss"] == 0
    assert "response/length_mean_incorrect" not in last


@pytest.mark.parametrize("level", [f.Drop(), f.Refill(max_generation_batches=2)], ids=lambda x: x.kind)
def test_steps_without_a_kept_group_have_no_update(
    recipe: Recipe, job_folder: JobFolder, monkeypatch: pytest.MonkeyPatch, level: f.Filter
) -> None:
    """When the filter leaves nothing, the run goes on without updates and the metrics show it."""
    monkeypatch.setattr(Chain, "verify", lambda *_: Verdict.of(False, ""))
    path = job_folder(changed(recipe, filter=level))
    runner.run(path)
    last = lines_of(path)[-1]
    assert last["budget/optimizer_steps"] == last["budget/trained_tokens"] == 0
    assert last["sampling/waste_frac"] == last["group/all_wrong_frac"] == 1
    assert last["sampling/generation_batches"] == (2 if level.kind == "refill" else 1)
    assert "optim/loss" not in last


@pytest.mark.parametrize("truncated", ["as_scored", "mask_loss", "drop"])
def test_a_batch_of_truncated_responses_ends_well(recipe: Recipe, job_folder: JobFolder, truncated: str) -> None:
    """With room for one token, all responses are truncated; masked or dropped ones give no update."""
    schedule = recipe.schedule.model_copy(update={"max_new_tokens": 1, "steps": 1})
    path = job_folder(changed(recipe, schedule=schedule, length=f.Length(truncated=truncated)))
    runner.run(path)
    last = lines_of(path)[-1]
    assert last["response/truncated_frac"] > 0.9
    assert (last["budget/trained_tokens"] == 0) == (truncated != "as_scored") or last["response/truncated_frac"] < 1


def test_a_loss_that_is_not_finite_ends_the_run_early(recipe: Recipe, job_folder: JobFolder) -> None:
    """A learning rate that breaks the model: nan is written, and with `nan` in stop_on the run ends with its reason."""
    broken = changed(recipe, optimizer=recipe.optimizer.model_copy(update={"learning_rate": 1e30}))
    stopped, going_on = job_folder(broken, name="stop", stop_on=("nan",)), job_folder(broken, name="on")
    runner.run(stopped)
    runner.run(going_on)
    result = read_json(stopped / "result.json")
    assert result["status"] == "stopped_early"
    assert "nan" in result["reason"]
    assert len(lines_of(stopped)) == result["step"] + 1 < 4
    assert read_json(going_on / "result.json")["status"] == "succeeded"
    assert len(lines_of(going_on)) == 4


@pytest.mark.parametrize(
    "changes",
    [
        {"kl": f.KlInLoss()},
        {"kl": f.KlInReward(beta=0.05), "filter": f.Drop(metric="reward_std")},
        {"kl": f.KlInLossWeighted(beta=0.01)},
        {"baseline": f.BatchMean(), "scale": f.BatchWhiten(unit="token"), "ratio": f.NoRatio(), "clip": f.NoClip()},
        {"baseline": f.GroupLeaveOneOut(), "scale": f.NoScale(), "ratio": f.SequenceProduct()},
        {"clip": f.CappedWeight(), "aggregation": f.TokenBatch()},
        {"clip": f.DppoTotalVariation(low=0.001, high=0.001, cap=1.001)},
        {"clip": f.GradientPreserving(low=0.001, high=0.001)},
        {"clip": f.FlippedRatio(low=0.01, high=0.01, c_positive=1.001)},
        {"clip": f.GammaWeight(), "ratio": f.SequenceProduct(), "aggregation": f.TokenBatch()},
        {"clip": f.ClipCov(fraction=0.2, cov_low=0.0, cov_high=100.0), "correction": f.TokenTruncate()},
        {"clip": f.KlCov(fraction=0.2), "schedule": {"update": f.Lopti()}},
        {"clip": f.AdaptiveBand(low_start=0.99, low_end=1.0, high_start=1.0), "ratio": f.SequenceGeometric()},
        {"clip": f.DppoBinaryKl(low=1e-6, high=1e-6), "ratio": f.SequenceGeometricToken()},
        {"token_weight": f.AdvantageReweight(), "auxiliary": f.Auxiliary(entropy=0.01, positive_nll=0.1)},
        {"length": f.Length(rule=f.SoftOverlong(soft_start=5, hard_cap=12), truncated="drop")},
        {"ratio": f.GeometricClipped(), "clip": f.LogClip(high=0.02)},
        {"aggregation": f.TokenMicro(), "correction": f.TokenTruncate()},
        {"schedule": {"staleness": 2}, "correction": f.SequenceMask(low=0.2, high=5.0)},
        {"schedule": {"staleness": 2}, "correction": f.OffPolicyMask(delta=0.001)},
        {"schedule": {"staleness": 2}, "correction": f.Chain(mask=f.OffPolicyMask(delta=0.001))},
        {"schedule": {"minibatches": 1, "epochs": 1, "staleness": 1}, "correction": f.Chain(mask=f.GeometricMask())},
        {"schedule": {"update": f.Lopti()}, "kl": f.KlInLoss(reference=f.SyncedReference(every=2, mix=0.5))},
        {"filter": f.RefillAsync(metric="correct", max_generation_batches=3)},
        {"loss": f.PairDpo(), "baseline": f.NoBaseline(), "scale": f.NoScale()},
        {"baseline": f.History(), "scale": f.HistorySmooth(), "aggregation": f.SequenceMeanSum()},
        {
            "reward": {"combine": "norm_then_sum", "weights": {"correct": 1.0, "format": 0.5}},
            "scale": f.BatchWhiten(),
        },
        {
            "baseline": f.CriticGae(policy_lambda=f.LengthAdaptiveLambda()),
            "scale": f.NoScale(),
            "auxiliary": {"value": {"clip": 0.2, "pretrain_steps": 2}, "positive_nll": 0.1},
            "kl": f.KlInReward(beta=0.05, unit="token"),
        },
        {
            "baseline": f.BatchMean(),
            "scale": f.BatchWhiten(unit="token"),
            "kl": f.KlInReward(beta=0.05, unit="token"),
        },
    ],
    ids=lambda c: "+".join(f"{k}" for k in c),
)
def test_other_levels_train(recipe: Recipe, job_folder: JobFolder, changes: dict[str, Any]) -> None:
    """Recipes from all over the factors train with finite metrics, and a reference shows its distance."""
    recipe = changed(recipe, **changes)
    assert runner.support(recipe, Options()) == []
    path = job_folder(recipe)
    runner.run(path)
    lines = lines_of(path)
    assert all(torch.isfinite(torch.tensor(v)) for v in lines[-1].values())
    assert all(find_metric(name) for name in lines[-1] if name != "step")
    assert lines[1]["optim/grad_norm"] > 0
    assert ("kl/ref_k3" in lines[-1]) == (recipe.kl.kind != "off" or recipe.loss.kind == "pair_dpo")
    assert ("critic/value_loss" in lines[-1]) == (recipe.auxiliary.value is not None)
    assert ("clip/capped_frac" in lines[-1]) == (recipe.clip.kind in CAPS)
    assert ("correction/weight_mean" in lines[-1]) == weighs_sampler(recipe)
    assert ("correction/off_policy_frac" in lines[-1]) == ("off_policy_mask" in recipe.correction.model_dump_json())
    assert ("clip/chosen_frac" in lines[-1]) == (recipe.clip.kind in ("clip_cov", "kl_cov"))
    assert ("clip/bound_high" in lines[-1]) == (recipe.clip.kind == "bapo")
    assert ("clip/weight_mean" in lines[-1]) == (recipe.clip.kind == "vespo")
    assert lines[-1].get("clip/chosen_frac", 0.1) > 0
    if recipe.kl.kind != "off":
        assert lines[1]["kl/ref_k3"] == pytest.approx(0, abs=1e-6)
        assert lines[-1]["kl/ref_k3"] > 0


def test_stale_rollouts_come_from_earlier_weights(recipe: Recipe, job_folder: JobFolder) -> None:
    """With staleness S a batch was sampled S steps of four updates before, the first ones less; corrections see it."""
    schedule = {"staleness": 2, "steps": 5}
    path = job_folder(changed(recipe, schedule=schedule, correction=f.TokenTruncate(cap=1.01)))
    runner.run(path)
    lines = lines_of(path)[1:]
    assert [x["staleness/steps_mean"] for x in lines] == [0, 4, 8, 8, 8]
    assert lines[0]["correction/weight_mean"] == pytest.approx(1, abs=1e-4)
    assert lines[0]["correction/changed_frac"] == 0
    assert all(x["mismatch/logp_abs_diff_max"] > 1e-3 for x in lines[1:])
    assert all(0 < x["correction/changed_frac"] < 1 for x in lines[1:])
    assert lines[-1]["budget/prompts_sampled"] == 5 * 6


def test_surplus_groups_are_trained_on_in_the_next_step(recipe: Recipe, job_folder: JobFolder) -> None:
    """Active sampling keeps groups with spread that a step does not need; each is trained on and counted once."""
    schedule = {"prompts_per_step": 4, "steps": 6, "max_new_tokens": 8}
    active = f.RefillAsync(metric="reward_std", max_generation_batches=8, max_surplus=3)
    path = job_folder(changed(recipe, schedule=schedule, filter=active, reward={"weights": {"format": 0.3}}))
    runner.run(path)
    lines = lines_of(path)[1:]
    assert max(x["staleness/steps_max"] for x in lines) >= 4
    assert lines[-1]["budget/trained_tokens"] < lines[-1]["budget/gen_tokens"]
    rounds = sum(x["sampling/generation_batches"] for x in lines)
    assert lines[-1]["budget/prompts_sampled"] == 4 * rounds


def test_value_pretraining_moves_the_critic_alone(recipe: Recipe, job_folder: JobFolder) -> None:
    """Before the first step the critic learns the returns of the initial policy, which stays as it is."""
    critic = {"baseline": f.CriticGae(), "scale": f.NoScale()}
    folders = {}
    for steps in (0, 40):
        arm = changed(recipe, **critic, auxiliary={"value": {"pretrain_steps": steps, "learning_rate": 3e-3}})
        folders[steps] = job_folder(arm, name=str(steps), evaluate=Evaluate(every=1, problems=10, samples=2))
        runner.run(folders[steps])
    without, pretrained = lines_of(folders[0]), lines_of(folders[40])
    first = "eval/heldout/avg_at_2"
    assert without[0][first] == pretrained[0][first]
    assert "critic/explained_variance" not in without[0]
    assert pretrained[0]["critic/explained_variance"] > 0.02
    assert without[1]["critic/value_mean"] == 0
    assert abs(pretrained[1]["critic/value_mean"] - pretrained[1]["critic/return_mean"]) < 0.15
    assert pretrained[1]["budget/prompts_sampled"] == 41 * 6
    assert pretrained[1]["budget/trained_tokens"] == without[1]["budget/trained_tokens"]


@pytest.fixture
def qwen(tmp_path: Path) -> Path:
    """A random tiny Qwen2 with grouped keys and its own tokenizer, without a fixed prompt width."""
    folder = tmp_path / "qwen"
    torch.manual_seed(0)  # the same model in every order of tests
    words = tokenizer("0123456789+= ")
    config = Qwen2Config(
        vocab_size=len(words),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=words.eos_token_id,
        pad_token_id=words.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    words.save_pretrained(folder)
    for name in ("train", "heldout"):
        problems = [{"prompt": f"{10**i}+1=", "answer": str(i % 10)} for i in range(7)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(p) + "\n" for p in problems))
    return folder


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_another_model_trains_on_problems_from_files(
    recipe: Recipe, job_folder: JobFolder, qwen: Path, dtype: str
) -> None:
    """Any causal language model of Transformers takes part: prompts of any length, grouped keys, two precisions."""
    task = JsonlTask(train=str(qwen / "train.jsonl"), heldout=str(qwen / "heldout.jsonl"))
    model = Model.model_validate({"name": str(qwen), "dtype": dtype})
    path = job_folder(changed(recipe, model=model, task=task), evaluate=Evaluate(problems=7, samples=2))
    runner.run(path)
    lines = lines_of(path)
    assert lines[1]["mismatch/logp_abs_diff_max"] < (1e-4 if dtype == "float32" else 0.2)
    assert lines[1]["optim/grad_norm"] > 0
    assert not same(weights_of(path), load_file(qwen / "model.safetensors"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_experts_train(recipe: Recipe, job_folder: JobFolder, mixture_model: Path, dtype: str) -> None:
    """A mixture of experts trains, its routers too, and sampler and learner agree."""
    path = job_folder(changed(recipe, model=Model.model_validate({"name": str(mixture_model), "dtype": dtype})))
    runner.run(path)
    assert lines_of(path)[1]["mismatch/logp_abs_diff_max"] < (1e-4 if dtype == "float32" else 0.2)
    before = load_file(mixture_model / "model.safetensors")
    moved = {name for name, weights in weights_of(path).items() if not torch.equal(weights, before[name])}
    assert moved == before.keys()


@pytest.mark.parametrize("target", ["ratio", "token"])
def test_router_shift_follows_the_routers(
    recipe: Recipe, job_folder: JobFolder, mixture_model: Path, target: str
) -> None:
    """With one update on a rollout batch no router has moved yet; with more they have, and the weights fall."""
    model, weight = Model(name=str(mixture_model)), f.RouterShift.model_validate({"target": target})
    shifts = []
    for count in (1, 2):
        schedule = recipe.schedule.model_copy(update={"minibatches": 1, "epochs": count})
        path = job_folder(changed(recipe, model=model, token_weight=weight, schedule=schedule), name=str(count))
        runner.run(path)
        shifts.append(lines_of(path)[1]["router/shift_mean"])
    assert shifts[0] == pytest.approx(1, abs=1e-5)
    assert 0.8 <= shifts[1] < shifts[0] - 1e-4


def test_a_model_that_is_not_there_is_named(recipe: Recipe, job_folder: JobFolder, tmp_path: Path) -> None:
    """A folder without a model gives a message with its name, not a traceback of a library."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunnerError, match="empty"):
        runner.run(job_folder(changed(recipe, model=Model(name=str(tmp_path / "empty")))))


def test_a_folder_without_a_job_is_named(tmp_path: Path) -> None:
    """The message says which file cannot be read."""
    with pytest.raises(RunFolderError, match=r"job\.json"):
        runner.run(tmp_path)
