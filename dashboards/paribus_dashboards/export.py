"""All pages as one file that needs no server and no network: the same templates, the data inside.

The application is asked for each page as a browser would ask, so a page needs to know nothing of it. Links between
pages become ``#/study/...``; those that lead to no page of the file lose their target.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import html
import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from fastapi import FastAPI
from markupsafe import Markup
from starlette.types import Message

from paribus.errors import DashboardError
from paribus_dashboards.access import Access
from paribus_dashboards.app import make_app
from paribus_dashboards.assets import PLOTLY, asset
from paribus_dashboards.home import Home
from paribus_dashboards.web import environment, pages

PATIENCE_S = 120.0
"""Seconds for which a page is asked again while parts of it are still being made."""

_SECTION = re.compile(r"<title>(.*?)</title>.*(<header class=\"top\">.*</header>).*<main[^>]*>(.*)</main>", re.DOTALL)
_LINK = re.compile(r' href="(/[^"]*)"')
_DATA = re.compile(r' data-src="([^"]*)"')


@dataclass(frozen=True, kw_only=True)
class Section:
    """One page of the file.

    Attributes:
        at: its address.
        title: what the window is called.
        body: header and content.
    """

    at: str
    title: str
    body: Markup


def export(home: Home, file: Path) -> int:
    """Write all pages of all studies that are shown, and return the size of the file in bytes.

    Raises:
        DashboardError: a page cannot be shown, or the file cannot be written.
        ParibusError: the store cannot be read.
    """
    text = asyncio.run(_whole(home)).encode()
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        temporary.write_bytes(text)
        temporary.replace(file)
    except OSError as error:
        raise DashboardError(f"cannot write {file}: {error.strerror}. Name another file after --export.") from error
    return len(text)


async def _whole(home: Home) -> str:
    home.require()
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
        .get_template("export.html")
        .render(
            sections=sections,
            as_of=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
            data=_packed(json.dumps(_short(data), separators=(",", ":"))),
            plotly=_packed(asset(PLOTLY).text),
            style=Markup("\n".join(asset(n).text for n in ("tables.css", "style.css", "samples.css"))),  # noqa: S704 - our own files
            scripts=[Markup(asset(n).text) for n in ("offline.js", "charts.js", "filter.js", "heatmap.js", "keys.js")],  # noqa: S704
        )
    )


def _addresses(home: Home, studies: Sequence[str]) -> Iterable[str]:
    yield "/"
    for study in studies:
        for page in pages():
            yield page.address(study)
            yield from page.also(home, study)


async def _page(app: FastAPI, at: str) -> str:
    """Return a page when all its parts are there."""
    until = time.monotonic() + PATIENCE_S
    while True:
        status, text = await _get(app, at)
        if status != 200:
            raise DashboardError(f"the page {at} cannot be shown: {_main(text)}")
        if "data-again" not in text or time.monotonic() > until:
            return text
        await asyncio.sleep(0.2)


async def _get(app: FastAPI, at: str) -> tuple[int, str]:
    """Ask the application as a browser on this machine does; return status and body."""
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
    """Return data with numbers of six digits: a screen shows no more."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, list):
        return [_short(v) for v in value]
    return {k: _short(v) for k, v in value.items()} if isinstance(value, dict) else value


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), compresslevel=9, mtime=0)).decode()
