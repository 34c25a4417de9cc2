"""The routes of the API.

Answers are ``{"version": 1, "answer": ...}``, or ``{"error": ...}`` with a status of 400 or more.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import click
from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp

from paribus.errors import ParibusError, ServerError
from paribus.monitor.status import page_of, studies
from paribus.remote.answers import error_to_json
from paribus.remote.bundle import MOST_BUNDLE
from paribus.remote.client import VERSION
from paribus.remote.tokens import Tokens
from paribus.scheduler.home_lock import heartbeat_age_s, lock_owner
from paribus.store.reader import Reader
from paribus.store.states import RunState
from paribus.store.store import Store
from paribus.store.transitions import LEASE_S
from paribus_dashboards.api.guard import NO_STORE, TokenGuard, failure
from paribus_dashboards.data.home import Home
from paribus_dashboards.web import json_text

LIMIT_S = 600.0
"""Seconds in which a study must be planned, or a report written."""

AT_ONCE = 2
"""Most studies and reports that are worked on at the same time; more requests wait."""


def make_api(home: Home, is_shared: Callable[[str], bool]) -> ASGIApp:
    """Return the API of a home folder, behind its tokens.

    Args:
        home: the home folder.
        is_shared: whether a secret is the token with which the dashboard was started.
    """
    app = FastAPI(title="Paribus", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.home = home
    app.state.room = asyncio.Semaphore(AT_ONCE)
    app.add_exception_handler(ParibusError, _failed)
    app.add_exception_handler(RequestValidationError, _wrong_request)
    app.add_exception_handler(404, _no_route)
    app.add_exception_handler(405, _no_route)
    app.get("/api/studies")(show_studies)
    app.post("/api/studies")(submit)
    app.get("/api/studies/{study}")(show_study)
    app.get("/api/studies/{study}/report")(report)
    app.post("/api/studies/{study}/cancel")(cancel)
    app.post("/api/studies/{study}/retry")(retry)
    return TokenGuard(app, Tokens(home.folder), is_shared)


def show_studies(request: Request) -> Response:
    """Return all studies, and whether a scheduler works, as its heartbeat says: it may run in another container."""
    home = _home(request)
    found = [] if home.empty else studies(home.reader())
    return _answer({"studies": found, "served": heartbeat_age_s(home.folder) < LEASE_S})


def show_study(
    request: Request,
    study: str,
    page: Annotated[int, Query(ge=1, le=1 << 31)] = 1,
    state: Annotated[tuple[str, ...], Query()] = (),
) -> Response:
    """Return a study with a page of its runs."""
    known = {each.lower(): each for each in RunState}
    if wrong := [name for name in state if name.lower() not in known]:
        raise ServerError(f"there is no state {wrong[0][:40]!r}. States: {', '.join(known)}.")
    chosen = tuple(known[name.lower()] for name in state) or tuple(RunState)
    return _answer(page_of(_home(request).reader(), study, page, chosen))


async def submit(
    request: Request,
    priority: Annotated[int | None, Query(ge=-(1 << 31), lt=1 << 31)] = None,
    weight: Annotated[float | None, Query(ge=0.001, le=1000)] = None,
) -> Response:
    """Plan and submit the study in the request's body, a bundle."""
    terms = {k: v for k, v in (("priority", priority), ("weight", weight)) if v is not None}
    with tempfile.TemporaryDirectory(prefix="paribus-") as folder:
        bundle = Path(folder) / "bundle.tar"
        with bundle.open("xb") as file:
            async for piece in request.stream():
                if file.tell() + len(piece) > MOST_BUNDLE:
                    return failure(413, ServerError(f"the study has more than the {MOST_BUNDLE:,} bytes allowed."))
                file.write(piece)
        done = await _work(request, {"do": "submit", "bundle": str(bundle), "terms": terms})
    _log(request, f"submitted {done['study']}")
    return _answer(done)


async def report(
    request: Request,
    study: str,
    width: Annotated[int, Query(ge=80, le=1000)] = 100,
    stated: bool = False,
    published: Annotated[tuple[str, ...], Query()] = (),
) -> Response:
    """Return the report of a study as a bundle."""
    with tempfile.TemporaryDirectory(prefix="paribus-") as folder:
        bundle = Path(folder) / "report.tar"
        order = {"do": "report", "bundle": str(bundle), "study": study, "width": width}
        await _work(request, {**order, "published": list(published) if stated else None})
        return Response(bundle.read_bytes(), headers=NO_STORE, media_type="application/x-tar")


def cancel(request: Request, study: str, arm: str | None = None) -> Response:
    """Cancel a study or one of its arms."""
    with _store(request) as store:
        record = store.study(study)
        done = store.cancel(record.name, None if arm is None else record.arm_key(arm))
    folder = _home(request).folder
    owner = lock_owner(folder)
    _log(request, f"cancelled {study}" + (f", {arm}" if arm else ""))
    serving = heartbeat_age_s(folder) < LEASE_S
    return _answer({"runs": asdict(done), "serving": serving, "trouble": "" if owner is None else owner.trouble})


def retry(
    request: Request, study: str, arm: str | None = None, reason: Annotated[str, Query(max_length=1000)] = "asked for"
) -> Response:
    """Queue the failed and cancelled runs of a study again."""
    with _store(request) as store:
        record = store.study(study)
        key = None if arm is None else record.arm_key(arm)
        done = store.retry(record.name, key, author=request.state.token.name, reason=reason)
    _log(request, f"retried {study}" + (f", {arm}" if arm else ""))
    return _answer({"runs": asdict(done)})


# ---- what the routes share ---------------------------------------------------------------------------


def _home(request: Request) -> Home:
    home: Home = request.app.state.home
    return home


def _store(request: Request) -> Store:
    folder = _home(request).folder
    Reader.open(folder).close()  # no home folder is created for a request that names no study
    return Store.open(folder)


def _answer(value: object) -> Response:
    text = json_text({"version": VERSION, "answer": value})  # metrics may be infinite, and JSON has no such number
    return Response(text, headers=NO_STORE, media_type="application/json")


def _log(request: Request, what: str) -> None:
    """Print a line about a change, for the log of the server; the name of the token is no secret."""
    said = "".join(c if c.isprintable() else "?" for c in f"{request.state.token.name} {what}")
    click.echo(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {said}")


async def _work(request: Request, order: Mapping[str, Any]) -> dict[str, Any]:
    """Return what :mod:`paribus.remote.worker` answers; its process outlives neither :data:`LIMIT_S` nor the server.

    Raises:
        ParibusError: what it was asked for cannot be done, takes too long, or takes too much memory.
    """
    home = str(_home(request).folder.resolve())
    sent = json.dumps({**order, "home": home, "parent": os.getpid()}).encode()
    async with request.app.state.room, _process() as process:
        try:
            printed, _ = await asyncio.wait_for(process.communicate(sent), LIMIT_S)
        except TimeoutError:
            raise ServerError(f"the server has not done this within {LIMIT_S:.0f} s, and has stopped it.") from None
    try:
        found: dict[str, Any] = json.loads(printed)
    except ValueError:
        raise ServerError(
            "the process that did this on the server was killed, or failed: its log says more. Does it have too little "
            "memory?"
        ) from None
    if "error" in found:
        raise _Sent(found["error"])
    answer: dict[str, Any] = found["answer"]
    return answer


@asynccontextmanager
async def _process() -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a worker process, and kill it when the block is left."""
    pipe = asyncio.subprocess.PIPE
    command = (sys.executable, "-P", "-m", "paribus.remote.worker")
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, start_new_session=True)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


class _Sent(ParibusError):
    """An error of a worker process, as JSON already."""

    def __init__(self, raw: dict[str, Any]) -> None:
        super().__init__(raw["message"])
        self.raw = raw


def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, ParibusError)
    raw = error.raw if isinstance(error, _Sent) else error_to_json(error)
    return JSONResponse({"error": raw}, 422, NO_STORE)


def _wrong_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return failure(422, ServerError(f"`{'.'.join(map(str, first['loc'][1:]))}`: {first['msg']}"))


def _no_route(_: Request, error: Exception) -> Response:
    return failure(getattr(error, "status_code", 404), ServerError("the server has no such address."))
