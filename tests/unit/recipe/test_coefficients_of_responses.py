"""Files of responses, and the share of each response in the gradient."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paribus.errors import BatchFileError, Problem
from paribus.recipe.coefficients import Response, ResponseCoefficients, notes, read_responses, shares
from paribus.recipe.presets import load_preset, preset_names

IN_TMP = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


WANT = [
    "/f.jsonl:1: correct: expects true or false, and `yes` is not: write true",
    "/f.jsonl:1: lengt: unknown key `lengt`. Did you mean `length`? Allowed: `group`, `correct`, `score`, "
    "`truncated`, `formatted`, `tokens`, `length`, `logp_old`, `logp_new`, `logp_sampler`, `logp_reference`, "
    "`entropy`, `value`.",
    "/f.jsonl:1: length: is missing, and so are `logp_old` and `tokens`",
    "/f.jsonl:2: correct: is missing, and so is `score`",
    "/f.jsonl:2: length: is missing, and so are `logp_old` and `tokens`",
    "/f.jsonl:4: Invalid JSON: key must be a string at line 1 column 2",
    "/f.jsonl:5: expects a mapping, and a list is not",
    "/f.jsonl:6: correct: is missing, and so is `score`",
    "/f.jsonl:6: length: is missing, and so are `logp_old` and `tokens`",
    "/f.jsonl:7: logp_old.2: must be <= 0.0, and 0.5 is not",
    "/f.jsonl:7: logp_old.3: expects a finite number, and nan is not",
    "/f.jsonl:8: needs one entry for each of its 2 tokens: `logp_old` has 1",
]


def read(folder: Path, *lines: str | dict[str, Any]) -> list[Response]:
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
    (b'{"group": ' + b"[" * 200_000, "Invalid JSON"), (b'{"a": ' + b"1" * 5000 + b"}", "Invalid JSON"),
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
    responses: list[Response] = []
    try:
        responses = read_responses(path)
    except BatchFileError as error:
        problems = error.problems
    assert bool(responses) != bool(problems)
    for x in responses:
        per_token = (x.logp_old, x.logp_new, x.logp_sampler, x.logp_reference, x.entropy, x.value)
        assert {len(v) for v in per_token} == {x.length}


def test_what_is_left_out_has_a_stated_default(tmp_path: Path) -> None:
    """Verdict and length are enough; notes name the defaults that the recipe reads, no others."""
    batch = read(tmp_path, {"group": "a", "correct": True, "length": 2}, {"group": "a", "score": 0.5, "logp_old": [-1]})
    first, second = batch
    assert (first.score, first.logp_new, first.tokens) == (1.0, first.logp_old, ())
    assert (second.correct, second.formatted, second.logp_reference) == (True, True, (-1.0,))
    assert (second.entropy, second.value) == ((1.0,), (0.0,))
    assert notes(load_preset("gspo").recipe, batch) == [
        "`score` is absent in 1 of 2 responses: taken as 1 where correct, else -1",
        "`logp_old` is absent in 1 of 2 responses: taken as log 0.5",
        "`logp_new` is absent in 2 of 2 responses: taken as `logp_old`, so every ratio is 1",
    ]
    named = {line.split("`")[1] for line in notes(load_preset("ppo").recipe, batch) if "`" in line}
    assert {"value", "logp_reference"} <= named
    assert not {"logp_sampler", "entropy", "truncated"} & named


@given(st.floats(1e-6, 1e6))
def test_shares_do_not_depend_on_the_scale_of_the_loss(factor: float) -> None:
    """A loss times a constant gives the same shares, and their sizes add up to 1 where no response has both signs."""
    one = [record(1.0, 2.0), record(-3.0, advantage=-1.0), record(0.0)]
    assert shares(one) == pytest.approx([0.5, -0.5, 0.0])
    assert shares([record(*[factor * c for c in x.total]) for x in one]) == pytest.approx(shares(one))
    assert shares([record(0.0)]) == [0.0]


@pytest.mark.parametrize("preset", preset_names())
def test_notes_are_about_what_the_recipe_has(preset: str) -> None:
    """The notes say what responses cannot show of this recipe, and nothing else."""
    recipe = load_preset(preset).recipe
    found = " ".join(notes(recipe, []))
    assert ("critic" in found) == (recipe.auxiliary.value is not None)
    assert ("first time" in found) == (recipe.baseline.kind == "history")
    assert ("routing" in found) == (recipe.token_weight.kind == "router_shift")
    assert ("both passes" in found) == (recipe.schedule.update.kind == "lopti")
