"""What the tiny model is and how it is warmed up, as data. Light: no torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from paribus.recipe.recipe import ChainTask, Task


@dataclass(frozen=True, kw_only=True)
class TinySpec:
    """Sizes of the tiny Llama: tied embeddings, no biases, all heads with their own keys and values."""

    layers: int = 2
    hidden: int = 64
    heads: int = 4
    inner: int = 192
    rms_eps: float = 1e-6
    rope_theta: float = 10000.0
    initializer_range: float = 0.06
    seed: int = 0

    def record(self) -> dict[str, Any]:
        """Return all sizes, for the fingerprint."""
        return asdict(self)


TINY = TinySpec()


@dataclass(frozen=True, kw_only=True)
class WarmUp:
    """Supervised training on generated traces before any reinforcement learning.

    Attributes:
        task: kind of the task.
        short_steps: first updates, on problems of two to four digits (``chain``): long ones alone teach adding late.
        clean_steps: updates after these, on traces without mistakes.
        noisy_steps: updates after these, on traces with mistakes, so that there is something to learn from rewards.
        batch: traces in an update.
        learning_rate: peak; linear rise over ``rise_steps``, flat to 60 % of the steps, then linear to 2 %.
        careful: share of written-out answers in the noisy stage (task ``chain``).
    """

    task: str
    short_steps: int = 0
    clean_steps: int
    noisy_steps: int
    batch: int
    learning_rate: float = 3e-3
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
                short_steps=150,
                clean_steps=150,
                noisy_steps=200,
                batch=128,
                learning_rate=2e-3,
                careful=task.careful,
            )
        return cls(task=task.kind, clean_steps=400, noisy_steps=300, batch=64)

    def record(self) -> dict[str, Any]:
        """Return all settings, for the fingerprint."""
        return asdict(self)
