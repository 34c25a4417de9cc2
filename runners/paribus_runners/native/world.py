"""The processes of one run: each does its share of the work, and all put the results together alike.

Every process holds the same networks, draws the same problems and makes the same decisions, so that what is small
(filter, advantages, the order of minibatches) is computed by each and only what is large is dealt out: sampling,
grading and forward passes. Results are gathered in a fixed order; gradients are summed, because the weight of each
token is fixed against the whole optimizer batch before it is dealt out.

With ``compute.sampling_processes`` they are two teams, each of which shares its work in this way: one trains on the
rollouts of a step while the other samples those of a later one. The team that samples has no optimizer, and gets the
weights after each step.
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


class Teams:
    """The two teams of a run as a process sees them, with what joins them: a group of all processes.

    That group is none of ``torch.distributed``'s own, which are parts of its one world. This world is the team, so that
    what expects a world (FSDP2, vLLM) knows nothing of the other team.

    Args:
        number: which process of the run this is.
        everyone: how many there are.
        samples: whether it is of the team that samples.
        store: where all of them meet.

    Attributes:
        group: all of them.
        store: where the team meets.
    """

    def __init__(self, number: int, everyone: int, *, samples: bool, store: Any) -> None:
        self.number, self.everyone, self.samples = number, everyone, samples
        self.group: Any = dist.ProcessGroupGloo(_within("all", store), number, everyone, FOR_EVER)
        self.store = _within("samplers" if samples else "learners", store)


class World:
    """The processes of a run as one of them sees them; by default there is only one.

    Attributes:
        rank: which of them this is, from 0. The first one writes all files.
        rank_here: which of those on this node.
        size: how many there are.
        nodes: on how many nodes.
        elsewhere: whether the first one is on another node.
        number: which of the whole run this is, if they are two teams; ``rank`` and ``size`` are those of a team then.
        everyone: how many the run has.
        trains: whether this one trains.
        samples: whether this one samples.
        while_waiting: called again and again while others have not arrived; it may raise an exception to leave.
        phases: what this process is doing, for the supervisor.
    """

    def __init__(self, rank: int = 0, size: int = 1, nodes: int = 1, teams: Teams | None = None) -> None:
        self.rank, self.size, self.nodes = rank, size, nodes
        self.number, self.everyone = (rank, size) if teams is None else (teams.number, teams.everyone)
        self.trains, self.samples = teams is None or not teams.samples, teams is None or teams.samples
        here = self.everyone // nodes
        self.rank_here, self.elsewhere = self.number % here, self.number >= here
        self.while_waiting: Callable[[], None] = lambda: None
        self.phases = Phases()
        self._plain: Any = dist.new_group(backend="gloo", timeout=FOR_EVER) if size > 1 else None
        self._all: Any = self._plain if teams is None else teams.group

    @classmethod
    def join(
        cls, meeting: Path | Address, rank: int, size: int, *, cpu: bool, nodes: int = 1, samplers: int = 0
    ) -> World:
        """Meet the other processes, of which the last ``samplers`` sample; take a GPU of its own unless on a ``cpu``.

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
        first = size - samplers if rank >= size - samplers else 0
        own, team = rank - first, samplers if first else size - samplers
        named: dict[str, int | str] = {"RANK": own, "LOCAL_RANK": rank % here}
        named |= {"WORLD_SIZE": team, "LOCAL_WORLD_SIZE": min(here, team)}
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
            teams = Teams(rank, size, samples=first > 0, store=store) if samplers else None
            shared = store if teams is None else teams.store
            PartialState(cpu=cpu, store=shared, rank=own, world_size=team, timeout=FOR_EVER)
            return cls(own, team, nodes, teams)
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
        return self.number == 0

    @property
    def divided(self) -> bool:
        """Whether the processes are two teams."""
        return self.trains != self.samples

    def turns(self, count: int) -> range:
        """Return which of ``count`` items are sampled by this process if they are dealt one by one."""
        return range(self.rank, count, self.size) if self.samples else range(0)

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
        """Return what each process of the team passed, in the order of the ranks; all of them must call."""
        return self._gather(value, self.size, self._plain)

    def gather_all(self, value: T) -> list[T]:
        """Return what each process of the run passed, in the order of their numbers; all must call."""
        return self._gather(value, self.everyone, self._all)

    def _gather(self, value: T, size: int, group: Any) -> list[T]:
        if size == 1:
            return [value]
        data = pickle.dumps(value)
        lengths = [torch.zeros(1, dtype=torch.long) for _ in range(size)]
        self.finish(group.allgather([lengths], [torch.tensor([len(data)])]))
        longest = int(max(lengths))
        mine = torch.frombuffer(bytearray(data.ljust(longest)), dtype=torch.uint8)
        found = [torch.empty_like(mine) for _ in lengths]
        self.finish(group.allgather([found], [mine]))
        return [pickle.loads(x[: int(n)].numpy().tobytes()) for x, n in zip(found, lengths, strict=True)]  # noqa: S301 - our own

    @torch.no_grad()
    def give(self, weights: Sequence[Tensor]) -> None:
        """Give the team that samples the ``weights`` of the first process, through host memory; all must call.

        Its tensors are filled in place; those of the other processes stay as they are.
        """
        for bucket in _buckets(weights):
            flat = torch.cat([w.detach().reshape(-1) for w in bucket]).cpu()
            self.finish(self._all.broadcast(flat, 0))
            if self.samples:
                for own, new in zip(bucket, torch.split(flat, [w.numel() for w in bucket]), strict=True):
                    own.copy_(new.view_as(own))

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
        """Give the team what its process ``owner`` has in ``values``, a contiguous tensor; all of it must call."""
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
            lost = f"process {self.number} of {self.everyone} has lost another one: {error}"
            raise (RunnerError(lost) if self.nodes == 1 else outage(lost)) from error


def _within(name: str, store: Any) -> Any:
    """Return the part of a store of ``torch.distributed`` in which all keys begin with a name."""
    return dist.PrefixStore(name, store)  # type: ignore[attr-defined]


def _buckets(parameters: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for parameter in parameters:
        if bucket and sum(p.numel() for p in bucket) + parameter.numel() > BUCKET:
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
