"""The devices of this machine: written down for the store's leases, and looked after when attempts have gone.

A lease ends with its attempt, but a process that nobody knows of may still hold memory of a GPU. So a GPU is given away
again only when its memory is what it was before; if it does not come back, the GPU is cordoned.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping

from paribus.engines.base import Engine, Need
from paribus.store.devices import Pool
from paribus.store.records import DeviceRecord
from paribus.store.store import Store

SETTLE_S = 30.0
"""Seconds that a GPU's memory may take to be free again after an attempt."""

REMEDY = "`nvidia-smi` shows which processes use it; when they are gone the next `paribus run` uses it again."

LOOK_S = 1.0
"""Seconds between two looks at GPUs that are not free again."""


def leak_gib(memory: float) -> float:
    """Return how much more than before may be in use of a GPU of so many GiB that counts as free."""
    return max(1.0, memory / 20)


class Devices:
    """Keeps the devices of one host for one scheduler.

    Args:
        store: the store, open for writing.
        engine: the engine; one whose jobs others place has no devices, and nothing is leased.
        host: name of this machine.
        say: takes one line for people.
    """

    def __init__(self, store: Store, engine: Engine, host: str, say: Callable[[str], None]) -> None:
        self._store = store
        self._engine = engine
        self._host = host
        self._say = say
        self._numbers: Mapping[str, int] | None = None
        self._gpus: frozenset[str] = frozenset()
        self._suspects: dict[str, float] = {}
        self._next_look = 0.0

    def left(self) -> None:
        """An attempt has gone: whatever nobody holds now is looked at before it is given away."""
        self._next_look = 0.0
        for name in self._gpus:
            self._suspects.setdefault(name, time.monotonic())

    def pool(self, need: Need, busy: Collection[str]) -> Pool | None:
        """Return what a run may be given now; ``None`` where others choose.

        Args:
            need: what it holds.
            busy: GPUs that attempts had for themselves whose processes may still be there; they are not given away.
        """
        if self._numbers is None:
            found = self._engine.devices()
            self._gpus = frozenset(device.name for device in found if device.kind == "gpu")
            self._numbers = self._store.register(self._host, found)
            self.left()
        if not self._numbers:
            return None
        if need.gpus:
            self._look()
        shut = {*busy, *self._suspects}
        return Pool(host=self._host, need=need, devices={n for name, n in self._numbers.items() if name not in shut})

    def _look(self) -> None:
        """Clear those whose memory is free again, and cordon those that took too long."""
        now = time.monotonic()
        if not self._suspects or now < self._next_look:
            return
        self._next_look = now + LOOK_S
        used = {device.name: device.used for device in self._engine.devices()}
        for row in self._store.devices(self._host):
            since = self._suspects.get(row.name)
            if since is None:
                continue
            over = used.get(row.name, 0.0) - row.idle
            if not row.memory or row.held or over <= leak_gib(row.memory):
                del self._suspects[row.name]
                self._lift(row)
            elif now - since > SETTLE_S and not row.cordoned:
                self._cordon(row, used[row.name])
        if all(now - since > SETTLE_S for since in self._suspects.values()):
            self._next_look = now + SETTLE_S  # what is left is cordoned

    def _cordon(self, row: DeviceRecord, used: float) -> None:
        reason = f"{used:.1f} GiB of it are in use, {row.idle:.1f} GiB were before, and no run holds it"
        self._store.cordon(row.id, reason)
        self._say(f"GPU {row.name} is cordoned: {reason}. {REMEDY}")

    def _lift(self, row: DeviceRecord) -> None:
        if row.cordoned and not row.held:
            self._store.cordon(row.id, "")
            self._say(f"GPU {row.name} is used again")
