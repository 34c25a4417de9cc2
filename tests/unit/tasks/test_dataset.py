"""Problems from files and datasets: sources, formats, and everything that can be wrong with them."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import constants

from paribus.errors import MissingExtra, ParibusError
from paribus.recipe.recipe import DatasetTask
from paribus_runners.native import fingerprint
from paribus_runners.tasks import Message, Rendered, rows, task_of
from paribus_runners.tasks.dataset import MOST_FAULTS, Dataset, columns_of, entries_of
from support.hub import COMMIT, gsm8k, write_cache, write_lines, write_parquet, write_repository

TRAIN, HELDOUT = gsm8k(0, 12), gsm8k(100, 5)


@pytest.fixture(autouse=True)
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no way to the hub itself."""
    cache = tmp_path / "hub"
    cache.mkdir()
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    rows._downloaded.cache_clear()
    return cache


def level(train: object, heldout: object = None, **more: object) -> DatasetTask:
    """Return a task; a text is short for a path."""
    sources = {"train": train, "heldout": train if heldout is None else heldout}
    mappings = {name: {"path": str(x)} if isinstance(x, str | Path) else x for name, x in sources.items()}
    return DatasetTask.model_validate({**mappings, **more})


def render(messages: Sequence[Message]) -> str:
    """Write messages out."""
    return "".join(f"[{m['role']}]{m['content']}" for m in messages) + "[assistant]"


def pairs(task: DatasetTask, name: str = "train") -> list[tuple[str, str]]:
    """Return prompt and answer of each problem of a source that has no faults."""
    found = entries_of(task, name)
    assert not found.faults
    return [(x.problem.prompt, x.problem.answer) for x in found.entries]


def test_every_kind_of_source_gives_the_same_problems(tmp_path: Path, hub_cache: Path) -> None:
    """JSON lines, Parquet, a copy of a repository, and the hub's cache at a commit or at `main`."""
    lines = write_lines(tmp_path / "a.jsonl", TRAIN)
    parquet = write_parquet(tmp_path / "a.parquet", TRAIN)
    configs = {"main": {"train": TRAIN, "test": HELDOUT}, "socratic": {"train": HELDOUT, "test": HELDOUT}}
    copy = write_repository(tmp_path / "copy", configs)
    write_cache(hub_cache, "openai/gsm8k", configs)
    hub = {"name": "openai/gsm8k", "config": "main", "split": "train"}
    expected = [(row["question"], str(i + i % 7)) for i, row in enumerate(TRAIN)]
    for source in (lines, parquet, {"path": str(copy), "config": "main", "split": "train"}, hub,
                   hub | {"revision": COMMIT}):  # fmt: skip
        assert pairs(level(source, format="gsm8k")) == expected
    assert len(pairs(level({"path": str(copy), "config": "socratic", "split": "test"}, format="gsm8k"))) == 5


FORMATS: list[tuple[str, dict[str, Any], str, str, str]] = [
    ("gsm8k", {"question": "q", "answer": "48/2 = <<48/2=24>>24\n#### 1,072"}, "q", "1,072", "last_number"),
    ("math", {"problem": "q", "level": "Level 1", "type": "Algebra", "solution": r"$x=\boxed{\frac{1}{4}}$."}, "q",
     r"\frac{1}{4}", "boxed"),
    ("math", {"problem": "q", "solution": r"so $\boxed 5$ it is"}, "q", "5", "boxed"),
    ("math", {"problem": "q", "solution": r"so $\fbox{12}$."}, "q", "12", "boxed"),
    ("dapo_math", {"data_source": "math_dapo", "prompt": [{"role": "user", "content": "q"}], "ability": "MATH",
                   "reward_model": {"ground_truth": "34", "style": "rule-lighteval/MATH_v2"},
                   "extra_info": {"index": "9a9b"}}, "q", "34", "last_number"),
    ("aime", {"ID": "2024-I-4", "Problem": "q", "Solution": "s", "Answer": 33}, "q", "33", "last_number"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "row", "prompt", "answer", "verifier"), FORMATS)
@pytest.mark.parametrize("write", [write_lines, write_parquet])
def test_published_formats(
    tmp_path: Path, write: Any, name: str, row: dict[str, Any], prompt: str, answer: str, verifier: str
) -> None:
    """Rows as the datasets publish them; the reference is what its verifier finds in a right response."""
    path = write(tmp_path / ("a.jsonl" if write is write_lines else "a.parquet"), [row])
    task = level(path, format=name)
    assert pairs(task) == [(prompt, answer)]
    made = Dataset(task, render)
    (problem,) = made.heldout(1)
    response = rf"so it is \boxed{{{answer}}}" if verifier == "boxed" else f"so it is {answer}"
    assert made.verify(problem, response, True).correct
    assert not made.verify(problem, "so it is 7", True).correct


def test_a_source_may_have_a_format_or_columns_of_its_own(tmp_path: Path) -> None:
    """Columns named for the task hold for both sources, unless one has a format of its own."""
    train = write_lines(tmp_path / "t.jsonl", [{"p": "a", "r": {"x": "1"}}])
    heldout = write_lines(tmp_path / "h.jsonl", [{"Problem": "b", "Answer": 2}])
    task = level(train, {"path": str(heldout), "format": "aime"}, prompt="p", answer="r.x")
    assert (pairs(task), pairs(task, "heldout")) == ([("a", "1")], [("b", "2")])
    task = level({"path": str(train), "prompt": "p", "answer": "r.x"}, {"path": str(heldout), "format": "aime"})
    assert (pairs(task), pairs(task, "heldout")) == ([("a", "1")], [("b", "2")])
    plain = write_lines(tmp_path / "p.jsonl", [{"prompt": "c", "answer": 3.5}])
    assert pairs(level(plain)) == [("c", "3.5")]
    dotted = write_lines(tmp_path / "d.jsonl", [{"a.b": "d", "answer": "4"}])
    assert pairs(level(dotted, prompt="a.b")) == [("d", "4")]


def test_prompts_are_written_out_as_a_chat_or_stay_as_they_are(tmp_path: Path) -> None:
    """The system prompt stands first; the type says that the text needs no further special tokens."""
    path = write_lines(tmp_path / "a.jsonl", TRAIN)
    chat = task_of(level(path, format="gsm8k", system="Think."), render)
    plain = task_of(level(path, format="gsm8k", template="none"))
    first = TRAIN[0]["question"]
    assert chat.heldout(1)[0].prompt == f"[system]Think.[user]{first}[assistant]"
    assert isinstance(chat.heldout(1)[0].prompt, Rendered)
    assert plain.heldout(1)[0].prompt == first
    assert not isinstance(plain.heldout(1)[0].prompt, Rendered)
    assert [p.identity for p in chat.heldout(9)] == [p.identity for p in plain.heldout(9)]
    with pytest.raises(ParibusError, match="template"):
        task_of(level(path, format="gsm8k"))


def test_training_visits_every_problem_before_one_comes_again(tmp_path: Path) -> None:
    """The order depends on seed and step alone."""
    task = task_of(level(write_lines(tmp_path / "a.jsonl", TRAIN), format="gsm8k"), render)
    seen = [p.identity for step in range(1, 7) for p in task.training(0, step, 0, 4)]
    assert len(set(seen[:12])) == len(set(seen[12:])) == 12
    assert seen[:12] != seen[12:]
    assert task.training(0, 3, 0, 4) == task.training(0, 3, 0, 4)


def test_of_rows_that_repeat_each_other_the_first_counts(tmp_path: Path) -> None:
    """As in DAPO-Math-17k, whose rows come about a hundred times; another answer makes another problem."""
    other = {"question": TRAIN[0]["question"], "answer": "#### 99"}
    found = entries_of(level(write_lines(tmp_path / "a.jsonl", [*TRAIN, *TRAIN, other]), format="gsm8k"), "train")
    assert (len(found.entries), found.rows) == (13, 25)
    assert found.entries[0].place.endswith("a.jsonl:1")


CHAT_ROW = {"prompt": [{"role": "user", "content": "q"}], "answer": "1"}
DAMAGED: list[tuple[str, dict[str, Any], str]] = [
    ("", {}, "holds no problems"),
    ("\n\n", {}, "holds no problems"),
    ("{\n", {}, r"a\.jsonl:1: not JSON: Expecting"),
    ("[1]\n", {}, r"a\.jsonl:1: not an object"),
    ("\xff\n", {}, r"a\.jsonl:1: not JSON"),
    ('{"question": "a", "answer": "1"}\n', {},
     r"a\.jsonl:1: there is no column `prompt`\. There are: `question`, `answer`\. Name the right one by `prompt: "),
    ('{"quest": "a", "answer": "#### 1"}\n', {"format": "gsm8k"}, r"no column `question`\. Did you mean `quest`\?"),
    ('{"prompt": "a"}\n', {}, r"no column `answer`.*by `answer: <column>`"),
    ('{"prompt": "a", "answer": {"x": 1}}\n', {"answer": "answer.y"}, r"no column `answer\.y`"),
    ('{"prompt": "a", "\\ud800\\u001b": 1}\n', {}, r"no column `answer`\. There are: `prompt`, `\?\?`"),
    ('{"prompt": " ", "answer": "1"}\n', {}, "prompt in `prompt` is empty"),
    ('{"prompt": 3, "answer": "1"}\n', {}, "must be a text or a list of messages, and is a number"),
    ('{"prompt": [], "answer": "1"}\n', {}, "must be a text or a list of messages, and is a list"),
    ('{"prompt": "a", "answer": null}\n', {}, "must be a text or a number, and is null"),
    ('{"prompt": "a", "answer": true}\n', {}, "must be a text or a number, and is true or false"),
    ('{"prompt": "a", "answer": " "}\n', {}, "is empty, or lacks an answer"),
    ('{"question": "a", "answer": "4"}\n', {"format": "gsm8k"}, "lacks `#### 72`"),
    ('{"problem": "a", "solution": "it is 4"}\n', {"format": "math"}, r"lacks `\\boxed\{72\}`"),
    ('{"prompt": [{"role": "user"}], "answer": "1"}\n', {}, "needs `role`"),
    ('{"prompt": [{"role": "bot", "content": "a"}], "answer": "1"}\n', {}, "needs `role`"),
    ('{"prompt": [{"role": "assistant", "content": "a"}], "answer": "1"}\n', {}, "must be the user's"),
    ('{"prompt": [{"role": "user", "content": "q"}], "answer": "1"}\n', {"template": "none"}, "needs `task.template: "),
    ('{"prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "q"}], "answer": "1"}\n',
     {"system": "Think."}, "brings a system message of its own"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "more", "message"), DAMAGED)
def test_damaged_rows_are_refused_with_their_place(
    tmp_path: Path, text: str, more: dict[str, Any], message: str
) -> None:
    """Each message names the part of the recipe and what to write."""
    (tmp_path / "a.jsonl").write_bytes(text.encode("latin-1"))
    with pytest.raises(ParibusError, match=message) as caught:
        Dataset(level(tmp_path / "a.jsonl", **more), render)
    assert "`task.heldout`: " in str(caught.value)
    assert "`task.train`: " not in str(caught.value)  # the same rows, as in an evaluation set: once is enough
    other = write_lines(tmp_path / "b.jsonl", [{"x": 1}])
    with pytest.raises(ParibusError) as caught:
        Dataset(level(tmp_path / "a.jsonl", **{"heldout": {"path": str(other)}, **more}), render)
    assert all(f"`task.{name}`: " in str(caught.value) for name in ("train", "heldout"))


def test_of_many_damaged_rows_the_first_are_named_and_the_rest_counted(tmp_path: Path) -> None:
    """A file of 17,000 lines without answers gives no 17,000 messages."""
    good = [{"prompt": "a", "answer": "1"}]
    found = entries_of(
        level(write_lines(tmp_path / "a.jsonl", [*good, *[{"prompt": "b", "answer": ""}] * 20])), "train"
    )
    assert len(found.faults) == MOST_FAULTS + 1
    assert found.faults[-1].endswith(f"{20 - MOST_FAULTS} more rows of {tmp_path}/a.jsonl have faults")


def test_a_table_without_rows_holds_no_problems(tmp_path: Path) -> None:
    """A Parquet file may be empty, with a group of no rows or with no group at all."""
    columns = pa.table({"prompt": pa.array([], pa.string()), "answer": pa.array([], pa.string())})
    pq.write_table(columns, tmp_path / "a.parquet")
    pq.ParquetWriter(tmp_path / "b.parquet", columns.schema).close()
    for name in "ab":
        found = entries_of(level(tmp_path / f"{name}.parquet"), "heldout")
        assert found.faults == (f"`task.heldout`: {tmp_path}/{name}.parquet holds no problems",)


@pytest.mark.parametrize("name", ["a[1]", "b*", "c?", "[!d]/e"])
def test_the_path_of_a_table_is_no_pattern(tmp_path: Path, name: str) -> None:
    """Its signs stand for themselves, whatever other files there are."""
    for other in ("a1", "bb", "cc", "x/e"):
        write_parquet(tmp_path / f"{other}.parquet", [{"prompt": "other", "answer": "2"}])
    path = write_parquet(tmp_path / f"{name}.parquet", [{"prompt": "this", "answer": "1"}])
    assert [x.problem.prompt for x in entries_of(level(path), "train").entries] == ["this"]


def test_sources_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    """Missing files, splits that are not there or not wanted, other kinds of files, damaged Parquet, the hub away."""
    lines = write_lines(tmp_path / "a.jsonl", TRAIN)
    copy = write_repository(tmp_path / "copy", {"main": {"train": TRAIN}, "other": {"train": TRAIN}})
    (tmp_path / "a.csv").write_text("a")
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 and nothing else")
    for source, message in (
        ({"path": "no.jsonl"}, f"there is no no.jsonl in {tmp_path}, where relative paths begin"),
        ({"path": str(lines), "split": "train"}, "is a file, and has no `config` or `split`"),
        ({"path": str(copy)}, "is a folder: name a `split`"),
        ({"path": str(copy), "config": "main", "split": "test"}, "cannot read"),
        ({"path": str(copy), "config": "third", "split": "train"}, "cannot read"),
        ({"path": str(tmp_path / "a.csv")}, "must end in .jsonl, .json, .ndjson or .parquet"),
        ({"path": str(tmp_path / "bad.parquet")}, "cannot read"),
        ({"name": "openai/gsm8k", "split": "train"}, "hf download --repo-type dataset openai/gsm8k`, or name a copy"),
        ({"name": "openai/gsm8k", "split": "train", "revision": COMMIT}, f"gsm8k --revision {COMMIT}`"),
        ({"name": "a/b/c/d", "split": "train"}, "`task.train`: the dataset a/b/c/d"),
    ):
        with pytest.raises(ParibusError) as caught:
            entries_of(level(source), "train")
        assert message in str(caught.value)
        assert str(caught.value).startswith("`task.train`: ")


def test_without_the_library_json_lines_are_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else needs it says so, with the line that installs it."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert len(pairs(level(write_lines(tmp_path / "a.jsonl", TRAIN), format="gsm8k"))) == 12
    parquet = write_parquet(tmp_path / "a.parquet", TRAIN)
    for source in ({"path": str(parquet)}, {"name": "openai/gsm8k", "split": "train"}):
        with pytest.raises(MissingExtra, match=r"\[data\]"):
            entries_of(level(source), "train")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train": {}}, "`task.train` needs either `path`"),
        ({"train": {"path": "a", "name": "b", "split": "train"}}, "`task.train` needs either `path`"),
        ({"heldout": {"name": "b"}}, "`task.heldout` needs `split`"),
        ({"heldout": {"path": "b", "revision": "c"}}, "`task.heldout.revision` belongs to `name`"),
        ({"template": "none", "system": "Think."}, "`task.system` needs `task.template: chat`"),
    ],
)
def test_sources_that_make_no_sense_are_no_recipe(values: dict[str, Any], message: str) -> None:
    """A study with one is refused with the place in the file."""
    with pytest.raises(ValueError, match=message):
        DatasetTask.model_validate({"train": {"path": "a"}, "heldout": {"path": "b"}, **values})


def test_the_hash_follows_the_content(tmp_path: Path, hub_cache: Path) -> None:
    """Of a file its bytes, of a folder all its files, of the hub the commit; a pinned one needs no look at the hub."""
    lines = write_lines(tmp_path / "a.jsonl", TRAIN)
    before = rows.content_hash(level(lines).train, "task.train")
    write_lines(tmp_path / "b.jsonl", HELDOUT)
    assert rows.content_hash(level(lines.rename(tmp_path / "c.jsonl")).train, "task.train") == before
    assert rows.content_hash(level(tmp_path / "b.jsonl").train, "task.train") != before
    copy = write_repository(tmp_path / "copy", {"main": {"train": TRAIN}})
    task = level({"path": str(copy), "split": "train"})
    of_folder = rows.content_hash(task.train, "task.train")
    write_parquet(copy / "main" / "train-00000-of-00001.parquet", HELDOUT)
    assert rows.content_hash(task.train, "task.train") != of_folder
    hub = {"name": "openai/gsm8k", "config": "main", "split": "train"}
    there = rows.content_hash(level(hub | {"revision": COMMIT}).train, "task.train")
    with pytest.raises(ParibusError, match="cannot be downloaded"):
        rows.content_hash(level(hub).train, "task.train")
    write_cache(hub_cache, "openai/gsm8k", {"main": {"train": TRAIN}})
    assert rows.content_hash(level(hub).train, "task.train") == there
    assert rows.content_hash(level(hub | {"split": "test"}).train, "task.train") != there


def test_readers_and_formats_are_part_of_the_data_hash() -> None:
    """A change of how answers are taken from their column gives runs another identity."""
    files = {path.name for path in fingerprint._files("data/dataset")}
    assert files == {"base.py", "dataset.py", "formats.py", "rows.py", "verifiers.py"}


@pytest.mark.parametrize(
    ("line", "message"),
    [('{"prompt": "p\\ud83d", "answer": "1"}', "half a character"), ('{"prompt": "p", "answer": NaN}', "is nan, not"),
     ('{"prompt": "p", "answer": 1e999}', "is inf, not")],
)  # fmt: skip
def test_what_no_tokenizer_or_verifier_reads_is_refused(tmp_path: Path, line: str, message: str) -> None:
    """With its place, and the others are read."""
    (tmp_path / "a.jsonl").write_text('{"prompt": "q", "answer": "2"}\n' + line + "\n")
    found = entries_of(level(tmp_path / "a.jsonl"), "train")
    assert (len(found.entries), found.rows, len(found.faults)) == (1, 2, 1)
    assert "a.jsonl:2" in found.faults[0]
    assert message in found.faults[0]


@pytest.mark.parametrize("write", [write_lines, write_parquet])
def test_reward_functions_get_the_other_columns(tmp_path: Path, write: Any) -> None:
    """All but the prompt, with the whole text of the answer, as far as they are JSON values; else none."""
    row = {"question": "q", "answer": "6*7\n#### 42", "level": 3, "tags": ["a", "b"]}
    if write is write_parquet:
        row["picture"] = b"\xff\x00"
    path = write(tmp_path / ("a.jsonl" if write is write_lines else "a.parquet"), [row])
    task = level(path, format="gsm8k", template="none")
    (problem,) = task_of(task, columns=True).training(0, 1, 0, 1)
    assert (problem.answer, problem.columns) == ("42", {"answer": row["answer"], "level": 3, "tags": ["a", "b"]})
    assert columns_of(task) == {"answer": "", "level": "", "tags": ""}
    assert task_of(task).training(0, 1, 0, 1)[0].columns == {}
    assert columns_of(level(tmp_path / "none.jsonl")) is None


def test_an_empty_part_of_a_folder_is_passed_over(tmp_path: Path) -> None:
    """Writers of data frames leave Parquet files without rows, with a group of no rows or with no group at all."""
    table = pa.table({"prompt": ["a", "b"], "answer": ["1", "2"]})
    pq.write_table(table.slice(0, 0), tmp_path / "train-00000-of-00003.parquet")
    pq.write_table(table, tmp_path / "train-00001-of-00003.parquet")
    pq.ParquetWriter(tmp_path / "train-00002-of-00003.parquet", table.schema).close()
    found = entries_of(level({"path": str(tmp_path), "split": "train"}), "train")
    assert [x.problem.prompt for x in found.entries] == ["a", "b"]
    assert found.faults == ()
