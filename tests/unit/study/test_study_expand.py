"""Plans: distinct arms, distinct runs, their order, and what the runner cannot train."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paribus.contract import Checkpoints
from paribus.errors import StudyFileError, UnsupportedRecipe
from paribus.recipe.recipe import Recipe, flatten
from paribus.study.expand import draft_plan, make_plan
from paribus.study.load import LoadedStudy, resolve_study
from paribus.study.plan import Plan
from paribus.study.spec import Base, Listed, ListedArm, Study
from paribus.testing.fake_runner import FakeRunner

Read = Callable[[str], LoadedStudy]


def present(recipe: Recipe) -> dict[str, Any]:
    """Return the values of a recipe by dotted path, without those that are null."""
    return {path: value for path, value in flatten(recipe.model_dump(mode="json")).items() if value is not None}


def test_arms_are_as_many_as_distinct_recipes(plan: Plan) -> None:
    """The union of all designs is deduplicated by the resolved recipe."""
    assert len({arm.key for arm in plan.arms}) == len(plan.arms)
    assert len({arm.recipe.model_dump_json() for arm in plan.arms}) == len(plan.arms)
    assert {row.arm for row in plan.rows} <= {arm.key for arm in plan.arms}
    assert len(plan.arms) == 13
    assert len(plan.rows) == 24


def test_every_row_is_its_parent_and_its_changes(plan: Plan) -> None:
    """The changes of a row, applied to its parent's recipe, give the row's recipe."""
    arms = {(row.design, row.label): plan.arm(row.arm) for row in plan.rows}
    for row in plan.rows:
        if row.parent is None:
            assert row.changes == {}
            continue
        values = present(arms[row.design, row.parent].recipe)
        for path, (before, after) in row.changes.items():
            assert values.pop(path, None) == before
            if after is not None:
                values[path] = after
        assert values == present(arms[row.design, row.label].recipe)


def test_labels_of_arms_are_unique_and_the_base_is_first(plan: Plan) -> None:
    """Two arms whose rows have the same label are told apart by their design."""
    labels = [arm.label for arm in plan.arms]
    assert labels[0] == "base"
    assert len(set(labels)) == len(labels)
    assert "+ token_level (solo)" in labels


def test_runs_go_seed_by_seed_with_the_base_first(plan: Plan) -> None:
    """A study that is cut short has whole blocks of arms with the same seed."""
    arms = [arm.key for arm in plan.arms]
    assert [run.order for run in plan.runs] == list(range(len(plan.runs)))
    assert [(run.seed, run.arm) for run in plan.runs] == [(seed, arm) for seed in (0, 1, 2) for arm in arms]
    assert len({run.fingerprint for run in plan.runs}) == len(plan.runs)


def test_unpaired_arms_have_seeds_of_their_own(read: Read, text: str) -> None:
    """No seed is used twice, and an arm's seeds do not depend on the other arms."""
    plan = make_plan(read(text + "seeds: {n: 4, paired: false}\n"), FakeRunner())
    seeds = [run.seed for run in plan.runs]
    assert len(set(seeds)) == len(seeds) == 4 * len(plan.arms)
    fewer = text.split("  knockout")[0] + "seeds: {n: 4, paired: false}\n"
    smaller = make_plan(read(fewer), FakeRunner())
    assert {(r.arm, r.seed) for r in smaller.runs} <= {(r.arm, r.seed) for r in plan.runs}


def test_another_study_of_the_same_arms_has_the_same_runs(read: Read, text: str) -> None:
    """Names of study, tricks, designs and arms, and the question, stay out of fingerprints."""
    other = text.replace("clip_higher", "wider").replace("ladder", "stairs").replace("Which trick?", "Why?")
    mine, theirs = make_plan(read(text), FakeRunner()), make_plan(read(other), FakeRunner())
    assert [r.fingerprint for r in mine.runs] == [r.fingerprint for r in theirs.runs]
    assert mine.fingerprint != theirs.fingerprint


def test_a_margin_changes_the_study_and_no_run(read: Read, text: str) -> None:
    """A margin that is declared later makes another study, so that it is seen, of the same runs."""
    without, declared = (make_plan(read(t), FakeRunner()) for t in (text, text + "\nmargin: 0.01\n"))
    assert (without.margin, declared.margin) == (None, 0.01)
    assert without.fingerprint != declared.fingerprint
    assert [r.fingerprint for r in without.runs] == [r.fingerprint for r in declared.runs]


def test_what_a_report_is_told_changes_the_study_only_where_it_changes_a_verdict(read: Read, text: str) -> None:
    """Another correction makes another study of the same runs; published tables that stand beside do not."""
    settings = ("", "report: {published: [dapo_table1]}", "report: {symptom_correction: benjamini_hochberg}")
    plain, beside, screening = (make_plan(read(f"{text}\n{setting}\n"), FakeRunner()) for setting in settings)
    assert (beside.published, screening.symptom_correction) == (("dapo_table1",), "benjamini_hochberg")
    assert plain.fingerprint == beside.fingerprint != screening.fingerprint
    assert [r.fingerprint for r in plain.runs] == [r.fingerprint for r in screening.runs]
    assert screening.under(beside).published == ("dapo_table1",)
    pairs = make_plan(read(f"{text}\nreport: {{pairing: where_it_helps}}\n"), FakeRunner())
    assert pairs.fingerprint not in (plain.fingerprint, screening.fingerprint)
    assert [r.fingerprint for r in plain.runs] == [r.fingerprint for r in pairs.runs]


def test_checkpoints_make_no_other_study_and_no_other_run(read: Read, text: str) -> None:
    """They change no number; a study that has grown goes on with what its file says now."""
    settings = ("", "checkpoint: {every: 20, keep: 3}")
    plain, often = (make_plan(read(f"{text}\n{setting}\n"), FakeRunner()) for setting in settings)
    assert (plain.checkpoint, often.checkpoint) == (Checkpoints(), Checkpoints(every=20, keep=3))
    assert plain.fingerprint == often.fingerprint
    assert plain.runs == often.runs
    assert plain.under(often).checkpoint == often.checkpoint


def test_new_code_of_the_runner_makes_new_runs(read: Read, text: str) -> None:
    """No run is reused whose numbers another trainer made."""
    old, new = (make_plan(read(text), FakeRunner(version=v)) for v in "12")
    assert not {r.fingerprint for r in old.runs} & {r.fingerprint for r in new.runs}
    assert [arm.key for arm in old.arms] == [arm.key for arm in new.arms]


def test_everything_that_the_runner_cannot_train_is_listed_at_once(read: Read) -> None:
    """The error names each missing part with all arms that ask for it; the plan can be made all the same."""
    study = read(
        "study: s\nbase: {preset: grpo}\ndesigns: {d: {kind: list, arms: "
        "{one: {preset: cispo}, two: {preset: sapo}, three: {preset: cispo, set: {clip.cap: 5.0}}}}}\n"
    )
    runner = FakeRunner(missing=(("is_cap_sg", "no is_cap_sg"), ("soft_gate", "no soft_gate")))
    with pytest.raises(UnsupportedRecipe) as caught:
        make_plan(study, runner)
    assert "no is_cap_sg (arms: `one`, `three`)" in str(caught.value)
    assert "no soft_gate (arms: `two`)" in str(caught.value)
    assert len(draft_plan(study, runner).plan.arms) == 4


IN_LIST = "designs: {d: {kind: list, arms: {a: {}, b: {preset: grpo}, c: {tricks: [t]}, e: {preset: cispo}}}}\n"
REFUSED = {
    "a preset of the base": ("base: {preset: cispo}\n", "designs: {d: {kind: list, arms: {a: {}}}}\n", "2:16"),
    "a patch of the base": ("base: {preset: grpo, set: {clip: {kind: is_cap_sg, cap: 5.0}}}\n", IN_LIST, "2:41"),
    "a preset of an arm": ("base: {preset: grpo}\n", IN_LIST.replace(", c: {tricks: [t]}", ""), "4:72"),
    "a patch of an arm": (
        "base: {preset: grpo}\n", "designs: {d: {kind: list, arms: {a: {set: {clip: {kind: is_cap_sg}}}}}}\n", "4:57"
    ),
    "a trick": ("base: {preset: grpo}\n", IN_LIST, "3:27"),
    "a path": ("base: {preset: grpo}\npath: {to: cispo}\n", "designs: {d: {kind: add_one}}\n", "3:12"),
    "a value of a grid": (
        "base: {preset: grpo}\n", "designs: {d: {kind: grid, over: {clip: [none, {kind: is_cap_sg}]}}}\n", "4:54"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_runner_cannot_train_has_its_place(read: Read, name: str) -> None:
    """That of the entry, or of the preset, which asks for it in the first of the arms."""
    base, designs, place = REFUSED[name]
    study = read(f"study: s\n{base}tricks: {{t: {{clip: {{kind: is_cap_sg, cap: 5.0}}}}}}\n{designs}")
    refused = draft_plan(study, FakeRunner(missing=(("is_cap_sg", "no is_cap_sg"),))).unsupported
    assert f"  {study.file}:{place}: no is_cap_sg (arms: " in refused


def test_declared_resources_that_the_runner_cannot_use_have_their_place(read: Read) -> None:
    """In the file; a study without one has none."""
    study = read("study: s\nbase: {preset: grpo}\nresources: {gpus: 4}\ndesigns: {d: {kind: list, arms: {a: {}}}}\n")
    assert (
        f"  {study.file}:3:19: A run uses at most 1 GPU" in draft_plan(study, FakeRunner(gpus=(0.0, 1.0))).unsupported
    )
    bare = resolve_study(study.spec)
    assert "\n  A run uses at most 1 GPU" in draft_plan(bare, FakeRunner(gpus=(0.0, 1.0))).unsupported


def test_a_preset_in_a_list_replaces_the_objective_and_nothing_else(read: Read) -> None:
    """Arms of several presets are trained on the same model and task for as many tokens."""
    content = (
        "study: s\nbase: {preset: grpo, set: {task: chain, schedule: {steps: 7, max_new_tokens: 32}}}\n"
        "designs: {d: {kind: list, arms: {lopti: {preset: lopti}, dapo: {preset: dapo%s}}}}\n"
    )
    rule = ", set: {length.rule: {kind: soft_overlong, soft_start: 24, hard_cap: 32}}"
    plan = make_plan(read(content % rule), FakeRunner())
    base, lopti, dapo = (arm.recipe for arm in plan.arms)
    assert lopti.schedule.update.kind == "lopti"
    assert (lopti.clip.high, dapo.clip.high, dapo.kl.kind) == (0.24, 0.28, "off")
    assert dapo.schedule == base.schedule
    assert lopti.task == dapo.task == base.task
    with pytest.raises(StudyFileError, match=r"study.yaml:3:64: designs.d.arms.dapo: length.rule.soft_start \(16384\)"):
        read(content % "")


def test_a_study_made_in_python_is_checked_too() -> None:
    """Without a file the problems have paths but no lines."""
    arms = {"a": ListedArm(set={"clip.hihg": 0.3})}
    study = Study(study="s", base=Base(preset="grpo"), designs={"d": Listed(kind="list", arms=arms)})
    with pytest.raises(StudyFileError, match=r"s: designs\.d\.arms\.a\.set\.clip\.hihg: no level of `clip`"):
        resolve_study(study)


def shuffled(value: Any, draw: Callable[..., Any]) -> Any:
    """Return the same value with the keys of all mappings in another order."""
    if isinstance(value, dict):
        keys = draw(st.permutations(list(value)))
        return {key: shuffled(value[key], draw) for key in keys}
    return value


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
def test_the_order_of_keys_does_not_change_the_runs(read: Read, text: str, data: st.DataObject) -> None:
    """A mapping is a mapping: shuffling the keys of a file whose tricks commute leaves the set of runs."""
    paired = data.draw(st.booleans())
    raw = {**yaml.safe_load(text.replace("kl: off", "kl: 'off'")), "seeds": {"n": 2, "paired": paired}}
    content = yaml.safe_dump(shuffled(raw, data.draw), sort_keys=False)
    runs = make_plan(read(content), FakeRunner()).runs
    expected = make_plan(read(yaml.safe_dump(raw, sort_keys=False)), FakeRunner()).runs
    assert {run.fingerprint for run in runs} == {run.fingerprint for run in expected}


PATHS = {
    "clip.high": [0.2, 0.28, 0.3], "aggregation": ["seq_mean", "token_batch", "const"], "scale": ["none", "group_std"],
    "schedule.epochs": [1, 2], "reward.map": ["pm1", "binary01"],
}  # fmt: skip


@given(
    st.dictionaries(
        st.sampled_from(["a", "b", "c", "d"]),
        st.fixed_dictionaries({}, optional={path: st.sampled_from(values) for path, values in PATHS.items()}),
        min_size=1,
    )
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50, deadline=None)
def test_dedup_for_any_tricks(read: Read, tricks: dict[str, dict[str, Any]]) -> None:
    """For any tricks there are as many arms as distinct recipes, and as many runs as arms times seeds."""
    designs = {
        "ladder": {"kind": "cumulative", "order": list(tricks)},
        "solo": {"kind": "add_one"},
        "knockout": {"kind": "leave_one_out"},
        "all": {"kind": "factorial"},
    }
    raw = {"study": "s", "base": {"preset": "dr_grpo"}, "tricks": tricks, "designs": designs}
    plan = make_plan(read(yaml.safe_dump(raw, sort_keys=False)), FakeRunner())
    assert len(plan.arms) == len({arm.recipe.model_dump_json() for arm in plan.arms})
    assert len(plan.runs) == len({run.fingerprint for run in plan.runs}) == 3 * len(plan.arms)
