"""The options of verl that follow from several values of a recipe, and what no single value of it shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from paribus.recipe import factors as f
from paribus.recipe.recipe import TINY_MODELS, Recipe

ACTOR = "actor_rollout_ref.actor."
CORRECTION = "algorithm.rollout_correction."
OUT_OF_REACH = 1e9

Fault = tuple[str, Literal["approximate", "unsupported"], str]


def computed(recipe: Recipe, *, deterministic: bool) -> dict[str, Any]:
    """Return the options of verl that code computes.

    Args:
        recipe: the recipe; :func:`faults` says what of it can't be trained.
        deterministic: whether equal runs must give equal numbers, which verl's older trainer alone can.
    """
    schedule, optimizer = recipe.schedule, recipe.optimizer
    found: dict[str, Any] = {
        f"{ACTOR}ppo_mini_batch_size": max(1, schedule.prompts_per_step // schedule.minibatches),
        f"{ACTOR}optim.betas": [optimizer.beta1, optimizer.beta2],
        f"{ACTOR}optim.override_optimizer_config": {"eps": optimizer.eps},
        "trainer.use_v1": not deterministic,
        f"{ACTOR}fsdp_config.full_determinism": deterministic,
        "actor_rollout_ref.rollout.full_determinism": deterministic,
        **_types(recipe),
    }
    if isinstance(recipe.aggregation, f.ConstantLength):
        found[f"{ACTOR}loss_scale_factor"] = recipe.aggregation.length or schedule.max_new_tokens
    if isinstance(rule := recipe.length.rule, f.SoftOverlong):
        found["reward.reward_kwargs.overlong_buffer_cfg.len"] = rule.hard_cap - rule.soft_start
    if isinstance(recipe.filter, f.Refill):
        found["algorithm.filter_groups.metric"] = "acc" if recipe.filter.metric == "correct" else "reward"
    level = recipe.correction
    mask, weight = (level.mask, level.weight) if isinstance(level, f.Chain) else (level, level)
    if isinstance(level := weight, f.TokenMask | f.SequenceMask):
        found[f"{CORRECTION}rollout_is_threshold"] = f"{level.low!r}_{level.high!r}"
    if isinstance(level := mask, f.GeometricMask):  # verl bounds sampler over learner, the inverse
        low = 1 / level.low if level.low > 0 else OUT_OF_REACH
        found[f"{CORRECTION}rollout_rs_threshold"] = f"{1 / level.high!r}_{low!r}"
    if (value := recipe.auxiliary.value) is not None:
        found |= {
            "critic.optim.lr": value.learning_rate,
            "critic.cliprange_value": OUT_OF_REACH if value.clip is None else value.clip,
            "critic.loss_agg_mode": "token-mean",
            "trainer.critic_warmup": value.pretrain_steps,
        }
    return found


def _types(recipe: Recipe) -> dict[str, Any]:
    """Return the types of weights and computations: weights are float32, as FSDP keeps them."""
    dtype = recipe.model.dtype
    sampler = recipe.rollout.dtype if recipe.rollout.dtype != "auto" else dtype
    found: dict[str, Any] = {"actor_rollout_ref.rollout.dtype": sampler}
    for engine in ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config", "critic.fsdp"):
        found |= {f"{engine}.dtype": dtype, f"{engine}.model_dtype": "fp32"}
    return found


def faults(recipe: Recipe, *, deterministic: bool) -> Iterator[Fault]:
    """Yield what of a recipe verl can't do, or does otherwise, where several values decide it: place, level, reason."""
    schedule = recipe.schedule
    if recipe.model.name in TINY_MODELS:
        reason = f"`model.name: {recipe.model.name}` is made on the spot, and has no weights that vLLM loads: name a "
        yield "model.name", "unsupported", f"{reason}folder or a model on the hub."
    if schedule.prompts_per_step % schedule.minibatches:
        yield (
            "schedule.minibatches",
            "unsupported",
            f"verl cuts the {schedule.prompts_per_step} prompts of a rollout batch into `schedule.minibatches: "
            f"{schedule.minibatches}` equal parts: choose numbers that divide.",
        )
    if deterministic and recipe.filter.kind == "refill":
        yield (
            "filter",
            "unsupported",
            "`filter: refill` needs verl's newer trainer (`use_v1: true`), which takes groups in the order in which "
            "they are finished, and `runner.deterministic: true` needs the older one: choose one of the two.",
        )
    yield from _of_losses(recipe)


def _of_losses(recipe: Recipe) -> Iterator[Fault]:
    rule, cap = recipe.length.rule, recipe.schedule.max_new_tokens
    if isinstance(rule, f.SoftOverlong) and rule.hard_cap < cap:
        reason = f"`length.rule.hard_cap: {rule.hard_cap}`: verl has no floor at -1 for responses of up to {cap}."
        yield "length.rule", "approximate", f"{reason} Nearest: `length.rule.hard_cap: {cap}`."
    if recipe.auxiliary.entropy and recipe.aggregation.kind != "token_batch":
        reason = "`auxiliary.entropy`: verl aggregates the bonus like the loss; here it is the mean over tokens."
        yield "auxiliary.entropy", "approximate", f"{reason} Nearest: `aggregation: token_batch`."
    baseline = recipe.baseline
    if isinstance(baseline, f.CriticGae) and isinstance(baseline.policy_lambda, f.FixedLambda):
        both = baseline.policy_lambda.value
        if baseline.critic_lambda != both:
            reason = f"`baseline.critic_lambda: {baseline.critic_lambda:g}`: verl has one lambda for both."
            yield "baseline.critic_lambda", "unsupported", f"{reason} Nearest: `baseline.critic_lambda: {both:g}`."
    if recipe.auxiliary.value is not None:
        reason = "`auxiliary.value`: verl's value head starts at random, and its optimizer has verl's settings."
        yield "auxiliary.value", "approximate", reason
