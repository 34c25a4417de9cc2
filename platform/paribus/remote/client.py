"""Requests to the server of a team, over HTTPS, with a token that never stands in an address or a message."""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, quote, urlencode, urlsplit

from paribus.errors import ParibusError, ServerError, UnreadableInput
from paribus.home import read_secret
from paribus.masking import mask
from paribus.remote import received
from paribus.remote.answers import error_from_json
from paribus.remote.bundle import MOST_REPORT
from paribus.run_folder.json_text import field_of, fields, whole
from paribus.store.models import Terms
from paribus.store.remarks import Change

SERVER, TOKEN, TOKEN_FILE = "PARIBUS_SERVER", "PARIBUS_TOKEN", "PARIBUS_TOKEN_FILE"

VERSION = 1
"""Version of the requests and answers."""

_QUICK_S, _SLOW_S = 60.0, 900.0


@dataclass(frozen=True, kw_only=True)
class Server:
    """A server and a token for it.

    Attributes:
        address: without a slash at its end.
        token: the secret.
    """

    address: str
    token: str = field(repr=False)

    def studies(self) -> dict[str, Any]:
        """Return all studies, and which process of the server trains them."""
        return self._json("GET", "studies", received.STUDIES)

    def study(self, name: str, page: int, states: Sequence[str], tags: Sequence[str] = ()) -> dict[str, Any]:
        """Return a study with a page of its runs: the value of :func:`paribus.monitor.status.page_of`."""
        query = [("page", page), *(("state", s) for s in states), *(("tag", tag) for tag in tags)]
        return self._json("GET", f"studies/{_quoted(name)}", received.STUDY, query)

    def submit(self, bundle: bytes, terms: Terms, file: str) -> dict[str, Any]:
        """Submit a study, and return the fields of :class:`paribus.remote.submission.Submission`.

        Args:
            bundle: of :func:`paribus.remote.bundle.pack_study`.
            terms: priority and weight, as far as they are asked for.
            file: the study file as the user named it, for messages.

        Raises:
            ParibusError: what `paribus submit` raises on the server.
        """
        try:
            check = received.SUBMITTED
            return self._json("POST", "studies", check, list(terms.items()), bundle, file=file, limit_s=_SLOW_S)
        except ParibusError as error:
            if error.code != UnreadableInput.code:
                raise
            raise UnreadableInput(
                f"{error}\nData and models are not sent: the server reads its own, and relative paths begin in the "
                "folder in which its dashboard and its scheduler were started."
            ) from None

    def report(self, name: str, published: Sequence[str] | None, width: int) -> bytes:
        """Return the bundle of a study's report."""
        chosen = [("published", table) for table in published or ()]
        query = [("width", width), ("stated", int(published is not None)), *chosen]
        return self._send("GET", f"studies/{_quoted(name)}/report", query, None, "", _SLOW_S, MOST_REPORT)

    def cancel(self, name: str, arm: str | None) -> dict[str, Any]:
        """Cancel a study or one of its arms."""
        query = [] if arm is None else [("arm", arm)]
        return self._json("POST", f"studies/{_quoted(name)}/cancel", received.CANCELLED, query, b"")

    def retry(self, name: str, arm: str | None, reason: str) -> dict[str, Any]:
        """Queue the failed and cancelled runs of a study, or of one of its arms, again."""
        query = [("reason", reason), *([] if arm is None else [("arm", arm)])]
        return self._json("POST", f"studies/{_quoted(name)}/retry", received.RETRIED, query, b"")

    def remarks(self, named: str) -> dict[str, Any]:
        """Return note and tags of a study or run, and their history."""
        return self._json("GET", "remarks", received.REMARKS, [("of", named)])

    def remark(self, named: str, change: Change) -> dict[str, Any]:
        """Note or tag a study or run, or archive a study; return what holds then."""
        body = json.dumps({"of": named, **asdict(change)}).encode()
        return self._json("POST", "remarks", received.REMARKS, (), body)

    def _json(
        self,
        method: str,
        path: str,
        check: received.Check,
        query: Sequence[tuple[str, object]] = (),
        body: bytes | None = None,
        *,
        file: str = "",
        limit_s: float = _QUICK_S,
    ) -> dict[str, Any]:
        answer = self._send(method, path, query, body, file, limit_s, received.MOST_JSON)
        try:
            raw = received.parse(answer)
            version, value = whole(field_of(raw, "version"), "version"), field_of(raw, "answer")
        except ValueError as error:
            raise self._another_program() from error
        if version != VERSION:
            raise ServerError(
                f"{self.address} answers in version {version}, and this Paribus reads {VERSION}: update the older one."
            )
        try:
            found: dict[str, Any] = check(value, "answer")
        except ValueError as error:
            raise ServerError(f"the answer of {self.address} is damaged, and nothing of it is used: {error}.") from None
        return found

    def _send(
        self,
        method: str,
        path: str,
        query: Sequence[tuple[str, object]],
        body: bytes | None,
        file: str,
        limit_s: float,
        most: int,
    ) -> bytes:
        url = f"{self.address}/api/{path}" + (f"?{urlencode(query)}" if query else "")
        request = urllib.request.Request(url, body, method=method)  # noqa: S310 - `server` allows no other scheme
        request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        if body is not None:
            kind = "application/json" if body.startswith(b"{") else "application/x-tar"
            request.add_unredirected_header("Content-Type", kind)
        try:
            with self._opener().open(request, timeout=limit_s) as answer:
                return received.read(answer, most, limit_s)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refused(error, file) from None
        except received.TooMuch as error:
            raise ServerError(f"{self.address} has sent {error}, which is no answer of Paribus.") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = received.visible(mask(str(getattr(error, "reason", error))))
            raise ServerError(
                f"{self.address} cannot be reached: {reason}. Is {SERVER} right, and does the server run?"
            ) from None

    def _opener(self) -> urllib.request.OpenerDirector:
        """Return what makes requests; a request without encryption never goes through a proxy to another machine."""
        handlers: list[urllib.request.BaseHandler] = [_NoRedirect()]
        if self.address.startswith("http://"):
            handlers.append(urllib.request.ProxyHandler({}))
        return urllib.request.build_opener(*handlers)

    def _refused(self, error: urllib.error.HTTPError, file: str) -> ParibusError:
        if error.code in range(300, 400):
            return ServerError(f"{self.address} leads to another address. Set {SERVER} to that one, if you trust it.")
        try:
            data = received.read(error, received.MOST_ERROR, _QUICK_S)
            found = error_from_json(received.error_fields(fields(field_of(received.parse(data), "error"))), file)
        except (ValueError, OSError, http.client.HTTPException):
            if error.code >= 500:
                return ServerError(f"{self.address} answers {error.code}: the server has failed, or does not run.")
            return self._another_program(error.code)
        remedy = {
            401: f" Set {TOKEN} to one that `paribus token create` has printed on the server.",
            403: " Ask for one: `paribus token create --scope run` on the server.",
        }
        return ServerError(f"{found}{remedy[error.code]}") if error.code in remedy else found

    def _another_program(self, status: int = 200) -> ServerError:
        code = "" if status == 200 else f" with {status}"
        return ServerError(f"another program than Paribus answers at {self.address}{code}. Is {SERVER} right?")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: another machine must not get the study or the token."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Return None: the answer is an error."""


def server(environment: Mapping[str, str] = os.environ) -> Server | None:
    """Return the server that the environment names; ``None`` if it names none.

    Raises:
        ServerError: its address is not encrypted or no address, or there is no token.
    """
    address = environment.get(SERVER, "").strip().rstrip("/")
    if not address:
        return None
    try:
        url = urlsplit(address)
        fits = url.scheme in ("http", "https") and bool(url.hostname) and (url.port or 1) > 0
    except ValueError:
        fits = False
    if not fits or url.username is not None or url.query or url.fragment:
        raise ServerError(f"{SERVER} is {mask(address)!r}, not an address such as https://paribus.example.org")
    if url.scheme == "http" and not _is_loopback(url):
        raise ServerError(
            f"{SERVER} is {address}: without encryption everyone on the way could read the token. Use https, or a "
            f"tunnel: ssh -L 8765:localhost:8765 {url.hostname}, then {SERVER}=http://localhost:8765"
        )
    return Server(address=address, token=_token(environment))


def server_for(home: Path | None) -> Server | None:
    """Return the server that a command goes to; ``None`` if it names a home folder, or the environment no server."""
    return server() if home is None else None


def _is_loopback(url: SplitResult) -> bool:
    if url.hostname == "localhost":
        return True
    try:
        return ipaddress.ip_address(url.hostname or "").is_loopback
    except ValueError:
        return False


def _token(environment: Mapping[str, str]) -> str:
    token, file = environment.get(TOKEN, "").strip(), environment.get(TOKEN_FILE)
    if not token and file:
        token = read_secret(Path(file).expanduser(), "token for the server", ServerError)
    if not token:
        raise ServerError(
            f"{SERVER} is set, but {TOKEN} is not: set it, or {TOKEN_FILE} to a file with the token. On the server, "
            "`paribus token create --scope run --name YOU` prints one."
        )
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise ServerError(f"{TOKEN} is no token: it has characters that no token has")
    return token


def _quoted(name: str) -> str:
    return quote(name, safe="")
