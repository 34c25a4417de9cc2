"""Jobs of a Ray cluster that are processes of one node: each kept by a detached named actor in a placement group."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from paribus.engines.ray_keeper import Keeper, Order

NAMESPACE = "paribus"


@dataclass(kw_only=True)
class _Kept:
    """An actor, and Ray's promises to say when its job has begun and has ended."""

    actor: Any
    began: Any
    ended: Any


class Actors:
    """Starts jobs as actors, whose retries are off, and finds them by name."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._kept: dict[str, _Kept] = {}

    def start(self, job: str, order: Order, bundle: Mapping[str, float]) -> str:
        """Ask for the actor; it waits until its placement group has its resources."""
        from ray.util import placement_group
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        group = placement_group([dict(bundle)], strategy="STRICT_PACK", name=job, lifetime="detached")
        options = {
            "name": job,
            "namespace": NAMESPACE,
            "get_if_exists": True,
            "lifetime": "detached",
            "max_restarts": 0,
            "max_task_retries": 0,
            "num_cpus": bundle["CPU"],
            "num_gpus": bundle.get("GPU", 0),
            "memory": bundle.get("memory", 0),
            "resources": {k: v for k, v in bundle.items() if k not in ("CPU", "GPU", "memory")},
            "scheduling_strategy": PlacementGroupSchedulingStrategy(group, 0),
        }
        self._follow(job, self._ray.remote(Keeper).options(**options).remote(order))
        return ""

    def find(self, job: str) -> bool:
        """Return whether Ray knows the actor."""
        try:
            self._follow(job, self._ray.get_actor(job, namespace=NAMESPACE))
        except ValueError:
            self._remove_group(job)  # made by a scheduler that died before it made the actor
            return False
        return True

    def began(self, job: str) -> bool:
        """Return whether the job has its resources and runs."""
        return self._ready(self._kept[job].began)

    def ended(self, job: str) -> bool:
        """Return whether the job has ended."""
        return self._ready(self._kept[job].ended)

    def reason(self, job: str) -> str:
        """Return Ray's word for the end of a job that left no exit status."""
        try:
            self._ray.get(self._kept[job].ended)
        except self._ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            return lines[-1][:200] if lines else type(error).__name__
        return ""

    def signal(self, job: str, number: int) -> None:
        """Send a signal to the job's process group."""
        self._kept[job].actor.signal.remote(number)

    def drop(self, job: str) -> None:
        """End the actor, which may be gone, and give its resources back."""
        kept = self._kept.pop(job, None)
        if kept is not None:
            with suppress(Exception):
                self._ray.kill(kept.actor, no_restart=True)
        self._remove_group(job)

    def _follow(self, job: str, actor: Any) -> None:
        self._kept[job] = _Kept(actor=actor, began=actor.began.remote(), ended=actor.watch.remote())

    def _ready(self, promise: Any) -> bool:
        return bool(self._ray.wait([promise], timeout=0)[0])

    def _remove_group(self, job: str) -> None:
        from ray.util import get_placement_group, remove_placement_group

        with suppress(ValueError):  # there is none
            remove_placement_group(get_placement_group(job))
