"""How a run uses its devices: memory and speed, at the same objective."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, field_validator, model_serializer

from paribus.recipe import factors as f


class Compute(f.Level):
    """How a run uses its devices; no part of the objective."""

    sharding: Literal["none", "optimizer", "weights"] = Field(
        default="none",
        description="of a run in several processes: `none`: each holds everything; `optimizer`: each holds AdamW's "
        "moments, and float32 copies of bfloat16 weights, of a share of the weights alone; `weights`: in updates "
        "each holds a share alone of the weights and of their gradients, too",
    )
    offload: tuple[Literal["optimizer", "reference"], ...] = Field(
        default=(),
        description="what is in host memory where it is not used: `optimizer`: moments and float32 copies, which the "
        "CPU steps; `reference`: the weights of the reference policy",
    )
    gradient_checkpointing: bool = Field(
        default=False, description="compute each block again in the backward pass in place of keeping what it computed"
    )
    sampling_processes: int = Field(
        default=0,
        ge=0,
        description="how many processes of a run sample and do nothing else: the rollouts of the step "
        "`schedule.staleness` steps ahead, while the others train; 0: all processes do both in turn",
    )
    head: Literal["torch", "triton"] = Field(
        default="torch",
        description="what makes log-probabilities of the logits of a large vocabulary: operations of PyTorch, or "
        "kernels in Triton, which hold a fifth of the memory in bfloat16 and need an NVIDIA GPU",
    )

    @field_validator("offload")
    @classmethod
    def _in_order(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(sorted(set(names)))

    @model_serializer(mode="wrap", when_used="json")
    def _without_later_options(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out options that came later where they do nothing: recipes keep their text from before."""
        values: dict[str, Any] = dump(self)
        plain = {"offload": [], "sampling_processes": 0, "head": "torch"}
        return {k: v for k, v in values.items() if k not in plain or v != plain[k]}
