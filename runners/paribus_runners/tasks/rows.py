"""Reads rows: JSON lines, Parquet files, datasets of the Hugging Face hub and folders with copies of them.

JSON lines need no package. The rest is read by the library ``datasets``, which runs no code of a dataset; a dataset of
the hub is downloaded as a whole into the hub's cache, and read from there without a network afterwards.
"""

from __future__ import annotations

import glob
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from paribus.contract import files_in, input_hash
from paribus.errors import MissingExtra, ParibusError
from paribus.recipe.recipe import LINES, Source

COMMIT = re.compile(r"[0-9a-f]{40}")
_BATCH = 1000


class Placed(NamedTuple):
    """A row and where it stands, e.g. ``train.jsonl:17``; one that cannot be read is a text that says why."""

    place: str
    row: Mapping[str, Any] | str


def place_of(source: Source) -> str:
    """Return what a source is called in messages: its path, or name with configuration and split."""
    parts = [source.path or source.name or "", source.config, source.split]
    return " ".join(part for part in parts if part)


def pinned(source: Source) -> bool:
    """Return whether a source cannot change on the hub: it is local, or its revision is a commit."""
    return source.name is None or bool(source.revision and COMMIT.fullmatch(source.revision))


def is_lines(source: Source) -> bool:
    """Return whether a source is a file of JSON lines."""
    return source.path is not None and Path(source.path).suffix.lower() in LINES


def rows(source: Source, field: str, columns: Sequence[str] = ()) -> Iterator[Placed]:
    """Yield the rows of a source in order.

    Args:
        source: where they are.
        field: path of the source in the recipe, for messages.
        columns: top-level columns that are wanted; absent: all.

    Raises:
        ParibusError: the source cannot be read.
        MissingExtra: it needs the library ``datasets``, which is not installed.
    """
    path = Path(source.path).expanduser() if source.path else snapshot(source, field)
    _refuse_missing(path, source, field)
    if is_lines(source) and path.is_file():
        yield from _lines(path, field)
    else:
        yield from _table(path, source, field, columns)


def content_hash(source: Source, field: str) -> object:
    """Return what identifies the content of a source: hashes of files, or name and commit.

    Raises:
        ParibusError: it cannot be read, or the commit of a dataset that is not pinned cannot be found.
    """
    if source.path is None:
        commit = source.revision if pinned(source) else snapshot(source, field).name
        return [source.name, commit, source.config, source.split]
    path = Path(source.path).expanduser()
    _refuse_missing(path, source, field)
    files = files_in(path) if path.is_dir() else [path]
    with _reading(path, field):
        return [[p.relative_to(path).as_posix(), input_hash(p)] for p in files] + [source.config, source.split]


def snapshot(source: Source, field: str) -> Path:
    """Return the folder with a dataset of the hub, downloaded if it is not in the cache; it is named by its commit.

    Raises:
        ParibusError: it cannot be reached, or is not there.
    """
    try:
        return _downloaded(source.name or "", source.revision)
    except (OSError, ValueError) as error:  # among them all errors of the hub
        at = f" --revision {source.revision}" if source.revision else ""
        raise ParibusError(
            f"`{field}`: the dataset {source.name}{f' at {source.revision}' if at else ''} is not in the cache of the "
            f"Hugging Face hub, and cannot be downloaded: {_first_line(error)}. On a machine with network and the same "
            f"cache (HF_HOME) run `hf download --repo-type dataset {source.name}{at}`, or name a copy by `path`"
        ) from error


@lru_cache
def _downloaded(name: str, revision: str | None) -> Path:
    """Return the folder of a dataset; the first answer holds in this process, so that hash and rows agree."""
    with _library():
        import datasets  # noqa: F401 - said to be missing before anything is downloaded
        from huggingface_hub import snapshot_download
    return Path(snapshot_download(name, repo_type="dataset", revision=revision))


def _refuse_missing(path: Path, source: Source, field: str) -> None:
    if not path.exists():
        where = "" if path.is_absolute() else f" in {Path.cwd()}, where relative paths begin"
        raise ParibusError(f"`{field}`: there is no {path}{where}")
    if path.is_file() and (source.config or source.split):
        raise ParibusError(f"`{field}`: {path} is a file, and has no `config` or `split`: leave them out")
    if path.is_dir() and source.split is None:
        raise ParibusError(f"`{field}`: {path} is a folder: name a `split`, e.g. `split: train`")


def _lines(path: Path, field: str) -> Iterator[Placed]:
    with _reading(path, field), path.open("rb") as file:
        for n, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield Placed(f"{path}:{n}", f"not JSON: {_first_line(error)}")
                continue
            yield Placed(f"{path}:{n}", row if isinstance(row, dict) else "not an object: write `{...}` on each line")


def _table(path: Path, source: Source, field: str, columns: Sequence[str]) -> Iterator[Placed]:
    name = place_of(source)
    with _library():
        import datasets
    datasets.disable_progress_bars()
    with _reading(path, field):
        if path.is_file():
            if path.suffix.lower() != ".parquet":
                raise ParibusError(f"`{field}`: {path} must end in .jsonl, .json, .ndjson or .parquet")
            files = glob.escape(str(path))  # the library reads a path as a pattern
            builder = datasets.load_dataset_builder("parquet", data_files=files)
        else:
            builder = datasets.load_dataset_builder(str(path), source.config)
        if hasattr(builder.config, "batch_size"):  # of Parquet: the size that the library takes from an empty file is 0
            builder.config.batch_size = _BATCH
        table = builder.as_streaming_dataset(split="train" if path.is_file() else source.split)
        if columns and table.column_names and set(columns) <= set(table.column_names):
            table = table.select_columns(list(columns))
        n = 0
        for batch in table.iter(batch_size=_BATCH):
            for values in zip(*batch.values(), strict=True):
                n += 1
                yield Placed(f"{name} row {n}", dict(zip(batch, values, strict=True)))


@contextmanager
def _reading(path: Path, field: str) -> Iterator[None]:
    """Turn whatever the reader of a damaged file raises into an error with its place."""
    try:
        yield
    except (ParibusError, GeneratorExit):
        raise
    except Exception as error:  # readers of Parquet and of dataset cards have no common base of errors
        raise ParibusError(f"`{field}`: cannot read {path}: {_first_line(error)}") from error


@contextmanager
def _library() -> Iterator[None]:
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtra("data", f"reading Parquet files and datasets of the hub ({error.name})") from error


def _first_line(error: BaseException) -> str:
    lines: Iterable[str] = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__).rstrip(".")
