"""``python -m faults.main [--short] [--seed N] [--database NAME] [--page] [FAULT ...]``: injects faults, prints what came of them."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from faults import kills, paused, points, poison, races
from faults.judge import Verdict
from faults.page import Row, table, write
from faults.world import DATABASES, World, hasten, world
from paribus.testing.fake_runner import install


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: on the command line.
        title: in the table.
        inject: does it and judges.
        databases: where it can happen.
    """

    name: str
    title: str
    inject: Callable[[World], Verdict]
    databases: tuple[str, ...] = DATABASES


FAULTS = (
    Fault("workers", "supervisors and trainers killed", kills.workers),
    Fault("schedulers", "scheduler killed, and with it all that it started", kills.schedulers),
    Fault("writers", "process that submits and records killed", kills.writers),
    Fault("servers", "database server stopped at once", kills.servers, ("PostgreSQL",)),
    Fault("zombies", "attempts paused for 0.5 to 3 leases", paused.zombies),
    Fault("points", "killed between any two statements and side effects", points.crashes),
    Fault("starts", "many processes start at once on a new database", races.starts),
    Fault("poison", "runs that always fail, each in its own way", poison.runs),
    Fault("cancellations", "cancelled at the moment of the finish", races.cancellations),
    Fault("twins", "two studies submit the same runs at once", races.twins),
)


def inject(fault: Fault, database: str, seed: int, *, short: bool) -> Verdict:
    """Inject a fault; what ends the injection is against a promise, too."""
    chance = random.Random(f"{seed} {fault.name} {database}")
    try:
        with world(database, chance, short=short) as here:
            return fault.inject(here)
    except Exception as error:
        traceback.print_exc()
        return Verdict(trials=0, faults=0, wrong=(f"{type(error).__name__}: {error}",))


def run(chosen: argparse.Namespace) -> list[Row]:
    """Inject what was chosen, and tell at once what broke a promise and how to see it again."""
    rows = []
    for fault in FAULTS:
        for database in fault.databases:
            if (chosen.faults and fault.name not in chosen.faults) or chosen.database not in (None, database):
                continue
            begun = time.monotonic()
            verdict = inject(fault, database, chosen.seed, short=chosen.short)
            rows.append(Row(fault.title, database, verdict))
            print(f"{fault.name}, {database}: {'ok' if verdict.good else 'BROKEN'}, {time.monotonic() - begun:.0f} s", flush=True)
            if not verdict.good:
                short = " --short" if chosen.short else ""
                print(*verdict.wrong[:20], sep="\n")
                print(f"again: PYTHONPATH=tests python -m faults.main{short} --seed {chosen.seed} --database {database} {fault.name}")
    return rows


def main(arguments: Sequence[str]) -> int:
    """Print a row for each fault and database; return 1 if any promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m faults.main", description="Inject faults and judge.")
    parser.add_argument("faults", nargs="*", choices=[[], *(f.name for f in FAULTS)], help="all, if none is named")
    parser.add_argument("--short", action="store_true", help="few trials")
    parser.add_argument("--seed", type=int, default=0, help="of all chance")
    parser.add_argument("--database", choices=DATABASES)
    parser.add_argument("--page", action="store_true", help="write docs/reference/reliability.md")
    chosen = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="paribus-faults-") as folder:
        site = str(install(Path(folder) / "site"))
        sys.path.insert(0, site)
        os.environ["PYTHONPATH"] = os.pathsep.join([site, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        hasten()
        rows = run(chosen)
    print("\n".join(table(rows)))
    if chosen.page:
        write(rows)
    return int(not all(row.verdict.good for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
