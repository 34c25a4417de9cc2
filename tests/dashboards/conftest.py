"""A made-up home, the real server in a process of its own, and Chromium that reports whatever a page does wrong."""

import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

from support.homes import made_up_home

PATIENCE_S = 120.0
WIDTH, HEIGHT = 1200, 900
MOST_BYTES = 300_000
"""Of a picture: a repository keeps each of them for ever."""

RULES = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"], "resultTypes": ["violations"]}

DRAWN = """() => {
    const seen = c => { const r = c.getBoundingClientRect(); return r.height && r.bottom > 0 && r.top < innerHeight };
    return document.readyState === 'complete' && ![...document.querySelectorAll('.chart:not([data-drawn])')].some(seen);
}"""
"""Every chart in view is drawn."""


def pytest_addoption(parser):
    """Let pictures be kept: they are taken in any case, and must not be too large."""
    parser.addoption("--pictures", help="folder for pictures of all pages, e.g. docs/images")


class Server:
    """`paribus dashboard` on a port that stays the same, so that it can go away and come back."""

    def __init__(self, home):
        self.home = home
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        self.origin = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        """Start it, and wait until it answers."""
        command = [sys.executable, "-m", "paribus", "dashboard", "--home", self.home, "--port", str(self.port)]
        self.process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        until = time.monotonic() + PATIENCE_S
        while True:
            try:
                urlopen(f"{self.origin}/alive").close()
                return self
            except HTTPError:  # it asks for a token
                return self
            except OSError:
                if self.process.poll() is not None or time.monotonic() > until:
                    pytest.fail(f"no dashboard: {self.stop()}")
                time.sleep(0.05)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.stop()

    def stop(self):
        """End it, as a service manager does; return what it said."""
        self.process.terminate()
        return self.process.communicate(timeout=PATIENCE_S)[0].decode()


class Watched:
    """A page of the browser; what it says on the console and asks of other machines is kept, and must be nothing."""

    def __init__(self, page, origin):
        self.page = page
        self.origin = origin
        self.trouble = []
        self.expected = []
        page.on("console", lambda said: said.type in ("error", "warning") and self.trouble.append(said.text))
        page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        page.on("request", self._asked)
        page.on("response", lambda got: got.status >= 400 and self.trouble.append(f"{got.status}: {got.url}"))

    def _asked(self, request):
        if not request.url.startswith((self.origin, "data:", "blob:")):
            self.trouble.append(f"asked another machine: {request.url}")

    def open(self, path):
        """Go to a path and wait until what is in view is drawn."""
        self.page.goto(self.origin + path)
        return self.drawn()

    def drawn(self):
        """Wait until every chart in view is drawn."""
        self.page.wait_for_function(DRAWN)
        return self.page

    def query(self):
        """Return the query string of the address."""
        return self.page.evaluate("location.search")

    def unexpected(self):
        """Return the trouble that no test has announced."""
        return [t for t in self.trouble if not any(re.search(e, t) for e in self.expected)]


@pytest.fixture(scope="session")
def chromium():
    """The browser, if there is one."""
    found = next((p for name in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(name))), None)
    if found is None:
        pytest.skip("Chromium is missing (`make test-dashboards` installs it as root: apt-get install chromium)")
    with sync_playwright() as playwright:
        expect.set_options(timeout=PATIENCE_S * 1000)
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def home(tmp_path_factory):
    """A home with the made-up study."""
    folder = tmp_path_factory.mktemp("dashboards") / "home"
    made_up_home(folder)
    return folder


@pytest.fixture(scope="session")
def server(home):
    """The dashboard of the made-up study."""
    with Server(home) as running:
        yield running


@pytest.fixture
def serve():
    """Starts dashboards of other homes."""
    with ExitStack() as stack:
        yield lambda home: stack.enter_context(Server(home))


@pytest.fixture
def watch(chromium):
    """Opens watched pages of a server; whatever one did wrong fails the test in the end."""
    with ExitStack() as stack:
        yield lambda server, **options: stack.enter_context(watched(chromium, server.origin, **options))


@pytest.fixture
def watch_file(chromium):
    """Opens watched pages of a file."""
    with ExitStack() as stack:
        yield lambda file, **options: stack.enter_context(watched(chromium, file.as_uri(), **options))


@pytest.fixture
def scheme():
    """Which colours the reader prefers; a test may say otherwise."""
    return "light"


@pytest.fixture
def look(watch, server, scheme):
    """A watched page of the made-up study."""
    return watch(server, color_scheme=scheme)


@contextmanager
def watched(chromium, origin, **options):
    """Yield a watched page in a window of its own."""
    context = chromium.new_context(viewport={"width": WIDTH, "height": HEIGHT}, reduced_motion="reduce", **options)
    context.set_default_timeout(PATIENCE_S * 1000)
    page = Watched(context.new_page(), origin)
    yield page
    context.close()
    assert page.unexpected() == []


@pytest.fixture
def accessible():
    """Checks a page against WCAG 2.1 A and AA, contrast of colours included."""

    def check(page):
        found = Axe().run(page, options=RULES).response["violations"]
        violations = [(v["id"], n["target"], n["failureSummary"]) for v in found for n in v["nodes"]]
        assert violations == [], "\n".join(map(str, violations))

    return check


@pytest.fixture
def picture(request, tmp_path):
    """Takes a picture of what is in view; `--pictures docs/images` keeps those that the documentation shows."""

    def take(page, name, keep=True):
        folder = request.config.getoption("--pictures") if keep else None
        file = Path(folder or tmp_path) / f"dashboard-{name}.png"
        page.screenshot(path=file)
        assert file.stat().st_size < MOST_BYTES, file

    return take
