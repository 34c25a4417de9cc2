"""Injects faults and prints what came of them: ``python -m faults.main --help``, with ``tests`` on the path."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from faults import (
    away,
    budgets,
    clocks,
    clusters,
    disks,
    kills,
    orphans,
    outages,
    paused,
    points,
    poison,
    races,
    services,
    soak,
    storm,
)
from faults.judge import Verdict
from faults.page import Page, Row, table
from faults.world import (
    DATABASES,
    LEASE_S,
    LONG_LEASE_S,
    STACKS,
    Lines,
    Skipped,
    World,
    hasten,
    process,
    server_runs,
    server_version,
    stop_server,
    world,
)
from paribus.testing.fake_runner import install

SHORT_S = 600
"""Seconds that one injection may take if ``--short``: ten times what the longest takes on two idle cores."""


@dataclass(frozen=True)
class Fault:
    """A fault.

    Attributes:
        name: on the command line.
        number: in the list of faults.
        title: in the table.
        inject: does it and judges.
        places: where it can happen.
        lease_s: seconds of a lease.
    """

    name: str
    number: str
    title: str
    inject: Callable[[World], Verdict]
    places: tuple[str, ...] = DATABASES
    lease_s: float = LONG_LEASE_S


FAULTS = (
    Fault("points", "F3", "killed between any two statements and side effects", points.crashes, lease_s=LEASE_S),
    Fault("workers", "F4", "supervisors and trainers killed", kills.workers),
    Fault("schedulers", "F5", "scheduler killed, and with it all that it started", kills.schedulers),
    Fault("writers", "F5", "process that submits and records killed", kills.writers),
    Fault("servers", "F5", "database server stopped at once", kills.servers, ("PostgreSQL",)),
    Fault("zombies", "F6", "attempts paused for 0.5 to 3 leases", paused.zombies, lease_s=LEASE_S),
    Fault("outages", "F7", "database refuses, is silent, or answers late", outages.outages, ("PostgreSQL",)),
    Fault("disks", "F8", "disk full, read-only or broken", disks.disks),
    Fault("clocks", "F9", "time of day jumps by an hour", clocks.clocks),
    Fault("starts", "F10", "many processes start at once on a new database", races.starts),
    Fault("poison", "F12", "runs that always fail, each in its own way", poison.runs),
    Fault("orphans", "F13", "trainers leave processes in other sessions, and are killed", orphans.orphans, ("SQLite",)),
    Fault("slurm", "F14", "Slurm's daemons and jobs killed, jobs preempted", clusters.slurm, ("Slurm",)),
    Fault("ray", "F15", "Ray's workers, nodes and head killed", clusters.ray, ("Ray",)),
    Fault("cancellations", "F17", "cancelled at the moment of the finish", races.cancellations),
    Fault("twins", "F18", "two studies submit the same runs at once", races.twins),
    Fault("budgets", "F19", "budget used up while eight runs train", budgets.budgets),
    Fault("storm", "F24", "any process killed, from the first second, with set-up jobs and MLflow", storm.storm),
    Fault(
        "services", "F25", "services of `paribus up` killed in turn", services.services, ("SQLite",), lease_s=LEASE_S
    ),
    Fault(
        "slurm-away", "F23", "scheduler of Slurm away, jobs begin and end", away.slurm, ("Slurm", "Slurm+PostgreSQL")
    ),
    Fault("ray-away", "F23", "scheduler of Ray away, jobs begin and end", away.ray, ("Ray", "Ray+PostgreSQL")),
    Fault("soak", "F21", "all of it for a long time", soak.soak),
)
LANES = (("SQLite", "Slurm", "Slurm+PostgreSQL"), ("PostgreSQL", "Ray", "Ray+PostgreSQL"))
"""What is done one after the other; the lanes side by side."""


def inject(fault: Fault, place: str, chosen: argparse.Namespace) -> Verdict:
    """Inject a fault; what ends the injection is against a promise, too."""
    chance = random.Random(f"{chosen.seed} {fault.name} {place}")
    try:
        with world(place, chance, short=chosen.short, minutes=chosen.minutes) as here:
            hasten(fault.lease_s)
            signal.alarm(SHORT_S if chosen.short else 0)
            try:
                return fault.inject(here)
            except TimeoutError as error:
                ends = Counter(f"{a.outcome or 'none'}: {a.reason}" for a in here.snapshot(folders=False).attempts)
                raise AssertionError(f"{error}; ends of its attempts: {dict(ends)}") from error
    except Skipped:
        raise
    except Exception as error:
        traceback.print_exc()
        return Verdict(trials=0, faults=0, wrong=(f"{type(error).__name__}: {error}",))
    finally:
        signal.alarm(0)


def stuck(*_: object) -> None:
    """Let the processes of an injection show where they are, and end it."""
    for child in multiprocessing.active_children():
        assert child.pid is not None
        os.kill(child.pid, STACKS)
    time.sleep(1.0)
    raise TimeoutError(f"not at its end after {SHORT_S} s")


def lane(chosen: argparse.Namespace, places: Sequence[str], rows: Lines) -> None:
    """Inject what was chosen, one place after the other; tell at once what broke a promise and how to see it again."""
    signal.signal(signal.SIGALRM, stuck)
    for place in places:
        faults = [f for f in FAULTS if place in f.places and (not chosen.faults or f.name in chosen.faults)]
        if place == "PostgreSQL" and faults:
            rows.put(server_version())
        for fault in faults:
            begun = time.monotonic()
            try:
                verdict = inject(fault, place, chosen)
            except Skipped as reason:
                print(f"{fault.name}, {place}: skipped, {reason}", flush=True)
                continue
            spent = time.monotonic() - begun
            rows.put(Row(fault.number, fault.title, place, replace(verdict, wrong=verdict.wrong[:20])))
            print(f"{fault.name}, {place}: {'ok' if verdict.good else 'BROKEN'}, {spent:.0f} s", flush=True)
            if not verdict.good:
                short = " --short" if chosen.short else ""
                again = f"python -m faults.main{short} --seed {chosen.seed} --place {place} {fault.name}"
                print(*verdict.wrong[:20], f"again: PYTHONPATH=tests {again}", sep="\n", flush=True)
    if server_runs():
        stop_server()


def run(chosen: argparse.Namespace) -> list[Row]:
    """Work in all lanes at once; return the rows in order."""
    told, found = Lines(), list[Row]()
    page = Page(tuple((f.title, place) for f in FAULTS for place in f.places))
    with ExitStack() as stack:
        wanted = [[place for place in places if chosen.place in (None, place)] for places in LANES]
        lanes = [stack.enter_context(process(lane, chosen, places, told)) for places in wanted if places]
        alive = True
        while alive:
            time.sleep(0.1)
            alive = any(child.is_alive() for child in lanes)
            news = told.new()
            found += [what for what in news if isinstance(what, Row)]
            page.server = next((what for what in news if isinstance(what, str)), page.server)
            if chosen.page and news:  # as far as it has come: this takes long
                page.write(found)
        if any(child.exitcode != 0 for child in lanes):
            sys.exit("the faults could not be injected")
    return page.ordered(found)


def main(arguments: Sequence[str]) -> int:
    """Print a row for each fault and place; return 1 if any promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m faults.main", description="Inject faults and judge.")
    parser.add_argument("faults", nargs="*", choices=[[], *(f.name for f in FAULTS)], help="all, if none is named")
    parser.add_argument("--short", action="store_true", help="few trials")
    parser.add_argument("--seed", type=int, default=0, help="of all chance")
    parser.add_argument("--place", choices=[place for places in LANES for place in places])
    parser.add_argument("--minutes", type=float, default=30.0, help="length of the soak; half a minute if --short")
    parser.add_argument("--page", action="store_true", help="write the rows into docs/reference/reliability.md")
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # `nohup` ignores it, and all that is started would
    with tempfile.TemporaryDirectory(prefix="paribus-faults-") as folder:
        site = str(install(Path(folder) / "site"))
        sys.path.insert(0, site)
        os.environ["PYTHONPATH"] = os.pathsep.join([site, os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        rows = run(chosen)
    print("\n".join(table(rows)))
    return int(not all(row.verdict.good for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
