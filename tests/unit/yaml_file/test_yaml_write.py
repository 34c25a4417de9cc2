"""Values that are written as YAML are read as the same values."""

from __future__ import annotations

from pathlib import Path

import pytest

from paribus.cli.next import write
from paribus.study.load import read_study
from paribus.yaml_file.document import parse_document, plain
from paribus.yaml_file.write import stays_literal, whole_text, yaml_text

VALUES = {
    "question": "costs ${MONEY} or ${NOTHING:-x}: it's 'fine' #1",
    "long": "word ${MONEY} " * 40,
    "lines": "one ${MONEY}\n\ntwo",
    "list": ("${MONEY}", "off", "1e-6", "040", None, True, 1e-6, 3),
    "inner": {"key": {"${KEY}": "${MONEY}"}},
}


@pytest.mark.parametrize("width", [120, 1_000_000])
def test_text_with_variables_stays_text(width: int) -> None:
    """Whatever the environment holds; keys are never replaced."""
    text = yaml_text(VALUES, width)
    assert stays_literal(text)
    for environment in (None, {}, {"MONEY": "5", "KEY": "k"}):
        assert plain(parse_document(text, "f", environment).checked()) == VALUES


def test_a_follow_up_keeps_text_with_variables(tmp_path: Path) -> None:
    """As `paribus next` writes it."""
    write(tmp_path / "next.yaml", {"study": "x", "question": "costs ${NOTHING}"}, ("why",))
    assert plain(read_study(tmp_path / "next.yaml").checked())["question"] == "costs ${NOTHING}"


def test_a_file_that_says_all_is_taken_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its comments; one with variables, or that was edited or deleted meanwhile, is written out."""
    file = tmp_path / "study.yaml"
    file.write_text("a: 1 # why\n")
    root = read_study(file).root
    assert whole_text(file, root) == "a: 1 # why\n"
    file.write_text("a: [\n")
    assert whole_text(file, root) == "a: 1\n"
    file.unlink()
    assert whole_text(file, root) == "a: 1\n"
    monkeypatch.setenv("NUMBER", "7")
    file.write_text("a: ${NUMBER}\n")
    assert whole_text(file, read_study(file).root) == "a: 7\n"
