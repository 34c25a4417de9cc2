"""Viewers of a dashboard without a browser: they open pages, fetch their charts, zoom, and poll as the pages ask for.

Everything is read from the pages themselves: a viewer follows `data-src` of charts and `data-poll` of parts, with the
ETag of the last answer, and the links of the navigation.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from html.parser import HTMLParser
from http.client import HTTPConnection, HTTPException, HTTPResponse, RemoteDisconnected
from urllib.parse import urljoin, urlsplit

POLL_S = 5.0
STAYS_S = 12.0
"""Seconds between polls where the page says nothing, and that a viewer stays on a page."""

SEEN = 8
"""Charts that fit into a window; browsers ask for the others when they are scrolled to."""


@dataclass
class Page(HTMLParser):
    """What a page wants: data of charts and whether they may be zoomed, parts to poll with their period."""

    charts: list[tuple[str, bool]] = field(default_factory=list)
    polls: list[tuple[str, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element asks for."""
        found = dict(attrs)
        if chart := found.get("data-src"):
            self.charts.append((chart, "data-zoom" in found))
            if live := found.get("data-live"):
                self.polls.append((chart, float(live)))
        if poll := found.get("data-poll"):
            self.polls.append((poll, float(found.get("data-every") or POLL_S)))


def read_page(body: bytes) -> Page:
    """Return what a page wants."""
    page = Page()
    page.feed(body.decode(errors="replace"))
    return page


@dataclass(frozen=True)
class Answer:
    """One request: what it was for, seconds to its last byte, status (0: none came), and bytes."""

    kind: str
    seconds: float
    status: int
    size: int


class Viewer:
    """One viewer with one connection, and what it has seen."""

    def __init__(self, origin: str, pages: Sequence[str], seed: int) -> None:
        self._origin = urlsplit(origin)
        self._pages = pages
        self._dice = random.Random(seed)
        self._tags: dict[str, str] = {}
        self._connection = self._connect()
        self.answers: list[Answer] = []

    def _connect(self) -> HTTPConnection:
        return HTTPConnection(self._origin.hostname or "", self._origin.port, timeout=30)

    def get(self, kind: str, path: str, *, again: bool = False) -> bytes:
        """Fetch a path; ``again``: only if it has changed."""
        headers = {"If-None-Match": self._tags[path]} if again and path in self._tags else {}
        begun = time.perf_counter()
        try:
            answer = self._ask(path, headers)
            body, status = answer.read(), answer.status
            self._tags[path] = answer.headers.get("ETag", "")
        except (OSError, HTTPException) as error:
            print(f"{path}: {type(error).__name__}: {error}", file=sys.stderr)
            self._connection.close()
            self._connection, body, status = self._connect(), b"", 0
        self.answers.append(Answer(kind, time.perf_counter() - begun, status, len(body)))
        return body

    def _ask(self, path: str, headers: dict[str, str]) -> HTTPResponse:
        """Ask; once more, as browsers do, where the server had just closed an idle connection."""
        try:
            self._connection.request("GET", path, headers=headers)
            return self._connection.getresponse()
        except (RemoteDisconnected, ConnectionResetError):
            self._connection.close()
            self._connection = self._connect()
            self._connection.request("GET", path, headers=headers)
            return self._connection.getresponse()

    def look(self, path: str) -> Page:
        """Open a page and the charts that fit into a window, each once more at another zoom."""
        page = read_page(self.get("page", path))
        for chart, zooms in page.charts[:SEEN]:
            data = urljoin(path, chart)
            self.get("chart", data)
            if zooms:
                first = self._dice.randrange(1000)
                self.get("zoom", f"{data}{'&' if '?' in data else '?'}first={first}&last={first + 500}")
        return page

    def browse(self, until: float) -> None:
        """Go from page to page until then, and poll what is open."""
        time.sleep(self._dice.random() * 2)  # people do not begin in the same moment
        while time.monotonic() < until:
            path = self._dice.choice(self._pages)
            page = self.look(path)
            leave = min(until, time.monotonic() + STAYS_S * (0.5 + self._dice.random()))
            due = [(time.monotonic() + every, every, urljoin(path, poll)) for poll, every in page.polls]
            while due and (soonest := min(due))[0] < leave:
                time.sleep(max(0.0, soonest[0] - time.monotonic()))
                self.get("poll", soonest[2], again=True)
                due[due.index(soonest)] = (time.monotonic() + soonest[1], *soonest[1:])
            time.sleep(max(0.0, leave - time.monotonic()))


def visit(origin: str, pages: Sequence[str], count: int, seconds: float) -> list[Answer]:
    """Let so many viewers look at the pages at once for so long."""
    viewers = [Viewer(origin, pages, seed) for seed in range(count)]
    until = time.monotonic() + seconds
    threads = [threading.Thread(target=v.browse, args=(until,)) for v in viewers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [answer for viewer in viewers for answer in viewer.answers]


def main() -> None:
    """Visit, and print the answers as JSON."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("origin", help="e.g. http://127.0.0.1:8642")
    options.add_argument("pages", nargs="+", help="paths, with query")
    options.add_argument("--viewers", type=int, default=50)
    options.add_argument("--seconds", type=float, default=60.0)
    asked = options.parse_args()
    print(json.dumps([asdict(a) for a in visit(asked.origin, asked.pages, asked.viewers, asked.seconds)]))


if __name__ == "__main__":
    main()
