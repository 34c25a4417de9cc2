"""The application: all pages, the list of studies, static files and error pages."""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.resources import files

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from paribus.errors import ParibusError
from paribus.remote.tokens import Tokens
from paribus.store.remarks import MOST_TAG
from paribus_dashboards.actions.forms import make_actions
from paribus_dashboards.api.routes import make_api
from paribus_dashboards.assets import asset
from paribus_dashboards.data.home import Home, NotFound
from paribus_dashboards.data.mlflow_links import address_of
from paribus_dashboards.server.access import Access, Guard
from paribus_dashboards.server.coalesce import KEEP_S, Coalesce
from paribus_dashboards.studies.listing import READ_S, chosen, rows
from paribus_dashboards.web import Page, home_of, render

MAX_SHOWN = 100
"""Characters of an unknown address that the error page repeats."""


def make_app(home: Home, *, access: Access, keep_s: float = KEEP_S) -> FastAPI:
    """Return the application for a home folder.

    Args:
        home: the home folder.
        access: the rules for requests.
        keep_s: seconds for which an answer is reused (:class:`~paribus_dashboards.server.coalesce.Coalesce`).
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        home.close()

    app = FastAPI(title="Paribus", openapi_url=None, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.home = home
    app.state.pages = pages()
    app.add_middleware(Coalesce, keep_s=keep_s)
    api = None if home.only else make_api(home, access.accepts_token)  # a choice of studies is for looking at them
    actions = None if home.only else make_actions(home)
    tokens = None if home.patient else Tokens(home.folder)  # who exports reads the folder itself
    app.add_middleware(Guard, access=access, tokens=tokens, api=api, actions=actions)  # added last, runs first
    app.add_exception_handler(NotFound, _not_found)
    app.add_exception_handler(404, _no_page)
    app.add_exception_handler(ParibusError, _unavailable)
    app.get("/")(_studies)
    app.get("/alive")(_alive)
    app.get("/static/{name}")(_static)
    app.get("/study/{study}/mlflow")(_mlflow)
    for page in app.state.pages:
        app.include_router(page.router)
    return app


@cache
def pages() -> tuple[Page, ...]:
    """Return all pages in the order of the navigation: one for each folder with a module ``page``."""
    root = files("paribus_dashboards")
    folders = sorted(f.name for f in root.iterdir() if f.joinpath("page.py").is_file())
    found: list[Page] = [importlib.import_module(f"paribus_dashboards.{name}.page").page for name in folders]
    return tuple(sorted(found, key=lambda p: p.place))


def _studies(request: Request) -> Response:
    """Show the studies."""
    home = home_of(request)
    empty = home.empty
    found = () if empty else rows(home, None if home.patient else READ_S)
    query = request.query_params
    archived, tag = query.get("archived") == "yes", query.get("tag", "")[:MOST_TAG]
    shown, others = (chosen(found, archived=each, tag=tag) for each in (archived, not archived))
    return render(
        request,
        "studies/list.html",
        rows=shown,
        others=len(others),
        archived=archived,
        tag=tag,
        empty=empty,
        scheduler=home.scheduler(),
    )


def _mlflow(request: Request, study: str, run: str = "") -> Response:
    """Redirect to MLflow: to the study, or to the run whose fingerprint starts with ``run``."""
    home = home_of(request)
    now = home.study(study)
    fingerprint = home.find_run(now, run).fingerprint if run else ""
    return RedirectResponse(address_of(home.folder, study, fingerprint), headers={"cache-control": "no-store"})


def _alive() -> Response:
    """Answer with status 204 while the server runs."""
    return Response(status_code=204)


def _static(request: Request, name: str) -> Response:
    try:
        found = asset(name)
    except KeyError:
        raise NotFound(f"there is no file `{name}`") from None
    headers = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.packed, headers=headers | {"content-encoding": "gzip"}, media_type=found.kind)
    return Response(found.text, headers=headers, media_type=found.kind)


def _not_found(request: Request, error: Exception) -> Response:
    return _error(request, "Not found", str(error), 404)


def _no_page(request: Request, _: Exception) -> Response:
    return _error(request, "Not found", f"there is no page `{request.url.path[:MAX_SHOWN]}`", 404)


def _unavailable(request: Request, error: Exception) -> Response:
    return _error(request, "Not available right now", str(error), 503, again=True)


def _error(request: Request, title: str, message: str, status: int, *, again: bool = False) -> Response:
    shown = render(request, "server/error.html", title=title, message=message, again=again)
    return Response(shown.body, status, {"cache-control": "no-store"}, "text/html; charset=utf-8")
