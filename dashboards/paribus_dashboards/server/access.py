"""Access control: which requests the dashboard answers, and what a browser may do with its pages.

Five rules apply before a page handles a request:

* an address holds no null byte, which no database takes as text; this one holds for the API, too;
* only GET and HEAD: pages change nothing, but for the one that people with a token for it act on
  (:mod:`paribus_dashboards.actions`);
* the ``Host`` header must name this machine, so that another site can't point its own name here (DNS rebinding);
* with a token, a reader enters it once and gets a cookie that no script and no other site can read;
* pages load nothing from other sites, can't be embedded in them, and send them no referrer.

A token is needed if the dashboard was started with one, or if the home folder has :mod:`paribus.remote.tokens`: then
others are meant to reach it, perhaps through a proxy, which makes their requests look like those of this machine.
Requests below ``/api/`` have rules of their own (:mod:`paribus_dashboards.api.guard`).
"""

from __future__ import annotations

import hashlib
import hmac
import html
import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, quote, urlencode

from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paribus.errors import DashboardError, ServerError
from paribus.remote.tokens import Token, Tokens, cookie_of
from paribus_dashboards.api.guard import SHARED, failure

MIN_TOKEN = 16
"""Fewest characters of a token."""

ACT = "/act/"
"""Below it is the page that changes something (:mod:`paribus_dashboards.actions`)."""

_MOST_FORM = 4096
"""Most bytes of the form with a token."""

_ENTER = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<title>Paribus</title><style>body {{ font: 1rem system-ui, sans-serif; max-width: 32rem; margin: 15vh auto }}</style>
<h1>Paribus</h1><p>{message}</p>
<form method="post"><label>Token <input type="password" name="token" autocomplete="current-password"></label>
<button>Continue</button></form></html>
"""
"""The page that asks for a token; without an action, the form goes to the address that was asked for."""

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
"""Headers of every response."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """The rules for requests.

    Attributes:
        token: the required token; empty: none, for an address that only this machine reaches.
        names: names of this machine in a ``Host`` header, besides its addresses and ``localhost``.
    """

    token: str = field(default="", repr=False)
    names: frozenset[str] = frozenset()

    def allows_host(self, host: str) -> bool:
        """Return whether a ``Host`` header names this machine.

        With a token, any IP address passes: another site cannot own one.
        """
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
        """Name of the cookie: one per token, because all ports of a machine share their cookies."""
        return f"paribus_dashboard_{hashlib.sha256(f'paribus dashboard cookie {self.token}'.encode()).hexdigest()[:8]}"

    @property
    def cookie_value(self) -> str:
        """Value of the cookie: a hash of the token."""
        return hashlib.sha256(f"paribus dashboard {self.token}".encode()).hexdigest()

    def accepts_token(self, token: str) -> bool:
        """Return whether the token is the required one, compared in constant time."""
        return bool(self.token) and hmac.compare_digest(token.encode(), self.token.encode())

    def accepts_cookie(self, cookie: str) -> bool:
        """Return whether :class:`Guard` issued this cookie."""
        return hmac.compare_digest(cookie.encode(), self.cookie_value.encode())


def is_loopback(host: str) -> bool:
    """Return whether only this machine reaches an address to listen on."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def access_for(host: str, variable: str | None, file: Path | None) -> Access:
    """Return the access rules of a dashboard that listens on an address.

    Args:
        host: the address.
        variable: environment variable that holds the token.
        file: file that holds the token.

    Raises:
        DashboardError: the token is too short, or missing though the address requires one.
    """
    token = ""
    if variable is not None:
        token = os.environ.get(variable, "").strip()
    elif file is not None:
        try:
            token = file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise DashboardError(f"cannot read the token from {file}: {error}") from error
    asked = variable is not None or file is not None
    if asked and len(token) < MIN_TOKEN:
        where = f"the environment variable {variable}" if variable is not None else f"the file {file}"
        raise DashboardError(
            f"{where} holds no token of at least {MIN_TOKEN} characters. Create one: python -c "
            "'import secrets; print(secrets.token_urlsafe())'"
        )
    if not token and not is_loopback(host):
        raise DashboardError(
            f"other machines can reach {host}, so a token is needed: --token-env NAME or --token-file FILE. To do "
            "without one, leave out --host and connect from elsewhere with `ssh -L 8765:localhost:8765 THIS_MACHINE`."
        )
    names = {host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
    return Access(token=token, names=frozenset(names) if token else frozenset())


def _ask(message: str, status: int) -> Response:
    """Return the page that asks for a token."""
    return HTMLResponse(_ENTER.format(message=message), status, {"cache-control": "no-store"})


class Guard:
    """ASGI middleware: applies :class:`Access`, adds :data:`HEADERS`, and answers HEAD as GET without the body."""

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        tokens: Tokens | None = None,
        api: ASGIApp | None = None,
        actions: ASGIApp | None = None,
    ) -> None:
        self._app = app
        self._actions = actions
        self._access = access
        self._tokens = tokens
        self._api = api

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        head = scope["method"] == "HEAD"

        async def sending(message: Message) -> None:
            if head and message["type"] == "http.response.body":
                message = {**message, "body": b""}
            if message["type"] == "http.response.start":
                known = {name for name, _ in message["headers"]}
                more = {name.encode(): value.encode() for name, value in HEADERS.items()}
                message["headers"] = [*message["headers"], *((n, v) for n, v in more.items() if n not in known)]
            await send(message)

        for_api = self._api is not None and scope["path"].startswith("/api/")
        if "\0" in scope["path"] or b"%00" in scope["query_string"] or b"\0" in scope["query_string"]:
            error = ServerError("an address holds no null byte (%00).")  # which PostgreSQL takes in no text
            await (failure(422, error) if for_api else PlainTextResponse(f"{error}\n", 422))(scope, receive, sending)
            return
        if self._api is not None and for_api:
            await self._api({**scope, "method": "GET"} if head else scope, receive, sending)
            return
        try:
            refusal = await self._refusal(Request(scope, receive))
        except ServerError as error:  # the file with the tokens is damaged
            refusal = PlainTextResponse(f"{error}\n", 503)
        if refusal is None and self._actions is not None and scope["path"].startswith(ACT):
            token, cookie = self._reader(Request(scope).cookies)
            more = {"state": {**scope.get("state", {}), "token": token, "cookie": cookie}}
            await self._actions({**scope, **more, "method": "GET" if head else scope["method"]}, receive, sending)
            return
        await (refusal or self._app)({**scope, "method": "GET"}, receive, sending)

    async def _refusal(self, request: Request) -> Response | None:
        needed = bool(self._access.token) or (self._tokens is not None and self._tokens.exist)
        known = needed and self._knows(request.cookies)
        if (
            request.method == "POST"
            and needed
            and not known
            and self._access.allows_host(request.headers.get("host", ""))
        ):
            return await self._enter(request)
        acts = self._actions is not None and request.method == "POST" and request.scope["path"].startswith(ACT)
        if request.method not in ("GET", "HEAD") and not acts:
            return PlainTextResponse("The dashboard is read-only.\n", 405, {"allow": "GET, HEAD"})
        if not self._access.allows_host(request.headers.get("host", "")):
            return PlainTextResponse(
                "The dashboard does not know this host name. Use the address that it printed.\n", 400
            )
        token = request.query_params.get("token")
        if needed and token is not None and self._access.accepts_token(token):
            return self._set_cookie(request, self._access.cookie, self._access.cookie_value)
        return None if known or not needed else _ask("This dashboard needs a token.", 401)

    def _knows(self, cookies: Mapping[str, str]) -> bool:
        """Return whether a browser has a cookie of this dashboard whose token has not been revoked."""
        return self._reader(cookies)[0] is not None

    def _reader(self, cookies: Mapping[str, str]) -> tuple[Token | None, str]:
        """Return the token of a browser, or ``None``, and its cookie; of two tokens, the one of a person."""
        if self._tokens is not None and (sent := cookies.get(self._tokens.cookie, "")):
            token = self._tokens.of_cookie(sent)
            if token is not None:
                return token, sent
        sent = cookies.get(self._access.cookie, "")
        if self._access.token and self._access.accepts_cookie(sent):
            return SHARED, sent
        return None, ""

    async def _enter(self, request: Request) -> Response:
        """Return the cookie for the token in a form."""
        body = b""
        try:
            async for piece in request.stream():
                body += piece
                if len(body) > _MOST_FORM:
                    return _ask("This is no token.", 413)
        except ClientDisconnect:
            return _ask("This is no token.", 400)
        token = dict(parse_qsl(body.decode("ascii", "replace"))).get("token", "").strip()
        if self._access.accepts_token(token):
            return self._set_cookie(request, self._access.cookie, self._access.cookie_value)
        if self._tokens is not None and self._tokens.of(token) is not None:
            return self._set_cookie(request, self._tokens.cookie, cookie_of(token))
        return _ask("This token is unknown here, or was revoked.", 401)

    def _set_cookie(self, request: Request, name: str, value: str) -> Response:
        """Return a page that sets the cookie and forwards to the same address without the token.

        It is not a redirect: after a link from another site, a browser would not send the new cookie with it.
        """
        rest = [(k, v) for k, v in parse_qsl(request.url.query, keep_blank_values=True) if k != "token"]
        path = "/" + quote(request.scope["path"].lstrip("/\\"), safe="/")  # never another machine
        target = path + (f"?{urlencode(rest)}" if rest else "")
        shown = html.escape(target, quote=True)
        page = f'<!doctype html><meta http-equiv="refresh" content="0;url={shown}"><a href="{shown}">Continue</a>'
        answer = HTMLResponse(page, headers={"cache-control": "no-store"})
        encrypted = request.url.scheme == "https"  # as a trusted proxy says: `serve`
        answer.set_cookie(name, value, httponly=True, samesite="strict", path="/", secure=encrypted)
        return answer
