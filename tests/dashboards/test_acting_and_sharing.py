"""Buttons behind a token, and links to exactly what is shown."""

import re

import pytest
from playwright.sync_api import expect

from paribus.remote.tokens import Tokens
from paribus.store.remarks import Subject
from paribus.store.store import Store
from support.homes import made_up_home
from support.plans import small_plan

BOARD = "/study/made-up"
HOSTILE = "<img src=x onerror=alert(1)> & </textarea>\n  second line"


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A home folder of its own, which these tests change."""
    folder = tmp_path_factory.mktemp("acting") / "home"
    made_up_home(folder)
    return folder


@pytest.fixture
def entered(serve, watch, home):  # pages close before their server
    """Opens pages of a browser in which the token of a scope was entered."""
    server = serve(home)

    def enter(scope):
        tokens = Tokens(home)
        if any(token.name == scope for token in tokens.all()):
            tokens.revoke(scope)
        secret = tokens.create(scope, scope)
        look = watch(server)
        look.page.goto(f"{server.origin}/")
        look.page.get_by_label("Token").fill(secret)
        look.page.get_by_role("button", name="Continue").click()
        look.page.wait_for_selector("table.studies")
        look.trouble.clear()  # the page that asks for a token has the status 401
        return look

    return enter


def test_note_tags_and_buttons_work_by_mouse_and_keys(entered, home, accessible):
    """A note that looks like HTML is kept to the letter and shown as text; a waiting run is stopped, then retried."""
    look = entered("run")
    page = look.open(BOARD)
    page.get_by_role("link", name="Note, tags, cancel, retry, delete").click()
    accessible(page)
    page.get_by_label("Note").fill(HOSTILE)
    page.get_by_label("Tags").fill("good v1.2")
    page.get_by_label("Tags").press("Enter")
    expect(page.get_by_role("status").first).to_contain_text("Note and tags are saved.")
    expect(page.get_by_label("Note")).to_have_value(HOSTILE)
    with Store.open(home) as store:
        about = store.about(Subject(study="made-up"))
        assert (about.note, about.author, about.tags) == (HOSTILE, "run", ("good", "v1.2"))
        run = next(r for r in store.runs_of(1) if r.state == "QUEUED").fingerprint[:12]
    page.get_by_label("Priority").fill("4")
    page.get_by_role("button", name="Set").click()
    expect(page.get_by_role("status").first).to_contain_text("The priority is 4.")
    look.open("/")
    page.reload()
    expect(page.locator(".said")).to_contain_text("<img src=x onerror=alert(1)>")
    page.get_by_role("link", name="v1.2").click()
    expect(page.get_by_text("With the tag v1.2")).to_be_visible()
    look.open(f"{BOARD}/health?run={run}")
    page.get_by_role("link", name="Note, tags, stop, retry").click()
    page.get_by_role("button", name="Stop this run").click()
    expect(page.get_by_role("status").first).to_contain_text("1 queued cancelled")
    expect(page.get_by_role("button", name="Stop this run")).to_be_disabled()
    page.get_by_role("button", name="Retry this run").click()
    expect(page.get_by_role("status").first).to_contain_text("1 queued again")
    accessible(page)


def test_a_study_is_archived_and_deleted_by_mouse(entered, home, accessible):
    """The page shows what goes before it asks for the name; then the study is gone from the list."""
    with Store.open(home) as store:
        done = store.add_study(small_plan("done", steps=7))
        store.cancel("done")
        (ended,) = {run.state for run in store.runs_of(done.id)}
        assert ended == "CANCELLED"
    look = entered("run")
    page = look.open("/act/done")
    page.get_by_role("button", name="Archive").click()
    expect(page.get_by_role("status").first).to_contain_text("Archived. All of it is kept.")
    page.get_by_role("button", name="Delete …").click()
    expect(page.get_by_text("goes: done, 1 plan, 4 runs, 0 with a result")).to_be_visible()
    accessible(page)
    page.get_by_role("button", name="Delete").click()  # the field is empty: the browser asks for it
    page.get_by_label("Name of the study").fill("done")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("status").first).to_contain_text("Deleted done, freed ")
    accessible(page)
    page.get_by_role("link", name="Studies").click()
    expect(page.get_by_role("link", name="done", exact=True)).to_have_count(0)


def test_a_token_that_only_reads_has_no_buttons(entered):
    """The page says which token it is, and what it lacks."""
    look = entered("read")
    page = look.open("/act/made-up")
    expect(page.get_by_role("alert")).to_contain_text("has the scope read, and changes need run")
    expect(page.locator("form.act")).to_have_count(0)


def test_a_link_shows_the_same_run_step_and_samples(entered):
    """Copied from the plain address of the samples, it names all that was chosen by itself, and holds no token."""
    look = entered("run")
    page = look.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    look.open(f"{BOARD}/samples")
    shown = page.locator("section.group").inner_text()
    about = page.locator("main > p.quiet").first.inner_text()
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert re.search(r"/study/made-up/samples\?run=[0-9a-f]{12}&set=\w+&step=\d+&problem=", link), link
    assert "token" not in link
    page.goto(link)
    assert page.locator("section.group").inner_text() == shown
    assert page.locator("main > p.quiet").first.inner_text() == about
    look.open(f"{BOARD}/compare")
    page.goto(f"{page.url}?first=2&last=4&token=never-in-a-link")
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()").endswith(f"{BOARD}/compare?first=2&last=4")
