"""Starts MLflow's server with the options that it needs here, and ends all of its processes.

``python -m paribus.services.mlflow_server --store URI --artifacts FOLDER --host H --port N`` is what `paribus up` and
the compose file start. Each option has a reason:

* one worker: more of them answer each call 40 ms later, since their connections wait for delayed acknowledgements;
* no job runner: it starts a dozen processes and takes two gigabytes, for functions that Paribus does not use;
* named hosts: by default the server answers 403 to clients that call it by a host name;
* a larger connection pool: if it is exhausted, MLflow refuses points as if they were wrong.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from paribus.engines.process import adopt_orphans, die_with_parent, end_orphans
from paribus.errors import ParibusError, ServiceError
from paribus.home import read_secret
from paribus.masking import mask_output
from paribus.mlflow_sync.database_file import file_of, prepared

_ENVIRONMENT = {
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SQLALCHEMYSTORE_POOL_SIZE": "10",
    "MLFLOW_SQLALCHEMYSTORE_MAX_OVERFLOW": "20",
}
_STOP_S = 10.0


def server_command(store: str, artifacts: str, host: str, port: int, allowed: Sequence[str] = ()) -> list[str]:
    """Return MLflow's own command line.

    Args:
        store: URI of its database.
        artifacts: folder or URI for files.
        host: address to listen on.
        port: TCP port.
        allowed: names by which clients call it, besides this machine's.
    """
    hosts = ",".join(f"{name}:*" for name in (*allowed, "localhost", "127.0.0.1"))
    command = [sys.executable, "-m", "mlflow", "server", "--workers", "1", "--host", host, "--port", str(port)]
    command += ["--backend-store-uri", store, "--artifacts-destination", artifacts]
    return [*command, "--serve-artifacts", "--allowed-hosts", hosts]


def server_environment(environment: Mapping[str, str], password: str = "") -> dict[str, str]:
    """Return the environment of MLflow's server; the password of its database stands in no command line."""
    chosen = {**_ENVIRONMENT, **environment}
    chosen.pop("MLFLOW_TRACKING_URI", None)  # meant for clients
    return {**chosen, "PGPASSWORD": password} if password else chosen


def serve(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the server until it ends or this process is asked to stop; then end all that it started.

    Returns:
        The exit status: 0 if it was asked to stop.
    """
    adopt_orphans()
    here, stopping = os.getpid(), False
    process = subprocess.Popen(command, env=dict(environment), preexec_fn=lambda: die_with_parent(here))

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        process.terminate()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    while True:
        try:
            status = process.wait(_STOP_S if stopping else 0.5)
            break
        except subprocess.TimeoutExpired:
            if stopping:
                process.kill()
    while not end_orphans(()):
        pass
    return 0 if stopping else status


def main(arguments: Sequence[str]) -> int:
    """Start the server; return its exit status."""
    parser = argparse.ArgumentParser(prog="python -m paribus.services.mlflow_server", description="MLflow's server.")
    parser.add_argument("--store", required=True, help="URI of the database")
    parser.add_argument("--artifacts", required=True, help="folder or URI for files")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5000)
    parser.add_argument("--allow", action="append", default=[], help="name by which clients call it; repeatable")
    parser.add_argument("--password-file", type=Path, help="file with the password of the database")
    chosen = parser.parse_args(arguments)
    try:
        file = chosen.password_file
        password = read_secret(file, "password", ServiceError) if file else ""
        if (database := file_of(chosen.store)) is not None:
            with prepared(database):  # made at once or not at all, in write-ahead mode
                pass
        command = server_command(chosen.store, chosen.artifacts, chosen.host, chosen.port, chosen.allow)
        return serve(command, server_environment(os.environ, password))
    except ParibusError as error:
        print(f"error {error.code}: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code


if __name__ == "__main__":
    mask_output()
    sys.exit(main(sys.argv[1:]))
