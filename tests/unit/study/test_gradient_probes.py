"""What one gradient shows of a change, and the words for it."""

from __future__ import annotations

from typing import Any

import pytest

from paribus.contract import ObjectiveGradient
from paribus.recipe import factors as f
from paribus.recipe.analysis.one_gradient import on_rollouts_of, seen
from paribus.recipe.recipe import Model, Optimizer, Recipe
from paribus.recipe.rollout import Rollout
from paribus.study.gradients import cosine_text, ratio_text, verdict_of

BASE = Recipe()


def changed(**changes: Any) -> Recipe:
    """Return the base with other levels."""
    return Recipe.model_validate({**dict(BASE), **changes})


@pytest.mark.parametrize(
    ("arm", "path", "word"),
    [
        (changed(schedule=f.Schedule(staleness=1)), "schedule.staleness", "lags behind"),
        (changed(schedule=f.Schedule(epochs=2)), "schedule.epochs", "start from other weights"),
        (changed(schedule=f.Schedule(update=f.Lopti(eta=0.5))), "schedule.update.kind", "add up to one"),
        (changed(schedule=f.Schedule(group_size=4)), "schedule.group_size", "other rollouts"),
        (changed(schedule=f.Schedule(steps=9)), "schedule.steps", "when training ends"),
        (changed(optimizer=Optimizer(learning_rate=1.0)), "optimizer.learning_rate", "after it was computed"),
        (changed(model=Model(name="tiny_wide")), "model.name", "another policy"),
        (changed(rollout=Rollout(engine="vllm")), "rollout.engine", "other rollouts"),
    ],
)
def test_what_does_not_act_on_one_gradient_is_named_with_its_reason(arm: Recipe, path: str, word: str) -> None:
    """Such an arm is not visible, and its objective on given rollouts is that of the base."""
    found = seen(BASE, arm, BASE)
    assert word in found.hidden[path]
    assert not found.acts
    assert found.recipe == on_rollouts_of(BASE, BASE)


def test_what_acts_and_what_acts_in_part_is_kept_apart() -> None:
    """A clip acts; of a filter that refills, what it drops does; what the run lacks is said."""
    clip = seen(BASE, changed(clip=f.PpoMin(high=0.3), optimizer=Optimizer(learning_rate=1.0)), BASE)
    assert (clip.acts, [*clip.hidden], clip.partly) == (True, ["optimizer.learning_rate"], {})
    refill = seen(BASE, changed(filter=f.Refill()), BASE)
    assert refill.acts
    assert "sampled in their place" in refill.partly["filter.kind"]
    critic = changed(baseline=f.CriticGae(), scale=f.NoScale(), auxiliary=f.Auxiliary(value=f.ValueLoss()))
    assert "no update" in seen(BASE, critic, BASE).partly["baseline.kind"]
    assert seen(BASE, critic, critic).partly == {}
    history = changed(baseline=f.History(), scale=f.HistorySmooth())
    assert "never seen" in seen(BASE, history, BASE).partly["baseline.kind"]
    moving = changed(kl=f.KlInLoss(reference=f.SyncedReference(every=2, mix=0.5)))
    assert "initial model" in seen(BASE, moving, BASE).partly["kl.reference.kind"]
    routed = changed(token_weight=f.RouterShift(), model=Model(name="tiny_moe"))
    assert not seen(BASE, routed, BASE).acts


@pytest.mark.parametrize(
    ("distance", "residual", "cosine", "verdict"),
    [
        (0.0, 0.0, 1.0, "identical"),
        (1e-6, 1e-6, 1.0, "none"),
        (5e-3, 5e-3, 1.0, "small"),
        (0.5, 1e-7, 1.0, "scale"),
        (2.0, 1e-7, -1.0, "direction"),
        (0.5, 0.3, 0.9, "direction"),
        (1.0, 0.0, None, "direction"),
    ],
)
def test_a_verdict_follows_from_distance_and_residual(
    distance: float, residual: float, cosine: float | None, verdict: str
) -> None:
    """Up to the rounding nothing changes; a residual within it leaves the length; the reverse is another direction."""
    gradient = ObjectiveGradient(
        norm=1.0, cosine=cosine, ratio=1.0, distance=distance, residual=residual, responses=1, weight={}
    )
    assert verdict_of(gradient, 1e-5) == verdict


def test_only_what_is_exactly_one_is_printed_as_one() -> None:
    """A ratio that is nearly 1 says by how much it is not."""
    assert [ratio_text(x) for x in (1.0, 1 + 2e-7, 1 - 1e-4, 8 / 7, None)] == ["1", "1+2e-07", "1-1e-04", "1.143", "-"]
    assert [cosine_text(x) for x in (1.0, 1 - 1e-12, -0.5, None)] == ["1", "1.0000", "-0.5000", "-"]
