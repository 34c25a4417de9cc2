"""What a request to the API must have: one rule for all routes, before any of them reads the request.

Reading (GET, HEAD) needs the scope ``read``, everything else ``run``. The token comes in the header ``Authorization``
alone: no cookie counts here, so a page of another site can't use a reader's browser to submit anything.

A body is small, since the framework keeps it in memory, but for a study, which its route writes to the disk.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paribus.errors import ServerError
from paribus.remote.answers import error_to_json
from paribus.remote.tokens import Scope as TokenScope
from paribus.remote.tokens import Token, Tokens

MOST_BODY = 1 << 16
"""Most bytes of a request that sends no study; a note of 4,000 characters has at most 48,000."""

NO_STORE = {"cache-control": "no-store"}

SHARED = Token(name="the dashboard's token", scope="read", created="", hash="")
"""What the token of `paribus dashboard --token-file` counts as here."""


def failure(status: int, error: ServerError, **headers: str) -> Response:
    """Return an answer with an error as clients read it."""
    return JSONResponse({"error": error_to_json(error)}, status, NO_STORE | headers)


class TokenGuard:
    """ASGI middleware that lets a request pass if its token has the scope that the method needs.

    Args:
        app: the API; it finds the token in ``request.state.token``.
        tokens: those of the home folder.
        is_shared: whether a secret is the token with which the dashboard was started.
    """

    def __init__(self, app: ASGIApp, tokens: Tokens, is_shared: Callable[[str], bool]) -> None:
        self._app = app
        self._tokens = tokens
        self._is_shared = is_shared

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        needed: TokenScope = "read" if scope["method"] in ("GET", "HEAD") else "run"
        try:
            token = self._token(Headers(scope=scope).get("authorization", ""))
        except ServerError as error:
            await failure(503, error)(scope, receive, send)
            return
        if token is None:
            refusal = failure(401, ServerError("this server needs a token, and this is none of its."),
                              **{"www-authenticate": "Bearer"})  # fmt: skip
            await refusal(scope, receive, send)
        elif not token.allows(needed):
            wrong = ServerError(f"the token `{token.name}` has the scope `{token.scope}`, and this needs `{needed}`.")
            await failure(403, wrong)(scope, receive, send)
        else:
            await self._app({**scope, "state": {**scope.get("state", {}), "token": token}}, receive, send)

    def _token(self, header: str) -> Token | None:
        kind, _, secret = header.partition(" ")
        if kind.lower() != "bearer" or not (secret := secret.strip()):
            return None
        return self._tokens.of(secret) or (SHARED if self._is_shared(secret) else None)


class SmallBodies:
    """ASGI middleware that refuses a request of more than :data:`MOST_BODY` bytes, unless it sends a study.

    Args:
        app: the routes; they get the body in one piece.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if (scope["method"], scope["path"]) == ("POST", "/api/studies"):
            await self._app(scope, receive, send)
            return
        message: Message = {"more_body": True}
        body = b""
        while message.get("more_body"):
            message = await receive()
            body += message.get("body", b"")
            if len(body) > MOST_BODY:
                wrong = ServerError(f"the request has more than the {MOST_BODY:,} bytes allowed.")
                await failure(413, wrong)(scope, receive, send)
                return
        waiting = [{**message, "body": body} if message["type"] == "http.request" else message]

        async def again() -> Message:
            return waiting.pop() if waiting else await receive()

        await self._app(scope, again, send)
