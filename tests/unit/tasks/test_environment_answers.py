"""What a function of the user may answer to a turn, and what ends the response instead of the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from paribus.recipe.turns import FunctionTurns
from paribus_runners.tasks.base import Problem
from paribus_runners.tasks.environment import Answer, Asked, Environment

SOURCE = """
def speaks(completions):
    return ["and then?"]

def ends(completions):
    return [None]

def half(completions):
    return [b"caf\\xe9".decode(errors="surrogateescape")]

def number(completions):
    return [3]

def two(completions):
    return ["a", "b"]
"""


@pytest.mark.parametrize(
    ("name", "answer"),
    [
        ("speaks", Answer("and then?")),
        ("ends", Answer(None)),
        ("half", Answer(None, failed=True)),
        ("number", Answer(None, failed=True)),
        ("two", Answer(None, failed=True)),
    ],
)
def test_whatever_a_function_answers_is_an_outcome(tmp_path: Path, name: str, answer: Answer) -> None:
    """A text, or the end of the response: also for what no tokenizer reads, which would end the run."""
    (tmp_path / "mine_turns.py").write_text(SOURCE)
    level = FunctionTurns(path=f"mine_turns.{name}")
    with Environment(level, tmp_path) as environment:
        assert environment.answers([Asked(Problem("p", "prompt", "answer", {}), "text", 1)]) == [answer]
