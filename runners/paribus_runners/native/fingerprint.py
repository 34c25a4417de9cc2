"""Hashes of what the numbers of a run depend on: code, data, initial model. Light: no torch.

Source counts by its meaning: comments, docstrings and formatting don't change a hash, a constant does. When a change
of the code provably keeps all numbers, ``same_numbers.json`` maps today's hash to the hash under which earlier runs
are recorded, so that those runs are found and not trained again. ``python -m paribus_runners.native.fingerprint``
prints today's hashes beside the table.
"""

from __future__ import annotations

import argparse
import ast
import json
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from paribus.contract import files_in, input_hash
from paribus.errors import ParibusError
from paribus.recipe.analysis.facts import other_reference
from paribus.recipe.recipe import DatasetTask, JsonlTask, Recipe, Task, fingerprint_of
from paribus.study.sources import not_python
from paribus_runners.native.requirements import of_sampler
from paribus_runners.native.tiny.spec import MODELS, WarmUp
from paribus_runners.rewards.functions import source_files
from paribus_runners.rewards.verifiers import APART
from paribus_runners.tasks.rows import content_hash

PACKAGES = Path(__file__).parents[1]
TABLE = Path(__file__).with_name("same_numbers.json")
SHARED = ("tasks", "rewards", "evaluation")
NO_NUMBERS = frozenset(
    {
        "native/coefficients.py",
        "native/examine.py",
        "native/fingerprint.py",
        "native/gradients.py",
        "native/model_files.py",
        "native/requirements.py",
        "native/runner.py",
        "native/versions.py",
        "rewards/transcripts.py",
        "tasks/overlap.py",
    }
)
"""Files that no number of a run depends on, unless its recipe names a function of theirs: :func:`data` hashes it."""
KINDS = ("chain", "search", "jsonl", "dataset")


def code(recipe: Recipe) -> str:
    """Return a hash of the source that trains, verifies and evaluates.

    The version of vLLM counts where it samples: other versions draw other tokens from the same seeds.
    """
    versions = [f"{package} {found}" for package, found in of_sampler(recipe.rollout).items()]
    return fingerprint_of([recorded("code"), *versions]) if versions else recorded("code")


def data(recipe: Recipe, sources: Mapping[str, str] | None = None) -> str:
    """Return a hash of problems, verifier, and the functions that answer turns or reward.

    Args:
        recipe: the recipe.
        sources: the files beside the study that these functions come from, by path.

    Raises:
        ParibusError: a file cannot be read, or the source of a function is not valid Python.
    """
    found = problems(recipe.task)
    functions = recipe.functions
    files = {path: text for function in functions for path, text in source_files(function, sources or {}).items()}
    if not functions:
        return found
    return fingerprint_of([found, {path: _meaning_of(path, text) for path, text in sorted(files.items())}])


def _meaning_of(path: str, text: str) -> Any:
    try:
        return meaning(text)
    except (SyntaxError, ValueError) as error:
        raise ParibusError(not_python(path, error)) from error


def problems(task: Task) -> str:
    """Return a hash of the problems and the verifier of a task.

    Runs whose verdicts a change may have moved, while all others kept theirs, have a hash of their own.

    Raises:
        ParibusError: a problem file cannot be read.
    """
    source = recorded(f"data/{task.kind}")
    if isinstance(task, JsonlTask):
        if task.verifier not in APART:
            source = fingerprint_of([source, "answers: all digits, no size limit, commas of thousands"])
        first = "task.heldout" if task.train == task.heldout else "task.train"  # an evaluation set has one file
        paths = ((first, task.train), ("task.heldout", task.heldout))
        files = [_hash_file(Path(path).expanduser(), field) for field, path in paths]
        return fingerprint_of([source, task.verifier, files])
    if isinstance(task, DatasetTask):
        held = content_hash(task.heldout, "task.heldout")  # first: an evaluation set has no other rows
        return fingerprint_of([source, task.verifier, [content_hash(task.train, "task.train"), held]])
    return fingerprint_of([source, task.kind, task.problems])


def model(recipe: Recipe) -> str:
    """Return a hash of the models that a run begins with: the policy, and the reference if that is another one.

    Raises:
        ParibusError: a local model is not there, or one of its files cannot be read.
    """
    policy = one_model(recipe.model.name, recipe.model.revision, recipe.task)
    other = other_reference(recipe)
    if other is None:
        return policy
    reference = one_model(other.name, other.revision, recipe.task, "kl.reference.name")
    return fingerprint_of([policy, "reference", reference])


def one_model(name: str, revision: str | None, task: Task, field: str = "model.name") -> str:
    """Return a hash of a model: how a tiny model is made, file contents, or name and revision.

    Args:
        name: a tiny model, a folder, or a name on the hub.
        revision: commit on the hub.
        task: what a tiny model is warmed up on.
        field: where the recipe names it, for errors.

    Raises:
        ParibusError: a local model is not there, or one of its files cannot be read.
    """
    if name in MODELS:
        return fingerprint_of([MODELS[name].record(), WarmUp.of(task).record(), recorded(f"model/{task.kind}")])
    folder = Path(name).expanduser()
    if folder.is_dir():
        hashes = [[p.relative_to(folder).as_posix(), _hash_file(p, field)] for p in files_in(folder)]
        return fingerprint_of(hashes)
    if name.startswith((".", "/", "~")):
        where = "" if folder.is_absolute() else f" in {Path.cwd()}, where relative paths begin"
        raise ParibusError(f"`{field}: {name}`: there is no such folder{where}")
    return f"{name}@{revision or 'main'}"


@cache
def recorded(part: str) -> str:
    """Return the hash under which runs are recorded: that of the table if its row fits today's source, else today's."""
    found = today(part)
    row = same_numbers().get(part)
    return row["recorded"] if row is not None and row["today"] == found else found


@cache
def today(part: str) -> str:
    """Return the hash of the source of a part: ``code``, ``data/<task>`` or ``model/<task>``."""
    return hash_source(PACKAGES, _files(part))


def parts() -> tuple[str, ...]:
    """Return the names of all parts."""
    return ("code", *(f"{what}/{kind}" for what in ("data", "model") for kind in KINDS))


def same_numbers() -> Mapping[str, Mapping[str, str]]:
    """Return the table: part to ``{"today": hash, "recorded": hash of earlier runs with the same numbers}``."""
    table: Mapping[str, Mapping[str, str]] = json.loads(TABLE.read_text())
    return table


def hash_source(root: Path, files: Iterable[Path]) -> str:
    """Return a hash of the meaning of Python files and of their paths under ``root``."""
    return fingerprint_of([[p.relative_to(root).as_posix(), meaning(p.read_text(encoding="utf-8"))] for p in files])


def meaning(source: str) -> Any:
    """Return the syntax tree of Python source as plain lists, without comments, docstrings and formatting.

    Fields that are empty are left out, because Python versions differ in which of them exist.
    """
    return _plain(ast.parse(source))


def _plain(node: object) -> Any:
    if isinstance(node, ast.Constant):
        return ["Constant", type(node.value).__name__, repr(node.value)]
    if isinstance(node, ast.AST):
        fields = ((name, _plain(value)) for name, value in ast.iter_fields(node))
        return [type(node).__name__, *([name, value] for name, value in fields if value not in (None, []))]
    if isinstance(node, list):
        return [_plain(x) for x in node if not _is_text(x)]
    return node


def _is_text(node: object) -> bool:
    """Return whether a node is a docstring, or a text that stands alone as one does."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _files(part: str) -> list[Path]:
    what, _, kind = part.partition("/")
    task = PACKAGES / "tasks" / f"{kind}.py"
    match what:
        case "data":
            readers = [PACKAGES / "tasks" / f"{name}.py" for name in ("formats", "rows")] if kind == "dataset" else []
            return [PACKAGES / "tasks" / "base.py", task, *readers, PACKAGES / "rewards" / "verifiers.py"]
        case "model":
            return [*sorted((PACKAGES / "native" / "tiny").glob("*.py")), task]
        case _:
            every = sorted(p for room in ("native", *SHARED) for p in (PACKAGES / room).rglob("*.py"))
            return [p for p in every if p.relative_to(PACKAGES).as_posix() not in NO_NUMBERS]


def _hash_file(path: Path, field: str) -> str:
    try:
        return input_hash(path)
    except OSError as error:
        raise ParibusError(f"`{field}`: cannot read {path}: {error.strerror or error}") from error


def main() -> None:
    """Print today's hashes beside the table; with ``--keep``, write them into the table's rows."""
    parser = argparse.ArgumentParser(prog="python -m paribus_runners.native.fingerprint", description=main.__doc__)
    parser.add_argument("--keep", action="store_true", help="the numbers are proven the same: earlier runs still count")
    keep = parser.parse_args().keep
    table = {part: dict(row) for part, row in same_numbers().items()}
    for part in parts():
        found, row = today(part), table.get(part)
        if row is not None and keep:
            row["today"] = found
        state = "no row" if row is None else "current" if row["today"] == found else "STALE"
        sys.stdout.write(f"{part:<13} {found}  {state}{'' if row is None else ', recorded as ' + row['recorded']}\n")
    if keep:
        TABLE.write_text(json.dumps(table, indent=1) + "\n")


if __name__ == "__main__":
    main()
