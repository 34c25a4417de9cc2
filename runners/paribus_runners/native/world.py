"""The processes of one run: each does its share of the work, and all put the results together alike.

Every process holds the same networks, draws the same problems and makes the same decisions, so that what is small
(filter, advantages, the order of minibatches) is computed by each and only what is large is dealt out: sampling,
grading and forward passes. Results are gathered in a fixed order; gradients are summed, because the weight of each
token is fixed against the whole optimizer batch before it is dealt out.
"""

from __future__ import annotations

import os
import pickle
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from accelerate import PartialState
from torch import Tensor

from paribus.errors import RunnerError
from paribus.failures import KILLED
from paribus.run_folder.phases import Phases

T = TypeVar("T")

Address = tuple[str, int]
"""Name of a node, and a TCP port."""

BUCKET = 2**26
"""Numbers of a gradient that are summed at once: bounds the memory of the copy."""
LONGEST_PAUSE_S = 0.001
"""Seconds between two looks at whether the other processes have arrived."""
LOST_S = 20.0
"""Seconds after which a process that has lost another ends by itself; their parent kills it before."""
MEETING = timedelta(minutes=10)
"""Time for all processes to start, import torch and meet."""
FOR_EVER = timedelta(days=365)
"""No process is too slow: their parent sees one that dies, and generation may take hours."""


def at(address: Address) -> Any:
    """Return the store of ``torch.distributed`` at an address, where the processes of several nodes meet.

    Raises:
        SystemExit: it has not answered within :data:`MEETING`; as after a signal from outside.
    """
    try:
        return dist.TCPStore(*address, is_master=False, timeout=MEETING)  # type: ignore[attr-defined]
    except RuntimeError as error:
        there = f"the first node of the run at {address[0]}, port {address[1]}"
        raise outage(f"{socket.gethostname()} cannot reach {there}: {error}") from error


def outage(message: str) -> SystemExit:
    """Say that the network between the nodes is the cause, and return what ends a run as a signal from outside does."""
    sys.stderr.write(f"{message}\n")
    return SystemExit(KILLED + signal.SIGHUP)


class World:
    """The processes of a run as one of them sees them; by default there is only one.

    Attributes:
        rank: which of them this is, from 0. The first one writes all files.
        rank_here: which of those on this node.
        size: how many there are.
        nodes: on how many nodes.
        elsewhere: whether the first one is on another node.
        while_waiting: called again and again while others have not arrived; it may raise an exception to leave.
        phases: what this process is doing, for the supervisor.
    """

    def __init__(self, rank: int = 0, size: int = 1, nodes: int = 1) -> None:
        self.rank, self.size, self.nodes = rank, size, nodes
        self.rank_here, self.elsewhere = rank % (size // nodes), rank >= size // nodes
        self.while_waiting: Callable[[], None] = lambda: None
        self.phases = Phases()
        self._plain = dist.new_group(backend="gloo", timeout=FOR_EVER) if size > 1 else None

    @classmethod
    def join(cls, meeting: Path | Address, rank: int, size: int, *, cpu: bool, nodes: int = 1) -> World:
        """Meet the other processes, and take a GPU of its own unless on a ``cpu``.

        On one node they meet over a file, and their sockets are on the loopback interface: no port is open to others.
        On several they meet at the address, and all that reaches their ports is trusted, as ``torch.distributed`` does.

        Raises:
            RunnerError: there are fewer GPUs than processes, or the others have not come within :data:`MEETING`.
            SystemExit: the others on several nodes have not come, or cannot be reached.
        """
        here = size // nodes
        if not cpu and (found := torch.cuda.device_count()) < here:
            each = " on each node" if nodes > 1 else ""
            raise RunnerError(
                f"this run trains in {here} processes{each}, each on a GPU of its own, and PyTorch finds {found} on "
                "this machine: set `resources.gpus` to what it has, or install a build of PyTorch for its GPUs"
            )
        named: dict[str, int | str] = {"RANK": rank, "LOCAL_RANK": rank % here}
        named |= {"WORLD_SIZE": size, "LOCAL_WORLD_SIZE": here}
        named |= {} if isinstance(meeting, Path) else {"MASTER_ADDR": meeting[0], "MASTER_PORT": meeting[1]}
        os.environ.update({name: str(value) for name, value in named.items()})  # the names that accelerate reads
        if sys.platform == "linux" and isinstance(meeting, Path):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # as :func:`.launch.threads`; accelerate warns without it
        # no `init_method`: torch does not decode the address of a path with a space, % or letters beyond ASCII
        store = dist.FileStore(str(meeting), size) if isinstance(meeting, Path) else at(meeting)  # type: ignore[attr-defined]
        store.set(f"here/{rank}", "")
        try:
            store.wait([f"here/{other}" for other in range(size)], MEETING)
        except RuntimeError as error:
            waited = f"process {rank} of {size} has waited {MEETING.total_seconds():g} s for the others to start"
            raise (RunnerError(waited) if nodes == 1 else outage(waited)) from error
        try:
            PartialState(cpu=cpu, store=store, rank=rank, world_size=size, timeout=FOR_EVER)
            return cls(rank, size, nodes)
        except RuntimeError as error:
            if nodes == 1:
                raise
            raise outage(
                f"{socket.gethostname()} cannot reach the other nodes of the run: {error}. Set GLOO_SOCKET_IFNAME and "
                "NCCL_SOCKET_IFNAME to the network that joins them (docs/howto/slurm.md)"
            ) from error

    @property
    def writes(self) -> bool:
        """Whether this process writes the files of the run."""
        return self.rank == 0

    def turns(self, count: int) -> range:
        """Return which of ``count`` items are this process's if they are dealt one by one."""
        return range(self.rank, count, self.size)

    def share(self, costs: Sequence[int]) -> range:
        """Return which items are this process's if each gets a run of neighbours of about equal cost; may be none."""
        return self.shares(costs)[self.rank]

    def shares(self, costs: Sequence[int]) -> list[range]:
        """Return which items each process gets by :meth:`share`."""
        total, before, found = max(1, sum(costs)), 0, [list[int]() for _ in range(self.size)]
        for i, cost in enumerate(costs):
            found[min(self.size - 1, (2 * before + cost) * self.size // (2 * total))].append(i)
            before += cost
        return [range(mine[0], mine[-1] + 1) if mine else range(0) for mine in found]

    def gather(self, value: T) -> list[T]:
        """Return what each process passed, in the order of the ranks; all must call."""
        if self.size == 1:
            return [value]
        data = pickle.dumps(value)
        lengths = [torch.zeros(1, dtype=torch.long) for _ in range(self.size)]
        self.finish(dist.all_gather(lengths, torch.tensor([len(data)]), group=self._plain, async_op=True))
        longest = int(max(lengths))
        mine = torch.frombuffer(bytearray(data.ljust(longest)), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in lengths]
        self.finish(dist.all_gather(found, mine, group=self._plain, async_op=True))
        return [pickle.loads(x[: int(n)].numpy().tobytes()) for x, n in zip(found, lengths, strict=True)]  # noqa: S301 - our own

    def sum_gradients(self, parameters: Sequence[Tensor]) -> None:
        """Replace the gradient of each parameter by the sum over all processes; it stays ``None`` if none has one."""
        if self.size == 1:
            return
        there = torch.tensor([p.grad is not None for p in parameters], dtype=torch.int32)
        self.finish(dist.all_reduce(there, group=self._plain, async_op=True))
        for bucket in _buckets([p for p, count in zip(parameters, there.tolist(), strict=True) if count]):
            flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in bucket])
            self.finish(dist.all_reduce(flat, async_op=True))
            for p, total in zip(bucket, torch.split(flat, [p.numel() for p in bucket]), strict=True):
                p.grad = total.view_as(p).clone()

    def send(self, values: Tensor, owner: int) -> None:
        """Give all processes what the process ``owner`` has in ``values``, a contiguous tensor; all must call."""
        self.finish(dist.broadcast(values, owner, async_op=True))

    def finish(self, work: dist.Work | None) -> None:
        """Wait for the other processes, and look meanwhile whether the run must stop.

        Raises:
            RunnerError: another process is gone, and their parent has not killed this one.
            SystemExit: the same on several nodes, where the network may be the cause.
        """
        assert work is not None
        pause = 1e-5
        while not work.is_completed():
            self.while_waiting()
            self.phases.wait(pause >= LONGEST_PAUSE_S)
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
        self.phases.wait(False)
        try:
            work.wait()
        except RuntimeError as error:
            until = time.monotonic() + LOST_S
            while time.monotonic() < until:
                self.while_waiting()
                time.sleep(LONGEST_PAUSE_S)
            lost = f"process {self.rank} of {self.size} has lost another one: {error}"
            raise (RunnerError(lost) if self.nodes == 1 else outage(lost)) from error


def _buckets(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for parameter in parameters:
        if bucket and sum(p.numel() for p in bucket) + parameter.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
