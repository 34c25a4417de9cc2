"""Who may look at a dashboard, and what its pages may do."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from paribus.errors import DashboardError
from paribus_dashboards.server.access import Access, access_for
from paribus_dashboards.server.app import make_app

TOKEN = "a-token-that-is-long-enough"


@pytest.fixture
def guarded(home):
    """The application behind a token."""
    access = Access(token=TOKEN, names=frozenset({"box"}))
    return TestClient(make_app(home, access=access, keep_s=0), base_url="http://box", follow_redirects=False)


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "localhost.evil.example", "", "192.168.0.7", "["]
)
def test_a_name_that_is_not_this_machine_is_refused(client, host):
    """A page of the web that makes its own name lead here gets nothing (DNS rebinding)."""
    assert client.get("/", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1:80", "[::1]:8765", "LOCALHOST"])
def test_the_names_of_this_machine_are_known(client, host):
    """Whatever a browser on this machine calls it works."""
    assert client.get("/", headers={"host": host}).status_code == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH"])
def test_nothing_can_be_changed(client, method):
    """Only reading is answered."""
    assert client.request(method, "/study/made-up").status_code == 405


def test_a_token_is_asked_for_once_and_not_kept_in_the_address(guarded):
    """Without it nothing is shown; with it a cookie is set that neither scripts nor other sites get."""
    assert guarded.get("/").status_code == 401
    assert guarded.get("/static/style.css").status_code == 401
    assert guarded.get("/?token=wrong").status_code == 401
    first = guarded.get(f"/study/made-up?x=%22%3E&token={TOKEN}")
    cookie = first.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=strict" in cookie
    assert TOKEN not in first.text + cookie
    assert '<meta http-equiv="refresh" content="0;url=/study/made-up?x=%22%3E">' in first.text
    assert guarded.get("/study/made-up").status_code == 200
    guarded.cookies.clear()
    guarded.cookies.set(Access(token=TOKEN).cookie, TOKEN)
    assert guarded.get("/").status_code == 401


def test_two_dashboards_of_one_machine_do_not_forget_each_other(home):
    """All ports share their cookies: who has shown the token of another dashboard is still let in here."""
    jar = TestClient(make_app(home, access=Access()), base_url="http://localhost").cookies
    for token in (TOKEN, f"{TOKEN}-too", TOKEN):
        app = make_app(home, access=Access(token=token), keep_s=0)
        browser = TestClient(app, base_url="http://localhost", cookies=jar)
        before = set(jar)
        shown = f"?token={token}" if len(before) < 2 else ""
        assert browser.get(f"/alive{shown}", follow_redirects=False).status_code == (200 if shown else 204)
        jar.update(browser.cookies)
        assert set(jar) > before or not shown


def test_the_way_back_never_leads_to_another_machine(guarded):
    """A path that a browser would read as a machine's name stays a path."""
    assert 'url=/evil.example/"' in guarded.get(f"http://box//evil.example/?token={TOKEN}").text


def test_pages_may_load_nothing_from_elsewhere(client):
    """Every answer, errors too, forbids other sources, frames and sniffing."""
    for address in ("/", "/study/nope", "/static/live.js", "/data/study/made-up/score.json"):
        headers = client.get(address).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "unsafe-eval" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


def test_another_address_needs_a_token(monkeypatch, tmp_path):
    """Whoever listens where others reach it must have a long token, from the environment or a file; it is not shown."""
    assert access_for("127.0.0.1", None, None) == Access()
    with pytest.raises(DashboardError, match="a token is needed"):
        access_for("0.0.0.0", None, None)
    monkeypatch.setenv("SECRET", "short")
    with pytest.raises(DashboardError, match="SECRET holds no token") as refused:
        access_for("127.0.0.1", "SECRET", None)
    assert "short" not in str(refused.value)
    with pytest.raises(DashboardError, match="cannot read"):
        access_for("0.0.0.0", None, tmp_path / "none")
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    found = access_for("0.0.0.0", None, tmp_path / "token")
    assert found.accepts_token(TOKEN)
    assert TOKEN not in repr(found)
    assert found.allows_host("10.0.0.3:8765")
    assert not found.allows_host("evil.example")
