"""Starts a command on another node of a Ray job: ``python -m paribus.engines.ray.on_node JOB NODE COMMAND...``.

The command is ``python ... -m MODULE ARGUMENTS`` with a ``main(arguments)`` in the module. It runs in an actor in the
bundle of that node, which Ray ends with this process. What it prints goes where this process prints, a file that all
nodes see; its exit status is this process's.
"""

from __future__ import annotations

import os
import queue
import shlex
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from paribus.engines.launch import Order, read_number
from paribus.engines.ray.actors import NAMESPACE, JobActor, held, passed_on

_PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
_LOOK_S = 0.2
_LOST = 1


class NodeActor(JobActor):
    """The remote side: runs the command with what its bundle holds."""

    def _free(self) -> None:
        """Leave the bundle: it is the job's."""

    async def exit_status(self) -> int | None:
        """Return the exit status of the command; ``None`` if none was left."""
        note = Path(self._note)
        found = read_number(note)
        note.unlink(missing_ok=True)
        return found


def words(job: str) -> str:
    """Return the words that start a command on a node of a job, as :data:`~paribus.engines.base.ON_NODE` has them."""
    return shlex.join([sys.executable, "-P", "-m", __name__, job, "{node}"])


def main(arguments: Sequence[str]) -> int:
    """Run the command to its end, passing signals on; return its exit status."""
    job, node, *command = arguments
    passed = queue.SimpleQueue[int]()
    for number in _PASSED_ON:
        signal.signal(number, lambda sent, _: passed.put(sent))
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.util import get_placement_group, placement_group_table
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    ray.init(namespace=NAMESPACE, log_to_driver=False, configure_logging=False, logging_level="ERROR")
    group = get_placement_group(job)
    bundle = placement_group_table(group)["bundles"][int(node)]
    place = PlacementGroupSchedulingStrategy(group, int(node))
    actor = ray.remote(NodeActor).options(**held(bundle), scheduling_strategy=place).remote(_order(command))
    return _followed(ray, actor, passed)


def _order(command: Sequence[str]) -> Order:
    at = command.index("-m")
    return Order(
        module=command[at + 1],
        arguments=tuple(command[at + 2 :]),
        environment=passed_on(),
        cwd=str(Path.cwd()),
        log=str(Path("/proc/self/fd/1").readlink()),
        note=f"{tempfile.gettempdir()}/paribus-node-{socket.gethostname()}-{os.getpid()}",
    )


def _followed(ray: Any, actor: Any, passed: queue.SimpleQueue[int]) -> int:
    ended = actor.watch.remote()
    try:
        while not ray.wait([ended], timeout=_LOOK_S)[0]:
            with suppress(queue.Empty):
                actor.signal.remote(passed.get_nowait())
        ray.get(ended)
        code = ray.get(actor.exit_status.remote())
    except ray.exceptions.RayError as error:
        sys.stderr.write(f"Ray has lost what it ran on another node: {' '.join(str(error).split())[:300]}\n")
        return _LOST
    return _LOST if code is None else int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
