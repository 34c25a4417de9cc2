"""Containers on this machine: images from Debian packages, podman, and Docker Compose through podman's socket."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import yaml

from compose.podman_service import PodmanService

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "compose"
"""Where `make test-compose` puts Docker Compose, and where the images' base is made."""

PROJECT = "paribus-test"
IMAGES = "localhost/paribus-test-"
MOUNTED = os.environ.get("CONTAINERS") == "mounted"
"""Whether `core` with this environment's packages, mounted, stands for `train`: that is, for an image with PyTorch."""

KINDS = {"base", "core", "mounted" if MOUNTED else "train", "postgres"}
"""Images that must be there."""

PACKAGES = Path(sysconfig.get_path("purelib"))
"""Where the packages of this environment are, here and in containers that have them mounted."""

# an ordinary PATH lacks the folders of programs for root; the base is made with these as well
os.environ["PATH"] = f"{os.environ.get('PATH', '/usr/bin:/bin')}:/usr/local/sbin:/usr/sbin:/sbin"

PATIENCE_S = 1800.0
"""Seconds for each command and each wait: a shared machine may be ten times slower than an idle one."""

INTERVAL_S = 30.0
"""Seconds between two checks of a healthy service, as in docker-compose.yml: each starts Python anew."""

# crun refuses machines with both versions of control groups; limits must lie below those of this process
_CONF = """
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=4096:4096"]
[network]
network_backend = "netavark"
"""
_VERSION = "import sysconfig; print(sysconfig.get_python_version())"
# usrmerge brings perl: 50 MB for what is done already
_PIN = "Package: usrmerge\nPin: release *\nPin-Priority: -1\n"


def missing() -> str:
    """Return why containers can't be started here; empty if they can."""
    if os.getuid() != 0:
        return "only root can start containers here"
    programs = ("mmdebstrap", "buildah", "podman", "runc", "nsenter")
    lacking = [name for name in programs if shutil.which(name) is None]
    if not (FOLDER / "docker-compose").exists():
        lacking.append("docker-compose")
    if lacking:
        return f"not installed: {', '.join(lacking)} (make test-compose installs them)"
    here, found = sysconfig.get_python_version(), run("/usr/bin/python3", "-c", _VERSION).strip() if MOUNTED else ""
    if MOUNTED and found != here:
        return f"CONTAINERS=mounted needs one Python: Debian's is {found}, and this one is {here}"
    mounts = ["-t", "tmpfs", "none", str(FOLDER)]
    tried = subprocess.run(["unshare", "--mount", "mount", *mounts], capture_output=True, text=True, check=False)
    return f"this machine lets nobody mount anything: {tried.stderr.strip()}" if tried.returncode else ""


def run(*command: str | Path, check: bool = True, timeout: float = PATIENCE_S, **named: object) -> str:
    """Run a command; return what it printed."""
    done = subprocess.run(
        [str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        timeout=timeout, **named,
    )  # fmt: skip
    assert not check or done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout[-4000:]}"
    return done.stdout


# ---- images ------------------------------------------------------------------------------------------


def build_images() -> dict[str, float]:
    """Make the base and all images in place of those of an earlier run; return the seconds that each took."""
    if old := [f"{IMAGES}{name}" for name in sizes()]:
        run("podman", "rmi", "--force", *old, env=environment())
    took = {}
    kinds = {"base": _base, "wheel": _target, "core": _target, "mounted": _mounted, "train": _target}
    kinds["postgres"] = _postgres
    for name, made in kinds.items():
        if name not in KINDS | {"wheel"}:
            continue
        begun = time.monotonic()
        made(name)
        took[name] = time.monotonic() - begun
    return took


def sizes() -> dict[str, float]:
    """Return the size of each image in MB."""
    shown = json.loads(run("podman", "images", "--format", "json", env=environment()).partition("[")[2].join(["[", ""]))
    return {
        name.removeprefix(IMAGES).removesuffix(":latest"): entry["Size"] / 1e6
        for entry in shown
        for name in entry.get("Names") or ()
        if name.startswith(IMAGES)
    }


def _base(_: str) -> None:
    """Make an image with Python and nothing else that the public base image would not have."""
    pin, archive = FOLDER / "no-usrmerge", FOLDER / "base.tar"
    pin.write_text(_PIN)
    archive.unlink(missing_ok=True)
    hook = f'mkdir -p "$1/etc/apt/preferences.d" && cp {pin} "$1/etc/apt/preferences.d/"'
    options = ["--variant=minbase", "--include=usr-is-merged,python3,python3-venv,ca-certificates"]
    options += [
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        f"--setup-hook={hook}",
        "--dpkgopt=force-unsafe-io",
    ]
    options += [f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in ("doc", "man", "locale")]
    options += ['--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"']
    codename = re.search(r"^VERSION_CODENAME=(\w+)", Path("/etc/os-release").read_text(), re.MULTILINE)
    run("mmdebstrap", *options, codename[1] if codename else "stable", archive)
    run("podman", "import", "--quiet", archive, f"{IMAGES}base", env=environment())
    archive.unlink()


def _target(name: str) -> None:
    _bud("--target", name, "-t", f"{IMAGES}{name}", *pip_options(), ROOT)


def _mounted(name: str) -> None:
    """Make `core` look for more packages where those of this environment are mounted: PyTorch takes a minute else."""
    here = Path(__file__).parent
    named = ["--build-arg", f"CORE={IMAGES}core", "--build-arg", f"PACKAGES={PACKAGES}"]
    _bud("-t", f"{IMAGES}{name}", *named, "-f", here / "Dockerfile.mounted", here)


def _postgres(name: str) -> None:
    here = Path(__file__).parent
    _bud("-t", f"{IMAGES}{name}", "-f", here / "Dockerfile.postgres", here)


def _bud(*arguments: str | Path) -> None:
    shared = ["--layers", "--isolation", "chroot", "--build-arg", f"BASE={IMAGES}base"]
    shared += ["--volume", "/etc/resolv.conf:/etc/resolv.conf:ro"]
    run("buildah", "bud", *shared, *arguments, env=environment())


def pip_options() -> list[str]:
    """Return options that give a build this machine's way to the package index: its settings, and files they name."""
    settings = dict(
        line.partition("=")[::2]
        for line in run(sys.executable, "-m", "pip", "config", "list").splitlines()
        if line.startswith(("global.", "install.", ":env:."))
    )
    values = {key.rpartition(".")[2]: str(ast.literal_eval(value)) for key, value in settings.items()}
    file = FOLDER / "pip.conf"
    lines = [f"{key} = {value.replace(chr(10), ' ')}" for key, value in values.items()]
    file.write_text("\n".join(["[global]", *lines, ""]))
    named = {
        Path(found) for value in values.values() for found in re.findall(r"(?:(?<=file://)|(?<!\S))/[\w./-]+", value)
    }
    folders = {Path(*path.parts[:3]) for path in named if path.exists()}  # an index may link to its neighbours
    mounts = [f"{file}:/etc/pip.conf:ro", *(f"{folder}:{folder}:ro" for folder in sorted(folders))]
    return [word for mount in mounts for word in ("--volume", mount)]


def environment() -> dict[str, str]:
    """Return the environment of podman and buildah."""
    file = FOLDER / "containers.conf"
    file.write_text(_CONF)
    return {**os.environ, "CONTAINERS_CONF": str(file)}


# ---- containers --------------------------------------------------------------------------------------


def docker_compose(
    files: Sequence[Path], profile: str, *arguments: str, environment: Mapping[str, str], check: bool = True
) -> str:
    """Run Docker Compose with these files; return what it printed."""
    command = [*_program(files), "--profile", profile, *arguments]
    return run(*command, check=check, env=dict(environment), cwd=ROOT)


def _program(files: Sequence[Path]) -> list[str]:
    """Return the words that start Docker Compose with these files."""
    words = [word for file in files for word in ("-f", str(file))]
    return [str(FOLDER / "docker-compose"), "-p", PROJECT, *words]


def _mounts(file: Path) -> Path:
    """Write a file for Docker Compose that has the image `mounted`, and its packages, in place of `train`."""
    named = yaml.safe_load((ROOT / "docker-compose.test.yml").read_text())["services"]
    ours = [name for name, service in named.items() if service["image"] == f"{IMAGES}train"]
    changed = {"image": f"{IMAGES}mounted", "volumes": [f"{PACKAGES}:{PACKAGES}:ro"]}
    file.write_text(json.dumps({"services": dict.fromkeys(ours, changed)}))
    return file


class Compose:
    """A project of Docker Compose, with podman as its engine.

    Args:
        folder: for secrets and the socket.
        studies: folder with study files.
        port: port of the dashboard.
        profile: of the services.
    """

    containers = True

    def __init__(self, folder: Path, studies: Path, port: int, profile: str) -> None:
        file = folder / "podman.sock"
        socket = f"unix://{file}"
        self.secrets, self.studies, self.profile = folder / "secrets", studies, profile
        self._files = [ROOT / "docker-compose.yml", ROOT / "docker-compose.test.yml"]
        self._files += [_mounts(folder / "mounts.yml")] if MOUNTED else []
        self.address = f"http://127.0.0.1:{port}/"
        self.scheduler = "scheduler" if profile == "cpu" else f"scheduler-{profile}"
        self.environment = {
            **environment(),
            "DOCKER_HOST": socket,
            "PARIBUS_SECRETS": str(self.secrets),
            "PARIBUS_STUDIES": str(studies),
            "PARIBUS_PORT": str(port),
        }
        self._service = PodmanService(file, ["podman", "system", "service", "--time", "0", socket], self.environment)
        self._remove()  # what tests that were killed have left: a database that is there asks for no password
        self._over = threading.Event()
        self._checks = threading.Thread(target=self._run_checks)
        self._checks.start()

    def docker(self, *arguments: str, check: bool = True, **named: str) -> str:
        """Run Docker Compose with the files of the tests; return what it printed."""
        given = {**self.environment, **named}
        return self._service.call(
            lambda: docker_compose(self._files, self.profile, *arguments, check=check, environment=given)
        )

    def type(self, line: str, folder: Path) -> str:
        """Type a line that begins with `docker compose` into a shell in a folder; return what it printed."""
        script = f'docker() {{ shift; {shlex.join(_program(self._files))} "$@"; }}; {line}'
        named = {"cwd": folder, "env": self.environment, "stdin": subprocess.DEVNULL}
        return self._service.call(lambda: run("bash", "-c", script, **named))

    def podman(self, *arguments: str, check: bool = True) -> str:
        """Run podman; return what it printed."""
        return run("podman", *arguments, check=check, env=self.environment)

    def up(self) -> None:
        """Start all services, from the images that are there."""
        self.docker("up", "--detach", "--no-build")

    def down(self) -> None:
        """Stop and remove all services; the volumes stay."""
        self.docker("down")

    def start(self, service: str) -> None:
        """Start a service that was stopped."""
        self.docker("start", service)

    def stop(self, service: str) -> None:
        """Stop a service by force; a container that dies otherwise is started again."""
        self.docker("stop", "--timeout", "0", service)

    def restart(self, service: str) -> None:
        """Stop a service, and start it."""
        self.docker("restart", "--timeout", "10", service)

    def kill(self, service: str) -> None:
        """Kill the first process of a container, and so all of it."""
        os.kill(self.pid(service), signal.SIGKILL)

    def run(self, service: str, secrets: Path) -> str:
        """Run a service alone, with other secrets; return what it printed."""
        return self.docker("run", "--rm", "--no-deps", service, check=False, PARIBUS_SECRETS=str(secrets))

    def inside(self, service: str, *command: str, check: bool = True, given: str = "") -> str:
        """Run a command in the container of a service, with an input; return what it printed."""
        name = self.name(service)
        return run("podman", "exec", "-i", name, *command, check=check, env=self.environment, input=given)

    def name(self, service: str) -> str:
        """Return the name of the container of a service."""
        return f"{PROJECT}-{service}-1"

    def pid(self, service: str) -> int:
        """Return the process id of a service on this machine; 0 if it does not run."""
        shown = self.podman("inspect", "--format", "{{.State.Pid}}", self.name(service), check=False).split()
        return int(shown[-1]) if shown and shown[-1].isdigit() else 0

    def healthy(self, services: Iterable[str]) -> bool:
        """Return whether services are healthy."""
        shown = self.podman("ps", "--format", "{{.Names}} {{.Status}}")
        return all(re.search(rf"^{self.name(each)} .*\(healthy\)", shown, re.MULTILINE) for each in services)

    def ports(self, service: str) -> set[int]:
        """Return the ports on which a service listens for others, inside its container."""
        shown = run("nsenter", "-t", str(self.pid(service)), "-n", "ss", "-Htln")
        places = [line.split()[3].rpartition(":") for line in shown.splitlines()]
        return {int(port) for address, _, port in places if not address.startswith("127.")}

    def outside(self) -> list[str]:
        """Return the addresses and ports of the containers that are open on this machine."""
        shown = run("ss", "-Htlnp").splitlines()
        ours = [line.split()[3] for line in shown if re.search(r'"(conmon|podman|netavark|rootlessport)"', line)]
        published = re.findall(r"(\S+)->", self.podman("ps", "--format", "{{.Names}} {{.Ports}}"))
        assert ours == published
        return ours

    def _run_checks(self) -> None:
        """Run the health checks, as systemd would: of what is not healthy often, else as often as the file says."""
        checked: dict[str, float] = {}
        while not self._over.wait(5):
            shown = self.podman("ps", "--format", "{{.Names}} {{.Status}}", check=False)
            for name, _, status in (line.partition(" ") for line in shown.splitlines()):
                fresh = "(healthy)" in status and time.monotonic() - checked.get(name, 0.0) < INTERVAL_S
                if name.startswith(PROJECT) and "migrate" not in name and not fresh:
                    self.podman("healthcheck", "run", name, check=False)
                    checked[name] = time.monotonic()

    def close(self) -> None:
        """Remove all of the project."""
        self._remove()
        self._over.set()
        self._checks.join()
        self._service.stop()

    def _remove(self) -> None:
        """Stop and remove all services, and their volumes."""
        self.docker("down", "--volumes", "--timeout", "5", check=False)
