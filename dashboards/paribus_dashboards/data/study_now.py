"""A study as the store has it at one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from paribus.store.models import AttemptRecord, RunRecord, StudyRecord
from paribus.store.states import RunState


@dataclass(frozen=True, kw_only=True)
class StudyNow:
    """A study at one moment.

    Attributes:
        record: the study with its plan; ``record.plan`` has arms, rows, runs and ``evaluate``.
        runs: its runs in queue order.
        attempts: fingerprint of a run to its attempts, oldest first.
        at: seconds since 1970, on the database's clock.
    """

    record: StudyRecord
    runs: tuple[RunRecord, ...]
    attempts: Mapping[str, tuple[AttemptRecord, ...]]
    at: float

    @property
    def counts(self) -> Mapping[RunState, int]:
        """Number of runs in each state that occurs."""
        return Counter(r.state for r in self.runs)

    @property
    def ended(self) -> Hashable:
        """What a report depends on: which runs have ended, and in which state."""
        return self.record.id, tuple((r.fingerprint, r.state) for r in self.runs if r.terminal)

    def seconds(self, run: RunRecord) -> float:
        """Return the device seconds that all attempts at a run have used so far; each GPU counts."""
        found = self.attempts.get(run.fingerprint, ())
        return sum(a.charged if a.charged is not None else self._live(a) for a in found)

    def _live(self, attempt: AttemptRecord) -> float:
        return 0.0 if attempt.started_at is None else max(0.0, self.at - attempt.started_at) * (attempt.gpus or 1.0)
