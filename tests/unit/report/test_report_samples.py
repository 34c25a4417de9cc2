"""Samples of each arm: chosen without looking, bounded, with every inkless character made visible."""

from __future__ import annotations

import json
import re
import sys
import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.report.build import build_report
from paribus.report.inputs import ArmSample, StudyData
from paribus.report.render.html import to_html
from paribus.report.render.latex import latex_tables
from paribus.report.render.text import to_csv, to_markdown, to_markdown_appendix
from paribus.report.samples import choose, last_samples
from paribus.report.visible import HEAD, TAIL, shown
from paribus.run_folder.samples import Sample
from support.studies import Shape, made_up_study

HOSTILE = "<script>alert(1)</script> \u202eevil\u202c a\u200bb `x` $1_%\\ | 中文 \x00 [^1]: =1+1\n\nend"


def sample(problem: str, response: str = "42", *, step: int = 8, number: int = 0) -> Sample:
    """A response."""
    prompt = f"What is {problem}?"
    return Sample(step=step, set="heldout", problem=problem, prompt=prompt, response=response, number=number)


def with_samples(data: StudyData, responses: dict[str, str]) -> StudyData:
    """A study with these responses, by label of the arm, to one problem."""
    keys = {a.label: a.key for a in data.plan.arms}
    chosen = tuple(ArmSample(arm=keys[arm], seed=0, sample=sample("p", text)) for arm, text in responses.items())
    return replace(data, samples=(chosen,))


@pytest.fixture(scope="module")
def plain() -> StudyData:
    """A study of a base and a trick."""
    return made_up_study(Shape(designs=("add_one",), tricks=("clip_higher",), steps=4, problems=20))


def test_no_inkless_character_is_left() -> None:
    """Every character of Unicode that has no ink of its own, format and zero-width ones included, shows as a code."""
    inkless = [chr(c) for c in range(sys.maxunicode + 1) if unicodedata.category(chr(c)) in {"Cf", "Cc", "Zl", "Zp"}]
    inkless += [*"\u034f\u115f\u3164\ufe0f\u2800\u00a0\u3000\U000e0100"]
    assert len(inkless) > 200
    for one in inkless:
        text = shown(f"a{one}b")
        assert one not in text, hex(ord(one))
        assert one in "\n\r\t" or f"U+{ord(one):04X}" in text


@given(st.text(max_size=2000))
def test_any_text_fits(text: str) -> None:
    """Whatever a model writes is one line of bounded length, in quotation marks, without a backquote."""
    found = shown(text)
    assert not re.search(r"[\n\r\t`]", found)
    assert len(found) <= 10 * (HEAD + TAIL) + 60
    assert found.startswith("“")
    assert found.endswith("”")


def test_both_ends_of_a_long_text_are_shown() -> None:
    """The answer stands at the end, so a long response loses its middle, and how much is said."""
    found = shown("A" * 1000 + "the answer is 7")
    assert f"{1015 - HEAD - TAIL} characters" in found
    assert found.endswith("the answer is 7”")


def test_the_choice_looks_at_no_response() -> None:
    """Other responses, in another order, give the same problems; of the problems that the most runs kept."""
    names = [f"p{k}" for k in range(12)]
    first = {"a": (0, [sample(n, "right") for n in names]), "b": (1, [sample(n) for n in names[3:]])}
    other = {arm: (seed, [replace(s, response="wrong") for s in reversed(all_)]) for arm, (seed, all_) in first.items()}
    chosen = [[(e.arm, e.seed, e.sample.problem) for e in each] for each in choose(first)]
    assert chosen == [[(e.arm, e.seed, e.sample.problem) for e in each] for each in choose(other)]
    assert len(chosen) == 2
    assert all(problem in names[3:] for each in chosen for _, _, problem in each)


def test_an_arm_with_other_problems_empties_nothing() -> None:
    """The problems that the most arms kept are chosen, without the arm that kept others; alone, an arm has its own."""
    found = {"a": (0, [sample("p"), sample("q")]), "b": (0, [sample("p"), sample("q")]), "c": (0, [sample("z")])}
    assert [{e.arm for e in each} for each in choose(found)] == [{"a", "b"}] * 2
    assert {e.sample.problem for each in choose(found) for e in each} == {"p", "q"}
    assert choose({"a": found["a"], "c": found["c"]}) == ()
    assert [[e.arm for e in each] for each in choose({"c": found["c"]})] == [["c"]]


def test_the_last_evaluation_is_read(tmp_path: Path) -> None:
    """Responses of training, of other sets and of earlier evaluations are left out; a damaged line is no error."""
    path = tmp_path / "samples.jsonl"
    lines = [
        {"step": 8, "set": "train", "problem": "t", "response": "no"},
        {"step": 4, "problem": "p", "response": "early"},
        {"step": 8, "problem": "p", "response": "late"},
        {"step": 8, "set": "aime", "problem": "q", "response": "other"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n{broken\n\xff\n", encoding="latin-1")
    assert [s.response for s in last_samples(path, "heldout")] == ["late"]
    assert last_samples(tmp_path / "none.jsonl", "heldout") == ()


def test_hostile_responses_stay_texts(plain: StudyData) -> None:
    """Markup, directions and formulas of a response reach no format as such."""
    calm = build_report(with_samples(plain, {"base": "calm", "clip_higher": "calm"}))
    found = build_report(with_samples(plain, {"base": HOSTILE, "clip_higher": "calm"}))
    tags = re.compile(r"<(?!/?span)[a-zA-Z/!][^>]*>")  # intervals in brackets have spans
    assert len(tags.findall(to_html(found, None))) == len(tags.findall(to_html(calm, None)))
    texts = [to_html(found, None), to_markdown_appendix(found), to_csv(found), latex_tables(found)["samples.1"]]
    assert not any(re.search("[\u202e\u202c\u200b\x00]", text) for text in texts)
    assert all("U+202E" in text for text in texts)
    assert "U+4E2D" in texts[3]
    assert to_markdown(found) == to_markdown(calm)


def test_studies_without_samples_have_no_table(plain: StudyData) -> None:
    """A report of runs that kept no text is as it was."""
    assert not [t for t in build_report(plain).tables if t.key.startswith("samples")]
