"""``schedule.temperature_change``: sampler and learner have one temperature in each step, also across a stop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from paribus.contract import GradientJob, Options
from paribus.recipe import analysis
from paribus.recipe import factors as f
from paribus.recipe.recipe import Recipe, difference
from paribus_runners.capabilities import matrix_for
from paribus_runners.native import runner
from paribus_runners.native.requirements import sampler_faults
from support.native_runs import changed, lines_of, same, weights_of

JobFolder = Callable[..., Path]
MOVED = {"temperature", "temperature_change"}


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"kind": "none"}, [1.0] * 6),
        ({"kind": "linear", "to": 0.5}, [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]),
        ({"kind": "linear", "to": 1.4, "over": 3}, [1.0, 1.2, 1.4, 1.4, 1.4, 1.4]),
        ({"kind": "stages", "begins": (3, 5), "temperatures": (1.1, 1.3)}, [1.0, 1.0, 1.1, 1.1, 1.3, 1.3]),
    ],
    ids=str,
)
def test_each_step_has_its_temperature(change: dict[str, Any], want: list[float]) -> None:
    """By hand; before step 1 it is that of step 1, and nothing else of the recipe moves."""
    recipe = Recipe.model_validate({"schedule": {"steps": 6, "temperature_change": change}})
    steps = [recipe.at(step) for step in range(1, 7)]
    assert [now.schedule.temperature for now in steps] == pytest.approx(want)
    assert recipe.at(-3).schedule.temperature == recipe.at(0).schedule.temperature == 1.0
    assert {min(want), max(want)} <= {round(x, 9) for x in recipe.schedule.temperatures}
    assert {path.split(".")[1] for now in steps for path in difference(recipe, now)} <= MOVED


def test_a_run_samples_and_learns_at_the_temperature_of_the_step(recipe: Recipe, job_folder: JobFolder) -> None:
    """With weights that stand still the two agree in each step, also a stale one; a level line is the plain run."""
    small = {"steps": 3, "minibatches": 1, "epochs": 1, "staleness": 1}
    cooling = {"temperature_change": {"kind": "linear", "to": 0.4}}
    level = {"temperature_change": {"kind": "linear", "to": 1.0}}
    levels = {"kl": f.KlInLoss(), "correction": f.TokenTruncate(), "optimizer": {"learning_rate": 1e-12}}
    paths = [
        job_folder(changed(recipe, schedule={**small, **more}, **levels), name=n)
        for n, more in (("cooling", cooling), ("level", level), ("plain", {}))
    ]
    for path in paths:
        runner.run(path)
    cool, line, plain = (lines_of(path) for path in paths)
    assert [x["sampling/temperature"] for x in cool[1:]] == pytest.approx([1.0, 0.7, 0.4])
    for values in cool[1:]:
        assert values["mismatch/logp_abs_diff_max"] < 1e-4
        assert values["kl/ref_k3"] < 1e-6
    assert cool[3]["policy/entropy"] < plain[3]["policy/entropy"]
    assert "sampling/temperature" not in plain[1]
    assert [{k: v for k, v in x.items() if k != "sampling/temperature"} for x in line] == plain
    assert same(weights_of(paths[1]), weights_of(paths[2]))


def test_gradients_are_taken_at_the_temperature_of_their_step() -> None:
    """The recipes of the run, of the base and of the arms are those of the step whose rollouts they share."""
    steady = Recipe()
    line = Recipe.model_validate({"schedule": {"steps": 5, "temperature_change": {"kind": "linear", "to": 0.6}}})
    asked = GradientJob(
        run="run", recipe=line, options=Options(), seed=0, cache="c", checkpoint=None, base=steady, arms={"line": line}
    ).at(3)
    found = [recipe.schedule.temperature for recipe in (asked.recipe, asked.base, asked.arms["line"])]
    assert found == pytest.approx([0.8, 1.0, 0.8])


@pytest.mark.parametrize(("trainer", "version"), [("trl", "1.16.0"), ("verl", "0.9.1")])
def test_trainers_of_others_refuse_what_they_do_in_another_way(trainer: str, version: str) -> None:
    """Truncated sampling, moving temperatures and budgets of prompts are unsupported there, with what to write."""
    schedule = {"top_p": 0.9, "top_k": 5, "temperature_change": {"kind": "linear", "to": 0.5}, "prompts": 100}
    can = matrix_for(trainer, version).capabilities
    found = {x.feature: x for x in can.support(Recipe.model_validate({"schedule": schedule}))}
    for name in schedule:
        assert found[f"schedule.{name}"].level == "unsupported"
        assert "Nearest: `schedule." in found[f"schedule.{name}"].reason
    assert not {x.feature for x in can.support(Recipe())} & {f"schedule.{name}" for name in schedule}


def test_plans_say_what_a_temperature_cannot_do() -> None:
    """A change that changes nothing is inert; one that is cut off, too hot or mixed with other steps is named."""

    def of(change: dict[str, Any], **more: Any) -> Recipe:
        return Recipe.model_validate({"schedule": {"steps": 4, "temperature_change": change}, **more})

    plain, line = of({"kind": "none"}), of({"kind": "linear", "to": 1.0})
    late = of({"kind": "stages", "begins": (9,), "temperatures": (0.5,)})
    for still in (line, late):
        assert "each step of the run has `schedule.temperature: 1`" in (analysis.inert(plain, still) or "")
    assert analysis.inert(plain, of({"kind": "linear", "to": 0.9})) is None
    assert any("that stage never begins" in text for text in analysis.limits(late))
    cut = of({"kind": "linear", "to": 0.5, "over": 7})
    assert any("the temperature ends at 0.75, not at 0.5" in text for text in analysis.limits(cut))
    hot = of({"kind": "linear", "to": 3.0}, rollout={"engine": "vllm"})
    assert any("`schedule.temperature_change: 3` samples nearly random" in text for text in analysis.magnitudes(hot))
    assert any("`schedule.temperature_change` is 3" in fault for fault in sampler_faults(hot))
    with pytest.raises(ValidationError, match="set `filter: refill`"):
        of({"kind": "linear", "to": 0.5}, filter={"kind": "refill_async", "metric": "correct"})
    with pytest.raises(ValidationError, match="2 stages begin, and there are 1 temperatures"):
        of({"kind": "stages", "begins": (2, 3), "temperatures": (1.0,)})
    with pytest.raises(ValidationError, match="must ascend"):
        of({"kind": "stages", "begins": (3, 2), "temperatures": (1.0, 0.9)})
    assert "temperature_change" not in plain.model_dump_json()
