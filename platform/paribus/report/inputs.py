"""The inputs of a report: a plan and what its runs recorded, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from paribus.health.finding import HealthFile
from paribus.published.tables import Published
from paribus.run_folder.folder import Evaluation, MetricLine
from paribus.store.states import RunState
from paribus.study.gradients import GradientProbe
from paribus.study.plan import Plan

if TYPE_CHECKING:
    from paribus.report.declared import Declared
    from paribus.run_folder.samples import Sample
    from paribus.run_folder.series import Recorded

Outcome = Literal["finished", "stopped_early", "failed", "cancelled", "pending"]
"""How a run counts in tables; ``failed`` includes quarantined runs, ``pending`` all runs that may still finish."""


@dataclass(frozen=True, kw_only=True)
class External:
    """Where a run comes from that Paribus did not start.

    Attributes:
        origin: ``imported`` or ``tracked``.
        trainer: whose names its metrics had; empty if that is not known.
        score: the trainer's own name of the primary metric; empty if it is not known.
    """

    origin: str
    trainer: str = ""
    score: str = ""


@dataclass(frozen=True, kw_only=True)
class RunData:
    """One planned run and what it recorded.

    Attributes:
        fingerprint: identity of the run.
        arm: key of its arm.
        seed: its seed.
        outcome: how it counts in tables.
        state: its state in the store.
        reason: why it was stopped or failed; empty otherwise.
        attempts: number of attempts so far.
        gpus: GPUs that it holds; 0 for a CPU slot.
        lines: metric lines in memory, of a made-up run or the readable part of a damaged one.
        stored: series in files, instead of lines.
        evaluations: the evaluations with counts per problem that make up the score, and the one before training.
        health: its status while it trained; ``None`` if it has no status.
        external: where it comes from; ``None`` if Paribus trained it.
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
    health: HealthFile | None = None
    external: External | None = None

    @cached_property
    def recorded(self) -> Recorded:
        """The recorded metrics, from files or from memory."""
        from paribus.run_folder.series import Columns

        return self.stored or Columns.of(self.lines)

    @property
    def stopped_at_end(self) -> bool:
        """Whether it was stopped after all its steps, with a score there, so that it counts as finished."""
        return self.outcome == "finished" and self.state == RunState.STOPPED_EARLY

    @property
    def last_step(self) -> int:
        """The last step with a metric line; 0 if there is no line."""
        return self.recorded.span[1] if self.recorded.span else 0


@dataclass(frozen=True, kw_only=True)
class ArmSample:
    """What one arm answered to one problem.

    Attributes:
        arm: key of the arm.
        seed: of the run.
        sample: the response.
    """

    arm: str
    seed: int
    sample: Sample


@dataclass(frozen=True, kw_only=True)
class StudyData:
    """A study, finished or not.

    Attributes:
        plan: the plan.
        runs: the plan's runs, in its order.
        screened: runs of its search; they choose settings and enter no table of effects.
        provenance: what the numbers depend on beyond the plan, name to text (:func:`.build.provenance`).
        environments: fingerprint to name to text of what each finished run recorded of its environment.
        published: published tables to show beside the study's own.
        declared: what the plan declared after results were there; ``None`` if that is not known.
        samples: responses of the arms to the same held-out problems (:mod:`.samples`), problem by problem.
        gradients: the gradient probes that were made (`paribus gradients`).
    """

    plan: Plan
    runs: tuple[RunData, ...]
    screened: tuple[RunData, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    environments: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    published: tuple[Published, ...] = ()
    declared: Declared | None = None
    samples: tuple[tuple[ArmSample, ...], ...] = ()
    gradients: tuple[GradientProbe, ...] = ()
