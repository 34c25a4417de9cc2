"""Files of responses, and the share of each response in the gradient."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paribus.errors import BatchFileError, Problem
from paribus.recipe.coefficients import (
    DEFAULTS,
    Response,
    ResponseBatch,
    ResponseCoefficients,
    caveats,
    read_responses,
    shares,
)
from paribus.recipe.presets import load_preset, preset_names

IN_TMP = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


WANT = [
    "/f.jsonl:1: needs `logp_old`, `tokens` or `length`: how many tokens has the response?",
    "/f.jsonl:1: correct: expects true or false, and `yes` is not: write true",
    "/f.jsonl:1: lengt: unknown key `lengt`. Did you mean `length`? Allowed: `group`, `correct`, `score`, "
    "`formatted`, `truncated`, `length`, `tokens`, `logp_old`, `logp_new`, `logp_sampler`, `logp_reference`, "
    "`entropy`, `value`.",
    "/f.jsonl:2: needs `correct` (true or false) or `score` (a number)",
    "/f.jsonl:2: needs `logp_old`, `tokens` or `length`: how many tokens has the response?",
    "/f.jsonl:4: not a JSON object: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    "/f.jsonl:5: not a JSON object: 'list' object has no attribute 'get'",
    "/f.jsonl:6: needs `correct` (true or false) or `score` (a number)",
    "/f.jsonl:6: needs `logp_old`, `tokens` or `length`: how many tokens has the response?",
    "/f.jsonl:7: logp_old.2: must be <= 0.0, and 0.5 is not",
    "/f.jsonl:7: logp_old.3: expects a finite number, and nan is not",
    "/f.jsonl:8: needs one entry for each of its 2 tokens: `logp_old` has 1",
]


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
    assert str(caught.value).replace(str(tmp_path), "").split("\n") == WANT
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(("content", "message"), [
    (b"", "the file is empty"), (b"\n \n", "the file is empty"), (b"\xff\xfe", "cannot be read as UTF-8"),
    (b'{"group": ' + b"[" * 200_000, "not a JSON object"), (b'{"a": ' + b"1" * 5000 + b"}", "not a JSON object"),
])  # fmt: skip
def test_a_file_that_is_no_batch_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """A file that cannot be read gives a message, never a traceback."""
    path = tmp_path / "f.jsonl"
    path.write_bytes(content)
    with pytest.raises(BatchFileError, match=message):
        read_responses(path)
    with pytest.raises(BatchFileError, match="cannot be read"):
        read_responses(tmp_path / "absent")
    with pytest.raises(BatchFileError, match="cannot be read"):
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
    """Verdict and length are enough; assumptions name the defaults that the recipe reads, no others."""
    batch = read(tmp_path, {"group": "a", "correct": True, "length": 2}, {"group": "a", "score": 0.5, "logp_old": [-1]})
    first, second = batch.responses
    assert (first.score, first.logp_new, first.tokens) == (1.0, first.logp_old, ())
    assert (second.correct, second.formatted, second.logp_reference) == (True, True, (-1.0,))
    assert batch.assumptions(load_preset("gspo").recipe) == [
        f"`score` is absent in 1 of 2 responses: taken as {DEFAULTS['score'][0]}",
        f"`correct` is absent in 1 of 2 responses: taken as {DEFAULTS['correct'][0]}",
        f"`logp_old` is absent in 1 of 2 responses: taken as {DEFAULTS['logp_old'][0]}",
        f"`logp_new` is absent: taken as {DEFAULTS['logp_new'][0]}",
    ]
    told = {line.split("`")[1] for line in batch.assumptions(load_preset("ppo").recipe)}
    assert {"value", "logp_reference"} <= told
    assert not {"logp_sampler", "entropy", "truncated"} & told


@given(st.floats(1e-6, 1e6))
def test_shares_do_not_depend_on_the_scale_of_the_loss(factor: float) -> None:
    """A loss times a constant gives the same shares, and their sizes add up to 1 where no response has both signs."""
    one = [record(1.0, 2.0), record(-3.0, advantage=-1.0), record(0.0)]
    assert shares(one) == pytest.approx([0.5, -0.5, 0.0])
    assert shares([record(*[factor * c for c in x.total]) for x in one]) == pytest.approx(shares(one))
    assert shares([record(0.0)]) == [0.0]


@pytest.mark.parametrize("preset", preset_names())
def test_caveats_are_about_what_the_recipe_has(preset: str) -> None:
    """A recipe is told what a batch cannot show of it, and nothing else."""
    recipe = load_preset(preset).recipe
    told = " ".join(caveats(recipe))
    assert ("critic" in told) == (recipe.auxiliary.value is not None)
    assert ("first time" in told) == (recipe.baseline.kind == "history")
    assert ("routing" in told) == (recipe.token_weight.kind == "router_shift")
    assert ("sampled again" in told) == recipe.filter.kind.startswith("refill")
