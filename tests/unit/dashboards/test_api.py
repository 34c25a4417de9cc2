"""The API: who gets in, what a browser of another site cannot do, and errors that say what is wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from starlette.types import Message

from paribus.remote.bundle import MOST_BUNDLE
from paribus.remote.tokens import FILE, Tokens
from paribus_dashboards.data.home import Home
from paribus_dashboards.server.access import Access
from paribus_dashboards.server.app import make_app

TOKEN = "a-token-that-is-long-enough"
READS = ("/api/studies", "/api/studies/made-up", "/api/studies/made-up/report", "/api/remarks?of=made-up")
CHANGES = ("/api/studies", "/api/studies/made-up/cancel", "/api/studies/made-up/retry", "/api/remarks")


class Site:
    """A server over a copy of the home folder."""

    def __init__(self, folder: Path, shared: str = "") -> None:
        self.folder = folder
        self.tokens = Tokens(folder)
        self.home = Home(folder)
        access = Access(token=shared, names=frozenset({"box"}))
        self.client = TestClient(make_app(self.home, access=access, keep_s=0), base_url="http://localhost")

    def get(self, address: str, token: str = "", **more):
        """Return the answer to a GET with a token."""
        return self.client.get(address, headers={"authorization": f"Bearer {token}"} if token else {}, **more)

    def post(self, address: str, token: str = "", **more):
        """Return the answer to a POST with a token."""
        return self.client.post(address, headers={"authorization": f"Bearer {token}"} if token else {}, **more)


@pytest.fixture
def site(new_folder: Callable[[], Path]) -> Site:
    """A server without a token of its own."""
    return Site(new_folder())


def test_without_a_token_there_is_nothing(site: Site) -> None:
    """Not a name, not a count, whether or not any token exists; what is sent as a token elsewhere doesn't count."""
    secret = ""
    for name in ("ana", "bob"):
        for address in READS:
            answer = site.get(address, "wrong")
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert "made-up" not in answer.text
            assert site.get(f"{address}?token={secret}&access_token={secret}").status_code == 401
            assert site.client.get(address, headers={"authorization": f"Basic {secret}"}).status_code == 401
        assert {site.post(address, "wrong", content=b"x").status_code for address in CHANGES} == {401}
        secret = site.tokens.create(name, "run")
    assert site.get("/api/studies", secret).status_code == 200


def test_read_does_not_run(site: Site) -> None:
    """403 for every change, whatever the method; nothing is changed."""
    secret = site.tokens.create("bob", "read")
    before = site.get("/api/studies", secret).json()
    for address in CHANGES:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            answer = site.client.request(method, address, headers={"authorization": f"Bearer {secret}"})
            assert answer.status_code == 403
            assert "`bob` has the scope `read`, and this needs `run`" in answer.json()["error"]["message"]
    assert site.get("/api/studies", secret).json() == before
    assert before["answer"]["studies"][0]["study"] == "made-up"


def test_remarks_bear_the_name_of_the_token(site: Site) -> None:
    """A note comes back as it was sent; what is no remark, or about nothing, is an error that says so."""
    secret = site.tokens.create("ana", "run")
    sent = {"of": "made-up", "note": "<b>\x1b[2J", "add": ["good"], "remove": [], "archived": True}
    said = site.post("/api/remarks", secret, json=sent).json()["answer"]
    assert (said["note"], said["author"], said["tags"], said["archived"]) == (sent["note"], "ana", ["good"], True)
    assert site.get("/api/remarks?of=made-up", secret).json()["answer"] == said
    for wrong in ({"of": "nope"}, {"of": "made-up", "note": 3}, {"of": "made-up", "more": 1}, {"note": "n"}, [], 7):
        answer = site.post("/api/remarks", secret, json=wrong)
        assert answer.status_code == 422
        assert answer.json()["error"]["message"]
    assert "no study `nope`" in site.get("/api/remarks?of=nope", secret).json()["error"]["message"]


def test_a_body_that_is_no_remark_is_refused_in_a_sentence(site: Site) -> None:
    """Bytes that are no text, and JSON that is too deep or has a number too long for Python."""
    secret = site.tokens.create("ana", "run")
    json_header = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
    for body in (b'{"of": "\xff"}', b"[" * 50_000, b"9" * 50_000):
        answer = site.client.post("/api/remarks", headers=json_header, content=body)
        assert (answer.status_code, "error" in answer.json()) == (400, True)


def test_a_long_body_is_not_kept_in_memory(site: Site) -> None:
    """Of a request that sends no study the server reads a small part, then refuses it."""
    secret = site.tokens.create("ana", "run")
    headers = [(b"authorization", f"Bearer {secret}".encode()), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/api/remarks", "query_string": b"", "headers": headers}
    pieces, answer = iter([b" " * 10_000] * 1000), list[Message]()

    async def receive() -> Message:
        return {"type": "http.request", "body": next(pieces), "more_body": True}

    async def send(message: Message) -> None:
        answer.append(message)

    asyncio.run(site.client.app(scope, receive, send))
    assert answer[0]["status"] == 413
    assert b"more than the 65,536 bytes allowed" in answer[1]["body"]
    assert len(list(pieces)) == 1000 - 7


def test_a_revoked_token_is_out(site: Site) -> None:
    """From the next request on, in the API and in a browser that had entered it."""
    secret = site.tokens.create("ana", "run")
    browser = TestClient(site.client.app, base_url="http://localhost")
    assert browser.post("/study/made-up", data={"token": secret}).status_code == 200
    assert browser.get("/study/made-up").status_code == 200
    site.tokens.revoke("ana")
    assert site.get("/api/studies", secret).status_code == 401
    assert browser.get("/study/made-up").status_code == 401


def test_the_token_of_the_dashboard_reads(new_folder: Callable[[], Path]) -> None:
    """It opens the pages as before, and the API with the scope `read`."""
    site = Site(new_folder(), TOKEN)
    assert site.get("/api/studies", TOKEN).status_code == 200
    assert site.post("/api/studies/made-up/cancel", TOKEN).status_code == 403
    assert site.get(f"/?token={TOKEN}", follow_redirects=False).status_code == 200
    assert site.get("/").status_code == 200


def test_a_token_is_entered_in_a_form_and_never_stands_in_an_address(site: Site) -> None:
    """Once there are tokens, pages ask for one; the cookie is not the token and no script reads it."""
    assert site.get("/").status_code == 200
    secret = site.tokens.create("bob", "read")
    asked = site.get("/study/made-up?x=1")
    assert asked.status_code == 401
    assert '<form method="post">' in asked.text
    assert "script-src 'self'" in asked.headers["content-security-policy"]
    assert "form-action 'self'" in asked.headers["content-security-policy"]
    assert asked.headers["referrer-policy"] == "no-referrer"
    assert site.get(f"/?token={secret}").status_code == 401
    assert site.post("/", data={"token": "wrong"}).status_code == 401
    assert site.post("/", content=b"token=" + b"x" * 10_000).status_code == 413
    entered = site.post("/study/made-up?x=1", data={"token": secret})
    assert 'url=/study/made-up?x=1"' in entered.text
    cookie = entered.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert secret not in entered.text + entered.headers["set-cookie"]
    assert site.get("/study/made-up").status_code == 200
    assert site.post("/study/made-up").status_code == 405


def test_a_cookie_changes_nothing(site: Site) -> None:
    """A page of another site can make a browser send its cookies, but not a header."""
    secret = site.tokens.create("ana", "run")
    site.post("/", data={"token": secret})
    assert site.get("/").status_code == 200
    assert {site.post(address).status_code for address in CHANGES} == {401}
    assert {site.get(address).status_code for address in READS} == {401}


def test_a_damaged_file_of_tokens_opens_nothing(site: Site) -> None:
    """Neither pages nor API; the sentence doesn't show what is in it."""
    secret = site.tokens.create("ana", "run")
    (site.folder / FILE).write_text('{"tokens": "' + secret)
    for answer in (site.get("/"), site.get("/api/studies", secret), site.post("/", data={"token": secret})):
        assert answer.status_code in (401, 503)
        assert secret not in answer.text
    assert site.get("/api/studies", secret).status_code == 503


def test_errors_are_sentences(site: Site) -> None:
    """Of names that don't exist, wrong numbers, and bodies that are no study; never a traceback or a path."""
    secret = site.tokens.create("ana", "run")

    def said(answer) -> str:
        assert 400 <= answer.status_code < 500
        return answer.json()["error"]["message"]

    assert "no study" in said(site.get("/api/studies/made-down", secret))
    assert "made-up" in said(site.get("/api/studies/made-down", secret))
    assert "no state 'flying'" in said(site.get("/api/studies/made-up?state=flying", secret))
    assert "`page`" in said(site.get("/api/studies/made-up?page=0", secret))
    assert "has no arm `x`" in said(site.post("/api/studies/made-up/cancel?arm=x", secret))
    assert "no such address" in said(site.get("/api/other", secret))
    for address, allowed in (("/api/studies", "GET, HEAD, POST"), ("/api/studies/made-up/cancel", "POST")):
        answer = site.client.request("TRACE", address, headers={"authorization": f"Bearer {secret}"})
        assert (answer.status_code, answer.headers["allow"]) == (405, allowed)  # which schemathesis missed
        assert f"takes {allowed}" in said(answer)
    assert "is not a study that `paribus submit` has sent" in said(site.post("/api/studies", secret, content=b"x"))
    assert "more than" in said(site.post("/api/studies", secret, content=bytes(MOST_BUNDLE + 1)))
    assert "`priority`" in said(site.post("/api/studies?priority=first", secret, content=b"x"))


def test_a_study_is_cancelled_and_taken_back(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    """Through the store, as by the commands; the log has who did what, and no token."""
    secret = site.tokens.create("ana", "run")
    done = site.post("/api/studies/made-up/cancel", secret).json()["answer"]
    assert done["runs"] == {"queued": 1, "running": 1, "shared": 0, "ended": done["runs"]["ended"]}
    assert site.get("/api/studies/made-up", secret).json()["answer"]["states"]["CANCELLED"] == 1
    again = site.post("/api/studies/made-up/retry?reason=after+all", secret).json()["answer"]
    assert again["runs"]["queued"] == 1
    logged = capsys.readouterr().out
    assert "ana cancelled made-up" in logged
    assert "ana retried made-up" in logged
    assert secret not in logged


def test_a_choice_of_studies_has_no_api(new_folder: Callable[[], Path]) -> None:
    """`--study` shows some studies; the API would show the others."""
    folder = new_folder()
    secret = Tokens(folder).create("ana", "run")
    client = TestClient(make_app(Home(folder, ["made-up"]), access=Access(), keep_s=0), base_url="http://localhost")
    headers = {"authorization": f"Bearer {secret}"}
    assert client.get("/api/studies", headers=headers).status_code == 401  # as of any page
    client.post("/", data={"token": secret})
    assert client.get("/api/studies", headers=headers).status_code == 404


def test_no_page_has_a_script_or_a_handler_in_its_text(site: Site) -> None:
    """What the content security policy forbids isn't there either; model output can't bring one."""
    pages = ("", "/health", "/compare", "/samples", "/heatmap", "/queue", "/report")
    for address in ("/", *(f"/study/made-up{page}" for page in pages)):
        page = site.get(address)
        assert page.status_code == 200, address
        policy = dict(part.split(" ", 1) for part in page.headers["content-security-policy"].split("; "))
        assert policy["script-src"] == "'self'"
        for tag in page.text.split("<script")[1:]:
            assert " src=" in tag.split(">")[0]
            assert tag.split(">", 1)[1].startswith("</script>")
        assert "javascript:" not in page.text.lower()
        assert not [a for a in (" onclick=", " onload=", " onerror=", " onsubmit=", " onchange=") if a in page.text]


def test_the_answers_are_for_one_client(site: Site) -> None:
    """Nothing of the API is kept by a browser or a proxy, and the answer to one token is never given to another."""
    ana, bob = site.tokens.create("ana", "run"), site.tokens.create("bob", "read")
    assert site.get("/api/studies", ana).headers["cache-control"] == "no-store"
    assert site.get("/api/studies", bob).status_code == 200
    site.tokens.revoke("bob")
    assert site.get("/api/studies", bob).status_code == 401
    assert json.loads(site.get("/api/studies", ana).text)["version"] == 1
