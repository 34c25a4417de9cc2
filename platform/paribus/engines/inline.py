"""The engine for debugging: each job runs inside this process, one at a time, so that a debugger can step into it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Mapping

from paribus.engines.base import INLINE, Device, EngineSettings, JobState, Need, Spec, Status, call_main
from paribus.study.resources import Resources


class InlineEngine:
    """Runs a job to its end when it is submitted."""

    name = "inline"
    reach = None
    about = ""

    def __init__(self, settings: EngineSettings) -> None:
        self._ended: dict[str, int] = {}
        # numbers do not depend on the engine: one thread, as the local engine has it
        os.environ.setdefault("OMP_NUM_THREADS", "1")

    def need(self, resources: Resources) -> Need:
        """Return nothing: the one job has what this process has."""
        return Need()

    def devices(self) -> tuple[Device, ...]:
        """Return none."""
        return ()

    def submit(self, spec: Spec, name: str) -> str:
        """Run the job and return its name."""
        if name not in self._ended:
            self._ended[name] = 1
            try:
                self._ended[name] = call_main(spec.module, [*spec.arguments, INLINE])
            except Exception:  # as in a process of its own, a job's error is its exit code
                traceback.print_exc()
        return name

    def find(self, name: str) -> str | None:
        """Return the name, if it was submitted."""
        return name if name in self._ended else None

    def poll(self, names: Iterable[str]) -> Mapping[str, Status]:
        """Return the status of each named job; all that were submitted have ended."""
        known = {n: Status(state=JobState.ENDED, exit_code=code) for n, code in self._ended.items()}
        return {n: known.get(n, Status(state=JobState.UNKNOWN)) for n in names}

    def cancel(self, name: str, grace: float) -> None:
        """Do nothing: no job is running when somebody can call this."""

    def slots(self) -> int:
        """Return 1."""
        return 1

    def capacity(self, need: Need | None = None) -> int:
        """Return 1."""
        return 1

    def close(self) -> None:
        """Do nothing: no job is left."""
