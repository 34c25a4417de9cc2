"""The engine for debugging: each job runs inside this process, one at a time, so that a debugger can step into it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterable, Mapping

from paribus.contract import Device, Need, Resources
from paribus.engines.base import INLINE, PATIENCE_S, EngineSettings, JobState, Spec, Status, call_main
from paribus.errors import TooLarge


class InlineEngine:
    """Runs each job to its end while it is submitted."""

    name = "inline"
    reach = None
    trouble = ""
    patience_s = PATIENCE_S
    has_gangs = False

    def __init__(self, settings: EngineSettings) -> None:
        self._ended: dict[str, Status] = {}
        # one thread, as with the local engine, so that numbers do not depend on the engine
        os.environ.setdefault("OMP_NUM_THREADS", "1")

    def about(self, resources: Resources) -> str:
        """Return nothing: this needs no explanation."""
        return ""

    def need(self, resources: Resources) -> Need:
        """Return an empty need: the only job has everything that this process has.

        Raises:
            TooLarge: a run needs several GPUs, each of which gets a process of its own.
        """
        if (resources.gpus or 0) > 1:
            raise TooLarge(
                resources.about(),
                "the engine `inline` gives a run one process, so one GPU at most",
                "Choose another engine, such as `local`; or set `resources.gpus: 1`, without "
                "`compute.sampling_processes`.",
            )
        return Need()

    def devices(self) -> tuple[Device, ...]:
        """Return an empty tuple."""
        return ()

    def submit(self, spec: Spec, name: str) -> str:
        """Run the job and return its name."""
        if name not in self._ended:
            code = 1
            try:
                code = call_main(spec.module, [*spec.arguments, INLINE])
            except Exception:  # an error becomes an exit code, as in a separate process
                traceback.print_exc()
            self._ended[name] = Status(state=JobState.ENDED, exit_code=code)
        return name

    def find(self, name: str) -> str | None:
        """Return the name if it was submitted."""
        return name if name in self._ended else None

    def poll(self, names: Iterable[str]) -> Mapping[str, Status]:
        """Return the status of each named job; every submitted job has ended."""
        return {name: self._ended.get(name, Status(state=JobState.UNKNOWN)) for name in names}

    def cancel(self, name: str, grace: float) -> None:
        """Do nothing: no job is running while this can be called."""

    def slots(self) -> int:
        """Return 1."""
        return 1

    def capacity(self, need: Need | None = None) -> int:
        """Return 1."""
        return 1

    def close(self) -> None:
        """Do nothing: no job is left."""
