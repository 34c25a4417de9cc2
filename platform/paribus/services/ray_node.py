"""Runs one node of a Ray cluster here, and beside it a command that needs a node, such as the scheduler.

``python -m paribus.services.ray_node --head`` is the head, ``--address HEAD:PORT`` another node, and ``-- COMMAND`` a
command that starts when the node has joined. The node and the command end together: whatever restarts this process then
gets a node that belongs to the cluster, also after the head was lost. The nodes know each other by the token in the
file that ``RAY_AUTH_TOKEN_PATH`` names.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from types import FrameType

from paribus.engines.process import adopt_orphans, children, die_with_parent, end_orphans
from paribus.errors import MissingExtra, ParibusError, ServiceError
from paribus.home import read_secret
from paribus.masking import mask_output

TOKEN_FILE = "RAY_AUTH_TOKEN_PATH"  # noqa: S105 - a name
"""Ray's own variable: the file with the token of the cluster."""

_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
}
_OBJECTS = 100_000_000  # bytes; runs exchange files, and nothing through Ray's store of objects
_VITAL = {"raylet", "gcs_server"}
_LOOK_S, _JOIN_S, _RESOLVE_S = 0.5, 300.0, 60.0


def node_command(address: str, port: int, own_ip: str, cpus: int | None) -> list[str]:
    """Return Ray's command that starts a node and returns when the node has joined.

    Args:
        address: ``HOST:PORT`` of the head; empty: this is the head.
        port: port of the head, for the head itself.
        own_ip: address under which the other nodes reach this one.
        cpus: CPU cores for runs; ``None``: as many as Ray finds.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--disable-usage-stats"]
    command += ["--node-ip-address", own_ip, "--object-store-memory", str(_OBJECTS)]
    command += ["--address", address] if address else ["--head", "--port", str(port), "--include-dashboard", "false"]
    return command if cpus is None else [*command, "--num-cpus", str(cpus)]


def own_address(head: str) -> str:
    """Return this machine's address in the network of the head: there may be others, which the head can't reach.

    Args:
        head: ``HOST:PORT`` of the head; empty: this is the head, which is called by its host name.

    Raises:
        ServiceError: the name can't be resolved within a minute.
    """
    host, _, port = head.rpartition(":")
    until = time.monotonic() + _RESOLVE_S
    while True:
        try:
            if not head:
                return socket.gethostbyname(socket.gethostname())
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:  # sends nothing
                probe.connect((host, int(port)))
                return str(probe.getsockname()[0])
        except OSError as error:
            if time.monotonic() > until:
                raise ServiceError(
                    f"no way to {head or socket.gethostname()}: {error}. Is the head up, and in this network?"
                ) from error
            time.sleep(_LOOK_S)


def run_node(node: Sequence[str], command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start a node and then the command; when one of them ends or this process is asked to stop, end both.

    A command that is asked to stop gets all the time that it takes; one whose node is lost is killed, since the runs on
    other nodes go on without it, and the next scheduler takes them over.

    Returns:
        The exit status of the command; 0 for a node alone that is asked to stop, and 1 for one that is lost.

    Raises:
        ServiceError: the node can't join.
    """
    adopt_orphans()
    here, stopping = os.getpid(), False
    beside: subprocess.Popen[bytes] | None = None

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True
        if beside is not None:
            beside.terminate()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)
    try:
        vital = _join(node, environment)
        if command and not stopping:
            beside = subprocess.Popen(command, env=dict(environment), preexec_fn=lambda: die_with_parent(here))
            if stopping:  # the signal came before the command was known
                beside.terminate()
        while not (stopping and beside is None):
            if beside is not None and (status := beside.poll()) is not None:
                return 0 if stopping and status == -signal.SIGTERM else status
            if _ended(beside) & vital and not stopping:
                print("this node of the Ray cluster has ended, and its head may have; start it again", file=sys.stderr)  # noqa: T201
                return 1
            time.sleep(_LOOK_S)
        return 0
    finally:
        while not end_orphans(()):
            time.sleep(0.01)


def _join(node: Sequence[str], environment: Mapping[str, str]) -> set[int]:
    """Start the node; return the ids of its vital processes.

    Raises:
        ServiceError: it has not joined.
    """
    with TemporaryFile() as output:  # a pipe would end when the node does, which inherits it
        try:
            status = subprocess.run(
                node, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=_JOIN_S
            ).returncode
        except subprocess.TimeoutExpired:
            status = -1
        output.seek(0)
        lines = output.read().decode(errors="replace").strip().splitlines()
    if status != 0:
        why = f": {lines[-1][:200]}" if lines else ""
        raise ServiceError(f"the Ray node did not start{why}. Is the head up, and is the token the same?")
    vital = {pid for pid in children() if _name(pid) in _VITAL}
    if not vital:
        raise ServiceError("the Ray node ended right after its start. See its log in /tmp/ray/session_latest/logs.")
    return vital


def _ended(beside: subprocess.Popen[bytes] | None) -> set[int]:
    """Return the children that have ended since the last call, without the command."""
    ended = set()
    for pid in children() - ({beside.pid} if beside else set()):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG)[0]:
                ended.add(pid)
    return ended


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return ""


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is no port: a number from 1 to 65535")
    return int(text)


def _cores(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of cores: 0 or more")
    return int(text)


def _head(text: str) -> str:
    host, _, port = text.rpartition(":")
    if not host:
        raise argparse.ArgumentTypeError(f"{text!r} is no HOST:PORT: write it like ray-head:6379")
    _port(port)
    return text


def main(arguments: Sequence[str]) -> int:
    """Run a node; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m paribus.services.ray_node", description="A node of a Ray cluster.")
    kind = parser.add_mutually_exclusive_group(required=True)
    kind.add_argument("--head", action="store_true", help="make this node the head")
    kind.add_argument("--address", type=_head, help="HOST:PORT of the head to join")
    parser.add_argument("--port", type=_port, default=6379, help="port of the head")
    parser.add_argument("--cpus", type=_cores, help="cores for runs; default: all")
    parser.add_argument("command", nargs="*", help="what to start when the node has joined")
    chosen = parser.parse_args(arguments)
    try:
        named = os.environ.get(TOKEN_FILE)
        if not named:
            raise ServiceError(f"{TOKEN_FILE} is not set: it must name a file with the token of the cluster.")
        read_secret(Path(named), "token of the Ray cluster", ServiceError)
        if find_spec("ray") is None:
            raise MissingExtra("ray", "A node of a Ray cluster")
        head = chosen.address or ""
        node = node_command(head, chosen.port, own_address(head), chosen.cpus)
        return run_node(node, chosen.command, {**_ENVIRONMENT, **os.environ})
    except ParibusError as error:
        print(f"error {error.code}: {error}", file=sys.stderr)  # noqa: T201
        return error.exit_code


if __name__ == "__main__":
    mask_output()
    sys.exit(main(sys.argv[1:]))
