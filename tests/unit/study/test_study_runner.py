"""The runner of a study: its options, settings passed through, what it supports, and what it needs."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from math import ceil
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict

from paribus.contract import Evaluate, Hashes, Job, OptionProblem, Options, RunnerBase
from paribus.errors import ParibusError, StudyFileError, UnreadableInput, UnsupportedRecipe
from paribus.recipe.recipe import Recipe
from paribus.store.control import PLAN
from paribus.study.expand import draft_file, draft_plan, make_plan, matches
from paribus.study.load import LoadedStudy
from paribus.study.schema import study_schema
from paribus.testing.fake_runner import FakeRunner

Read = Callable[[str], LoadedStudy]
REST = "base: {preset: grpo}\ndesigns: {d: {kind: list, arms: {sapo: {preset: sapo}}}}\n"


class Own(BaseModel):
    """Options of the runner below."""

    model_config = ConfigDict(extra="forbid")

    workers: int
    args: list[str] = []


class Trl(BaseModel):
    """Settings that it passes through."""

    model_config = ConfigDict(extra="forbid")

    beta: float = 0.0


class Choosy(FakeRunner):
    """A runner with options."""

    options_model, passthrough_model = Own, Trl


def test_options_and_passed_settings_stand_in_plan_and_fingerprints(read: Read) -> None:
    """`runner: {kind: ...}` holds own options, the section named after it what is passed on; both make new runs."""
    written = read(f"study: s\nrunner: {{kind: choosy, workers: 2}}\nchoosy: {{beta: 0.1}}\n{REST}")
    plan = make_plan(written, Choosy(name="choosy"))
    assert (plan.runner, plan.options) == ("choosy", Options(own={"workers": 2}, passthrough={"beta": 0.1}))
    other = read(f"study: s\nrunner: {{kind: choosy, workers: 3}}\nchoosy: {{beta: 0.1}}\n{REST}")
    again = make_plan(other, Choosy(name="choosy"))
    assert [a.key for a in plan.arms] == [a.key for a in again.arms]
    assert not {r.fingerprint for r in plan.runs} & {r.fingerprint for r in again.runs}
    assert plan.fingerprint != again.fingerprint
    assert PLAN.validate_json(PLAN.dump_json(plan)) == plan


def test_each_wrong_option_has_its_place(read: Read) -> None:
    """The runner says what is wrong, the file where: own options and passed settings, all at once."""
    written = read(f"study: s\nrunner: {{kind: choosy, wrkers: 2}}\nchoosy: {{beta: much}}\n{REST}")
    with pytest.raises(StudyFileError) as caught:
        make_plan(written, Choosy(name="choosy"))
    first, second, third = str(caught.value).splitlines()
    assert first.split("study.yaml:")[1].startswith("2:9: runner: `workers` is missing")
    assert "study.yaml:2:24: runner.wrkers: unknown key `wrkers`. Did you mean `workers`?" in second
    assert "study.yaml:3:16: choosy.beta:" in third


def test_a_runner_without_options_takes_none(read: Read) -> None:
    """The default of a runner refuses what it would ignore."""
    with pytest.raises(StudyFileError, match=r"2:22: runner\.beta: the runner `fake` has no options: remove `beta`"):
        make_plan(read(f"study: s\nrunner: {{kind: fake, beta: 1}}\n{REST}"), FakeRunner())
    with pytest.raises(StudyFileError, match=r"3:8: fake\.beta: the runner `fake` passes nothing through"):
        make_plan(read(f"study: s\nrunner: fake\nfake: {{beta: 1}}\n{REST}"), FakeRunner())


def test_a_section_for_a_runner_that_is_not_used_is_an_error(read: Read) -> None:
    """Its settings would silently do nothing; so would those of a runner that is not installed."""
    with pytest.raises(StudyFileError, match="3:1: native: this section is for the runner `native`, which this study"):
        read(f"study: s\nrunner: fake\nnative: {{beta: 1}}\n{REST}")
    with pytest.raises(StudyFileError, match="3:1: openrlhf: unknown key `openrlhf`"):
        read(f"study: s\nrunner: fake\nopenrlhf: {{beta: 1}}\n{REST}")
    with pytest.raises(StudyFileError, match="fake: expects a mapping, and 1 is not"):
        read(f"study: s\nrunner: fake\nfake: 1\n{REST}")
    with pytest.raises(StudyFileError, match="2:9: runner: options of a runner are text"):
        read(f"study: s\nrunner: {{kind: fake, beta: .inf}}\n{REST}")


def test_a_runner_that_is_not_installed_has_its_place(tmp_path: Path) -> None:
    """The message stands where the name is written."""
    file = tmp_path / "study.yaml"
    file.write_text(f"study: s\nrunner: nativ\n{REST}")
    with pytest.raises(StudyFileError, match=r"study.yaml:2:9: runner: there is no runner `nativ`. Did you mean"):
        draft_file(file)


def test_what_is_approximate_is_a_warning_and_stays_on_the_arm(read: Read) -> None:
    """The plan says it once for all arms, `allow` silences it, and the arm keeps it for the report."""
    runner = FakeRunner(approximate=(("soft_gate", "the gate is clipped at 10"),))
    plan = make_plan(read(f"study: s\n{REST}"), runner)
    (warning,) = [w for w in plan.warnings if w.code == "approximate"]
    assert warning.message == "`sapo`: `clip.kind` is trained approximately: the gate is clipped at 10"
    assert [[s.reason for s in arm.approximate] for arm in plan.arms] == [[], ["the gate is clipped at 10"]]
    silent = make_plan(read(f"study: s\nallow: [approximate]\n{REST}"), runner)
    assert "approximate" not in {w.code for w in silent.warnings}
    assert PLAN.validate_json(PLAN.dump_json(plan)) == plan


@pytest.mark.parametrize(
    ("gpus", "bounds", "reason"),
    [
        (1, (2.0, None), "A run needs at least 2 GPUs, and `resources.gpus` is 1."),
        (0, (0.01, None), "A run needs a GPU, or a part of one, and `resources.gpus` is 0."),
        (4, (0.0, 1.0), "A run uses at most 1 GPU, and `resources.gpus` is 4."),
    ],
)
def test_gpus_outside_of_the_runners_bounds_are_refused(
    read: Read, gpus: int, bounds: tuple[float, float | None], reason: str
) -> None:
    """With everything else that the runner cannot do, in one message. Without a declaration it gets what it needs."""
    study = read(f"study: s\nresources: {{gpus: {gpus}}}\n{REST}")
    runner = FakeRunner(gpus=bounds, missing=(("soft_gate", "no soft_gate"),))
    with pytest.raises(UnsupportedRecipe) as caught:
        make_plan(study, runner)
    assert f"{reason} (arms: `base`, `sapo`)" in str(caught.value)
    assert "no soft_gate (arms: `sapo`)" in str(caught.value)
    assert make_plan(read(f"study: s\n{REST}"), FakeRunner(gpus=bounds)).resources.gpus == (ceil(bounds[0]) or None)


@pytest.mark.parametrize(
    ("resources", "processes", "reason"),
    [
        ("{gpus: 2, nodes: 2}", 1, "It trains on one node: remove `nodes` from `resources`."),
        ("{nodes: 2}", None, "On several nodes it trains in one process a GPU: declare `gpus` in `resources`, too."),
        ("{gpus: 0, nodes: 2}", 3, "Its 3 processes cannot be dealt out equally to 2 nodes."),
        ("{gpus: 2, nodes: 2}", None, ""),
        ("{gpus: 0, nodes: 2}", 4, ""),
        ("{gpus: 2}", 1, ""),
    ],
)
def test_nodes_need_a_runner_that_trains_on_them(
    read: Read, resources: str, processes: int | None, reason: str
) -> None:
    """No process is left out, and no node stays empty."""
    study = read(f"study: s\nresources: {resources}\n{REST}")
    runner = FakeRunner(processes=processes)
    if reason:
        with pytest.raises(UnsupportedRecipe, match=re.escape(f"{reason} (arms: `base`, `sapo`)")):
            make_plan(study, runner)
    else:
        plan = make_plan(study, runner)
        assert PLAN.validate_json(PLAN.dump_json(plan)).resources == study.spec.resources


def test_a_plan_keeps_hashes_and_knows_whether_they_still_hold(read: Read) -> None:
    """New code is seen in plans that keep hashes, and in those of version 0.1, which do not."""
    plan = make_plan(read(f"study: s\n{REST}"), FakeRunner())
    base = plan.arms[0]
    assert base.hashes == FakeRunner().hashes(base.recipe, Options())
    changed = FakeRunner(version="2").hashes(base.recipe, Options())
    old = replace(plan, arms=tuple(replace(arm, hashes=None) for arm in plan.arms))
    for known in (plan, old):
        assert matches(known, known.arms[0], base.hashes)
        assert not matches(known, known.arms[0], changed)


class Unreadable(FakeRunner):
    """A runner whose data are not there."""

    def hashes(self, recipe: Recipe, options: Options) -> Hashes:
        """Fail."""
        raise ParibusError("`task.train`: cannot read train.jsonl")


def test_a_plan_is_shown_before_its_data_are_there(read: Read) -> None:
    """It cannot be run, and each reason is given once."""
    draft = draft_plan(read(f"study: s\n{REST}"), Unreadable())
    assert (len(draft.plan.arms), draft.unread) == (2, ("`task.train`: cannot read train.jsonl",))
    with pytest.raises(UnreadableInput, match=r"cannot be run yet:\n  `task.train`: cannot read train.jsonl"):
        draft.checked()


class Small(RunnerBase):
    """A runner with nothing but a name."""

    name = "small"

    def run(self, folder: Path) -> None:
        """Train nothing."""


def test_a_folder_that_is_named_like_a_tiny_model_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in `tiny/` beside a study change no run: else every `paribus run` would train all of them again."""
    monkeypatch.chdir(tmp_path)
    before = Small().hashes(Recipe(), Options())
    (tmp_path / "tiny").mkdir()
    (tmp_path / "tiny" / "notes.txt").write_text("a")
    assert Small().hashes(Recipe(), Options()) == before


def test_the_defaults_of_a_runner(tmp_path: Path) -> None:
    """Its file, the task's files and the model's files are hashed; nothing else is declared."""
    train, heldout, model = tmp_path / "train.jsonl", tmp_path / "heldout.jsonl", tmp_path / "model"
    model.mkdir()
    for file in (train, heldout, model / "weights"):
        file.write_text("a")
    task = {"kind": "jsonl", "train": str(train), "heldout": str(heldout)}
    recipe = Recipe.model_validate({"model": {"name": str(model)}, "task": task})
    before = Small().hashes(recipe, Options())
    for file, part in ((heldout, "data"), (model / "weights", "model")):
        file.write_text("b")
        after = Small().hashes(recipe, Options())
        assert {name for name in ("code", "data", "model") if getattr(before, name) != getattr(after, name)} == {part}
        before = after
    heldout.unlink()
    with pytest.raises(ParibusError, match="cannot read"):
        Small().hashes(recipe, Options())
    assert Small().support(recipe, Options()) == ()
    assert Small().check_options(Options()) == ()
    assert Small().check_options(Options(own={"a": 1})) == (
        OptionProblem(path=("a",), message="the runner `small` has no options: remove `a`", at_key=True),
    )
    with pytest.raises(ParibusError, match="does not compute"):
        Small().coefficients(recipe, ())


def test_a_job_of_version_0_1_still_reads() -> None:
    """It has neither options nor the sections of a recipe that came later."""
    job = Job(
        run="f" * 64, study="s", arm="base", runner="native", seed=0, token=1, recipe=Recipe(), evaluate=Evaluate(),
        cache="cache",
    )  # fmt: skip
    old = job.model_dump(mode="json")
    del old["options"]
    assert Job.model_validate(old, strict=False) == job


def test_editors_know_the_section_of_each_installed_runner() -> None:
    """The schema takes a runner's name or a mapping, and a section named after it."""
    schema = study_schema()
    assert schema["properties"]["native"]["type"] == "object"
    assert {"type": "string"} in schema["$defs"]["RunnerChoice"]["anyOf"]
