"""A study from Python objects is the study of its file; what is wrong with it is said as `paribus plan` says it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import paribus
from paribus.cli import paribus as command_line
from paribus.errors import ParibusError, StudyFileError
from paribus.home import data_root
from paribus.yaml_file.document import plain, read_document

from .conftest import contents

SHIPPED = sorted((data_root("ablations") / "studies").glob("*.yaml"))
PLANNED = [file for file in SHIPPED if not file.name.startswith(("dapo_", "tis_", "trl_"))]

SECTIONS = {
    "question": "Is <b>0.28</b> better? Ünïcode: off",
    "base": {"preset": "grpo", "set": {"model": "tiny", "task": "search", "kl": "off", "reward.map": "pm1"}},
    "tricks": {"higher": {"clip.high": 0.28}, "rate": {"optimizer.learning_rate": 1e-6}},
    "designs": {"solo": {"kind": "add_one"}},
    "seeds": {"n": 2},
}
YAML = """\
study: mine
question: "Is <b>0.28</b> better? Ünïcode: off"
base:
  preset: grpo
  set: {model: tiny, task: search, kl: off, reward.map: pm1}
tricks:
  higher: {clip.high: 0.28}
  rate: {optimizer.learning_rate: 1e-6}
designs: {solo: {kind: add_one}}
seeds: {n: 2}
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty current folder without a home folder."""
    monkeypatch.chdir(tmp_path)


def test_python_objects_and_yaml_are_the_same_study(tmp_path):
    """Equal studies, equal plans: text such as `off` and small numbers survive, and so do numpy's numbers."""
    (tmp_path / "mine.yaml").write_text(YAML, encoding="utf-8")
    loaded = paribus.load("mine.yaml")
    made = paribus.Study("mine", **SECTIONS)
    assert made == loaded
    assert hash(made) == hash(loaded)
    assert made.plan().fingerprint == loaded.plan().fingerprint
    other = {
        **SECTIONS,
        "seeds": {"n": np.int64(2)},
        "tricks": {**SECTIONS["tricks"], "higher": {"clip.high": np.float64(0.28)}},
    }
    assert paribus.Study("mine", **other) == loaded
    assert paribus.Study("mine", **{**SECTIONS, "seeds": {"n": 3}}) != loaded
    assert made != "mine"


@pytest.mark.parametrize("file", PLANNED, ids=lambda f: f.stem)
def test_each_shipped_study_can_be_written_in_python(file, monkeypatch):
    """Its values as Python objects have the plan of the file; programs beside it are found in the current folder."""
    monkeypatch.chdir(Path(file).parent)
    values = plain(read_document(file).root)
    made = paribus.Study(**values)
    assert made == paribus.load(file)
    assert made.plan().fingerprint == paribus.load(file).plan().fingerprint


def test_a_saved_study_is_loaded_again(tmp_path):
    """The file says the same, and no file is overwritten."""
    made = paribus.Study("mine", **SECTIONS)
    assert paribus.load(made.save(tmp_path / "saved.yaml")) == made
    assert made.to_yaml() == (tmp_path / "saved.yaml").read_text(encoding="utf-8")
    with pytest.raises(ParibusError, match="exists and is not overwritten"):
        made.save(tmp_path / "saved.yaml")
    with pytest.raises(ParibusError, match="cannot be written"):
        made.save(tmp_path / "no" / "saved.yaml")


def test_text_with_a_variable_stays_as_it_is_written_in_python(monkeypatch):
    """In the object, in its text and in the file: Python has variables of its own."""
    monkeypatch.setenv("WHO", "me")
    made = paribus.Study("mine", **{**SECTIONS, "question": "costs ${WHO} or ${NOBODY:-x}: it's $5"})
    assert made.question == "costs ${WHO} or ${NOBODY:-x}: it's $5"
    assert paribus.load(made.save("saved.yaml")) == made
    with pytest.raises(TypeError, match=r"a text with `\$\{` and control characters"):
        paribus.Study("mine", **{**SECTIONS, "question": "${WHO}\a"})


def test_a_study_of_several_parts_is_saved_as_one_file(tmp_path, monkeypatch):
    """Its included files and variables are not beside the copy."""
    monkeypatch.setenv("SEEDS", "2")
    (tmp_path / "base.yaml").write_text(YAML.replace("n: 2", 'n: "${SEEDS}"'), encoding="utf-8")
    (tmp_path / "mine.yaml").write_text("include: base.yaml\nstudy: other\nmargin: 0.1\n")
    study = paribus.load("mine.yaml")
    (tmp_path / "sub").mkdir()
    saved = study.save("sub/u2.yaml")
    monkeypatch.delenv("SEEDS")
    assert paribus.load(saved) == study
    assert study.to_yaml() == saved.read_text(encoding="utf-8")


def test_sources_beside_the_study_belong_to_it(tmp_path, monkeypatch):
    """A reward function of the current folder is in the plan of a study from Python, as of a file there."""
    (tmp_path / "bonus.py").write_text("def short(completions, **_):\n    return [0.0 for _ in completions]\n")
    base = {
        "preset": "grpo",
        "set": {"model": "tiny", "task": "search", "reward.functions": {"short": {"path": "bonus.short"}}},
    }
    designs = {"one": {"kind": "list", "arms": {"-": {}}}}
    made = paribus.Study("rewarded", base=base, designs=designs)
    assert paribus.load(made.save("rewarded.yaml")).plan().fingerprint == made.plan().fingerprint
    before = made.plan().fingerprint
    (tmp_path / "bonus.py").write_text("def short(completions, **_):\n    return [1.0 for _ in completions]\n")
    assert paribus.load("rewarded.yaml").plan().fingerprint != before


def test_the_plan_is_that_of_the_command(tmp_path):
    """Fingerprint, rows, runs and warnings of `paribus plan --json`."""
    import json

    from click.testing import CliRunner

    (tmp_path / "mine.yaml").write_text(YAML, encoding="utf-8")
    shown = json.loads(CliRunner().invoke(command_line, ["plan", "mine.yaml", "--json"]).output)
    plan = paribus.load("mine.yaml").plan()
    assert plan.fingerprint == shown["fingerprint"]
    assert plan.runs()["run"].tolist() == [run["fingerprint"] for run in shown["runs"]]
    assert plan.rows()["row"].tolist() == [row["label"] for row in shown["rows"]]
    assert plan.warnings == tuple(f"[{note['code']}] {note['message']}" for note in shown["notes"])
    assert plan.arms().set_index("arm")["clip.high"].to_dict() == {"base": 0.2, "+ higher": 0.28, "+ rate": 0.2}
    assert "3 arms, 6 runs, 0 of them recorded" in repr(plan)


def test_recorded_runs_are_marked_and_the_home_folder_stays(home):
    """The plan of the same runs marks those with a result, from a copy of the store."""
    before = contents(home)
    results = paribus.results("made-up", home=home)
    from paribus.notebook.study import StudyPlan, _recorded

    plan = StudyPlan(results._data.plan, _recorded(home, results._data.plan))
    runs = results.runs().set_index("run")["outcome"]
    recorded = plan.runs().set_index("run")["recorded"]
    assert recorded.to_dict() == (runs == "finished").to_dict()
    assert contents(home) == before


def test_the_page_of_a_study_is_its_plan_and_escaped(monkeypatch):
    """Rows with what they change; a study that cannot be planned shows why."""
    page = paribus.Study("mine", **SECTIONS)._repr_html_()
    assert "<table>" in page
    assert "clip.high: 0.2 → 0.28" in page
    assert "Is &lt;b&gt;0.28&lt;/b&gt; better" in page
    task = {"kind": "jsonl", "train": "none.jsonl", "heldout": "none.jsonl"}
    lacks = {**SECTIONS, "base": {"preset": "grpo", "set": {"model": "tiny", "task": task}}}
    made = paribus.Study("lacks", **lacks)
    assert "none.jsonl" in made._repr_html_()
    with pytest.raises(ParibusError, match=r"cannot be run yet[\s\S]*none\.jsonl"):
        made.plan()
    with pytest.raises(ParibusError, match=r"cannot be run yet[\s\S]*none\.jsonl"):
        made.run()


def test_a_wrong_file_is_answered_with_its_place(tmp_path):
    """The message is that of `paribus plan`: file, line, column, and what to do; all at once."""
    (tmp_path / "wrong.yaml").write_text(YAML.replace("clip.high", "clip.hihg").replace("grpo", "grop"))
    with pytest.raises(StudyFileError) as caught:
        paribus.load("wrong.yaml")
    lines = str(caught.value).splitlines()
    assert lines[0].startswith("wrong.yaml:4:11: base.preset: there is no preset `grop`. Did you mean `grpo`?")
    assert lines[1].startswith("wrong.yaml:7:12: tricks.higher.clip.hihg:")
    from click.testing import CliRunner

    said = CliRunner().invoke(command_line, ["plan", "wrong.yaml"])
    assert str(said.exception) == str(caught.value)


def test_a_wrong_study_in_python_is_answered_without_lines():
    """There is no file, so the place is the path of the value."""
    with pytest.raises(StudyFileError) as caught:
        paribus.Study("mine", **{**SECTIONS, "tricks": {"higher": {"clip.hihg": 0.28}}})
    assert str(caught.value).startswith("Study('mine'): tricks.higher.clip.hihg: ")
    with pytest.raises(StudyFileError, match="is not a name"):
        paribus.Study("no/name", **SECTIONS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"base": {"preset": object()}}, r"base\.preset: a study holds .*, not object"),
        ({"tricks": {1: {}}}, "tricks: keys are text, and 1 is int"),
        ({"seeds": {"n": {1, 2}}}, r"seeds\.n: .*, not set"),
        ({"question": b"bytes"}, "question: .*, not bytes"),
    ],
)
def test_a_value_that_no_file_can_hold_is_a_type_error(change, says):
    """The message names its place."""
    with pytest.raises(TypeError, match=says):
        paribus.Study("mine", **{**SECTIONS, **change})


def test_a_value_that_contains_itself_is_a_type_error():
    """Also through a list; what stands twice side by side is fine."""
    base = dict(SECTIONS["base"])
    base["set"] = base
    with pytest.raises(TypeError, match=r"base\.set: a mapping or list that contains itself"):
        paribus.Study("mine", **{**SECTIONS, "base": base})
    order = []
    order.append(order)
    with pytest.raises(TypeError, match=r"designs\.order\.1: "):
        paribus.Study("mine", **{**SECTIONS, "designs": {"order": order}})
    patch = {"clip.high": 0.28}
    same = {**SECTIONS, "tricks": {"a": {"kl": "off", **patch}, "b": patch, "c": patch}}
    assert len(paribus.Study("mine", **same).to_yaml().split("clip.high")) == 4


def test_a_path_that_is_none_is_a_type_error():
    """`load` takes text and paths; an empty path and a missing file say so."""
    with pytest.raises(TypeError, match="not NoneType"):
        paribus.load(None)
    with pytest.raises(TypeError, match="not int"):
        paribus.Study(3, **SECTIONS)
    with pytest.raises(ParibusError, match="path of the study file is empty"):
        paribus.load("")
    with pytest.raises(ParibusError, match=r"missing\.yaml: cannot be read"):
        paribus.load("missing.yaml")
    with pytest.raises(ParibusError, match="this is a folder"):
        paribus.load(".")


def test_a_file_that_was_changed_is_not_run(tmp_path):
    """`run` trains what was loaded, or says that it cannot."""
    (tmp_path / "mine.yaml").write_text(YAML, encoding="utf-8")
    study = paribus.load("mine.yaml")
    (tmp_path / "mine.yaml").write_text(YAML.replace("0.28", "0.3"), encoding="utf-8")
    with pytest.raises(ParibusError, match="changed after it was loaded"):
        study.run()


@pytest.mark.parametrize("changed", ["file", "variable"])
def test_a_part_that_was_changed_is_noticed(tmp_path, monkeypatch, changed):
    """The text of the file itself is the same."""
    monkeypatch.setenv("SEEDS", "2")
    (tmp_path / "base.yaml").write_text(YAML.replace("n: 2", 'n: "${SEEDS}"'), encoding="utf-8")
    (tmp_path / "mine.yaml").write_text("include: base.yaml\nstudy: other\n")
    study = paribus.load("mine.yaml")
    if changed == "variable":
        monkeypatch.setenv("SEEDS", "3")
    else:
        (tmp_path / "base.yaml").write_text(YAML.replace("0.28", "0.3"), encoding="utf-8")
    with pytest.raises(ParibusError, match="a file or variable that it takes values from, was changed after"):
        study.run()
