"""Attempts at a time: what a scheduler's turn and a supervisor's heartbeat cost with 10, 100 and 1,000 attempts active.

The scheduler, the store on disk and the RPC server over TCP are real; the engine starts no process. The supervisors are
threads of a process beside it and report as supervisors do: a start, then a heartbeat as often as they send
them. All do so in one burst, which is the worst that can happen, and once more spread over that time.

    python benchmarks/attempts.py [--most 1000]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from paribus.attempt.supervisor import Pace
from paribus.contract import Job
from paribus.engines.base import Reach
from paribus.rpc.client import call
from paribus.rpc.server import RpcServer
from paribus.run_folder.folder import RunFolder
from paribus.scheduler.scheduler import Scheduler
from paribus.store.store import Store
from paribus.store.transitions import LEASE_S
from paribus.study.expand import make_plan
from paribus.study.load import load_study
from paribus.testing.fake_engine import FakeEngine
from paribus.testing.fake_runner import FakeRunner

TURNS = 10
BEAT_S = LEASE_S * Pace.heartbeat_share


def p99(values: Sequence[float]) -> float:
    """Return the 99th percentile."""
    return sorted(values)[int(0.99 * (len(values) - 1))]


def report(address: str, do: str, spread_s: str, held: Sequence[str]) -> None:
    """Let all supervisors send one request, from as many threads; print how long each waited and how many failed."""
    begun = time.monotonic()

    def one(number: int) -> tuple[float, bool]:
        run, token = held[number].split(":")
        time.sleep(max(0.0, begun + float(spread_s) * number / len(held) - time.monotonic()))
        asked = time.monotonic()
        try:
            answer = call(Path(address), {"do": do, "run": int(run), "token": int(token)})
        except (OSError, ValueError):
            return time.monotonic() - asked, False
        return time.monotonic() - asked, bool(answer["ok"])

    with ThreadPoolExecutor(min(1000, len(held))) as supervisors:
        found = list(supervisors.map(one, range(len(held))))
    waits = [seconds for seconds, _ in found]
    wall = time.monotonic() - begun
    print(statistics.median(waits), p99(waits), max(waits), sum(not ok for _, ok in found), wall)


def burst(server: RpcServer, do: str, spread_s: float, held: Sequence[str]) -> list[float]:
    """Return median, p99 and longest wait in seconds, failures, and seconds until all had an answer."""
    command = [sys.executable, __file__, "--report", str(server.address), do, str(spread_s), *held]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return [float(word) for word in done.stdout.split()]


def measured(folder: Path, count: int) -> None:
    """Print a row for so many attempts at a time."""
    home = folder / f"home{count}"
    file = folder / "study.yaml"
    values = ", ".join(f"{0.2 + 0.001 * i:.3f}" for i in range(10))
    file.write_text(
        f"study: many\nrunner: fake\nbase: {{preset: grpo}}\nseeds: {{n: {-(-count // 10)}}}\n"
        f"designs: {{d: {{kind: grid, over: {{clip.high: [{values}]}}}}}}\n"
    )
    plan = make_plan(load_study(file), FakeRunner())
    with Store.open(home) as store:
        engine = FakeEngine(slots=count)
        server = RpcServer(store, Reach(host="127.0.0.1"))
        scheduler = Scheduler(store, engine, server.address, worker="here")
        scheduler.take_up(store.add_study(plan))
        begun = time.perf_counter()
        while len(engine.specs) < count:
            scheduler.turn()
        claimed = time.perf_counter() - begun
        folders = [RunFolder(Path(spec.arguments[0])) for spec in engine.specs.values()]
        tokens = [Job.model_validate_json(each.job.read_bytes()).token for each in folders]
        held = [f"{s.arguments[2]}:{t}" for s, t in zip(engine.specs.values(), tokens, strict=True)]
        first = burst(server, "start", 0.0, held)
        beat = burst(server, "renew", 0.0, held)
        usual = burst(server, "renew", BEAT_S, held)
        turns = []
        for _ in range(TURNS):
            begun = time.perf_counter()
            scheduler.turn()
            turns.append(time.perf_counter() - begun)
        server.close()
    lost = first[3] + beat[3] + usual[3]
    print(
        f"| {count:,} | {claimed:.1f} | {1e3 * statistics.median(turns):.0f} ({1e3 * max(turns):.0f}) "
        f"| {first[4]:.1f} | {first[2]:.1f} | {beat[4]:.1f} | {beat[2]:.1f} "
        f"| {1e3 * usual[0]:.0f} | {1e3 * usual[1]:.0f} | {lost:.0f} |",
        flush=True,
    )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=1000, help="most attempts at a time")
    most = parser.parse_args().most
    print(
        "| attempts | claimed and submitted in, s | a turn, ms (longest) | all starts at one time, s | longest wait, s "
        "| all heartbeats at one time, s | longest wait, s "
        f"| heartbeats over {BEAT_S:g} s: median, ms | p99, ms | failed |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for count in (10, 100, 1000, 3000):
            if count <= most:
                measured(Path(folder), count)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--report"]:
        report(sys.argv[2], sys.argv[3], sys.argv[4], sys.argv[5:])
    else:
        main()
