"""What the tiny models are and how they are warmed up, as data. Light: no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paribus.recipe.recipe import ChainTask, Task


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Experts in place of the inner layers: ``per_token`` of ``experts``, and one shared by all tokens."""

    experts: int = 4
    per_token: int = 2
    inner: int = 64
    shared: int = 64


@dataclass(frozen=True, kw_only=True)
class TinySpec:
    """Sizes of a tiny model: tied embeddings, no biases, all heads with their own keys and values.

    A Llama, or with a ``mixture`` a Qwen2-MoE, which has no use for ``inner``.
    """

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    inner: int = 192
    rms_eps: float = 1e-6
    rope_theta: float = 10000.0
    initializer_range: float = 0.06
    seed: int = 0
    mixture: Mixture | None = None

    def record(self) -> dict[str, Any]:
        """Return all sizes, for the fingerprint."""
        return asdict(self)


TINY = TinySpec()
TINY_WIDE = TinySpec(heads=2)  # 32 channels a head: vLLM has no kernels for the 16 of the others
TINY_MOE = TinySpec(mixture=Mixture())
MODELS: Mapping[str, TinySpec] = {"tiny": TINY, "tiny_wide": TINY_WIDE, "tiny_moe": TINY_MOE}
"""The values of ``model.name`` that are made when needed; all others are folders or names on the hub."""


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One part of a warm-up.

    Attributes:
        traces: which traces: ``short``, ``clean`` or ``noisy``.
        steps: updates, at least.
        learned: more updates follow until the mean loss of the last ``WINDOW`` is below this, nats a token; when the
            last piece of a skill is learned varies with the machine's rounding.
        limit: updates, at most.
    """

    traces: str
    steps: int
    learned: float | None = None
    limit: int = 2000


WINDOW = 20


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """Supervised training on generated traces before any reinforcement learning.

    The learning rate rises over ``rise_steps``, stays, and falls to 2 % over the last stage, whose traces hold
    mistakes, so that there is something to learn from rewards.

    Attributes:
        task: kind of the task.
        stages: what is trained on, in order.
        prompts: problems in an update.
        traces: traces of each problem in an update.
        learning_rate: the highest.
        careful: share of written-out answers in the noisy stage (task ``chain``).
    """

    task: str
    stages: tuple[Stage, ...]
    prompts: int
    traces: int = 1
    learning_rate: float = 2e-3
    beta1: float = 0.9
    beta2: float = 0.98
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    rise_steps: int = 50
    careful: float = 0.0

    @classmethod
    def of(cls, task: Task) -> WarmUp:
        """Return the settings for a generated task."""
        if isinstance(task, ChainTask):
            return cls(
                task="chain",
                stages=(
                    Stage(traces="short", steps=200),  # long sums alone teach adding late
                    Stage(traces="clean", steps=200, learned=0.03),
                    Stage(traces="noisy", steps=500),
                ),
                prompts=64,
                careful=task.careful,
            )
        return cls(
            task=task.kind,
            stages=(Stage(traces="clean", steps=300, learned=0.6), Stage(traces="noisy", steps=300)),
            prompts=32,
            traces=2,
            learning_rate=3e-3,
        )

    def record(self) -> dict[str, Any]:
        """Return all settings, for the fingerprint."""
        return asdict(self)
