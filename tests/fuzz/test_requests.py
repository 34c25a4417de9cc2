"""Whatever is requested of the dashboard, the answer is a page or a refusal: no failure of the server, nothing written.

The addresses are those that the pages link to and load, so a new page is found without being named here. Hypothesis
changes them: other values, names, methods and headers. ``make test-fuzz N=100000 SEED=1`` sends a fifth of N.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pytest
from fastapi.testclient import TestClient
from hypothesis import strategies as st
from starlette.routing import compile_path

from paribus_dashboards.data.home import Home
from paribus_dashboards.data.reports import build
from paribus_dashboards.server.access import HEADERS, Access
from paribus_dashboards.server.app import make_app
from support.confined import confined
from support.drive import drive
from support.homes import made_up_home
from support.studies import Shape

MARK = "<i id=fuzz>"
ODD = (
    "", " ", "0", "-1", "7", "1e999", "nan", "-inf", "9" * 400, "..", "../../../etc/passwd", "/etc/passwd", "a\0b", "%",
    "%00", "%2e%2e%2f", "\u2028", "\U0001f4a5", "x" * 5000, "'", '"', "{}", "[]", "{{7*7}}", "true", "None", "\r\nx: y",
    MARK, "file:///etc/passwd", "//evil.example", "policy/entropy", "made-up", "score", "base",
)  # fmt: skip
NAMES = ("run", "arm", "metric", "x", "show", "first", "last", "page", "problem", "set", "step", "order", "with",
         "only", "state", "status", "token", "a" * 300, MARK)  # fmt: skip
MOST_LINKS = 300


class Asked(NamedTuple):
    """A request."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...]
    headers: tuple[tuple[str, str], ...]
    body: bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder with a study in each state that a page shows."""
    made = tmp_path_factory.mktemp("requests") / "home"
    shape = Shape(steps=12, every=4, designs=("add_one",), tricks=("clip_higher", "token_level"), seeds=3, problems=6)
    made_up_home(made, shape)
    return made


def browser(folder: Path) -> TestClient:
    """Return a browser that raises the errors of the server."""
    app = make_app(Home(folder, make_report=build), access=Access(), keep_s=0)
    return TestClient(app, base_url="http://localhost", follow_redirects=False)


def links(client: TestClient) -> list[str]:
    """Return the addresses that can be reached from the first page."""
    found, waiting = {"/": None}, ["/"]
    while waiting and len(found) < MOST_LINKS:
        text = client.get(waiting.pop(0)).text
        for link in re.findall(r'(?:href|src|data-[a-z]+|action)="(/[^"]*)"', text):
            address = html.unescape(link).partition("#")[0]
            if address not in found:
                found[address] = None
                waiting.append(address)
    return list(found)


def requests(addresses: list[str]) -> st.SearchStrategy[Asked]:
    """Return requests that are those of a browser but for some places."""
    value = st.one_of(st.sampled_from(ODD), st.text(max_size=20), st.integers().map(str), st.floats().map(str))
    pair = st.tuples(st.one_of(st.sampled_from(NAMES), st.text(max_size=8)), value)

    @st.composite
    def one(draw: st.DrawFn) -> Asked:
        parts = urlsplit(draw(st.sampled_from(addresses)))
        path = parts.path.split("/")
        query = [list(p) for p in parse_qsl(parts.query, keep_blank_values=True)]
        if draw(st.integers(0, 3)) == 0 and len(path) > 1:
            path[draw(st.integers(1, len(path) - 1))] = draw(value)
        for changed in query:
            if draw(st.booleans()):
                changed[1] = draw(value)
        query += [list(p) for p in draw(st.lists(pair, max_size=3))]
        if draw(st.integers(0, 5)) == 0:
            query = query * 2
        header = st.tuples(
            st.sampled_from(["host", "cookie", "if-none-match", "accept-encoding", "range", "content-type", "origin"]),
            st.one_of(
                st.sampled_from(["localhost", "evil.example", "*", 'W/"x"', "gzip", "-1", "[::1]:80", "x" * 9000]),
                st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=20),
            ),
        )
        method = draw(st.sampled_from(["GET"] * 8 + ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "X"]))
        body = draw(st.binary(max_size=50)) if method not in ("GET", "HEAD") else b""
        headers = tuple(draw(st.lists(header, max_size=2))) if draw(st.integers(0, 4)) == 0 else ()
        return Asked(method, "/".join(path), tuple((a, b) for a, b in query), headers, body)

    return one()


def test_any_request_is_answered(folder: Path) -> None:
    """No status 500 and above, no tag of the request in a page, the headers that protect in each answer."""

    def work() -> None:
        with browser(folder) as client:
            addresses = links(client)
            _check_every_route_is_asked(client, addresses)

            def ask(asked: Asked) -> None:
                address = quote(asked.path, safe="/%", errors="replace") or "/"
                if query := urlencode(asked.query, errors="replace"):
                    address += f"?{query}"
                headers = dict(asked.headers)
                answer = client.request(asked.method, f"http://localhost{address}", headers=headers, content=asked.body)
                away = answer.status_code == 503 and asked.path.endswith("/mlflow")  # there is no server of MLflow
                assert answer.status_code < 500 or away, answer.text
                assert HEADERS.items() <= dict(answer.headers).items()
                assert MARK not in answer.text or "json" in answer.headers["content-type"]

            drive("requests", requests(addresses), ask, folder.parent, share=0.2)

    before = _content(folder)
    confined(work, folder.parent)  # `series.bin` of a run is written when it is first read
    assert _content(folder) == before


def _check_every_route_is_asked(client: TestClient, addresses: list[str]) -> None:
    """Check that the pages lead to every route of the application; a link to a new one must not be missing."""
    routes = list(client.app.openapi()["paths"])  # type: ignore[attr-defined]
    paths = [urlsplit(a).path for a in addresses]
    unknown = {route for route in routes if not any(compile_path(route)[0].match(p) for p in paths)}
    assert unknown == {"/alive", "/study/{study}/mlflow"}, unknown  # MLflow has no address here
    addresses += ["/alive", "/study/made-up/mlflow", "/study/made-up/mlflow?run=0"]
    assert len(routes) > 15


def _content(folder: Path) -> dict[str, bytes]:
    """Return the files of the runs; the store's own files change when it is read."""
    return {str(p): p.read_bytes() for p in (folder / "runs").rglob("*") if p.is_file() and p.name != "series.bin"}
