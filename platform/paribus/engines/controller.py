"""Asks the controller of a cluster without waiting long: a controller may hang, and the scheduler has other work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

_PROBE_S = 0.2
_LONGEST_S = 20.0

WAIT_S = 5.0
"""Seconds that a question is waited for; afterwards the user sees that the controller doesn't answer.

After a late answer, it is waited for twice as long as that took, up to 20 s: a slow controller isn't away.
"""

RETRY_S = 10.0
"""Seconds between two questions to a controller that doesn't answer."""


class Away(Exception):
    """The controller does not answer now; it may later."""


@dataclass(frozen=True, kw_only=True)
class _Question:
    what: str
    since: float
    answer: Future[Any]
    then: Callable[[Future[Any]], object]


class Controller:
    """One question at a time, each in a thread of its own; answers are handed over in the caller's thread.

    A question that is not answered within :data:`WAIT_S` stays open. Until it is answered there is no other one, and
    as long as the controller is away only those that find out whether it is back (``probe``).

    Attributes:
        trouble: why the controller doesn't answer; empty if it does.
    """

    def __init__(self, wait_s: float = WAIT_S, retry_s: float = RETRY_S) -> None:
        self.trouble = ""
        self._wait_s = wait_s
        self._retry_s = retry_s
        self._retry_at = float("-inf")
        self._open: _Question | None = None

    @property
    def busy(self) -> bool:
        """Whether a question is open."""
        return self._open is not None

    def ask(
        self,
        what: str,
        call: Callable[[], T],
        then: Callable[[Future[T]], object] = Future.result,
        *,
        probe: bool = False,
    ) -> None:
        """Ask, and hand the answer to ``then``: now or, if it comes late, in a later call of :meth:`turn`.

        Args:
            what: the question, in a word or two for users.
            call: returns the answer and must end at some time; raises :class:`Away` if there is none.
            then: what to do with an answer; ``result()`` raises other exceptions of ``call``.
            probe: ask also while the controller is away.

        Raises:
            Away: there is no answer yet; unless ``probe`` is set, it may not have been asked.
        """
        self.turn()
        if self._open is not None or time.monotonic() < self._retry_at or (self.trouble and not probe):
            raise Away(self.trouble)
        answer = Future[T]()
        question = self._open = _Question(what=what, since=time.monotonic(), answer=answer, then=then)
        threading.Thread(target=_answer, args=(call, answer), daemon=True).start()
        wait([answer], timeout=_PROBE_S if self.trouble else self._wait_s)
        self.turn()
        if self._open is question or self.trouble:
            raise Away(self.trouble)

    def turn(self) -> None:
        """Hand over the answer to the open question if it is there; call this often."""
        question = self._open
        if question is None:
            return
        if not question.answer.done():
            if not self.trouble:
                self.trouble = f"{question.what}: no reply in {self._wait_s:.0f} s"
            return
        self._open = None
        error = question.answer.exception()
        if isinstance(error, Away):
            self.trouble = str(error)
            self._retry_at = time.monotonic() + self._retry_s
            return
        took = time.monotonic() - question.since
        if took > self._wait_s:
            self._wait_s = min(_LONGEST_S, 2 * took)
        self.trouble = ""
        question.then(question.answer)


def _answer(call: Callable[[], T], answer: Future[T]) -> None:
    try:
        answer.set_result(call())
    except Exception as error:  # raised where the answer is used
        answer.set_exception(error)
