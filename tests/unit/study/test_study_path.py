"""The path from the base to another preset: its tricks, and what they add up to."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paribus.cli.plan import print_plan
from paribus.errors import StudyFileError
from paribus.home import data_root
from paribus.recipe.presets import load_preset, preset_names
from paribus.recipe.recipe import Recipe
from paribus.recipe.resolve import Step, resolve, resolve_base
from paribus.study.expand import make_plan
from paribus.study.load import LoadedStudy, load_study, resolve_study
from paribus.study.path import follow
from paribus.study.spec import Base, Design, Listed, ListedArm, PresetPath, Study
from paribus.testing.fake_runner import FakeRunner

Read = Callable[[str], LoadedStudy]
HEAD = """\
study: s
base: {preset: grpo, set: {model: tiny, schedule: {minibatches: 8, epochs: 2, max_new_tokens: 37}}}
"""
LENGTHS = "set: {length.rule: {soft_start: 30, hard_cap: 37}}"
DAPO = HEAD + f"path: {{to: dapo, {LENGTHS}, groups: {{clip_higher: [clip]}}}}\n"
FACTORS = ["reward", "length", "filter", "clip_higher", "aggregation", "kl"]


def lines(read: Read, content: str) -> list[str]:
    """Return the messages of a refused study, without the folder of the file."""
    with pytest.raises(StudyFileError) as caught:
        read(content)
    folder = f"{Path(caught.value.file).parent}/"
    return [line.removeprefix(folder) for line in str(caught.value).splitlines()]


def test_full_is_the_preset_on_the_bases_model_and_task(read: Read) -> None:
    """The recipe from which `leave_one_out` starts is that of a `list` arm with the preset, and so the same runs."""
    listed = f"list: {{kind: list, arms: {{dapo: {{preset: dapo, {LENGTHS}}}}}}}"
    study = read(f"{DAPO}designs: {{without: {{kind: leave_one_out}}, {listed}}}\n")
    recipes = {(row.design, row.label): recipe for row, recipe in study.rows}
    full, dapo = recipes["without", "full"], load_preset("dapo").recipe
    assert full == recipes["list", "dapo"]
    assert (full.model, full.task, full.optimizer) == (study.base.model, study.base.task, study.base.optimizer)
    for part in ("loss", "reward", "filter", "baseline", "scale", "ratio", "clip", "aggregation", "kl", "auxiliary"):
        assert getattr(full, part) == getattr(dapo, part)
    plan = make_plan(study, FakeRunner())
    arms = {(row.design, row.label): row.arm for row in plan.rows}
    assert arms["without", "full"] == arms["list", "dapo"]


def test_a_path_makes_one_trick_for_each_factor_that_differs(read: Read) -> None:
    """In the preset's order, under the factor's name or that of its group; a ladder without order takes them all."""
    study = read(DAPO + "tricks: {more: {scale: none}}\ndesigns: {d: {kind: cumulative}}\n")
    assert [*study.spec.tricks] == [*FACTORS, "more"]
    assert study.spec.tricks["clip_higher"] == {"clip.high": 0.28}
    labels = [row.label for row, _ in study.rows]
    assert labels == ["base", *(f"+ {name}" for name in [*FACTORS, "more"])]
    assert study.path is not None
    assert (study.path.start, study.path.to) == ("grpo", "dapo")
    assert study.path.changes["clip_higher"] == {"clip.high": (0.2, 0.28)}
    for (_, before), (row, after) in pairwise(study.rows[:-1]):
        changed = {part for part in Recipe.model_fields if getattr(before, part) != getattr(after, part)}
        assert changed == {row.label.removeprefix("+ ").replace("clip_higher", "clip")}


def test_what_the_base_has_already_is_no_trick(read: Read) -> None:
    """What differs is counted from the base, with its own patch."""
    content = (
        DAPO.replace("model: tiny", "model: tiny, kl: off, clip.low: 0.1") + "designs: {d: {kind: leave_one_out}}\n"
    )
    study = read(content)
    assert [*study.spec.tricks] == FACTORS[:-1]
    assert study.spec.tricks["clip_higher"] == {"clip.low": 0.2, "clip.high": 0.28}


def test_the_plan_shows_what_comes_from_the_path(read: Read, capsys: pytest.CaptureFixture[str]) -> None:
    """Each trick with what it sets, and the rules about tricks."""
    rest = "needs: {length: [clip_higher]}\nconflicts: [[kl, filter]]\ndesigns: {d: {kind: add_one}}\n"
    study = read(DAPO + rest)
    print_plan(study.spec, make_plan(study, FakeRunner()), frozenset(), {}, of_path=study.path)
    shown = capsys.readouterr().out
    for line in (
        "path from grpo to dapo: 6 tricks",
        "  clip_higher  clip.high: 0.2 -> 0.28",
        "  aggregation  aggregation: seq_mean -> token_batch",
        "length needs clip_higher",
        "at most one of kl, filter",
    ):
        assert line in shown


@settings(max_examples=80, deadline=None)
@given(start=st.sampled_from(preset_names()), to=st.sampled_from(preset_names()), backwards=st.booleans())
def test_base_and_all_tricks_are_the_preset(start: str, to: str, backwards: bool) -> None:
    """Of any two presets and in any order; where parts of one are no recipe, as one trick."""
    base = Base(preset=start, set={"model": "tiny", "schedule.max_new_tokens": 20480})
    designs: dict[str, Design] = {"d": Listed(kind="list", arms={"target": ListedArm(preset=to)})}
    study = Study(study="s", base=base, designs=designs)
    before, after = (recipe for _, recipe in resolve_study(study).rows)
    differing = tuple(part for part in Recipe.model_fields if getattr(before, part) != getattr(after, part))
    found = follow(study.model_copy(update={"path": PresetPath(to=to)}))
    if not differing:
        assert [fault.message for fault in found.faults] == [
            f"the base has the objective of `{to}` already: nothing differs"
        ]
        return
    if found.faults:
        assert all("alone is no recipe" in fault.message for fault in found.faults)
        found = follow(study.model_copy(update={"path": PresetPath(to=to, groups={"all": differing})}))
    else:
        assert {*found.tricks} == {*differing}
    names = [*found.tricks][:: -1 if backwards else 1]
    steps = [Step(place=("tricks", name), patch=found.tricks[name]) for name in names]
    assert resolve(resolve_base(start, base.set).values, steps, ("path",)).recipe == after


def test_a_critic_goes_with_its_loss(read: Read) -> None:
    """What is no recipe alone is refused with the group, or the need, that makes it one."""
    content = HEAD + "path: {to: ppo}\ndesigns: {d: {kind: leave_one_out}}\n"
    critic, kl = lines(read, content)
    assert critic.startswith("study.yaml:3:12: path.to: `baseline` alone is no recipe (`baseline: critic_gae` and")
    assert critic.endswith("make one trick of them: `path: {groups: {NAME: [baseline, scale, auxiliary]}}`")
    assert kl.endswith("it needs the trick that has baseline, scale, auxiliary: `needs: {kl: [NAME]}`")
    right = "path: {to: ppo, groups: {critic: [baseline, scale, auxiliary]}}\nneeds: {kl: [critic]}\n"
    study = read(content.replace("path: {to: ppo}\n", right))
    assert [row.label for row, _ in study.rows] == ["full", "- critic - kl", "- aggregation", "- kl"]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("path: dapo\n", "study.yaml:3:7: path: expects a mapping, and `dapo` is not: write {to: dapo}"),
        ("path: {to: dap}\n", "study.yaml:3:12: path.to: there is no preset `dap`. Did you mean `dapo`?"),
        ("path: {to: grpo}\n", "study.yaml:3:12: path.to: the base has the objective of `grpo` already"),
        ("path: {from: rloo, to: dapo}\n",
         "study.yaml:3:14: path.from: a path begins at the base, whose preset is `grpo`: leave `from` out, or write"),
        ("path: {too: dapo}\n", "study.yaml:3:8: path.too: unknown key `too`. Did you mean `to`? Allowed: `from`,"),
        ("path: {to: dapo, set: {clip.hihg: 0.3}}\n", "study.yaml:3:24: path.set.clip.hihg: "),
        ("path: {to: dapo}\n", "study.yaml:3:12: path.to: length.rule.soft_start (16384) is never passed"),
        (f"path: {{to: dapo, {LENGTHS}, groups: {{all: [clip, scale]}}}}\n",
         "study.yaml:3:91: path.groups.all.2: `scale` does not differ. What differs: reward, length, filter, clip,"),
        (f"path: {{to: dapo, {LENGTHS}, groups: {{a: [clip, kl], b: [kl]}}}}\n",
         "study.yaml:3:98: path.groups.b.1: `kl` is in a group already"),
        (f"path: {{to: dapo, {LENGTHS}, groups: {{kl: [clip]}}}}\n",
         "study.yaml:3:79: path.groups.kl: `kl` is a factor that differs, too"),
        (f"path: {{to: dapo, {LENGTHS}}}\ntricks: {{clip: {{clip.low: 0.1}}}}\n",
         "study.yaml:4:10: tricks.clip: the path to `dapo` makes a trick of this name"),
    ],
)  # fmt: skip
def test_a_wrong_path_is_refused(read: Read, content: str, line: str) -> None:
    """With its place, and without what only follows from it, such as tricks that are not there."""
    shown = lines(read, HEAD + content + "needs: {length: [clip]}\ndesigns: {d: {kind: add_one, tricks: [filter]}}\n")
    assert any(message.startswith(line) for message in shown), shown
    assert not any("there is no trick" in message for message in shown)


def test_circles_are_reported_beside_a_wrong_path(read: Read) -> None:
    """All faults that are sure come at once."""
    content = HEAD + "path: {to: dap}\nneeds: {clip: [kl], kl: [clip]}\ndesigns: {d: {kind: add_one}}\n"
    assert [message.split(": ")[1] for message in lines(read, content)] == ["path.to", "needs.clip"]


def test_the_shipped_path_reaches_dapo() -> None:
    """Its full recipe has every level of DAPO."""
    study = load_study(data_root("ablations") / "studies" / "grpo_to_dapo_cpu.yaml")
    full = next(recipe for row, recipe in study.rows if row.label == "full")
    dapo = load_preset("dapo").recipe
    for part in ("reward", "filter", "baseline", "scale", "ratio", "clip", "aggregation", "kl", "auxiliary"):
        assert getattr(full, part) == getattr(dapo, part)
