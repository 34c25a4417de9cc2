"""F14 and F15: what happens to jobs, nodes and heads of real Slurm and Ray clusters while they run studies."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from clusters import started
from faults import judge
from faults.judge import Verdict
from faults.orphans import parent_of
from faults.sessions import work
from faults.world import LEASE_S, Skipped, World, ended, kill, process, until
from paribus.engines.base import Engine, EngineSettings
from paribus.engines.process import Identity
from paribus.engines.ray.engine import RayEngine
from paribus.engines.slurm import commands as slurm_commands
from paribus.engines.slurm import engine as slurm_engine
from paribus.engines.slurm.engine import SlurmEngine
from paribus.errors import RunFolderError, TooLarge
from paribus.run_folder.folder import RunFolder, read_json
from paribus.store.reader import Reader
from paribus.study.plan import Plan
from support.plans import small_plan

NODES = ("n1", "n2")
STARTS, START_S = 5, 15.0
"""How often a daemon is started again, and how many seconds each time has."""
Inject = Callable[[], bool]
"""Injects a fault if there is something that it can happen to; returns whether it did."""


def injected(
    world: World, kinds: Mapping[str, Inject], order: list[str], engine: Callable[[EngineSettings], Engine]
) -> Verdict:
    """Inject faults in an order, one after the other, into studies that train; judge."""
    world.orders(json.dumps({"step_s": 0.2}))
    world.store().close()
    rounds, times, done = 0, list[float](), Counter[str]()
    while order:
        rounds += 1
        plan = small_plan(f"cluster{rounds}", arms=4, seeds=3 if world.short else 6, steps=8 + rounds)
        whole = False
        while not whole:
            with process(work, world.home, plan, None, impatient, engine) as session:
                while session.is_alive():
                    session.join(world.random.uniform(0.2, 1.0))
                    if order and session.is_alive() and kinds[order[0]]():
                        times.append(time.time())
                        kind = order.pop(0)
                        done[kind] += 1
                        if kind == "head":  # the next session reads the address of the new one
                            session.kill()
                whole = session.exitcode == 0
                if not whole and not done["head"]:
                    ended(session)
    s = world.snapshot()
    told = ", ".join(f"{count} times {kind}" for kind, count in done.items())
    return judge.judge(
        s, trials=len(s.runs), faults=len(times), home=world.home, recovery=judge.until_next_claim(s, times),
        wrong=judge.broken_records(s, world.home), note=told,
    )  # fmt: skip


def impatient() -> None:
    """Wait for Slurm's commands, which try for minutes to reach a controller, as long as a short lease allows."""
    slurm_commands._TIMEOUT_S = 2 * LEASE_S  # type: ignore[misc]
    slurm_engine.RETRY_S = LEASE_S / 6  # type: ignore[misc]


def supervisors(home: Path) -> list[int]:
    """Return the supervisors of the attempts that train."""
    found = []
    with Reader.open(home) as reader:
        for attempt in reader.live_attempts():
            with suppress(RunFolderError, KeyError):
                here = read_json(RunFolder.of(home, attempt.fingerprint, attempt.token).attempt)
                identity = Identity.read(here["supervisor"])
                found += [identity.pid] if identity.alive() else []
    return found


def kill_parent(world: World) -> bool:
    """Kill what stands above the supervisor of an attempt: the process of the cluster that keeps its job."""
    pids = supervisors(world.home)
    world.random.shuffle(pids)
    with suppress(OSError):
        return any(kill(parent) for parent in [parent_of(p) for p in pids[:1]] if parent > 1)
    return False


# ---- Slurm -------------------------------------------------------------------------------------------


def slurm(world: World) -> Verdict:
    """Jobs are known by name, whatever number Slurm gives them, and what it forgets goes on or is made good."""
    world.home.mkdir()
    (world.home / "engines.yaml").write_text(
        json.dumps({"slurm": {"gpus": 1, "memory": "200M", "grace": 5, "host": "127.0.0.1", "poll": 0.3}})
    )
    with slurm_cluster() as folder:
        kinds = {
            "slurmctld up to 2 s after a submit": lambda: after_a_submit(world, folder),
            "slurmd": lambda: daemon(world, folder, f"slurmd-{world.random.choice(NODES)}"),
            "slurmstepd": lambda: kill_parent(world),
            "preempted": lambda: preempt(world),
        }
        order = world.number(26, 2) * [next(iter(kinds))] + [
            k for k in list(kinds)[1:] for _ in range(world.number(10, 1))
        ]
        world.random.shuffle(order)
        with process(administer):
            verdict = injected(world, kinds, order, SlurmEngine)
        again = given_again((folder / "slurmctld.log").read_text())
        shown = subprocess.run(["sinfo", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return replace(verdict, note=f"{shown}; {verdict.note}; {again} job ids were given twice")


@contextmanager
def slurm_cluster() -> Iterator[Path]:
    """Yield the folder of a Slurm cluster of two nodes, which this process and its children use."""
    os.environ["PATH"] += os.pathsep + "/usr/sbin"
    place = Path(tempfile.mkdtemp(prefix="paribus-slurm-"))
    place.chmod(0o755)
    try:
        with started.slurm_cluster(place / "cluster") as configuration:
            os.environ["SLURM_CONF"] = str(configuration)
            try:
                yield configuration.parent
            except Exception:
                show(configuration.parent)
                raise
    except started.NotInstalled as error:
        raise Skipped(str(error)) from None
    finally:
        shutil.rmtree(place, ignore_errors=True)


def show(folder: Path) -> None:
    """Print Slurm's queue and the ends of its logs."""
    for command in ("squeue --all", "sinfo --Node"):
        subprocess.run(command.split(), stderr=subprocess.STDOUT, check=False, timeout=60)
    for log in sorted(folder.glob("*.log")):
        print(f"== {log.name}", *log.read_text(errors="replace").splitlines()[-40:], sep="\n", flush=True)


def after_a_submit(world: World, folder: Path) -> bool:
    """Kill the controller when a job has just been submitted."""
    with Reader.open(world.home) as reader:
        before = {a.submit_name for a in reader.live_attempts()}
        end = time.monotonic() + 2 * LEASE_S
        while {a.submit_name for a in reader.live_attempts()} <= before:
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
    time.sleep(world.random.uniform(0.0, 2.0))
    return daemon(world, folder, "slurmctld")


def daemon(world: World, folder: Path, name: str) -> bool:
    """Kill a daemon of Slurm's and start it again."""
    file = folder / f"{name}.pid"
    victim = Identity.of(int(file.read_text()))
    assert kill(victim.pid), f"{name} was not there"
    until(lambda: not victim.alive())
    time.sleep(world.random.uniform(0.0, 2.0))
    program, _, node = name.partition("-")
    for _ in range(STARTS):  # as a service manager does
        subprocess.run([program, *(["-N", node] if node else [])], check=True)
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if file.exists() and file.read_text().strip() not in ("", str(victim.pid)):
                return True
            time.sleep(0.02)
    raise AssertionError(f"{name} does not start again")


def preempt(world: World) -> bool:
    """Let a job of more importance take a node away."""
    if not supervisors(world.home):
        return False
    wish = ["--partition=high", "--nodes=1", "--gres=gpu:2", "--mem=10M", "--job-name=important"]
    command = ["sbatch", "--parsable", *wish, "--output=/dev/null", "--wrap", "sleep 1"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def administer() -> None:
    """Do what people do: bring nodes back that Slurm takes out, as when it finds two jobs with one id there."""
    while True:
        for node in NODES:
            shown = subprocess.run(
                ["sinfo", "--noheader", f"--nodes={node}", "--format=%T"], capture_output=True, text=True, check=False
            ).stdout
            if "drain" in shown or "down" in shown:
                command = ["scontrol", "update", f"NodeName={node}", "State=RESUME"]
                subprocess.run(command, capture_output=True, check=False)
        time.sleep(1.0)


def given_again(log: str) -> int:
    """Return how many job ids Slurm has given to more than one job."""
    ids = re.findall(r"_slurm_rpc_submit_batch_job: JobId=(\d+)", log)
    return sum(count > 1 for count in Counter(ids).values())


# ---- Ray ---------------------------------------------------------------------------------------------


def ray(world: World) -> Verdict:
    """Workers, nodes and the head die; a run that fits nowhere is refused at once, and counted against nobody."""
    world.home.mkdir()
    cluster = RayCluster(world.home / "engines.yaml")
    try:
        kinds = {
            "worker": lambda: kill_parent(world),
            "raylet": lambda: bool(supervisors(world.home)) and cluster.does("raylet"),
            "head": lambda: bool(supervisors(world.home)) and cluster.head(),
        }
        order = ["worker"] * world.number(17, 2) + ["raylet"] * world.number(9, 1) + ["head"] * world.number(3, 0)
        world.random.shuffle(order)
        verdict = injected(world, kinds, order, RayEngine)
        refused = not_fitting(world, cluster)
    finally:
        cluster.stop()
    note = f"Ray {version('ray')}; {verdict.note}; once a run that fits nowhere"
    return replace(verdict, faults=verdict.faults + 1, note=note, wrong=(*verdict.wrong, *refused))


class RayCluster:
    """A Ray cluster of three nodes, which this process and its children use; another one once its head has died.

    Args:
        options: file for the options of engines.
        jobs: jobs at a time; absent: as many as fit.
    """

    def __init__(self, options: Path, jobs: int | None = None) -> None:
        os.environ |= {"RAY_gcs_rpc_server_reconnect_timeout_s": "5"}  # a minute otherwise; here and in the cluster
        self._options = options
        self._jobs = jobs
        self._start()

    def _start(self) -> None:
        try:
            self._now = started.RayCluster()
        except started.NotInstalled as error:
            raise Skipped(str(error)) from None
        os.environ |= self._now.environment
        self.options(gpus=1)

    def options(self, gpus: int) -> None:
        """Write the options: GPUs of a run."""
        values = {"address": self._now.address, "gpus": gpus, "grace": 5, "host": "127.0.0.1", "jobs": self._jobs}
        self._options.write_text(json.dumps({"ray": values}))

    def does(self, order: str) -> bool:
        """Let the cluster do something to itself."""
        return self._now.does(order)

    def head(self) -> bool:
        """Kill the head, and when all that it knew has gone with it, start another cluster."""
        self.does("head")
        self.stop()
        self._start()
        return True

    def stop(self) -> None:
        """End all of it."""
        self._now.stop()


def not_fitting(world: World, cluster: RayCluster) -> list[str]:
    """Ask for more GPUs than any node has; return what was not as it should be."""
    cluster.options(gpus=3)
    plan = small_plan("infeasible", arms=1, seeds=1, steps=3)
    with process(refused, world.home, plan) as session:
        ended(session)
    with Reader.open(world.home) as reader:
        wrong = [a.submit_name for a in reader.attempts_of(reader.study("infeasible").id)]
    cluster.options(gpus=1)
    with process(work, world.home, plan, None, engine=RayEngine) as session:
        ended(session)
    return [f"{name} was queued although it fits nowhere" for name in wrong]


def refused(home: Path, plan: Plan) -> None:
    """Expect that a study is refused."""
    with suppress(TooLarge):
        work(home, plan, None, engine=RayEngine)
        raise AssertionError("a run that fits nowhere was taken")
