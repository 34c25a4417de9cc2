"""A page that stays open: it follows a study while it trains, and a server that goes away and comes back."""

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from playwright.sync_api import expect

from paribus.store.database import FILE
from paribus.store.migrate import HEAD, VERSION_TABLE
from paribus.testing.fake_runner import install
from support.homes import made_up_home

STEPS = 60
STUDY = f"""
study: live
question: Does <img src=x onerror=alert(1)> "train"?
runner: fake
base:
  preset: grpo
  set: {{schedule.steps: {STEPS}, kl: {{kind: "off"}}}}
tricks:
  token_level: {{aggregation: token_batch}}
designs:
  solo: {{kind: add_one}}
seeds: {{n: 1}}
evaluate: {{every: 5, problems: 20, samples: 2}}
"""
BOARD = "/study/live"
BEYOND = r"least => [...document.querySelectorAll('.tile')].some(e => e.innerText.match(/(\d+)\//)[1] > least)"
"""Some run has come further than this step."""


@pytest.fixture
def training(tmp_path):
    """Let the fake runner train half of a study, and the rest once a file is there; the process ends on SIGINT."""
    (tmp_path / "study.yaml").write_text(STUDY)
    home = tmp_path / "home"
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "PARIBUS_"))}
    site = str(install(tmp_path / "site"))
    environment["PYTHONPATH"] = os.pathsep.join([site, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    held = {"do": "wait", "at": STEPS // 2, "for": str(tmp_path / "released")}  # until the page has been seen at work
    environment["PARIBUS_FAKE"] = json.dumps({"step_s": 0.2, "rules": [held]})
    command = [sys.executable, "-m", "paribus", "run", "study.yaml", "--home", home, "--no-report", "--slots", "2"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [*map(str, command)], cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    yield home, process, tmp_path / "released"
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.wait(300)


def test_a_board_follows_a_study_and_survives_its_server(training, serve, watch):
    """Opened before the study, it shows its steps as they come, says when the server is away, and goes on by itself."""
    home, process, released = training
    server = serve(home)
    look = watch(server)
    look.expected += ["ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_CONNECTION_RESET"]
    page = look.open("/")
    page.wait_for_function(f"() => document.querySelector('main a[href=\"{BOARD}\"]')")
    page.click(f"main a[href='{BOARD}']")
    expect(page.locator("h1")).to_have_text('Does <img src=x onerror=alert(1)> "train"?')
    page.wait_for_function(BEYOND, arg=0)
    page.evaluate("window.never = 'reloaded'")

    server.stop()
    expect(page.locator(".away")).to_be_visible()
    before = max(int(re.search(r"(\d+)/", text)[1]) for text in page.locator(".tile").all_inner_texts())
    server.start()
    expect(page.locator(".away")).to_be_hidden()
    released.touch()
    page.wait_for_function(BEYOND, arg=before)

    assert process.wait(300) == 0
    expect(page.locator(".tile").first).to_contain_text(f"{STEPS}/{STEPS}")
    page.locator(".chart").first.scroll_into_view_if_needed()
    page.wait_for_function("last => document.querySelector('.chart').data?.some(t => t.x.includes(last))", arg=STEPS)
    assert page.evaluate("window.never") == "reloaded"


def test_a_page_that_is_not_available_is_loaded_again_once_it_is(tmp_path, serve, watch):
    """Such as one that was opened while the store had another version."""
    folder = tmp_path / "home"
    made_up_home(folder)

    def revise(revision):
        with closing(sqlite3.connect(folder / FILE)) as file, file:
            file.execute(f"UPDATE {VERSION_TABLE} SET version_num = ?", [revision])

    revise("9999")
    look = watch(serve(folder))
    look.expected += ["503"]
    page = look.open("/study/made-up?sort=score")
    expect(page.locator("main")).to_contain_text("a newer version wrote it")
    expect(page.locator("main")).to_contain_text("loaded again when it is available")
    revise(HEAD)
    page.wait_for_selector(".tile")
    assert look.query() == "?sort=score"


def test_a_page_that_is_no_longer_answered_says_so(look):
    """The page reports a refused part until it is answered again, whatever happens to other parts."""
    look.expected += ["401"]
    page = look.open("/study/made-up")
    page.route("**/tiles", lambda route: route.fulfill(status=401, body="A token is needed"))
    expect(page.locator(".away")).to_contain_text("asks for its token")
    with page.expect_response(re.compile("/tables")):
        pass
    page.wait_for_timeout(100)
    expect(page.locator(".away")).to_be_visible()
    page.unroute("**/tiles")
    expect(page.locator(".away")).to_be_hidden()
