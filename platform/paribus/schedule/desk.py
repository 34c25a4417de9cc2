"""Does what supervisors ask for: those who ask at the same time share a transaction, and so one wait for the disk."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paribus.errors import LostLease, StoreError
from paribus.schedule.signature import storable
from paribus.store.database import again
from paribus.store.store import Store

_REPORTS = ("finish", "fail", "release", "cancelled")
_UNUSABLE = "its report cannot be used"
_LONGEST = 300


@dataclass(eq=False)
class _Asked:
    request: dict[str, Any]
    answer: dict[str, Any] | None = None
    error: Exception | None = None

    def told(self) -> bool:
        return self.answer is not None or self.error is not None


class Desk:
    """Answers many threads; who asks while a transaction is under way shares the next one.

    Nobody has an answer before the transaction that holds the request has been committed.

    Args:
        store: the store, open for writing.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self.database = store.database
        self._waiting: list[_Asked] = []
        self._guard, self._writing = threading.Lock(), threading.Lock()
        self._closed = False

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request.

        Raises:
            StoreError: the database cannot be used; whether it has the request is not known.
            ValueError: the request is none.
        """
        mine = _Asked(request)
        with self._guard:
            self._waiting.append(mine)
        with self._writing:
            if self._closed and not mine.told():
                mine.error = StoreError("the scheduler has come to its end: the next one will answer")
            elif not mine.told():
                with self._guard:
                    asked, self._waiting = self._waiting, []
                self._answer_all(asked)
        if mine.error is not None:
            raise mine.error
        assert mine.answer is not None
        return mine.answer

    def close(self) -> None:
        """Let the transaction under way come to its end, and begin no other."""
        with self._writing:
            self._closed = True

    def _answer_all(self, asked: Sequence[_Asked]) -> None:
        if len(asked) > 1:
            try:
                answers = self._together([a.request for a in asked])
            except StoreError as error:
                for each in asked:
                    each.error = error
            except Exception:
                self._answer_each(asked)
            else:
                for each, answer in zip(asked, answers, strict=True):
                    each.answer = answer
        else:
            self._answer_each(asked)

    @again
    def _together(self, requests: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        with self.database.together():
            return [answer_to(self._store, request) for request in requests]

    def _answer_each(self, asked: Sequence[_Asked]) -> None:
        for each in asked:
            try:
                each.answer = answer_or_fail(self._store, each.request)
            except Exception as error:
                each.error = error


def answer_to(store: Store, request: dict[str, Any]) -> dict[str, Any]:
    """Do what a request asks for."""
    run, token = int(request["run"]), int(request["token"])
    try:
        match request.get("do"):
            case "start" | "renew" as do:
                renewal = store.start(run, token) if do == "start" else store.renew(run, token)
                return {"ok": True, "lease_s": renewal.lease_s, "cancel": renewal.cancel}
            case "finish":
                store.finish(run, token, request["payload"], stopped_early=request["stopped_early"])
            case "fail":
                store.fail(run, token, request["kind"], request["reason"], request["signature"])
            case "release":
                store.release(run, token, request["reason"], wait_s=request["wait_s"], step=request.get("step"))
            case "cancelled":
                store.cancelled(run, token)
            case other:
                return {"ok": False, "lost": False, "error": f"unknown request {other!r}"}
    except LostLease as error:
        return {"ok": False, "lost": True, "error": str(error)}
    return {"ok": True}


def answer_or_fail(store: Store, request: dict[str, Any]) -> dict[str, Any]:
    """Do what a request asks for; a report that cannot be recorded is a failure of the program that is told in it.

    It would be no better the next time: nobody may ask for ever, and the run is not to be tried for ever.

    Raises:
        StoreError: the database cannot be used.
        KeyError: the request is not whole: no supervisor has written it.
    """
    try:
        return answer_to(store, request)
    except (StoreError, KeyError):
        raise
    except Exception as error:
        if request.get("do") not in _REPORTS:
            raise
        told = str(error).partition("\n")[0]
        reason = storable(f"{_UNUSABLE}: {type(error).__name__}: {told}")[:_LONGEST]
        failed = {"do": "fail", "kind": "program", "reason": reason, "signature": _UNUSABLE}
        return answer_to(store, {"run": request["run"], "token": request["token"], **failed})
