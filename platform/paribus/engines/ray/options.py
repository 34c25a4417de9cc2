"""What users set for the Ray engine, and what a run asks of Ray."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, field_validator

from paribus.contract import Need, Resources
from paribus.engines.options import ClusterOptions, run_need

_GIB = 1 << 30


class RayOptions(ClusterOptions):
    """Options of the engine ``ray``.

    Attributes:
        address: ``host:port`` of the head; ``auto``: the cluster that this machine belongs to.
        gpus: GPUs of a run whose study declares none; with a fraction, such as 0.5, runs share a GPU.
        cpus: CPU cores of a run whose study declares none.
        memory: GiB of main memory that Ray reserves for a run; absent: none.
        resources: custom resources of the cluster that a run needs, by name.
        launch: ``actor``: a run is a process of one node and holds its resources; ``job``: a run is a Ray program,
            started as a Ray Job, that requests its own workers from Ray.
        jobs: jobs at a time, waiting ones included; absent: as many as fit into the cluster.
        grace: seconds that a run gets to write a checkpoint.
        host: name or address under which the nodes reach this machine; absent: its host name.
        port: TCP port that supervisors report to; 0: any free port.
    """

    address: str = "auto"
    launch: Literal["actor", "job"] = "actor"
    gpus: Annotated[float, Field(ge=0, strict=False)] = 0.0
    cpus: Annotated[float, Field(gt=0, strict=False)] = 1.0
    memory: Annotated[float, Field(gt=0, strict=False)] | None = None
    resources: dict[str, Annotated[float, Field(gt=0, strict=False)]] = Field(default_factory=dict)
    jobs: Annotated[int, Field(ge=1)] | None = None
    grace: Annotated[int, Field(ge=1)] = 90
    host: str | None = None
    port: Annotated[int, Field(ge=0, le=65535)] = 0

    @field_validator("gpus")
    @classmethod
    def _whole(cls, gpus: float) -> float:
        if gpus > 1 and gpus != int(gpus):
            raise ValueError(
                f"`gpus: {gpus:g}` is not allowed: write a whole number, or a fraction below 1 such as 0.5"
            )
        return gpus

    def need(self, resources: Resources) -> Need:
        """Return what a run holds; the study's declaration takes precedence. Ray also gives parts of a GPU."""
        return run_need(resources, gpus=self.gpus, cpus=self.cpus)

    def bundle(self, need: Need | None = None) -> dict[str, float]:
        """Return what a run holds on a node, under Ray's names."""
        need = (need or self.need(Resources())).a_node
        asked = {"CPU": need.cpus, "GPU": need.gpus, "memory": (self.memory or 0) * _GIB, **self.resources}
        return {name: amount for name, amount in asked.items() if amount > 0}

    def about(self, need: Need | None = None) -> str:
        """Return what each job requests, in a few words."""
        asked = self.bundle(need)
        shown = {name: f"{a / _GIB:g} GiB" if name == "memory" else f"{a:g}" for name, a in asked.items()}
        each = f" on each of {need.nodes} nodes" if need is not None and need.nodes > 1 else ""
        return ", ".join(f"{amount} {name}" for name, amount in shown.items()) + f"{each} per run"


def shown(resources: Mapping[str, float]) -> str:
    """Return what Ray counts, in words, e.g. ``2 CPU, 1 GPU, 1.0 GiB``."""
    return ", ".join(f"{v / _GIB:.1f} GiB" if k == "memory" else f"{v:g} {k}" for k, v in resources.items())
