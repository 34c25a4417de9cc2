"""Another model as the reference, and KL in the advantage: on-policy distillation beside the rewards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from paribus.contract import Evaluate, Options
from paribus.errors import RunnerError
from paribus.recipe import factors as f
from paribus.recipe.analysis.facts import nothing_without_spread, one_advantage_a_response
from paribus.recipe.analysis.inert import inert
from paribus.recipe.analysis.unusual import magnitudes, untrainable
from paribus.recipe.recipe import Model, Recipe
from paribus_runners.native import fingerprint, runner
from paribus_runners.native.experience import weigh
from paribus_runners.native.main import initial_reference
from paribus_runners.native.metrics import of_experience
from paribus_runners.native.policy import Policy
from paribus_runners.native.tiny.make import tokenizer
from support.native_runs import changed, lines_of

CORRECT = [[True, False, False, True], [False, False, False, False]]


def test_each_token_pays_for_its_own_distance(made: Any) -> None:
    """A of a token is that of its rewards minus beta log(pi / reference), also in a group without spread."""
    plain = Recipe(kl=f.KlInLoss(), length=f.Length(truncated="drop"))
    cut = [False] * 7 + [True]
    rollouts = made(plain, CORRECT, truncated=cut)
    got = weigh(changed(plain, kl=f.KlInAdvantage(beta=0.3)), rollouts).advantage
    u = rollouts.responses.logp - rollouts.reference
    kept = rollouts.responses.row != 7
    torch.testing.assert_close(got, weigh(plain, rollouts).advantage - 0.3 * u * kept)
    assert not got[~kept].any()
    assert (got[rollouts.responses.row == 5] != 0).all()


def test_metrics_show_whether_it_acts(made: Any) -> None:
    """The log ratio is a mean over tokens; without a reward that differs the share of KL in A is 1."""
    recipe = Recipe(kl=f.KlInAdvantage(beta=0.3))
    rollouts = made(recipe, CORRECT)
    rollouts = replace(rollouts, scored=replace(rollouts.scored, faults=torch.zeros(8, 1, dtype=torch.int8)))
    found = of_experience(recipe, weigh(recipe, rollouts), {}, 0)
    u, A = rollouts.responses.logp - rollouts.reference, weigh(Recipe(), rollouts).advantage
    assert found["kl/ref_k1"] == pytest.approx(float(u.mean()))
    paid = float(0.3 * u.abs().mean())
    assert found["kl/advantage_share"] == pytest.approx(paid / (paid + float(A.abs().mean())))
    alone = changed(recipe, reward=f.Reward(weights=f.Weights(correct=0)))
    assert of_experience(alone, weigh(alone, rollouts), {}, 0)["kl/advantage_share"] == 1


def test_a_plan_knows_what_it_is() -> None:
    """Groups without spread train, tokens differ in A, a group of one trains, and beta 1 is usual."""
    recipe = Recipe(kl=f.KlInAdvantage(beta=2.0))
    assert not nothing_without_spread(recipe)
    assert not one_advantage_a_response(recipe)
    assert not list(magnitudes(recipe))
    single = {"group_size": 1}
    assert untrainable(changed(Recipe(), schedule=single))
    assert not untrainable(changed(recipe, schedule=single))
    base, named = (changed(recipe, kl=f.KlInLoss(reference=r)) for r in (f.FixedReference(), _model("tiny")))
    assert "`tiny` is the model that the policy starts from" in (inert(base, named) or "")
    assert inert(base, changed(recipe, kl=f.KlInLoss(reference=_model("tiny_moe")))) is None


def _model(name: str | Path) -> f.ModelReference:
    return f.ModelReference(name=str(name))


def test_the_teacher_is_part_of_the_initial_models(tmp_path: Path) -> None:
    """Another teacher, or other files of the same, are another run; a missing one is named where it stands."""
    (tmp_path / "config.json").write_text("{}")
    recipes = [Recipe(kl=f.KlInAdvantage(reference=r)) for r in (f.FixedReference(), _model(tmp_path), _model("tiny"))]
    found = [fingerprint.model(recipe) for recipe in recipes]
    assert found[0] == fingerprint.model(Recipe())
    (tmp_path / "config.json").write_text("{ }")
    assert len({*found, fingerprint.model(recipes[1])}) == 4
    with pytest.raises(Exception, match=r"`kl\.reference\.name: \./no`: there is no such folder"):
        fingerprint.model(Recipe(kl=f.KlInLoss(reference=_model("./no"))))


def test_another_vocabulary_is_refused(tmp_path: Path, policy: Policy) -> None:
    """A plan and a run say how many tokens have no number there, and name one."""
    policy.model.save_pretrained(tmp_path)
    tokenizer("0123456789=+x").save_pretrained(tmp_path)
    recipe = Recipe.model_validate({"task": {"kind": "chain"}, "kl": f.KlInAdvantage(reference=_model(tmp_path))})
    (fault,) = runner.examine(recipe, Evaluate(), Options()).faults
    assert "has no token or another number for" in fault
    with pytest.raises(RunnerError, match=r"Name a model with the same tokenizer"):
        initial_reference(recipe, tmp_path, policy)
    policy.tokenizer.save_pretrained(tmp_path)
    assert runner.examine(recipe, Evaluate(), Options()).faults == ()
    halved = changed(recipe, model=Model(name=recipe.model.name, dtype="bfloat16", logits_dtype="float32"))
    reference = initial_reference(halved, tmp_path, policy)
    assert reference is not None
    assert {(p.requires_grad, p.dtype) for p in reference.model.parameters()} == {(False, torch.bfloat16)}
    assert reference.head.dtype == torch.float32


def test_a_student_comes_closer_to_its_teacher(
    recipe: Recipe, policy: Policy, tmp_path: Path, job_folder: Callable[..., Path]
) -> None:
    """Without rewards a worse copy of a model goes back to it: the log ratio falls, and only the copy moves."""
    teacher = recipe.model.name
    torch.manual_seed(0)
    with torch.no_grad():
        for weights in policy.model.parameters():
            weights += 0.5 * weights.std() * torch.randn_like(weights)
    policy.model.save_pretrained(tmp_path / "student")
    policy.tokenizer.save_pretrained(tmp_path / "student")
    distil = changed(
        recipe,
        model=Model(name=str(tmp_path / "student")),
        kl=f.KlInAdvantage(reference=_model(teacher)),
        reward=f.Reward(weights=f.Weights(correct=0)),
        schedule={"steps": 8},
    )
    folder = job_folder(distil)
    runner.run(folder)
    found = [line["kl/ref_k1"] for line in lines_of(folder)[1:]]
    assert sum(found[:3]) > 0.3
    assert sum(found[-3:]) < 0.6 * sum(found[:3])
