"""From the metric names of other trainers to the canonical ones, by one table (``mapping.yaml``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from paribus.errors import LogFileError
from paribus.health.signals import SIGNALS
from paribus.recipe.document import plain, read_document
from paribus.track.metrics import find_metric

PARIBUS = "paribus"
"""The trainer of logs that use the canonical names."""

_CHANGES: Mapping[str, Callable[[float], float]] = {
    "": lambda x: x,
    "one_minus": lambda x: 1 - x,
    "minus_one": lambda x: x - 1,
    "percent": lambda x: x / 100,
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a canonical metric comes from.

    Attributes:
        keys: names in the log, or patterns with ``*``; the first that is there counts.
        tag: ``exact``, or ``proxy``: near enough to watch, not to compare.
        change: what is done to the value.
    """

    keys: tuple[str, ...]
    tag: str = "exact"
    change: str = ""


@dataclass(frozen=True, kw_only=True)
class Mapped:
    """How the metrics of one log are read.

    Attributes:
        trainer: whose names they are.
        keys: name in the log to canonical metric and its source.
        unread: the other names in the log, sorted.
    """

    trainer: str
    keys: Mapping[str, tuple[str, Source]]
    unread: tuple[str, ...]

    @property
    def proxies(self) -> tuple[str, ...]:
        """Return the canonical metrics that are only near what their name says."""
        return tuple(sorted(name for name, source in self.keys.values() if source.tag == "proxy"))

    def read(self, values: Mapping[str, float]) -> dict[str, float]:
        """Return the canonical metrics of one record."""
        found = ((self.keys[k], v) for k, v in values.items() if k in self.keys)
        return {name: _CHANGES[source.change](v) for (name, source), v in found}


@cache
def sources() -> Mapping[str, Mapping[str, Source]]:
    """Return trainer to canonical metric to where it comes from."""
    raw: Any = plain(read_document(Path(__file__).parent / "mapping.yaml").checked())
    return {
        trainer: {m: Source(**{**s, "keys": tuple(s["keys"])}) for m, s in table.items()}
        for trainer, table in raw.items()
    }


def map_keys(keys: Iterable[str], place: str, trainer: str | None = None) -> Mapped:
    """Return how to read a log with these metric names.

    Args:
        keys: all metric names of the log.
        place: the log, for messages.
        trainer: whose names they are; absent: whoever knows most of them.

    Raises:
        LogFileError: no trainer knows any of them.
    """
    names = sorted(set(keys))
    tables = {name: _mapped(name, names) for name in (PARIBUS, *sources()) if trainer in (None, name)}
    best = max(tables.values(), key=lambda m: len(m.keys))
    if not best.keys:
        shown = ", ".join(f"`{n}`" for n in names[:5]) or "none"
        whose = f"of {trainer}" if trainer else f"of {', '.join(tables)}"
        message = f"{place}: no metric {whose} is in it; it has {shown}. See docs/health.md for the names that are read"
        raise LogFileError(message)
    return best


def _mapped(trainer: str, names: list[str]) -> Mapped:
    found: dict[str, tuple[str, Source]] = {}
    if trainer == PARIBUS:
        found = {n: (n, Source(keys=(n,))) for n in names if find_metric(n) is not None or n in SIGNALS}
    known = {**{_as_in_trackers(n): n for n in names}, **{n: n for n in names}}  # a name as it stands goes first
    for metric, source in sources().get(trainer, {}).items():
        hits = [known[k] for pattern in source.keys for k in sorted(known) if fnmatchcase(k, pattern)]
        if hits:
            found[hits[0]] = (metric, source)
    return Mapped(trainer=trainer, keys=found, unread=tuple(n for n in names if n not in found))


def _as_in_trackers(name: str) -> str:
    """Return a name before the writers of transformers changed it for W&B and TensorBoard: `train/` and `eval/`."""
    return f"eval_{name[5:]}" if name.startswith("eval/") else name.removeprefix("train/")
