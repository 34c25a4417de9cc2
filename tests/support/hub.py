"""Datasets in files, in the shape that they have on the Hugging Face hub, and in a cache of the hub."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Row = Mapping[str, Any]


def gsm8k(start: int, count: int, word: str = "pens") -> list[Row]:
    """Return rows in the format of GSM8K."""
    return [
        {"question": f"Ann has {i} {word} and buys {i % 7}. How many?", "answer": f"{i}+{i % 7}\n#### {i + i % 7:,}"}
        for i in range(start, start + count)
    ]


def write_lines(path: Path, rows: Sequence[Row]) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_parquet(path: Path, rows: Sequence[Row]) -> Path:
    """Write a Parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(list(rows)), path)
    return path


def write_repository(folder: Path, configs: Mapping[str, Mapping[str, Sequence[Row]]]) -> Path:
    """Write a dataset as its repository on the hub has it: Parquet files, and their place in the card."""
    lines = ["---", "configs:"]
    for config, splits in configs.items():
        lines += [f"- config_name: {config}", "  data_files:"]
        for split, rows in splits.items():
            write_parquet(folder / config / f"{split}-00000-of-00001.parquet", rows)
            lines += [f"  - split: {split}", f"    path: {config}/{split}-*"]
    (folder / "README.md").write_text("\n".join([*lines, "---", "# A dataset", ""]))
    return folder


def write_cache(cache: Path, name: str, configs: Mapping[str, Mapping[str, Sequence[Row]]]) -> Path:
    """Write a dataset into a cache of the hub, as a download leaves it; ``main`` is :data:`COMMIT`."""
    folder = cache / f"datasets--{name.replace('/', '--')}"
    write_repository(folder / "snapshots" / COMMIT, configs)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    return folder
