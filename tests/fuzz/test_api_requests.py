"""Whatever is requested of the API, with a token that may do everything: an answer or a refusal in JSON, no failure.

The routes are those of the application, so a new one is asked without being named here. The work that a server gives to
processes of its own is done in this one, so that it is fast and confined as well. On SQLite and PostgreSQL, which takes
fewer texts and numbers. ``make test-fuzz N=100000 SEED=1`` sends a tenth of N to each.
"""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import pytest
from fastapi.testclient import TestClient
from hypothesis import strategies as st

from paribus.archive.tar_file import Manifest, member, write_archive
from paribus.errors import ParibusError
from paribus.remote import worker
from paribus.remote.answers import error_to_json
from paribus.remote.tokens import Tokens
from paribus.testing.fake_runner import install
from paribus_dashboards.api import work
from paribus_dashboards.api.routes import make_api
from paribus_dashboards.data.home import Home
from paribus_dashboards.server.access import HEADERS, Access
from paribus_dashboards.server.app import make_app
from support.confined import confined
from support.databases import postgresql
from support.drive import drive
from support.homes import made_up_home
from support.studies import Shape

ODD = (
    "", " ", "0", "-1", "7", "1e999", "nan", "-inf", "9" * 40, "-2147483648", "2147483648", "..", "../../../etc/passwd",
    "a\0b", "%00", "%2500", "\u2028", "\U0001f4a5", "\ud800", "x" * 3000, "'", '"', "{}", "true", "\r\nx: y", "%", "_",
)  # fmt: skip
VALUES: Mapping[str, tuple[str, ...]] = {
    "page": ("1", "2", "2147483648"), "state": ("failed", "SUCCEEDED", "none"), "arm": ("base", "clip_higher"),
    "reason": ("asked for", "r" * 1001), "width": ("80", "1000", "79"), "stated": ("true", "0"),
    "published": ("dapo_table1", "none"), "priority": ("3", "-2147483648"), "weight": ("0.001", "1000", "nan"),
    "of": ("made-up", "0" * 12, ""), "tag": ("good", "a b"),
}  # fmt: skip
"""Names that the routes know, each with values at the borders of what is allowed."""
REMARK = b'{"of": "made-up", "note": "why", "add": ["good"], "remove": ["bad"]}'

STUDY = """
study: {name}
question: Is it safe?
runner: fake
base: {{preset: grpo, set: {{kl: {{kind: "off"}}, schedule.steps: 4}}}}
designs: {{solo: {{kind: list, arms: {{plain: {{}}}}}}}}
seeds: {{n: 1}}
"""


class Asked(NamedTuple):
    """A request."""

    method: str
    route: str
    study: str
    query: tuple[tuple[str, str], ...]
    token: str
    body: bytes


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home folder with a study in each state, its store in a file or on a server; temporary files beside it."""
    place = tmp_path_factory.mktemp("api")
    (place / "temporary").mkdir()
    shape = Shape(steps=8, every=4, designs=("add_one",), tricks=("clip_higher",), seeds=2, problems=4)
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.delenv("PARIBUS_DATABASE_URL", raising=False)
        if request.param == "postgresql":
            url = stack.enter_context(postgresql())
            patch.setenv("PARIBUS_DATABASE_URL", url.render_as_string(hide_password=False))
        patch.syspath_prepend(str(install(place / "site")))
        patch.setattr(tempfile, "tempdir", str(place / "temporary"))
        patch.setattr(work, "_done", done)
        patch.chdir(place)
        made_up_home(place / "home", shape)
        yield place / "home"


async def done(order: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Do in this process what the server starts a process for."""
    raw = json.loads(json.dumps(order))
    with tempfile.TemporaryDirectory() as stage:
        try:
            answer = worker.submit(raw, Path(stage)) if raw["do"] == "submit" else worker.report(raw, Path(stage))
        except ParibusError as error:
            raise work.Sent(error_to_json(error, Path(stage), Path(raw["bundle"]).parent)) from None
    return dict(json.loads(json.dumps(answer)))


def bundle(name: str) -> bytes:
    """Return a study as `paribus submit` sends it."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "study.yaml"
        file.write_text(STUDY.format(name=name))
        made = Manifest(study=name, paribus="0", files=(member("study.yaml", file),))
        write_archive(packed := io.BytesIO(), made, {"study.yaml": file})
    return packed.getvalue()


def routes(home: Path) -> list[tuple[str, str]]:
    """Return method and path of each route of the API."""
    app = make_api(Home(home), lambda _: False)._app  # type: ignore[attr-defined]
    return [
        (method, route.path)
        for route in app.routes
        for method in sorted(getattr(route, "methods", None) or ())
        if method != "HEAD"
    ]


def requests(known: list[tuple[str, str]], tokens: Mapping[str, str], good: bytes) -> st.SearchStrategy[Asked]:
    """Return requests that are those of our client but for some places."""
    odd = st.one_of(st.sampled_from(ODD), st.text(max_size=12), st.integers().map(str), st.floats().map(str))

    @st.composite
    def one(draw: st.DrawFn) -> Asked:
        method, route = draw(st.sampled_from(known))
        if draw(st.integers(0, 9)) == 0:
            method = draw(st.sampled_from(["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "X"]))
        names = draw(st.lists(st.sampled_from([*VALUES, "x", "a\0b"]), max_size=4))
        query = [(name, draw(st.one_of(st.sampled_from(VALUES.get(name, ("1",))), odd))) for name in names]
        body = b""
        if method not in ("GET", "HEAD"):
            whole = REMARK if route == "/api/remarks" else good
            place = draw(st.integers(0, len(whole) - 1))
            changed = whole[:place] + draw(st.binary(max_size=3)) + whole[place + draw(st.integers(0, 3)) :]
            body = draw(st.sampled_from([b"", b"{}", whole, whole[:place], changed, changed, changed]))
        token = draw(st.sampled_from(["run"] * 12 + ["read", "wrong", "none"]))
        study = draw(st.one_of(st.just("made-up"), st.just("sent"), odd))
        return Asked(method, route, study, tuple(query), tokens.get(token, token), body)

    return one()


def test_any_request_is_answered(folder: Path) -> None:
    """No status of 500 and above, an answer or an error as JSON; without a token that may, nothing but a refusal."""
    stored = Tokens(folder)
    tokens = {"run": stored.create("ana", "run"), "read": stored.create("bob", "read"), "none": ""}
    known, good = routes(folder), bundle("sent")
    assert len(known) == 8, known
    seen: set[tuple[str, str, int]] = set()

    def work_through() -> None:
        app = make_app(Home(folder), access=Access(), keep_s=0)
        with TestClient(app, base_url="http://localhost", follow_redirects=False) as client:

            def ask(asked: Asked) -> None:
                address = asked.route.replace("{study}", quote(asked.study, safe="", errors="replace"))
                if query := urlencode(asked.query, errors="replace"):
                    address += f"?{query}"
                headers = {"authorization": f"Bearer {asked.token}"} if asked.token else {}
                if asked.route == "/api/remarks":
                    headers["content-type"] = "application/json"
                answer = client.request(asked.method, address, headers=headers, content=asked.body)
                assert answer.status_code < 500, answer.text
                assert HEADERS.items() <= dict(answer.headers).items()
                if asked.token != tokens["run"] and b"\0" not in repr(asked).encode() and answer.status_code != 422:
                    reads = asked.token == tokens["read"] and asked.method in ("GET", "HEAD")
                    assert reads or answer.status_code in (401, 403), answer.status_code
                if asked.method != "HEAD" and answer.headers.get("content-type") == "application/json":
                    found = answer.json()
                    assert ("error" in found) == (answer.status_code >= 400)
                    if "error" in found:
                        assert found["error"]["message"].strip()
                        assert len(found["error"]["message"]) < 5_000
                        assert str(folder.parent / "temporary") not in answer.text
                    assert "Traceback" not in answer.text
                seen.add((asked.method, asked.route, answer.status_code))

            for method, route in known:
                query = (("of", "made-up"),) if (method, route) == ("GET", "/api/remarks") else ()
                body = {"/api/studies": good, "/api/remarks": REMARK}.get(route, b"")
                ask(Asked(method, route, "made-up", query, tokens["run"], body if method == "POST" else b""))
            assert {status for _, _, status in seen} == {200}, seen
            drive("api", requests(known, tokens, good), ask, folder.parent, share=0.1)

    before = {path for path in folder.parent.rglob("*") if path.is_file()}
    confined(work_through, folder.parent)
    assert not list((folder.parent / "temporary").iterdir())
    inside = {path for path in folder.parent.rglob("*") if path.is_file()} - before
    assert not {path for path in inside if path.suffix in (".yaml", ".py", ".tar")}
