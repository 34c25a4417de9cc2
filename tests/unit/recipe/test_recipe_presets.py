"""Presets: each pins its objective, says where it comes from, and is like no other."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import pytest

from paribus.errors import StudyFileError, UnknownPreset
from paribus.recipe.patch import read_patch
from paribus.recipe.presets import RESERVED, load_preset, nearest, preset_names, read_preset
from paribus.recipe.recipe import FACTORS, Recipe, flatten
from paribus.run_folder.metrics import find_metric

EXPECTED = {
    "reinforce", "rloo", "reinforce_pp", "reinforce_pp_baseline", "ppo", "grpo", "dapo", "dapo_paper_agg", "dr_grpo",
    "vapo", "gspo", "gspo_token", "gmpo", "cispo", "sapo", "dcpo", "deepseek_v32", "lite_ppo", "olmo3", "rspo",
    "lopti", "reinforce_rej", "pair_dpo_extremes", "gdpo_multireward", "clip_dapo", "sroy_cisco", "scalerl",
}  # fmt: skip
OBJECTIVE = ("loss", *FACTORS[1:])


def test_all_published_algorithms_are_there() -> None:
    """The table of algorithms is complete."""
    assert set(preset_names()) == EXPECTED


def test_presets_are_pairwise_distinct_but_for_declared_aliases() -> None:
    """Two presets are the same recipe exactly where one says that it is an alias of the other."""
    for one, other in combinations(map(load_preset, preset_names()), 2):
        declared = one.alias_of == other.name or other.alias_of == one.name
        assert (one.recipe == other.recipe) == declared, (one.name, other.name)


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_value_of_the_objective_is_pinned(name: str) -> None:
    """A later change of a default cannot change a preset."""
    preset = load_preset(name)
    settings, faults = read_patch(preset.set)
    assert faults == []
    pinned = {".".join(setting.path) for setting in settings}
    recipe = flatten(preset.recipe.model_dump())
    assert {path for path in recipe if path.split(".")[0] in OBJECTIVE} - pinned == set()
    assert "schedule.update.kind" in pinned


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_presets_leave_model_task_and_optimizer_alone(name: str) -> None:
    """A preset is an objective: what it is applied to is the study's."""
    parts = {setting.path[0] for setting in read_patch(load_preset(name).set)[0]}
    assert parts <= {*OBJECTIVE, "schedule"}
    assert "schedule" not in load_preset(name).set  # dotted, so that a list of arms can leave the schedule out


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_preset_names_its_source(name: str) -> None:
    """Title and source are there; an alias names a preset that is none."""
    preset = load_preset(name)
    assert preset.title
    assert preset.source
    assert preset.alias_of is None or load_preset(preset.alias_of).alias_of is None


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_every_preset_says_what_it_treats_and_what_shows_it(name: str) -> None:
    """Three to six words, failures with metrics that the schema has, and the cost."""
    preset = load_preset(name)
    assert 3 <= len(preset.treats.split()) <= 6
    assert preset.cost
    assert preset.watch
    assert all(preset.watch.values())
    assert [metric for metrics in preset.watch.values() for metric in metrics if find_metric(metric) is None] == []


def test_metrics_to_watch_exist_under_the_recipe() -> None:
    """A metric of a part that a preset has not, as the critic's without a critic, would never be logged."""
    needs: dict[str, Callable[[Recipe], bool]] = {
        "critic/": lambda r: r.auxiliary.value is not None,
        "correction/": lambda r: r.correction.kind != "off",
        "router/": lambda r: r.token_weight.kind == "router_shift",
        "history/": lambda r: r.baseline.kind == "history",
        "kl/ref_k3": lambda r: r.kl.kind != "off" or r.loss.kind == "pair_dpo",
        "sampling/generation_batches": lambda r: r.filter.kind.startswith("refill"),
    }
    for preset in map(load_preset, preset_names()):
        for metric in (metric for metrics in preset.watch.values() for metric in metrics):
            assert all(there(preset.recipe) for prefix, there in needs.items() if metric.startswith(prefix)), (
                preset.name,
                metric,
            )


def test_the_nearest_preset_differs_in_the_fewest_paths() -> None:
    """GSPO-token is GSPO with one level changed; an alias is nobody's nearest."""
    assert nearest("gspo_token") == "gspo"
    assert nearest("rspo") == "gmpo"
    assert nearest("dapo_paper_agg") == "dapo"


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("grpo", {"kl.beta": 0.04, "kl.estimator": "k3", "aggregation.kind": "seq_mean", "scale.kind": "group_std"}),
        ("dapo", {"clip.high": 0.28, "filter.metric": "correct", "length.rule.soft_start": 16384, "reward.map": "pm1",
                  "schedule.max_new_tokens": 20480, "length.truncated": "as_scored"}),
        ("dr_grpo", {"scale.kind": "none", "aggregation.kind": "const", "kl.kind": "off"}),
        ("rloo", {"baseline.kind": "group_loo", "kl.kind": "reward", "kl.beta": 0.03}),
        ("gspo", {"ratio.kind": "seq_geo", "clip.low": 3e-4, "clip.high": 4e-4}),
        ("olmo3", {"reward.factor": 10.0, "clip.high": 0.272, "correction.cap": 2.0, "filter.kind": "refill_async"}),
        ("lopti", {"schedule.update.kind": "lopti", "schedule.update.eta": 0.5, "kl.beta": 0.001}),
        ("vapo", {"auxiliary.positive_nll": 0.1, "auxiliary.value.pretrain_steps": 50,
                  "baseline.policy_lambda.kind": "length_adaptive"}),
    ],
)  # fmt: skip
def test_published_values(name: str, values: dict[str, object]) -> None:
    """The numbers that papers state are those of the presets."""
    recipe = flatten(load_preset(name).recipe.model_dump())
    assert {path: recipe[path] for path in values} == values


@pytest.mark.parametrize(
    "name",
    [*RESERVED, "REINFORCE++", "GDPO", "reinforce plus plus", "reinforce_pp_loo", "REINFORCE++ LOO", "tis_dapo", "TIS"],
)
def test_contested_names_are_refused_with_what_to_write(name: str) -> None:
    """A name that means several things or none is explained, not guessed."""
    with pytest.raises(UnknownPreset, match=r"is not a preset: .*`"):
        load_preset(name)


def test_an_unknown_preset_lists_those_that_there_are() -> None:
    """The nearest name comes first."""
    with pytest.raises(UnknownPreset, match=r"there is no preset `grppo`\. Did you mean `grpo`\? Presets: cispo"):
        load_preset("grppo")


def test_problems_of_a_preset_file_have_places(tmp_path: Path) -> None:
    """A wrong preset is refused as a study file is."""
    path = tmp_path / "mine.yaml"
    head = "title: t\nsource: s\ntreats: x\nwatch: {y: [z]}\ncost: none\n"
    path.write_text(head + "set:\n  clip.hihg: 1.0\n")
    with pytest.raises(StudyFileError, match=r"mine.yaml:7:3: set.clip.hihg: no level of `clip`"):
        read_preset(path)
    path.write_text(head + "set:\n  clip.high: -1\n")
    with pytest.raises(StudyFileError, match=r"mine.yaml:7:\d+: .*must be >= 0"):
        read_preset(path)
    path.write_text("title: t\nset: {}\nsorce: s\n")
    with pytest.raises(StudyFileError, match=r"Did you mean `source`\?"):
        read_preset(path)
    path.write_text("title: t\nsource: s\nset: {}\n")
    with pytest.raises(StudyFileError, match=r"treats: is missing"):
        read_preset(path)
    path.write_text("title: t\nsource: s\nalias_of: dapo\nnote: n\nset: {}\n")
    with pytest.raises(StudyFileError, match=r"`set` is unknown|set: "):
        read_preset(path)
    path.write_text(head + "set: {clip: {high: 0.5}, kl: off}\n")
    assert read_preset(path).recipe == Recipe.model_validate({"clip": {"kind": "ppo_min", "high": 0.5}})
