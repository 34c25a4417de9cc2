"""Queue and budget, the report as a page, and all pages as one file."""

from __future__ import annotations

import base64
import gzip
import json
import re
from importlib.resources import files

import pytest

from paribus.errors import DashboardError
from paribus.store.models import DeviceRecord, LeaseRecord
from paribus_dashboards.assets import asset_files
from paribus_dashboards.board.seeds_needed import below, precision
from paribus_dashboards.data.home import Home
from paribus_dashboards.data.reports import Spread, build
from paribus_dashboards.queue.figure import Spending, course, spending_figure
from paribus_dashboards.queue.page import QueueState, read, view
from paribus_dashboards.server.export import export


def test_the_queue_says_who_holds_what_and_what_comes_next(home):
    """The live run is listed with its arm and step, the waiting one by its place, the ledger has every attempt."""
    study = home.study("made-up")
    found = view(study, read(home, study))
    assert [(h.label, h.seed, h.step, h.devices) for h in found.live] == [("+ clip_higher", 2, 4, "one CPU slot")]
    assert [(label, seed) for label, seed, _, _ in found.waiting] == [("+ soft_overlong", 2)]
    assert (found.attempt_count, len(found.attempts), found.attempts[0].charged) == (8, 8, None)
    assert [(s.name, s.state, s.due, s.held) for s in found.shares] == [("made-up", "running", 1.0, 1.0)]
    budget = found.budgets[0]
    assert (budget.title, budget.cap, budget.enough) == ("CPU run-hours", None, True)
    assert budget.spent == pytest.approx(sum(e.charged or 0 for e in found.attempts))


def test_devices_are_named_with_their_holder(home):
    """A share of a GPU is shown with its name."""
    study = home.study("made-up")
    plain = read(home, study)
    attempt = plain.live[0]
    device = DeviceRecord(id=3, host="here", kind="gpu", name="GPU-7", amount=1, memory=80, held=0.5)
    lease = LeaseRecord(run_id=attempt.run_id, token=attempt.token, device_id=3, share=0.5)
    state = QueueState(**{**vars(plain), "devices": (device,), "leases": (lease,)})
    assert view(study, state).live[0].devices == "0.5 of GPU GPU-7"


def test_spending_is_a_staircase_under_its_cap():
    """What was charged adds up over time; cap and forecast are lines across the whole chart."""
    points = course([(7200.0, 3600.0), (0.0, 0.0), (3600.0, 1800.0)], 10800.0)
    assert points == ((0.0, 0.0), (1.0, 0.5), (2.0, 1.5), (3.0, 1.5))
    figure = spending_figure(Spending(unit="GPU-hours", course=points, cap=4.0, forecast=2.0))
    assert [(t["name"], t["y"][-1], t["x"][-1]) for t in figure["data"]] == [
        ("spent", 1.5, 3.0),
        ("forecast", 2.0, 3.0),
        ("cap", 4.0, 3.0),
    ]
    assert course([], 1.0) == ()


def test_seeds_that_are_still_needed():
    """Widths are round numbers below those of now; an arm without a spread has no answer."""
    assert below(0.03) == (0.02, 0.01, 0.005)
    assert below(0.02) == (0.01, 0.005, 0.002)
    assert below(7.0) == (5.0, 2.0, 1.0)
    wide = Spread(label="a", n=3, sd=0.02, paired=True)
    found = precision([wide, Spread(label="b", n=1, sd=None, paired=True)])
    assert found is not None
    assert found.widths == (0.02, 0.01, 0.005)
    assert found.rows[0].half == pytest.approx(4.3027 * 0.02 / 3**0.5, abs=1e-4)
    assert found.rows[0].more[0] == "4"  # t(6) 0.02 / sqrt(7) = 0.0185
    assert found.rows[1].more == ("n/a",) * 3
    assert precision([]) is None


def test_the_report_is_a_page_with_all_its_figures(client, home):
    """Every figure that the page names is answered, and the report can be kept as one file."""
    home.report(home.study("made-up"), wait_s=None)
    page = client.get("/study/made-up/report").text
    figures = re.findall(r'data-src="([^"]+)"', page)
    assert len(figures) > 5
    for at in figures:
        assert client.get(at).json()["data"], at
    assert client.get("/data/study/made-up/report.json?figure=none").status_code == 404
    kept = client.get("/study/made-up/report.html")
    assert kept.headers["content-disposition"].startswith("attachment")
    assert "<title>made-up" in kept.text


def test_static_files_have_unique_names():
    """A page's stylesheet or script never hides another page's, because all share one address space."""
    root = files("paribus_dashboards")
    names = [f.name for folder in root.iterdir() if folder.is_dir() for f in folder.iterdir()]
    own = [name for name in names if name.endswith((".css", ".js", ".svg"))]
    assert len(own) == len(set(own))
    assert set(asset_files()) == {*own, "tables.css", "plotly.js"}


def test_all_pages_are_one_file(folder, tmp_path):
    """The file has every page with its data, leads nowhere outside, and loses no link between its own pages."""
    file = tmp_path / "all.html"
    home = Home(folder, make_report=build)
    assert export(home, file) == file.stat().st_size < 5e6
    text = file.read_text()
    shown = text.partition('id="data"')[0]
    assert not re.findall(r' (?:src|href)="(?!#)[^"]', text)
    pages = re.findall(r'<div class="page" data-at="([^"]+)"', text)
    assert {"/", "/study/made-up", "/study/made-up/queue", "/study/made-up/report"} <= set(pages)
    for target in re.findall(r'href="#(/[^"]*)"', shown):
        assert target in pages
    packed = re.search(r'id="data">([^<]+)<', text)
    assert packed is not None
    data = json.loads(gzip.decompress(base64.b64decode(packed[1])))
    assert {at.replace("&amp;", "&") for at in re.findall(r'data-(?:src|raw)="([^"]+)"', shown)} == set(data)
    assert data["/data/study/made-up/score.json"]["data"]
    with pytest.raises(DashboardError, match=r"no study `other`.*made-up"):
        export(other := Home(folder, ["other"]), file)
    other.close()
    with pytest.raises(DashboardError, match="cannot write"):
        export(home, tmp_path / "none" / "all.html")
    home.close()
