"""The dashboard of 1,000 runs x 10,000 steps x 20 metrics: in a browser, under 50 viewers, and its memory.

The home folder is that of `rollups.py`, with verdicts, and one run that goes on while it is looked at. The server is
the real one, in a process of its own. Each figure stands beside its limit, measured in the same run and in turns: the
same bytes from the same kind of server (uvicorn), which only looks them up. Needs Chromium and Playwright
(`make test-dashboards` installs them).

    python benchmarks/dashboard.py
    python benchmarks/dashboard.py --quick
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urljoin, urlsplit
from urllib.request import Request, urlopen

from playwright.sync_api import Browser, Page, sync_playwright
from rollups import FULL, METRICS, QUICK, Costs, Size, course, fill, show_writing, spread
from viewers import SEEN, Answer, read_page

from paribus.contract import Evaluate, Job
from paribus.health.judge import LiveJudge
from paribus.run_folder.folder import MetricLine, RunFolder
from paribus.store.store import Store
from paribus.study.plan import Plan
from support.plans import small_plan

VIEWERS = Path(__file__).with_name("viewers.py")
JUDGED = 200
"""Steps of a run that its verdict is made from: detectors take a millisecond a step."""


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How much is measured, and the bounds: seconds of the board's first paint, of any page, of a zoom; MB."""

    runs: Size
    viewers: int
    seconds: float
    turns: int
    bounds: tuple[float, float, float, float] = (1.0, 2.0, 0.3, 500.0)


WHOLE = Extent(runs=FULL, viewers=50, seconds=60.0, turns=3)
SMALL = Extent(runs=QUICK, viewers=10, seconds=10.0, turns=2)

DRAWN = """() => {
    const seen = c => { const r = c.getBoundingClientRect(); return r.height && r.bottom > 0 && r.top < innerHeight };
    const open = [...document.querySelectorAll('.chart:not([data-drawn])')].filter(seen);
    const painted = performance.getEntriesByName('first-contentful-paint').length;
    return document.readyState === 'complete' && painted && !open.length && performance.now();
}"""
"""Milliseconds since the navigation began, once every chart in view is drawn."""

PAINTED = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime"

ZOOM = """range => new Promise(done => {
    const chart = document.querySelector('.chart[data-zoom][data-drawn]'), begun = performance.now();
    const finer = () => performance.getEntriesByType('resource').some(e => e.name.includes(`first=${range[0]}`));
    chart.on('plotly_afterplot', () => finer() && requestAnimationFrame(() => done(performance.now() - begun)));
    Plotly.relayout(chart, {'xaxis.range[0]': range[0], 'xaxis.range[1]': range[1]});
})"""
"""Milliseconds from a zoom of the first chart until its finer points are drawn."""


# ---- the home folder -----------------------------------------------------------------------------


def judge(plan: Plan, folder: RunFolder, lines: Sequence[MetricLine]) -> None:
    """Write the verdict of a run, as its supervisor would have."""
    arm = plan.arms[0]
    job = Job(
        run="0" * 64, study=plan.study, arm=arm.label, runner=plan.runner, seed=0, token=1, recipe=arm.recipe,
        evaluate=plan.evaluate, cache="",
    )  # fmt: skip
    LiveJudge(folder, job).take(lines[:JUDGED])


def home_of(home: Path, plan: Plan, size: Size) -> Costs:
    """Make the home folder: all runs have ended but the last, which :func:`going_on` writes."""
    return fill(home, plan, size, leave=1, also=lambda folder, lines: judge(plan, folder, lines))


@contextmanager
def going_on(home: Path, plan: Plan, size: Size) -> Iterator[None]:
    """Train the last run meanwhile: a line every tenth of a second."""
    lines, _ = course(plan, replace(size, steps=2000), 1)
    enough = threading.Event()
    with Store.open(home) as store:
        claim = store.claim(store.study(plan.study).id, engine="none", worker="benchmark")
        assert claim is not None
        store.start(claim.run_id, claim.token)
        folder = RunFolder.of(home, claim.fingerprint, claim.token)
        folder.path.mkdir(parents=True)

        def train() -> None:
            for line in lines:
                folder.append_metrics(line)
                if enough.wait(0.1):
                    return

        thread = threading.Thread(target=train)
        thread.start()
        try:
            yield
        finally:
            enough.set()
            thread.join()


# ---- servers -------------------------------------------------------------------------------------


def free_port() -> int:
    """Return a free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answers_at(origin: str) -> None:
    """Wait until the server answers."""
    until = time.monotonic() + 60
    while True:
        try:
            urlopen(origin).close()
            return
        except HTTPError:
            return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


@contextmanager
def dashboard(home: Path) -> Iterator[tuple[str, int]]:
    """Yield origin and process id of the dashboard."""
    port = free_port()
    command = [sys.executable, "-m", "paribus", "dashboard", "--home", str(home), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        answers_at(f"http://127.0.0.1:{port}")
        yield f"http://127.0.0.1:{port}", process.pid
    finally:
        process.terminate()
        process.wait(20)


Recorded = dict[str, tuple[bytes, list[tuple[bytes, bytes]]]]
"""Path with query to body and headers."""


def look_up(recorded: Recorded, port: int) -> None:
    """Serve what was recorded, and nothing else: a zoom that was not is answered with the whole chart."""
    import uvicorn

    async def app(scope: Mapping[str, Any], receive: Any, send: Any) -> None:
        path = scope["raw_path"].decode() + ("?" + scope["query_string"].decode() if scope["query_string"] else "")
        found = recorded.get(path) or recorded.get(path.partition("&first=")[0].partition("?first=")[0])
        body, headers = found or (b"", [])
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    uvicorn.run(app, port=port, log_level="error", lifespan="off")


@contextmanager
def limit(recorded: Recorded) -> Iterator[str]:
    """Yield the origin of a server of the same bytes."""
    port = free_port()
    process = multiprocessing.get_context("spawn").Process(target=look_up, args=(recorded, port))
    process.start()
    try:
        answers_at(f"http://127.0.0.1:{port}/")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.join()


def memory_mb(process: int) -> float:
    """Return the most memory that a process has had so far."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def cpu_s(process: int) -> float:
    """Return the processor time that a process has taken so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# ---- the browser ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Opened:
    """Seconds to the first paint, and until every chart in view is drawn."""

    painted: float
    drawn: float


def open_page(browser: Browser, address: str, asked: set[str] | None = None) -> Opened:
    """Open a page with an empty cache; note what it asks for."""
    with fresh(browser) as page:
        if asked is not None:
            page.on("request", lambda request: asked.add(request.url))
        page.goto(address, wait_until="commit")
        drawn = page.wait_for_function(DRAWN, timeout=60_000).json_value()
        return Opened(page.evaluate(PAINTED) / 1000, drawn / 1000)


@contextmanager
def fresh(browser: Browser) -> Iterator[Page]:
    """Yield a page of a browser that has nothing in its cache."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    yield context.new_page()
    context.close()


def kept(address: str) -> tuple[str, tuple[bytes, list[tuple[bytes, bytes]]]]:
    """Return the path of an address, and body and headers of the answer, as the browser gets them."""
    place = urlsplit(address)
    with urlopen(Request(address, headers={"Accept-Encoding": "gzip"})) as answer:
        headers = [
            (k.lower().encode(), v.encode()) for k, v in answer.headers.items() if k.lower() not in ("date", "server")
        ]
        return place.path + (f"?{place.query}" if place.query else ""), (answer.read(), headers)


def pages_of(browser: Browser, origin: str, study: str) -> list[str]:
    """Return the pages that the navigation of a study leads to, the board first, and that of its first run."""
    with fresh(browser) as page:
        page.goto(f"{origin}/study/{study}")
        both = ("header nav a", "a.tile >> nth=0")
        return [
            link
            for css in both
            for link in page.eval_on_selector_all(css, "all => all.map(a => a.pathname + a.search)")
        ]


def zooms(browser: Browser, address: str, steps: int, count: int) -> list[float]:
    """Return the seconds of zooms of a page's first chart, each to another twentieth of the steps; none: no chart."""
    with fresh(browser) as page:
        page.goto(address)
        chart = page.locator(".chart[data-zoom]").first
        if not chart.count():
            return []
        chart.scroll_into_view_if_needed()
        page.locator(".chart[data-zoom][data-drawn]").first.wait_for()
        page.wait_for_function(DRAWN, timeout=60_000)
        starts = [steps * (1 + 2 * i) // (2 * count) for i in range(count)]
        return [page.evaluate(ZOOM, [s, s + steps // 20]) / 1000 for s in starts]


# ---- what is measured ----------------------------------------------------------------------------


def visit(origin: str, pages: Sequence[str], extent: Extent) -> list[Answer]:
    """Let viewers look at the pages, from a process of their own."""
    command = [sys.executable, str(VIEWERS), origin, *pages]
    command += ["--viewers", str(extent.viewers), "--seconds", str(extent.seconds)]
    shown = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    return [Answer(**raw) for raw in json.loads(shown)]


def p99(values: Sequence[float]) -> float:
    """Return the value that one in a hundred is above."""
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))]


def show_viewers(found: Sequence[Answer], bare: Sequence[Answer]) -> int:
    """Print what viewers waited for; return how many of their requests failed."""
    print(f"{'viewers':<12}{'requests':>9}{'p50 ms':>9}{'p99 ms':>9}{'limit p50':>11}{'limit p99':>11}{'ratio':>8}")
    for kind in ("page", "chart", "zoom", "poll"):
        ours, theirs = ([1000 * a.seconds for a in some if a.kind == kind] for some in (found, bare))
        if not ours or not theirs:
            continue
        print(f"{kind:<12}{len(ours):>9}{statistics.median(ours):>9.0f}{p99(ours):>9.0f}{statistics.median(theirs):>11.1f}"
              f"{p99(theirs):>11.1f}{statistics.median(ours) / statistics.median(theirs):>8.1f}")  # fmt: skip
    wrong = [a for a in found if a.status not in (200, 304)]
    print(f"errors: {len(wrong)} of {len(found)} requests")
    return len(wrong)


def show_pages(
    browser: Browser, served: tuple[str, int], pages: Sequence[str], turns: int, begun: float
) -> tuple[Recorded, float, float]:
    """Print what pages take, in turns with the same bytes looked up; return what was loaded, first paint, slowest."""
    (origin, process), asked, first = served, set[str](), {}
    for path in pages:
        before = begun if path == pages[0] else cpu_s(process)  # who looked for the pages has seen the board
        open_page(browser, origin + path, asked)
        first[path] = cpu_s(process) - before
        wanted = read_page(urlopen(origin + path).read())
        asked |= {urljoin(origin, data) for data, _ in (*wanted.charts[:SEEN], *wanted.polls)}
    recorded: Recorded = dict(map(kept, sorted(asked)))
    size = sum(len(body) for body, _ in recorded.values()) / 1e6
    print(f"{len(recorded)} answers, {size:.1f} MB in all. Seconds with an empty cache; times those of the limit;\n"
          "processor time of the server for the first visitor, and for the next, with what is in view")  # fmt: skip
    print(f"{'page':<40}{'first paint':>22}{'times':>7}{'charts drawn':>22}{'times':>7}{'CPU':>7}{'next':>7}")
    painted, slowest = math.nan, 0.0
    with limit(recorded) as bare:
        for path in pages:
            before = cpu_s(process)
            both = [[open_page(browser, o + path) for o in (origin, bare)] for _ in range(turns)]
            again = (cpu_s(process) - before) / turns
            row = f"{path:<40}"
            for name in ("painted", "drawn"):
                ours, theirs = ([getattr(pair[i], name) for pair in both] for i in (0, 1))
                row += f"{spread(ours):>22}{statistics.median(ours) / statistics.median(theirs):>7.2f}"
                if name == "drawn":
                    slowest = max(slowest, statistics.median(ours))
                elif path == pages[0]:
                    painted = statistics.median(ours)
            print(f"{row}{first[path]:>7.2f}{again:>7.2f}", flush=True)
    return recorded, painted, slowest


def show_zooms(browser: Browser, origin: str, path: str, extent: Extent) -> float:
    """Print and return what a zoom of a page's first chart takes; 0 if it has none."""
    found = zooms(browser, origin + path, extent.runs.steps, 2 * extent.turns)
    if not found:
        return 0.0
    print(f"{path}: zoom until the finer points are drawn {spread(found)} s", flush=True)
    return statistics.median(found)


def measure(home: Path, plan: Plan, extent: Extent) -> tuple[tuple[float, float, float, float], int]:
    """Look at the dashboard of a home folder; return what is bounded, and how many requests failed."""
    with dashboard(home) as (origin, process), sync_playwright() as playwright:
        print(f"server, before the first page: {memory_mb(process):.0f} MB")
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        begun = cpu_s(process)
        pages = pages_of(browser, origin, plan.study)
        recorded, painted, slowest = show_pages(browser, (origin, process), pages, extent.turns, begun)
        zoomed = [z for p in pages if (z := show_zooms(browser, origin, p, extent))]
        browser.close()
        with going_on(home, plan, extent.runs):
            found = visit(origin, pages, extent)
        with limit(recorded) as bare:
            wrong = show_viewers(found, visit(bare, pages, extent))
        print(f"load {os.getloadavg()[0]:.1f} at the end, of {os.cpu_count()} processors")
        most = memory_mb(process)
        print(f"server, most: {most:.0f} MB")
    return (painted, slowest, max(zoomed), most), wrong


def main() -> int:
    """Make the home folder, measure, and hold it against the bounds that were asked for."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="100 runs of 2,000 steps, 10 viewers for 10 s")
    options.add_argument("--home", type=Path, help="keep the home folder here, or use it if it is there")
    asked = options.parse_args()
    extent = SMALL if asked.quick else WHOLE
    size = extent.runs
    plan = small_plan("scale", arms=size.arms, seeds=size.seeds, steps=size.steps)
    plan = replace(plan, evaluate=Evaluate(every=size.steps // 20, problems=200, samples=4))
    print(
        f"{len(plan.runs)} runs x {size.steps} steps x {len(METRICS)} metrics; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as scratch:
        home = asked.home or Path(scratch) / "home"
        if not home.exists():
            show_writing(home_of(home, plan, size))
        found, wrong = measure(home, plan, extent)
    names = ("first paint of the board, s", "any page, s", "zoom, s", "server, MB")
    kept = [value < bound for value, bound in zip(found, extent.bounds, strict=True)]
    for name, value, bound, good in zip(names, found, extent.bounds, kept, strict=True):
        print(f"{name:<30}{value:>8.2f}   below {bound:g}: {'yes' if good else 'NO'}")
    return 0 if all(kept) and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
