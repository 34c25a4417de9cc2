"""Coalesces identical requests: many viewers poll the same pages every few seconds, and each answer is made once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

KEEP_S = 1.0
"""Seconds for which an answer is reused; an answer that took longer to make is reused for as long as it took."""

Key = tuple[str, bytes, bytes]
"""Method, path and query string. Besides the home folder, answers depend on nothing else."""


@dataclass(frozen=True)
class Answer:
    """A whole answer, and the time until which it is reused."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    until: float


class Coalesce:
    """ASGI middleware that reuses answers for a moment and makes one answer for all concurrent requests.

    Args:
        app: makes the answers; they must not depend on the client.
        keep_s: as :data:`KEEP_S`; 0 reuses an answer for concurrent requests only.
        clock: seconds, monotonic.
    """

    def __init__(self, app: ASGIApp, *, keep_s: float = KEEP_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._app = app
        self._keep_s = keep_s
        self._clock = clock
        self._making: dict[Key, asyncio.Task[Answer]] = {}
        self._made: dict[Key, Answer] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        # Static files are kept elsewhere, and their answers depend on the accepted encoding.
        if scope["type"] != "http" or scope["path"].startswith("/static/"):
            await self._app(scope, receive, send)
            return
        found = await self._answer(scope)
        tag = next((v for k, v in found.headers if k == b"etag"), None)
        if tag is not None and (b"if-none-match", tag) in scope["headers"]:
            kept = [(k, v) for k, v in found.headers if k not in (b"content-length", b"content-type")]
            await send({"type": "http.response.start", "status": 304, "headers": kept})
            await send({"type": "http.response.body"})
            return
        await send({"type": "http.response.start", "status": found.status, "headers": list(found.headers)})
        await send({"type": "http.response.body", "body": found.body})

    async def _answer(self, scope: Scope) -> Answer:
        key = scope["method"], scope["path"].encode(), scope["query_string"]
        now = self._clock()
        self._made = {k: a for k, a in self._made.items() if a.until > now}
        if key in self._made:
            return self._made[key]
        if key not in self._making:
            self._making[key] = asyncio.create_task(self._make(key, scope))
        return await asyncio.shield(self._making[key])  # a client that disconnects does not cancel the others' answer

    async def _make(self, key: Key, scope: Scope) -> Answer:
        started = self._clock()
        start: Message = {}
        parts = []

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
            else:
                parts.append(message.get("body", b""))

        async def nothing() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        unconditional = [(k, v) for k, v in scope["headers"] if k != b"if-none-match"]
        try:
            await self._app({**scope, "headers": unconditional}, nothing, sending)
        finally:
            del self._making[key]
        now = self._clock()
        answer = Answer(
            start["status"], list(start["headers"]), b"".join(parts), now + self._keep_s * max(1.0, now - started)
        )
        self._made[key] = answer
        return answer
