"""Options of the engine of Ray clusters."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, field_validator

from paribus.engines.base import Need
from paribus.engines.options import Options
from paribus.study.resources import Resources

GIB = 1 << 30


class RayOptions(Options):
    """Options of the engine ``ray``.

    Attributes:
        address: ``host:port`` of the head; ``auto``: the cluster that this machine belongs to.
        gpus: GPUs of a run whose study declares none; a part, as 0.5, puts several runs on one.
        cpus: CPU cores of a run whose study declares none.
        memory: GiB of main memory that Ray sets aside for a run; absent: none.
        resources: the cluster's own resources that a run needs, by name.
        launch: ``actor``: a run is a process of one node, and gets what it holds; ``job``: a run is a Ray program,
            which is started as a Ray Job and asks Ray for its workers by itself.
        jobs: jobs at a time, the waiting ones included; absent: as many as fit into the cluster as it is.
        grace: seconds that a run is given to write a checkpoint.
        host: name or address under which the nodes reach this machine; absent: its host name.
        port: TCP port that supervisors report to; 0: a free one.
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
            raise ValueError(f"{gpus:g} GPUs cannot be had: allowed are a part of one, as 0.5, or whole ones")
        return gpus

    def need(self, resources: Resources) -> Need:
        """Return what a run holds: what its study declares goes before the options; Ray knows no GPU's memory."""
        declared = 1.0 if resources.gpu_memory_gib else resources.gpus
        gpus = self.gpus if declared is None else declared
        threads = resources.cpus or (None if gpus else 1)
        return Need(gpus=gpus, cpus=float(resources.cpus or self.cpus), threads=threads)

    def bundle(self, need: Need | None = None) -> dict[str, float]:
        """Return what a run holds, as Ray names it."""
        need = need or self.need(Resources())
        asked = {"CPU": need.cpus, "GPU": need.gpus, "memory": (self.memory or 0) * GIB, **self.resources}
        return {name: amount for name, amount in asked.items() if amount > 0}

    def about(self) -> str:
        """Return what each job asks for, in a few words."""
        shown = {name: f"{a / GIB:g} GiB" if name == "memory" else f"{a:g}" for name, a in self.bundle().items()}
        return ", ".join(f"{amount} {name}" for name, amount in shown.items()) + " a run"
