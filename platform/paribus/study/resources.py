"""What one run of a study holds while it trains. It is no part of a fingerprint: the numbers do not depend on it."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

LEAST = 0.01
"""The smallest part of a GPU that can be asked for."""


class Resources(BaseModel):
    """What each run holds; what is not declared is the engine's choice."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    gpus: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="GPUs of a run: whole ones, a part of one (0.25 puts four runs on one), or 0"
    )
    gpu_memory_gib: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="in place of `gpus`: GiB of one GPU's memory; as many runs share a GPU as it holds"
    )
    cpus: Annotated[int, Field(ge=1)] | None = Field(default=None, description="CPU cores of a run")

    @field_validator("gpus")
    @classmethod
    def _whole(cls, gpus: float | None) -> float | None:
        if gpus is not None and (0 < gpus < LEAST or (gpus > 1 and gpus != int(gpus))):
            raise ValueError(f"{gpus:g} GPUs cannot be had: allowed are 0, a part of one from {LEAST} on, whole ones")
        return gpus

    @model_validator(mode="after")
    def _one_of_both(self) -> Resources:
        if self.gpus is not None and self.gpu_memory_gib is not None:
            raise ValueError("`gpus` and `gpu_memory_gib` both say how much of a GPU a run holds: keep one of them")
        return self

    @property
    def declared(self) -> bool:
        """Whether the study says anything."""
        return self != Resources()

    def about(self) -> str:
        """Return what is declared in a few words, e.g. ``2 GPUs, 4 CPU cores``."""
        parts = []
        if self.gpus is not None:
            parts.append("1 GPU" if self.gpus == 1 else f"{self.gpus:g} GPUs")
        if self.gpu_memory_gib is not None:
            parts.append(f"{self.gpu_memory_gib:g} GiB of a GPU")
        if self.cpus is not None:
            parts.append("1 CPU core" if self.cpus == 1 else f"{self.cpus} CPU cores")
        return ", ".join(parts)
