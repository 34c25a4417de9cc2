"""Scale of the store: submit, claim, cancel, look, each against a limit or a peer that is measured in the same run.

A run is empty: claim, start and finish, as the scheduler and a supervisor ask for them. One run at a time, these are
three transactions. With several at a time, the scheduler claims as many at once as have room, and the supervisors, a
thread each, report to its handler, which commits concurrent requests together. Claims and results are on the
disk before they are acknowledged. What Optuna and Ray Tune do for a trial stands in `scheduler_peers.py`. Where two
things are compared, they are measured in turns.

    python benchmarks/scheduler.py --peers .scheduler-venv/bin/python
    python benchmarks/scheduler.py --quick
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import sqlalchemy as sa

from paribus.audit.snapshot import payload_hash
from paribus.monitor.status import page_of, studies
from paribus.recipe.recipe import canonical_json
from paribus.rpc.handler import RpcHandler
from paribus.scheduler.scheduler import CLAIMS
from paribus.store import tables as t
from paribus.store.database import Database, file_url, no_timeout
from paribus.store.migrate import HEAD, run_alembic
from paribus.store.models import Claim, StudyRecord
from paribus.store.store import Store
from paribus.study.expand import make_plan
from paribus.study.load import load_study
from paribus.study.plan import Plan
from paribus.testing.fake_runner import FakeRunner
from support.databases import postgresql

ARMS = 100
PAYLOAD = {"final": {"score": 0.5}, "seconds": 0.0}
TABLES = ("run", "study_run", "event")
PEERS = Path(__file__).with_name("scheduler_peers.py")


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured."""

    small: int
    large: int
    cancelled: int
    claims: int
    rounds: int
    workers: tuple[int, ...]
    block: int
    ray: tuple[int, int]


FULL = Size(small=10_000, large=100_000, cancelled=10_000, claims=400, rounds=2, workers=(1, 4, 8), block=500,
            ray=(100, 500))  # fmt: skip
QUICK = Size(small=1_000, large=10_000, cancelled=1_000, claims=80, rounds=2, workers=(1, 4), block=100, ray=(10, 20))


# ---- what is measured ----------------------------------------------------------------------------


def seconds(work: Callable[[], object]) -> float:
    """Return how long something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def spread(values: Sequence[float], digits: str = ".2f") -> str:
    """Return the median, with the smallest and the largest value."""
    return f"{statistics.median(values):{digits}} ({min(values):{digits}} to {max(values):{digits}})"


def plan_of(folder: Path, name: str, count: int) -> Plan:
    """Return the plan of a study file with so many runs: a grid of 100 values, and seeds."""
    values = ", ".join(f"{0.2 + 0.001 * i:.3f}" for i in range(ARMS))
    file = folder / f"{name}.yaml"
    file.write_text(
        f"study: {name}\nbase: {{preset: grpo}}\nseeds: {{n: {count // ARMS}}}\n"
        f"designs: {{bounds: {{kind: grid, over: {{clip.high: [{values}]}}}}}}\n"
    )
    plan = make_plan(load_study(file), FakeRunner())
    assert len(plan.runs) == count, len(plan.runs)
    return plan


def half_done(store: Store, study: StudyRecord) -> None:
    """Give the first half of the study's runs a result, in one stroke."""
    text = canonical_json(PAYLOAD)
    mine = sa.select(t.study_run.c.run_id).where(
        t.study_run.c.study_id == study.id, t.study_run.c.position < len(study.plan.runs) // 2
    )
    done = sa.select(t.run.c.id, sa.literal(1), sa.literal(text), sa.literal(payload_hash(text)), sa.literal(0.0))
    name = sa.literal("made-") + t.run.c.fingerprint
    empty, zero = sa.literal(""), sa.literal(0.0)
    tried = sa.select(
        t.run.c.id, t.run.c.study_id, sa.literal(1), empty, empty, name, empty, zero, zero, zero, sa.literal("succeed"),
        empty, empty,
    )  # fmt: skip
    attempt = ("run_id", "study_id", "token", "engine", "worker", "submit_name", "external_id", "gpus", "claimed_at",
               "ended_at", "outcome", "reason", "signature")  # fmt: skip
    with store.database.write() as connection:
        no_timeout(connection)
        connection.execute(sa.update(t.run).where(t.run.c.id.in_(mine)).values(state="SUCCEEDED", token=1))
        result = ["run_id", "token", "payload", "payload_hash", "at"]
        connection.execute(sa.insert(t.result).from_select(result, done.where(t.run.c.id.in_(mine))))
        connection.execute(sa.insert(t.attempt).from_select(list(attempt), tried.where(t.run.c.id.in_(mine))))
        connection.execute(sa.update(t.study_run).where(t.study_run.c.run_id.in_(mine)).values(recorded=True))


def empty_runs(store: Store, study_id: int, count: int) -> list[tuple[float, float]]:
    """Claim, start and finish so many runs; return the seconds of each claim, and of each claim and finish."""
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        claim = store.claim(study_id, engine="none", worker="benchmark")
        claimed = time.perf_counter()
        assert claim is not None
        store.start(claim.run_id, claim.token)
        started = time.perf_counter()
        store.finish(claim.run_id, claim.token, PAYLOAD)
        found.append((claimed - begun, claimed - begun + time.perf_counter() - started))
    return found


def runs_together(store: Store, study_id: int, count: int, width: int = CLAIMS) -> None:
    """Do as a scheduler with so many free slots and as the supervisors of its runs do, until so many have a result."""
    handler = RpcHandler(store)

    def supervise(claim: Claim) -> None:
        who = {"run": claim.run_id, "token": claim.token}
        assert handler.answer({"do": "start", **who})["ok"]
        assert handler.answer({"do": "finish", **who, "payload": PAYLOAD, "stopped_early": False})["ok"]

    with ThreadPoolExecutor(width) as supervisors:
        while count > 0:
            claims = store.claim_many(study_id, min(width, count), engine="none", worker="benchmark")
            assert claims
            list(supervisors.map(supervise, claims))
            count -= len(claims)


def _work(
    url: sa.URL, study_id: int, count: int, ready: multiprocessing.Barrier, answers: multiprocessing.Queue
) -> None:
    with Store(Database(url), Path()) as store:
        empty_runs(store, study_id, 5)
        ready.wait()
        begun = time.monotonic()
        found = empty_runs(store, study_id, count)
        answers.put((begun, time.monotonic(), found))


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast workers were together: runs a second, and the 99th percentile of claim, and of claim and finish."""

    per_s: float
    claim_p99: float
    p99: float


def pace(url: sa.URL, study_id: int, workers: int, count: int) -> Pace:
    """Let so many processes empty a study at once."""
    spawn = multiprocessing.get_context("spawn")
    ready, answers = spawn.Barrier(workers), spawn.Queue()
    each = count // workers
    processes = [spawn.Process(target=_work, args=(url, study_id, each, ready, answers)) for _ in range(workers)]
    for process in processes:
        process.start()
    found = [answers.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    wall = max(end for _, end, _ in found) - min(begin for begin, _, _ in found)
    claims, both = zip(*(pair for _, _, pairs in found for pair in pairs), strict=True)
    return Pace(per_s=each * workers / wall, claim_p99=_p99(claims), p99=_p99(both))


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[int(0.99 * len(values))]


# ---- the parts -----------------------------------------------------------------------------------


@contextmanager
def databases(folder: Path) -> Iterator[dict[str, sa.URL]]:
    """Yield an SQLite file and a database of a PostgreSQL server that waits for the disk, both with tables."""
    with ExitStack() as stack:
        server = stack.enter_context(postgresql())
        engine = sa.create_engine(server, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for setting in ("fsync = on", "full_page_writes = on"):
                connection.execute(sa.text(f"ALTER SYSTEM SET {setting}"))
            connection.execute(sa.text("SELECT pg_reload_conf()"))
        engine.dispose()
        file = file_url(folder)
        database = Database(file)
        run_alembic(database, "upgrade", HEAD)
        database.close()
        yield {"SQLite": file, "PostgreSQL": server}


def bare_insert(source: Path, target: Path) -> float:
    """Return the seconds of putting the rows of a submitted study into tables without keys, one transaction."""
    with closing(sqlite3.connect(source)) as connection:
        rows = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in TABLES}
    with closing(sqlite3.connect(target)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        for name, found in rows.items():
            connection.execute(f"CREATE TABLE {name} ({', '.join(f'c{i}' for i in range(len(found[0])))})")

        def insert() -> None:
            for name, found in rows.items():
                connection.executemany(f"INSERT INTO {name} VALUES ({','.join('?' * len(found[0]))})", found)
            connection.commit()

        return seconds(insert)


def submitting(folder: Path, size: Size) -> float:
    """Print what a large study costs to expand and to submit; return the ratio to the bare inserts."""
    planned, added, bare, per_run = [], [], [], []
    for number in range(size.rounds):
        for count in (size.small, size.large):
            place = folder / f"submit{number}-{count}"
            place.mkdir()
            start = time.perf_counter()
            plan = plan_of(place, f"s{count}", count)
            planned.append(time.perf_counter() - start)
            with Store.open(place) as store:
                added.append(seconds(lambda plan=plan, store=store: store.add_study(plan)))
            bare.append(bare_insert(place / "paribus.db", place / "bare.db"))
        per_run.append(added[-1] / added[-2] * size.small / size.large)
    ratio = [a / b for a, b in zip(added[1::2], bare[1::2], strict=True)]
    print(f"\nexpand {size.large} runs: {spread(planned[1::2])} s; submit them: {spread(added[1::2])} s")
    print(f"  bare inserts of the {len(TABLES)} rows a run: {spread(bare[1::2])} s; ratio {spread(ratio)}")
    print(f"  submitting, cost a run at {size.large} against {size.small}: {spread(per_run)}")
    return statistics.median(ratio)


def claiming(urls: dict[str, sa.URL], folder: Path, size: Size) -> float:
    """Print the pace of claims on half-finished studies of both sizes; return the worst growth of the cost a run."""
    worst = 0.0
    print(f"\nclaim, start, finish on half-finished studies of {size.small} and {size.large} runs in one store each")
    print(
        "database    workers  runs/s small       runs/s large       claim p99 ms, both  with finish  cost large/small"
    )
    for name, url in urls.items():
        with ExitStack() as stack:
            made = [stack.enter_context(_store_of(folder, name, url, count)) for count in (size.small, size.large)]
            for workers in size.workers:
                found: list[list[Pace]] = [[], []]
                for _ in range(size.rounds):
                    for (place, study_id), paces in zip(made, found, strict=True):
                        paces.append(pace(place, study_id, workers, size.claims))
                ratios = [a.per_s / b.per_s for a, b in zip(*found, strict=True)]
                claim = [f"{1e3 * statistics.median(p.claim_p99 for p in paces):.1f}" for paces in found]
                both = [f"{1e3 * statistics.median(p.p99 for p in paces):.1f}" for paces in found]
                speed = [spread([p.per_s for p in paces], ".0f") for paces in found]
                print(
                    f"{name:<11} {workers:>7}  {speed[0]:<18} {speed[1]:<18} {', '.join(claim):<19} "
                    f"{', '.join(both):<12} {spread(ratios)}", flush=True,
                )  # fmt: skip
                # of the best round of each size: what else the machine does is no property of ours
                worst = max(worst, max(p.per_s for p in found[0]) / max(p.per_s for p in found[1]))
    return worst


@contextmanager
def _store_of(folder: Path, name: str, url: sa.URL, count: int) -> Iterator[tuple[sa.URL, int]]:
    """Yield a store with one half-finished study of so many runs."""
    with ExitStack() as stack:
        if name == "SQLite":
            place = folder / f"claim{count}"
            place.mkdir()
            url = file_url(place)
            database = Database(url)
            run_alembic(database, "upgrade", HEAD)
        else:
            url = stack.enter_context(postgresql())
            database = Database(url)
        with Store(database, folder) as store:
            study = store.add_study(plan_of(folder, f"c{count}", count))
            half_done(store, study)
        yield url, study.id


def cancelling(urls: dict[str, sa.URL], folder: Path, size: Size) -> float:
    """Print what cancelling costs; return the ratio to submitting as many runs."""
    ratios = []
    for name, url in urls.items():
        with Store(Database(url), folder) as store:
            found = []
            for number in range(size.rounds):
                plan = plan_of(folder, f"x{number}", size.cancelled)
                # runs of its own: a study's name is no part of a run
                own = (replace(r, fingerprint=payload_hash(f"{number}{r.fingerprint}")) for r in plan.runs)
                plan = replace(plan, runs=tuple(own))
                added = seconds(lambda plan=plan, store=store: store.add_study(plan))
                took = seconds(lambda plan=plan, store=store: store.cancel(plan.study))
                found.append((took, took / added))
        print(f"\ncancel {size.cancelled} runs, {name}: {spread([s for s, _ in found])} s; "
              f"against submitting them {spread([r for _, r in found])}")  # fmt: skip
        ratios += [r for _, r in found]
    return statistics.median(ratios)


def looking(folder: Path, size: Size) -> float:
    """Print what `paribus status` costs to gather; return the growth of the cost of a page."""
    took: dict[int, list[tuple[float, float, float]]] = {size.small: [], size.large: []}
    for _ in range(size.rounds):
        for count, found in took.items():
            with Store(Database(file_url(folder / f"claim{count}")), folder / f"claim{count}") as store:
                listed = seconds(lambda store=store: studies(store))
                page = seconds(lambda store=store, count=count: page_of(store, f"c{count}"))
            with closing(sqlite3.connect(folder / f"claim{count}" / "paribus.db")) as connection:
                bare = seconds(lambda c=connection: c.execute("SELECT * FROM run").fetchall())
            found.append((listed, page, bare))
    growth = [b[1] / a[1] * size.small / size.large for a, b in zip(*took.values(), strict=True)]
    for count, found in took.items():
        of_all, of_one, bare = zip(*found, strict=True)
        print(f"\nstatus, {count} runs: of all studies {spread(of_all)} s; first page of the study {spread(of_one)} s, "
              f"{spread([a / b for _, a, b in found], '.1f')} times a bare SELECT of all rows")  # fmt: skip
    print(f"  cost a run at {size.large} against {size.small}: {spread(growth)}")
    return statistics.median(growth)


def peers(python: Path, folder: Path, size: Size, total: int, slow: int, with_ray: bool) -> dict[str, float]:
    """Print trials a second of the peers and ours, block after block in turns; return how many times as fast we are."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    log = (folder / "peers.log").open("w")
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": log}
    peer = subprocess.Popen([python, PEERS, folder], **pipes, text=True, env=environment)
    assert peer.stdin is not None
    assert peer.stdout is not None
    ask, answers = peer.stdin, peer.stdout

    def ask_for(name: str, count: int) -> float:
        ask.write(f"{name} {count}\n")
        ask.flush()
        return float(answers.readline() or "nan")

    place = folder / "ours"
    together = f"ours, {CLAIMS}"
    found: dict[str, list[float]] = {together: [], "ours, one": [], "journal": [], "rdb": []}
    with Store.open(place) as store, Store.open(folder / "together") as other:
        study, same = (s.add_study(plan_of(folder, "ours", total)) for s in (store, other))
        for _ in range(total // size.block):
            found[together].append(seconds(lambda: runs_together(other, same.id, size.block)) / size.block)
            found["ours, one"].append(seconds(lambda: empty_runs(store, study.id, size.block)) / size.block)
            found["journal"].append(ask_for("journal", size.block) / size.block)
            if len(found["rdb"]) * size.block < slow:
                found["rdb"].append(ask_for("rdb", size.block) / size.block)
    times = {}
    print(f"\nempty trials in one process, in turns of {size.block}: ms a trial (median of turns, least to most)\n"
          f"ours one at a time, and {CLAIMS} at a time; the peers one at a time, as they have it")  # fmt: skip
    for name, each in found.items():
        tenth = max(1, len(each) // 10)
        growth = statistics.mean(each[-tenth:]) / statistics.mean(each[:tenth])
        ratios = [[a / b for a, b in zip(each, found[ours], strict=False)] for ours in ("ours, one", together)]
        times[name] = statistics.median(ratios[1])
        print(f"  {name:<12} {len(each) * size.block:>6} trials: {spread([1e3 * e for e in each])}; last tenth/first "
              f"{growth:.2f}; ours is {spread(ratios[0])} times as fast, together {spread(ratios[1])}")  # fmt: skip
    if with_ray:
        ours = statistics.median(found[together])
        ask_for("ray", 5)  # starts the cluster, and its actor's process
        for name, counts in {"ray": size.ray, "ray-default": (2, 12)}.items():
            few, many = ask_for(name, counts[0]), ask_for(name, counts[1])
            marginal = (many - few) / (counts[1] - counts[0])
            times[name] = marginal / ours
            print(f"  {name:<12} {counts[0]} trials {few:.2f} s, {counts[1]} trials {many:.2f} s: "
                  f"{1e3 * marginal:.1f} ms each more trial; ours is {marginal / ours:.1f} times as fast")  # fmt: skip
    ask.close()
    peer.wait()
    return times


# ---- all of it -----------------------------------------------------------------------------------


def machine(folder: Path) -> str:
    """Return the facts of this machine that the figures depend on."""
    with closing(sqlite3.connect(folder / "flush.db", isolation_level=None)) as connection:
        for pragma in ("journal_mode = WAL", "synchronous = FULL"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("CREATE TABLE x (a)")
        commits = [seconds(lambda: connection.execute("INSERT INTO x VALUES (1)")) for _ in range(200)]
    return (
        f"{os.cpu_count()} x {_processor()}, load {os.getloadavg()[0]:.1f}; Python {platform.python_version()}, "
        f"SQLite {sqlite3.sqlite_version}, SQLAlchemy {sa.__version__}; a bare commit on the disk takes "
        f"{1e3 * statistics.median(commits):.2f} ms (p99 {1e3 * _p99(commits):.2f})"
    )


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def main() -> int:
    """Print the figures; exit 1 if one is out of its bounds."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small studies, for a change's check")
    parser.add_argument("--peers", type=Path, help="Python of the environment with Optuna and Ray; absent: no peers")
    parser.add_argument("--no-ray", action="store_true", help="leave Ray Tune out")
    parser.add_argument("--trials", type=int, default=10_000, help="empty trials, of ours and of Optuna's journal")
    parser.add_argument("--slow-trials", type=int, default=2_000, help="empty trials of Optuna's database storage")
    parser.add_argument(
        "--growth-below",
        type=float,
        default=2.0,
        help="most that the cost a run may grow with a study ten times the size",
    )
    parser.add_argument("--rdb-at-least", type=float, default=1.0, help="how many times as fast as Optuna's database")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    with tempfile.TemporaryDirectory(prefix="paribus-benchmark-") as name:
        folder = Path(name)
        print(machine(folder), flush=True)
        times: dict[str, float] = {}
        if options.peers:
            times = peers(options.peers, folder, size, options.trials, options.slow_trials, not options.no_ray)
        submitting(folder, size)
        with databases(folder) as urls:
            growth = claiming(urls, folder, size)
            cancelling(urls, folder, size)
        growth = max(growth, looking(folder, size))
        print(f"load {os.getloadavg()[0]:.1f} at the end")
    good = growth < options.growth_below and times.get("rdb", options.rdb_at_least) >= options.rdb_at_least
    print("within the bounds" if good else "OUT OF BOUNDS")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
