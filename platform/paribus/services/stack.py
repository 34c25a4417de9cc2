"""What `paribus up` runs on this machine: MLflow's server, the scheduler and the dashboard of one home folder."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from paribus.engines.base import load_engine
from paribus.engines.process import Identity
from paribus.errors import RunFolderError, ServiceError, install_command
from paribus.home import UP_FILE, at_home, make_home
from paribus.mlflow_sync.process import mlflow_is_installed
from paribus.run_folder.folder import read_json, write_json
from paribus.scheduler.home_lock import lock_owner
from paribus.scheduler.serve import explain_disk_errors
from paribus.services.health_checks import check_dashboard, check_mlflow, check_scheduler, time_limit
from paribus.services.supervisor import Service, Supervisor

HOST = "127.0.0.1"

LOGS = "services"
"""Folder in the home folder with the services' logs."""

_LOCK = "up.lock"
_CHECK_S = 2.0
_DASHBOARD = ("fastapi", "uvicorn", "plotly")


@dataclass(frozen=True, kw_only=True)
class UpSettings:
    """What `paribus up` is to run.

    Attributes:
        home: home folder.
        reports: folder for the reports of studies that end.
        engine: name of the engine.
        slots: runs at a time; ``None``: what the engine suggests.
        options: file with the options of engines; ``None``: that of the home folder.
        mlflow_port: port of MLflow's server.
        dashboard_port: port of the dashboard.
    """

    home: Path
    reports: Path
    engine: str = "local"
    slots: int | None = None
    options: Path | None = None
    mlflow_port: int = 5000
    dashboard_port: int = 8765


def bring_up(settings: UpSettings, say: Callable[[str], None]) -> None:
    """Run the services of a home folder until SIGINT, SIGTERM or SIGHUP.

    Raises:
        ServiceError: another process works in this home folder, or a port is taken.
        EngineError: there is no such engine.
        StoreError: the disk can't be written.
    """
    home = settings.home.resolve()
    load_engine(settings.engine)
    with ExitStack() as stack:
        stack.enter_context(explain_disk_errors(home))
        make_home(home)
        stack.enter_context(_only_one(home, settings))
        services = services_of(settings, os.environ, say)
        _refuse_taken_ports(services, settings)
        supervisor = Supervisor(services, home / LOGS, say)
        say(f"starting {', '.join(each.name for each in services)} for {home}; Ctrl-C stops all of them")
        supervisor.run(lambda: say(f"submit a study: paribus submit STUDY.yaml{at_home(home)}"))
        say("stopped")


def services_of(settings: UpSettings, environment: Mapping[str, str], say: Callable[[str], None]) -> list[Service]:
    """Return the services to run; ``say`` explains which are left out."""
    home = settings.home.resolve()
    shared = {**environment, "PARIBUS_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    found = []
    if named := environment.get("MLFLOW_TRACKING_URI"):
        say(f"mlflow: not started, since MLFLOW_TRACKING_URI names {named}")
    elif not mlflow_is_installed():
        say(f"mlflow: not installed, so metrics aren't copied to it: {install_command('mlflow')}")
    else:
        found.append(_mlflow(settings, home, shared))
        shared = {**shared, "MLFLOW_TRACKING_URI": found[0].address}
    found.append(_scheduler(settings, home, shared))
    if any(find_spec(name) is None for name in _DASHBOARD):
        say(f"dashboard: not installed: {install_command('dashboard')}")
    else:
        found.append(_dashboard(settings, home, shared))
    return found


def _mlflow(settings: UpSettings, home: Path, environment: Mapping[str, str]) -> Service:
    address = f"http://{HOST}:{settings.mlflow_port}"
    command = [sys.executable, "-m", "paribus.services.mlflow_server", "--store", f"sqlite:///{home / 'mlflow.db'}"]
    command += ["--artifacts", str(home / "mlartifacts"), "--host", HOST, "--port", str(settings.mlflow_port)]
    check = _timed(lambda: check_mlflow(address), "mlflow")
    return Service(name="mlflow", command=command, environment=environment, address=address, check=check, last=True)


def _scheduler(settings: UpSettings, home: Path, environment: Mapping[str, str]) -> Service:
    command = [sys.executable, "-m", "paribus", "scheduler", "--home", str(home), "--engine", settings.engine]
    command += ["--reports", str(settings.reports.resolve())]
    command += [] if settings.slots is None else ["--slots", str(settings.slots)]
    command += [] if settings.options is None else ["--engine-options", str(settings.options.resolve())]
    return Service(
        name="scheduler",
        command=command,
        environment=environment,
        address=str(home),
        check=_timed(lambda: check_scheduler(home), "scheduler"),
        patient=True,
        prints=True,
    )


def _dashboard(settings: UpSettings, home: Path, environment: Mapping[str, str]) -> Service:
    address = f"http://{HOST}:{settings.dashboard_port}/"
    command = [sys.executable, "-m", "paribus", "dashboard", "--home", str(home), "--host", HOST]
    command += ["--port", str(settings.dashboard_port)]
    check = _timed(lambda: check_dashboard(address, may_ask=True), "dashboard")
    return Service(name="dashboard", command=command, environment=environment, address=address, check=check)


def _timed(check: Callable[[], None], name: str) -> Callable[[], None]:
    def timed() -> None:
        with time_limit(_CHECK_S, name):
            check()

    return timed


def _refuse_taken_ports(services: list[Service], settings: UpSettings) -> None:
    """Check that the services can listen on their ports.

    Raises:
        ServiceError: they can't; all ports that are taken are named.
    """
    ports = {"mlflow": settings.mlflow_port, "dashboard": settings.dashboard_port}
    wanted = {each.name: ports[each.name] for each in services if each.name in ports}
    if len(set(wanted.values())) < len(wanted):
        raise ServiceError("MLflow and the dashboard can't share a port: change --mlflow-port or --dashboard-port.")
    taken = [(name, port) for name, port in wanted.items() if not _is_free(port)]
    if taken:
        shown = " and ".join(f"port {port} of {name} (--{name}-port)" for name, port in taken)
        raise ServiceError(f"another program listens on {HOST} {shown}: stop it, or choose another port.")


def _is_free(port: int) -> bool:
    try:
        socket.create_server((HOST, port)).close()
    except OSError:
        return False
    return True


@contextmanager
def _only_one(home: Path, settings: UpSettings) -> Iterator[None]:
    """Lock the home folder against a second `paribus up`.

    Raises:
        ServiceError: one runs already, or another process works in the folder.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(home / _LOCK)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise ServiceError(
            f"`paribus up`{_shown(home)} already runs the services of {home}. Stop it with Ctrl-C or SIGTERM first."
        ) from None
    try:
        if (owner := lock_owner(home)) is not None:
            raise ServiceError(f"{owner} works in {home}. Wait for it to end, or choose another folder with --home.")
        dashboard = f"http://{HOST}:{settings.dashboard_port}/"
        write_json(home / UP_FILE, {"process": Identity.of(os.getpid()).to_json(), "dashboard": dashboard})
        yield
    finally:
        (home / UP_FILE).unlink(missing_ok=True)
        lock.release()


def _shown(home: Path) -> str:
    try:
        here = read_json(home / UP_FILE)
        return f" (process {int(here['process']['pid'])}, dashboard {here['dashboard']})"
    except (RunFolderError, KeyError, TypeError, ValueError):
        return ""
