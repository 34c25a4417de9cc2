"""What a plan shows of data and model before a run: counts, the first prompt, overlap, and everything that is wrong.

Reads the problems and the model's tokenizer, and needs no torch.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paribus.contract import Evaluate, Examination
from paribus.errors import ParibusError, RunnerError, did_you_mean
from paribus.recipe.analysis.facts import other_reference
from paribus.recipe.recipe import ChainTask, DatasetTask, JsonlTask, Model, Recipe, SearchTask, Source, Task
from paribus.recipe.turns import FunctionTurns, Turns
from paribus_runners.native import chat
from paribus_runners.native.frozen import chosen, names_of
from paribus_runners.native.model_files import ModelFiles, layer_of
from paribus_runners.native.requirements import mark_faults, other_vocabulary, set_faults
from paribus_runners.native.tiny.spec import MODELS
from paribus_runners.rewards.verifiers import EXTRACT, verify_answer
from paribus_runners.tasks import chain, search
from paribus_runners.tasks.base import Rendered
from paribus_runners.tasks.dataset import Entries, Entry, conversation, entries_of
from paribus_runners.tasks.formats import verifier_of
from paribus_runners.tasks.jsonl import first_fault, problems_in
from paribus_runners.tasks.overlap import GRAM, overlap
from paribus_runners.tasks.rows import pinned, place_of, snapshot

SHOWN = 400
"""Characters of the first prompt, and of words that two problems share, in a plan."""


def examine(recipe: Recipe, evaluate: Evaluate, processes: int | None = None) -> Examination:
    """Return what a plan should say about model, task and evaluation sets.

    Args:
        recipe: the memory of its phases also depends on its schedule; all else on task, model, sampler and the length
            limit of responses alone.
        evaluate: how many problems the evaluation uses, and its further sets.
        processes: of a run on CPUs; ``None``: one, or as many as it has GPUs.
    """
    facts, faults = _trained(recipe)
    hot = (*set_faults(recipe, evaluate), *_reference_faults(recipe), *_layer_faults(recipe.model), *faults)
    tasks = [recipe.task, *(each.task for each in evaluate.sets.values())]
    if recipe.model.name in MODELS or not any(isinstance(task, DatasetTask | JsonlTask) for task in tasks):
        return Examination(faults=hot, facts=facts, problems=_stated(recipe.task))
    model = ModelFiles.of(recipe.model.name, recipe.model.revision)
    hot = (*hot, *_mark_faults(recipe.turns, model.tokenizer))
    limit = recipe.schedule.max_new_tokens
    given = recipe.turns.room if isinstance(recipe.turns, FunctionTurns) else 0
    own, read, lengths = Examination(), dict[str, Entries](), list[int]()
    fatal = "context" if recipe.rollout.engine == "vllm" else None  # vLLM takes no prompt that leaves no room
    if isinstance(recipe.task, DatasetTask):  # `support` looks at the files of `jsonl`
        own, read, lengths = _own(recipe.task, model, evaluate.problems, limit, given)
    elif isinstance(recipe.task, JsonlTask):
        read = {name: _lines(getattr(recipe.task, name), f"task.{name}") for name in ("train", "heldout")}
        written = [entry.problem.prompt for found in read.values() for entry in found.entries]
        lengths = _lengths(written, model.tokenizer)
        about = [*_overlap(read["train"], read["heldout"]), *_unanswerable(recipe.task, read)]
        about += _too_long("schedule.max_new_tokens", lengths, limit, model.context, given)
        wrong = [*(fault for found in read.values() for fault in found.faults), *_empty(read, written, lengths)]
        own = Examination(warnings=tuple(about), faults=tuple(wrong))
    sets, longest = _sets(recipe.task, model, evaluate, read, limit, given)
    if lengths:
        evaluated = max(each.problems for each in evaluate.all_sets.values() if each.task is None)
        longest = max([longest, *lengths[: len(read["train"].entries) + evaluated]])
    chats = any(isinstance(task, DatasetTask) and task.template == "chat" for task in tasks)
    heard = [warning for each in (own, *sets) for warning in each.warnings]
    heard += model.turn_warnings() if chats else ()
    wrong = [fault for each in (own, *sets) for fault in each.faults]
    return Examination(
        facts=(
            *facts,
            *(fact for each in (own, *sets) for fact in each.facts),
            *model.memory(recipe, processes),
            *model.phases(recipe, evaluate, longest if lengths else 0, processes),
        ),
        warnings=tuple((code, message) for code, message in heard if code != fatal),
        faults=(*wrong, *(message for code, message in heard if code == fatal), *model.faults, *hot),
        problems=len(read["train"].entries) or None if "train" in read else _stated(recipe.task),
    )


def _stated(task: Task) -> int | None:
    """Return the training problems that a generated task says it has; ``None`` where it has new ones without end."""
    return task.problems if isinstance(task, ChainTask | SearchTask) else None


def _trained(recipe: Recipe) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a line on what is trained where that is not all, and what is wrong with it, as far as names are known."""
    model = recipe.model
    if model.train is None and model.freeze is None:
        return (), ()
    if model.name in MODELS:
        names, sizes = names_of(MODELS[model.name]), {}
    else:
        shapes = ModelFiles.of(model.name, model.revision).parameters
        names, sizes = [*shapes], {name: math.prod(shape) for name, shape in shapes.items()}
    if not names:
        return (), ()
    try:
        found = chosen(model, names)
    except RunnerError as error:
        return (), (str(error),)
    numbers = f" with {sum(sizes[name] for name in found):,} of {sum(sizes.values()):,} numbers" if sizes else ""
    setting = "freeze" if model.train is None else "train"
    entries = ", ".join(getattr(model, setting))
    return (f"trained with `model.{setting}: [{entries}]`: {len(found)} of {len(names)} parameters{numbers}",), ()


def _layer_faults(model: Model) -> list[str]:
    """Return which layers for adapters the model does not have, as far as its names are known."""
    if model.lora is None or model.lora.layers is None:
        return []
    if model.name in MODELS:
        names = [name for name in names_of(MODELS[model.name]) if "norm" not in name]
    else:
        shapes = ModelFiles.of(model.name, model.revision).parameters
        names = [name for name, shape in shapes.items() if len(shape) == 2]
    there = {layer_of(name) for name in names} - {""}
    unknown = [name for name in model.lora.layers if there and name not in there]
    return [
        f"`model.lora.layers`: `{name}` is the name of no linear layer in the blocks of the model, which has "
        f"{', '.join(f'`{each}`' for each in sorted(there))}.{did_you_mean(name, there)}"
        for name in unknown
    ]


def _reference_faults(recipe: Recipe) -> list[str]:
    """Return why another model cannot be the reference, as far as its files are here."""
    other = other_reference(recipe)
    if other is None or {other.name, recipe.model.name} <= MODELS.keys():
        return []
    found = []
    for name, revision in ((recipe.model.name, recipe.model.revision), (other.name, other.revision)):
        if name in MODELS:
            task = recipe.task.kind
            symbols = chain.SYMBOLS if task == "chain" else search.SYMBOLS if task == "search" else ""
            found.append({symbol: number for number, symbol in enumerate(symbols)})
        else:
            files = ModelFiles.of(name, revision, "kl.reference.name" if name == other.name else "model.name")
            if files.tokenizer is None:
                return list(files.faults) if name == other.name else []
            found.append(files.tokenizer.get_vocab())
    problem = other_vocabulary(other.name, *found)
    return [problem] if problem else []


def _mark_faults(turns: Turns, tokenizer: Any) -> list[str]:
    """Return which texts cannot end a turn, if the tokenizer is here."""
    if tokenizer is None or not isinstance(turns, FunctionTurns):
        return []
    return mark_faults(
        turns.marks, lambda text: tokenizer(text, add_special_tokens=False).input_ids, tokenizer.unk_token_id
    )


def nearest_file(fault: str) -> str:
    """Return `` Did you mean `x`?`` for a file that is not there, if the folder has one with nearly this name."""
    found = re.search(r"cannot read (.+): No such file|there is no (\S+) in .*, where relative paths begin", fault)
    path = Path(found[1] or found[2]) if found else Path()
    if found is None or not path.parent.is_dir():
        return ""
    return did_you_mean(str(path), [str(other) for other in path.parent.iterdir()])


def _own(
    task: DatasetTask, model: ModelFiles, problems: int, limit: int, given: int
) -> tuple[Examination, dict[str, Entries], list[int]]:
    """Return what to say about the task that a run trains on, what its sources hold, and the tokens of all prompts."""
    read, faults = _read(task, ("train", "heldout"))
    facts: list[str] = []
    lengths: list[int] = []
    warnings = [("unpinned", message) for message in _unpinned(task, found=bool(read))]
    if read:
        written, wrong = _prompts(task, model, read)
        lengths = _lengths(written, model.tokenizer)
        facts = [_counts(task, read), *_shown(written, lengths, model, read["train"].entries[0])]
        faults += [*wrong, *_empty(read, written, lengths)]
        warnings += [*_overlap(read["train"], read["heldout"]), *_few(read["heldout"], problems)]
        warnings += [
            *_unanswerable(task, read),
            *_too_long("schedule.max_new_tokens", lengths, limit, model.context, given),
        ]
    found = Examination(facts=tuple(facts), warnings=tuple(warnings), faults=tuple(faults))
    return found, read, lengths


def _sets(
    own: Task, model: ModelFiles, evaluate: Evaluate, read: Mapping[str, Entries], limit: int, given: int
) -> tuple[list[Examination], int]:
    """Return what to say about each evaluation set with problems of its own, and the longest prompt of all.

    Args:
        own: the task that a run trains on.
        model: its model.
        evaluate: the sets.
        read: what the sources of this task hold; empty if they have faults.
        limit: tokens of a response where a set has no limit of its own.
        given: tokens that an environment may add to a response.
    """
    named = {name: each for name, each in evaluate.sets.items() if isinstance(each.task, DatasetTask | JsonlTask)}
    if not named:
        return [], 0
    train = read.get("train", Entries())
    found: list[Examination] = []
    longest = 0
    for name, each in named.items():
        stated = each.problems if each.problems != evaluate.problems else 0
        most = each.max_new_tokens or limit
        said, lengths = _set(f"evaluate.sets.{name}", each.task, model, train, (stated, most, given))
        found.append(said)
        longest = max([longest, *lengths[: each.problems]])
    return found, longest


def _set(
    where: str, task: Task | None, model: ModelFiles, train: Entries, numbers: tuple[int, int, int]
) -> tuple[Examination, list[int]]:
    """Return what to say about an evaluation set, and the tokens of its prompts; its messages begin with its place.

    The numbers are its problems, and the tokens of a response that the model and an environment may write.
    """
    problems, limit, given = numbers
    facts: list[str] = []
    warnings: list[tuple[str, str]] = []
    faults: list[str] = []
    heldout, lengths = Entries(), list[int]()
    if isinstance(task, JsonlTask):  # the plan counts its lines
        heldout = _lines(task.heldout, "task.heldout")
        lengths = _lengths([entry.problem.prompt for entry in heldout.entries], model.tokenizer)
        faults += heldout.faults
    elif isinstance(task, DatasetTask):
        read, faults = _read(task, ("heldout",))
        warnings += [("unpinned", f"`{where}`: {message}") for message in _unpinned(task, found=bool(read))]
        if read:
            heldout = read["heldout"]
            written, wrong = _prompts(task, model, read)
            lengths = _lengths(written, model.tokenizer)
            faults += [*wrong, *_empty(read, written, lengths)]
            warnings += _too_long(f"{where}.max_new_tokens", lengths, limit, model.context, given)
            facts.append(f"`{where}`: {_count(heldout, 'problems', place_of(task.heldout))}")
            warnings += _few(heldout, problems, where, f"{where}.task.heldout")
    heard = [*_overlap(train, heldout, "problems of this set"), *_unanswerable(task, {"heldout": heldout})]
    warnings += [(code, f"`{where}`: {message}") for code, message in heard]
    marked = tuple(f"`{where}`: {fault}" for fault in faults)
    return Examination(facts=tuple(facts), warnings=tuple(warnings), faults=marked), lengths


def _lines(path: str, field: str) -> Entries:
    """Return the problems of a file of the task ``jsonl``; none if its first or last line is damaged, as others say."""
    if not Path(path).expanduser().is_file() or first_fault(JsonlTask(train=path, heldout=path)):
        return Entries()
    try:
        problems = problems_in(path, field)
    except ParibusError as error:
        return Entries(faults=tuple(str(error).split("\n")))
    return Entries(tuple(Entry(x, (), f"problem {n} of {path}") for n, x in enumerate(problems, 1)), len(problems))


def _read(task: DatasetTask, names: Sequence[str]) -> tuple[dict[str, Entries], list[str]]:
    """Return what sources hold, and what is wrong with them; of a source with faults nothing else is said."""
    read: dict[str, Entries] = {}
    faults: list[str] = []
    for name in names:
        try:
            read[name] = entries_of(task, name)
            faults += map(_with_remedy, read[name].faults)
        except ParibusError as error:
            faults.append(_with_remedy(str(error)))
    return ({} if faults else read), faults


def _with_remedy(fault: str) -> str:
    if fault.endswith(" holds no problems"):
        return f"{fault}: write one row for each, or name another source"
    nearest = nearest_file(fault)  # as :meth:`.runner.NativeRunner.hashes` says it, so that it is said once
    return f"{fault}.{nearest}" if nearest else fault


def _prompts(task: DatasetTask, model: ModelFiles, read: dict[str, Entries]) -> tuple[list[str], list[str]]:
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


def _shown(written: Sequence[str], lengths: Sequence[int], model: ModelFiles, first: Entry) -> list[str]:
    """Return lines about prompts, the first of which is shown."""
    if not written:
        return [f"first prompt: {model.unseen}"] if model.unseen else []
    facts = [_first(written[0], first)]
    if lengths:
        middle = statistics.median(lengths)
        facts.insert(0, f"prompts: {min(lengths)} to {max(lengths)} tokens, {middle:g} in the middle")
    return facts


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


def _lengths(written: Sequence[str], tokenizer: Any) -> list[int]:
    """Return the tokens of each prompt; none if they cannot be counted."""
    if tokenizer is None or not written:
        return []
    special = not isinstance(written[0], Rendered)
    return [len(ids) for ids in tokenizer(list(map(str, written)), add_special_tokens=special).input_ids]


def _empty(read: Mapping[str, Entries], written: Sequence[str], lengths: Sequence[int]) -> list[str]:
    """Return the first prompt that becomes no token, if there is one and the tokens can be counted."""
    if 0 not in lengths:
        return []
    first = lengths.index(0)
    places = [f"`task.{name}`: {entry.place}" for name, found in read.items() for entry in found.entries]
    return [f"{places[first]}: {chat.no_token(written[first])}"]


def _too_long(place: str, lengths: Sequence[int], limit: int, context: int | None, given: int) -> list[tuple[str, str]]:
    """Return a warning if prompts with ``limit`` tokens of the model and ``given`` ones are more than it can read."""
    over = [n for n in lengths if n + limit + given > (context or math.inf)]
    if not over or context is None:
        return []
    answers = f" and {given:,} tokens of answers (`turns.most` x `turns.answer_tokens`)" if given else ""
    message = (
        f"{len(over):,} of {len(lengths):,} prompts (the longest has {max(over):,} tokens) with a response of "
        f"`{place}: {limit}`{answers} are longer than the {context:,} tokens that the model was made for: lower it to "
        f"{max(context - max(over) - given, 1):,}, or leave the longest prompts out"
    )
    return [("context", message)]


def _unanswerable(task: Task | None, read: Mapping[str, Entries]) -> list[tuple[str, str]]:
    """Return a warning for each source with answers that the verifier cannot find even in themselves."""
    verifier = verifier_of(task) if isinstance(task, DatasetTask) else getattr(task, "verifier", "")
    extract = EXTRACT.get(verifier)
    if extract is None:  # math_verify reads what it can as mathematics, and the rest as text
        return []
    shape = "\\boxed{%s}" if verifier == "boxed" else "%s"
    found = []
    for name, held in read.items():
        answers = [(x.problem.answer, x.place) for x in held.entries]
        lost = [(a, place) for a, place in answers if not verify_answer(extract, a, shape % a).correct]
        if lost:
            message = (
                f"`task.{name}`: `verifier: {verifier}` cannot find {len(lost):,} of {len(answers):,} answers, e.g. "
                f"`{lost[0][0][:SHOWN]}` ({lost[0][1]}): no response to these problems can be right. Choose another "
                "verifier, or leave them out"
            )
            found.append(("unanswerable", message))
    return found


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
