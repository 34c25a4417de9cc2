"""The verifiers of files: any response gets a verdict, and answers are equal exactly if their numbers or texts are."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.contract import Evaluate
from paribus.recipe.recipe import JsonlTask, Recipe
from paribus_runners.native.examine import examine
from paribus_runners.rewards.verifiers import EXTRACT, LONGEST, normal, verify_answer
from paribus_runners.tasks import task_of
from support.chat_model import save_chat_model

ENORMOUS = ("1e9999999", "1e999999", "-1e-9999999", f"1e{'9' * 40}", "9" * 100_000, "0." + "0" * 100_000 + "1")


@pytest.mark.parametrize("answer", ENORMOUS)
@pytest.mark.parametrize("verifier", ["exact", "last_number", "boxed"])
def test_a_number_of_any_size_gets_a_verdict(verifier: str, answer: str) -> None:
    """It is never written out beyond what the response holds, equals itself, and equals no other number."""
    text = rf"so \boxed{{{answer}}}" if verifier == "boxed" else answer
    found = verify_answer(EXTRACT[verifier], answer, text)
    assert len(found.answer) <= max(LONGEST, len(answer))
    assert found.correct == (verifier != "last_number" or "e" not in answer)
    assert not verify_answer(EXTRACT[verifier], "1", text).correct or verifier == "last_number"


def test_problems_with_such_answers_are_planned_and_trained_on(tmp_path: Path) -> None:
    """A plan reads the rows, and a response is judged against them."""
    lines = "".join(json.dumps({"prompt": f"p{n}", "answer": answer}) + "\n" for n, answer in enumerate(ENORMOUS))
    (tmp_path / "lines.jsonl").write_text(lines)
    task = JsonlTask(train=str(tmp_path / "lines.jsonl"), heldout=str(tmp_path / "lines.jsonl"), verifier="boxed")
    model = {"name": str(save_chat_model(tmp_path / "model"))}
    shown = examine(Recipe.model_validate({"model": model, "task": task}), Evaluate())
    assert "unanswerable" not in dict(shown.warnings)
    problems = task_of(task).heldout(len(ENORMOUS))
    for problem in problems:
        assert task_of(task).verify(problem, rf"\boxed{{{problem.answer}}}", True).correct
        assert not task_of(task).verify(problem, r"\boxed{1e9999998}", True).correct


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("1,000", "1000"), ("$1,234,567.50", "1234567.5"), ("-1,000", "-1000"), ("$ 5", "5"), ("+5", "5"),
        ("1e3", "1000"), ("007", "7"), ("-0", "0"), ("0e9", "0"), (".50", "0.5"), ("5.", "5"), ("1.0e-3", "0.001"),
        (" 12 ", "12"),
    ],
)  # fmt: skip
def test_equal_numbers_have_one_spelling(one: str, two: str) -> None:
    """Separators of thousands, signs, zeros and exponents make no difference."""
    assert normal(one) == normal(two) == two


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("1,2", "12"), ("12,", "12"), (",12", "12"), ("1,0000", "10000"), ("1234,567", "1234567"), ("1,,000", "1000"),
        ("1.5,000", "1.5"), ("1_2", "12"), ("1,2", "1.2"),
        ("123456789012345678901234567890", "123456789012345678901234567891"),
        ("0.123456789012345678901234567890", "0.123456789012345678901234567891"), ("inf", "Infinity"), ("nan", "NaN"),
    ],
)  # fmt: skip
def test_different_answers_stay_different(one: str, two: str) -> None:
    """A comma separates groups of three digits and nothing else, and no digit is rounded away."""
    assert normal(one) != normal(two)
    assert not verify_answer(EXTRACT["boxed"], two, rf"\boxed{{{one}}}").correct


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("I have 12, thanks", "12"), ("1, 2, 3", "3"), ("the pair (1,2)", "2"), ("1,000,", "1000"),
        ("12,345,678.90", "12345678.9"), ("5-3", "-3"), ("1234,567", "567"), ("it is .5", "0.5"), ("1,0000", "0"),
    ],
)  # fmt: skip
def test_the_last_number_ends_where_its_groups_end(text: str, answer: str) -> None:
    """A comma behind a number, or between two, belongs to neither."""
    assert EXTRACT["last_number"](text) == answer


@given(st.decimals(allow_nan=False, allow_infinity=False, places=20), st.integers(-30, 30))
def test_numbers_are_equal_exactly_if_their_spelling_is(number: Decimal, places: int) -> None:
    """Whatever the exponent says, and with all digits."""
    shifted = f"{number:f}e{places}"
    assert Decimal(normal(shifted)).compare_total(Decimal(normal(normal(shifted)))) == 0
    assert Decimal(normal(shifted)) == Decimal(shifted)
    assert normal(f"{number:f}1e{places}") != normal(shifted)


@given(st.text() | st.text("0123456789.,-+$eE_ "))
def test_any_text_is_normalised_once(text: str) -> None:
    """It never raises, and what it returns stays as it is."""
    assert normal(normal(text)) == normal(text)
