"""What a plan shows of data and model before a run: counts, the first prompt, overlap, and everything that is wrong.

Reads the problems and the model's tokenizer, and needs no torch. A model on the hub is looked at only if it is in the
local cache: a plan downloads no weights.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.contract import Evaluate, Examination
from paribus.errors import ParibusError
from paribus.recipe.recipe import DatasetTask, JsonlTask, Recipe, Source, Task
from paribus_runners.native import chat
from paribus_runners.native.tiny.spec import MODELS
from paribus_runners.tasks.base import Rendered
from paribus_runners.tasks.dataset import Entries, Entry, conversation, entries_of
from paribus_runners.tasks.jsonl import Jsonl
from paribus_runners.tasks.overlap import GRAM, overlap
from paribus_runners.tasks.rows import pinned, place_of, snapshot

SHOWN = 400
"""Characters of the first prompt, and of words that two problems share, in a plan."""


def examine(recipe: Recipe, evaluate: Evaluate) -> Examination:
    """Return what a plan should say about model, task and evaluation sets.

    Args:
        recipe: of which only task and model are read.
        evaluate: how many problems the evaluation uses, and its further sets.
    """
    tasks = [recipe.task, *(each.task for each in evaluate.sets.values())]
    if recipe.model.name in MODELS or not any(isinstance(task, DatasetTask | JsonlTask) for task in tasks):
        return Examination()
    model = _model(recipe)
    own, read = Examination(), dict[str, Entries]()
    if isinstance(recipe.task, DatasetTask):  # `support` looks at the files of `jsonl`
        own, read = _own(recipe.task, model, evaluate.problems)
    sets = _sets(recipe.task, model, evaluate, read)
    return Examination(
        facts=(*own.facts, *(fact for each in sets for fact in each.facts)),
        warnings=(*own.warnings, *(warning for each in sets for warning in each.warnings)),
        faults=(*own.faults, *(fault for each in sets for fault in each.faults), *model.faults),
    )


@dataclass(frozen=True)
class _Model:
    """What is known of a model without its weights.

    Attributes:
        tokenizer: its tokenizer; ``None`` if it is not there.
        unseen: why it is not there.
        faults: what is wrong with it.
    """

    tokenizer: Any = None
    unseen: str = ""
    faults: tuple[str, ...] = ()


def _own(task: DatasetTask, model: _Model, problems: int) -> tuple[Examination, dict[str, Entries]]:
    """Return what to say about the task that a run trains on, and what its sources hold."""
    read, faults = _read(task, ("train", "heldout"))
    facts: list[str] = []
    warnings = [("unpinned", message) for message in _unpinned(task, found=bool(read))]
    if read:
        written, wrong = _prompts(task, model, read)
        facts = [_counts(task, read), *_shown(written, model, read["train"].entries[0])]
        faults += wrong
        warnings += [*_overlap(read["train"], read["heldout"]), *_few(read["heldout"], problems)]
    return Examination(facts=tuple(facts), warnings=tuple(warnings), faults=tuple(faults)), read


def _sets(own: Task, model: _Model, evaluate: Evaluate, read: Mapping[str, Entries]) -> list[Examination]:
    """Return what to say about each evaluation set with problems of its own.

    Args:
        own: the task that a run trains on.
        model: its model.
        evaluate: the sets.
        read: what the sources of a task ``dataset`` hold; empty if they have faults.
    """
    named = {name: each for name, each in evaluate.sets.items() if isinstance(each.task, DatasetTask | JsonlTask)}
    if not named:
        return []
    train = _lines(own.train) if isinstance(own, JsonlTask) else read.get("train", Entries())
    found: list[Examination] = []
    for name, each in named.items():
        stated = each.problems if each.problems != evaluate.problems else 0
        found.append(_set(f"evaluate.sets.{name}", each.task, model, train, stated))
    return found


def _set(where: str, task: Task | None, model: _Model, train: Entries, problems: int) -> Examination:
    """Return what to say about an evaluation set; its messages begin with its place."""
    facts: list[str] = []
    warnings: list[tuple[str, str]] = []
    faults: list[str] = []
    heldout = Entries()
    if isinstance(task, JsonlTask):  # `set_hash` looks at its file, and the plan counts its lines
        heldout = _lines(task.heldout)
    elif isinstance(task, DatasetTask):
        read, faults = _read(task, ("heldout",))
        warnings += [("unpinned", f"`{where}`: {message}") for message in _unpinned(task, found=bool(read))]
        if read:
            heldout = read["heldout"]
            faults += _prompts(task, model, read)[1]
            facts.append(f"`{where}`: {_count(heldout, 'problems', place_of(task.heldout))}")
            warnings += _few(heldout, problems, where, f"{where}.task.heldout")
    warnings += [(code, f"`{where}`: {message}") for code, message in _overlap(train, heldout, "problems of this set")]
    return Examination(
        facts=tuple(facts), warnings=tuple(warnings), faults=tuple(f"`{where}`: {fault}" for fault in faults)
    )


def _lines(path: str) -> Entries:
    """Return the problems of a file of the task ``jsonl``; none if it is damaged, which others report."""
    with suppress(ParibusError):
        problems = Jsonl(JsonlTask(train=path, heldout=path)).heldout(sys.maxsize)
        return Entries(tuple(Entry(x, (), f"problem {n} of {path}") for n, x in enumerate(problems, 1)), len(problems))
    return Entries()


def _read(task: DatasetTask, names: Sequence[str]) -> tuple[dict[str, Entries], list[str]]:
    """Return what sources hold, and what is wrong with them; of a source with faults nothing else is said."""
    read: dict[str, Entries] = {}
    faults: list[str] = []
    for name in names:
        try:
            read[name] = entries_of(task, name)
            faults += read[name].faults
        except ParibusError as error:
            faults.append(str(error))
    return ({} if faults else read), faults


def _model(recipe: Recipe) -> _Model:
    """Return the tokenizer of the model, and what is wrong with it or with the token that ends a response."""
    name = recipe.model.name
    folder = Path(name).expanduser()
    try:
        from huggingface_hub import snapshot_download
        from transformers import AutoTokenizer
    except ImportError as error:
        return _Model(unseen=f"not shown, because {error.name} is not installed here")
    try:
        if not folder.is_dir():
            folder = Path(snapshot_download(name, revision=recipe.model.revision, local_files_only=True))
    except (OSError, ValueError):
        return _Model(unseen=f"not shown, because the model {name} is not in the hub's cache here")
    try:
        tokenizer, end = AutoTokenizer.from_pretrained(str(folder)), _end(folder)
    except Exception as error:  # a damaged tokenizer raises whatever its reader meets
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return _Model(faults=(f"`model.name: {name}`: its tokenizer cannot be loaded: {reason}",))
    return _Model(tokenizer, faults=() if chat.ends_of(end, tokenizer) else (chat.no_end(name),))


def _end(folder: Path) -> Any:
    """Return the tokens that end a response by the model's configuration, as :meth:`Policy.load` gets them."""
    for name in ("generation_config.json", "config.json"):
        if (folder / name).is_file():
            return json.loads((folder / name).read_text(encoding="utf-8")).get("eos_token_id")
    return None


def _prompts(task: DatasetTask, model: _Model, read: dict[str, Entries]) -> tuple[list[str], list[str]]:
    """Return the prompts as the model gets them, and of each source the first that cannot be written."""
    if task.template == "chat" and model.tokenizer is None:
        return [], []
    written: list[str] = []
    faults: list[str] = []
    for name, found in read.items():
        for entry in found.entries:
            try:
                written.append(_written(task, model.tokenizer, entry))
            except ParibusError as error:
                faults.append(f"`task.{name}`: {entry.place}: {error}")
                break
    return ([] if faults else written), faults


def _shown(written: Sequence[str], model: _Model, first: Entry) -> list[str]:
    """Return lines about prompts, the first of which is shown."""
    if not written:
        return [f"first prompt: {model.unseen}"] if model.unseen else []
    return [*_lengths(written, model.tokenizer), _first(written[0], first)]


def _written(task: DatasetTask, tokenizer: Any, entry: Entry) -> str:
    if task.template == "none":
        return entry.problem.prompt
    return Rendered(chat.render(tokenizer, conversation(task, entry)))


def _counts(task: DatasetTask, read: dict[str, Entries]) -> str:
    words = {"train": "training problems", "heldout": "held out"}
    return f"data: {'; '.join(_count(read[k], words[k], place_of(getattr(task, k))) for k in words)}"


def _count(found: Entries, words: str, place: str) -> str:
    repeated = "" if found.rows == len(found.entries) else f" ({found.rows:,} rows, the others repeat them)"
    return f"{len(found.entries):,} {words} in {place}{repeated}"


def _lengths(written: Sequence[str], tokenizer: Any) -> list[str]:
    if tokenizer is None:
        return []
    special = not isinstance(written[0], Rendered)
    lengths = [len(ids) for ids in tokenizer(list(map(str, written)), add_special_tokens=special).input_ids]
    return [f"prompts: {min(lengths)} to {max(lengths)} tokens, {statistics.median(lengths):g} in the middle"]


def _first(prompt: str, entry: Entry) -> str:
    cut = prompt if len(prompt) <= SHOWN else f"{prompt[: SHOWN - 3]}..."
    shown = cut.replace("\\", "\\\\").replace("\n", "\\n")
    return f"first prompt: {shown} -> answer {entry.problem.answer}"


def _unpinned(task: DatasetTask, *, found: bool) -> list[str]:
    """Return for each dataset that can change on the hub how to pin it."""
    open_ends = {}
    for name in ("heldout", "train"):
        source: Source = getattr(task, name)
        if not pinned(source):
            open_ends[source.name, source.revision] = name, source
    messages = []
    for name, source in open_ends.values():
        commit = snapshot(source, f"task.{name}").name if found else "<commit>"
        at = f" at `{source.revision}`" if source.revision else ""
        messages.append(f"`task.{name}`: {source.name}{at} can change on the hub: write `revision: {commit}`")
    return messages


def _overlap(training: Entries, evaluated: Entries, called: str = "held-out problems") -> list[tuple[str, str]]:
    """Return a warning if problems of the evaluation stand in the training data too."""
    train, heldout = training.entries, evaluated.entries
    found = overlap([x.problem.prompt for x in train], [x.problem.prompt for x in heldout])
    parts = []
    if found.exact:
        i, k = next(iter(found.exact.items()))
        parts.append(f"{len(found.exact)} whole (e.g. {heldout[i].place} is {train[k].place})")
    if found.grams:
        i, (k, words) = next(iter(found.grams.items()))
        parts.append(f"{len(found.grams)} by {GRAM} words in a row (e.g. {heldout[i].place} and {train[k].place}: "
                     f"\"{words[:SHOWN]}\")")  # fmt: skip
    if not parts:
        return []
    total = len(found.exact) + len(found.grams)
    message = (
        f"{total} of {len(heldout):,} {called} stand in the training data too: {', '.join(parts)}. Their "
        "score shows memory: leave them out on one side"
    )
    return [("overlap", message)]


def _few(
    heldout: Entries, problems: int, where: str = "evaluate", source: str = "task.heldout"
) -> list[tuple[str, str]]:
    there = len(heldout.entries)
    if there >= problems:
        return []
    return [
        (
            "few_problems",
            f"`{where}.problems: {problems}`, but `{source}` has {there}, and no more are used: write that "
            "number, or supply more",
        )
    ]
