"""The table of faults, and the page that holds it."""

from __future__ import annotations

import platform
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from faults.judge import Verdict
from faults.world import LEASE_S

PAGE = Path(__file__).parents[2] / "docs/reference/reliability.md"
INTRO = """\
# Reliability

<!-- Written by `make faults` from what it did: change tests/faults, then run it. -->

The promise: a run is attempted at least once, its result is recorded exactly once, and no study that was acknowledged
is lost. `make faults` breaks real processes and real databases, lets what is left go on, and then asks the auditor
about the eleven promises of [the states](states.md#what-is-audited): a row in which one was broken says so.

{versions}.

* Trials are runs, unless the note says otherwise. Faults are processes killed by SIGKILL or paused by SIGSTOP, and
  servers stopped at once.
* Lost: runs that did not come to their end, acknowledged submits and results that are not there. Doubled: runs with
  two results, or trained by two attempts at the same time.
* Recovery is the longest time from a fault to the next claim (of the same run, where workers were killed, which
  includes its wait for a free slot), in leases. It depends on what else the machine does.
* A lease is {lease:g} s here, 60 s otherwise. After failures of the infrastructure nothing waits, and there are as many
  tries as it takes; runs that always fail have their five. The runner is a fake of about a second;
  supervisors, schedulers, engines and databases are real.

"""


@dataclass(frozen=True)
class Row:
    """What came of a fault on a database."""

    title: str
    database: str
    verdict: Verdict


def table(rows: Sequence[Row]) -> list[str]:
    """Return the lines of the table."""
    lines = [
        "| fault | database | trials | faults | lost | doubled | worst recovery | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        v = row.verdict
        recovery = "" if v.recovery is None else f"{v.recovery:.1f}"
        note = v.note if v.good else f"BROKEN ({len(v.wrong)}) {v.note}"
        cells = (row.title, row.database, v.trials, v.faults, v.lost, v.doubled, recovery, note)
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def write(rows: Sequence[Row], server: str) -> None:
    """Write the page."""
    used = {
        "Python": platform.python_version(),
        "SQLite": sqlite3.sqlite_version,
        "PostgreSQL": server.split()[0] if server else "not yet",
        "SQLAlchemy": version("sqlalchemy"),
    }
    versions = "With " + ", ".join(f"{name} {number}" for name, number in used.items())
    PAGE.write_text(INTRO.format(versions=versions, lease=LEASE_S) + "\n".join(table(rows)) + "\n")
