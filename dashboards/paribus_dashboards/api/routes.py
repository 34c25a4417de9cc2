"""The routes of the API.

Answers are ``{"version": 1, "answer": ...}``, or ``{"error": ...}`` with a status of 400 or more.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import click
from fastapi import FastAPI, Query
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Match
from starlette.types import ASGIApp

from paribus.errors import ParibusError, ServerError
from paribus.monitor.status import page_of, remarks_of, studies
from paribus.remote.answers import error_to_json
from paribus.remote.bundle import MOST_BUNDLE
from paribus.remote.client import VERSION
from paribus.remote.tokens import Tokens
from paribus.scheduler.home_lock import serving
from paribus.store.reader import Reader
from paribus.store.remarks import Change
from paribus.store.states import RunState
from paribus.store.store import Store
from paribus_dashboards.api.guard import NO_STORE, SmallBodies, TokenGuard, failure
from paribus_dashboards.api.work import AGAIN_S, Busy, Room, Sent
from paribus_dashboards.data.home import Home
from paribus_dashboards.web import json_text

RECEIVE_S = 300.0
"""Seconds in which a study must have arrived."""

DRAIN_S = 10.0
"""Seconds for which the body of a request that is refused is read and thrown away."""


def make_api(home: Home, is_shared: Callable[[str], bool]) -> ASGIApp:
    """Return the API of a home folder, behind its tokens.

    Args:
        home: the home folder.
        is_shared: whether a secret is the token with which the dashboard was started.
    """
    app = FastAPI(title="Paribus", openapi_url=None, docs_url=None, redoc_url=None)
    app.state.home = home
    app.state.room = Room()
    app.add_middleware(SmallBodies)
    app.add_exception_handler(Busy, _busy)
    app.add_exception_handler(ParibusError, _failed)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(RequestValidationError, _wrong_request)
    app.add_exception_handler(400, _no_json)
    app.add_exception_handler(404, _no_route)
    app.add_exception_handler(405, _no_route)
    app.get("/api/studies")(show_studies)
    app.post("/api/studies")(submit)
    app.get("/api/studies/{study}")(show_study)
    app.get("/api/studies/{study}/report")(report)
    app.post("/api/studies/{study}/cancel")(cancel)
    app.post("/api/studies/{study}/retry")(retry)
    app.get("/api/remarks")(show_remarks)
    app.post("/api/remarks")(remark)
    return TokenGuard(app, Tokens(home.folder), is_shared)


def show_studies(request: Request) -> Response:
    """Return all studies, and which process trains them; it may run in another container."""
    home = _home(request)
    owner = serving(home.folder)
    found = [] if home.empty else studies(home.reader())
    return _answer({"served_by": None if owner is None else owner.about(), "studies": found})


def show_study(
    request: Request,
    study: str,
    page: Annotated[int, Query(ge=1, le=1 << 31)] = 1,
    state: Annotated[tuple[str, ...], Query()] = (),
    tag: Annotated[tuple[str, ...], Query()] = (),
) -> Response:
    """Return a study with a page of its runs."""
    known = {each.lower(): each for each in RunState}
    if wrong := [name for name in state if name.lower() not in known]:
        raise ServerError(f"there is no state {wrong[0][:40]!r}. States: {', '.join(known)}.")
    chosen = tuple(known[name.lower()] for name in state) or tuple(RunState)
    return _answer(page_of(_home(request).reader(), study, page, chosen, tag))


async def submit(
    request: Request,
    priority: Annotated[int | None, Query(ge=-(1 << 31), lt=1 << 31)] = None,
    weight: Annotated[float | None, Query(ge=0.001, le=1000)] = None,
) -> Response:
    """Plan and submit the study in the request's body, a bundle."""
    terms = {k: v for k, v in (("priority", priority), ("weight", weight)) if v is not None}
    async with _room(request).place() as folder:
        bundle = folder / "bundle.tar"
        try:
            async with asyncio.timeout(RECEIVE_S):
                if not await _receive(request, bundle):
                    return failure(413, ServerError(f"the study has more than the {MOST_BUNDLE:,} bytes allowed."))
        except TimeoutError:
            return failure(408, ServerError(f"the study has not arrived within {RECEIVE_S:.0f} s."))
        done = await _work(request, {"do": "submit", "bundle": str(bundle), "terms": terms}, folder)
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
    async with _room(request).place() as folder:
        bundle = folder / "report.tar"
        order = {"do": "report", "bundle": str(bundle), "study": study, "width": width}
        await _work(request, {**order, "published": list(published) if stated else None}, folder)
        return Response(bundle.read_bytes(), headers=NO_STORE, media_type="application/x-tar")


def cancel(request: Request, study: str, arm: str | None = None) -> Response:
    """Cancel a study or one of its arms."""
    with _store(request) as store:
        record = store.study(study)
        done = store.cancel(record.name, None if arm is None else record.arm_key(arm))
    owner = serving(_home(request).folder)
    _log(request, f"cancelled {study}" + (f", {arm}" if arm else ""))
    trouble = "" if owner is None else owner.trouble
    return _answer({"runs": asdict(done), "serving": owner is not None, "trouble": trouble})


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


class Remark(BaseModel, extra="forbid", strict=True):
    """The body of a remark: the fields of :class:`paribus.store.remarks.Change`, and of what it is about."""

    of: str
    note: str | None = None
    add: list[str] = []
    remove: list[str] = []
    archived: bool | None = None


def show_remarks(request: Request, of: str) -> Response:
    """Return note and tags of a study or run, and who changed what when."""
    reader = _home(request).reader()
    return _answer(remarks_of(reader, reader.subject(of)))


def remark(request: Request, asked: Remark) -> Response:
    """Note or tag a study or run, or archive a study."""
    change = Change(note=asked.note, add=tuple(asked.add), remove=tuple(asked.remove), archived=asked.archived)
    with _store(request) as store:
        subject = store.subject(asked.of)
        store.remark(subject, change, request.state.token.name)
        _log(request, f"remarked on {subject.study or subject.run}")
        return _answer(remarks_of(store, subject))


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


def _room(request: Request) -> Room:
    room: Room = request.app.state.room
    return room


async def _receive(request: Request, bundle: Path) -> bool:
    """Write the body of a request into a file; return whether it is not too long."""
    with bundle.open("xb") as file:
        async for piece in request.stream():
            if file.tell() + len(piece) > MOST_BUNDLE:
                return False
            file.write(piece)
    return True


async def _work(request: Request, order: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    home = str(_home(request).folder.resolve())
    return await _room(request).work(request, {**order, "home": home}, folder)


def _failed(_: Request, error: Exception) -> Response:
    assert isinstance(error, ParibusError)
    raw = error.raw if isinstance(error, Sent) else error_to_json(error)
    return JSONResponse({"error": raw}, 422, NO_STORE)


async def _busy(request: Request, error: Exception) -> Response:
    """Refuse a request. What it sends is thrown away, not kept: a client must have sent it all to read an answer."""
    assert isinstance(error, Busy)
    if error.unread:
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                left = MOST_BUNDLE
                async for piece in request.stream():
                    if (left := left - len(piece)) < 0:
                        break
    return failure(503, error, **{"retry-after": str(AGAIN_S)})


def _gone(_: Request, __: Exception) -> Response:
    """Return an empty answer: the client has disconnected."""
    return Response(status_code=400)


def _wrong_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    return failure(422, ServerError(f"`{'.'.join(map(str, first['loc'][1:]))}`: {first['msg']}"))


def _no_json(_: Request, __: Exception) -> Response:
    return failure(400, ServerError("the body of the request is not JSON."))


def _no_route(request: Request, error: Exception) -> Response:
    """Refuse an address that there is not, or a method that it does not take; RFC 9110 wants those that it does."""
    if (status := getattr(error, "status_code", 404)) != 405:
        return failure(status, ServerError("the server has no such address."))
    here = [r for r in request.app.routes if r.matches(request.scope)[0] is not Match.NONE]
    methods = {method for route in here for method in route.methods}
    allowed = ", ".join(sorted(methods | ({"HEAD"} if "GET" in methods else set())))
    return failure(405, ServerError(f"this address takes {allowed}, not {request.method[:40]}."), allow=allowed)
