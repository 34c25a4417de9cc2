"""What the pages share: how one is registered, how it is rendered, how data are answered.

A page is one file in :mod:`paribus_dashboards.pages`. It has

* ``view(...)``, pure: frozen values in, one frozen view out, which its template and its figures lay out;
* ``page``, a :class:`Page`: title, place in the navigation, and the router with all its routes.

Being there is all that registers it: :func:`pages` finds the files. The smallest page::

    router = APIRouter()

    @router.get("/study/{study}/health")
    def show(request: Request, study: str) -> Response:
        home = home_of(request)
        return render(request, "health.html", page, study, view=view(home.study(study), ...))

    page = Page(key="health", title="Health", place=2, router=router)

Routes are plain functions (``def``, not ``async def``): they read files and wait for locks, so they run in threads.

* A page lies at ``/study/{study}/{key}``; ``/study/{study}`` is the board. Its template extends ``base.html`` and fills
  the block ``content``; ``study`` and ``page`` are known there, and whatever else was passed.
* What is polled lies below it, e.g. ``/study/{study}/health/now``, and renders a partial with :func:`render`, too.
  ``<div data-poll="..." data-every="5">`` in the page asks for it.
* Data of charts lie at ``/data/study/{study}/...`` and end with ``return answer(request, figure)``, where a figure is
  ``{"data": [...], "layout": {...}}`` as plotly takes it. Colours may be ``"var(--name)"``. Numbers that are not
  finite become ``null``.
  ``<div class="chart" data-src="..." role="img" aria-label="...">`` draws it; with ``data-zoom`` a zoom asks again with
  ``&first=&last=`` and writes them into the page's own address; with ``data-live="5"`` it is asked for again.
* Anything that depends on the reader's choice is in the query string: ``request.query_params``.
* Addresses are relative to the root (``/study/...``), so that an export can find and replace them. The export renders
  each page at its plain address and at those that ``Page.also`` returns, and takes along all data that these show.

An unknown study, run or arm: raise :class:`~paribus_dashboards.home.NotThere`. Errors of the user pass through. Both
become a page of their own.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import pkgutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from urllib.parse import quote

from fastapi import APIRouter
from jinja2 import ChoiceLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from paribus_dashboards.home import Home
from paribus_dashboards.mirror import server_of

Figure = dict[str, Any]
"""``data`` and ``layout`` as plotly takes them."""


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page of a study.

    Attributes:
        key: last part of its address; empty for the board.
        title: what the navigation says.
        place: order in the navigation.
        router: its routes: the page, what it polls, its data.
        also: addresses that an export shows beside the plain one, e.g. one an arm.
    """

    key: str
    title: str
    place: int
    router: APIRouter
    also: Callable[[Home, str], Iterable[str]] = lambda home, study: ()

    def address(self, study: str) -> str:
        """Return where the page of a study is."""
        return f"/study/{quoted(study)}" + (f"/{self.key}" if self.key else "")


@cache
def pages() -> tuple[Page, ...]:
    """Return all pages in the order of the navigation: one for each file in :mod:`paribus_dashboards.pages`."""
    folder = importlib.import_module("paribus_dashboards.pages")
    names = sorted(m.name for m in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."))
    found: list[Page] = [importlib.import_module(name).page for name in names]
    return tuple(sorted(found, key=lambda p: p.place))


def home_of(request: Request) -> Home:
    """Return the home folder that is shown."""
    home: Home = request.app.state.home
    return home


def render(request: Request, template: str, page: Page | None = None, study: str = "", **values: Any) -> Response:
    """Return a page or a partial; 304 where the browser has it already.

    Args:
        request: the request.
        template: file in ``templates``.
        page: the page, for the navigation; ``None`` for a partial.
        study: name of the study.
        values: what the template asks for beside.
    """
    home = home_of(request)
    known = {
        "page": page,
        "study": study,
        "pages": pages(),
        "query": request.query_params,
        "home": home.folder,
        "mlflow": bool(server_of(home.folder)),
    }
    text = environment().get_template(template).render(known | values)
    return _unless_known(request, text.encode(), "text/html; charset=utf-8")


def answer(request: Request, value: object) -> Response:
    """Return data as JSON; 304 where the browser has them already."""
    return _unless_known(request, json_text(value).encode(), "application/json")


def json_text(value: object) -> str:
    """Return JSON in which numbers that are not finite are ``null``."""
    try:
        return json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {k: _finite(v) for k, v in value.items()}
    return [_finite(v) for v in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def _unless_known(request: Request, body: bytes, kind: str) -> Response:
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    headers = {"etag": tag, "cache-control": "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=kind)


@cache
def environment() -> Environment:
    """Return the templates: autoescape on, every name that is missing an error."""
    from paribus.report.html import dressed

    own = PackageLoader("paribus_dashboards")
    made = Environment(
        loader=ChoiceLoader([own, PrefixLoader({"report": PackageLoader("paribus.report")})]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"asset": asset_address, "lamp": LAMPS}
    made.filters |= {"path": quoted, "words": state_words}
    return dressed(made)


LAMPS: Mapping[str, tuple[str, str]] = {
    "ok": ("●", "ok"),
    "warn": ("▲", "warn"),
    "critical": ("■", "critical"),
    "unknown": ("○", "not judged"),
    "not_applicable": ("–", "not applicable"),
}
"""Lamp to its shape and its word; the colour is in the style sheet, as ``.lamp.warn``."""


def quoted(text: str) -> str:
    """Return a name as a part of an address."""
    return quote(text, safe="")


def state_words(state: str) -> str:
    """Return the state of a run in small letters."""
    return state.lower().replace("_", " ")


def asset_address(name: str) -> str:
    """Return the address of a static file, another one whenever it changes."""
    from paribus_dashboards.assets import asset

    return f"/static/{name}?v={asset(name).tag}"
