"""The table of faults, and the page that holds it."""

from __future__ import annotations

import platform
import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from faults.judge import Verdict
from faults.world import LEASE_S, LONG_LEASE_S

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/reliability.md"
INTRO = """\
# Reliability

<!-- Written by `make test-faults` from what it did: change tests/faults, then run it. -->

The promise: a run is attempted at least once, its result is recorded exactly once, and no study that was acknowledged
is lost. `make test-faults` breaks real processes, databases and clusters, lets what is left go on, and then asks the
auditor about the eleven promises of [the states](states.md#what-is-audited): a row in which one was broken says so. It
takes hours; `make test-faults FAULTS="slurm ray"` injects some and puts their rows in the place of the old ones.

{versions}.

* Trials are runs, unless the note says otherwise. Faults are processes killed by SIGKILL or paused by SIGSTOP, servers
  stopped at once, and what the note says.
* Lost: runs that did not come to their end, acknowledged submits and results that are not there. Doubled: runs with
  two results, or trained by two attempts at the same time.
* Recovery is the longest time from a fault to the next claim (of the same run, where workers were killed, which
  includes its wait for a free slot), in leases of {lease:g} s. It depends on what else the machine does.
* A lease is {long:g} s here, {lease:g} s where leases are the matter (F3, F6, F25), 60 s otherwise. After failures of
  the infrastructure nothing waits, and there are as many tries as it takes; runs that always fail have their five. The
  runner is a fake of seconds; supervisors, schedulers, engines, databases and clusters are real. The clusters are of
  several nodes on one machine.

"""
ELSEWHERE = """
## Where each fault is tested

| | what happens | where |
|---|---|---|
"""
HEAD = (
    "| | fault | on | trials | faults | lost | doubled | worst recovery | |",
    "|---|---|---|---|---|---|---|---|---|",
)
TESTED = {
    "F1": ("any sequence of calls, clock jumps, late messages", "tests/unit/store/test_store_model.py"),
    "F2": ("seeded histories of a whole cluster", "tests/unit/scheduler/test_scheduler_simulation.py"),
    "F3": ("a crash between any two statements", "tests/faults/points.py"),
    "F4": ("workers killed", "tests/faults/kills.py"),
    "F5": ("scheduler and database killed", "tests/faults/kills.py"),
    "F6": ("zombies", "tests/faults/paused.py"),
    "F7": ("database unreachable", "tests/faults/outages.py"),
    "F8": ("disk full, read-only, broken", "tests/faults/disks.py"),
    "F9": ("clocks put forward and back", "tests/faults/clocks.py"),
    "F10": ("32 processes on a new database", "tests/faults/races.py"),
    "F11": ("scale", "benchmarks/scheduler.py"),
    "F12": ("poison runs", "tests/faults/poison.py"),
    "F13": ("orphans", "tests/faults/orphans.py"),
    "F14": ("Slurm", "tests/faults/clusters.py"),
    "F15": ("Ray", "tests/faults/clusters.py"),
    "F16": ("preempted at a step, resumed bit by bit", "tests/unit/native/test_training.py"),
    "F17": ("cancelled while finishing", "tests/faults/races.py"),
    "F18": ("one run submitted twice at once", "tests/faults/races.py"),
    "F19": ("budget used up", "tests/faults/budgets.py"),
    "F20": ("upgraded with runs in flight", "tests/unit/store/test_store_migrations.py"),
    "F21": ("soak", "tests/faults/soak.py"),
    "F22": ("each guard removed in turn", "tests/mutation/guards.py"),
    "F23": ("the scheduler of a cluster away", "tests/faults/away.py"),
    "F24": ("kill storm with set-up jobs and MLflow", "tests/faults/storm.py"),
    "F25": ("services of `paribus up`", "tests/faults/services.py"),
}
"""Each fault of the list, and the file that injects it."""


@dataclass(frozen=True)
class Row:
    """What came of a fault in a place."""

    number: str
    title: str
    place: str
    verdict: Verdict

    def line(self) -> str:
        """Return the row in Markdown."""
        v = self.verdict
        recovery = "" if v.recovery is None else f"{v.recovery:.1f}"
        note = v.note if v.good else f"BROKEN ({len(v.wrong)}) {v.note}"
        cells = (self.number, self.title, self.place, v.trials, v.faults, v.lost, v.doubled, recovery, note)
        return f"| {' | '.join(map(str, cells))} |"


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the table."""
    return [*HEAD, *(row.line() for row in rows)]


class Page:
    """The page, which keeps the rows of faults that are not injected this time.

    Args:
        order: title and place of every row that there can be.
    """

    def __init__(self, order: Sequence[tuple[str, str]]) -> None:
        self._order = list(order)
        self.server = ""

    def ordered(self, rows: Sequence[Row]) -> list[Row]:
        """Return rows in their order."""
        return sorted(rows, key=lambda row: self._order.index((row.title, row.place)))

    def write(self, rows: Sequence[Row]) -> None:
        """Put rows in the place of the old ones."""
        old = PAGE.read_text() if PAGE.exists() else ""
        lines = dict[tuple[str, str], str]()
        for line in old.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) > 8 and (cells[1], cells[2]) in self._order:
                lines[cells[1], cells[2]] = line
        lines |= {(row.title, row.place): row.line() for row in rows}
        kept = [lines[key] for key in self._order if key in lines]
        server = self.server.split()[0] if self.server else (re.search(r"PostgreSQL ([\d.]+),", old) or ["", "?"])[1]
        intro = INTRO.format(versions=_versions(server), lease=LEASE_S, long=LONG_LEASE_S)
        text = intro + "\n".join([*HEAD, *kept]) + "\n\n"
        PAGE.write_text(text + _sums(kept) + ELSEWHERE + "\n".join(map(_tested, TESTED)) + "\n")


def _versions(server: str) -> str:
    used = {
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "PostgreSQL": server,
        "SQLAlchemy": version("sqlalchemy"),
    }
    return "With " + ", ".join(f"{name} {number}" for name, number in used.items())


def _sums(lines: Sequence[str]) -> str:
    """Return how often each fault happened in all places, and what was lost and doubled."""
    faults, bad = dict[str, int](), [0, 0]
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        faults[cells[0]] = faults.get(cells[0], 0) + int(cells[4])
        bad = [bad[0] + int(cells[5]), bad[1] + int(cells[6])]
    told = ", ".join(f"{number} {count}" for number, count in faults.items() if count)
    return f"Faults in all: {told}. Lost: {bad[0]}. Doubled: {bad[1]}.\n"


def _tested(number: str) -> str:
    what, path = TESTED[number]
    return f"| {number} | {what} | [`{path}`](../../{path}) |"
