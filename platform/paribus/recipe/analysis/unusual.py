"""Values that train nothing, act less than they seem to, or lie far outside of what is published."""

from __future__ import annotations

from collections.abc import Iterator

from paribus.recipe import factors as f
from paribus.recipe.analysis.facts import endless, on_policy, ratio_band
from paribus.recipe.recipe import TINY_MODELS, Recipe

MOST_TEMPERATURE = 2.0
"""Above it, samples are close to random text; published recipes have 0.6 to 1.2."""
MOST_RATE, MOST_RATE_TINY = 1e-4, 1e-2
"""AdamW moves each weight by about the learning rate an update; published are 1e-6 to 1e-5, for tiny models 1e-3."""
MOST_BAND = 10.0
"""The widest published bound of r is 1 + 10 (DeepSeek-R1)."""
MOST_KL = 1.0
"""Published weights of KL are 0.001 to 0.1."""
_OWN_MEAN = ("group_mean", "group_length_weighted")


def untrainable(recipe: Recipe) -> str:
    """Return why no advantage of a recipe can differ from 0, so that nothing is ever trained; empty if one can."""
    level = recipe.baseline.kind
    other = recipe.auxiliary.entropy or recipe.auxiliary.positive_nll or recipe.kl.kind == "advantage"
    if recipe.schedule.top_k == 1:
        return (
            "`schedule.top_k: 1` trains nothing: each token is the only one that is left, so its log-probability is 0 "
            "under every policy. Set `schedule.top_k` to 2 or more"
        )
    if recipe.schedule.group_size > 1 or level not in _OWN_MEAN or other:
        return ""
    return (
        f"`schedule.group_size: 1` under `baseline: {level}` trains nothing: the mean of one response is its own "
        "reward, so each advantage is 0. Set `schedule.group_size` to 2 or more, or `baseline: batch_mean`"
    )


def limits(recipe: Recipe) -> Iterator[str]:
    """Yield what acts less than the recipe says."""
    rule, schedule = recipe.length.rule, recipe.schedule
    if isinstance(rule, f.SoftOverlong) and rule.hard_cap > schedule.max_new_tokens:
        most = rule.factor * (schedule.max_new_tokens - rule.soft_start) / (rule.hard_cap - rule.soft_start)
        yield (
            f"`length.rule.hard_cap: {rule.hard_cap}` is above the generation limit "
            f"(`schedule.max_new_tokens: {schedule.max_new_tokens}`): no response is punished "
            f"with more than {most:.2g}, also none that is cut off. Set hard_cap to {schedule.max_new_tokens}"
        )
    if schedule.retire_at is not None and endless(recipe):
        yield (
            f"`schedule.retire_at: {schedule.retire_at:g}` cannot act: the task draws new problems without end, and "
            "none comes back. Set `task.problems`, or name a dataset"
        )
    if schedule.prompts_per_step % schedule.minibatches:
        yield (
            f"{schedule.prompts_per_step} prompts a step are no multiple of `schedule.minibatches: "
            f"{schedule.minibatches}`: the minibatches differ in size, and a response in a small one weighs more. "
            "Choose a divisor"
        )
    change = schedule.temperature_change
    if isinstance(change, f.LinearTemperature) and (change.over or 0) > schedule.steps:
        yield (
            f"`schedule.temperature_change.over: {change.over}` is past the last step: the temperature ends at "
            f"{schedule.temperature_at(schedule.steps):.3g}, not at {change.to:g}. Set it to {schedule.steps} or less"
        )
    if isinstance(change, f.StagedTemperature) and change.begins[-1] > schedule.steps:
        yield (
            f"`schedule.temperature_change.begins` names step {change.begins[-1]}, and a run has {schedule.steps}: "
            "that stage never begins. Leave it out, or raise `schedule.steps`"
        )
    yield from _sign_of_rounding(recipe)


def _sign_of_rounding(recipe: Recipe) -> Iterator[str]:
    """The derivative of |log r| is -1 or 1 wherever r is not exactly 1."""
    if recipe.clip.kind == "kl_cov" and on_policy(recipe) and recipe.loss.kind == "policy_gradient":
        yield (
            "`clip: kl_cov` charges |log r|, and with one update per rollout batch and staleness 0 log r is 0 but for "
            "rounding, whose sign then decides: set `schedule.minibatches` above 1"
        )


def magnitudes(recipe: Recipe) -> Iterator[str]:
    """Yield values that lie far outside of what is published, with what is usual."""
    rate = recipe.optimizer.learning_rate
    most = MOST_RATE_TINY if recipe.model.name in TINY_MODELS else MOST_RATE
    if rate > most:
        usual = "1e-4 to 1e-3 for the tiny models" if most == MOST_RATE_TINY else "1e-6 to 1e-5"
        yield f"`optimizer.learning_rate: {rate:g}` moves each weight by about that much an update: usual is {usual}"
    if (hottest := max(recipe.schedule.temperatures)) > MOST_TEMPERATURE:
        place = "temperature" if hottest == recipe.schedule.temperature else "temperature_change"
        yield f"`schedule.{place}: {hottest:g}` samples nearly random text: usual is 0.6 to 1.2"
    for name, bound in zip(("low", "high"), ratio_band(recipe) or (), strict=False):
        if bound > MOST_BAND:
            yield (
                f"`clip.{name}: {bound:g}` is a distance from r = 1, not a percentage: for {bound:g}% write "
                f"{bound / 100:g}"
            )
    if not isinstance(recipe.kl, f.NoKl | f.KlInAdvantage) and recipe.kl.beta > MOST_KL:
        yield f"`kl.beta: {recipe.kl.beta:g}` drowns the reward in the KL term: usual is 0.001 to 0.1"
