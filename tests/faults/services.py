"""F25: the services of `paribus up` are killed one by one; then the terminal is closed, and nothing is left."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from faults import judge
from faults.disks import mounted
from faults.judge import Verdict
from faults.storm import STUDY, _below, _command_line, _not_mirrored
from faults.world import Skipped, World, kill, until
from paribus.store.reader import Reader
from paribus.store.states import TERMINAL

PARTS = {
    "mlflow": "paribus.services.mlflow_server",
    "MLflow's own process": "mlflow server",
    "scheduler": "paribus scheduler",
    "dashboard": "paribus dashboard",
}
"""What is killed, by a part of its command line."""


class Up:
    """`paribus up` in a session of its own, with its output in a file."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.ports = _free_ports()
        self.output = home.parent / "up.log"
        self.process = self.start()

    def command(self) -> list[str]:
        """Return the command line."""
        words = [sys.executable, "-m", "paribus", "up", "--home", str(self.home), "--slots", "4"]
        return [*words, "--mlflow-port", str(self.ports[0]), "--dashboard-port", str(self.ports[1])]

    def start(self) -> subprocess.Popen[bytes]:
        """Start it."""
        with self.output.open("ab") as log:
            return subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.home.parent,
                start_new_session=True,
            )  # fmt: skip

    def refused(self) -> str:
        """Start it where it can't work; return the one line of its refusal, or what else came."""
        done = subprocess.run(
            self.command(), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120,
            cwd=self.home.parent,
        )  # fmt: skip
        lines = done.stderr.strip().splitlines()
        return lines[0] if done.returncode == 1 and len(lines) == 1 else f"exit status {done.returncode}: {lines}"

    def working(self) -> Counter[str]:
        """Return how often each service was ready."""
        return Counter(re.findall(r"^(\w+): works after", self.output.read_text(errors="replace"), re.MULTILINE))

    def pid_of(self, part: str) -> int:
        """Return the process of a part; 0 if it does not run."""
        return next((p for p in _below(self.process.pid) if PARTS[part] in _command_line(p)), 0)


def services(world: World) -> Verdict:
    """Kill each part in turn while a study runs, then close the terminal; nothing is lost, and nothing is left."""
    world.orders(json.dumps({"step_s": 0.1, "prepare_s": 1.0}))
    world.home.mkdir(parents=True)
    study, wrong, kills = world.home.parent / "study.yaml", list[str](), Counter[str]()
    study.write_text(STUDY.replace("steps: 15", "steps: 40"))
    up = Up(world.home)
    try:
        until(lambda: up.working().keys() == {"mlflow", "scheduler", "dashboard"})
        _paribus("submit", str(study), "--home", str(world.home))
        if "already runs the services" not in (said := up.refused()):
            wrong.append(f"a second one in the same home folder: {said}")
        for number in range(world.number(20 * len(PARTS), len(PARTS))):
            part = list(PARTS)[number % len(PARTS)]
            _kill_part(world, up, part)
            kills[part] += 1
        until(lambda: _is_over(world))
        up.process.send_signal(signal.SIGHUP)
        if (status := up.process.wait(600)) != 0:
            wrong.append(f"SIGHUP: exit status {status}: {up.output.read_text(errors='replace')[-1000:]}")
        wrong += _left(world.home, "after SIGHUP")
        wrong += [*_port_taken(up), *_killed(up)]
        full = _disk_full(up)
        wrong += full or []
    finally:
        kill(up.process.pid)
        up.process.wait()
    s = world.snapshot()
    wrong += [*judge.broken_records(s, world.home), *_not_mirrored(s, world.home)]
    note = ", ".join(f"{name} {n}" for name, n in kills.items())
    disk = "a full disk" if full is not None else "no full disk, which takes root here"
    return judge.judge(
        s, trials=len(s.runs), faults=sum(kills.values()) + 1, home=world.home, wrong=wrong,
        note=f"killed: {note}, `paribus up` itself 1; also SIGHUP, a second one, a taken port, {disk}",
    )  # fmt: skip


def _kill_part(world: World, up: Up, part: str) -> None:
    """Kill a part at a random time, and wait until it works again."""
    victim = until(lambda: up.pid_of(part))
    before, service = up.working(), part if part in ("scheduler", "dashboard") else "mlflow"
    time.sleep(world.random.uniform(0.0, 1.0))
    kill(victim)
    until(lambda: up.working()[service] > before[service])


def _port_taken(up: Up) -> list[str]:
    """Start it where its ports are taken."""
    with socket.create_server(("127.0.0.1", up.ports[1])):
        said = up.refused()
    named = f"port {up.ports[1]} of dashboard (--dashboard-port)" in said
    return [*([] if named else [f"a taken port: {said}"]), *_left(up.home, "after a taken port")]


def _killed(up: Up) -> list[str]:
    """Kill `paribus up` by force: its services stop by themselves."""
    before = up.working()
    up.process = up.start()
    until(lambda: all(up.working()[name] > before[name] for name in ("mlflow", "scheduler", "dashboard")))
    kill(up.process.pid)
    up.process.wait()
    with suppress(AssertionError):
        _until_none(up.home, 60.0)
    return _left(up.home, "after SIGKILL")


def _disk_full(up: Up) -> list[str] | None:
    """Start it on a full disk: one sentence, or a service that says so; ``None`` if no small disk can be made here."""
    folder = up.home.parent / "full"
    try:
        with mounted(folder):
            with suppress(OSError), (folder / "filler").open("wb") as file:
                while True:
                    file.write(bytes(1 << 16))
                    file.flush()
            home, up.home = up.home, folder / "home"
            try:
                said = up.refused()
            finally:
                up.home = home
    except Skipped:
        return None
    return [] if "No space left" in said else [f"a full disk: {said}"]


def _is_over(world: World) -> bool:
    with Reader.open(world.home) as reader:
        return all(state in TERMINAL for state in reader.counts(reader.study("storm").id))


def _left(home: Path, when: str) -> list[str]:
    """Return what still runs for a home folder."""
    try:
        _until_none(home, 30.0)  # a scheduler that was asked to end gives its runs and the copies their time
    except AssertionError as error:
        return [f"{when}: {error}"]
    return []


def _until_none(home: Path, limit_s: float) -> None:
    end, mark = time.monotonic() + limit_s, f"PARIBUS_HOME={home}".encode()
    while left := [pid for pid in _users_processes() if mark in _environment(pid) and pid != os.getpid()]:
        if time.monotonic() > end:
            raise AssertionError(f"still running: {[_command_line(pid) for pid in left]}")
        time.sleep(0.1)


def _users_processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").glob("[0-9]*")]


def _environment(pid: int) -> list[bytes]:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return []


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        return one.getsockname()[1], two.getsockname()[1]


def _paribus(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "paribus", *arguments], capture_output=True, text=True, check=False, timeout=300
    )
    if done.returncode != 0:
        raise AssertionError(done.stdout + done.stderr)
