"""How a run samples, and which of the sampler's choices its learner repeats."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from paribus.recipe import factors as f


class Rollout(f.Level):
    """How responses are sampled in training and evaluation, and which of the sampler's choices the learner repeats."""

    engine: Literal["torch", "vllm"] = Field(
        default="torch",
        description="`torch`: the code that trains also samples; `vllm`: vLLM in the same process (docs/howto/vllm.md)",
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="vllm: type of its weights and computations; `auto`: that of `model.dtype`"
    )
    cache_gib: f.Positive | None = Field(
        default=None, description="vllm: GiB for keys and values; absent: 1 on a CPU, 30% of a GPU's memory"
    )
    sequences: f.Count = Field(default=256, description="vllm: most responses that are sampled at once")
    routing_replay: Literal["off", "learner", "sampler"] = Field(
        default="off",
        description="for mixtures of experts: an update sends tokens to the experts that its own router chooses "
        "(`off`), that the router chose before the updates (`learner`: R2, arXiv 2507.18071), or that they went to "
        "when they were sampled (`sampler`: R3, arXiv 2510.11370)",
    )

    @model_validator(mode="after")
    def _of_vllm(self) -> Rollout:
        stated = [name for name in ("dtype", "cache_gib", "sequences") if getattr(self, name) != _default(self, name)]
        if self.engine != "vllm" and stated:
            named = ", ".join(f"`rollout.{name}`" for name in stated)
            raise ValueError(f"{named}: for `rollout.engine: vllm` alone. Remove it, or set the engine")
        return self

    @model_serializer(mode="wrap", when_used="json")
    def _without_later_options(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out an option that came later where it does nothing: recipes keep their text from before."""
        values: dict[str, Any] = dump(self)
        return {k: v for k, v in values.items() if k != "routing_replay" or v != "off"}


def _default(level: f.Level, name: str) -> Any:
    return type(level).model_fields[name].default
