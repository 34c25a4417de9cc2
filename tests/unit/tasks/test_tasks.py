"""The tasks: problems that repeat, verifiers that cannot be fooled by the cases here."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paribus.errors import ParibusError
from paribus.recipe.recipe import ChainTask, JsonlTask, SearchTask
from paribus_runners.rewards.verifiers import EXTRACT
from paribus_runners.tasks import Problem, Task, chain, search, task_of

SEARCH = Problem("x", "a3b9c8=2", "2")
CHAIN = Problem("x", "a3b5c8=", "6")
seeds = st.integers(0, 10**9)


@pytest.mark.parametrize(
    ("text", "finished", "correct", "answer"),
    [
        ("b9a320", True, True, "ab"),
        ("b9c875b9a320", True, True, "ab"),
        ("b9a399", True, True, "ab"),  # what was written does not count, the prompt does
        ("b9a320", False, False, ""),
        ("b9c875", True, False, "bc"),
        ("b9a32", True, False, ""),
        ("", True, False, ""),
        ("b9h320", True, False, "bh"),  # h is not in the prompt
        ("_b9a320", True, False, ""),
    ],
)
def test_search_accepts_a_last_pair_that_adds_up(text: str, finished: bool, correct: bool, answer: str) -> None:
    """A response is right if it is finished, whole tries, and its last pair has the target sum in the prompt."""
    verdict = task_of(SearchTask()).verify(SEARCH, text, finished)
    assert (verdict.correct, verdict.answer) == (correct, answer)
    assert verdict.score == (1.0 if correct else -1.0)


def test_search_wants_two_different_letters() -> None:
    """Twice the same letter is no answer, even if it adds up."""
    assert not task_of(SearchTask()).verify(Problem("x", "a6b9c8=2", "2"), "a6a620", True).correct


@given(seeds)
def test_clean_search_traces_verify(seed: int) -> None:
    """A trace without mistakes is accepted exactly if it ends by itself."""
    random = Random(seed)
    prompt, target = next(search.draw(random))
    text, ends = search.trace(random, prompt, search.CLEAN)
    assert task_of(SearchTask()).verify(Problem("x", prompt, target), text, ends).correct == ends
    assert len(prompt) <= search.WIDTH


@given(seeds, st.integers(1, 9))
def test_search_fails_when_a_digit_of_the_last_pair_changes(seed: int, by: int) -> None:
    """With another digit at one letter of the last try, the same response is wrong."""
    random = Random(seed)
    prompt, target = next(search.draw(random))
    text, ends = search.trace(random, prompt, search.CLEAN)
    if not ends:
        return
    place = prompt.index(text[-6]) + 1
    changed = prompt[:place] + str((int(prompt[place]) + by) % 10) + prompt[place + 1 :]
    assert not task_of(SearchTask()).verify(Problem("x", changed, target), text, True).correct


@pytest.mark.parametrize(
    ("text", "finished", "correct", "answer"),
    [
        ("#6", True, True, "6"),
        ("b58c86#6", True, True, "6"),
        ("b58?8c86#6", True, True, "6"),
        ("#6", False, False, ""),
        ("#5", True, False, "5"),
        ("6", True, False, ""),
        ("#66", True, False, ""),
        ("", True, False, ""),
    ],
)
def test_chain_accepts_the_last_digit_of_the_sum(text: str, finished: bool, correct: bool, answer: str) -> None:
    """A response is right if it is finished and ends with # and the right digit."""
    verdict = task_of(ChainTask()).verify(CHAIN, text, finished)
    assert (verdict.correct, verdict.answer) == (correct, answer)


@given(seeds, st.sampled_from([0.0, 1.0]), st.integers(1, 9))
def test_clean_chain_traces_verify(seed: int, careful: float, by: int) -> None:
    """A trace without mistakes is accepted, and with any other last digit it is not."""
    random = Random(seed)
    prompt, answer = next(chain.draw(random))
    text = chain.trace(random, prompt, chain.Habits(careful=careful))
    problem, task = Problem("x", prompt, answer), task_of(ChainTask())
    assert task.verify(problem, text, True).correct
    assert not task.verify(problem, text[:-1] + str((int(text[-1]) + by) % 10), True).correct
    assert len(prompt) <= chain.WIDTH


@pytest.mark.parametrize("task", [task_of(SearchTask()), task_of(ChainTask())])
def test_generated_problems_depend_on_their_place_only(task: Task) -> None:
    """The same seed, step and round give the same problems; another seed, step or round gives others."""
    first = task.training(0, 1, 0, 20)
    assert task.training(0, 1, 0, 20) == first
    assert task.training(0, 1, 0, 10) == first[:10]
    for other in ((1, 1, 0), (0, 2, 0), (0, 1, 1)):
        assert task.training(*other, 20) != first


@pytest.mark.parametrize("task", [task_of(SearchTask()), task_of(ChainTask())])
def test_held_out_problems_have_their_own_identity(task: Task) -> None:
    """The held-out set is fixed, a smaller one is its beginning, and no identity comes twice."""
    problems = task.heldout(500)
    assert task.heldout(50) == problems[:50]
    assert len({p.identity for p in problems}) == 500


def _files(folder: Path, train: str, heldout: str = '{"prompt": "1+1=", "answer": 2}\n') -> JsonlTask:
    (folder / "train.jsonl").write_text(train)
    (folder / "heldout.jsonl").write_text(heldout)
    return JsonlTask(train=str(folder / "train.jsonl"), heldout=str(folder / "heldout.jsonl"))


@pytest.fixture(params=["search", "chain", "jsonl"])
def pool(request: pytest.FixtureRequest, tmp_path: Path) -> Task:
    """A task with seven training problems."""
    if request.param == "search":
        return task_of(SearchTask(problems=7))
    if request.param == "chain":
        return task_of(ChainTask(problems=7))
    return task_of(_files(tmp_path, "".join(json.dumps({"prompt": f"p{i}", "answer": i}) + "\n" for i in range(7))))


def test_a_problem_comes_again_only_after_all_others(pool: Task) -> None:
    """One round a step: every pass holds each problem once, in an order of its own and of the seed's own."""
    for seed in (0, 1):
        seen = [p.prompt for step in range(1, 22) for p in pool.training(seed, step, 0, 4)]
        passes = [tuple(seen[i : i + 7]) for i in range(0, 84, 7)]
        assert all(len(set(x)) == 7 for x in passes)
        assert len(set(passes)) > 10
    assert [p.prompt for step in range(1, 22) for p in pool.training(0, step, 0, 4)] != seen


def test_further_rounds_of_a_step_repeat_nothing_among_themselves(pool: Task) -> None:
    """A refill goes through all problems before one comes again, and each step has its own order."""
    refills = [tuple(p.prompt for r in range(1, 8) for p in pool.training(0, step, r, 1)) for step in range(1, 6)]
    assert all(len(set(x)) == 7 for x in refills)
    assert len(set(refills)) > 3


def test_a_problem_of_a_pool_is_the_same_at_every_visit(pool: Task) -> None:
    """One identity, one prompt, one answer, over steps, rounds and seeds; what came before does not matter."""
    places = [(seed, step, r, 3) for seed in (0, 1) for step in range(1, 6) for r in range(3)]
    visits = {place: pool.training(*place) for place in places}
    assert visits == {place: pool.training(*place) for place in reversed(places)}
    known = {p for round_ in visits.values() for p in round_}
    assert len(known) == len({p.identity for p in known}) == len({p.prompt for p in known}) == 7


@pytest.mark.parametrize("level", [SearchTask, ChainTask])
def test_a_larger_pool_begins_with_the_smaller(level: type[SearchTask | ChainTask]) -> None:
    """The pool is the same for all runs; its prompts are distinct, though short ones are drawn again and again."""
    small, large = (
        {(p.identity, p.prompt) for p in task_of(level(problems=n)).training(0, 1, 0, n)} for n in (400, 2000)
    )
    assert small < large
    assert len({prompt for _, prompt in large}) == 2000


HALF = '{"prompt": "\\ud800", "answer": "1"}\n'
"""JSON can hold half a character, which has no bytes."""


NO_ANSWERS = tuple(
    f'{{"prompt": "a", "answer": {x}}}\n' for x in ("NaN", "-Infinity", "1e999", "true", '""', '" "', "null")
)
NO_PROMPTS = tuple(f'{{"prompt": {x}, "answer": "1"}}\n' for x in ('""', '" \\n"', "1", "null"))


@pytest.mark.parametrize("text", ["", "[1]\n", "{\n", '{"prompt": "a"}\n', HALF, *NO_ANSWERS, *NO_PROMPTS])
def test_a_malformed_problem_file_is_refused(tmp_path: Path, text: str) -> None:
    """What is wrong is said with the name of the file."""
    with pytest.raises(ParibusError, match=r"train\.jsonl"):
        task_of(_files(tmp_path, text))


def test_the_first_damaged_lines_are_named_all_at_once(tmp_path: Path) -> None:
    """In plain words; a byte order mark is no damage."""
    good, bad = '{"prompt": "a", "answer": "1"}\n', ["[1, 2\n", "[1]\n", '"a"\n', "3\n", "null\n", "{}\n", "x\n"]
    with pytest.raises(ParibusError) as caught:
        task_of(_files(tmp_path, good + "".join(bad) + good))
    lines = str(caught.value).splitlines()
    assert [line.split(": ")[1].rpartition(":")[2] for line in lines[:-1]] == ["2", "3", "4", "5", "6"]
    assert lines[1].endswith("train.jsonl:3: not an object with `prompt` and `answer`: this is a JSON list")
    assert lines[-1] == f"and 2 more lines of {tmp_path / 'train.jsonl'}"
    assert len(task_of(_files(tmp_path, "\ufeff" + good)).training(0, 1, 0, 1)) == 1


def test_a_whole_number_of_many_digits_is_an_answer(tmp_path: Path) -> None:
    """One that no float holds is kept with all of its digits."""
    (problem,) = task_of(_files(tmp_path, f'{{"prompt": "a", "answer": {10**400}}}\n')).training(0, 1, 0, 1)
    assert problem.answer == str(10**400)


def test_a_missing_problem_file_is_refused(tmp_path: Path) -> None:
    """The message names the field of the recipe."""
    with pytest.raises(ParibusError, match=r"task\.train"):
        task_of(JsonlTask(train=str(tmp_path / "no"), heldout=str(tmp_path / "no")))


@pytest.mark.parametrize(
    ("verifier", "text", "answer"),
    [
        ("last_number", "first 3, then 1,000.50 apples", "1000.5"),
        ("last_number", "it is -7.", "-7"),
        ("last_number", "none", ""),
        ("exact", "  yes\n", "yes"),
        ("boxed", r"so \boxed{\frac{1}{2}} it is", r"\frac{1}{2}"),
        ("boxed", r"\boxed{1} and \boxed{2.0}", "2"),
        ("boxed", r"\boxed{1", ""),
        ("boxed", "2", ""),
    ],
)
def test_answers_are_taken_out_of_responses(verifier: str, text: str, answer: str) -> None:
    """Each verifier finds the answer in its own way; equal numbers have one spelling."""
    assert EXTRACT[verifier](text) == answer
