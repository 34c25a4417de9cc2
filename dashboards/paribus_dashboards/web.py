"""What the pages share: how a page is registered, rendered and polled, and how it serves its data.

Each page has a folder of its own, with its templates, stylesheet and script, and a module ``page``, which defines

* ``view(...)``, a pure function from frozen values to one frozen view, which the template and the figures lay out;
* ``page``, a :class:`Page`: title, place in the navigation, and the router with all its routes.

:func:`~paribus_dashboards.server.app.pages` finds these folders; there is no other registration. The smallest page::

    router = APIRouter()

    @router.get("/study/{study}/health")
    def show(request: Request, study: str) -> Response:
        home = home_of(request)
        return render(request, "health/page.html", page, study, view=view(home.study(study), ...))

    page = Page(key="health", title="Health", place=2, router=router)

Routes are plain functions (``def``, not ``async def``): they read files and wait for locks, so they run in threads.

* A page is at ``/study/{study}/{key}``; ``/study/{study}`` is the board. Its template extends ``base.html`` and fills
  the block ``content``. Templates see ``study``, ``page`` and the values passed to :func:`render`.
* Polled parts are below the page, e.g. ``/study/{study}/health/now``. They render a partial template, also with
  :func:`render`. In the page, ``<div data-poll="..." data-every="5">`` polls.
* Chart data are at ``/data/study/{study}/...``. Routes end with ``return answer(request, figure)``; a figure is
  ``{"data": [...], "layout": {...}}`` as plotly takes it. Colours may be ``"var(--name)"``. Numbers that are not
  finite become ``null``. ``<div class="chart" data-src="..." role="img" aria-label="...">`` draws the figure. With
  ``data-zoom``, a zoom requests ``&first=&last=`` and writes them to the page's own address; ``data-live="5"`` polls.
* Everything that the reader chooses is in the query string: ``request.query_params``.
* Addresses start at the root (``/study/...``), so that an export can find and replace them. The export renders each
  page at its plain address and at the addresses that ``Page.also`` returns, with all data that they show.

For an unknown study, run or arm, raise :class:`~paribus_dashboards.data.home.NotFound`. User errors pass through.
Both become an error page.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from fastapi import APIRouter
from jinja2 import ChoiceLoader, Environment, PackageLoader, PrefixLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import Response

from paribus.remote.received import visible
from paribus.remote.tokens import Tokens
from paribus.report.render.html import with_report_filters
from paribus.text import plural, time_text
from paribus_dashboards.assets import asset
from paribus_dashboards.data.home import Home
from paribus_dashboards.data.mlflow_links import server_of
from paribus_dashboards.format import STATUSES, quoted, spaced


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page of a study.

    Attributes:
        key: last segment of its address; empty for the board.
        title: name in the navigation.
        place: order in the navigation.
        router: the routes of the page, its polled parts and its data.
        also: addresses that an export shows besides the plain one, e.g. one per arm.
    """

    key: str
    title: str
    place: int
    router: APIRouter
    also: Callable[[Home, str], Iterable[str]] = lambda home, study: ()

    def address(self, study: str) -> str:
        """Return the address of the page for a study."""
        return f"/study/{quoted(study)}" + (f"/{self.key}" if self.key else "")


def home_of(request: Request) -> Home:
    """Return the home folder that the application shows."""
    home: Home = request.app.state.home
    return home


def render(request: Request, template: str, page: Page | None = None, study: str = "", **values: Any) -> Response:
    """Return a page or a partial; status 304 if the browser has it already.

    Args:
        request: the request.
        template: path in this package, or the name of a shared template.
        page: the page, for the navigation; ``None`` for a partial.
        study: name of the study.
        values: further values for the template.
    """
    home = home_of(request)
    known = {
        "page": page,
        "study": study,
        "pages": request.app.state.pages,
        "query": request.query_params,
        "home": home.folder,
        "mlflow": bool(server_of(home.folder)),
        "acts": not (home.patient or home.only) and any(token.allows("run") for token in Tokens(home.folder).all()),
    }
    text = environment().get_template(template).render(known | values)
    return _unless_known(request, text.encode(), "text/html; charset=utf-8")


def answer(request: Request, value: object) -> Response:
    """Return data as JSON; status 304 if the browser has them already."""
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
    """Return the Jinja environment: autoescape on, an undefined name is an error."""
    made = Environment(
        loader=ChoiceLoader(
            [
                PackageLoader("paribus_dashboards"),
                PackageLoader("paribus_dashboards", ""),  # each page keeps its templates in its folder
                PrefixLoader({"paribus.report": PackageLoader("paribus.report.render")}),
            ]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.globals |= {"asset": asset_address, "plural": plural, "statuses": STATUSES}
    made.filters |= {"path": quoted, "spaced": spaced, "time": time_text, "plain": partial(visible, lines=True)}
    return with_report_filters(made)


def asset_address(name: str) -> str:
    """Return the address of a static file; it changes with the file's content."""
    return f"/static/{name}?v={asset(name).tag}"
