"""A run that is asked to stop leaves its step between two forward passes, because a step may take minutes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import nn

from paribus.contract import PREEMPTED

FINISH_S = 5.0
"""Seconds that a step may still take to its end once weights have changed in it: a short step is not lost."""


class Stopped(SystemExit):
    """The run was asked to stop and has left its step."""

    def __init__(self) -> None:
        super().__init__(PREEMPTED)


class StopCheck:
    """Raises :class:`Stopped` before a forward pass of any of the networks, once the run was asked to stop.

    Sampling makes a pass for each token, so that generation is left within a token, too: a sampler that makes passes of
    its own calls :meth:`pass_made`.

    Args:
        asked: returns True once the run must stop.
        networks: all networks of the run.
        progress: called at each pass.

    Attributes:
        asked: as given.
        changed: whether weights have changed since the newest complete step, so that they cannot be saved as they are.
    """

    def __init__(
        self, asked: Callable[[], bool], networks: Iterable[nn.Module], progress: Callable[[], None] = lambda: None
    ) -> None:
        self.changed = False
        self._progress = progress
        self.asked, self._since = asked, float("inf")
        for network in networks:
            network.register_forward_pre_hook(lambda *_: self.pass_made())

    def pass_made(self) -> None:
        """Note progress, and stop as :meth:`check` does."""
        self._progress()
        self.check()

    def check(self) -> None:
        """Stop if the run was asked to and has no time left.

        Raises:
            Stopped: the step must be left.
        """
        if self.asked():
            now = time.monotonic()
            self._since = min(self._since, now)
            if now - self._since >= (FINISH_S if self.changed else 0.0):
                raise Stopped


class Termination:
    """Whether SIGTERM has come. Before training has begun there is nothing to keep, and loading ends where it is.

    No ``threading.Event``: its lock would block for ever where a second signal comes while the first is noted.

    Attributes:
        begun: whether training has begun.
    """

    def __init__(self) -> None:
        self.begun = False
        self._come = False

    def is_set(self) -> bool:
        """Return whether the signal has come."""
        return self._come

    def arrive(self, *_: object) -> None:
        """Take the signal."""
        self._come = True
        if not self.begun:
            raise SystemExit(PREEMPTED)


@contextmanager
def termination() -> Iterator[Termination]:
    """Note SIGTERM for the duration; only the main thread may handle signals."""
    asked = Termination()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.signal(signal.SIGTERM, asked.arrive)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)
