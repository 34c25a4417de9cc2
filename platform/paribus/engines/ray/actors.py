"""Ray jobs that are processes of one node: each is run by a detached named actor in its own placement group.

Ray believes an actor that reports its work as done, and gives a GPU away while a process that the actor started may
still hold it. So a job's process and all that it has started end with its actor, the actor frees its placement group
only after they have, and the exit status is in a file.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from paribus.engines.base import ON_NODE, JobState
from paribus.engines.launch import Order, run_order, signal_order
from paribus.engines.process import Identity

NAMESPACE = "paribus"

_TICK_S = 0.1


def passed_on() -> dict[str, str]:
    """Return the variables of this process that a job gets; its node sets Ray's own and the GPUs."""
    return {k: v for k, v in os.environ.items() if not k.startswith("RAY_") and k != "CUDA_VISIBLE_DEVICES"}


def joining() -> dict[str, str]:
    """Return the variables by which a process of this actor can join the cluster."""
    import ray

    kept = {name: value for name, value in os.environ.items() if name.startswith("RAY_AUTH")}
    return {**kept, "RAY_ADDRESS": ray.get_runtime_context().gcs_address}


class JobActor:
    """The remote side: runs one job on a node, with the GPUs that Ray gave to this actor."""

    def __init__(self, order: Order) -> None:
        from ray.util import get_current_placement_group

        self._group: Any = get_current_placement_group()
        self._process: Identity | None = None
        self._note, self._ended = order.note, False
        self._trouble: Exception | None = None
        self._started = threading.Event()
        threading.Thread(target=self._run, args=(order,), daemon=True).start()
        self._started.wait()

    async def began(self) -> None:
        """Return as soon as the actor runs."""

    async def watch(self) -> None:
        """Return when the job has ended and its exit status is in the file.

        Raises:
            OSError: this node cannot write the job's files, such as where it does not see the home folder.
        """
        while not self._ended:
            await asyncio.sleep(_TICK_S)
        if self._trouble is not None:
            raise self._trouble

    async def signal(self, number: int) -> None:
        """Send a signal to the job's process group, or kill all of its processes."""
        if self._process is not None and not self._ended:
            await asyncio.to_thread(signal_order, self._process, number)

    def _run(self, order: Order) -> None:
        own = {"CUDA_VISIBLE_DEVICES": os.environ.get("CUDA_VISIBLE_DEVICES", "")}
        own |= joining() if ON_NODE in order.environment else {}  # else a trainer would join the cluster by itself
        try:
            run_order(order, own, self._has_started)
        except Exception as error:  # else the job would hold its GPUs for ever
            self._trouble = error
        finally:
            self._ended = True
            self._started.set()
            self._free()

    def _has_started(self, process: Identity | None) -> None:
        self._process = process
        self._started.set()

    def _free(self) -> None:
        """Release the resources, which also ends this actor; no scheduler has to be there."""
        from ray.util import remove_placement_group

        with suppress(Exception):  # without a head there are no resources to release
            remove_placement_group(self._group)


def held(bundle: Mapping[str, float]) -> dict[str, Any]:
    """Return the options of an actor that holds a bundle, and that Ray never starts again."""
    return {
        "max_restarts": 0,
        "max_task_retries": 0,
        "num_cpus": bundle["CPU"],
        "num_gpus": bundle.get("GPU", 0),
        "memory": bundle.get("memory", 0),
        "resources": {k: v for k, v in bundle.items() if k not in ("CPU", "GPU", "memory")},
    }


@dataclass(kw_only=True)
class _Followed:
    """An actor, and the Ray futures that become ready when its job begins and ends."""

    actor: Any
    began: Any
    ended: Any


class Actors:
    """Starts jobs as actors, with Ray's retries turned off, and finds them by name."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._followed: dict[str, _Followed] = {}

    def start(self, job: str, order: Order, bundle: Mapping[str, float], nodes: int) -> str:
        """Create the actor, unless it exists; it waits until its placement group has its resources on all nodes."""
        from ray.util import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        if self.find(job):  # a request that was thought lost
            return ""
        group = placement_group([dict(bundle)] * nodes, strategy="STRICT_SPREAD", name=job, lifetime="detached")
        named = {"name": job, "namespace": NAMESPACE, "get_if_exists": True, "lifetime": "detached"}
        options = {**named, **held(bundle), "scheduling_strategy": PlacementGroupSchedulingStrategy(group, 0)}
        self._follow(job, self._ray.remote(JobActor).options(**options).remote(order))
        return ""

    def find(self, job: str) -> bool:
        """Return whether Ray knows the actor."""
        try:
            self._follow(job, self._ray.get_actor(job, namespace=NAMESPACE))
        except ValueError:
            self._remove_group(job)  # from a scheduler that died before it created the actor
            return False
        return True

    def check(self) -> None:
        """Nothing but the cluster itself is needed."""

    def state(self, job: str) -> tuple[JobState, str]:
        """Return the state of a job, and for one that has failed Ray's explanation."""
        if job not in self._followed and not self.find(job):
            return JobState.UNKNOWN, ""
        followed = self._followed[job]
        if self._ready(followed.ended):
            return JobState.ENDED, self._reason(job)
        return (JobState.RUNNING if self._ready(followed.began) else JobState.PENDING), ""

    def _reason(self, job: str) -> str:
        try:
            self._ray.get(self._followed[job].ended)
        except self._ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return lines[-1][:200] if lines else type(error).__name__
        return ""

    def signal(self, job: str, number: int) -> None:
        """Send a signal to the job's process group."""
        if job in self._followed or self.find(job):
            self._followed[job].actor.signal.remote(number)

    def drop(self, job: str) -> None:
        """End the actor if it still exists, and release its resources."""
        followed = self._followed.pop(job, None)
        if followed is not None:
            with suppress(Exception):
                self._ray.kill(followed.actor, no_restart=True)
        self._remove_group(job)

    def _follow(self, job: str, actor: Any) -> None:
        self._followed[job] = _Followed(actor=actor, began=actor.began.remote(), ended=actor.watch.remote())

    def _ready(self, future: Any) -> bool:
        return bool(self._ray.wait([future], timeout=0)[0])

    def _remove_group(self, job: str) -> None:
        from ray.util import get_placement_group, remove_placement_group

        with suppress(ValueError):  # there is no such group
            remove_placement_group(get_placement_group(job))
