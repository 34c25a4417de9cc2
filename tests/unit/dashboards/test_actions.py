"""The page that changes something: who may, what a form needs, what it does, and what it shows of hostile texts."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from paribus.remote.tokens import Tokens
from paribus.retention.deletion import look
from paribus.run_folder.folder import RunFolder, write_json
from paribus.scheduler.home_lock import lock_home
from paribus.store.remarks import MOST_NOTE, Change, Subject
from paribus.store.states import RunState
from paribus.store.store import Store
from paribus_dashboards.data.home import Home
from paribus_dashboards.data.reports import build
from paribus_dashboards.server.access import Access
from paribus_dashboards.server.app import make_app
from paribus_dashboards.server.export import export
from support.plans import small_plan

HOSTILE = "<script>alert(1)</script> \"' &amp; </textarea>\x1b[2J\u202e"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    """A home folder with one run that is trained and three that wait."""
    monkeypatch.delenv("PARIBUS_DATABASE_URL", raising=False)
    with Store.open(tmp_path) as store:
        study = store.add_study(small_plan("made-up"))
        claim = store.claim(study.id, engine="local", worker="here")
        assert claim is not None
        store.start(claim.run_id, claim.token)
    found = Home(tmp_path, make_report=build)
    yield found
    found.close()


@pytest.fixture
def reader_of(home: Home) -> Callable[[str], TestClient]:
    """Returns a browser in which the token of a scope was entered."""

    def enter(scope: str) -> TestClient:
        secret = Tokens(home.folder).create(scope, scope)  # type: ignore[arg-type]
        browser = TestClient(make_app(home, access=Access(), keep_s=0), base_url="http://localhost")
        assert browser.post("/act/made-up", data={"token": secret}).status_code == 200
        return browser

    return enter


def fields(browser: TestClient, at: str) -> dict[str, str]:
    """Open the page and return what its first form holds, as a browser would send it."""
    page = browser.get(at).text
    form = re.search(r"<form.*?</form>", page, re.DOTALL)
    assert form is not None, page
    found = dict(re.findall(r'name="(\w+)" (?:size="40" )?value="([^"]*)"', form[0]))
    note = re.search(r"<textarea[^>]*>\n(.*?)</textarea>", form[0], re.DOTALL)
    assert note is not None
    return {name: html.unescape(value) for name, value in {**found, "note": note[1]}.items()}


def send(browser: TestClient, at: str, do: str, **values: str) -> Any:
    """Send a form of the page."""
    return browser.post(at, data={**fields(browser, at), "do": do, **values})


def run_in(folder: Path, state: RunState) -> str:
    """Return the first digits of a run of the study in this state."""
    with Store.open(folder) as store:
        return next(r.fingerprint[:12] for r in store.runs_of(1) if r.state is state)


def test_a_note_and_tags_are_kept_and_shown_as_text(home: Home, reader_of: Callable[[str], TestClient]) -> None:
    """What was typed comes back to the letter, in the form, on the board and in the list; nothing of it is markup."""
    browser = reader_of("run")
    typed = HOSTILE.replace("\x1b", "")  # no browser sends it
    assert "Note and tags are saved." in send(browser, "/act/made-up", "remark", note=typed, tags="good a/b").text
    with Store.open(home.folder) as store:
        about = store.about(Subject(study="made-up"))
        assert (about.note, about.author, about.tags) == (typed, "run", ("a/b", "good"))
        store.remark(Subject(study="made-up"), Change(note=HOSTILE), "ada")
    assert fields(browser, "/act/made-up")["note"].startswith(typed[:30])
    for at in ("/", "/study/made-up", "/act/made-up"):
        page = browser.get(at).text
        assert "<script>alert" not in page
    assert "Note and tags" in send(browser, "/act/made-up", "remark", note="", tags="good").text
    with Store.open(home.folder) as store:
        assert store.about(Subject(study="made-up")).tags == ("good",)


def test_a_run_is_stopped_and_retried_alone(home: Home, reader_of: Callable[[str], TestClient]) -> None:
    """Other runs of the study stay as they were."""
    browser = reader_of("run")
    at = f"/act/made-up?run={run_in(home.folder, RunState.QUEUED)}"
    assert "Runs: 1 queued cancelled." in send(browser, at, "cancel").text
    with Store.open(home.folder) as store:
        assert store.counts(1)[RunState.CANCELLED] == 1
        assert store.counts(1)[RunState.RUNNING] == 1
    assert "Runs: 1 queued again." in send(browser, at, "retry").text
    assert "3 queued cancelled, 1 running asked to stop, with a checkpoint" in send(
        browser, "/act/made-up", "cancel"
    ).text  # fmt: skip
    assert "none has failed or been cancelled" not in send(browser, "/act/made-up", "retry").text


def test_priority_is_a_whole_number(home: Home, reader_of: Callable[[str], TestClient]) -> None:
    """Anything else is a sentence, and changes nothing."""
    browser = reader_of("run")
    assert "The priority is -3." in send(browser, "/act/made-up", "priority", priority="-3").text
    for wrong in ("", "high", "1.5", "9" * 40, "--3", "²"):
        assert send(browser, "/act/made-up", "priority", priority=wrong).status_code == 422
    with Store.open(home.folder) as store:
        assert store.study("made-up").priority == -3


def test_a_study_is_archived_and_listed_again(home: Home, reader_of: Callable[[str], TestClient]) -> None:
    """The page says what is the case now; a run alone cannot be archived."""
    browser = reader_of("run")
    assert "Archived. All of it is kept." in send(browser, "/act/made-up", "archive").text
    page = browser.get("/act/made-up").text
    assert "It is archived." in page
    assert "<button>List again</button>" in page
    assert "Listed again." in send(browser, "/act/made-up", "archive", undo="yes").text
    at = f"/act/made-up?run={run_in(home.folder, RunState.QUEUED)}"
    assert "only a study is archived" in send(browser, at, "archive").text
    assert "Archive" not in browser.get(at).text
    with Store.open(home.folder) as store:
        assert not store.about(Subject(study="made-up")).archived


@pytest.fixture
def ended(home: Home) -> Home:
    """The same, beside a study `done` of four runs with results and folders, two of which `other` has, too."""
    with Store.open(home.folder) as store:
        done = store.add_study(small_plan("done", steps=6))
        store.add_study(small_plan("other", arms=1, steps=6))
        while (claim := store.claim(done.id, engine="local", worker="here")) is not None:
            store.start(claim.run_id, claim.token)
            folder = RunFolder.of(home.folder, claim.fingerprint, claim.token)
            folder.path.mkdir(parents=True)
            write_json(folder.result, {"status": "succeeded"})
            store.finish(claim.run_id, claim.token, {"status": "succeeded"})
    return home


def test_a_study_is_deleted_after_its_loss_was_shown_and_its_name_typed(
    ended: Home, reader_of: Callable[[str], TestClient]
) -> None:
    """The words are those of the command; what other studies have stays; without the name nothing goes."""
    browser = reader_of("run")
    with Store.open(ended.folder) as store:
        words = look(store, "done").lines()
    asked = send(browser, "/act/done", "delete")
    assert all(html.escape(line) in asked.text for line in words)
    assert "2 runs that other studies have, too: other (2)" in asked.text
    found = dict(re.findall(r'name="(\w+)" value="([^"]*)"', asked.text))
    for wrong in ({"name": "other"}, {"name": ""}, {"name": "done", "shown": "0" * 64}):
        refused = browser.post("/act/done", data=found | wrong)
        assert (refused.status_code, "othing was deleted" in refused.text) == (422, True)
    assert len([*(ended.folder / "runs").iterdir()]) == 4
    gone = browser.post("/act/done", data=found | {"name": "done"})
    assert (gone.status_code, "Deleted done, freed " in gone.text) == (200, True)
    assert len([*(ended.folder / "runs").iterdir()]) == 2
    with Store.open(ended.folder) as store:
        assert {each.name for each in store.summaries()} == {"made-up", "other"}
        (line,) = store.remarks(Subject(study="done"))
        assert (line.author, line.kind) == ("run", "delete")
    assert browser.get("/act/done").status_code == 404


def test_a_deletion_that_would_take_what_is_needed_is_refused(
    ended: Home, reader_of: Callable[[str], TestClient]
) -> None:
    """Runs that have not ended, a process that works in the folder, one run alone, results that came since."""
    browser = reader_of("run")
    assert "4 runs that have not ended" in html.unescape(send(browser, "/act/made-up", "delete").text)
    run = f"/act/made-up?run={run_in(ended.folder, RunState.QUEUED)}"
    assert "only a study is deleted" in send(browser, run, "delete").text
    with lock_home(ended.folder, "paribus scheduler"):
        said = send(browser, "/act/done", "delete")
        assert (said.status_code, "Archiving needs no stop" in said.text) == (422, True)
    found = dict(re.findall(r'name="(\w+)" value="([^"]*)"', send(browser, "/act/done", "delete").text))
    with Store.open(ended.folder) as store:
        store.add_study(small_plan("third", arms=1, steps=6))
    assert "has changed since" in browser.post("/act/done", data=found | {"name": "done"}).text
    assert reader_of("read").post("/act/done", data=found | {"name": "done"}).status_code == 403
    with Store.open(ended.folder) as store:
        assert "done" in {each.name for each in store.summaries()}


def test_a_reader_is_told_why_there_are_no_buttons(home: Home, reader_of: Callable[[str], TestClient]) -> None:
    """A token that only reads, the token of the dashboard, and none at all: no form, and no way past it."""
    browser = reader_of("read")
    page = browser.get("/act/made-up").text
    assert "has the scope" in page
    assert 'class="act"' not in page
    refused = browser.post("/act/made-up", data={"do": "cancel", "key": "x"})
    assert refused.status_code == 403
    shared = "a-token-that-is-long-enough"
    app = make_app(home, access=Access(token=shared), keep_s=0)
    with_shared = TestClient(app, base_url="http://localhost")
    with_shared.cookies.set(Access(token=shared).cookie, Access(token=shared).cookie_value)
    assert with_shared.post("/act/made-up", data={"do": "cancel"}).status_code == 403
    nobody = TestClient(app, base_url="http://localhost")
    assert nobody.post("/act/made-up", data={"do": "cancel"}).status_code == 401
    with Store.open(home.folder) as store:
        assert store.counts(1).get(RunState.CANCELLED, 0) == 0


def test_without_any_token_pages_have_no_way_to_change_something(home: Home) -> None:
    """The board has no link, the page says how to get a token, and a form is refused."""
    client = TestClient(make_app(home, access=Access(), keep_s=0), base_url="http://localhost")
    assert "/act/" not in client.get("/study/made-up").text
    assert "paribus token create --scope run" in client.get("/act/made-up").text
    assert client.post("/act/made-up", data={"do": "cancel"}).status_code == 403


def test_pages_are_exported_though_the_folder_has_tokens(home: Home, tmp_path: Path) -> None:
    """Who exports reads the folder itself; the file has no form, no link to one, and asks for no token."""
    Tokens(home.folder).create("ada", "run")
    export(home, tmp_path / "all.html")
    text = (tmp_path / "all.html").read_text()
    assert 'data-at="/study/made-up"' in text
    assert "/act/" not in text
    assert "password" not in text


def test_another_site_can_send_no_form(home: Home, reader_of: Callable[[str], TestClient]) -> None:
    """Without the key, with that of another token, or from another site: refused, though the cookie is right."""
    browser = reader_of("run")
    with_key = fields(browser, "/act/made-up") | {"do": "cancel"}
    other = TestClient(browser.app, base_url="http://localhost")
    other.post("/act/made-up", data={"token": Tokens(home.folder).create("other", "run")})
    for data, headers in (
        ({"do": "cancel"}, {}),
        (with_key | {"key": ""}, {}),
        (with_key | {"key": fields(other, "/act/made-up")["key"]}, {}),
        (with_key, {"sec-fetch-site": "cross-site"}),
        (with_key, {"sec-fetch-site": "same-site"}),
    ):
        assert browser.post("/act/made-up", data=data, headers=headers).status_code == 403
    assert browser.post("/act/made-up", data=with_key, headers={"host": "evil.example"}).status_code == 400
    assert browser.post("/study/made-up", data=with_key).status_code == 405
    with Store.open(home.folder) as store:
        assert store.counts(1).get(RunState.CANCELLED, 0) == 0
    Tokens(home.folder).revoke("run")
    assert browser.post("/act/made-up", data=with_key).status_code == 401


def test_what_is_wrong_is_a_sentence(home: Home, reader_of: Callable[[str], TestClient]) -> None:
    """Unknown studies, runs and actions, notes and forms that are too long, bytes that are no form."""
    browser = reader_of("run")
    assert browser.get("/act/nope").status_code == 404
    assert browser.get("/act/made-up?run=0000000").status_code == 404
    assert send(browser, "/act/made-up", "explode").status_code == 422
    long = send(browser, "/act/made-up", "remark", note="n" * (MOST_NOTE + 1))
    assert (long.status_code, "4,001 characters" in long.text) == (422, True)
    assert send(browser, "/act/made-up", "remark", note="n" * 70_000).status_code == 413
    assert send(browser, "/act/made-up", "remark", tags="<b>").status_code == 422
    assert browser.post("/act/made-up", content=b"\xff\xfe%").status_code == 403
