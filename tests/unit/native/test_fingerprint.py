"""Run identity: source is hashed by its meaning, and earlier runs with the same numbers are found again."""

from __future__ import annotations

from pathlib import Path

import pytest

from paribus.contract import input_hash
from paribus.errors import ParibusError
from paribus.recipe.recipe import ChainTask, JsonlTask, Recipe, Verifier, fingerprint_of
from paribus_runners.native import fingerprint
from paribus_runners.native.fingerprint import meaning

SOURCE = '''"""A module."""

import math

RATE: float = 0.5
"""What a constant is for."""


class Rule:
    """A rule."""

    limit: int = 3

    def scaled(self, x: float, *, by: float = 2.0) -> str:
        """Return x."""
        # a comment
        values = [v ** 2 for v in (x, by) if v > 0] or [0.0]
        return f"{sum(values):.3f} {RATE!r}" "!" if (n := self.limit) else b"" and str(n)


def last(xs: list[int]) -> int:
    """Return the last."""
    match xs:
        case [*_, x]:
            return x
    try:
        return xs[-1]
    except (IndexError, KeyError):
        return math.inf if None is ... else 0
'''


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"""A module."""', '"""Another text."""'),
        ('"""Return x."""', '"""Return it."""'),
        ('        """Return x."""\n', ""),
        ('"""What a constant is for."""\n', ""),
        ("# a comment", "# another one"),
        ("xs[-1]", "(xs[-1])"),
        ("RATE: float = 0.5", "RATE: float = 0.50"),
        ("\n\n\n", "\n\n"),
    ],
)
def test_words_and_formatting_keep_the_hash(before: str, after: str) -> None:
    """Docstrings, comments, white space and parentheses are no part of the meaning."""
    assert before in SOURCE
    assert meaning(SOURCE.replace(before, after)) == meaning(SOURCE)


@pytest.mark.parametrize(
    ("before", "after"),
    [("0.5", "0.6"), ("v > 0", "v >= 0"), ("2.0", "2"), ('"!"', '"?"'), ("limit: int = 3", "limit: int = 4"),
     ("[-1]", "[1]"), ('b""', '""'), (".3f", ".4f"), ("KeyError", "ValueError"), ("else 0", "else False")],
)  # fmt: skip
def test_code_moves_the_hash(before: str, after: str) -> None:
    """A changed constant, operator, type or text that is used gives another hash."""
    assert before in SOURCE
    assert meaning(SOURCE.replace(before, after)) != meaning(SOURCE)


def test_the_hash_is_the_same_in_all_versions_of_python() -> None:
    """The tree is written down without what Python versions differ in."""
    assert fingerprint_of(meaning(SOURCE)) == "9a08d63620140d79819b74334f52476d68f9fbac866303b1cb16283bf33a256a"


@pytest.mark.parametrize("part", sorted(fingerprint.same_numbers()))
def test_the_table_of_same_numbers_is_current(part: str) -> None:
    """A row that no longer fits the source would give all runs a new identity by accident."""
    assert fingerprint.today(part) == fingerprint.same_numbers()[part]["today"], (
        f"the source of `{part}` has changed. If you have shown that all numbers stay the same to the bit (two runs, "
        "before and after, with equal metrics.jsonl apart from times), run `python -m paribus_runners.native."
        "fingerprint --keep`. If numbers change, delete the row from same_numbers.json: runs get a new identity."
    )


def test_runs_of_earlier_releases_are_found_again() -> None:
    """Code and model have the hashes of runs since norms are part of products, data those of all earlier ones."""
    recipe = Recipe()
    assert fingerprint.code(recipe) == "48fef55221f7a9a5b9757eae0ad19d12870137b934a25b0ff58640a0b078db6e"
    assert fingerprint.data(recipe) == "12df8d2b8ccb5695ff60f60d7142ebd3cb8bb704550001c7e3b658d654d7f025"
    assert fingerprint.model(recipe) == "1f1acaff898563b674221045fb7ebf7a2edc2e71c05d52eaa581059fe20704f1"
    other = recipe.model_copy(update={"task": ChainTask()})
    assert fingerprint.data(other) == "36ae86611f13f26f5a14cecfad8a502e568efbb8a83dd823b5b153e3201c2cba"
    assert fingerprint.model(other) == "3b8f997cf1ce63794aba6e0c20e05f83afe13190331a946306975822b13b4b18"


@pytest.mark.parametrize("verifier", ["exact", "last_number", "boxed", "math_verify"])
def test_files_whose_verdicts_moved_have_another_identity(tmp_path: Path, verifier: Verifier) -> None:
    """Runs on files that `math_verify` judges are found again; for the others, answers are compared in another way."""
    file = tmp_path / "lines.jsonl"
    file.write_text('{"prompt": "a", "answer": "1"}\n')
    task = JsonlTask(train=str(file), heldout=str(file), verifier=verifier)
    recorded = "76e4325a0b6f940f5427b792ae00c6b4bb2a553ccffd9830d090409a01801019"
    before = fingerprint_of([recorded, verifier, [input_hash(file)] * 2])
    assert (fingerprint.problems(task) == before) == (verifier == "math_verify")


def test_a_row_that_does_not_fit_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changed source without a row has a hash of its own."""
    row = {"today": "0" * 64, "recorded": "1" * 64}
    monkeypatch.setattr(fingerprint, "same_numbers", lambda: {"code": row})
    assert fingerprint.recorded.__wrapped__("code") == fingerprint.today("code")
    monkeypatch.setattr(fingerprint, "same_numbers", lambda: {"code": row | {"today": fingerprint.today("code")}})
    assert fingerprint.recorded.__wrapped__("code") == "1" * 64
    monkeypatch.setattr(fingerprint, "same_numbers", dict)
    assert fingerprint.recorded.__wrapped__("code") == fingerprint.today("code")


def test_a_model_folder_is_what_it_shows(tmp_path: Path) -> None:
    """Marks of a download count for nothing; a folder that is not there is no model of the hub."""
    recipe = Recipe.model_validate({"model": {"name": str(tmp_path)}})
    (tmp_path / "config.json").write_text("{}")
    before = fingerprint.model(recipe)
    (tmp_path / ".cache").mkdir()
    (tmp_path / ".cache" / "download.metadata").write_text("today")
    assert fingerprint.model(recipe) == before
    (tmp_path / "more.json").write_text("{}")
    assert fingerprint.model(recipe) != before
    for name in ("./mymodle", "/mymodle", "~/mymodle"):
        with pytest.raises(ParibusError, match="mymodle`: there is no such folder"):
            fingerprint.model(Recipe.model_validate({"model": {"name": name}}))
    assert fingerprint.model(Recipe.model_validate({"model": {"name": "org/model"}})) == "org/model@main"


def test_a_model_folder_that_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plan says which folder, and ends without a traceback."""
    recipe = Recipe.model_validate({"model": {"name": str(tmp_path)}})

    def refused(path: Path, _: str) -> list[Path]:
        raise PermissionError(13, "Permission denied", str(path / "secret"))

    monkeypatch.setattr(Path, "rglob", refused)
    with pytest.raises(ParibusError, match=r"cannot read .*secret: Permission denied"):
        fingerprint.model(recipe)
