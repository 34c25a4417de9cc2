"""Groups that a step trained on, as text for reading: records of ``samples.jsonl``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from torch import Tensor

from paribus.recipe import factors as f
from paribus.recipe.analysis.facts import corrected_by_the_update, weighs_sampler
from paribus.recipe.recipe import Recipe
from paribus.run_folder.folder import TRAIN, to_json_number
from paribus_runners.native.batch import in_loss
from paribus_runners.native.experience import Experience
from paribus_runners.native.objective import length, reward
from paribus_runners.native.objective.advantage import Scored, per_token, shaped_reward
from paribus_runners.native.policy import Policy
from paribus_runners.native.responses import Whole

GROUPS = 2
"""Groups that are kept of each step."""

STEPS = 200
"""Most steps of a run whose groups are kept, evenly spaced: the texts of a long run would fill a disk."""


def of_step(recipe: Recipe, policy: Policy, experience: Experience, step: int) -> list[dict[str, Any]]:
    """Return the responses of the first groups of a step, including those that the filter dropped.

    Most steps of a run of more than :data:`STEPS` have none. A response that takes no part in the baseline has no
    advantage, nor does one whose tokens have their own. Only a correction measures how learner and sampler differ, and
    where the update itself does that, only for what is trained on.
    """
    if step % math.ceil(recipe.schedule.steps / STEPS):
        return []
    rollouts = experience.rollouts
    shown = range(min(GROUPS, len(rollouts.prompts)))
    rows = (rollouts.scored.group < len(shown)).nonzero().squeeze(1)
    responses = rollouts.responses.select(rows)
    prompts = policy.decode_prompts([rollouts.prompts[i] for i in shown])
    tokens = responses.tokens()
    texts, size = policy.decode(tokens), len(rows) // max(1, len(shown))
    rewards, parts = shaped_reward(recipe, rollouts.scored), _parts(recipe, rollouts.scored)
    difference = (experience.old - rollouts.responses.logp).abs()[rollouts.responses.places(rows)]
    apart = responses.padded(difference, recipe.schedule.max_new_tokens).sum(1) / responses.length
    first, inside = rollouts.responses.first, in_loss(recipe, experience) | (not corrected_by_the_update(recipe))
    found = []
    for place, (row, text) in enumerate(zip(rows.tolist(), texts, strict=True)):
        record: dict[str, Any] = {
            "step": step,
            "set": TRAIN,
            "prompt": prompts[place // size],
            "sample": place % size,
            "response": text,
            "finished": not bool(responses.truncated[place]),
            "correct": bool(rollouts.scored.correct[row]),
            "reward": _number(rewards[row]),
            "tokens": int(responses.length[place]),
        }
        if (marks := given(policy, tokens[place])) is not None:
            record["given"] = marks
        if len(parts) > 1:
            record["reward_parts"] = {name: _number(values[row]) for name, values in parts.items()}
        if bool(rollouts.kept[row]) and not per_token(recipe) and recipe.kl.kind != "advantage":
            record["advantage"] = _number(experience.advantage[first[row]])
        if weighs_sampler(recipe) and bool(inside[row]):
            record["logp_abs_diff_mean"] = _number(apart[place])
        found.append(record)
    return found


def given(policy: Policy, whole: Sequence[int]) -> list[tuple[int, int]] | None:
    """Return where in the text of a response an environment wrote: first character, and the one behind the last.

    Returns:
        ``None`` if the recipe has no environment.
    """
    if not isinstance(whole, Whole):
        return None
    own = set(whole.written)
    runs = [list(run) for is_own, run in groupby(range(len(whole)), key=own.__contains__) if not is_own]
    return [(policy.characters(whole[: run[0]]), policy.characters(whole[: run[-1] + 1])) for run in runs]


def _number(value: Tensor) -> float | str:
    return to_json_number(float(value))


def _parts(recipe: Recipe, scored: Scored) -> dict[str, Tensor]:
    """Return the terms of the reward, each [N]."""
    level = recipe.reward
    found = reward.parts(level, scored.score, scored.correct, scored.formatted, scored.rewards)
    parts = {name: weight * r for name, (weight, r) in found.items()}
    if isinstance(recipe.length.rule, f.SoftOverlong):
        parts["length"] = length.punishment(recipe.length, scored.length, scored.score.dtype)
    if isinstance(recipe.kl, f.KlInReward):
        parts["kl"] = -scored.kl
    return parts
