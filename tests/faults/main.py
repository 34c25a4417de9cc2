"""Injects faults and prints what came of them: ``python -m faults.main --help``, with ``tests`` on the path."""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from faults import kills, paused, points, poison, races
from faults.judge import Verdict
from faults.page import Row, table, write
from faults.world import DATABASES, World, hasten, lines, process, server_version, stop_server, world
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
    Fault("starts", "many processes start at once on a new database", races.starts),
    Fault("poison", "runs that always fail, each in its own way", poison.runs),
    Fault("cancellations", "cancelled at the moment of the finish", races.cancellations),
    Fault("twins", "two studies submit the same runs at once", races.twins),
    Fault("points", "killed between any two statements and side effects", points.crashes),
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


def lane(chosen: argparse.Namespace, database: str, rows: Any) -> None:
    """Inject what was chosen into a database; tell at once what broke a promise and how to see it again."""
    if database == "PostgreSQL":
        rows.put((None, server_version()))
    for number, fault in enumerate(FAULTS):
        if database not in fault.databases or (chosen.faults and fault.name not in chosen.faults):
            continue
        begun = time.monotonic()
        verdict = inject(fault, database, chosen.seed, short=chosen.short)
        rows.put((number, Row(fault.title, database, replace(verdict, wrong=verdict.wrong[:20]))))
        spent = time.monotonic() - begun
        print(f"{fault.name}, {database}: {'ok' if verdict.good else 'BROKEN'}, {spent:.0f} s", flush=True)
        if not verdict.good:
            short = " --short" if chosen.short else ""
            again = f"python -m faults.main{short} --seed {chosen.seed} --database {database} {fault.name}"
            print(*verdict.wrong[:20], f"again: PYTHONPATH=tests {again}", sep="\n", flush=True)
    if database == "PostgreSQL":
        stop_server()


def run(chosen: argparse.Namespace) -> list[Row]:
    """Work in all databases at once; return the rows in order."""
    told, found, server = lines(), dict[tuple[int, int], Row](), ""
    with ExitStack() as stack:
        names = [name for name in DATABASES if chosen.database in (None, name)]
        lanes = [stack.enter_context(process(lane, chosen, name, told)) for name in names]
        while any(child.is_alive() for child in lanes) or not told.empty():
            if told.empty():
                time.sleep(0.1)
                continue
            number, what = told.get()
            if number is None:
                server = what
            else:
                found[number, DATABASES.index(what.database)] = what
            if chosen.page:  # as far as it has come: this takes minutes
                write([found[key] for key in sorted(found)], server)
        if any(child.exitcode != 0 for child in lanes):
            sys.exit("the faults could not be injected")
    return [found[key] for key in sorted(found)]


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
    return int(not all(row.verdict.good for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
