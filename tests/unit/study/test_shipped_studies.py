"""Studies that ship: each parses, expands, and differs rung by rung in exactly what it names."""

from __future__ import annotations

import pytest

from paribus.home import data_root
from paribus.recipe.patch import read_patch
from paribus.recipe.presets import preset_names
from paribus.study.expand import make_plan
from paribus.study.load import load_study
from paribus.study.plan import Plan, Row
from paribus.study.spec import Study
from paribus.testing.fake_runner import FakeRunner

STUDIES = {path.stem: path for path in (data_root("ablations") / "studies").glob("*.yaml")}
NOTES = {
    "algorithms_cpu": {"seeds", "cost", "identical_rows"},
    "clip_family_cpu": {"seeds", "cost"},
    "first": {"seeds"},
    "smoke": {"seeds"},
    "quickstart": {"seeds", "confounded", "cost"},
    "quickstart_full": {"seeds", "confounded", "cost"},
    "exploration_cpu": {"seeds", "confounded", "cost"},
    "dapo_table1": {"seeds", "confounded", "cost", "same_responses"},
    "dapo_qwen2.5_1.5b_gsm8k": {"seeds", "confounded", "cost"},
    "dapo_qwen2.5_7b_math": {"seeds", "confounded", "cost"},
    "grpo_to_dapo_cpu": {"seeds", "confounded", "cost", "rescaled"},
    "tis_cpu": {"seeds", "cost"},
    "three_trainers_cpu": {"seeds"},
    "trl_cpu": {"seeds"},
}
COUNTS = {
    "algorithms_cpu": (27, 54),
    "clip_family_cpu": (8, 24),
    "first": (3, 6),
    "smoke": (2, 4),
    "quickstart": (13, 39),
    "quickstart_full": (16, 48),
    "exploration_cpu": (13, 39),
    "dapo_table1": (6, 6),
    "dapo_qwen2.5_1.5b_gsm8k": (5, 15),
    "dapo_qwen2.5_7b_math": (5, 15),
    "grpo_to_dapo_cpu": (14, 42),
    "tis_cpu": (4, 12),
    "three_trainers_cpu": (3, 9),
    "trl_cpu": (3, 9),
}


FINGERPRINTS = {
    "algorithms_cpu": ("", "5d18e34fa3cb1d8a274f77ab7c4779e301966d613d11942baecda77665c39896"),
    "dapo_table1": ("fb1d8736dd95", "82ff17f4dd681bb363c5f2642406369c37d0218c084b74725c81ad20a59fed1b"),
    "quickstart": ("242a32deac7e", "cb6b30159c03b620eb4080a428439b5281446d1bce92247216dad301c61a9b44"),
}
"""Start of the plan's fingerprint, and fingerprint of the last run, as version 0.1 gave them.

The study of all algorithms grows with them: its runs are found again, its plan is another.
"""


def plan_of(name: str) -> tuple[Study, Plan]:
    """Return a shipped study and its plan."""
    study = load_study(STUDIES[name])
    if study.spec.runner.own:  # options that the fake runner does not have
        study = load_study(STUDIES[name], ("runner=native",))
    itself = study.base.rollout.engine == "torch"
    return study.spec, make_plan(study, FakeRunner(samples_with_training_code=itself))


@pytest.mark.parametrize("name", sorted(FINGERPRINTS))
def test_fingerprints_are_those_of_version_0_1(name: str) -> None:
    """Runs that were recorded before recipes had `rollout` and `compute`, and runners options, are found again."""
    _, plan = plan_of(name)
    start, last = FINGERPRINTS[name]
    assert plan.fingerprint.startswith(start)
    assert plan.runs[-1].fingerprint == last


def test_all_shipped_studies_are_checked_here() -> None:
    """A new study needs an entry with its number of arms and runs."""
    assert set(STUDIES) == set(COUNTS)


@pytest.mark.parametrize("name", sorted(COUNTS))
def test_counts_and_notes(name: str) -> None:
    """Arms and runs are as many as the study's comment says; only the published ladder has a trick that hardly acts.

    No plan has more than five notes: more are not read.
    """
    _, plan = plan_of(name)
    assert (len(plan.arms), len(plan.runs)) == COUNTS[name]
    assert {note.code for note in plan.warnings} == NOTES[name]
    assert len(plan.warnings) <= 5


@pytest.mark.parametrize("name", sorted(set(COUNTS) - {"algorithms_cpu", "clip_family_cpu"}))  # without tricks
def test_each_rung_differs_from_its_parent_in_exactly_its_trick(name: str) -> None:
    """What a row changes is what the trick sets that it adds or leaves out, and nothing else."""
    study, plan = plan_of(name)
    by_label = {(row.design, row.label): row for row in plan.rows}
    for row in plan.rows:
        if row.parent is None:
            continue
        trick = difference_in_tricks(row, by_label[row.design, row.parent])
        settings, faults = read_patch(study.tricks[trick])
        assert faults == []
        named = {".".join(setting.path).removesuffix(".kind") for setting in settings}
        assert row.changes, row.label
        for path in row.changes:
            assert any(path == one or path.startswith(f"{one}.") for one in named), (row.label, path)


def difference_in_tricks(row: Row, parent: Row) -> str:
    """Return the one trick in which two rows differ, and check that the label names it, in a factorial as the last."""
    (trick,) = set(row.tricks) ^ set(parent.tricks)
    above = f"{parent.label} " if row.kind == "factorial" and parent.tricks else ""
    assert row.label == f"{above}{'+' if trick in row.tricks else '-'} {trick}"
    return trick


def test_the_clip_family_differs_in_its_clip_alone_and_every_clip_acts() -> None:
    """Eight rules on rollouts four steps old: no row changes anything else, none is an alias of another."""
    _, plan = plan_of("clip_family_cpu")
    assert all(path.split(".")[0] == "clip" for row in plan.rows for path in row.changes)
    assert plan.arm(plan.base).recipe.schedule.staleness == 4
    assert not {note.code for note in plan.warnings} & {"inert", "rescaled", "identical_rows"}


def test_the_quickstart_is_the_recipe_that_was_tried() -> None:
    """Sixteen updates a rollout batch, +-1 rewards, no KL; soft punishment over the last seven tokens."""
    _, plan = plan_of("quickstart")
    base = plan.arm(plan.base).recipe
    s = base.schedule
    assert (s.steps, s.prompts_per_step, s.group_size, s.updates_per_rollout, s.max_new_tokens) == (40, 16, 8, 16, 37)
    assert (base.kl.kind, base.reward.map, base.optimizer.learning_rate, base.optimizer.max_grad_norm) == (
        "off", "pm1", 2.5e-4, 1.0,
    )  # fmt: skip
    labels = [arm.label for arm in plan.arms]
    assert {"+ no_std", "+ dr_grpo", "- clip_higher"} <= set(labels)


def test_the_published_ladder_is_in_the_published_order() -> None:
    """DAPO, arXiv 2503.14476, Table 1: soft punishment is added while the overlong filter stays on."""
    _, plan = plan_of("dapo_table1")
    assert [row.label for row in plan.rows] == [
        "base", "+ overlong_filtering", "+ clip_higher", "+ soft_overlong", "+ token_level", "+ dynamic_sampling",
    ]  # fmt: skip
    last = plan.arm(plan.rows[-1].arm).recipe
    assert last.length.truncated == "mask_loss"
    assert last.schedule.updates_per_rollout == 16
    assert (last.clip.kind, last.aggregation.kind, last.filter.kind) == ("ppo_min", "token_batch", "refill")


def test_no_shipped_study_is_in_another_folder() -> None:
    """All YAML files below ablations are presets, studies, templates of `paribus init` or published tables."""
    root = data_root("ablations")
    folders = {root / n for n in ("recipes", "studies", "templates", "published")}
    beside = root / "templates" / "command_script"  # the mapping of a template's script
    assert {path.parent for path in root.rglob("*.y*ml")} == {*folders, beside}


def test_every_preset_is_in_the_study_of_all_algorithms() -> None:
    """A new preset needs an arm there: each published algorithm is trained before it is offered."""
    study, _ = plan_of("algorithms_cpu")
    arms = [arm for design in study.designs.values() for arm in design.arms.values()]
    assert {study.base.preset, *(arm.preset for arm in arms)} == set(preset_names())
