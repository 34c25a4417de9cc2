"""Studies of thousands of runs: each page is bounded, and links lead to all runs; and run folders that are damaged."""

from __future__ import annotations

import html
import re
import sqlite3
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from starlette.datastructures import QueryParams

from paribus.errors import ParibusError
from paribus.run_folder.folder import RunFolder
from paribus.store.database import FILE
from paribus.store.store import Store
from paribus_dashboards.board.page import exported, grid_of, matching, page_of
from paribus_dashboards.data.home import Home
from paribus_dashboards.data.reports import build
from paribus_dashboards.queue.figure import MAX_POINTS, course
from paribus_dashboards.server.access import Access
from paribus_dashboards.server.app import make_app
from support.plans import small_plan

MOST_BYTES = 420_000
"""Of a page or the data of a chart, of a study of any size."""

ATTEMPTS = """INSERT INTO attempt (run_id, study_id, token, engine, worker, submit_name, external_id, gpus, cpus,
claimed_at, started_at, ended_at, outcome, reason, signature, reserved, charged)
SELECT id, 1, 1, 'local', 'here', 'made-up-' || id, '', 0, 0, id, id, id + 1, 'succeed', '', '', 0, 1 FROM run"""


def browser(home: Home) -> TestClient:
    """Return a browser without a browser."""
    return TestClient(make_app(home, access=Access(), keep_s=0), base_url="http://localhost")


def no_report(folder: Path, study: str) -> None:
    """Stand in for a report, which another process builds."""
    raise ParibusError(f"there is no report of {study} in {folder}")


@pytest.fixture(scope="module", params=[(300, 10), (10, 300)], ids=["300 arms", "300 seeds"])
def many(request, tmp_path_factory):
    """A study of 3,000 runs that have ended, three of them failed; their folders are gone but that of the first."""
    folder = tmp_path_factory.mktemp("many")
    arms, seeds = request.param
    with Store.open(folder) as store:
        study = store.add_study(small_plan("many", arms=arms, seeds=seeds))
        first = store.runs_of(study.id)[0]
    with sqlite3.connect(folder / FILE) as database:
        database.execute("UPDATE run SET state = 'SUCCEEDED', token = 1")
        database.execute("UPDATE run SET state = 'FAILED' WHERE id IN (7, 1507, 2999)")
        database.execute(ATTEMPTS)
    database.close()
    run = RunFolder.of(folder, first.fingerprint, 1)
    run.path.mkdir(parents=True)
    home = Home(folder, make_report=no_report)
    yield home
    home.close()


PAGES = ("", "/health", "/health?arm=arm0", "/compare", "/samples", "/heatmap", "/queue", "/report")


def test_no_page_grows_with_the_number_of_runs(many):
    """Each page of 3,000 runs, and each chart that it names, stays below the same number of bytes."""
    client = browser(many)
    large = {}
    for page in PAGES:
        found = client.get(f"/study/many{page}")
        assert found.status_code == 200, page
        large[page] = len(found.content)
        for at in map(html.unescape, re.findall(r'data-src="([^"]+)"', found.text)):
            large[at] = len(client.get(at).content)
    assert {page: size for page, size in large.items() if size > MOST_BYTES} == {}


def walk(client: TestClient, start: str) -> list[str]:
    """Return all pages that the links between the pages of a list lead to."""
    seen, todo = {}, [start]
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen[at] = client.get(at).text
        for nav in re.findall(r'<nav class="pager".*?</nav>', seen[at], re.DOTALL):
            todo += map(html.unescape, re.findall(r'href="([^"]+)"', nav))
    return list(seen.values())


@pytest.mark.parametrize("page", ["", "/health"])
def test_links_lead_to_every_run(many, page):
    """Who follows the links between the pages sees each run once; those of the board are in an export, too."""
    if len(many.study("many").record.plan.arms) == 10:
        pytest.skip("quick: one shape is enough")
    pages = walk(browser(many), f"/study/many{page}")
    found = [run for text in pages for run in re.findall(r"/health\?run=([0-9a-f]{12})\"", text)]
    assert set(found) == {r.fingerprint[:12] for r in many.study("many").runs}
    assert len(found) == 3000
    if not page:
        assert len(set(exported(many, "many"))) == len(pages) - 1


def test_a_filter_finds_runs_on_all_pages(many):
    """The filters of a large board look at all runs, and a page has no row and no column without a hit."""
    text = browser(many).get("/study/many?state=failed").text
    assert "3 of 3,000 runs match" in text
    assert len(re.findall(r'class="tile entry', text)) == 3
    study = many.study("many")
    grid = matching(grid_of(study), QueryParams("arm=ARM 1&page=99"), {})
    assert {arm.label for arm, _ in grid.rows} == {a.label for a in study.record.plan.arms if "arm 1" in a.label}
    part, pagers = page_of(grid, "/board", QueryParams("arm=ARM 1&page=99"))
    assert part.rows[-1][0] == grid.rows[-1][0]
    assert all(link.href.startswith("/board?arm=ARM+1") for p in pagers for link in p.links if link.text)


def test_a_course_of_many_charges_is_thinned():
    """Few points are all there; of many, the first, the last and sums that were reached in between are drawn."""
    moments = [(float(i), 3600.0) for i in range(9000)]
    points = course(moments, 0.0)
    assert len(points) <= MAX_POINTS + 2
    assert (points[0], points[-1][1]) == ((0.0, 1.0), 9000.0)
    assert set(points) <= {(i / 3600, i + 1.0) for i in range(9000)}


DAMAGE = {
    "brackets": b"[" * 3000 + b"\n",
    "bytes": bytes(range(256)) * 4 + b"\n",
    "types": b'{"step": "one", "time_ms": {}, "values": []}\n',
    "numbers": b'{"step": 1e999, "time_ms": 1, "values": {"policy/entropy": [1]}}\n',
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_run_folder_spoils_no_page(new_folder, kind):
    """Whatever a runner wrote, each page of the study, its charts and its polled parts are answered."""
    folder = new_folder()
    home = Home(folder, make_report=build)
    run = home.study("made-up").runs[1]
    damaged = home.run_folder(run)
    for file in (damaged.metrics, damaged.health, damaged.samples, *damaged.evals.glob("*.json")):
        file.write_bytes(DAMAGE[kind])
    damaged.series.unlink(missing_ok=True)
    client = browser(home)
    for page in (*PAGES[:2], f"/health?arm={run.arm}", f"/health?run={run.fingerprint[:12]}", *PAGES[3:]):
        for at in [f"/study/made-up{page}"] + [f"/study/made-up{page}?run={run.fingerprint[:12]}"] * (
            page in ("/samples", "/heatmap")
        ):
            found = client.get(at)
            assert found.status_code == 200, at
            for part in re.findall(r'data-(?:src|poll)="([^"]+)"', found.text):
                assert client.get(html.unescape(part)).status_code == 200, part
    home.close()
