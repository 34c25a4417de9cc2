"""What a plan shows of data and model before a run: counts, the first prompt, overlap, and everything that is wrong.

Reads the problems and the model's tokenizer, and needs no torch. A model on the hub is looked at only if it is in the
local cache: a plan downloads no weights.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paribus.contract import Examination
from paribus.errors import ParibusError
from paribus.recipe.recipe import DatasetTask, JsonlTask, Recipe, Source
from paribus_runners.native import chat
from paribus_runners.native.tiny.spec import MODELS
from paribus_runners.tasks.base import Rendered
from paribus_runners.tasks.dataset import Entries, Entry, conversation, entries_of
from paribus_runners.tasks.overlap import GRAM, overlap
from paribus_runners.tasks.rows import pinned, place_of, snapshot

SHOWN = 400
"""Characters of the first prompt, and of words that two problems share, in a plan."""


def examine(recipe: Recipe, problems: int) -> Examination:
    """Return what a plan should say about task and model.

    Args:
        recipe: of which only task and model are read.
        problems: held-out problems that the evaluation uses.
    """
    task = recipe.task
    if not isinstance(task, DatasetTask | JsonlTask) or recipe.model.name in MODELS:
        return Examination()
    model = _model(recipe)
    if isinstance(task, JsonlTask):  # whose files `support` looks at
        return Examination(faults=model.faults)
    read, faults = _read(task)
    facts: list[str] = []
    warnings = [("unpinned", message) for message in _unpinned(task, found=bool(read))]
    if read:
        shown, wrong = _prompts(task, model, read)
        facts = [_counts(task, read), *shown]
        faults += wrong
        warnings += [*_overlap(read), *_few(read["heldout"], problems)]
    return Examination(facts=tuple(facts), warnings=tuple(warnings), faults=(*faults, *model.faults))


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


def _read(task: DatasetTask) -> tuple[dict[str, Entries], list[str]]:
    """Return what the sources hold, and what is wrong with them; of a source with faults nothing else is said."""
    read: dict[str, Entries] = {}
    faults: list[str] = []
    for name in ("train", "heldout"):
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
    """Return lines about the prompts as the model gets them, and of each source the first that cannot be written."""
    if task.template == "chat" and model.tokenizer is None:
        return ([f"first prompt: {model.unseen}"] if model.unseen else []), []
    written: list[str] = []
    faults: list[str] = []
    for name, found in read.items():
        for entry in found.entries:
            try:
                written.append(_written(task, model.tokenizer, entry))
            except ParibusError as error:
                faults.append(f"`task.{name}`: {entry.place}: {error}")
                break
    if faults:
        return [], faults
    return [*_lengths(written, model.tokenizer), _first(written[0], read["train"].entries[0])], []


def _written(task: DatasetTask, tokenizer: Any, entry: Entry) -> str:
    if task.template == "none":
        return entry.problem.prompt
    return Rendered(chat.render(tokenizer, conversation(task, entry)))


def _counts(task: DatasetTask, read: dict[str, Entries]) -> str:
    parts = []
    for name, words in (("train", "training problems"), ("heldout", "held out")):
        found = read[name]
        repeated = "" if found.rows == len(found.entries) else f" ({found.rows:,} rows, the others repeat them)"
        parts.append(f"{len(found.entries):,} {words} in {place_of(getattr(task, name))}{repeated}")
    return f"data: {'; '.join(parts)}"


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


def _overlap(read: dict[str, Entries]) -> list[tuple[str, str]]:
    """Return a warning if held-out problems stand in the training data too."""
    train, heldout = read["train"].entries, read["heldout"].entries
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
        f"{total} of {len(heldout):,} held-out problems stand in the training data too: {', '.join(parts)}. Their "
        "score shows memory: leave them out on one side"
    )
    return [("overlap", message)]


def _few(heldout: Entries, problems: int) -> list[tuple[str, str]]:
    there = len(heldout.entries)
    if there >= problems:
        return []
    return [
        (
            "few_problems",
            f"`evaluate.problems: {problems}`, but `task.heldout` has {there}, and no more are used: write that "
            "number, or supply more",
        )
    ]
