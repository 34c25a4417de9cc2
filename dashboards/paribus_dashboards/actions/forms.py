"""The page ``/act/STUDY``, its forms, and what they do. A form works once the page was opened with the same cookie.

A request of another site has neither the cookie, which is ``SameSite=Strict``, nor the key in the form, which is made
from the cookie and stands in no other page.
"""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from urllib.parse import parse_qsl

import click
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from paribus.errors import ParibusError, StoreError
from paribus.remote.tokens import Token
from paribus.retention.deletion import Doomed, delete, look
from paribus.run_folder.folder import SHORT
from paribus.scheduler.home_lock import lock_home, serving
from paribus.store.models import RunRecord
from paribus.store.remarks import MOST_NOTE, MOST_TAG, Change, Subject
from paribus.store.states import TERMINAL
from paribus.store.store import Store
from paribus.text import size_text
from paribus_dashboards.data.home import Home, NotFound
from paribus_dashboards.web import render

MOST_FORM = 64_000
"""Most bytes of a form: a note of 4,000 characters has at most 48,000."""

_NOBODY = (
    "Pages change nothing without a token. Create one on the machine of the dashboard, then enter it here: "
    "`paribus token create --scope run --name NAME`"
)


@dataclass(frozen=True)
class Target:
    """What a form is about: a study, and one of its runs or all of it."""

    study: str
    run: RunRecord | None

    @property
    def subject(self) -> Subject:
        """What remarks are about."""
        return Subject(study=self.study) if self.run is None else Subject(run=self.run.fingerprint)

    @property
    def fingerprint(self) -> str | None:
        """Fingerprint of the run; ``None``: all of the study."""
        return None if self.run is None else self.run.fingerprint

    @property
    def title(self) -> str:
        """Its name for people."""
        return self.study if self.run is None else f"{self.run.label}, seed {self.run.seed}"


def make_actions(home: Home) -> Starlette:
    """Return the application below ``/act/``.

    It finds the token of the request, or ``None``, in ``request.state.token``, and the cookie in
    ``request.state.cookie``.
    """
    app = Starlette(routes=[Route("/act/{study}", show), Route("/act/{study}", act, methods=["POST"])])
    app.state.home = home
    app.state.pages = ()
    return app


def key_of(cookie: str) -> str:
    """Return the key that the forms of a reader hold."""
    return hmac.new(cookie.encode(), b"paribus form", "sha256").hexdigest()


def trouble_of(token: Token | None) -> str:
    """Return why a reader may change nothing, in a sentence; empty if they may."""
    if token is None:
        return _NOBODY
    if not token.allows("run"):
        return f"The token `{token.name}` has the scope `{token.scope}`, and changes need `run`."
    return ""


def show(request: Request) -> Response:
    """Show the forms; a reader who may change nothing gets the reason."""
    try:
        target = _target(request)
    except (NotFound, ParibusError) as error:
        return _page(request, None, trouble=str(error), status=404)
    return _page(request, target, trouble=trouble_of(request.state.token))


async def act(request: Request) -> Response:
    """Do what a form asks for."""
    from starlette.concurrency import run_in_threadpool

    body = b""
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MOST_FORM:
                return _page(request, None, trouble="This form is too long.", status=413)
    except ClientDisconnect:
        return Response(status_code=400)
    try:
        form = dict(parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body)))
    except ValueError:
        form = {}
    return await run_in_threadpool(_act, request, form)


def _act(request: Request, form: Mapping[str, str]) -> Response:
    if trouble := trouble_of(request.state.token):
        return _page(request, None, trouble=trouble, status=403)
    same = request.headers.get("sec-fetch-site", "same-origin") == "same-origin"
    if not (same and hmac.compare_digest(form.get("key", "").encode(), key_of(request.state.cookie).encode())):
        return _page(request, None, trouble="This form is not of this page, or is outdated: open it again.", status=403)
    try:
        target = _target(request)
        if (do := _ACTIONS.get(form.get("do", ""))) is None:
            raise StoreError("the form asks for something that this page doesn't do.")
        with Store.open(_home(request).folder) as store:
            said = do(store, target, form, request.state.token.name)
        if isinstance(said, Doomed):
            return _page(request, target, doomed=said)
        shown = (
            _page(request, None, said=said, gone=True) if do is _delete else _page(request, _target(request), said=said)
        )
    except (NotFound, ParibusError) as error:
        return _page(request, None, trouble=str(error), status=422)
    text = f"{request.state.token.name} {form['do']} {target.study} {target.title}"
    click.echo(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {''.join(c if c.isprintable() else '?' for c in text)}")
    return shown


# ---- what the forms do; each returns a sentence, or what is to be confirmed ---------------------------


def _remark(store: Store, target: Target, form: Mapping[str, str], author: str) -> str:
    tags, were = ({*form.get(name, "").replace(",", " ").split()} for name in ("tags", "were"))
    change = Change(note=form.get("note", ""), add=tuple(sorted(tags - were)), remove=tuple(sorted(were - tags)))
    store.remark(target.subject, change, author)
    return "Note and tags are saved."


def _cancel(store: Store, target: Target, form: Mapping[str, str], author: str) -> str:
    done = store.cancel(target.study, run=target.fingerprint)
    parts = [
        f"{done.queued} queued cancelled" if done.queued else "",
        f"{done.running} running asked to stop, with a checkpoint" if done.running else "",
        f"{done.shared} left to other studies that need them" if done.shared else "",
        f"{done.ended} had ended before" if done.ended else "",
    ]
    return f"Runs: {', '.join(filter(None, parts)) or 'none'}."


def _retry(store: Store, target: Target, form: Mapping[str, str], author: str) -> str:
    done = store.retry(target.study, run=target.fingerprint, author=author, reason="asked for on a page")
    parts = [
        f"{done.queued} queued again" if done.queued else "",
        f"{done.kept} running are no longer cancelled" if done.kept else "",
        "the pause is lifted" if done.lifted else "",
    ]
    return f"Runs: {', '.join(filter(None, parts)) or 'none has failed or been cancelled'}."


def _priority(store: Store, target: Target, form: Mapping[str, str], author: str) -> str:
    text = form.get("priority", "").strip()
    if not re.fullmatch(r"-?[0-9]{1,10}", text) or abs(int(text)) >= 1 << 31:
        raise StoreError(f"{text[:40]!r} is no priority: a whole number; higher ones go first.")
    store.set_priority(target.study, int(text))
    return f"The priority is {int(text)}."


def _archive(store: Store, target: Target, form: Mapping[str, str], author: str) -> str:
    archived = form.get("undo", "") != "yes"
    store.remark(target.subject, Change(archived=archived), author)
    return "Archived. All of it is kept." if archived else "Listed again."


def _delete(store: Store, target: Target, form: Mapping[str, str], author: str) -> str | Doomed:
    """Delete a study whose loss was confirmed: its name was typed under what goes, and that is what goes now."""
    if target.run is not None:
        raise StoreError("only a study is deleted, with the runs that no other study has: open the page of the study.")
    if (owner := serving(store.home)) is not None:
        raise StoreError(
            f"{owner} works in the home folder, so nothing is deleted: stop it meanwhile. Archiving needs no stop."
        )
    doomed = look(store, target.study)
    if "shown" not in form:
        return doomed
    if form.get("name", "").strip() != target.study:
        raise StoreError(f"nothing was deleted: to delete it, type its name, `{target.study}`.")
    if form["shown"] != doomed.digest:
        raise StoreError(f"`{target.study}` has changed since it was looked at, so nothing was deleted: look again.")
    with lock_home(store.home, "paribus dashboard"):
        freed = delete(store, doomed, author)
    return f"Deleted {target.study}, freed {size_text(freed)}."


_ACTIONS: Mapping[str, Callable[[Store, Target, Mapping[str, str], str], str | Doomed]] = {
    "remark": _remark,
    "cancel": _cancel,
    "retry": _retry,
    "priority": _priority,
    "archive": _archive,
    "delete": _delete,
}


# ---- the page ----------------------------------------------------------------------------------------


def _home(request: Request) -> Home:
    home: Home = request.app.state.home
    return home


def _target(request: Request) -> Target:
    study, digits = request.path_params["study"], request.query_params.get("run", "")
    reader = _home(request).reader()
    try:
        record = reader.study(study)
    except StoreError as error:
        raise NotFound(str(error)) from None
    if not digits:
        return Target(study, None)
    found = [r for r in reader.runs_of(record.id) if r.fingerprint.startswith(digits)] if len(digits) >= 6 else []
    if len(found) != 1:
        raise NotFound(f"`{study}` has no run whose fingerprint starts with `{digits[:SHORT]}`")
    return Target(study, found[0])


def _page(
    request: Request,
    target: Target | None,
    *,
    said: str = "",
    trouble: str = "",
    doomed: Doomed | None = None,
    gone: bool = False,
    status: int = 200,
) -> Response:
    reader, token = _home(request).reader(), request.state.token
    about = reader.about(target.subject) if target else None
    shown = render(
        request,
        "actions/page.html",
        None,
        "" if gone else request.path_params["study"],
        named=request.path_params["study"],
        target=target,
        doomed=doomed,
        about=about,
        priority=reader.study(target.study).priority if target else 0,
        ended=target is not None and target.run is not None and target.run.state in TERMINAL,
        said=said,
        trouble=trouble,
        token=token,
        key=key_of(request.state.cookie) if token is not None and not trouble else "",
        most_note=MOST_NOTE,
        most_tag=MOST_TAG,
        digits=target.run.fingerprint[:SHORT] if target and target.run else "",
    )
    return Response(shown.body, status, {"cache-control": "no-store"}, "text/html; charset=utf-8")
