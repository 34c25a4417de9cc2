"""Hashes of what the numbers of a run depend on: code, data, initial model. Light: no torch."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from paribus.errors import ParibusError
from paribus.recipe.recipe import JsonlTask, Recipe, fingerprint_of
from paribus_runners.native.tiny.spec import MODELS, WarmUp

HERE = Path(__file__).parent


def code(recipe: Recipe) -> str:
    """Return a hash of the trainer's source; that of the tasks is part of it."""
    return _hash_files(HERE, sorted(HERE.rglob("*.py")))


def data(recipe: Recipe) -> str:
    """Return a hash of problems and verifier.

    Raises:
        ParibusError: a problem file cannot be read.
    """
    task = recipe.task
    source = _hash_files(HERE, [HERE / "task" / "base.py", HERE / "task" / f"{task.kind}.py"])
    if isinstance(task, JsonlTask):
        files = [_hash_file(Path(p).expanduser(), f"task.{k}") for k, p in _files(task)]
        return fingerprint_of([source, task.verifier, files])
    return fingerprint_of([source, task.kind, task.problems])


def model(recipe: Recipe) -> str:
    """Return a hash of the initial model.

    Raises:
        ParibusError: a file of a local model cannot be read.
    """
    name = recipe.model.name
    if name in MODELS:
        made_by = [*sorted((HERE / "tiny").glob("*.py")), HERE / "task" / f"{recipe.task.kind}.py"]
        warm_up = WarmUp.of(recipe.task)
        return fingerprint_of([MODELS[name].record(), warm_up.record(), _hash_files(HERE, made_by)])
    folder = Path(name).expanduser()
    if folder.is_dir():
        return _hash_files(folder, sorted(p for p in folder.rglob("*") if p.is_file()))
    return f"{name}@{recipe.model.revision or 'main'}"


def _files(task: JsonlTask) -> Iterable[tuple[str, str]]:
    return (("train", task.train), ("heldout", task.heldout))


def _hash_files(root: Path, paths: Iterable[Path]) -> str:
    return fingerprint_of([[p.relative_to(root).as_posix(), _hash_file(p, "model.name")] for p in paths])


def _hash_file(path: Path, field: str) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ParibusError(f"`{field}`: cannot read {path}: {error.strerror or error}") from error
