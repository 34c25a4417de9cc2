"""A study at one moment, as the store told it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass

from paribus.store.records import AttemptRecord, RunRecord, StudyRecord
from paribus.store.states import RunState


@dataclass(frozen=True, kw_only=True)
class StudyNow:
    """A study at one moment.

    Attributes:
        record: the study with its plan: ``record.plan`` has arms, rows, runs, ``evaluate``.
        runs: its runs in queue order, as this study sees them.
        attempts: fingerprint to the attempts at it, oldest first.
        at: seconds since 1970, on the database's clock.
    """

    record: StudyRecord
    runs: tuple[RunRecord, ...]
    attempts: Mapping[str, tuple[AttemptRecord, ...]]
    at: float

    @property
    def counts(self) -> Mapping[RunState, int]:
        """Runs in each state that occurs."""
        found: dict[RunState, int] = {}
        for run in self.runs:
            found[run.state] = found.get(run.state, 0) + 1
        return found

    @property
    def ended(self) -> Hashable:
        """What a report depends on: which runs have come to their end, and how."""
        return self.record.id, tuple((r.fingerprint, r.state) for r in self.runs if r.terminal)

    def seconds(self, run: RunRecord) -> float:
        """Return the device seconds that a run has cost so far, in all its attempts; GPUs count each."""
        found = self.attempts.get(run.fingerprint, ())
        return sum(a.charged if a.charged is not None else self._live(a) for a in found)

    def _live(self, attempt: AttemptRecord) -> float:
        return 0.0 if attempt.started_at is None else max(0.0, self.at - attempt.started_at) * (attempt.gpus or 1.0)
