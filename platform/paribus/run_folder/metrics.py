"""The canonical metrics. Each means the same in every arm: it is computed from rollout records, not the ablated loss.

"Generated" means all responses sampled in the step before any filter; "trained" means those that entered the loss.
Token means weigh every token the same. Logarithms are natural.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal, get_args

METRIC_SCHEMA = 1
"""Version of this schema; stored with every run."""

Better = Literal["higher", "lower", "neither"]

Source = Literal["exact", "derived", "proxy"]
"""How a value was obtained: ``exact`` as the schema defines it, ``derived`` computed by Paribus from other records of
the trainer, ``proxy`` a quantity close to the definition, good enough to watch but not to compare between arms."""

SOURCES: tuple[Source, ...] = get_args(Source)

GENERATED, TRAINED, SAMPLED = "budget/gen_tokens", "budget/trained_tokens", "budget/prompts_sampled"
"""What a run has spent since its start: tokens generated and trained on, and prompts."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One canonical metric.

    Attributes:
        name: storage name; only letters, digits and ``_ - . /`` (the alphabet of MLflow).
        unit: unit of the value.
        definition: what is computed from which records.
        better: direction of improvement; ``neither`` where both ends are symptoms.
        label: short name for tables and axes.
        timing: whether the value depends on the machine, so that it differs between equal runs.
    """

    name: str
    unit: str
    definition: str
    better: Better
    label: str
    timing: bool = False


def _metric(name: str, label: str, unit: str, better: Better, definition: str, *, timing: bool = False) -> Metric:
    return Metric(name=name, label=label, unit=unit, better=better, definition=definition, timing=timing)


# fmt: off
STEP_METRICS: tuple[Metric, ...] = (
    _metric("policy/entropy", "entropy", "nats/token", "neither",
            "entropy over the full vocabulary at the sampling temperature, mean over all generated tokens"),
    _metric("response/length_mean", "length", "tokens", "neither",
            "generated tokens incl. the end mark, mean over responses"),
    _metric("response/length_p50", "length p50", "tokens", "neither",
            "median length of generated responses"),
    _metric("response/length_p95", "length p95", "tokens", "neither",
            "95th percentile of the length"),
    _metric("response/length_max", "length max", "tokens", "neither",
            "longest generated response"),
    _metric("response/length_mean_correct", "length (right)", "tokens", "neither",
            "mean length of correct responses; absent without any"),
    _metric("response/length_mean_incorrect", "length (wrong)", "tokens", "neither",
            "mean length of incorrect responses; absent without any"),
    _metric("response/length_mean_kept", "length (kept)", "tokens", "neither",
            "mean length of the generated responses that `length.keep` keeps; absent where it keeps all"),
    _metric("response/truncated_frac", "truncated", "fraction", "lower",
            "share of generated responses that hit the length limit, or with several turns one of `turns`"),
    _metric("turns/answers_mean", "answers", "answers", "neither",
            "mean answers of the environment in a generated response; absent with `turns: single`, as all of `turns/`"),
    _metric("turns/given_frac", "given tokens", "fraction", "neither",
            "share of the tokens of generated responses that the environment wrote: they are read, and no other metric "
            "and no part of the loss counts them"),
    _metric("turns/failed_frac", "failed answers", "fraction", "lower",
            "share of generated responses that ended because a call of the environment failed: time-out, exception, a "
            "result that is no text, more tokens than `turns.answer_tokens`"),
    _metric("reward/correct_frac", "train accuracy", "fraction", "higher",
            "share of generated responses that the verifier accepts"),
    _metric("reward/mean", "reward", "reward", "higher",
            "mean reward before shaping, KL and normalisation, over generated responses"),
    _metric("reward/failed_frac", "failed rewards", "fraction", "lower",
            "share of generated responses for which the verifier or a reward function failed in its worker process: "
            "time-out, exception, a result that is no score; absent where neither runs in one"),
    _metric("reward/shaped_mean", "shaped reward", "reward", "higher",
            "mean reward after the length rule and KL in the reward"),
    _metric("reward/std_within_group", "reward std in group", "reward", "neither",
            "sample standard deviation of the shaped reward inside a group, mean over generated groups"),
    _metric("group/zero_std_frac", "zero-spread groups", "fraction", "lower",
            "share of generated groups whose rewards before shaping are all equal"),
    _metric("group/all_correct_frac", "all-right groups", "fraction", "neither",
            "share of generated groups with only correct responses"),
    _metric("group/all_wrong_frac", "all-wrong groups", "fraction", "lower",
            "share of generated groups with only incorrect responses"),
    _metric("group/pass_at_k", "train pass@k", "fraction", "higher",
            "unbiased probability that at least one of baseline.k responses is right, mean over generated groups; "
            "absent without `baseline: pass_at_k`"),
    _metric("group/steps_mean", "steps", "steps", "neither",
            "mean number of steps that reward functions found in a generated response; absent without `unit: step`"),
    _metric("clip/low_frac", "clipped low", "fraction", "neither",
            "share of trained tokens with A < 0 and r below the lower bound, over all updates of the step; under "
            "dppo_tv and dppo_kl: with A < 0 whose probability fell further than allowed"),
    _metric("clip/high_frac", "clipped high", "fraction", "neither",
            "share of trained tokens with A > 0 and r above the upper bound, over all updates of the step; under "
            "dppo_tv and dppo_kl: with A > 0 whose probability rose further than allowed"),
    _metric("clip/dual_frac", "clipped dual", "fraction", "neither",
            "share of trained tokens with A < 0 and r above the bound of ppo_dual (c) or two_sided (delta), over all "
            "updates of the step; they have no gradient, as those clipped low and high; absent under other rules"),
    _metric("clip/capped_frac", "weight capped", "fraction", "neither",
            "share of trained tokens with A other than 0 whose weight is a cap or a floor in place of r, over all "
            "updates of the step; their gradient stays, and under is_cap_sg those clipped low and high are among them; "
            "absent under rules without a cap"),
    _metric("clip/weight_mean", "clip weight", "ratio", "neither",
            "mean weight phi of vespo, over trained tokens and updates; absent under other rules"),
    _metric("clip/chosen_frac", "chosen by covariance", "fraction", "neither",
            "share of trained tokens that clip_cov takes out or kl_cov charges, over all updates of the step; absent "
            "under other rules"),
    _metric("clip/bound_low", "lower bound of r", "ratio", "neither",
            "lower bound of r that bapo found, mean over the updates of the step; absent under other rules"),
    _metric("clip/bound_high", "upper bound of r", "ratio", "neither",
            "upper bound of r that bapo found, mean over the updates of the step; absent under other rules"),
    _metric("clip/positive_share", "positive share", "fraction", "neither",
            "share of contributions with A > 0 in the sum of absolute r A under these bounds, mean over the updates"),
    _metric("clip/high_prob_mean", "p of up-clipped", "probability", "neither",
            "mean old probability of tokens clipped high; absent without any"),
    _metric("clip/high_prob_max", "max p of up-clipped", "probability", "neither",
            "largest old probability of tokens clipped high; absent without any"),
    _metric("ratio/mean", "ratio", "ratio", "neither",
            "new over old token probability, mean over trained tokens and updates"),
    _metric("ratio/max", "max ratio", "ratio", "neither",
            "largest new over old token probability"),
    _metric("ratio/min", "min ratio", "ratio", "neither",
            "smallest new over old token probability"),
    _metric("kl/old_k3", "KL to old", "nats/token", "neither",
            "r - 1 - log r of the policy being updated against the sampling policy, mean over trained tokens "
            "and updates"),
    _metric("kl/ref_k3", "KL to reference", "nats/token", "neither",
            "k3 against the reference model, unweighted token mean; absent without a reference"),
    _metric("kl/ref_k1", "log ratio to reference", "nats/token", "neither",
            "log(pi / reference), mean over the tokens in the loss: what distillation lowers; with `kl: advantage` "
            "alone"),
    _metric("kl/advantage_share", "share of KL in A", "fraction", "neither",
            "mean |beta u| over mean |beta u| + mean |A| before it, over the tokens in the loss: 1 if rewards say "
            "nothing; with `kl: advantage` alone"),
    _metric("optim/grad_norm", "gradient norm", "L2", "neither",
            "global gradient norm before clipping, mean over the updates of the step"),
    _metric("optim/grad_clip_frac", "gradient clipped", "fraction", "neither",
            "share of updates whose gradient norm was above the limit"),
    _metric("optim/loss", "loss", "loss", "neither",
            "the ablated loss itself, mean over updates; not comparable between arms"),
    _metric("optim/lr", "learning rate", "1", "neither",
            "learning rate of the last update"),
    _metric("mismatch/logp_abs_diff_mean", "sampler mismatch", "nats", "lower",
            "|log p learner - log p sampler| on sampled tokens before the first update, mean over its tokens; at equal "
            "weights unless the rollouts are stale"),
    _metric("mismatch/logp_abs_diff_max", "max sampler mismatch", "nats", "lower",
            "the largest of these"),
    _metric("mismatch/k3", "sampler mismatch, KL", "nats", "lower",
            "r - 1 - log r with r = p learner / p sampler on the same tokens, mean: estimates KL(sampler || learner)"),
    _metric("mismatch/effective_frac", "effective sample of r", "fraction", "higher",
            "(sum r)^2 / (n sum r^2) of the same r, before any correction"),
    _metric("mismatch/routing_frac", "routing mismatch", "fraction", "lower",
            "share of layers with experts in which sampler and learner choose another set of experts where a token was "
            "predicted, in the first update, mean over its tokens; absent unless rollout.routing_replay is sampler"),
    _metric("mismatch/sync_logp_abs_diff_mean", "mismatch after a sync", "nats", "lower",
            "|log p learner - log p sampler| at equal weights, on a few samples drawn when the sampler has taken over "
            "the weights of the step, mean over tokens; absent if the sampler has no copy of the weights"),
    _metric("mismatch/sync_logp_abs_diff_max", "max mismatch after a sync", "nats", "lower",
            "the largest of these"),
    _metric("correction/weight_mean", "correction weight", "ratio", "neither",
            "importance weight between sampler and learner as it enters the loss, mean over the tokens of a step's "
            "batches; absent without a correction"),
    _metric("correction/effective_frac", "effective sample", "fraction", "higher",
            "(sum w)^2 / (n sum w^2) of these weights"),
    _metric("correction/changed_frac", "corrected away", "fraction", "lower",
            "share of tokens whose weight was truncated or masked"),
    _metric("correction/off_policy_frac", "masked off-policy", "fraction", "neither",
            "share of trained tokens that the mask of off-policy responses with A < 0 takes out, over all updates of "
            "the step; absent without this mask"),
    _metric("staleness/steps_mean", "staleness", "updates", "lower",
            "optimizer updates between sampling and the step that trains on it, mean over the groups in the loss"),
    _metric("staleness/steps_max", "max staleness", "updates", "lower",
            "the largest of these"),
    _metric("critic/value_loss", "value loss", "loss", "lower",
            "loss of the critic, mean over the updates of the step; absent without a critic, as all of critic/"),
    _metric("critic/explained_variance", "explained variance", "fraction", "higher",
            "1 - Var(return - value) / Var(return) over trained tokens, values from before the updates; at step 0: of "
            "the last batch of value pretraining"),
    _metric("critic/value_mean", "value", "reward", "neither",
            "mean value over trained tokens, before the updates"),
    _metric("critic/return_mean", "return", "reward", "neither",
            "mean target of the critic over trained tokens"),
    _metric("router/shift_mean", "router shift", "weight", "neither",
            "weight gamma of tokens by how far their routing moved, after its floor, mean over trained tokens and "
            "updates; absent without router shift"),
    _metric("router/shift_min", "min router shift", "weight", "neither",
            "the smallest of these"),
    _metric("router/replaced_frac", "replaced routing", "fraction", "neither",
            "share of layers with experts in which another set was replayed than the router would have chosen, where a "
            "token was predicted; mean over trained tokens and updates; absent without rollout.routing_replay"),
    _metric("history/revisited_frac", "revisited prompts", "fraction", "neither",
            "share of the step's groups whose prompt was trained on before; absent without running statistics"),
    _metric("sampling/generation_batches", "sampling rounds", "count", "lower",
            "sampling rounds in the step; above 1 only where the filter refills"),
    _metric("sampling/temperature", "temperature", "temperature", "neither",
            "temperature of the step, in sampling and in all log-probabilities; absent unless it changes"),
    _metric("sampling/support_mean", "tokens to choose from", "tokens", "neither",
            "tokens that schedule.top_p and schedule.top_k leave at a place, mean over generated tokens; "
            "log-probabilities, entropies and KL are then over these; absent without them"),
    _metric("sampling/retired_frac", "retired prompts", "fraction", "neither",
            "share of the training problems that are left out from now on, because their pass rate reached "
            "schedule.retire_at; absent without it"),
    _metric("sampling/waste_frac", "thrown away", "fraction", "lower",
            "1 - tokens of responses trained on / generated tokens, in the step; a response with advantage "
            "zero counts as trained on unless a filter removed it; below 0 where groups were carried over"),
    _metric(GENERATED, "tokens generated", "tokens", "lower",
            "tokens generated for training since the start"),
    _metric(TRAINED, "tokens trained on", "tokens", "lower",
            "tokens that entered the loss since the start, each rollout counted once"),
    _metric(SAMPLED, "prompts sampled", "prompts", "lower",
            "prompts sampled since the start"),
    _metric("budget/optimizer_steps", "updates", "updates", "lower",
            "optimizer updates since the start"),
    _metric("perf/time_gen_s", "sampling time", "seconds", "lower",
            "sampling of the step's rollouts", timing=True),
    _metric("perf/time_reward_s", "reward time", "seconds", "lower",
            "verification in the step", timing=True),
    _metric("perf/time_update_s", "update time", "seconds", "lower",
            "forward, backward and optimizer in the step", timing=True),
    _metric("perf/time_sync_s", "sync time", "seconds", "lower",
            "new weights for a sampler that has a copy of them: vLLM, or processes that only sample", timing=True),
    _metric("perf/time_eval_s", "evaluation time", "seconds", "lower",
            "evaluation after the step", timing=True),
    _metric("perf/time_step_s", "step time", "seconds", "lower",
            "the whole step", timing=True),
    _metric("perf/gen_tokens_per_s", "sampling speed", "tokens/s", "higher",
            "generated tokens over sampling time", timing=True),
)

EVAL_METRICS: tuple[Metric, ...] = (
    _metric("avg_at_k", "accuracy", "fraction", "higher",
            "mean correctness over k responses a problem, mean over problems"),
    _metric("pass_at_k", "pass@k", "fraction", "higher",
            "unbiased probability that at least one of k responses is right"),
    _metric("maj_at_k", "maj@k", "fraction", "higher",
            "probability that the most frequent answer of k is right; ties split, no answer cannot win"),
    _metric("truncated_frac", "truncated", "fraction", "lower",
            "share of evaluation responses that hit the length limit"),
    _metric("length_mean", "length", "tokens", "neither",
            "mean length of evaluation responses"),
    _metric("length_mean_correct", "length (right)", "tokens", "neither",
            "mean length of correct evaluation responses; absent without any"),
    _metric("length_mean_incorrect", "length (wrong)", "tokens", "neither",
            "mean length of incorrect evaluation responses; absent without any"),
    _metric("failed_frac", "failed", "fraction", "lower",
            "share of evaluation responses whose verification failed, which count as wrong; absent without any"),
)
"""Logged as ``eval/<set>/<name>``, with the number of responses in place of ``k``."""

REWARD_METRICS: tuple[Metric, ...] = (
    _metric("mean", "reward", "reward", "higher",
            "mean of what the function returned, before its weight, over generated responses; its declared score where "
            "it failed"),
    _metric("failed_timeout", "time-outs", "fraction", "lower",
            "share of generated responses whose call took too long and was ended; absent if 0, as all of failed_"),
    _metric("failed_exception", "exceptions", "fraction", "lower",
            "share of generated responses whose call raised an exception"),
    _metric("failed_died", "crashes", "fraction", "lower",
            "share of generated responses whose call ended its process"),
    _metric("failed_not_finite", "not finite", "fraction", "lower",
            "share of generated responses whose call returned nan or inf"),
    _metric("failed_wrong_length", "wrong length", "fraction", "lower",
            "share of generated responses whose call returned more or fewer scores than responses"),
    _metric("failed_not_a_number", "no numbers", "fraction", "lower",
            "share of generated responses whose call returned text or something else in place of a number"),
)
# fmt: on
"""Logged as ``reward/<function>/<name>``; the failures also of the verifier, as ``reward/verifier/...``."""

_BY_NAME = {m.name: m for m in STEP_METRICS}
_EVAL = {m.name: m for m in EVAL_METRICS}
_REWARD = {m.name: m for m in REWARD_METRICS}
_REWARD_NAME = re.compile(r"^reward/(?P<function>[A-Za-z_][A-Za-z0-9_]*)/(?P<name>\w+)$")
_EVAL_NAME = re.compile(
    r"^eval/(?P<set>[A-Za-z0-9_.-]+)/(?P<stem>(?:avg|pass|maj)_at_)(?P<k>\d+)$|^eval/(?P<set2>[A-Za-z0-9_.-]+)/(?P<name>\w+)$"
)


def find_metric(name: str) -> Metric | None:
    """Return the canonical metric with this name, e.g. ``eval/heldout/avg_at_8``; ``None`` if it is not canonical."""
    if name in _BY_NAME:
        return _BY_NAME[name]
    if match := _REWARD_NAME.match(name):
        found = _REWARD.get(match["name"])
        return found and replace(found, name=name, label=f"{match['function']}: {found.label}")
    match = _EVAL_NAME.match(name)
    base = _EVAL.get(match["stem"] + "k" if match["stem"] else match["name"]) if match else None
    if match is None or base is None or (base.name.endswith("_at_k") and not match["stem"]):
        return None
    return replace(base, name=name, label=base.label.replace("@k", f"@{match['k']}"))
