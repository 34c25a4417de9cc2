"""Handles supervisor requests; concurrent requests are committed together (group commit)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paribus.errors import LostLease, StoreError
from paribus.failures import storable
from paribus.store.database import retry_on_disconnect
from paribus.store.store import Store

_REPORTS = ("finish", "fail", "release", "cancelled")
_UNUSABLE = "its report cannot be used"
_LONGEST = 300


@dataclass(eq=False)
class _Pending:
    request: dict[str, Any]
    answer: dict[str, Any] | None = None
    error: Exception | None = None

    def done(self) -> bool:
        return self.answer is not None or self.error is not None


class RpcHandler:
    """Answers many threads; requests that arrive during a transaction share the next one.

    A request is answered only after its transaction has been committed.

    Attributes:
        stopping: whether this process has asked the attempts to stop, so that their interruptions don't count.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.database = store.database
        self.stopping = False
        self._waiting: list[_Pending] = []
        self._guard, self._writing = threading.Lock(), threading.Lock()
        self._closed = False

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            StoreError: the database can't be used; whether it has recorded the request is unknown.
            ValueError: the request is malformed.
        """
        mine = _Pending(request)
        with self._guard:
            self._waiting.append(mine)
        with self._writing:
            if self._closed and not mine.done():
                mine.error = StoreError("the scheduler has ended; the next one will answer")
            elif not mine.done():
                with self._guard:
                    pending, self._waiting = self._waiting, []
                self._answer_all(pending)
        if mine.error is not None:
            raise mine.error
        assert mine.answer is not None
        return mine.answer

    def close(self) -> None:
        """Wait for the current transaction and begin no other."""
        with self._writing:
            self._closed = True

    def _answer_all(self, pending: Sequence[_Pending]) -> None:
        if len(pending) > 1:
            try:
                answers = self._together([p.request for p in pending])
            except StoreError as error:
                for each in pending:
                    each.error = error
            except Exception:
                self._answer_each(pending)
            else:
                for each, answer in zip(pending, answers, strict=True):
                    each.answer = answer
        else:
            self._answer_each(pending)

    @retry_on_disconnect
    def _together(self, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        with self.database.transaction():
            return [answer_to(self._store, self._own(request)) for request in requests]

    def _answer_each(self, pending: Sequence[_Pending]) -> None:
        for each in pending:
            try:
                each.answer = answer_or_fail(self._store, self._own(each.request))
            except Exception as error:
                each.error = error

    def _own(self, request: dict[str, Any]) -> dict[str, Any]:
        return uncounted(request) if self.stopping else request


def uncounted(request: dict[str, Any]) -> dict[str, Any]:
    """Return a report without the step at which its attempt was interrupted, so that this does not count."""
    return {key: value for key, value in request.items() if key != "reached"}


def answer_to(store: Store, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out a request and return its answer."""
    run, token = int(request["run"]), int(request["token"])
    ago = None if request.get("ago_s") is None else max(0.0, float(request["ago_s"]))
    try:
        match request.get("do"):
            case "start" | "renew" as do:
                renewal = store.start(run, token, ago_s=ago or 0.0) if do == "start" else store.renew(run, token)
                return {"ok": True, "lease_s": renewal.lease_s, "cancel": renewal.cancel}
            case "finish":
                store.finish(run, token, request["payload"], stopped_early=request["stopped_early"], ago_s=ago)
            case "fail":
                store.fail(run, token, request["kind"], request["reason"], request["signature"], ago_s=ago)
            case "release":
                steps = {"step": request.get("step"), "reached": request.get("reached")}
                store.release(run, token, request["reason"], wait_s=request["wait_s"], **steps, ago_s=ago)
            case "cancelled":
                store.cancelled(run, token, ago_s=ago)
            case other:
                return {"ok": False, "lost": False, "error": f"unknown request {other!r}"}
    except LostLease as error:
        return {"ok": False, "lost": True, "error": str(error)}
    return {"ok": True}


def answer_or_fail(store: Store, request: dict[str, Any]) -> dict[str, Any]:
    """Carry out a request; record a report that the database can't hold as a failure of the program instead.

    Such a report would not improve when sent again: the supervisor must not retry forever, nor may the run.

    Raises:
        StoreError: the database can't be used.
        KeyError: the request is incomplete, so no supervisor has written it.
    """
    try:
        return answer_to(store, request)
    except (StoreError, KeyError):
        raise
    except Exception as error:
        if request.get("do") not in _REPORTS:
            raise
        message = str(error).partition("\n")[0]
        reason = storable(f"{_UNUSABLE}: {type(error).__name__}: {message}")[:_LONGEST]
        failed = {"do": "fail", "kind": "program", "reason": reason, "signature": _UNUSABLE}
        return answer_to(store, {"run": request["run"], "token": request["token"], **failed})
