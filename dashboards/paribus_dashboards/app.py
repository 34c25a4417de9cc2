"""The application: pages, static files, errors; everything that it needs is passed in."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from paribus.errors import ParibusError
from paribus_dashboards.access import Access, Guard
from paribus_dashboards.assets import asset
from paribus_dashboards.home import Home, NotThere
from paribus_dashboards.mirror import address_of
from paribus_dashboards.shared import KEEP_S, Shared
from paribus_dashboards.web import home_of, pages, render

LONGEST = 100
"""Characters of an unknown address that are said again."""


def make_app(home: Home, *, access: Access, keep_s: float = KEEP_S) -> FastAPI:
    """Return the application that shows a home folder to those whom ``access`` admits.

    Args:
        home: what is shown.
        access: who may look.
        keep_s: seconds for which an answer is given again (:class:`~paribus_dashboards.shared.Shared`).
    """

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        yield
        home.close()

    app = FastAPI(title="Paribus", openapi_url=None, docs_url=None, redoc_url=None, lifespan=life)
    app.state.home = home
    app.add_middleware(Shared, keep_s=keep_s)
    app.add_middleware(Guard, access=access)  # added last, asked first
    app.add_exception_handler(NotThere, _not_there)
    app.add_exception_handler(404, _no_page)
    app.add_exception_handler(ParibusError, _trouble)
    app.get("/")(_start)
    app.get("/alive")(_alive)
    app.get("/static/{name}")(_static)
    app.get("/study/{study}/mlflow")(_mlflow)
    for page in pages():
        app.include_router(page.router)
    return app


def _start(request: Request) -> Response:
    """Show the studies."""
    home = home_of(request)
    rows = [] if home.empty else [(e, home.counts(e)) for e in reversed(home.studies())]
    return render(request, "studies.html", rows=rows, empty=home.empty, holder=home.holder())


def _mlflow(request: Request, study: str, run: str = "") -> Response:
    """Lead to a study, or to a run whose fingerprint begins with these digits, in MLflow."""
    home = home_of(request)
    now = home.study(study)
    whole = home.find_run(now, run).fingerprint if run else ""
    return RedirectResponse(address_of(home.folder, study, whole), headers={"cache-control": "no-store"})


def _alive() -> Response:
    """Say that the server is there, for pages that lost it."""
    return Response(status_code=204)


def _static(request: Request, name: str) -> Response:
    try:
        found = asset(name)
    except KeyError:
        raise NotThere(f"there is no file `{name}`") from None
    headers = {"cache-control": "public, max-age=31536000, immutable", "vary": "accept-encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.packed, headers=headers | {"content-encoding": "gzip"}, media_type=found.kind)
    return Response(found.text, headers=headers, media_type=found.kind)


def _not_there(request: Request, error: Exception) -> Response:
    return _told(request, "Not here", str(error), 404)


def _no_page(request: Request, _: Exception) -> Response:
    return _told(request, "Not here", f"there is no page `{request.url.path[:LONGEST]}`", 404)


def _trouble(request: Request, error: Exception) -> Response:
    return _told(request, "This cannot be shown now", str(error), 503)


def _told(request: Request, title: str, message: str, status: int) -> Response:
    shown = render(request, "error.html", title=title, message=message)
    return Response(shown.body, status, {"cache-control": "no-store"}, "text/html; charset=utf-8")
