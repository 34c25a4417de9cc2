"""How coefficients are laid out in a terminal."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from paribus.cli import coefficient_tables
from paribus.cli.coefficient_tables import ALIKE, MAX_ROWS, clean, rows
from paribus.recipe.recipe import Recipe
from paribus.study.coefficients import ResponseCoefficients, against
from paribus.study.responses import Response, ResponseBatch

Shown = Callable[..., str]


def pair(c: list[float], tokens: tuple[str, ...] = (), group: str = "a") -> tuple[Response, ResponseCoefficients]:
    """Return a response and its coefficients."""
    n = len(c)
    old, ones, zeros = (-0.5,) * n, (1.0,) * n, (0.0,) * n
    response = Response(
        group=group, score=1.0, correct=True, formatted=True, truncated=False, tokens=tokens, logp_old=old,
        logp_new=old, logp_sampler=old, logp_reference=old, entropy=ones, value=zeros,
    )  # fmt: skip
    found = ResponseCoefficients(
        state="in_loss", reward=1.0, weight=0.5, advantage=ones, token_weight=ones, correction=ones, ratio=ones,
        factor=ones, surrogate=tuple(c), kl=zeros, nll=zeros, total=tuple(c),
    )  # fmt: skip
    return response, found


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Shown:
    """A function that returns what is printed for pairs of a response and its coefficients."""

    def show(*pairs: tuple[Response, ResponseCoefficients], width: int = 80, compared: bool = True) -> str:
        out = Console(file=io.StringIO(), width=width, highlight=False, markup=False, emoji=False)
        monkeypatch.setattr(coefficient_tables, "console", lambda: out)
        found = [x for _, x in pairs]
        shares = against(found, found) if compared else []
        batch = ResponseBatch(tuple(r for r, _ in pairs), {"logp_reference": 0, "logp_new": len(pairs)})
        coefficient_tables.print_all(("one", "other"), Recipe(), batch, found, shares)
        assert isinstance(out.file, io.StringIO)
        return out.file.getvalue()

    return show


@given(st.lists(st.sampled_from([0.0, 0.1, 0.2, -0.3]) | st.floats(-5, 5), min_size=1, max_size=60))
def test_every_token_stands_in_one_line(c: list[float]) -> None:
    """Tokens are listed alone, at most MAX_ROWS + 1, or counted in a line that stands for several."""
    lines = rows(Recipe(), *pair(c), 5.0)
    alone = [int(line.at) for line in lines if line.at]
    several = [int(line.token.split()[0]) for line in lines if not line.at]
    assert len(alone) + sum(several) == len(c)
    assert alone == sorted(set(alone))
    assert len(alone) <= MAX_ROWS + 1
    assert all(n > 1 for n in several)


def test_the_listed_tokens_are_the_most_extreme_ones() -> None:
    """Of many different tokens those far from the median are listed, and a range stands for the others."""
    lines = rows(Recipe(), *pair([0.01 * i for i in range(40)] + [9.0]), 9.0)
    assert [line.at for line in lines if line.at] == ["1", "2", "3", "4", "38", "39", "40", "41"]
    assert lines[-1].token == "33 more"
    assert lines[-1].why == "c from +0.04 to +0.36"


def test_equal_tokens_are_one_line() -> None:
    """From ALIKE equal tokens on, one line stands for them."""
    assert [line.token for line in rows(Recipe(), *pair([0.5] * 20), 0.5)] == ["20 tokens"]
    assert len(rows(Recipe(), *pair([0.5] * (ALIKE - 1)), 0.5)) == ALIKE - 1


@pytest.mark.parametrize("width", [80, 100])
def test_lines_fit_the_terminal(shown: Shown, width: int) -> None:
    """Nothing is wider than the terminal, and no number is cut."""
    text = shown(
        pair([-1.23456e-5, 123456.0, 0.5], ("\x1b[31mred", "a" * 40, "\n")),
        pair([0.1] * 30, group="a group with a name that is rather long"),
        width=width,
    )
    assert max(map(len, text.splitlines())) <= width
    assert "-1.23e-05" in text
    assert "\x1b" not in text
    assert "\\x1b[31..." in text
    assert "- `logp_new` is absent: taken as logp_old" in text


def test_totals_and_comparison(shown: Shown) -> None:
    """The end says where the weight lies, and the ratio of each response's shares."""
    text = shown(pair([1.0, 1.0]), pair([1.0] * 6))
    assert "2 of 2 responses in the loss: sum |c| 8, sum c +8" in text
    line = next(line for line in text.splitlines() if line.startswith("A > 0"))
    assert line.split() == ["A", ">", "0", "25.0%", "(1)", "75.0%", "(1)", "100.0%", "(1)"]
    assert [x.split()[-1] for x in text.splitlines()[-2:]] == ["1", "1"]
    assert "against" not in shown(pair([1.0]), compared=False)


def test_control_characters_of_a_file_do_not_reach_the_terminal() -> None:
    """They are shown escaped, and long text is shortened."""
    assert clean("a\tb\x1b", 20) == "a\\tb\\x1b"
    assert clean("x" * 30, 10) == "xxxxxxx..."
