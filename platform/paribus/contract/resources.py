"""What a run holds: GPUs and cores, as a study declares them and as an engine gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from paribus.text import plural
from paribus.yaml_file.messages import WrongPart

LEAST = 0.01
"""The smallest part of a GPU that a run can hold."""


class Resources(BaseModel):
    """What each run holds; the engine chooses what is not declared."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    gpus: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="GPUs of a run: whole ones, a part of one (0.25 puts four runs on one), or 0"
    )
    cpus: Annotated[int, Field(ge=1)] | None = Field(default=None, description="CPU cores of a run")
    nodes: Annotated[int, Field(ge=1)] = Field(
        default=1, description="machines of a run, each with an equal part of its GPUs and cores (`slurm`, `ray`)"
    )

    @field_validator("gpus")
    @classmethod
    def _whole(cls, gpus: float | None) -> float | None:
        if gpus is not None and (0 < gpus < LEAST or (gpus > 1 and gpus != int(gpus))):
            raise ValueError(
                f"{gpus:g} GPUs are not possible: write 0, a part of one from {LEAST} on, or a whole number"
            )
        return gpus

    @model_validator(mode="after")
    def _equal_parts(self) -> Resources:
        for part, what, amount in (("gpus", "GPUs", self.gpus), ("cpus", "CPU cores", self.cpus)):
            if self.nodes > 1 and amount is not None and amount % self.nodes:
                raise WrongPart(
                    f"{amount:g} {what} cannot be dealt out equally to {self.nodes} nodes: `gpus` and `cpus` are those "
                    f"of all nodes together, so write multiples of {self.nodes}",
                    part,
                )
        return self

    @model_validator(mode="before")
    @classmethod
    def _of_an_earlier_plan(cls, values: Any, info: ValidationInfo) -> Any:
        """Read stored plans of versions in which a run could declare GiB of a GPU: such a run gets a whole GPU."""
        if info.mode == "json" and isinstance(values, dict) and "gpu_memory_gib" in values:
            values = dict(values)
            if values.pop("gpu_memory_gib") is not None:
                values["gpus"] = 1.0
        return values

    @property
    def declared(self) -> bool:
        """Whether the study declares anything."""
        return self != Resources()

    def about(self) -> str:
        """Return the declared resources in words, e.g. ``16 GPUs, 32 CPU cores on 2 nodes``."""
        parts = []
        if self.gpus is not None:
            parts.append(plural(self.gpus, "GPU"))
        if self.cpus is not None:
            parts.append(plural(self.cpus, "CPU core"))
        return ", ".join(parts) + (f" on {self.nodes} nodes" if self.nodes > 1 else "")


@dataclass(frozen=True, kw_only=True)
class Need:
    """What a run holds on an engine.

    Attributes:
        gpus: whole GPUs, or a fraction of one; 0: none.
        cpus: CPU cores that are counted.
        threads: threads for numerical libraries; ``None``: their own choice.
        nodes: machines, each of which has an equal part of all that.
    """

    gpus: float = 0.0
    cpus: float = 0.0
    threads: int | None = None
    nodes: int = 1

    @property
    def a_node(self) -> Need:
        """What it holds on each of its nodes."""
        threads = None if self.threads is None else max(1, self.threads // self.nodes)
        return Need(gpus=self.gpus / self.nodes, cpus=self.cpus / self.nodes, threads=threads)


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device of a machine that runs hold: a GPU, or all CPU cores together.

    Attributes:
        name: as in ``CUDA_VISIBLE_DEVICES``; ``cpu``.
        amount: 1 for a GPU, otherwise the number of cores.
        memory: GiB of a GPU; 0: unknown.
        used: GiB of it in use, by any process.
    """

    kind: Literal["gpu", "cpu"]
    name: str
    amount: float
    memory: float = 0.0
    used: float = 0.0
