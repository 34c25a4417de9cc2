"""The nodes of a run beyond the first: a process on each, started by the engine's words, watched, and ended with it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch.distributed as dist

from paribus.contract import PREEMPTED
from paribus.engines.base import ON_NODE
from paribus.engines.process import handled
from paribus.errors import ParibusError, RunnerError
from paribus.failures import KILLED
from paribus.run_folder.phases import DUMP, STOP
from paribus_runners.native.world import Address

COMMAND = (sys.executable, "-P", "-m", "paribus_runners.native.node")
"""What runs on another node."""
_AGAIN_S = 1.0
_STOPPED = (PREEMPTED, KILLED + STOP, KILLED + signal.SIGTERM)


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """The processes of a run.

    Attributes:
        folder: the folder of the attempt.
        size: number of processes, above 1.
        nodes: number of nodes, of which each has an equal part.
        cpu: whether they train on a CPU, also where there is a GPU.
        address: where those of several nodes meet; ``None``: there is one node.
    """

    folder: str
    size: int
    nodes: int
    cpu: bool
    address: Address | None = None

    def of(self, node: int) -> range:
        """Return the ranks of a node."""
        here = self.size // self.nodes
        return range(node * here, (node + 1) * here)


class OtherNode:
    """What runs on another node, as the first one sees it.

    Args:
        number: which node, from 1.
        words: what starts a command there; ``{node}`` is its number.
        ranks: the processes of the run.
        store: a store of ``torch.distributed``, where it leaves the reason if it fails.
        environment: of the command.
    """

    def __init__(self, number: int, words: str, ranks: Ranks, store: Any, environment: Mapping[str, str]) -> None:
        self._who, self._number, self._store = f"node {number + 1} of {ranks.nodes}", number, store
        self._asked = float("-inf")
        command = [part.replace("{node}", str(number)) for part in shlex.split(words)]
        settings = json.dumps({**asdict(ranks), "node": number})
        # its own session: a SIGTERM to this group asks for a checkpoint, and would end the program at once
        self._process = subprocess.Popen(
            [*command, *COMMAND, settings], env=environment, stdin=subprocess.DEVNULL, start_new_session=True
        )

    def running(self) -> bool:
        """Return whether it has not ended."""
        return self._process.poll() is None

    @property
    def stopped(self) -> bool:
        """Whether it ended because it was asked to."""
        return self._status() in _STOPPED

    def ask_to_stop(self) -> None:
        """Ask its processes for a checkpoint, again and again: a signal that comes before they start is lost."""
        if self.running() and time.monotonic() >= self._asked + _AGAIN_S:
            self._asked = time.monotonic()
            self._process.send_signal(STOP)

    def dump(self) -> None:
        """Let its processes write their stacks."""
        if self.running():
            self._process.send_signal(DUMP)

    def raise_failure(self) -> None:
        """Raise its error if it has failed.

        Raises:
            RunnerError: one of its processes has failed.
            SystemExit: with more than :data:`KILLED` if a signal has killed one of them, or the node is lost.
        """
        code = self._status()
        if not code or self.stopped:
            return
        if not self._store.check([ended(self._number)]):
            sys.stderr.write(f"{self._who} is lost: what starts processes there ended with exit status {code}\n")
            raise SystemExit(KILLED + signal.SIGHUP)
        if code > KILLED:
            sys.stderr.write(f"a process on {self._who} was killed by signal {code - KILLED}\n")
            raise SystemExit(code)
        raise RunnerError(self._store.get(failed(self._number)).decode())

    def _status(self) -> int | None:
        """Return its exit status, by its own word if there is one: what started it may end with another."""
        code = self._process.poll()
        if code is not None and self._store.check([ended(self._number)]):
            return int(self._store.get(ended(self._number)))
        return code

    def end(self) -> None:
        """Kill what is left there."""
        self._process.kill()
        self._process.wait()


def failed(number: int) -> str:
    """Return the name of the reason why a node has failed, in the store where the nodes meet."""
    return f"failed/{number}"


def ended(number: int) -> str:
    """Return the name of the exit status of what runs on a node, in that store."""
    return f"ended/{number}"


@contextmanager
def other_nodes(ranks: Ranks, environment: Mapping[str, str]) -> Iterator[tuple[Ranks, tuple[OtherNode, ...]]]:
    """Start the processes on the other nodes, and kill them at the end; yield where all meet, too.

    Raises:
        ParibusError: this job has one node.
        RunnerError: this machine's name has no address.
    """
    words = os.environ.get(ON_NODE)
    if not words:
        raise ParibusError(f"this run needs {ranks.nodes} nodes, and this job has one: start it by `slurm` or `ray`")
    host = socket.gethostname()
    try:
        store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    except RuntimeError as error:
        raise RunnerError(f"the processes cannot meet at {host}, the name of this machine: {error}") from error
    ranks = replace(ranks, address=(host, store.port))
    others: list[OtherNode] = []

    def dump() -> None:
        for other in others:
            other.dump()

    with handled([DUMP], dump):
        try:
            others.extend(OtherNode(n, words, ranks, store, environment) for n in range(1, ranks.nodes))
            yield ranks, tuple(others)
        finally:
            for other in others:
                other.end()
