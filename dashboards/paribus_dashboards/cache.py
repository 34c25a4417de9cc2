"""Keeps what is costly to make, as long as what it was made of has not changed; bounded, and safe between threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Kept(Generic[K, V]):
    """Values by key, those that were asked for last.

    Args:
        size: how many are kept.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()

    def get(self, key: K, stamp: Hashable, make: Callable[[], V]) -> V:
        """Return the value of a key; made anew where its stamp is another, by one thread while others wait for it.

        Args:
            key: what is asked for.
            stamp: what it depends on.
            make: makes it; what it raises is raised here, and nothing is kept.
        """
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
        with entry.lock:
            if not entry.made or entry.stamp != stamp:
                entry.value = make()
                entry.stamp, entry.made = stamp, True
            return entry.value

    def known(self, key: K) -> V | None:
        """Return the value of a key as it was made last, at once; ``None`` if it never was."""
        with self._lock:
            entry = self._entries.get(key)
        return entry.value if entry is not None and entry.made else None


class _Entry(Generic[V]):
    value: V

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stamp: Hashable = None
        self.made = False
