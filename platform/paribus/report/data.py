"""What a report is made of: a plan and what its runs recorded, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from paribus.health.judged import Judged
from paribus.study.plan import Plan
from paribus.study.published import Published
from paribus.track.folder import Evaluation, MetricLine

if TYPE_CHECKING:
    from paribus.track.series import Recorded

Outcome = Literal["finished", "stopped_early", "failed", "cancelled", "pending"]
"""What a state means for the tables; ``failed`` covers quarantined runs, ``pending`` all that may still finish."""


@dataclass(frozen=True, kw_only=True)
class RunData:
    """One planned run and what it recorded.

    Attributes:
        fingerprint: identity of the run.
        arm: key of its arm.
        seed: its seed.
        outcome: what its state means for the tables.
        state: the state as the store has it.
        reason: why it stopped early or failed; empty otherwise.
        attempts: tries so far.
        gpus: GPUs that it holds; 0: a CPU slot.
        lines: metric lines in memory: of a run that was made up, or what can be read of a damaged one.
        stored: series in files, instead of lines.
        evaluations: those with counts per problem that make the score, and the one before training.
        health: the verdict while it trained; ``None`` if it was not judged.
    """

    fingerprint: str
    arm: str
    seed: int
    outcome: Outcome
    state: str = ""
    reason: str = ""
    attempts: int = 1
    gpus: float = 0.0
    lines: tuple[MetricLine, ...] = ()
    stored: Recorded | None = None
    evaluations: tuple[Evaluation, ...] = ()
    health: Judged | None = None

    @cached_property
    def recorded(self) -> Recorded:
        """The metrics, wherever they are."""
        from paribus.track.series import Columns

        return self.stored or Columns.of(self.lines)

    @property
    def last_step(self) -> int:
        """The last step with a metric line; 0 without any."""
        return self.recorded.span[1] if self.recorded.span else 0


@dataclass(frozen=True, kw_only=True)
class StudyData:
    """A study as far as it has come.

    Attributes:
        plan: what was planned.
        runs: the plan's runs, in its order.
        screened: runs of its search; they choose settings, and enter no table of effects.
        provenance: what the numbers depend on and the plan does not hold: name to text (:mod:`.provenance`).
        published: tables of others that are shown beside.
    """

    plan: Plan
    runs: tuple[RunData, ...]
    screened: tuple[RunData, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    published: tuple[Published, ...] = ()

    def of_arm(self, key: str) -> tuple[RunData, ...]:
        """Return the runs of one arm, by seed."""
        return tuple(sorted((r for r in self.runs if r.arm == key), key=lambda r: r.seed))
