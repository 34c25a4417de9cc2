"""Problems from files and datasets in their own columns, written out as a chat or as they are."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from paribus.errors import ParibusError, did_you_mean
from paribus.recipe.recipe import DatasetTask, Source
from paribus_runners.rewards.verifiers import APART, EXTRACT, Verdict, exact, verify_answer
from paribus_runners.tasks.base import Problem, Rendered, gaps, visit
from paribus_runners.tasks.formats import Format, format_of, verifier_of
from paribus_runners.tasks.rows import is_lines, place_of, rows

ROLES = ("system", "user", "assistant", "tool")
MOST_FAULTS = 5
"""Rows with faults that are named; the rest are counted."""

MOST_NAMES = 20
"""Columns that a message lists."""

Message = Mapping[str, str]
"""One message of a chat: its ``role`` and its ``content``."""
Render = Callable[[Sequence[Message]], str]
"""Writes messages out by the chat template of a model, up to where its answer begins."""


@dataclass(frozen=True)
class Entry:
    """A problem as it stands in its source.

    Attributes:
        problem: its prompt is the text of its messages, for people.
        messages: the prompt as a chat, without the system prompt of the task.
        place: where it stands, e.g. ``train.jsonl:17``.
    """

    problem: Problem
    messages: tuple[Message, ...]
    place: str


@dataclass(frozen=True)
class Entries:
    """What a source holds.

    Attributes:
        entries: distinct problems in the order of the source: of rows with equal prompt and answer the first counts.
        rows: rows, with those that are repeated.
        faults: what is wrong, each with its place.
    """

    entries: tuple[Entry, ...] = ()
    rows: int = 0
    faults: tuple[str, ...] = ()


class Dataset:
    """The task ``dataset``.

    Args:
        task: the level of the recipe.
        render: writes messages out; ``None`` is enough for ``template: none``.
        columns: keep the other columns of all rows, for functions.

    Raises:
        ParibusError: a source cannot be read, or rows have faults; all are listed.
    """

    def __init__(self, task: DatasetTask, render: Render | None, *, columns: bool = False) -> None:
        if task.template == "chat" and render is None:
            raise ParibusError("`task.template: chat` needs a runner that writes prompts by the model's chat template")
        read = {"heldout": entries_of(task, "heldout", columns=columns)}
        if task.train != task.heldout:  # an evaluation set has one source
            read = {"train": entries_of(task, "train", columns=columns), **read}
        if faults := [fault for found in read.values() for fault in found.faults]:
            raise ParibusError("\n".join(faults))
        self._task, self._render = task, render
        self._heldout = read["heldout"].entries
        self._train = read["train"].entries if "train" in read else self._heldout
        verifier = verifier_of(task)
        self._extract = EXTRACT.get(verifier, exact)
        self.verifier_worker = APART.get(verifier)

    def training(self, seed: int, step: int, round_: int, count: int) -> list[Problem]:
        """Return the problems of one sampling round, in the order of :func:`visit`."""
        return [self._written(x) for x in visit(self._train, "dataset", seed, step, round_, count)]

    def heldout(self, count: int) -> list[Problem]:
        """Return the first ``count`` held-out problems, or all if there are fewer."""
        return [self._written(x) for x in self._heldout[:count]]

    def verify(self, problem: Problem, text: str, finished: bool) -> Verdict:
        """Compare the answer in the response with the reference; a truncated response may be correct."""
        return verify_answer(self._extract, problem.answer, text)

    def _written(self, entry: Entry) -> Problem:
        """Return the problem with the prompt that the model continues."""
        if self._task.template == "none" or self._render is None:
            return entry.problem
        return replace(entry.problem, prompt=Rendered(self._render(conversation(self._task, entry))))


def conversation(task: DatasetTask, entry: Entry) -> tuple[Message, ...]:
    """Return the messages of a problem behind the system prompt of the task."""
    if task.system is None:
        return entry.messages
    return ({"role": "system", "content": task.system}, *entry.messages)


def entries_of(task: DatasetTask, name: str, *, columns: bool = False) -> Entries:
    """Return the problems of ``train`` or ``heldout``, and everything that is wrong with its rows.

    With ``columns``, each problem keeps the other columns of its row.

    Raises:
        ParibusError: the source cannot be read at all.
    """
    source: Source = getattr(task, name)
    reader = _Reader(task, format_of(task, source), columns)
    where = f"task.{name}"
    wanted = () if columns else sorted({reader.format.prompt.split(".")[0], reader.format.answer.split(".")[0]})
    for place, row in rows(source, where, wanted):
        if isinstance(row, str):
            reader.refuse(f"`{where}`: {place}: {row}")
        elif fault := reader.add(place, row):
            reader.refuse(f"`{where}`: {place}: {fault}")
        if reader.hopeless:
            break
    if not reader.rows:
        reader.faults.append(f"`{where}`: {place_of(source)} holds no problems")
    if reader.refused > MOST_FAULTS:
        reader.faults.append(f"`{where}`: {reader.refused - MOST_FAULTS} more rows of {place_of(source)} have faults")
    return Entries(tuple(reader.entries.values()), reader.rows, tuple(reader.faults))


@dataclass
class _Reader:
    """Collects the problems of one source."""

    task: DatasetTask
    format: Format
    columns: bool = False
    entries: dict[str, Entry] = field(default_factory=dict)
    rows: int = 0
    refused: int = 0
    faults: list[str] = field(default_factory=list)
    hopeless: bool = False

    def refuse(self, fault: str) -> None:
        """Note a fault; of many only the first are kept, the others counted."""
        self.rows += 1
        self.refused += 1
        if self.refused <= MOST_FAULTS:
            self.faults.append(fault)

    def add(self, place: str, row: Mapping[str, Any]) -> str:
        """Add the problem of a row; return what is wrong with the row, or an empty text."""
        values = {}
        for what, column in (("prompt", self.format.prompt), ("answer", self.format.answer)):
            found, value = _value(row, column)
            if not found:
                self.hopeless = self.rows == 0  # the first row: so have all others, and one message is enough
                return _missing(what, column, row)
            values[what] = value
        messages = self._messages(values["prompt"])
        if isinstance(messages, str):
            return messages
        raw = values["answer"]
        if isinstance(raw, float) and not math.isfinite(raw):
            return f"the answer in `{self.format.answer}` is {raw}, not a number that can be found"
        if isinstance(raw, bool) or not isinstance(raw, str | int | float):
            return f"the answer in `{self.format.answer}` must be a text or a number, and is {_kind(raw)}"
        answer = self.format.extract(str(raw))
        if not answer:
            return f"the answer in `{self.format.answer}` is empty, or lacks {self.format.looks_like}"
        prompt = "\n\n".join(m["content"] for m in messages)
        if not _is_text(prompt + answer):
            return "it holds half a character (an unpaired surrogate), which no tokenizer reads"
        self.rows += 1
        text = json.dumps([[m["role"], m["content"]] for m in messages], ensure_ascii=False)
        digest = hashlib.sha256(f"{text}\0{answer}".encode(errors="surrogatepass")).hexdigest()[:16]
        others = other_columns(row, self.format.prompt) if self.columns else {}
        self.entries.setdefault(digest, Entry(Problem(digest, prompt, answer, others), messages, place))
        return ""

    def _messages(self, prompt: object) -> tuple[Message, ...] | str:
        """Return the prompt as messages, or what is wrong with it."""
        column = self.format.prompt
        if isinstance(prompt, str):
            return ({"role": "user", "content": prompt},) if prompt.strip() else f"the prompt in `{column}` is empty"
        if not isinstance(prompt, list | tuple) or not prompt:
            return f"the prompt in `{column}` must be a text or a list of messages, and is {_kind(prompt)}"
        if self.task.template == "none":
            return f"the prompt in `{column}` is a list of messages, which needs `task.template: chat`"
        found: list[Message] = []
        for message in prompt:
            role = message.get("role") if isinstance(message, Mapping) else None
            content = message.get("content") if isinstance(message, Mapping) else None
            if role not in ROLES or not isinstance(content, str):
                return f"a message in `{column}` needs `role` ({', '.join(ROLES)}) and the text `content`"
            found.append({"role": str(role), "content": content})
        if found[-1]["role"] != "user":
            return f"the last message in `{column}` must be the user's, and is the {found[-1]['role']}'s"
        if self.task.system is not None and found[0]["role"] == "system":
            return f"`{column}` brings a system message of its own: leave out `task.system`"
        return tuple(found)


def _is_text(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def columns_of(task: DatasetTask) -> dict[str, str] | None:
    """Return :func:`gaps` of the training rows without their prompts; ``None`` if they cannot be read."""
    prompt = format_of(task, task.train).prompt
    with suppress(ParibusError):
        read = ((place, row) for place, row in rows(task.train, "task.train") if not isinstance(row, str))
        enough = None if is_lines(task.train) else 1  # a table has the same columns in all rows
        return gaps((place, ("answer", *other_columns(row, prompt))) for place, row in islice(read, enough)) or None
    return None


def other_columns(row: Mapping[str, Any], prompt: str) -> dict[str, Any]:
    """Return all columns of a row but its prompt, as far as they are JSON values, which a picture is not."""
    found = {}
    for name, value in row.items():
        with suppress(TypeError, ValueError, RecursionError):
            json.dumps(value, allow_nan=False)
            if name != prompt.split(".")[0]:
                found[name] = value
    return found


def _value(row: Mapping[str, Any], column: str) -> tuple[bool, Any]:
    """Return whether a row has a column, and its value; points lead into mappings."""
    if column in row:
        return True, row[column]
    node: Any = row
    for part in column.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return False, None
        node = node[part]
    return True, node


def _missing(what: str, column: str, row: Mapping[str, Any]) -> str:
    known = ["".join(c if c.isprintable() else "?" for c in str(name)[:60]) for name in row]
    names = ", ".join(f"`{name}`" for name in known[:MOST_NAMES]) or "none"
    names += f" and {len(known) - MOST_NAMES} more" if len(known) > MOST_NAMES else ""
    near = did_you_mean(column, known)
    return f"there is no column `{column}`.{near} There are: {names}. Name the right one by `{what}: <column>`"


def _kind(value: object) -> str:
    names = {dict: "a mapping", list: "a list", bool: "true or false", type(None): "null", str: "a text"}
    return names.get(type(value), "a number" if isinstance(value, int | float) else f"a {type(value).__name__}")
