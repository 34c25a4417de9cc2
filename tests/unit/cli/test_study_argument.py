"""The argument STUDY: one rule says whether it is a file or a name, and which file a name means."""

from __future__ import annotations

from pathlib import Path

import pytest

from paribus.cli.options import is_file, study_file, study_name
from paribus.errors import ParibusError

STUDY = """study: {name}
base: {{preset: grpo, set: {{model: tiny, task: search}}}}
designs: {{solo: {{kind: list, arms: {{a: {{}}}}}}}}
seeds: {{n: 1}}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty current folder."""
    monkeypatch.chdir(tmp_path)


def write(file: str, name: str) -> None:
    """Write a study file."""
    Path(file).write_text(STUDY.format(name=name))


def test_a_name_is_looked_for_among_the_study_files_here() -> None:
    """A file is taken as it is named; another name is answered with the nearest and with the files."""
    write("a.yaml", "one")
    write("b.yml", "two")
    assert study_file("one") == Path("a.yaml")
    assert study_file("two") == Path("b.yml")
    assert study_file("b.yml") == Path("b.yml")
    with pytest.raises(ParibusError, match=r"a study `ones`\. Did you mean `one`\? Study files here: a\.yaml, b\.yml"):
        study_file("ones")


def test_two_files_of_one_study_are_an_error_with_both() -> None:
    """Neither of them is taken silently."""
    write("a.yaml", "one")
    write("b.yaml", "one")
    with pytest.raises(ParibusError, match=r"a\.yaml and b\.yaml are both of a study `one`: name one of the files"):
        study_file("one")
    assert study_file("b.yaml") == Path("b.yaml")


def test_hidden_files_are_no_study_files() -> None:
    """A notebook that trains a study writes a hidden one, which is gone in a minute."""
    write("a.yaml", "one")
    write(".one-x1.yaml", "one")
    assert study_file("one") == Path("a.yaml")
    with pytest.raises(ParibusError, match=r"Did you mean `a\.yaml`\?"):
        study_name("b.yaml")
    Path("a.yaml").unlink()
    with pytest.raises(ParibusError, match="Study files here: none"):
        study_file("one")


def test_a_folder_with_the_name_of_the_study_hides_no_file() -> None:
    """Only a file of this name is a file."""
    write("a.yaml", "one")
    Path("one").mkdir()
    assert study_file("one") == Path("a.yaml")
    assert study_name("one") == "one"


def test_the_name_may_come_from_an_included_file_and_from_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """What counts is what a command would read."""
    monkeypatch.setenv("NUMBER", "7")
    write("base.txt", "of-base")
    Path("a.yaml").write_text("include: base.txt\n")
    Path("b.yaml").write_text("include: base.txt\nstudy: run-${NUMBER}\n")
    assert study_file("of-base") == Path("a.yaml")
    assert study_file("run-7") == Path("b.yaml")


def test_a_file_with_mistakes_is_named_where_no_other_has_the_name() -> None:
    """It may be the one that is looked for."""
    Path("a.yaml").write_text("study: one\n  base: [\n")
    with pytest.raises(ParibusError, match=r"cannot be read as YAML: a\.yaml"):
        study_file("one")


def test_one_rule_says_what_is_a_file() -> None:
    """By its ending, by a folder before it, or because there is one: for every command that takes STUDY."""
    write("a.yaml", "one")
    write("plain", "two")
    Path("sub").mkdir()
    write("sub/c", "three")
    assert [text for text in ("a.yaml", "b.yml", "plain", "sub/c", "one", "sub") if is_file(text)] == [
        "a.yaml",
        "b.yml",
        "plain",
        "sub/c",
    ]
    assert [study_name(text) for text in ("a.yaml", "plain", "sub/c", "one")] == ["one", "two", "three", "one"]
    assert study_file("plain") == Path("plain")
