"""A cache for values that are costly to make: bounded, thread-safe, and valid until what they depend on changes."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Cache(Generic[K, V]):
    """The most recently used values by key. Threads that request the same value wait for one computation.

    Args:
        size: most values that are kept.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()

    def get(
        self, key: K, stamp: Hashable, make: Callable[[], V], lasts_s: Callable[[V], float] = lambda _: math.inf
    ) -> V:
        """Return the value of a key, computed again if its stamp has changed.

        Args:
            key: identifies the value.
            stamp: what the value depends on.
            make: computes the value; an exception passes through, and nothing is kept.
            lasts_s: value to the seconds for which it is kept at most.
        """
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            while len(self._entries) > self._size:
                self._entries.popitem(last=False)
        with entry.lock:
            if not entry.made or entry.stamp != stamp or time.monotonic() >= entry.until:
                entry.value = make()
                entry.stamp, entry.made = stamp, True
                entry.until = time.monotonic() + lasts_s(entry.value)
            return entry.value

    def peek(self, key: K) -> V | None:
        """Return the last value of a key without waiting, whatever its stamp; ``None`` if it was never computed."""
        with self._lock:
            entry = self._entries.get(key)
        return entry.value if entry is not None and entry.made else None


class _Entry(Generic[V]):
    value: V

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.stamp: Hashable = None
        self.made = False
        self.until = math.inf
