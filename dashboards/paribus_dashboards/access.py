"""Who may look: this machine alone, or whoever has the token; and what a browser may do with the pages.

Four rules, before any page is asked:

* only GET and HEAD: nothing here changes anything;
* the ``Host`` header must name this machine: an address of the web that was made to lead here is refused;
* with a token, only who has shown it gets in: ``?token=...`` once, then a cookie that no script and no other site sees;
* nothing may be loaded from elsewhere, embedded elsewhere, or told elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
import html
import ipaddress
import os
import re
import socket
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paribus.errors import DashboardError

SHORTEST = 16
"""Characters that a token has at least."""

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self' 'unsafe-inline'",  # plotly sets styles
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Headers of every answer."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """Who may look.

    Attributes:
        token: what must be shown; empty: nothing, for an address that only this machine reaches.
        names: names of this machine in a ``Host`` header, beside its addresses and ``localhost``.
    """

    token: str = field(default="", repr=False)
    names: frozenset[str] = frozenset()

    def knows(self, host: str) -> bool:
        """Return whether a ``Host`` header names this machine; an address is no name that another site could own."""
        name = re.sub(r":[0-9]*$", "", host.strip().lower())
        if name == "localhost" or name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return address.is_loopback or bool(self.token)

    @property
    def cookie(self) -> str:
        """Name of the cookie: one a token, since all ports of a machine share their cookies."""
        return f"paribus_dashboard_{hashlib.sha256(f'paribus dashboard cookie {self.token}'.encode()).hexdigest()[:8]}"

    @property
    def proof(self) -> str:
        """What the cookie holds: not the token itself."""
        return hashlib.sha256(f"paribus dashboard {self.token}".encode()).hexdigest()

    def admits(self, token: str) -> bool:
        """Return whether this is the token, in a time that does not tell how near it is."""
        return hmac.compare_digest(token.encode(), self.token.encode())

    def remembers(self, cookie: str) -> bool:
        """Return whether the cookie was given by :class:`Guard`."""
        return hmac.compare_digest(cookie.encode(), self.proof.encode())


def is_loopback(host: str) -> bool:
    """Return whether an address to listen on is reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def access_for(host: str, variable: str | None, file: Path | None) -> Access:
    """Return who may look at a dashboard that listens on an address.

    Args:
        host: the address.
        variable: environment variable that holds the token.
        file: file that holds it.

    Raises:
        DashboardError: a token is needed and not given, or too short.
    """
    token = ""
    if variable is not None:
        token = os.environ.get(variable, "").strip()
    elif file is not None:
        try:
            token = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DashboardError(f"the token cannot be read from {file}: {error}") from error
    asked = variable is not None or file is not None
    if asked and len(token) < SHORTEST:
        where = f"the environment variable {variable}" if variable is not None else f"the file {file}"
        raise DashboardError(
            f"{where} holds no token of {SHORTEST} characters or more. Make one: python -c "
            "'import secrets; print(secrets.token_urlsafe())'"
        )
    if not token and not is_loopback(host):
        raise DashboardError(
            f"other machines reach {host}, so a token is needed: --token-env NAME or --token-file FILE. Without one, "
            "leave out --host, and look from elsewhere through `ssh -L 8765:localhost:8765 THIS_MACHINE`."
        )
    names = {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
    return Access(token=token, names=frozenset(names) if token else frozenset())


class Guard:
    """Asks :class:`Access` before each request, adds :data:`HEADERS` to each answer; HEAD is GET without the body."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        headless = scope["method"] == "HEAD"

        async def sending(message: Message) -> None:
            if headless and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                more = {name.encode(): value.encode() for name, value in HEADERS.items()}
                message["headers"] = [*message["headers"], *((n, v) for n, v in more.items() if n not in known)]
            await send(message)

        refused = self._refuse(Request(scope))
        await (refused or self._app)({**scope, "method": "GET"}, receive, sending)

    def _refuse(self, request: Request) -> Response | None:
        if request.method not in ("GET", "HEAD"):
            return PlainTextResponse("The dashboard only shows.\n", 405, {"allow": "GET, HEAD"})
        if not self._access.knows(request.headers.get("host", "")):
            return PlainTextResponse("This name does not belong to the dashboard. Use the address it printed.\n", 400)
        if not self._access.token:
            return None
        shown = request.query_params.get("token")
        if shown is not None and self._access.admits(shown):
            return self._let_in(request)
        if self._access.remembers(request.cookies.get(self._access.cookie, "")):
            return None
        return PlainTextResponse("A token is needed: open the address with ?token=... at its end.\n", 401)

    def _let_in(self, request: Request) -> Response:
        """Return a page that leads to the same address without the token.

        It is a page, because a browser does not send the new cookie along a redirect that another site's link began.
        """
        rest = [(k, v) for k, v in parse_qsl(request.url.query, keep_blank_values=True) if k != "token"]
        path = "/" + quote(request.scope["path"].lstrip("/\\"), safe="/")  # never another machine
        target = path + (f"?{urlencode(rest)}" if rest else "")
        shown = html.escape(target, quote=True)
        page = f'<!doctype html><meta http-equiv="refresh" content="0;url={shown}"><a href="{shown}">Go on</a>'
        answer = HTMLResponse(page, headers={"cache-control": "no-store"})
        answer.set_cookie(self._access.cookie, self._access.proof, httponly=True, samesite="strict", path="/")
        return answer
