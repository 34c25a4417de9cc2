"""Files of responses, and where the weight of a batch lies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paribus.errors import BatchFileError, Problem
from paribus.recipe.presets import load_preset, preset_names
from paribus.study.coefficients import ResponseCoefficients, against, caveats, summary
from paribus.study.responses import DEFAULTS, Response, ResponseBatch, read_responses

IN_TMP = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def read(folder: Path, *lines: str | dict[str, Any]) -> ResponseBatch:
    """Write lines to a file and read it."""
    path = folder / "f.jsonl"
    path.write_text("\n".join(x if isinstance(x, str) else json.dumps(x) for x in lines))
    return read_responses(path)


def record(*c: float, advantage: float = 1.0, state: Any = "in_loss") -> ResponseCoefficients:
    """Return a response with these coefficients."""
    ones, zeros = (1.0,) * len(c), (0.0,) * len(c)
    return ResponseCoefficients(
        state=state, reward=advantage, weight=1.0, advantage=tuple(advantage for _ in c), token_weight=ones,
        correction=ones, ratio=ones, factor=ones, surrogate=c, kl=zeros, nll=zeros, total=c,
    )  # fmt: skip


def test_every_problem_of_a_file_is_listed_with_its_line(tmp_path: Path) -> None:
    """One reading finds all mistakes, each with file, line and remedy."""
    with pytest.raises(BatchFileError) as caught:
        read(
            tmp_path,
            '{"group": "a", "correct": "yes", "lengt": 3}',
            '{"group": "a"}',
            "",
            "{bad",
            "[1]",
            '{"group": "a", "group": "b"}',
            '{"group": "a", "correct": true, "logp_old": [-1, 0.5, NaN]}',
            '{"group": "a", "score": 1.0, "logp_old": [-1], "tokens": ["x", "y"], "length": 2}',
        )
    assert str(caught.value).replace(str(tmp_path), "").split("\n") == [
        "/f.jsonl:1: correct: expects true or false, and `yes` is not: write true",
        "/f.jsonl:1: lengt: unknown key `lengt`. Did you mean `length`? Allowed: `group`, `correct`, `score`, "
        "`formatted`, `truncated`, `length`, `tokens`, `logp_old`, `logp_new`, `logp_sampler`, `logp_reference`, "
        "`entropy`, `value`.",
        "/f.jsonl:2: needs `correct` (true or false) or `score` (a number)",
        "/f.jsonl:2: needs `logp_old`, `tokens` or `length`: how many tokens has the response?",
        "/f.jsonl:4:2: not valid JSON: Expecting property name enclosed in double quotes",
        "/f.jsonl:5: a response is a JSON object: {...}",
        "/f.jsonl:6: the key `group` appears twice: keep one",
        "/f.jsonl:7: logp_old.2: must be <= 0.0, and 0.5 is not",
        "/f.jsonl:7: logp_old.3: expects a finite number, and nan is not",
        "/f.jsonl:8: logp_old: has 1 entries, and `length` is 2: one entry a token",
    ]
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("content", "message"), [
    (b"", "the file is empty"), (b"\n \n", "the file is empty"), (b"\xff\xfe", "not UTF-8"),
    (b'{"group": ' + b"[" * 200_000, "nested too deeply"), (b'{"a": ' + b"1" * 5000 + b"}", "a number too long"),
    (b" " * 10_000_001, "at most 10 MB"),
])  # fmt: skip
def test_a_file_that_is_no_batch_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """What cannot be read is told, never a traceback."""
    path = tmp_path / "f.jsonl"
    path.write_bytes(content)
    with pytest.raises(BatchFileError, match=message):
        read_responses(path)
    with pytest.raises(BatchFileError, match="cannot be read"):
        read_responses(tmp_path / "absent")
    with pytest.raises(BatchFileError, match="not a regular file"):
        read_responses(tmp_path)


@IN_TMP
@given(st.one_of(
    st.binary(max_size=200),
    st.recursive(st.none() | st.booleans() | st.floats() | st.text(max_size=5), lambda x: st.lists(x, max_size=3))
    .flatmap(lambda v: st.sampled_from(["group", "correct", "score", "length", "logp_old", "tokens"])
             .map(lambda k: json.dumps({"group": "a", "correct": True, "length": 2, k: v}).encode())),
))  # fmt: skip
def test_any_content_is_read_or_refused(tmp_path: Path, content: bytes) -> None:
    """Reading ends with responses whose fields of tokens have one length, or with a listed problem."""
    path = tmp_path / "f.jsonl"
    path.write_bytes(content)
    problems: tuple[Problem, ...] = ()
    responses: tuple[Response, ...] = ()
    try:
        responses = read_responses(path).responses
    except BatchFileError as error:
        problems = error.problems
    assert bool(responses) != bool(problems)
    for x in responses:
        per_token = (x.logp_old, x.logp_new, x.logp_sampler, x.logp_reference, x.entropy, x.value)
        assert {len(v) for v in per_token} == {x.length}


def test_what_is_left_out_has_a_stated_default(tmp_path: Path) -> None:
    """Verdict and length are enough; every default that the recipe looks at is told, no other."""
    batch = read(tmp_path, {"group": "a", "correct": True, "length": 2}, {"group": "a", "score": 0.5, "logp_old": [-1]})
    first, second = batch.responses
    assert (first.score, first.logp_new, first.tokens) == (1.0, first.logp_old, ())
    assert (second.correct, second.formatted, second.logp_reference) == (True, True, (-1.0,))
    assert batch.assumptions(load_preset("gspo").recipe) == [
        f"`score` is absent in 1 of 2 responses: taken as {DEFAULTS['score']}",
        f"`correct` is absent in 1 of 2 responses: taken as {DEFAULTS['correct']}",
        f"`logp_old` is absent in 1 of 2 responses: taken as {DEFAULTS['logp_old']}",
        f"`logp_new` is absent: taken as {DEFAULTS['logp_new']}",
    ]
    told = {line.split("`")[1] for line in batch.assumptions(load_preset("ppo").recipe)}
    assert {"value", "logp_reference"} <= told
    assert not {"logp_sampler", "entropy", "truncated"} & told


@given(st.lists(st.tuples(
    st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=1, max_size=6),
    st.sampled_from([-1.0, 0.0, 1.0]), st.sampled_from(["in_loss", "filtered"]),
), max_size=6))  # fmt: skip
def test_shares_cover_every_token_once(rows: list[tuple[list[float], float, str]]) -> None:
    """The cells count each token in the loss once, and their shares add up to 1 unless every c is 0."""
    found = [record(*c, advantage=A, state=state) for c, A, state in rows]
    inside = [x for x in found if x.in_loss]
    total = summary(found)
    every = [cell for cells in total.cells.values() for cell in cells.values()]
    assert sum(cell.tokens for cell in every) == 2 * sum(x.length for x in inside)
    for columns in (("all",), ("shorter", "longer")):
        share = sum(cells[k].share for cells in total.cells.values() for k in columns)
        assert share == pytest.approx(1 if total.absolute else 0)
    for cells in total.cells.values():
        assert cells["all"].mean * cells["all"].tokens == pytest.approx(cells["all"].share * total.absolute)


def test_the_length_cells_show_the_length_bias() -> None:
    """Equal c a token in a short and a long response: equal means, and shares in proportion to length."""
    cells = summary([record(1.0, 1.0), record(*[1.0] * 6)]).cells["positive"]
    assert (cells["shorter"].mean, cells["longer"].mean) == (1, 1)
    assert (cells["shorter"].share, cells["longer"].share) == (0.25, 0.75)


@given(st.floats(1e-6, 1e6))
def test_a_comparison_is_free_of_scale(factor: float) -> None:
    """A loss times a constant has ratio 1 everywhere; 0 on the other side gives none."""
    one = [record(1.0, 2.0), record(-3.0, advantage=-1.0), record(0.0)]
    other = [record(*[factor * c for c in x.total]) for x in one]
    assert [x.ratio for x in against(one, other)] == [pytest.approx(1), pytest.approx(1), None]
    turned = [record(*[-c for c in x.total]) for x in one]
    assert against(one, turned)[0].ratio == pytest.approx(-1)


@pytest.mark.parametrize("preset", preset_names())
def test_caveats_are_about_what_the_recipe_has(preset: str) -> None:
    """A recipe is told what a batch cannot show of it, and nothing else."""
    recipe = load_preset(preset).recipe
    told = " ".join(caveats(recipe))
    assert ("critic" in told) == (recipe.auxiliary.value is not None)
    assert ("first time" in told) == (recipe.baseline.kind == "history")
    assert ("routing" in told) == (recipe.token_weight.kind == "router_shift")
    assert ("sampled again" in told) == recipe.filter.kind.startswith("refill")
