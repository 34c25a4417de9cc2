"""Exports all pages to one file that needs neither a server nor a network: the same templates, with the data inside.

The export requests each page from the application as a browser does, so pages don't know about it. Links between pages
become ``#/study/...``; links to anything that is not in the file lose their target.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import html
import json
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fastapi import FastAPI
from markupsafe import Markup
from starlette.types import Message

from paribus.atomic import write_whole
from paribus.errors import DashboardError
from paribus.text import time_text
from paribus_dashboards.assets import PLOTLY, asset, asset_files
from paribus_dashboards.data.home import Home
from paribus_dashboards.server.access import Access
from paribus_dashboards.server.app import make_app, pages
from paribus_dashboards.web import environment

TIMEOUT_S = 120.0
"""Seconds for which the export polls a page whose parts are not ready yet."""

LIVE_ONLY = ("live.js", "samples.js", PLOTLY)
"""Scripts that a file does not run: polling, the step slider, and plotly, which the file unpacks on demand."""

_SECTION = re.compile(r"<title>(.*?)</title>.*(<header class=\"top\">.*</header>).*<main[^>]*>(.*)</main>", re.DOTALL)
_LINK = re.compile(r' href="(/[^"]*)"')
_DATA = re.compile(r' data-(?:src|raw)="([^"]*)"')


@dataclass(frozen=True, kw_only=True)
class Section:
    """One page of the file.

    Attributes:
        at: its address.
        title: title of the window.
        body: header and content, as HTML.
    """

    at: str
    title: str
    body: Markup


def export(home: Home, file: Path) -> int:
    """Write the pages of all shown studies to a file; return its size in bytes.

    Raises:
        DashboardError: a page cannot be rendered, or the file cannot be written.
        ParibusError: the store cannot be read.
    """
    text = asyncio.run(_whole(home)).encode()
    try:
        write_whole(file, text)
    except OSError as error:
        raise DashboardError(f"cannot write {file}: {error.strerror}. Choose another file with --export.") from error
    return len(text)


async def _whole(home: Home) -> str:
    home.require()
    home.patient = True
    studies = [e.name for e in home.studies()]
    for study in studies:
        home.report(home.study(study), wait_s=None)
    app = make_app(home, access=Access(), keep_s=0)
    found = {at: await _page(app, at) for at in dict.fromkeys(_addresses(home, studies))}
    wanted = dict.fromkeys(html.unescape(at) for page in found.values() for at in _DATA.findall(page))
    data = {at: json.loads(text) for at in wanted for status, text in [await _get(app, at)] if status == 200}
    sections = [_section(at, page, frozenset(found)) for at, page in found.items()]
    return (
        environment()
        .get_template("server/export.html")
        .render(
            sections=sections,
            as_of=time_text(time.time()),
            data=_packed(json.dumps(_short(data), separators=(",", ":"))),
            plotly=_packed(asset(PLOTLY).text),
            style=Markup("\n".join(asset(n).text for n in asset_files() if n.endswith(".css"))),  # noqa: S704 - our own files
            scripts=[Markup(asset(n).text) for n in _scripts()],  # noqa: S704
        )
    )


def _scripts() -> tuple[str, ...]:
    """Return the scripts of the file, in order. The first one provides what the server provides elsewhere."""
    first = ("offline.js", "hover.js")
    return (*first, *(n for n in asset_files() if n.endswith(".js") and n not in (*first, *LIVE_ONLY)))


def _addresses(home: Home, studies: Sequence[str]) -> Iterable[str]:
    yield "/"
    for study in studies:
        for page in pages():
            yield page.address(study)
            yield from page.also(home, study)


async def _page(app: FastAPI, at: str) -> str:
    """Return a page once all its parts are ready."""
    until = time.monotonic() + TIMEOUT_S
    while True:
        status, text = await _get(app, at)
        if status != 200:
            raise DashboardError(f"cannot export the page {at}: {_main(text)}")
        if "data-again" not in text or time.monotonic() > until:
            return text
        await asyncio.sleep(0.2)


async def _get(app: FastAPI, at: str) -> tuple[int, str]:
    """Request an address as a browser on this machine does; return status and body."""
    path, _, query = at.partition("?")
    asked = {"method": "GET", "scheme": "http", "http_version": "1.1", "headers": [(b"host", b"localhost")]}
    place = {"path": unquote(path), "raw_path": path.encode(), "query_string": query.encode(), "root_path": ""}
    status, parts = 500, [b""]

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    await app(
        {"type": "http", "asgi": {"version": "3.0"}, "client": None, "server": None, **asked, **place}, receive, send
    )
    return status, b"".join(parts).decode()


def _section(at: str, page: str, known: frozenset[str]) -> Section:
    def link(match: re.Match[str]) -> str:
        target = html.unescape(match[1])
        return f' href="#{match[1]}"' if target in known else ""

    found = _SECTION.search(page)
    assert found is not None  # every page extends base.html
    body = _LINK.sub(link, f"{found[2]}<main>{found[3]}</main>")
    return Section(at=at, title=html.unescape(found[1]), body=Markup(body))  # noqa: S704 - our templates made it


def _main(page: str) -> str:
    found = _SECTION.search(page)
    return re.sub(r"<[^>]*>|\s+", " ", html.unescape(found[3])).strip() if found else page


def _short(value: Any) -> Any:
    """Return data with numbers rounded to six significant digits; a screen shows no more."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [_short(v) for v in value]
    return {k: _short(v) for k, v in value.items()} if isinstance(value, dict) else value


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()
