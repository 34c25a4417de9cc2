"""Canonical names of metrics that arrive one by one, over the mapping that logs are read with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from paribus.errors import LogFileError
from paribus.external.importing import PRIMARY
from paribus.health.import_logs import PARIBUS, Mapped, logged_name, map_keys
from paribus.run_folder.metrics import Source
from paribus.run_folder.native_names import NativeNames

UNKNOWN = "own"
"""Stands for the trainer in the names of numbers that nothing is known of."""


class LiveNames:
    """What the names mean that have been seen so far.

    Args:
        trainer: whose names they are; empty: the trainer that knows most of the first ones.

    Attributes:
        native: the names of numbers that are not canonical.
    """

    def __init__(self, trainer: str) -> None:
        self.trainer = trainer
        self._seen: frozenset[str] = frozenset()
        self._mapped: Mapped | None = None
        self.native = NativeNames()

    @property
    def sources(self) -> dict[str, str]:
        """Canonical metric to the trainer's own name."""
        keys = self._mapped.keys if self._mapped else {}
        return {metric: logged_name(name) for name, (metric, _) in sorted(keys.items())}

    def learn(self, names: Iterable[str]) -> frozenset[str]:
        """Take names in; return the canonical metrics that are known now."""
        fresh = self._seen | frozenset(names)
        if fresh != self._seen:
            self._seen = fresh
            try:
                self._mapped = map_keys(fresh, "the tracked program", self.trainer or None)
                self.trainer = self._mapped.trainer
            except LogFileError:  # no name is known yet
                self._mapped = None
        return frozenset(metric for metric, _ in self._mapped.keys.values()) if self._mapped else frozenset()

    def primary(self, metrics: frozenset[str]) -> str:
        """Return the metric of the tables if the user names none."""
        return next((name for name in PRIMARY if name in metrics), PRIMARY[-1])

    def line(self, values: Mapping[str, float]) -> tuple[dict[str, float], dict[str, Source]]:
        """Return the canonical metrics of a record with its own numbers beside them, and the sources of the former."""
        self.learn(values)
        mapped = self._mapped
        canonical = mapped.read(values) if mapped else {}
        trainer = self.trainer or UNKNOWN
        if trainer == PARIBUS:  # canonical names are no names of another trainer
            trainer, values = UNKNOWN, {n: v for n, v in values.items() if not mapped or n not in mapped.keys}
        self.native.learn(values)
        own = {f"native/{trainer}/{self.native.of(name)}": value for name, value in values.items()}
        proxies: dict[str, Source] = {name: "proxy" for name in (mapped.proxies if mapped else ()) if name in canonical}
        return {**own, **canonical}, proxies
